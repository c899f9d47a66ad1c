"""``ajet-swarm start``: serve until a signal comes, then finish the update, save, and go."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
import yaml

from ajet.backbone.protocol import Backbone
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import AjetError, ConfigError
from ajet.server import logs
from ajet.server.app import SwarmApp, create_app
from ajet.server.auth import KEY_VARIABLE, Keys
from ajet.server.connection import bounded
from ajet.server.settings import Limits, ServerSettings

log = logging.getLogger("ajet.server")
ROOM_RETRY_S = 1.0
OTHER_FILES = 192
"""Open files that are kept for journals, checkpoints and logs."""

GC_THRESHOLD = (20_000, 20, 20)
"""Python's own (700, 10, 10) walks the same live episodes every few calls: a tenth of the server's CPU under load."""


def serve(
    host: str = "127.0.0.1",
    port: int = 10086,
    exp_dir: Path | str = "saved_experiments",
    config: Path | str | None = None,
    *,
    limits: Limits | None = None,
    log_dir: Path | None = None,
    backbone_factory: Callable[[AjetConfig], Backbone] | None = None,
    on_listening: Callable[[str], None] | None = None,
    **app_options: Any,
) -> None:
    """Serve; blocks until SIGINT or SIGTERM.

    Args:
        port: 0 chooses a free one; ``on_listening`` is told the URL.
        config: a job to start at once, unless one is resumed.
        log_dir: of ``server.log``; None: the running experiment's folder, and ``exp_dir`` while there is none.
        backbone_factory, app_options: see :func:`create_app`.

    Raises:
        ConfigError: the address is taken, or the job is not valid.
    """
    settings = ServerSettings(host=host, port=port, exp_dir=Path(exp_dir))
    _wait_for_room(settings)
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    logs.set_up((log_dir or settings.exp_dir) / "server.log")
    listener = _listen(host, port)
    bound = listener.getsockname()[1]
    settings = ServerSettings(host=host, port=bound, exp_dir=Path(exp_dir), limits=_with_open_files(limits or Limits()))
    app = create_app(settings, backbone_factory, **app_options)
    if log_dir is None:
        app.engine.on_open = lambda folder: logs.set_up(folder / "server.log")
    if config is not None and not app.engine.resume():
        app.engine.put_job(_job_of(Path(config)))
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
    server = uvicorn.Server(server_config(_Autostart(app) if config is not None else app, settings.limits))
    log.info("swarm server at %s, experiments in %s", url, settings.exp_dir)
    if app.keys.generated:
        log.info("admin key: set %s to the content of %s", KEY_VARIABLE, settings.data_dir / "admin.key")
    if on_listening is not None:
        on_listening(url)
    # What was imported stays: a collection that walks all of it would hold up everybody, and find nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _wait_for_room(settings: ServerSettings) -> None:
    """Make the folders and keys; wait while their disk is full.

    Raises:
        ConfigError: they cannot be written for another reason.
    """
    said = False
    while True:
        try:
            settings.exp_dir.mkdir(parents=True, exist_ok=True)
            Keys(settings)
            return
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise ConfigError(
                    f"The folder {settings.exp_dir} cannot be written: {err.strerror}. Choose another --exp-dir."
                ) from err
            if not said:
                logs.set_up()
                log.error(
                    "the disk under %s is full: waiting until there is room for the server's keys", settings.exp_dir
                )
                said = True
            time.sleep(ROOM_RETRY_S)


def _with_open_files(limits: Limits) -> Limits:
    """Allow this process as many open files as it may have, and no more connections than these leave room for."""
    try:
        import resource
    except ImportError:  # not a Unix
        return limits
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=min(limits.connections, max(32, files - OTHER_FILES)))


def server_config(app: Any, limits: Limits | None = None) -> uvicorn.Config:
    """uvicorn as this server wants it."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=bounded(limits or Limits()),
        ws="none",
        access_log=False,
        log_level="error",
        lifespan="on",
        timeout_keep_alive=75,
        backlog=4096,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=10,
    )


class _Autostart:
    """Starts the engine with the job that was given on the command line, once the server is up."""

    def __init__(self, app: SwarmApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def started(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete" and self._app.engine.job is not None:
                try:
                    await self._app.engine.start()
                except AjetError as err:
                    log.error("the job could not be started: %s", err.message)
            await send(message)

        await self._app(scope, receive, started)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as err:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {err.strerror}. Choose another --swarm-port or --host."
        ) from err
    listener.listen(4096)
    return listener


def _job_of(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as err:
        raise ConfigError(f"The job {path} cannot be read: {err}") from err
    if not isinstance(tree, dict) or not isinstance(tree.get("ajet"), dict):
        raise ConfigError(f"The job {path} has no 'ajet:' at its top.")
    return tree["ajet"]
