"""A replay cut into nights and days, and what each view sees of them. Pure.

A view is a set of eyes (:func:`ajet.envs.werewolves.replay.eyes`): everything shown is filtered by the audience that the
engine gave each event. Roles are shown where the eyes know them, by their own cards and by what they learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ajet.envs.werewolves.replay import NIGHT_KINDS, DecisionRecord, EventRecord, Replay, View, eyes, fallen, sees


@dataclass(frozen=True)
class Phase:
    """A night or a day: ``events[start:end]``."""

    kind: Literal["night", "day"]
    day: int
    start: int
    end: int


def phases(replay: Replay) -> list[Phase]:
    """Nights and days in order. A day begins with the announcement of the dead; the deal belongs to the first night."""
    found: list[Phase] = []
    start = 0
    kind: Literal["night", "day"] = "night"
    for place, event in enumerate(replay.events):
        now: Literal["night", "day"] = "night" if event.kind in NIGHT_KINDS else "day"
        if now != kind:
            found.append(Phase(kind, max(1, replay.events[start].day, replay.events[place - 1].day), start, place))
            start, kind = place, now
    if start < len(replay.events):
        found.append(Phase(kind, max(1, replay.events[-1].day), start, len(replay.events)))
    return found


@dataclass(frozen=True)
class Line:
    """One thing that is told: an event, or a decision that leads to it."""

    event: EventRecord | None = None
    decision: DecisionRecord | None = None


def lines(replay: Replay, phase: Phase, view: View, *, private: bool = False) -> list[Line]:
    """What a view sees of a phase, in order.

    Args:
        private: with the models' prompts, private words and replies, for the seats of this view.
    """
    seats = eyes(replay, view)
    found: list[Line] = []
    waiting = [d for d in replay.decisions if private and d.seat in seats and d.exchanges]
    at = 0
    while at < len(waiting) and waiting[at].after < phase.start:
        at += 1
    for place in range(phase.start, phase.end):
        while at < len(waiting) and waiting[at].after <= place:
            found.append(Line(decision=waiting[at]))
            at += 1
        event = replay.events[place]
        if sees(event, seats):
            found.append(Line(event=event))
    return found


def known_roles(replay: Replay, view: View, events: int) -> dict[int, str]:
    """Seat → what a view knows it to be after the first ``events`` events: a role, ``wolf`` or ``good``."""
    seats = eyes(replay, view)
    known: dict[int, str] = {}
    for event in replay.events[:events]:
        if not sees(event, seats):
            continue
        if event.kind == "role" and event.actor is not None:
            known[event.actor] = event.text
        elif event.kind == "teammates":
            known.update(dict.fromkeys(event.players, "werewolf"))
        elif event.kind == "check" and event.target is not None:
            known.setdefault(event.target, "wolf" if event.is_wolf else "good")
        elif event.kind == "shot" and event.actor is not None:
            known.setdefault(event.actor, "hunter")
        elif event.kind == "idiot" and event.actor is not None:
            known.setdefault(event.actor, "idiot")
    return known


def fates(replay: Replay, view: View, events: int) -> dict[int, tuple[str, int]]:
    """Seat → (how it left the game: ``night``, ``exile`` or ``shot``; the day) after the first ``events`` events."""
    found: dict[int, tuple[str, int]] = {}
    seats = eyes(replay, view)
    for event in replay.events[:events]:
        if sees(event, seats):
            for seat in fallen(event):
                found[seat] = ("night" if event.kind == "deaths" else event.kind, event.day)
    return found


def speaker(event: EventRecord) -> int | None:
    """Whose turn an event is, for marking a seat."""
    return event.actor if event.actor is not None else event.target
