"""``ajet-swarm start``: serve until a signal comes, then finish the update, save, and go."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from ajet.backbone.protocol import Backbone
from ajet.default_config.load import load_yaml
from ajet.default_config.schema import AjetConfig
from ajet.pool.lock import take_lock
from ajet.schema.errors import AjetError, ConfigError, DiskRefused
from ajet.server import logs
from ajet.server.app import SwarmApp, create_app
from ajet.server.auth import KEY_VARIABLE, Keys
from ajet.server.connection import bounded
from ajet.server.jobs import check_machine
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
        ConfigError: the address is taken, the folder is another server's or cannot be written, or the job is not valid
            or asks for what this machine has not.
    """
    settings = ServerSettings(host=host, port=port, exp_dir=Path(exp_dir))
    job = _job_of(Path(config)) if config is not None else None
    _wait_for_room(settings)
    listener = _listen(host, port)
    # Held as long as the process lives: two servers would note what they run, and make keys, in the same files.
    lock = _alone(settings)
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    logs.set_up((log_dir or settings.exp_dir) / "server.log")
    bound = listener.getsockname()[1]
    settings = ServerSettings(host=host, port=bound, exp_dir=Path(exp_dir), limits=_with_open_files(limits or Limits()))
    app = create_app(settings, backbone_factory, **app_options)
    if log_dir is None:
        app.engine.on_open = lambda folder: logs.set_up(folder / "server.log")
    if job is not None and not app.engine.resume():
        app.engine.put_job(job.model_dump(mode="json"))
    served = _Autostart(app) if config is not None else app
    server = _Server(server_config(served, settings.limits), app.engine.leave)
    server.listen_for_ctrl_c()
    url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
    log.info("swarm server at %s, experiments in %s", url, settings.exp_dir)
    if app.keys.generated:
        log.info("admin key: set %s to the content of %s", KEY_VARIABLE, settings.data_dir / "admin.key")
    if on_listening is not None:
        on_listening(url)
    # What was imported stays: a collection that walks all of it would hold up everybody, and find nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    with lock, contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends orderly at the first signal, and at once at a second Ctrl-C: what was answered is in the journal."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def listen_for_ctrl_c(self) -> None:
        """From now on, and not only once it serves: an exception in the midst of a preparation may be lost."""

        def early(sig: int, frame: FrameType | None) -> None:
            if not self.started:
                self.handle_exit(sig, frame)

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, early)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            os.write(2, b"left at once; the next start resumes from the journal\n")
            os._exit(130)
        if not self.should_exit:
            log.info("stopping: a running update is finished and saved first; a second Ctrl-C leaves at once")
        super().handle_exit(sig, frame)
        self._on_exit()


def _alone(settings: ServerSettings) -> contextlib.AbstractContextManager[Any]:
    """Keep other servers out of the folder until what is returned is left; not where the disk is full.

    Raises:
        ConfigError: there is one already.
    """
    try:
        return take_lock(settings.data_dir / "server")
    except DiskRefused as err:
        if isinstance(err.__cause__, OSError) and err.__cause__.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _unwritable(settings, err.__cause__) from err
        return contextlib.nullcontext()
    except ConfigError as err:
        raise ConfigError(
            f"Another swarm server works in {settings.exp_dir} on this machine. Use that one, stop it, or give this one a "
            "folder of its own with --exp-dir."
        ) from err


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
                raise _unwritable(settings, err) from err
            if not said:
                logs.set_up()
                log.error(
                    "the disk under %s is full: waiting until there is room for the server's keys", settings.exp_dir
                )
                said = True
            time.sleep(ROOM_RETRY_S)


def _unwritable(settings: ServerSettings, err: OSError) -> ConfigError:
    return ConfigError(
        f"The folder {settings.exp_dir} cannot be written: {err.strerror}. Give this user the right to, or choose another "
        "--exp-dir."
    )


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
        if err.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Cannot listen on {host}:{port}: another program does already. If it is a swarm server (ajet-swarm status "
                f"--swarm-url http://{host}:{port}), use it or stop it; else choose another --swarm-port."
            ) from err
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {err.strerror or err}. Choose another --swarm-port or --host."
        ) from err
    listener.listen(4096)
    return listener


def _job_of(path: Path) -> AjetConfig:
    """The job of a file. Raises :class:`ConfigError` with file and line, or for what this machine has not."""
    config = load_yaml(path)
    check_machine(config)
    return config
