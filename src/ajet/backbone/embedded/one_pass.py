"""The sampler over compiled loops: prompts and decoding in one pass, several tokens in one call.

Prompts that share a beginning share it within a pass. While no prompt waits, one call draws several tokens of each sequence.
Where all caches together would not stay in the processor's own, prompts go by themselves and the oldest sequences are
decoded first, several tokens at a time: one at a time of all would fetch every cache from memory for every token.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from ajet.backbone.embedded.native import STOPS, Ahead, NativeForward, Ragged
from ajet.backbone.embedded.paged import BLOCK, PagedKV
from ajet.backbone.embedded.request import Request
from ajet.backbone.embedded.sampler import Forward, Sampler
from ajet.backbone.protocol import Chunk

_AHEAD_TOKENS = 128
"""Tokens that one call draws of all sequences together, so that what arrives meanwhile waits less than a few milliseconds."""
_AHEAD_EACH = 16
"""The same of one sequence."""
_FRONT_BYTES = 8 << 20
"""Keys and values that the sequences of one decoding pass have together, so that the next pass finds them in the
processor's cache."""
_ALIKE = 32
"""Blocks that sequences have in common from which on they are decoded together: their common keys are fetched once."""
_TURN = 64
"""Tokens after which a sequence that is decoded before others lets them go first."""


