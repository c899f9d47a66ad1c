"""What is used of vLLM beyond its documented interface, in one place; each has a contract test in ``tests/vllm``.

Functions that take a ``worker`` run where vLLM has its model (``collective_rpc``).
"""

from __future__ import annotations

import logging
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this very process: its loop is ours
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # trainer and server are on these cores, too
}


def cpu_head_sizes() -> list[int]:
    """Head sizes that vLLM's attention on a CPU has kernels for."""
    from vllm.v1.attention.backends.cpu_attn import (  # pyright: ignore[reportMissingImports]
        CPUAttentionBackend,
    )

    return list(CPUAttentionBackend.get_supported_head_sizes())


def redispatch_tied_head(worker: Any) -> bool:
    """Pack the output layer again, from the embedding that was just loaded. Whether there was one to pack.

    On a CPU vLLM multiplies by a packed copy of each weight. ``reload_weights`` packs again what it loads, and a tied
    output layer loads nothing: it would go on with the old copy, silently.
    """
    from vllm.model_executor.layers.utils import (  # pyright: ignore[reportMissingImports]
        dispatch_cpu_unquantized_gemm,
    )

    model = worker.model_runner.get_model()
    head = getattr(model, "lm_head", None)
    tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    if head is None or not tied:
        return False
    dispatch_cpu_unquantized_gemm(head, remove_weight=False)
    return True


class ExpectedlyEmpty(logging.Filter):
    """Drops the report of layers that load nothing at an update and need not: rotary tables, a tied output layer."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self._ends = ("RotaryEmbedding", "ParallelLMHead") if tied else ("RotaryEmbedding",)

    def filter(self, record: logging.LogRecord) -> bool:
        layer = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        return not (str(record.msg).endswith("Failed to load weights") and layer.endswith(self._ends))


RELOAD_LOG = "vllm.model_executor.model_loader.reload.layerwise"
