"""The sampler's process: ``python -m ajet.backbone.vllm.worker FD``. Private; started by ``backbone.py`` only.

The loop is the embedded worker's; weights arrive as a directory to read, never over the pipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ajet.backbone.embedded.worker import serve
from ajet.backbone.vllm.installed import cannot_load
from ajet.default_config.schema import AjetConfig


def _open_engine(message: dict[str, Any], progressed: Callable[[], None]) -> Any:
    try:
        from ajet.backbone.vllm.engine import VllmEngine
    except (ImportError, OSError, RuntimeError) as error:
        raise cannot_load(error) from error
    return VllmEngine(
        AjetConfig.model_validate(message["job"]), device=message["device"], parameters=message["parameters"],
        max_len=message["max_len"], progressed=progressed,
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
    serve(_open_engine)
