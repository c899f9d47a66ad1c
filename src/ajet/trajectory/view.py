"""What became of each token of an episode, for people: the samples training reads, cut into pieces by owner.

Built from the very samples that :func:`ajet.trajectory.build_rows` builds, so that a view never says other than what
was trained. A token that several samples share is shown in the first and referred to in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.trajectory.calls import Call
from ajet.trajectory.rows import PROMPT_TOO_LONG, RESPONSE_TOO_LONG, TOO_OLD, by_agent, path_sample, timelines

NOT_TRAINED = "not_trained"
"""A sampled token of an episode that takes no part in training (eval, aborted, dropped)."""


@dataclass(frozen=True)
class Piece:
    """Neighbouring tokens of one owner in one sample.

    Attributes:
        call: the call that put them there. kind: ``prompt`` (the environment's) or ``reply`` (sampled).
        first_sample: the sample, by number, that holds them as well and trains them; else None.
        trained: of a reply, one flag a token. why: why some are not trained (reasons, comma-separated), None where all are.
    """

    call: str
    kind: str
    ids: list[int]
    first_sample: int | None
    trained: list[bool]
    why: str | None
    texts: list[str] | None = None

    def to_wire(self) -> dict[str, Any]:
        return dict(vars(self))


def view_samples(
    calls: Iterable[Call],
    *,
    limits: tuple[int, int, int],
    min_version: int = -(2**31),
    takes_part: bool = True,
    texts: Callable[[Sequence[int]], list[str]] | None = None,
) -> list[dict[str, Any]]:
    """Samples of an episode, in the order of :func:`ajet.trajectory.build_rows`, those without trained tokens too.

    Args:
        limits, min_version: as in :func:`ajet.trajectory.build_rows`.
        takes_part: False where the episode is not trained whatever its tokens are.
        texts: text of each of some ids.

    Returns:
        ``{"agent", "tag", "pieces": [Piece…]}`` a sample.
    """
    samples = []
    for own in by_agent(calls).values():
        owner: dict[str, int] = {}
        for number, path in enumerate(timelines(own)):
            pieces = _pieces(path, number, owner, limits, min_version, takes_part, texts)
            samples.append({"agent": own[0].agent, "tag": own[0].tag, "pieces": [piece.to_wire() for piece in pieces]})
    return samples


def _pieces(
    path: list[Call],
    number: int,
    owner: dict[str, int],
    limits: tuple[int, int, int],
    min_version: int,
    takes_part: bool,
    texts: Callable[[Sequence[int]], list[str]] | None,
) -> list[Piece]:
    sample, _ = path_sample(path, set(owner), limits, min_version)
    first_prompt = len(path[0].prompt_delta)
    too_long, room = first_prompt > limits[0], min(first_prompt + limits[1], limits[2])
    pieces: list[Piece] = []
    at = 0
    for call in path:
        first = owner.setdefault(call.call_id, number)
        shared = first if first != number else None
        show = texts if shared is None and texts is not None else None
        pieces.append(
            Piece(
                call.call_id, "prompt", call.prompt_delta, shared, [], None, show(call.prompt_delta) if show else None
            )
        )
        at += len(call.prompt_delta)
        n = len(call.reply_ids)
        flags = [False] * n
        if sample is not None and takes_part:
            kept = sample.trained_T[at : at + n].tolist()
            flags[: len(kept)] = kept
        why = None
        if shared is None and not all(flags):
            why = _why(call, at, room, min_version, too_long) if takes_part else NOT_TRAINED
        pieces.append(
            Piece(call.call_id, "reply", call.reply_ids, shared, flags, why, show(call.reply_ids) if show else None)
        )
        at += n
    return pieces


def _why(call: Call, start: int, room: int, min_version: int, prompt_too_long: bool) -> str:
    """Why tokens of a reply are not trained, as :func:`ajet.trajectory.rows.path_sample` counts them."""
    if prompt_too_long:
        return PROMPT_TOO_LONG
    kept = max(0, room - start)
    old = any(version < min_version for version in call.versions[:kept])
    beyond = len(call.reply_ids) > kept
    return ", ".join([RESPONSE_TOO_LONG] * beyond + [TOO_OLD] * old)
