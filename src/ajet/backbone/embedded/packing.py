"""Samples → forward passes over merged prefixes with little padding, and log-probs → rows.

Samples that begin with the same ids share the tokens of that beginning: everything but attention is computed on each
distinct (prefix, token) once (the trie of the pass's samples), and on a CPU the attention of long beginnings, too.
Attention runs over padded samples, similar lengths together. Trained tokens have flat numbers, row after row, sample after sample: that order is what the loss sees,
whatever the passes were.

Letters: R rows, T a row's (or sample's) tokens in order, N a batch's trained tokens, B samples of one attention group,
U distinct tokens of one pass, W wanted positions of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ajet.trajectory.batch import Row

_GROWTH, _SLACK = 1.15, 4
"""A group's longest sample is at most this much longer than its shortest."""
_LONG = 256
"""From so many shared tokens on, a CPU attends from the rest of a sample only."""


@dataclass(frozen=True)
class Piece:
    """A sample, and where its trained tokens stand among the batch's."""

    row: int
    ids_T: np.ndarray
    position_N: np.ndarray
    """Positions whose logits predict the trained tokens (each one before its token)."""
    flat_N: np.ndarray


@dataclass(frozen=True)
class TokenTable:
    """Trained tokens of a batch, flat: which row and column each has, and what was recorded of it."""

    row_N: np.ndarray
    column_N: np.ndarray
    id_N: np.ndarray
    logprob_N: np.ndarray
    temperature_N: np.ndarray
    version_N: np.ndarray
    tokens_R: np.ndarray


@dataclass(frozen=True)
class Group:
    """Samples of similar length, right-padded, that attend together.

    Attributes:
        ids_B_T: padded with 0.
        index_B_T: each token's number among the pass's distinct tokens (0 for padding).
        start: attention is computed from this position on; what stands before it, other samples compute.
        wanted_N: flat positions in ``[B, T]`` whose logits are wanted.
        wanted_B_W: each sample's wanted positions, padded with 0.
        slot_N: flat places in ``[B, W]`` of the wanted ones.
    """

    ids_B_T: torch.Tensor
    index_B_T: torch.Tensor
    start: int
    wanted_N: torch.Tensor
    wanted_B_W: torch.Tensor
    slot_N: torch.Tensor


@dataclass(frozen=True)
class Pass:
    """One forward pass.

    Attributes:
        ids_U, position_U: the distinct tokens and where they stand.
        home_U: where each stands among the groups' flattened ``[B, T - start]`` entries, one group after the other.
        longest: of any group.
        flat_N: flat number of each predicted token, in the order of the groups' ``wanted_N``.
        real_tokens: of the samples, before merging.
    """

    ids_U: torch.Tensor
    position_U: torch.Tensor
    home_U: torch.Tensor
    groups: list[Group]
    longest: int
    flat_N: torch.Tensor
    real_tokens: int


def lay_out(rows: Sequence[Row]) -> tuple[TokenTable, list[Piece]]:
    """Number the trained tokens and cut each sample before the last of them. A first token is never trained."""
    pieces: list[Piece] = []
    row_parts, column_parts, ids, logprobs, temperatures, versions = [], [], [], [], [], []
    tokens_R = np.zeros(len(rows), np.int64)
    at = 0
    for r, row in enumerate(rows):
        column = 0
        for sample in row.samples:
            where = np.flatnonzero(sample.trained_T)
            where = where[where > 0]
            n = len(where)
            if not n:
                continue
            pieces.append(Piece(r, np.asarray(sample.ids_T[: where[-1]]), where - 1, np.arange(at, at + n)))
            row_parts.append(np.full(n, r))
            column_parts.append(np.arange(column, column + n))
            ids.append(sample.ids_T[where])
            logprobs.append(sample.logprobs_T[where])
            temperatures.append(sample.temperature_T[where])
            versions.append(sample.versions_T[where])
            at, column = at + n, column + n
        tokens_R[r] = column

    def joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
        return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)

    table = TokenTable(
        joined(row_parts, np.int64), joined(column_parts, np.int64), joined(ids, np.int64), joined(logprobs, np.float32),
        joined(temperatures, np.float32), joined(versions, np.int64), tokens_R,
    )  # fmt: skip
    return table, pieces


