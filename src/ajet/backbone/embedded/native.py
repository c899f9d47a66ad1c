"""The sampler's forward on a CPU with a few loops in C: one pass over all sequences, whatever their lengths, no padding.

``native.c`` does what torch does in many small passes over memory (rotary embedding, the paged cache, attention, norms,
the gate); matrix products stay torch's. It is compiled once with the machine's own C compiler and kept in the user's
cache directory. Where there is no compiler, or ``AJET_NATIVE=0``, :func:`kernel` answers None and torch does it all.
Training never comes here: weights do not depend on it.

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
_ROWS = 12
"""Queries that ``native.c`` works on at once."""
_PARALLEL_WORK = 200_000
"""Query-key pairs of one layer from which on a second thread is worth waking."""


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
    except (OSError, subprocess.SubprocessError) as error:
        log.info("no native sampler kernel (%s): torch does it", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.ajet_store.argtypes = [pointer] * 4 + [number] + [pointer] * 4 + [number] * 6
    library.ajet_attend.argtypes = (
        [pointer] * 5 + [number] + [pointer] * 2 + [number] * 7 + [pointer]
    )  # fmt: skip
    library.ajet_norm.argtypes = [pointer] * 4 + [number] * 2 + [ctypes.c_float]
    library.ajet_gate.argtypes = [pointer] * 2 + [number] * 2
    for name in ("ajet_store", "ajet_attend", "ajet_norm", "ajet_gate"):
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


class NativeForward:
    """Runs one Qwen2 model over its tiled cache.

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
        self._scores = [torch.empty(0) for _ in range(self._threads)]

    def __call__(self, kv: PagedKV, batch: Ragged) -> torch.Tensor:
        """Float32 logits ``[B, V]`` after each sequence's last new token."""
        lib, w, shape = self._library, self._weights(), self._shape
        N, B, K = len(batch.ids_N), len(batch.start_B), batch.tables_B_K.shape[1]
        heads, kvh, dim, hidden = shape.heads, shape.kv_heads, shape.head_dim, shape.hidden
        padded = kv.v[0].shape[-1]
        end_B = batch.start_B + np.diff(batch.offset_B)
        cos, sin = self._rope.tables(int(end_B.max()))
        where = batch.tables_B_K.ctypes.data, K, batch.start_B.ctypes.data, batch.offset_B.ctypes.data
        room = _ROWS * (K * BLOCK + dim)
        for i, score in enumerate(self._scores):
            if len(score) < room:
                self._scores[i] = torch.empty(room)
        spans = self._spans(batch, end_B)
        last_B = torch.from_numpy(batch.offset_B[1:].astype(np.int64) - 1)
        x = F.embedding(batch.ids_N, w["embed"])
        y: torch.Tensor | None = None
        h = torch.empty_like(x)
        for i in range(shape.layers):
            lib.ajet_norm(
                x.data_ptr(), None if y is None else y.data_ptr(), w[f"{i}.norm1"].data_ptr(), h.data_ptr(), N, hidden,
                shape.eps,
            )  # fmt: skip
            qkv = F.linear(h, w[f"{i}.qkv"], w[f"{i}.qkv_bias"])
            k, v = kv.k[i].data_ptr(), kv.v[i].data_ptr()
            lib.ajet_store(qkv.data_ptr(), k, v, *where, cos.data_ptr(), sin.data_ptr(), 0, B, heads, kvh, dim, padded)
            last = i == shape.layers - 1
            o = torch.empty(B if last else N, heads * dim)

            def attend(
                part: int, first: int, stop: int, qkv: torch.Tensor = qkv, o: torch.Tensor = o, k: int = k, v: int = v,
                last: bool = last,
            ) -> None:  # fmt: skip
                lib.ajet_attend(
                    qkv.data_ptr(), o.data_ptr(), k, v, *where, first, stop, heads, kvh, dim, padded, last,
                    self._scores[part].data_ptr(),
                )  # fmt: skip

            others = [self._pool.submit(attend, p, *s) for p, s in enumerate(spans[1:], 1)] if self._pool else []
            attend(0, *spans[0])
            for other in others:
                other.result()
            if last:
                x, N = x[last_B], B
                h = h[:B]
            y = F.linear(o, w[f"{i}.o"])
            lib.ajet_norm(x.data_ptr(), y.data_ptr(), w[f"{i}.norm2"].data_ptr(), h.data_ptr(), N, hidden, shape.eps)
            gate_up = F.linear(h, w[f"{i}.gate_up"])
            gated = torch.empty(N, gate_up.shape[1] // 2)
            lib.ajet_gate(gate_up.data_ptr(), gated.data_ptr(), N, gated.shape[1])
            y = F.linear(gated, w[f"{i}.down"])
        assert y is not None
        lib.ajet_norm(x.data_ptr(), y.data_ptr(), w["norm"].data_ptr(), h.data_ptr(), N, hidden, shape.eps)
        return F.linear(h, w["embed"] if shape.tied else w["lm_head"])

    def _spans(self, batch: Ragged, end_B: np.ndarray) -> list[tuple[int, int]]:
        """Sequences for each thread, about equal in work."""
        B = len(end_B)
        if self._pool is None or B < 2:
            return [(0, B)]
        work = np.cumsum(np.diff(batch.offset_B).astype(np.int64) * end_B)
        if work[-1] < _PARALLEL_WORK:
            return [(0, B)]
        cuts = [int(np.searchsorted(work, work[-1] * t / self._threads)) for t in range(1, self._threads)]
        edges = [0, *cuts, B]
        return list(itertools.pairwise(edges))
