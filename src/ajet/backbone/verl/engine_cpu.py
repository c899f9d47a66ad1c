"""verl's FSDP2 engine on a CPU, through its engine registry (which has it for cuda and npu only)."""

from __future__ import annotations

from typing import Any

from verl.workers import engine as verl_engine

FsdpEngine: Any = verl_engine.FSDPEngineWithLMHead  # verl puts it there only where its imports succeed


@verl_engine.EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device=["cpu"])
class CpuFsdp2Engine(FsdpEngine):
    """As on a GPU, but that a reference model is not offloaded: pinned memory needs an accelerator."""

    def _build_fsdp_module(self, module: Any) -> Any:
        forward_only, self.engine_config.forward_only = self.engine_config.forward_only, False
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config.forward_only = forward_only
