"""The sampler's forward of a small model on a CPU, in C: one pass over all sequences, whatever their lengths, no padding.

``native.c`` takes a layer's weights, which stay in the processor's cache, over a few rows at a time: norms, products, attention
over the paged cache, and the gate. On one thread a pass is one call, and so are several tokens of every sequence, drawing
included. Where there is no compiler, or with ``AJET_NATIVE=0``, :func:`~ajet.backbone.embedded.compiled.kernel` answers None and
torch does it all; so it does for layers that no cache holds. Training never comes here: weights do not depend on it.

Letters: N new tokens of all sequences, B sequences, K blocks of the longest, H hidden, V vocabulary, T tokens of each.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ajet.backbone.embedded.compiled import Model
from ajet.backbone.embedded.draw import not_finite
from ajet.backbone.embedded.paged import BLOCK, PagedKV

SMALL_LAYER = 600_000
"""Weights of a layer up to which a processor's cache holds it: beyond it, torch's matrix products are better."""
_PANEL = 32
"""Outputs that lie together in packed weights."""
_ROWS = 12
"""Queries that ``native.c`` works on at once."""
_PARALLEL_WORK = 400_000
"""New tokens times (context + what the weights cost) from which on a second thread is worth waking."""
STOPS = 8
"""Ids that end a reply, as many as :meth:`NativeForward.decode` looks at."""


@dataclass(frozen=True)
class Ragged:
    """New tokens of B sequences, one behind the other.

    Attributes:
        ids_N: int32, the tokens.
        tables_B_K: int32 block numbers of each sequence.
        start_B: int32, how many tokens each has cached.
        offset_B: int32 ``[B + 1]``, where each one's new tokens begin.
    """

    ids_N: np.ndarray
    tables_B_K: np.ndarray
    start_B: np.ndarray
    offset_B: np.ndarray


@dataclass(frozen=True)
class Ahead:
    """How sequences go on by themselves, beside a :class:`Ragged` that has one new token of each.

    Attributes:
        temperature_B: float32; 0: the most probable token.
        uniform_T_B: float64 in [0, 1), what each token is drawn with.
        stops_B_S: int32 ids that end a reply, -1 behind the last.
        limit_B: int32 tokens of prompt and reply together at most.
        enough: sequences that end before all return.
    """

    temperature_B: np.ndarray
    uniform_T_B: np.ndarray
    stops_B_S: np.ndarray
    limit_B: np.ndarray
    enough: int


@dataclass(frozen=True)
class _Packed:
    """The weights as ``native.c`` reads them; ``tensors`` keeps what ``layers`` points to."""

    layers: list[Any]
    embed: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor | None
    inner: int
    model: Model
    tensors: list[Any]


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
        self._scratch = [np.empty(0, np.float32) for _ in range(self._threads)]
        self._packed: _Packed | None = None

    def __call__(self, kv: PagedKV, batch: Ragged) -> torch.Tensor:
        """Float32 logits ``[B, V]`` after each sequence's last new token."""
        end_B = batch.start_B + np.diff(batch.offset_B)
        spans = self._spans(np.diff(batch.offset_B).astype(np.int64) * (end_B + 4 * self._shape.hidden))
        packed = self._pack(kv, int(end_B.max()))
        if len(spans) > 1 or packed.head is None:
            return self._layers(kv, batch, packed, spans)
        N, B, K = len(batch.ids_N), len(batch.start_B), batch.tables_B_K.shape[1]
        logits_B_V = np.empty((B, self._shape.vocab), np.float32)
        self._library.ajet_pass(
            ctypes.addressof(packed.model), batch.ids_N.ctypes.data, batch.tables_B_K.ctypes.data, K,
            batch.start_B.ctypes.data, batch.offset_B.ctypes.data, B, logits_B_V.ctypes.data, self._room(N, B, K),
        )  # fmt: skip
        return torch.from_numpy(logits_B_V)

    def draw(
        self, logits_B_V: torch.Tensor, temperature_B: np.ndarray, uniform_B: np.ndarray
    ) -> tuple[list[int], list[float]]:
        """A token of each row, as :func:`ajet.backbone.embedded.draw.draw` does it with nothing but a temperature, and its
        log-prob. A row's draw depends on nothing else in the batch.

        Raises:
            FloatingPointError: the logits are not finite.
        """
        B, V = logits_B_V.shape
        ids_B, logprob_B = np.empty(B, np.int32), np.empty(B, np.float32)
        fine = self._library.ajet_draw(
            logits_B_V.data_ptr(), B, V, temperature_B.ctypes.data, uniform_B.ctypes.data, ids_B.ctypes.data,
            logprob_B.ctypes.data, self._floats(0, V + BLOCK),
        )  # fmt: skip
        if fine < 0:
            raise not_finite()
        return ids_B.tolist(), logprob_B.tolist()

    def goes_ahead(self, lengths: list[int]) -> bool:
        """Whether :meth:`decode`, which is one thread's, serves sequences of these lengths as well as passes would."""
        head = self._weights()["embed" if self._shape.tied else "lm_head"]
        work = sum(lengths) + 4 * self._shape.hidden * len(lengths)
        return head.numel() <= SMALL_LAYER and (self._pool is None or work < _PARALLEL_WORK)

    def decode(self, kv: PagedKV, batch: Ragged, ahead: Ahead) -> tuple[np.ndarray, np.ndarray]:
        """Up to T tokens of each sequence: ids ``[t, B]``, -1 behind the end of a sequence, and their log-probs.

        The blocks of ``batch`` have room for T tokens more than are cached.

        Raises:
            FloatingPointError: the logits are not finite.
        """
        T, B = ahead.uniform_T_B.shape
        K, V = batch.tables_B_K.shape[1], self._shape.vocab
        packed = self._pack(kv, K * BLOCK)
        tables_B_K, token_B, start_B = batch.tables_B_K.copy(), batch.ids_N.copy(), batch.start_B.copy()
        ids_T_B, logprob_T_B, who_B = np.empty((T, B), np.int32), np.empty((T, B), np.float32), np.empty(B, np.int32)
        taken = self._library.ajet_decode(
            ctypes.addressof(packed.model), tables_B_K.ctypes.data, K, start_B.ctypes.data, batch.offset_B.ctypes.data,
            B, token_B.ctypes.data, ahead.temperature_B.ctypes.data, ahead.uniform_T_B.ctypes.data,
            ahead.stops_B_S.ctypes.data, ahead.stops_B_S.shape[1], ahead.limit_B.ctypes.data, T, ahead.enough,
            ids_T_B.ctypes.data, logprob_T_B.ctypes.data, who_B.ctypes.data, self._room(B, B, K, more=B * V + V + BLOCK),
        )  # fmt: skip
        if taken < 0:
            raise not_finite()
        return ids_T_B[:taken], logprob_T_B[:taken]

    def _layers(self, kv: PagedKV, batch: Ragged, packed: _Packed, spans: list[tuple[int, int]]) -> torch.Tensor:
        """Layer by layer, on several threads or with a head that no cache holds."""
        lib, shape = self._library, self._shape
        N, B, K = len(batch.ids_N), len(batch.start_B), batch.tables_B_K.shape[1]
        heads, kvh, dim, H = shape.heads, shape.kv_heads, shape.head_dim, shape.hidden
        A, inner, eps = heads * dim, packed.inner, shape.eps
        W, padded = A + 2 * kvh * dim, kv.v[0].shape[-1]
        cos, sin = packed.model.cos, packed.model.sin
        where = batch.tables_B_K.ctypes.data, K, batch.start_B.ctypes.data, batch.offset_B.ctypes.data
        size = self._row_scratch(K)
        scratch = [self._floats(n, size) for n in range(self._threads)]
        x = F.embedding(torch.from_numpy(batch.ids_N), packed.embed)
        qkv, o = torch.empty(N, W), torch.empty(N, A)
        to_x, to_qkv, to_o = x.data_ptr(), qkv.data_ptr(), o.data_ptr()
        first = [int(batch.offset_B[a]) for a, _ in spans]
        rows = list(itertools.pairwise([*first, N]))
        tail = x
        for i, w in enumerate(packed.layers):
            k, v, last = kv.k[i].data_ptr(), kv.v[i].data_ptr(), i == shape.layers - 1
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

    def refresh(self) -> None:
        """The weights have changed: pack them again. (torch's count of changes does not see what a fused optimizer does.)"""
        self._packed = None

    def _pack(self, kv: PagedKV, length: int) -> _Packed:
        """The packed weights, with ``kv`` and ``length`` positions."""
        packed = self._packed
        if packed is None:
            packed = self._packed = self._pack_anew(self._weights())
        if packed.model.pool_k is None or packed.tensors[0] is not kv:
            pools = [(ctypes.c_void_p * len(pool))(*(t.data_ptr() for t in pool)) for pool in (kv.k, kv.v)]
            packed.tensors[:2] = kv, pools
            packed.model.pool_k, packed.model.pool_v = (ctypes.addressof(p) for p in pools)
            packed.model.padded = kv.v[0].shape[-1]
        packed.model.cos, packed.model.sin = (t.data_ptr() for t in self._rope.tables(length))
        return packed

    def _pack_anew(self, w: dict[str, torch.Tensor]) -> _Packed:
        shape = self._shape
        layers: list[Any] = []
        tensors: list[Any] = [None, None]
        inner = 0
        for i in range(shape.layers):
            gate, up = w[f"{i}.gate_up"].chunk(2)
            inner = len(_padded(gate))
            parts = [
                w[f"{i}.norm1"], _panels(w[f"{i}.qkv"]), w[f"{i}.qkv_bias"], _panels(w[f"{i}.o"]), w[f"{i}.norm2"],
                _panels(_padded(gate)), _panels(_padded(up)), _panels(_padded(w[f"{i}.down"].t()).t()),
            ]  # fmt: skip
            layers.append((ctypes.c_void_p * len(parts))(*(p.data_ptr() for p in parts)))
            tensors += parts
        embed, norm, head = w["embed"], w["norm"], w["embed" if shape.tied else "lm_head"]
        packed_head = _panels(head) if head.numel() <= SMALL_LAYER else None
        table = (ctypes.c_void_p * len(layers))(*(ctypes.addressof(layer) for layer in layers))
        tensors.append(table)
        model = Model(
            embed=embed.data_ptr(), norm=norm.data_ptr(), head=None if packed_head is None else packed_head.data_ptr(),
            layers=ctypes.addressof(table), count=shape.layers, hidden=shape.hidden, inner=inner, heads=shape.heads,
            kv=shape.kv_heads, dim=shape.head_dim, vocab=shape.vocab, eps=shape.eps,
        )  # fmt: skip
        return _Packed(layers, embed, norm, packed_head, inner, model, tensors)

    def _row_scratch(self, K: int) -> int:
        """Floats that a layer needs beside its rows."""
        shape, packed = self._shape, self._packed
        assert packed is not None
        attention = (K + 3) * BLOCK + 2 * shape.head_dim
        return _ROWS * max(attention, max(shape.heads * shape.head_dim, shape.hidden) + BLOCK + packed.inner + 64)

    def _room(self, N: int, B: int, K: int, more: int = 0) -> int:
        """Scratch of ``ajet_pass``, and ``more`` floats."""
        shape = self._shape
        row = shape.hidden + 2 * (shape.heads + shape.kv_heads) * shape.head_dim
        return self._floats(0, N * row + B * shape.hidden + self._row_scratch(K) + more)

    def _floats(self, thread: int, size: int) -> int:
        """Scratch of one thread; it is kept, since fresh memory costs more than what is done in it."""
        if len(self._scratch[thread]) < size:
            self._scratch[thread] = np.empty(size, np.float32)
        return self._scratch[thread].ctypes.data

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
