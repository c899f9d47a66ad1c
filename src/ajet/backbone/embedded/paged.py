"""The KV cache: blocks of a fixed size, found again by their content, evicted least recently used first.

A block that is full is known by (the block before it, its tokens), compared exactly, so a prompt finds whatever
earlier sequence shares its beginning: an agent's last call, another agent's system prompt. That is both the cache of a
session between its calls and the cache of shared prefixes. A block in use by a sequence is never evicted. After a
weight update everything is forgotten.

Letters: B sequences, T new tokens of each, S cached and new tokens (a multiple of the block size).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

BLOCK = 16
"""Tokens of a block."""


_Content = tuple[int, bytes]
"""Serial number of the block before, and a block's tokens, four bytes each."""
_BYTES = 4 * BLOCK


@dataclass(frozen=True)
class Extension:
    """New tokens for B sequences, right-padded to T.

    Attributes:
        ids_B_T, positions_B_T: the tokens and where they stand.
        write_N: flat pool position of each new token (padding goes to the scratch block).
        tables_B_K: block numbers of each sequence (scratch where it has fewer).
        mask_B_T_S: True where a new token may look.
        row_B, last_B: index of each sequence and of its last new token.
        longest: positions in use at most.
        fresh: nothing is cached: plain causal attention among the new tokens.
        lengths: of a packed cache, unless fresh; ``mask_B_T_S`` is empty then.
    """

    ids_B_T: torch.Tensor
    positions_B_T: torch.Tensor
    write_N: torch.Tensor
    tables_B_K: torch.Tensor
    mask_B_T_S: torch.Tensor
    row_B: torch.Tensor
    last_B: torch.Tensor
    longest: int
    fresh: bool
    lengths: Lengths | None = None


@dataclass(frozen=True)
class Lengths:
    """The same new tokens without padding, for attention that takes sequences of any length one after another.

    Attributes:
        real_N: which of the flattened ``[B, T]`` are no padding; None: all.
        key_M: flat pool position of each cached and new token, sequence after sequence.
        start_q, start_k: int32 ``[B + 1]``, where each sequence's queries and keys begin.
        most_q, most_k: of any sequence.
    """

    real_N: torch.Tensor | None
    key_M: torch.Tensor
    start_q: torch.Tensor
    start_k: torch.Tensor
    most_q: int
    most_k: int


