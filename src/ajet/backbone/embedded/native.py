"""The sampler's forward of a small model on a CPU, in C: one pass over all sequences, whatever their lengths, no padding.

``native.c`` has one call a layer, whose weights stay in the processor's cache while a few rows at a time go through norms,
products, attention over the paged cache, and the gate. It is compiled once with the machine's own C compiler and kept in the
user's cache directory. Where there is no compiler, or with ``AJET_NATIVE=0``, :func:`kernel` answers None and torch does
it all; so it does for layers that no cache holds. Training never comes here: weights do not depend on it.

Letters: N new tokens of all sequences, B sequences, K blocks of the longest, H hidden, V vocabulary.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ajet.backbone.embedded.paged import BLOCK, PagedKV

log = logging.getLogger(__name__)

_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
SMALL_LAYER = 600_000
"""Weights of a layer up to which a processor's cache holds it: beyond it, torch's matrix products are better."""
_PANEL = 32
"""Outputs that lie together in packed weights."""
_ROWS = 12
"""Queries that ``native.c`` works on at once."""
_PARALLEL_WORK = 400_000
"""New tokens times (context + what the weights cost) from which on a second thread is worth waking."""


@dataclass(frozen=True)
class Ragged:
    """New tokens of B sequences, one behind the other.

    Attributes:
        ids_N: the tokens.
        tables_B_K: int32 block numbers of each sequence.
        start_B: int32, how many tokens each has cached.
        offset_B: int32 ``[B + 1]``, where each one's new tokens begin.
    """

    ids_N: torch.Tensor
    tables_B_K: np.ndarray
    start_B: np.ndarray
    offset_B: np.ndarray


@lru_cache(maxsize=1)
def kernel() -> Any | None:
    """The compiled loops, or None where torch has to do."""
    if os.environ.get("AJET_NATIVE", "1") == "0":
        return None
    try:
        library = ctypes.CDLL(str(_compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: nobody's home directory
        log.info("no native sampler kernel (%s): torch does it", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.ajet_store.argtypes = [pointer] * 4 + [number] + [pointer] * 4 + [number] * 6
    library.ajet_attend.argtypes = (
        [pointer] * 5 + [number] + [pointer] * 2 + [number] * 7 + [pointer]
    )  # fmt: skip
    real = ctypes.c_float
    library.ajet_in.argtypes = [pointer] * 5 + [number] * 4 + [real, pointer]
    library.ajet_out.argtypes = [pointer] * 7 + [number] * 5 + [real, pointer]
    library.ajet_layer.argtypes = [pointer] * 8 + [number] + [pointer] * 4 + [number] * 8 + [real, pointer]
    for name in ("ajet_store", "ajet_attend", "ajet_in", "ajet_out", "ajet_layer"):
        getattr(library, name).restype = None
    return library


def _compiled() -> Path:
    """The shared library for this source and this processor, compiled where it is not there yet."""
    compiler = next(
        (found for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and (found := shutil.which(c))), None
    )
    if compiler is None:
        raise OSError("there is no C compiler")
    source = Path(__file__).with_name("native.c")
    name = hashlib.sha256(source.read_bytes() + repr((_FLAGS, compiler, _processor())).encode()).hexdigest()[:24]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ajet"
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    if cache.stat().st_uid != os.getuid() or cache.stat().st_mode & 0o022:
        raise OSError(f"{cache} can be written by others")
    library = cache / f"native-{name}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder) / "native.so"
            subprocess.run(
                [compiler, *_FLAGS, "-o", str(made), str(source), "-lm"], check=True, capture_output=True, timeout=120
            )
            made.replace(library)
    return library


def _processor() -> str:
    """What ``-march=native`` depends on: a home directory may be shared by unequal machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return platform.machine() + "".join(
        next((x for x in lines if x.startswith(k)), "") for k in ("model name", "flags")
    )


@dataclass(frozen=True)
class _Packed:
    """The weights as ``native.c`` reads them; ``tensors`` keeps what ``layers`` points to."""

    layers: list[Any]
    embed: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor | None
    tensors: list[torch.Tensor]
    versions: list[tuple[int, int]]


