"""Continuous batching: requests come and go between ticks, all active ones decode together.

A tick runs the new parts of waiting prompts (similar lengths together) and then one decoding pass; with a native forward
both are one pass, and prompts that share a beginning share it within that pass, too; while no prompt waits, one call of it
draws several tokens of each sequence. Where all caches together would not stay in the processor's own, the oldest
sequences go first, several tokens at a time. Each token carries the policy
version that sampled it. After a weight update the cache is forgotten and sequences under way compute their
context again and go on under the new version. One thread calls everything here.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Protocol

import numpy as np
import torch

from ajet.backbone.embedded.draw import draw
from ajet.backbone.embedded.native import STOPS, Ahead, NativeForward, Ragged
from ajet.backbone.embedded.paged import BLOCK, Extension, PagedKV
from ajet.backbone.embedded.request import Request, check_prompt, check_sampling
from ajet.backbone.protocol import Chunk, FinishReason, Sampling

_SHARED_RUN = 4 * BLOCK
"""A prompt waits a tick for another that is computing at least this many of the tokens it needs, too."""
_PASS_TOKENS = 2048
"""Tokens one prefill pass takes at most; also the longest portion of one prompt."""
_PACKED_PASS_TOKENS = 16384
"""The same over a packed cache, where no mask of all pairs of new and cached tokens is made."""


_AHEAD_TOKENS = 128
"""Tokens that one call draws of all sequences together, so that what arrives meanwhile waits less than a few milliseconds."""
_AHEAD_EACH = 16
"""The same of one sequence."""
_FRONT_BYTES = 8 << 20
"""Keys and values that the sequences of one decoding pass have together, so that the next pass finds them in the
processor's cache."""
_TURN = 64
"""Tokens after which a sequence that is decoded before others lets them go first."""
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
        native: used instead of ``forward``; ``kv`` is tiled then.
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
        native: NativeForward | None = None,
    ) -> None:
        self.version = version
        self._forward, self._kv, self._native = forward, kv, native
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
        self._table_S_K = np.zeros((max_seqs, 8), np.int32 if native is not None else np.int64)
        self._temperature_S = np.zeros(max_seqs, np.float32)
        self._limit_S = np.zeros(max_seqs, np.int32)
        self._stops_S_S = np.zeros((max_seqs, STOPS), np.int32)
        self._token_bytes = sum(pool[0].numel() * pool.element_size() for pool in [*kv.k, *kv.v]) // BLOCK
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
        if self._native is not None:
            self._native_tick(self._native, out)
            return out
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
            request.slot = slot = self._slots.pop()
            self._temperature_S[slot], self._limit_S[slot] = request.sampling.temperature, request.limit
            self._stops_S_S[slot] = ([*request.stops] + [-1] * STOPS)[:STOPS]
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
        held = self._kv.match(request.ids)
        if held.length > request.held.length and self._kv.grow(held, len(request.ids) + 1):
            self.counters["reused_tokens"] += held.length - request.held.length
            self._kv.free(request.held)
            request.held = held
        else:
            self._kv.free(held)

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

    # -- prompts and decoding in one pass -----------------------------------------------------------------------------

    def _native_tick(self, native: NativeForward, out: list[tuple[int, Chunk]]) -> None:
        front = self._front(native)
        apart = len(front) < len(self._active)
        if self._prefilling:
            if not apart:
                self._make_rooms(front)
            self._pass(native, [] if apart else self._still(front), self._portions(), out)
            if not apart:
                return
        steps = self._ahead(native, front)
        self._make_rooms(front, steps)
        decoding = self._still(front)
        if steps > 1:
            self._run_ahead(native, decoding, steps, out)
        else:
            self._pass(native, decoding, [], out)

    def _front(self, native: NativeForward) -> list[Request]:
        """The active sequences to decode now, as many as the processor's cache holds; those that were served longest go last."""
        active = list(self._active.values())
        room = _FRONT_BYTES // self._token_bytes
        lengths = [r.held.length for r in active]
        if sum(lengths) <= room or not native.goes_ahead(lengths):
            return active
        active.sort(key=lambda r: (len(r.logprobs) // _TURN, r.order))
        held = itertools.accumulate(r.held.length for r in active)
        return active[: max(1, sum(1 for length in held if length <= room))]

    def _still(self, requests: list[Request]) -> list[Request]:
        """Those that have not been sent back to the queue."""
        return [r for r in requests if r.slot in self._active]

    def _pass(
        self, native: NativeForward, decoding: list[Request], portions: list[tuple[Request, int, int]],
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
        logits_B_V = native(self._kv, Ragged(ids_N, tables_B_K, start_B, offset_B))
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

    def _ahead(self, native: NativeForward, front: list[Request]) -> int:
        """How many tokens of each one call may draw: 1 while one has a reader, or wants more than a temperature."""
        if not front or any(r.stream or not r.plain or len(r.stops) > STOPS for r in front):
            return 1
        lengths = [r.held.length for r in front]
        steps = min(_AHEAD_EACH, max(1, _AHEAD_TOKENS // len(front)), max(r.limit - len(r.ids) for r in front))
        blocks = sum(-(-(length + steps) // BLOCK) - len(r.held.blocks) for length, r in zip(lengths, front, strict=True))
        return steps if blocks <= self._kv.available and native.goes_ahead(lengths) else 1

    def _run_ahead(
        self, native: NativeForward, requests: list[Request], steps: int, out: list[tuple[int, Chunk]]
    ) -> None:
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
            self._temperature_S[slots], uniform_T_B, self._stops_S_S[slots], self._limit_S[slots], -(-len(requests) // 4)
        )
        ids_T_B, logprob_T_B = native.decode(self._kv, batch, ahead)
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
        plain = [b for b, r in enumerate(requests) if r.plain] if self._native is not None else []
        if self._native is None or not plain:
            self._draw(requests, logits_B_V, out)
            return
        if len(plain) < len(requests):
            # By the same code whoever else is in the batch, so that a reply depends on its own seed alone.
            other = [b for b, r in enumerate(requests) if not r.plain]
            self._draw([requests[b] for b in other], logits_B_V[torch.tensor(other)], out)
            requests, logits_B_V = [requests[b] for b in plain], logits_B_V[torch.tensor(plain)]
        uniform_B = np.array([r.uniforms(1)[0] for r in requests])
        temperature_B = self._temperature_S[[r.slot for r in requests]]
        drawn = self._native.draw(logits_B_V, temperature_B, uniform_B)
        for request, token, logprob in zip(requests, *drawn, strict=True):
            self._take(request, token, [logprob], out)

    def _draw(self, requests: list[Request], logits_B_V: torch.Tensor, out: list[tuple[int, Chunk]]) -> None:
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