@dataclass
class Held:
    """The blocks of one sequence: ``blocks`` in order, ``length`` tokens in them, the first ``named`` ones findable."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    named: int = 0
    parent: int = 0
    """Serial number of the last findable block (0: none)."""


def _bytes(ids: Sequence[int]) -> bytes:
    """Compared and hashed sooner than a tuple of numbers."""
    return array("i", ids).tobytes()


class PagedKV:
    """Pool of KV blocks for one set of weights.

    Args:
        layers: ``(kv heads, head dim)`` of each layer.
        blocks: pool size; block 0 is scratch.
        tiled: laid out for :mod:`ajet.backbone.embedded.native`, and for nothing else.
        packed: :meth:`update` answers all sequences' keys and values one after another, without padding.
    """

    def __init__(
        self, layers: Sequence[tuple[int, int]], blocks: int, device: torch.device, dtype: torch.dtype,
        tiled: bool = False, packed: bool = False,
    ) -> None:  # fmt: skip
        self.blocks = blocks
        self.packed = packed
        self.device = device
        if tiled:
            self.k = [torch.zeros(blocks, h, d, BLOCK, device=device, dtype=dtype) for h, d in layers]
            self.v = [
                torch.zeros(blocks, h, BLOCK, -(-d // BLOCK) * BLOCK, device=device, dtype=dtype) for h, d in layers
            ]
        else:
            self.k = [torch.zeros(blocks * BLOCK, h, d, device=device, dtype=dtype) for h, d in layers]
            self.v = [torch.zeros(blocks * BLOCK, h, d, device=device, dtype=dtype) for h, d in layers]
        self._free = list(range(blocks - 1, 0, -1))
        self._users = [0] * blocks
        self._by_content: dict[_Content, int] = {}
        self._content: dict[int, _Content] = {}
        self._serial: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._next_serial = 1

    @property
    def available(self) -> int:
        """Blocks that can be had now, cached ones that nobody uses included."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        return len(self._idle)

    def match(self, ids: Sequence[int]) -> Held:
        """Take hold of the longest cached beginning of ``ids``, leaving at least the last token to compute."""
        held = Held()
        self.extend(held, ids)
        return held

    def extend(self, held: Held, ids: Sequence[int]) -> int:
        """Take hold of what is cached of ``ids`` behind the findable blocks of ``held``, in place of blocks of its own.
        Returns how many tokens need no computing any more."""
        named, parent, blocks = held.named, held.parent, held.blocks
        by_content, users, serial, idle = self._by_content, self._users, self._serial, self._idle
        if not by_content or (named + 1) * BLOCK >= len(ids):
            return 0
        first = by_content.get((parent, _bytes(ids[named * BLOCK : (named + 1) * BLOCK])))
        if first is None:
            return 0
        whole = _bytes(ids)
        for at in range(named, (len(ids) - 1) // BLOCK):
            block = by_content.get((parent, whole[at * _BYTES : (at + 1) * _BYTES]))
            if block is None:
                break
            if not users[block]:
                del idle[block]
            users[block] += 1
            if at < len(blocks):
                self._release((blocks[at],))
                blocks[at] = block
            else:
                blocks.append(block)
            parent = serial[block]
            named += 1
        held.named, held.parent = named, parent
        gained = max(0, named * BLOCK - held.length)
        held.length += gained
        return gained

    def grow(self, held: Held, length: int) -> bool:
        """Give ``held`` room for ``length`` tokens; False (and nothing taken) where the pool cannot."""
        need = -(-length // BLOCK) - len(held.blocks)
        if need > self.available:
            return False
        for _ in range(need):
            if not self._free:
                self._evict()
            block = self._free.pop()
            self._users[block] = 1
            held.blocks.append(block)
        return True

    def name(self, held: Held, ids: Sequence[int]) -> None:
        """Make the full blocks of ``held`` (whose tokens are ``ids``) findable."""
        first = held.named
        new = _bytes(ids[first * BLOCK : held.length // BLOCK * BLOCK])
        for at in range(len(new) // _BYTES):
            key = (held.parent, new[at * _BYTES : (at + 1) * _BYTES])
            block, own = self._by_content.get(key), held.blocks[first + at]
            if block is None:
                block = own
                self._by_content[key] = block
                self._content[block] = key
                self._serial[block] = self._next_serial
                self._next_serial += 1
            elif block != own:  # somebody computed the same at the same time: use theirs
                self._release((own,))
                self._users[block] += 1
                self._idle.pop(block, None)
                held.blocks[first + at] = block
            held.named += 1
            held.parent = self._serial[block]

    def free(self, held: Held) -> None:
        """Let go; findable blocks stay cached until their place is needed (the deepest go first)."""
        self._release(reversed(held.blocks))
        held.blocks, held.length, held.named, held.parent = [], 0, 0, 0

    def forget(self) -> None:
        """Forget all cached content. Blocks in use stay with their users, who must compute them again."""
        self._free += list(self._idle)
        self._free.sort(reverse=True)  # what is taken together lies together
        self._idle.clear()
        self._by_content.clear()
        self._content.clear()
        self._serial.clear()

    def _release(self, blocks: Iterable[int]) -> None:
        users, content, idle, free = self._users, self._content, self._idle, self._free
        for block in blocks:
            users[block] -= 1
            if not users[block]:
                if block in content:
                    idle[block] = None
                else:
                    free.append(block)

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        del self._by_content[self._content.pop(block)]
        del self._serial[block]
        self._free.append(block)

    def extension(self, sequences: Sequence[tuple[Held, Sequence[int]]]) -> Extension:
        """Prepare to run, for each (held, ids), the tokens of ``ids`` behind ``held.length``; room must be there."""
        start = [held.length for held, _ in sequences]
        count = [len(ids) - s for (_, ids), s in zip(sequences, start, strict=True)]
        T, longest = max(count), max(len(ids) for _, ids in sequences)
        K = -(-longest // BLOCK)
        ids_B_T = torch.zeros(len(sequences), T, dtype=torch.long)
        tables_B_K = torch.zeros(len(sequences), K, dtype=torch.long)
        for b, (held, ids) in enumerate(sequences):
            ids_B_T[b, : count[b]] = torch.tensor(ids[start[b] :] if start[b] else ids)
            table = held.blocks[:K]
            tables_B_K[b, : len(table)] = torch.tensor(table)
        return self.arrange(ids_B_T, tables_B_K, torch.tensor(start), torch.tensor(count), longest, not any(start))

    def arrange(
        self, ids_B_T: torch.Tensor, tables_B_K: torch.Tensor, start_B: torch.Tensor, count_B: torch.Tensor,
        longest: int, fresh: bool,
    ) -> Extension:  # fmt: skip
        """The tensor part of :meth:`extension`; arguments on the CPU."""
        B, T = ids_B_T.shape
        positions_B_T = start_B[:, None] + torch.arange(T)[None]
        real_B_T = torch.arange(T)[None] < count_B[:, None]
        block_B_T = tables_B_K.gather(1, (positions_B_T // BLOCK).clamp_(max=tables_B_K.shape[1] - 1))
        write_B_T = torch.where(real_B_T, block_B_T * BLOCK + positions_B_T % BLOCK, positions_B_T % BLOCK)
        d = self.device
        lengths = None
        if fresh or self.packed:
            mask = torch.empty(0, dtype=torch.bool)
            lengths = None if fresh else self._lengths(tables_B_K, start_B, count_B, real_B_T)
        else:
            mask = torch.arange(tables_B_K.shape[1] * BLOCK)[None, None] <= positions_B_T[:, :, None]
        positions_B_T = positions_B_T.clamp_(max=longest - 1)
        return Extension(
            ids_B_T.to(d), positions_B_T.to(d), write_B_T.reshape(-1).to(d), tables_B_K.to(d), mask.to(d),
            torch.arange(B, device=d), (count_B - 1).to(d), longest, fresh, lengths,
        )  # fmt: skip

    def _lengths(
        self, tables_B_K: torch.Tensor, start_B: torch.Tensor, count_B: torch.Tensor, real_B_T: torch.Tensor
    ) -> Lengths:
        d = self.device
        keys_B = start_B + count_B
        start_q, start_k = (torch.nn.functional.pad(n.cumsum(0), (1, 0)) for n in (count_B, keys_B))
        M, tables = int(start_k[-1]), tables_B_K.to(d)
        sequence_M = torch.repeat_interleave(torch.arange(len(keys_B), device=d), keys_B.to(d), output_size=M)
        position_M = torch.arange(M, device=d) - start_k.to(d)[sequence_M]
        key_M = tables[sequence_M, position_M // BLOCK] * BLOCK + position_M % BLOCK
        real_N = None if bool(real_B_T.all()) else real_B_T.reshape(-1).nonzero()[:, 0].to(d)
        return Lengths(
            real_N, key_M, start_q.to(d, torch.int32), start_k.to(d, torch.int32), int(count_B.max()), int(keys_B.max())
        )

    def update(self, layer: int, k: torch.Tensor, v: torch.Tensor, ext: Extension) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new ``[B, T, heads, dim]`` keys and values; all of each sequence ``[B, S, heads, dim]``, or packed
        ``[M, heads, dim]``."""
        B, T, heads, dim = k.shape
        pool_k, pool_v = self.k[layer], self.v[layer]
        pool_k.index_copy_(0, ext.write_N, k.reshape(B * T, heads, dim))
        pool_v.index_copy_(0, ext.write_N, v.reshape(B * T, heads, v.shape[3]))
        if ext.fresh:
            return k, v
        if ext.lengths is not None:
            return pool_k.index_select(0, ext.lengths.key_M), pool_v.index_select(0, ext.lengths.key_M)
        table = ext.tables_B_K.reshape(-1)
        return (
            pool_k.view(self.blocks, -1).index_select(0, table).view(B, -1, heads, dim),
            pool_v.view(self.blocks, -1).index_select(0, table).view(B, -1, heads, v.shape[3]),
        )