class NativeForward:
    """Runs one small Qwen2 model over its tiled cache.

    Args:
        library: of :func:`kernel`.
        weights: answers the current fused weights (see :mod:`ajet.backbone.embedded.qwen2`).
        shape: the model's.
        rope: its tables.
    """

    def __init__(self, library: Any, weights: Callable[[], dict[str, torch.Tensor]], shape: Any, rope: Any) -> None:
        self._library, self._weights, self._shape, self._rope = library, weights, shape, rope
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads - 1, "native") if self._threads > 1 else None
        self._scratch = [torch.empty(0) for _ in range(self._threads)]
        self._packed: _Packed | None = None

    def __call__(self, kv: PagedKV, batch: Ragged) -> torch.Tensor:
        """Float32 logits ``[B, V]`` after each sequence's last new token."""
        lib, shape, packed = self._library, self._shape, self._pack()
        N, B, K = len(batch.ids_N), len(batch.start_B), batch.tables_B_K.shape[1]
        heads, kvh, dim, H = shape.heads, shape.kv_heads, shape.head_dim, shape.hidden
        A, inner, eps = heads * dim, len(packed.tensors[-1]), shape.eps
        W, padded = A + 2 * kvh * dim, kv.v[0].shape[-1]
        end_B = batch.start_B + np.diff(batch.offset_B)
        cos, sin = (t.data_ptr() for t in self._rope.tables(int(end_B.max())))
        where = batch.tables_B_K.ctypes.data, K, batch.start_B.ctypes.data, batch.offset_B.ctypes.data
        scratch = self._room(_ROWS * max(K * BLOCK + dim, max(A, H) + inner + 64))
        x = F.embedding(batch.ids_N, packed.embed)
        tail, qkv, o = torch.empty(B, H), torch.empty(N, W), torch.empty(N, A)
        to_x, to_qkv, to_o = x.data_ptr(), qkv.data_ptr(), o.data_ptr()
        spans = self._spans(np.diff(batch.offset_B).astype(np.int64) * (end_B + 4 * H))
        for i, w in enumerate(packed.layers):
            k, v, last = kv.k[i].data_ptr(), kv.v[i].data_ptr(), i == shape.layers - 1
            if len(spans) == 1:
                lib.ajet_layer(
                    to_x, tail.data_ptr(), to_qkv, to_o, w, k, v, *where, cos, sin, B, H, inner, heads, kvh, dim, padded,
                    last, eps, scratch[0],
                )  # fmt: skip
                continue
            first = [int(batch.offset_B[a]) for a, _ in spans]
            rows = list(itertools.pairwise([*first, N]))
            self._spread(
                lambda n, a, b, w=w, x=to_x: lib.ajet_in(x, w[0], w[1], w[2], to_qkv, a, b, H, W, eps, scratch[n]), rows
            )
            lib.ajet_store(to_qkv, k, v, *where, cos, sin, 0, B, heads, kvh, dim, padded)
            self._spread(
                lambda n, a, b, k=k, v=v, last=last: lib.ajet_attend(
                    to_qkv, to_o, k, v, *where, a, b, heads, kvh, dim, padded, last, scratch[n]
                ),
                spans,
            )
            if last:
                tail = x[torch.from_numpy(batch.offset_B[1:].astype(np.int64) - 1)]
                to_x, rows = tail.data_ptr(), spans
            self._spread(
                lambda n, a, b, w=w, to=to_x: lib.ajet_out(
                    to, to_o, w[3], w[4], w[5], w[6], w[7], a, b, H, A, inner, eps, scratch[n]
                ),
                rows,
            )
        if packed.head is None:
            h = F.rms_norm(tail, (H,), packed.norm, eps)
            w = self._weights()
            return F.linear(h, w["embed"] if shape.tied else w["lm_head"])
        logits = torch.empty(B, shape.vocab)
        lib.ajet_in(
            tail.data_ptr(), packed.norm.data_ptr(), packed.head.data_ptr(), None, logits.data_ptr(), 0, B, H,
            shape.vocab, eps, scratch[0],
        )  # fmt: skip
        return logits

    def _pack(self) -> _Packed:
        """Packed weights, packed again where training has changed the weights."""
        w = self._weights()
        versions = [(t.data_ptr(), t._version) for t in w.values()]
        if self._packed is not None and self._packed.versions == versions:
            return self._packed
        layers, tensors = [], []
        for i in range(self._shape.layers):
            gate, up = w[f"{i}.gate_up"].chunk(2)
            parts = [
                w[f"{i}.norm1"], _panels(w[f"{i}.qkv"]), w[f"{i}.qkv_bias"], _panels(w[f"{i}.o"]), w[f"{i}.norm2"],
                _panels(_padded(gate)), _panels(_padded(up)), _panels(_padded(w[f"{i}.down"].t()).t()),
            ]  # fmt: skip
            layers.append((ctypes.c_void_p * len(parts))(*(p.data_ptr() for p in parts)))
            tensors += parts
        head = w["embed"] if self._shape.tied else w["lm_head"]
        packed_head = _panels(head) if head.numel() <= SMALL_LAYER else None
        tensors.append(_padded(gate))  # its length is the padded inner size
        self._packed = _Packed(layers, w["embed"], w["norm"], packed_head, tensors, versions)
        return self._packed

    def _room(self, size: int) -> list[int]:
        for i, one in enumerate(self._scratch):
            if len(one) < size:
                self._scratch[i] = torch.empty(size)
        return [one.data_ptr() for one in self._scratch]

    def _spread(self, work: Callable[[int, int, int], None], spans: list[tuple[int, int]]) -> None:
        """``work(thread, first, last)`` for each span, at once."""
        assert self._pool is not None
        others = [self._pool.submit(work, n, *span) for n, span in enumerate(spans[1:], 1)]
        work(0, *spans[0])
        for other in others:
            other.result()

    def _spans(self, work_B: np.ndarray) -> list[tuple[int, int]]:
        """Sequences for each thread, about equal in work."""
        B = len(work_B)
        if self._pool is None or B < 2:
            return [(0, B)]
        work = np.cumsum(work_B)
        if work[-1] < _PARALLEL_WORK:
            return [(0, B)]
        cuts = [int(np.searchsorted(work, work[-1] * t / self._threads)) for t in range(1, self._threads)]
        return list(itertools.pairwise([0, *cuts, B]))


def _padded(w: torch.Tensor) -> torch.Tensor:
    """Zero rows behind the last, to a multiple of the panel."""
    return F.pad(w, (0, 0, 0, -len(w) % _PANEL))


def _panels(w: torch.Tensor) -> torch.Tensor:
    """``[M, K]`` → ``[M / 32, K, 32]``."""
    return _padded(w).unflatten(0, (-1, _PANEL)).transpose(1, 2).contiguous()
