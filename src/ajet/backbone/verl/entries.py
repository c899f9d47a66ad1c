"""Samples as verl's training worker takes them, and what it answers back to flat tokens.

verl scores each position by the token after it and knows one temperature per sequence. An entry is one sample up to its
last trained token; a sample whose tokens were sampled at several temperatures is one entry for each. Entries are dealt
to the data-parallel ranks so that each has as many of them and about as many tokens; what is missing for an even deal
are entries that train nothing.

Letters: N flat trained tokens of the batch, E entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ajet.backbone.embedded.packing import Piece, TokenTable
from ajet.backbone.verl.loss import ENTROPY_GRADIENT, LOGPROB_GRADIENT


@dataclass(frozen=True)
class Entry:
    """One sequence.

    Attributes:
        row: whose tokens these are.
        ids_T: all of it, the last trained token included.
        position_N: positions whose log-probs are wanted, each one before its token.
        flat_N: those tokens' flat numbers.
    """

    row: int
    ids_T: np.ndarray
    position_N: np.ndarray
    flat_N: np.ndarray
    temperature: float


_EMPTY = Entry(-1, np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), 1.0)


def entries_of(pieces: Sequence[Piece], table: TokenTable) -> list[Entry]:
    """In the order of ``pieces``."""
    out: list[Entry] = []
    for piece in pieces:
        ids_T = np.append(piece.ids_T, table.id_N[piece.flat_N[-1]]).astype(np.int64)
        temperature_N = table.temperature_N[piece.flat_N]
        for temperature in np.unique(temperature_N):
            own = temperature_N == temperature
            last = int(piece.position_N[own][-1]) + 2
            out.append(
                Entry(piece.row, ids_T[:last], piece.position_N[own], piece.flat_N[own], float(temperature))
            )  # fmt: skip
    return out


def dealt(entries: Sequence[Entry], ranks: int) -> list[Entry]:
    """Reordered so that ``ranks`` equal runs of it have about as many tokens; filled up with empty entries."""
    ordered = sorted(entries, key=lambda e: -len(e.ids_T))
    hands: list[list[Entry]] = [[] for _ in range(ranks)]
    for start in range(0, max(1, len(ordered)), ranks):
        deal = ordered[start : start + ranks]
        deal += [_EMPTY] * (ranks - len(deal))
        # The rank with the fewest tokens so far takes the longest.
        waiting = sorted(range(ranks), key=lambda r: (sum(len(e.ids_T) for e in hands[r]), r))
        for rank, entry in zip(waiting, deal, strict=True):
            hands[rank].append(entry)
    return [entry for hand in hands for entry in hand]


def to_verl(entries: Sequence[Entry], *, max_tokens: int, entropy: bool, **extra: Any) -> Any:
    """A ``TensorDict`` in verl's contract. ``extra``: more non-tensor values."""
    from verl.utils import tensordict_utils as tu

    tensors: dict[str, Any] = {
        "input_ids": _nested([torch.from_numpy(e.ids_T) for e in entries]),
        "position_ids": _nested([torch.arange(len(e.ids_T)) for e in entries]),
        "loss_mask": _nested([_marked(e) for e in entries]),
    }
    temperatures = sorted({e.temperature for e in entries if len(e.flat_N)})
    values: dict[str, Any] = {
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": max(max_tokens, max(len(e.ids_T) for e in entries)),
        "calculate_entropy": entropy,
        "pad_token_id": 0,
        "global_batch_size": len(entries),
        "global_token_num": None,
        **extra,
    }
    if len(temperatures) <= 1:
        values["temperature"] = temperatures[0] if temperatures else 1.0  # one number spares verl a copy of the logits
    else:
        tensors["temperature"] = torch.tensor([e.temperature for e in entries], dtype=torch.float32)
    return tu.get_tensordict(tensors, values)


def with_gradients(
    data: Any, entries: Sequence[Entry], gradient_N: torch.Tensor, entropy_N: torch.Tensor | None
) -> Any:
    """Add the loss's derivatives to what :func:`to_verl` made of ``entries``."""
    data[LOGPROB_GRADIENT] = _nested([_placed(e, gradient_N) for e in entries])
    if entropy_N is not None:
        data[ENTROPY_GRADIENT] = _nested([_placed(e, entropy_N) for e in entries])
    return data


def from_verl(entries: Sequence[Entry], nested: torch.Tensor, out_N: torch.Tensor) -> None:
    """Write what verl answered per position to the flat numbers of the tokens."""
    for entry, values_T in zip(entries, nested.unbind(), strict=True):
        if len(entry.flat_N):
            found = values_T[torch.from_numpy(entry.position_N)]
            out_N[torch.from_numpy(entry.flat_N)] = found.to(out_N.dtype)


def _nested(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def _marked(entry: Entry) -> torch.Tensor:
    mask = torch.zeros(len(entry.ids_T), dtype=torch.long)
    mask[torch.from_numpy(entry.position_N)] = 1
    return mask


def _placed(entry: Entry, values_N: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(entry.ids_T), dtype=torch.float32)
    if len(entry.flat_N):
        out[torch.from_numpy(entry.position_N)] = values_N[torch.from_numpy(entry.flat_N)].float()
    return out
