"""Samples → padded forward passes with little padding, and log-probs → rows.

Letters: R rows, T a row's sampled tokens in order, N a batch's trained tokens, B sequences of one pass. Trained tokens
have flat numbers, row after row, sample after sample: that order is what the loss sees, whatever the passes were.

The seam for shared prefixes is here: a :class:`Pass` says which trained tokens it yields, so passes over merged trees
could replace these without the loss noticing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ajet.trajectory.batch import Row

_GROWTH = 1.06
"""A pass's longest sample is at most this much longer than its shortest (and a little)."""


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
class Pass:
    """One forward pass: right-padded ids, wanted flat positions, and the flat numbers of the tokens they predict."""

    ids_B_T: torch.Tensor
    wanted_N: torch.Tensor
    flat_N: torch.Tensor
    real_tokens: int


def lay_out(rows: Sequence[Row]) -> tuple[TokenTable, list[Piece]]:
    """Number the trained tokens and cut each sample after the last of them. A first token is never trained."""
    pieces: list[Piece] = []
    row_parts, column_parts, ids, logprobs, temperatures, versions = [], [], [], [], [], []
    tokens_R = np.zeros(len(rows), np.int64)
    at = 0
    for r, row in enumerate(rows):
        column = 0
        for sample in row.samples:
            trained = sample.trained_T.copy()
            trained[:1] = False
            where = np.flatnonzero(trained)
            if not len(where):
                continue
            n = len(where)
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


def passes(pieces: Sequence[Piece], max_tokens: int, device: torch.device) -> list[Pass]:
    """Cover ``pieces`` by passes of at most ``max_tokens`` padded tokens (or one sample), similar lengths together."""
    ordered = sorted(pieces, key=lambda p: (len(p.ids_T), int(p.flat_N[0])))
    groups: list[list[Piece]] = []
    for piece in ordered:
        length = len(piece.ids_T)
        group = groups[-1] if groups else None
        if group is None or (len(group) + 1) * length > max_tokens or length > _GROWTH * len(group[0].ids_T) + 2:
            groups.append([piece])
        else:
            group.append(piece)
    return [_pass(group, device) for group in groups]


def _pass(group: Sequence[Piece], device: torch.device) -> Pass:
    T = max(len(p.ids_T) for p in group)
    ids_B_T = np.zeros((len(group), T), np.int64)
    for b, piece in enumerate(group):
        ids_B_T[b, : len(piece.ids_T)] = piece.ids_T
    wanted = np.concatenate([b * T + piece.position_N for b, piece in enumerate(group)])
    flat = np.concatenate([piece.flat_N for piece in group])
    return Pass(
        torch.from_numpy(ids_B_T).to(device), torch.from_numpy(wanted).to(device), torch.from_numpy(flat).to(device),
        sum(len(p.ids_T) for p in group),
    )  # fmt: skip


def to_rows(values_N: torch.Tensor, row_N: torch.Tensor, column_N: torch.Tensor, rows: int, longest: int) -> torch.Tensor:
    """Scatter flat values to ``[R, T]``, 0 elsewhere; differentiable."""
    out = values_N.new_zeros(rows * longest)
    return out.index_put((row_N * longest + column_N,), values_N).view(rows, longest)
