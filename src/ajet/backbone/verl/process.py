"""The server's side of ``backbone: verl``. Imports neither torch nor Ray.

What the driver process started on this host (Ray's own processes, its folder of sockets and logs) ends and goes with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import tempfile
from pathlib import Path

from ajet.algorithm.support import check_algorithm
from ajet.backbone.models import model_dir
from ajet.backbone.process import ProcessBackbone
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError

_NEEDED = ("verl", "ray", "tensordict", "peft", "zmq", "cachetools")
_LONGEST_TEMP = 40
"""Ray puts sockets below its folder, and a socket's path may have 107 characters."""


class VerlBackbone(ProcessBackbone):
    """A Ray driver as the worker process, with verl's workers and replicas behind it."""

    WORKER = "ajet.backbone.verl.driver"
    GRACE_S = 15.0

    _folder: str | None = None

    def _check(self, config: AjetConfig) -> None:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"backbone: verl needs {', '.join(missing)}: pip install 'agentjet[verl]' (on every host), or set backbone: "
                "embedded.", param="backbone",
            )  # fmt: skip
        check_algorithm(config.trainer_common)
        model_dir(config.model.path)

    def _environment(self) -> dict[str, str]:
        base = tempfile.gettempdir()
        self._folder = tempfile.mkdtemp(prefix="ajet-ray-", dir=base if len(base) < _LONGEST_TEMP else "/tmp")
        return {"AJET_RAY_DIR": self._folder, "RAY_USAGE_STATS_ENABLED": "0"}

    async def close(self) -> None:
        """End the driver, and on this host what it started."""
        pid = self.pid
        await super().close()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        if self._folder is not None:
            for owned in _of_folder(self._folder):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(owned, signal.SIGKILL)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _of_folder(folder: str) -> list[int]:
    """Ray's processes that name the folder on their command line: its store of objects and its raylet, for example."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
