"""Continuous batching: requests come and go between ticks, all active ones decode together.

A tick runs the new parts of waiting prompts (similar lengths together) and then one decoding pass. Each token carries the policy
version that sampled it. After a weight update the cache is forgotten and sequences under way compute their
context again and go on under the new version. One thread calls everything here. :mod:`ajet.backbone.embedded.one_pass` does
the same over compiled loops.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Protocol

import numpy as np
import torch

from ajet.backbone.embedded.draw import draw
from ajet.backbone.embedded.paged import BLOCK, Extension, PagedKV
from ajet.backbone.embedded.request import Request, check_prompt, check_sampling
from ajet.backbone.protocol import Chunk, FinishReason, Sampling

_SHARED_RUN = 4 * BLOCK
"""A prompt waits a tick for another that is computing at least this many of the tokens it needs, too."""
_PASS_TOKENS = 2048
"""Tokens one prefill pass takes at most; also the longest portion of one prompt."""
_PACKED_PASS_TOKENS = 16384
"""The same over a packed cache, where no mask of all pairs of new and cached tokens is made."""


_TOGETHER, _PATIENCE = 8, 3
"""Prompts worth waiting for, and ticks one waits for them at most."""


class Forward(Protocol):
    """New tokens over cached ones → float32 logits ``[B, V]`` after each sequence's last token."""

    def __call__(self, kv: PagedKV, ext: Extension) -> torch.Tensor: ...


