"""A replay: one game whole, as one JSON file. The schema, who may see what of it, and reading and writing.

Holds god's view (every event with its audience), each model's exact prompts and replies with its private words apart
from the public ones, what was decided, the vote matrix, the night table, and suspicion over time. After a join with the
server's view of the episode each reply has its tokens with log-probs, and each seat its advantage.

Versioned: a file says ``format`` and ``version``; a newer version is refused by name, unknown fields are passed over.
Keys never stand in a replay: neither headers nor addresses are recorded. Written by
:mod:`ajet.envs.werewolves.recording`; read by ``ajet-swarm replay``. ``docs/replays.md`` describes the file for readers.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet.schema.errors import ConfigError

FORMAT = "ajet-werewolves-replay"
VERSION = 1
MAX_BYTES = 256 * 2**20
"""Of a file that is read."""

PlayerKind = Literal["policy", "static", "scripted", "person"]
Outcome = Literal["valid", "repaired", "fallback"]
NIGHT_KINDS = frozenset(
    {"role", "teammates", "guarded", "wolf_pick", "wolf_target", "check", "witch_sees", "witch_saved", "witch_poisoned"}
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class SeatRecord(_Part):
    """A player. ``reward`` and ``advantage`` where there is one; ``model`` is the name that was asked."""

    seat: int
    name: str
    role: str
    player: PlayerKind
    model: str = ""
    reward: float | None = None
    advantage: float | None = None


class EventRecord(_Part):
    """:class:`ajet.envs.werewolves.engine.Event`. ``audience`` null means everyone."""

    day: int
    kind: str
    actor: int | None = None
    target: int | None = None
    text: str = ""
    players: tuple[int, ...] = ()
    votes: tuple[tuple[int, int | None], ...] = ()
    is_wolf: bool | None = None
    audience: tuple[int, ...] | None = None


class CallRecord(_Part):
    """What the server recorded of one reply. Lists run over its tokens; ``texts`` are ``⟨id⟩`` without a tokenizer."""

    call_id: str
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    trained: tuple[bool, ...]
    temperature: float
    finish_reason: str


class Exchange(_Part):
    """One prompt and its reply.

    Attributes:
        history: the prompt begins with so many messages of this seat's conversation until now (0: it starts anew).
        messages: the prompt's messages after those.
        reply: the assistant message as it came; null where the prompt was too long for the model.
        private: what of the reply nobody else heard: reasoning, and words beside the public statement.
        used: the decision was read from this reply. problem: why not.
        call: joined from the server.
    """

    history: int
    messages: tuple[dict[str, Any], ...]
    reply: dict[str, Any] | None
    private: str = ""
    used: bool = False
    problem: str = ""
    call: CallRecord | None = None


class ActionRecord(_Part):
    """What was decided; ``say`` is what others heard of it."""

    target: int | None = None
    say: str = ""
    save: bool = False


class DecisionRecord(_Part):
    """One request to one seat and its answer.

    Attributes:
        after: events that had happened when it took effect.
        outcome: of a model: how its reply could be used. exchanges: of a model: its prompts and replies.
    """

    after: int
    seat: int
    day: int
    kind: str
    legal: tuple[int, ...]
    may_pass: bool
    may_save: bool = False
    may_poison: bool = False
    victim: int | None = None
    revote: bool = False
    action: ActionRecord
    outcome: Outcome | None = None
    exchanges: tuple[Exchange, ...] = ()


class Ballot(_Part):
    """One vote: (voter, target) pairs; null is an abstention. ``event``: its place in ``events``."""

    event: int
    day: int
    revote: bool
    candidates: tuple[int, ...]
    votes: tuple[tuple[int, int | None], ...]


class Night(_Part):
    """One night, seats or null. ``picks``: (wolf, target). ``guarded`` is for boards with a guard."""

    day: int
    guarded: int | None = None
    picks: tuple[tuple[int, int | None], ...] = ()
    attacked: int | None = None
    checked: int | None = None
    is_wolf: bool | None = None
    witch_saw: int | None = None
    saved: int | None = None
    poisoned: int | None = None
    died: tuple[int, ...] = ()


class Moment(_Part):
    """Suspicion after an event: per seat, the share of the living others whose last public word or vote on it was against
    it. ``event``: its place in ``events``."""

    event: int
    day: int
    shares: tuple[float, ...]


class Tables(_Part):
    """What follows from the events, for readers that do not want to work it out."""

    votes: tuple[Ballot, ...] = ()
    nights: tuple[Night, ...] = ()
    suspicion: tuple[Moment, ...] = ()


class EpisodeRef(_Part):
    """Where the game came from, and after a join what became of it (``fate``, training ``step``)."""

    episode_id: str = ""
    task_id: str = ""
    kind: Literal["train", "eval", "play"] = "train"
    label: str = ""
    fate: str | None = None
    step: int | None = None


class Replay(_Part):
    """One game. ``policy_version``: lowest and highest that sampled a token; null until the join."""

    format: Literal["ajet-werewolves-replay"] = FORMAT
    version: Literal[1] = VERSION
    created: float
    seed: str
    play_seed: str
    language: Literal["en", "zh"] = "en"
    options: dict[str, Any]
    episode: EpisodeRef = EpisodeRef()
    policy_version: tuple[int, int] | None = None
    seats: tuple[SeatRecord, ...]
    events: tuple[EventRecord, ...]
    decisions: tuple[DecisionRecord, ...]
    tables: Tables = Field(default_factory=Tables)
    winner: Literal["wolf", "good", "draw"]
    end_cause: str
    days: int

    @property
    def wolves(self) -> frozenset[int]:
        return frozenset(s.seat for s in self.seats if s.role == "werewolf")

    def prompts(self, seat: int) -> Iterator[tuple[DecisionRecord, Exchange, list[dict[str, Any]]]]:
        """Every exchange of a seat with its whole prompt, as it was sent."""
        conversation: list[dict[str, Any]] = []
        for decision in self.decisions:
            if decision.seat != seat:
                continue
            for exchange in decision.exchanges:
                prompt = [*conversation[: exchange.history], *exchange.messages]
                yield decision, exchange, prompt
                conversation = [*prompt, exchange.reply] if exchange.reply is not None else prompt

    def alive_after(self, events: int) -> list[bool]:
        """Who lives after the first ``events`` events."""
        alive = [True] * len(self.seats)
        for event in self.events[:events]:
            for seat in fallen(event):
                alive[seat] = False
        return alive


def fallen(event: EventRecord) -> tuple[int, ...]:
    """The seats that this event takes out of the game."""
    if event.kind == "deaths":
        return event.players
    return (event.target,) if event.kind in ("shot", "exile") and event.target is not None else ()


View = Literal["god", "public", "wolves"] | int
"""Through whose eyes a replay is seen; a number is a seat, from 0."""


def eyes(replay: Replay, view: View) -> frozenset[int]:
    """The seats whose knowledge a view shares."""
    if view == "god":
        return frozenset(range(len(replay.seats)))
    if view == "wolves":
        return replay.wolves
    return frozenset() if view == "public" else frozenset({int(view)})


def sees(event: EventRecord, seats: frozenset[int]) -> bool:
    """Whether those who are these seats together know of an event."""
    return event.audience is None or not seats.isdisjoint(event.audience)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def load(path: Path) -> Replay:
    """Read a replay.

    Raises:
        ConfigError: the file cannot be read, is no replay, or was written by a newer version.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES >> 20} MiB, so it is no replay.")
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise ConfigError(f"The replay {path} cannot be read: {err.strerror or err}.") from err
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{path} is no replay: it is not JSON ({err}).") from err
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise ConfigError(f"{path} is no replay: its 'format' is not {FORMAT!r}.")
    number = tree.get("version")
    if isinstance(number, int) and number > VERSION:
        raise ConfigError(f"{path} is a replay of version {number}; this AgentJet reads {VERSION}. Update AgentJet.")
    try:
        replay = Replay.model_validate(tree)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path} is a damaged replay: {where}: {first['msg']}.") from err
    _check_seats(replay, path)
    return replay


