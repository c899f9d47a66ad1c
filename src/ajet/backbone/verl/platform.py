"""A CPU for verl, through its platform registry. verl imports this module by ``VERL_USE_EXTERNAL_MODULES``.

A CPU has no memory counters, streams or profilers of its own; those answer neutrally. One worker stands for one device:
its slot is Ray's ``GPU`` resource, of which a host without GPUs declares as many as it shall run workers, because verl
counts free slots under that name only.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

NAME = "cpu"
SLOT = "GPU"


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """What verl asks of ``torch.<device>``, for a CPU."""
    module = types.ModuleType("ajet_torch_cpu")
    for name in ("synchronize", "is_available", "Stream", "current_stream", "stream"):
        setattr(module, name, getattr(torch.cpu, name))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _zero)
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device"):
        setattr(module, name, _nothing)
    module.device_count = lambda: 1  # type: ignore[attr-defined]
    module.current_device = lambda: torch.device("cpu")  # type: ignore[attr-defined]
    module.mem_get_info = lambda *_: (0, 0)  # type: ignore[attr-defined]
    module.get_device_name = lambda *_: "CPU"  # type: ignore[attr-defined]
    module.manual_seed = module.manual_seed_all = torch.manual_seed  # type: ignore[attr-defined]
    module.get_rng_state = torch.get_rng_state  # type: ignore[attr-defined]
    module.set_rng_state = torch.set_rng_state  # type: ignore[attr-defined]
    return module


_MODULE = _device_module()


@PlatformRegistry.register(platform=NAME)
class CpuPlatform(PlatformBase):
    """Chosen by ``VERL_PLATFORM=cpu`` only; nothing is taken over where a GPU platform is in use."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "AJET_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return SLOT

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