class Sampler:
    """Serves one set of weights.

    Args:
        forward: the model.
        kv: its cache.
        vocab: ids below it exist.
        max_seqs: sequences decoded at once.
        max_len: tokens of prompt and reply together.
        eos: ids that end a reply beside those the request names (unless it ignores them).
        seed: of requests that bring none.
    """

    def __init__(
        self,
        forward: Forward,
        kv: PagedKV,
        *,
        vocab: int,
        max_seqs: int,
        max_len: int,
        eos: frozenset[int],
        seed: int,
        version: int,
    ) -> None:
        self.version = version
        self._forward, self._kv = forward, kv
        self._vocab, self._max_len, self._eos = vocab, max_len, eos
        self._pass_tokens = _PACKED_PASS_TOKENS if kv.packed else _PASS_TOKENS
        self._random = random.Random(seed)
        self._order = itertools.count()
        self._waiting: deque[Request] = deque()
        self._prefilling: list[Request] = []
        self._active: dict[int, Request] = {}
        self._by_key: dict[int, Request] = {}
        self._held_back = 0
        self._slots = list(range(max_seqs - 1, -1, -1))
        self._token_S = np.zeros(max_seqs, np.int64)
        self._length_S = np.zeros(max_seqs, np.int64)
        self._table_S_K = np.zeros((max_seqs, 8), np.int64)
        self.counters = dict.fromkeys(("sampled_tokens", "prefill_tokens", "reused_tokens", "requests", "preempted"), 0)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._prefilling or self._active)

    def stats(self) -> dict[str, float]:
        waiting = len(self._waiting) + len(self._prefilling)
        return {
            **self.counters,
            "active": len(self._active),
            "waiting": waiting,
            "cached_tokens": self._kv.cached * BLOCK,
            "kv_tokens": (self._kv.blocks - 1) * BLOCK,
        }

    def submit(self, key: int, ids: list[int], sampling: Sampling, stream: bool = False) -> None:
        """Queue a request. Its chunks come from :meth:`tick` under ``key``."""
        check_prompt(ids, self._vocab, self._max_len)
        check_sampling(sampling)
        seed = sampling.seed if sampling.seed is not None else self._random.getrandbits(64)
        stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos)
        limit = min(len(ids) + sampling.max_tokens, self._max_len)
        uniform = random.Random(seed).random
        request = Request(key, list(ids), len(ids), sampling, stops, limit, stream, next(self._order), uniform)
        self._by_key[key] = request
        self._waiting.append(request)
        self.counters["requests"] += 1

    def cancel(self, key: int) -> None:
        """Stop a request, if it is still there."""
        request = self._by_key.pop(key, None)
        if request is None:
            return
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._prefilling:
            self._prefilling.remove(request)
        self._retire(request)

    def refresh(self, version: int) -> None:
        """The weights have changed: forget the cache; requests under way go on under ``version``."""
        self.version = version
        self._kv.forget()
        under_way = sorted([*self._prefilling, *self._active.values()], key=lambda r: r.order)
        self._prefilling.clear()
        for request in under_way:
            self._retire(request)
        self._waiting.extendleft(reversed(under_way))

    @torch.inference_mode()
    def tick(self) -> list[tuple[int, Chunk]]:
        """Advance everything by one pass; chunks by key."""
        out: list[tuple[int, Chunk]] = []
        self._admit()
        if self._prefilling and not self._hold():
            for group in self._prefill_groups():
                self._prefill(group, out)
        if self._active:
            self._decode(out)
        return out

    # -- prompts ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests a slot and blocks, oldest first, as long as both last."""
        while self._waiting and self._slots:
            request = self._waiting[0]
            request.held = self._kv.match(request.ids)
            spare = len(self._active)  # each active sequence may need a block soon
            need = -(-(len(request.ids) + 1) // BLOCK) - len(request.held.blocks)
            others = self._active or self._prefilling
            if (others and need + spare > self._kv.available) or not self._kv.grow(request.held, len(request.ids) + 1):
                self._kv.free(request.held)
                return
            self.counters["reused_tokens"] += request.held.length
            self._waiting.popleft()
            self._enter(request)

    def _enter(self, request: Request) -> None:
        request.slot = self._slots.pop()
        self._prefilling.append(request)

    def _hold(self) -> bool:
        """Whether to wait a little for more prompts to compute together, while many sequences decode anyway."""
        if len(self._prefilling) < min(_TOGETHER, len(self._active) // 4) and self._held_back < _PATIENCE:
            self._held_back += 1
            return True
        self._held_back = 0
        return False

    def _prefill_groups(self) -> list[list[Request]]:
        """What to compute in this tick: groups of similar length, at most one of those that share a long beginning."""
        budget = self._pass_tokens
        computing: set[tuple[int, ...]] = set()
        chosen: list[tuple[int, Request]] = []
        for request in self._prefilling:
            if request.deferred:
                self._rematch(request)
            start = request.held.length
            todo = min(len(request.ids) - start, self._pass_tokens)
            if chosen and todo > budget:
                break
            if todo > _SHARED_RUN:
                key = (request.held.parent, start, *request.ids[start : start + _SHARED_RUN])
                if key in computing:
                    request.deferred = True
                    continue
                computing.add(key)
            budget -= todo
            chosen.append((todo, request))
        chosen.sort(key=lambda c: (c[1].held.length == 0, c[0], c[1].order))
        groups: list[list[Request]] = []
        shortest, fresh = 0, False
        for todo, request in chosen:
            if not groups or todo > 1.3 * shortest + 8 or (request.held.length == 0) != fresh:
                groups.append([])
                shortest, fresh = todo, request.held.length == 0
            groups[-1].append(request)
        return groups

    def _rematch(self, request: Request) -> None:
        """Look again what the cache has, now that others have computed."""
        request.deferred = False
        self.counters["reused_tokens"] += self._kv.extend(request.held, request.ids)

    def _prefill(self, group: list[Request], out: list[tuple[int, Chunk]]) -> None:
        portions = [r.ids[: r.held.length + self._pass_tokens] for r in group]
        ext = self._kv.extension([(r.held, ids) for r, ids in zip(group, portions, strict=True)])
        logits_B_V = self._forward(self._kv, ext)
        whole: list[int] = []
        for b, (request, ids) in enumerate(zip(group, portions, strict=True)):
            self.counters["prefill_tokens"] += len(ids) - request.held.length
            request.held.length = len(ids)
            self._kv.name(request.held, request.ids)
            if len(ids) == len(request.ids):
                whole.append(b)
        if len(whole) < len(group):
            logits_B_V = logits_B_V[torch.tensor(whole, dtype=torch.long, device=logits_B_V.device)]
        ready = [group[b] for b in whole]
        for request in ready:
            self._prefilling.remove(request)
            self._active[request.slot] = request
            self._write_table(request)
        if ready:
            self._sample(ready, logits_B_V, out)

    # -- decoding ---------------------------------------------------------------------------------------------------

    def _make_rooms(self, requests: list[Request], tokens: int = 1) -> None:
        """Blocks for the next ``tokens`` tokens of each, oldest first."""
        for request in sorted(requests, key=lambda r: r.order):
            if len(request.held.blocks) * BLOCK < request.held.length + tokens and request.slot in self._active:
                self._make_room(request, tokens)

    def _decoded(self, requests: list[Request]) -> None:
        for request in requests:
            self._cached(request, request.held.length + 1)

    def _cached(self, request: Request, length: int) -> None:
        """Keys and values of the first ``length`` of its tokens are there."""
        held = request.held
        filled = length // BLOCK > held.length // BLOCK
        held.length = length
        if filled:
            self._kv.name(held, request.ids)
            self._write_table(request)

    def _decode(self, out: list[tuple[int, Chunk]]) -> None:
        self._make_rooms(list(self._active.values()))
        requests = list(self._active.values())
        if not requests:
            return
        slots = np.fromiter(self._active, np.int64, len(requests))
        length_B = self._length_S[slots]
        longest = int(length_B.max()) + 1
        tables = torch.from_numpy(self._table_S_K[slots, : -(-longest // BLOCK)])
        ext = self._kv.arrange(
            torch.from_numpy(self._token_S[slots])[:, None], tables, torch.from_numpy(length_B),
            torch.ones(len(slots), dtype=torch.long), longest, False,
        )  # fmt: skip
        logits_B_V = self._forward(self._kv, ext)
        self._decoded(requests)
        self._sample(requests, logits_B_V, out)

    def _make_room(self, request: Request, tokens: int) -> None:
        """Blocks for ``tokens`` more of ``request``; the youngest sequence goes back to the queue where there is none."""
        while not self._kv.grow(request.held, request.held.length + tokens):
            victims = self._prefilling or list(self._active.values())
            victim = max(victims, key=lambda r: r.order)
            if victim in self._prefilling:
                self._prefilling.remove(victim)
            self._retire(victim)
            self._waiting.appendleft(victim)
            self.counters["preempted"] += 1
            if victim is request:
                return
        self._write_table(request)

    def _write_table(self, request: Request) -> None:
        blocks = request.held.blocks
        if len(blocks) > self._table_S_K.shape[1]:
            wider = np.zeros((len(self._table_S_K), 2 * len(blocks)), self._table_S_K.dtype)
            wider[:, : self._table_S_K.shape[1]] = self._table_S_K
            self._table_S_K = wider
        self._table_S_K[request.slot, : len(blocks)] = blocks

    def _sample(self, requests: list[Request], logits_B_V: torch.Tensor, out: list[tuple[int, Chunk]]) -> None:
        drawn = draw(logits_B_V, [r.sampling for r in requests], [r.uniforms(1)[0] for r in requests])
        for b, request in enumerate(requests):
            if request.sampling.top_logprobs and drawn.top is not None:
                request.top.append(drawn.top[b])
            self._take(request, drawn.ids[b], [drawn.logprobs[b]], out)

    def _take(self, request: Request, token: int, logprobs: list[float], out: list[tuple[int, Chunk]]) -> None:
        """Add the last token that was sampled, and the log-probs of all that are new; if that ends the reply, it leaves."""
        self.counters["sampled_tokens"] += len(logprobs)
        request.ids.append(token)
        request.logprobs += logprobs
        request.versions += [self.version] * len(logprobs)
        self._token_S[request.slot] = token
        self._length_S[request.slot] = len(request.ids) - 1
        finish: FinishReason | None = None
        if token in request.stops:
            finish = "stop"
        elif len(request.ids) >= request.limit:
            finish = "length"
        if finish is not None:
            del self._by_key[request.key]
            self._retire(request)
        if finish is not None or request.stream:
            out.append((request.key, request.chunk(finish)))

    def _retire(self, request: Request) -> None:
        """Give up slot and blocks (what is full stays cached)."""
        self._kv.free(request.held)
        if request.slot >= 0:
            self._active.pop(request.slot, None)
            self._slots.append(request.slot)
            request.slot = -1