def _check_seats(replay: Replay, path: Path) -> None:
    """Seats and places in lists lie inside them, so that no reader needs to ask again."""
    n = len(replay.seats)
    named: list[int | None] = []
    for place, seat in enumerate(replay.seats):
        if seat.seat != place:
            raise ConfigError(f"{path} is a damaged replay: seats are not in order.")
    for event in replay.events:
        named += [event.actor, event.target, *event.players, *(event.audience or ())]
        named += [seat for pair in event.votes for seat in pair]
    for decision in replay.decisions:
        named += [decision.seat, decision.victim, *decision.legal]
    for ballot in replay.tables.votes:
        named += [*ballot.candidates, *(seat for pair in ballot.votes for seat in pair)]
    for night in replay.tables.nights:
        named += [
            night.guarded,
            night.attacked,
            night.checked,
            night.witch_saw,
            night.saved,
            night.poisoned,
            *night.died,
        ]
        named += [seat for pair in night.picks for seat in pair]
    if any(seat is not None and not 0 <= seat < n for seat in named):
        raise ConfigError(f"{path} is a damaged replay: it names a seat that is not at the table.")
    if any(len(moment.shares) != n for moment in replay.tables.suspicion):
        raise ConfigError(f"{path} is a damaged replay: suspicion is not given for each seat.")
    for decision in replay.decisions:
        for exchange in decision.exchanges:
            call = exchange.call
            if call and len({len(call.ids), len(call.texts), len(call.logprobs), len(call.trained)}) != 1:
                raise ConfigError(f"{path} is a damaged replay: a call's lists differ in length.")


def save(replay: Replay, path: Path) -> None:
    """Write a replay whole or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        temporary.write_text(replay.model_dump_json(exclude_defaults=False), encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