class OnePassSampler(Sampler):
    """See the module.

    Args:
        native: used instead of ``forward``; ``kv`` is tiled.
        others: see :class:`~ajet.backbone.embedded.sampler.Sampler`.
    """

    def __init__(self, native: NativeForward, forward: Forward, kv: PagedKV, *, max_seqs: int, **others: Any) -> None:
        super().__init__(forward, kv, max_seqs=max_seqs, **others)
        self._native = native
        self._token_bytes = sum(pool[0].numel() * pool.element_size() for pool in [*kv.k, *kv.v]) // BLOCK
        self._table_S_K = np.zeros((max_seqs, 8), np.int32)
        self._temperature_S = np.zeros(max_seqs, np.float32)
        self._limit_S = np.zeros(max_seqs, np.int32)
        self._stops_S_S = np.zeros((max_seqs, STOPS), np.int32)

    def refresh(self, version: int) -> None:
        """See :meth:`ajet.backbone.embedded.sampler.Sampler.refresh`."""
        self._native.refresh()
        super().refresh(version)

    @torch.inference_mode()
    def tick(self) -> list[tuple[int, Chunk]]:
        """Advance everything: prompts and decoding in one pass, or prompts and then the oldest sequences."""
        out: list[tuple[int, Chunk]] = []
        self._admit()
        front = self._front()
        apart = len(front) < len(self._active)
        if self._prefilling and not apart:
            self._make_rooms(front)
            self._pass(self._still(front), self._portions(), out)
            return out
        if self._prefilling:
            self._pass([], self._portions(), out)
        steps = self._ahead(front)
        self._make_rooms(front, steps)
        front.sort(
            key=lambda r: r.held.blocks
        )  # who shares a beginning stands together: its keys are fetched once for all
        if steps > 1:
            self._run_ahead(self._still(front), steps, out)
        else:
            self._pass(self._still(front), [], out)
        return out

    def _enter(self, request: Request) -> None:
        super()._enter(request)
        self._temperature_S[request.slot], self._limit_S[request.slot] = request.sampling.temperature, request.limit
        self._stops_S_S[request.slot] = ([*request.stops] + [-1] * STOPS)[:STOPS]

    def _front(self) -> list[Request]:
        """The active sequences to decode now, as many as the processor's cache holds; those that were served longest go last,
        and who shares a long beginning with one that goes comes along."""
        active = list(self._active.values())
        room = _FRONT_BYTES // self._token_bytes
        lengths = [r.held.length for r in active]
        if sum(lengths) <= room or not self._native.goes_ahead(lengths):
            return active
        active.sort(key=lambda r: (len(r.logprobs) // _TURN, r.order))
        groups: dict[tuple[int, int], list[Request]] = {}
        for r in active:
            blocks = r.held.blocks
            alike = blocks[_ALIKE] if len(blocks) > _ALIKE else -r.order - 1
            groups.setdefault((len(r.logprobs) // _TURN, alike), []).append(r)
        front: list[Request] = []
        for group in groups.values():
            for n, r in enumerate(group):
                room -= r.held.length - (_ALIKE * BLOCK if n else 0)
                if room < 0 and front:
                    return front
                front.append(r)
        return front

    def _still(self, requests: list[Request]) -> list[Request]:
        """Those that have not been sent back to the queue."""
        return [r for r in requests if r.slot in self._active]

    def _pass(
        self, decoding: list[Request], portions: list[tuple[Request, int, int]],
        out: list[tuple[int, Chunk]],
    ) -> None:  # fmt: skip
        """A token of each of ``decoding``, and ``portions`` of prompts."""
        requests = decoding + [request for request, _, _ in portions]
        if not requests:
            return
        slots = [r.slot for r in requests]
        start_B = np.fromiter((r.held.length for r in decoding), np.int32, len(decoding))
        ids_N = self._token_S[slots[: len(decoding)]].astype(np.int32)
        count_B = np.ones(len(requests), np.int64)
        if portions:
            start_B = np.concatenate([start_B, np.array([start for _, start, _ in portions], np.int32)])
            new = [request.ids[start:end] for request, start, end in portions]
            ids_N = np.concatenate([ids_N, np.fromiter(itertools.chain.from_iterable(new), np.int32)])
            count_B[len(decoding) :] = [len(ids) for ids in new]
            for request, _, _ in portions:
                self._write_table(request)
        blocks = -(-int((start_B + count_B).max()) // BLOCK)
        offset_B = np.zeros(len(requests) + 1, np.int32)
        np.cumsum(count_B, out=offset_B[1:])
        tables_B_K = np.ascontiguousarray(self._table_S_K[slots, :blocks])
        logits_B_V = self._native(self._kv, Ragged(ids_N, tables_B_K, start_B, offset_B))
        self._decoded(decoding)
        ready = decoding
        if portions:
            keep = list(range(len(decoding)))
            for b, (request, start, end) in enumerate(portions, len(decoding)):
                self.counters["prefill_tokens"] += end - start
                if end == len(request.ids):
                    keep.append(b)
                    self._prefilling.remove(request)
                    self._active[request.slot] = request
            ready = [requests[b] for b in keep]
            if len(keep) < len(requests):
                logits_B_V = logits_B_V[torch.tensor(keep, dtype=torch.long)]
        if ready:
            self._sample(ready, logits_B_V, out)

    def _ahead(self, front: list[Request]) -> int:
        """How many tokens of each one call may draw: 1 while one has a reader, or wants more than a temperature."""
        if not front or any(r.stream or not r.plain or len(r.stops) > STOPS for r in front):
            return 1
        lengths = [r.held.length for r in front]
        steps = min(_AHEAD_EACH, max(1, _AHEAD_TOKENS // len(front)), max(r.limit - len(r.ids) for r in front))
        blocks = sum(
            -(-(length + steps) // BLOCK) - len(r.held.blocks) for length, r in zip(lengths, front, strict=True)
        )
        return steps if blocks <= self._kv.available and self._native.goes_ahead(lengths) else 1

    def _run_ahead(self, requests: list[Request], steps: int, out: list[tuple[int, Chunk]]) -> None:
        """Up to ``steps`` tokens of each, until a quarter of them have ended."""
        slots = [r.slot for r in requests]
        start_B = np.fromiter((r.held.length for r in requests), np.int32, len(requests))
        blocks = -(-(int(start_B.max()) + steps) // BLOCK)
        batch = Ragged(
            self._token_S[slots].astype(np.int32), np.ascontiguousarray(self._table_S_K[slots, :blocks]), start_B,
            np.arange(len(requests) + 1, dtype=np.int32),
        )  # fmt: skip
        uniform_T_B = np.ascontiguousarray(np.array([r.uniforms(steps) for r in requests]).T)
        ahead = Ahead(
            self._temperature_S[slots],
            uniform_T_B,
            self._stops_S_S[slots],
            self._limit_S[slots],
            -(-len(requests) // 4),
        )
        ids_T_B, logprob_T_B = self._native.decode(self._kv, batch, ahead)
        for request, ids, logprobs, count in zip(
            requests, ids_T_B.T.tolist(), logprob_T_B.T.tolist(), (ids_T_B >= 0).sum(0).tolist(), strict=True
        ):
            # Of the last token nothing is cached yet.
            request.ids += ids[: count - 1]
            self._cached(request, len(request.ids))
            self._take(request, ids[count - 1], logprobs[:count], out)

    def _portions(self) -> list[tuple[Request, int, int]]:
        """What of the prompts to compute in this pass: (request, from, to).

        Blocks that the pass is going to fill are findable at once: it writes all keys and values of a layer before any are
        read. So who shares a beginning with an earlier one of the same pass begins behind it.
        """
        budget, out = self._pass_tokens, []
        for request in self._prefilling:
            if budget <= 0:
                break
            self._rematch(request)
            start = request.held.length
            end = min(len(request.ids), start + budget)
            budget -= end - start
            request.held.length = end
            self._kv.name(request.held, request.ids)
            out.append((request, start, end))
        return out

    def _sample(self, requests: list[Request], logits_B_V: torch.Tensor, out: list[tuple[int, Chunk]]) -> None:
        plain = [b for b, r in enumerate(requests) if r.plain]
        if not plain:
            super()._sample(requests, logits_B_V, out)
            return
        if len(plain) < len(requests):
            # By the same code whoever else is in the batch, so that a reply depends on its own seed alone.
            other = [b for b, r in enumerate(requests) if not r.plain]
            super()._sample([requests[b] for b in other], logits_B_V[torch.tensor(other)], out)
            requests, logits_B_V = [requests[b] for b in plain], logits_B_V[torch.tensor(plain)]
        uniform_B = np.array([r.uniforms(1)[0] for r in requests])
        temperature_B = self._temperature_S[[r.slot for r in requests]]
        drawn = self._native.draw(logits_B_V, temperature_B, uniform_B)
        for request, token, logprob in zip(requests, *drawn, strict=True):
            self._take(request, token, [logprob], out)