def passes(
    pieces: Sequence[Piece], max_tokens: int, max_wanted: int, device: torch.device, *, best_tokens: int | None = None
) -> list[Pass]:
    """Cover ``pieces`` by passes over at most ``max_tokens`` tokens of samples, ``max_wanted`` of them predicted.

    A sample that alone is larger has a pass of its own.

    Args:
        best_tokens: distinct tokens beyond which a pass gets slower; a sample of which the pass has a third or more
            joins it all the same.
    """
    # Lexicographic by bytes is not numeric order, and need not be: equal beginnings come to stand together.
    ordered = sorted(pieces, key=lambda p: (np.ascontiguousarray(p.ids_T, ">i4").tobytes(), int(p.flat_N[0])))
    chosen: list[list[Piece]] = [[]]
    used = wanted = distinct = 0
    for piece in ordered:
        length = len(piece.ids_T)
        shared = _shared(chosen[-1][-1].ids_T, piece.ids_T) if chosen[-1] else 0
        full = used + length > max_tokens or wanted + len(piece.flat_N) > max_wanted
        if best_tokens is not None and distinct + length - shared > best_tokens and 3 * shared < length:
            full = True
        if chosen[-1] and full:
            chosen.append([])
            used = wanted = distinct = shared = 0
        chosen[-1].append(piece)
        used, wanted, distinct = used + length, wanted + len(piece.flat_N), distinct + length - shared
    return [_pass(part, device) for part in chosen if part]


def _pass(part: Sequence[Piece], device: torch.device) -> Pass:
    numbers, starts = _merge([piece.ids_T for piece in part])
    if device.type != "cpu":
        starts = [0] * len(part)
    by_length = sorted(range(len(part)), key=lambda i: len(part[i].ids_T))
    grouped: list[list[int]] = []
    for i in by_length:
        length = len(part[i].ids_T)
        starts[i] = starts[i] if starts[i] >= _LONG else 0
        first = grouped[-1][0] if grouped else i
        apart = abs(starts[i] - starts[first]) > (_GROWTH - 1) * length
        if not grouped or apart or length > _GROWTH * len(part[first].ids_T) + _SLACK:
            grouped.append([])
        grouped[-1].append(i)
    distinct = 1 + max(int(n[-1]) for n in numbers)
    ids_U, position_U, home_U = (np.zeros(distinct, np.int64) for _ in range(3))
    groups: list[Group] = []
    flats: list[np.ndarray] = []
    offset = longest = 0
    for members in grouped:
        T, W = max(len(part[i].ids_T) for i in members), max(len(part[i].position_N) for i in members)
        start = min(starts[i] for i in members)
        ids_B_T, index_B_T = np.zeros((len(members), T), np.int64), np.zeros((len(members), T), np.int64)
        wanted_B_W = np.zeros((len(members), W), np.int64)
        wanted: list[np.ndarray] = []
        slots: list[np.ndarray] = []
        for b, i in enumerate(members):
            piece, number = part[i], numbers[i]
            n = len(number)
            ids_B_T[b, :n], index_B_T[b, :n] = piece.ids_T, number
            ids_U[number], position_U[number] = piece.ids_T, np.arange(n)
            home_U[number[start:]] = offset + b * (T - start) + np.arange(n - start)
            wanted.append(b * T + piece.position_N)
            wanted_B_W[b, : len(piece.position_N)] = piece.position_N
            slots.append(b * W + np.arange(len(piece.position_N)))
            flats.append(piece.flat_N)
        groups.append(
            Group(
                _to(ids_B_T, device), _to(index_B_T, device), start, _to(np.concatenate(wanted), device),
                _to(wanted_B_W, device), _to(np.concatenate(slots), device),
            )
        )  # fmt: skip
        offset, longest = offset + len(members) * (T - start), max(longest, T)
    real = sum(len(piece.ids_T) for piece in part)
    return Pass(
        _to(ids_U, device), _to(position_U, device), _to(home_U, device), groups, longest,
        _to(np.concatenate(flats), device), real,
    )  # fmt: skip


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens ``a`` and ``b`` begin with in common."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def _merge(samples: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Number the distinct (prefix, token) pairs of lexicographically ordered samples.

    Returns:
        Each sample's numbers, and how many of its first tokens a sample before it has already.
    """
    out: list[np.ndarray] = []
    starts: list[int] = []
    count = 0
    for i, ids in enumerate(samples):
        shared = _shared(samples[i - 1], ids) if i else 0
        number = np.empty(len(ids), np.int64)
        number[:shared] = out[-1][:shared] if i else 0
        number[shared:] = np.arange(count, count + len(ids) - shared)
        count += len(ids) - shared
        out.append(number)
        starts.append(shared)
    return out, starts


def _to(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def to_rows(
    values_N: torch.Tensor, row_N: torch.Tensor, column_N: torch.Tensor, rows: int, longest: int
) -> torch.Tensor:
    """Scatter flat values to ``[R, T]``, 0 elsewhere; differentiable."""
    out = values_N.new_zeros(rows * longest)
    return out.index_put((row_N * longest + column_N,), values_N).view(rows, longest)
