"""Recording a game as it is played, and keeping a bounded number of replays in a folder.

A :class:`GameRecorder` watches one game and makes its :class:`~ajet.envs.werewolves.replay.Replay`. A
:class:`ReplayFolder` says which games are kept and where. Promise: recording never changes a game and never ends one;
a disk that refuses costs the replay, is said once, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.replay import (
    ActionRecord,
    Ballot,
    DecisionRecord,
    EpisodeRef,
    EventRecord,
    Exchange,
    Moment,
    Night,
    Outcome,
    PlayerKind,
    Replay,
    SeatRecord,
    Tables,
    fallen,
    save,
)
from ajet.envs.werewolves.replies import ParsedReply, private_words
from ajet.envs.werewolves.speech import understand
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task

log = logging.getLogger("ajet.werewolves.replays")

Record = Callable[[Request, Sequence[dict[str, Any]], dict[str, Any] | None, ParsedReply], None]
"""Told of each prompt and its reply (None: the prompt was too long), and what was read from it."""


class GameRecorder:
    """Watches one game. Not thread-safe: one game runs in one event loop."""

    def __init__(self, game: Game, language: Literal["en", "zh"] = "en") -> None:
        self._game = game
        self._language: Literal["en", "zh"] = language
        self._who: dict[int, tuple[PlayerKind, str]] = {}
        self._said: dict[int, list[dict[str, Any]]] = {}
        """Each seat's conversation until now: the last prompt and its reply."""
        self._pending: dict[int, list[Exchange]] = {}
        self._decisions: list[DecisionRecord] = []

    def sits(self, seat: int, player: PlayerKind, model: str = "") -> None:
        """Say who plays a seat."""
        self._who[seat] = (player, model)

    def exchange(
        self, request: Request, messages: Sequence[dict[str, Any]], reply: dict[str, Any] | None, parsed: ParsedReply
    ) -> None:
        """A :data:`Record`."""
        before = self._said.get(request.player, [])
        history = 0
        for old, new in zip(before, messages, strict=False):
            if old != new:
                break
            history += 1
        self._said[request.player] = [*messages, *([reply] if reply is not None else [])]
        say = parsed.action.say if parsed.action is not None else ""
        private = ""
        if reply is not None:
            words = private_words(str(reply.get("content") or ""), request, say)
            private = "\n".join(part for part in (str(reply.get("reasoning_content") or "").strip(), words) if part)
        self._pending.setdefault(request.player, []).append(
            Exchange(
                history=history, messages=tuple(map(dict, messages[history:])), private=private,
                reply=None if reply is None else dict(reply), used=parsed.action is not None, problem=parsed.problem,
            )
        )  # fmt: skip

    def watch(self, game: Game, request: Request, action: Action) -> None:
        """A :data:`ajet.envs.werewolves.play.Watch`."""
        exchanges = tuple(self._pending.pop(request.player, ()))
        outcome: Outcome | None = None
        if exchanges:
            outcome = "fallback" if not exchanges[-1].used else "repaired" if len(exchanges) > 1 else "valid"
        self._decisions.append(
            DecisionRecord(
                after=len(game.events), seat=request.player, day=request.day, kind=request.kind, legal=request.legal,
                may_pass=request.may_pass, may_save=request.may_save, may_poison=request.may_poison,
                victim=request.victim, revote=request.revote, outcome=outcome, exchanges=exchanges,
                action=ActionRecord(target=_known(action.target, game), say=action.say, save=action.save),
            )
        )  # fmt: skip

    def replay(self, episode: EpisodeRef, play_seed: str, reward: float | Mapping[str, float] | None = None) -> Replay:
        """The finished game. ``reward`` is by player's name."""
        game = self._game
        assert game.winner is not None, "the game is not over"
        rewards = reward if isinstance(reward, Mapping) else {}
        events = tuple(
            EventRecord(
                day=e.day, kind=e.kind, actor=e.actor, target=e.target, text=e.text, players=e.players, votes=e.votes,
                is_wolf=e.is_wolf, audience=None if e.audience is None else tuple(sorted(e.audience)),
            )
            for e in game.events
        )  # fmt: skip
        seats = []
        for seat, role in enumerate(game.roles):
            player, model = self._who.get(seat, ("scripted", ""))
            name = f"Player{seat + 1}"
            seats.append(
                SeatRecord(
                    seat=seat, name=name, role=role.value, player=player, model=model, reward=rewards.get(name)
                )
            )  # fmt: skip
        options = asdict(game.options)
        options["roles"] = [role.value for role in game.options.roles]
        return Replay(
            created=time.time(), seed=str(game.seed), play_seed=play_seed, language=self._language, options=options,
            episode=episode, seats=tuple(seats), events=events, decisions=tuple(self._decisions),
            tables=tables_of(events, len(seats)), winner=game.winner, end_cause=game.end_cause, days=game.day,
        )  # fmt: skip


def _known(target: int | None, game: Game) -> int | None:
    """A target that is a seat; a player may answer anything."""
    return target if target is not None and 0 <= target < len(game.roles) else None


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tables_of(events: Sequence[EventRecord], seats: int) -> Tables:
    """Vote matrix, night table and suspicion, from the events."""
    nights: dict[int, dict[str, Any]] = {}
    votes: list[Ballot] = []
    tied: set[int] = set()
    for place, event in enumerate(events):
        night = nights.setdefault(event.day, {"day": event.day, "picks": []}) if event.day else {}
        if event.kind == "wolf_pick":
            night["picks"].append((event.actor, event.target))
        elif event.kind == "guarded":
            night["guarded"] = event.target
        elif event.kind == "wolf_target":
            night["attacked"] = event.target
        elif event.kind == "check":
            night.update(checked=event.target, is_wolf=event.is_wolf)
        elif event.kind == "witch_sees":
            night["witch_saw"] = event.target
        elif event.kind == "witch_saved":
            night["saved"] = event.target
        elif event.kind == "witch_poisoned":
            night["poisoned"] = event.target
        elif event.kind == "deaths":
            night["died"] = event.players
        elif event.kind == "tie":
            tied.add(event.day)
        elif event.kind == "votes":
            votes.append(
                Ballot(event=place, day=event.day, revote=event.day in tied, candidates=event.players, votes=event.votes)
            )  # fmt: skip
    found = tuple(Night(**{**night, "picks": tuple(night["picks"])}) for night in nights.values())
    return Tables(votes=tuple(votes), nights=found, suspicion=tuple(_suspicion(events, seats)))


def _suspicion(events: Sequence[EventRecord], seats: int) -> list[Moment]:
    """After each speech and vote: who is held in suspicion, by public words and votes alone."""
    against: dict[tuple[int, int], bool] = {}
    alive = [True] * seats
    moments: list[Moment] = []
    for place, event in enumerate(events):
        for seat in fallen(event):
            alive[seat] = False
        if event.kind in ("speech", "last_words") and event.actor is not None:
            for stance, target in understand(event.text).stances:
                if 0 <= target < seats and target != event.actor:
                    against[event.actor, target] = stance in ("suspect", "wolf")
        elif event.kind == "votes":
            against.update({(voter, target): True for voter, target in event.votes if target is not None})
        else:
            continue
        shares = []
        for seat in range(seats):
            others = [i for i in range(seats) if alive[i] and i != seat]
            hits = sum(against.get((i, seat), False) for i in others)
            shares.append(round(hits / len(others), 4) if alive[seat] and others else 0.0)
        moments.append(Moment(event=place, day=event.day, shares=tuple(shares)))
    return moments


# ── which games are kept ─────────────────────────────────────────────────────────────────────────────────────────────

_prune = threading.Lock()
SUFFIX = ".replay.json"


@dataclass(frozen=True)
class ReplayFolder:
    """Which games are recorded, and where their replays are kept.

    Attributes:
        folder: made when the first replay is written.
        every: of training deals, those whose number this divides; 0 = none. All episodes of such a deal are kept, so that
            a group can be compared.
        evaluation: whether games on held-out deals are kept.
        keep: the newest so many replays stay in the folder.
        label: says in each replay where it belongs, e.g. ``final policy``.
    """

    folder: Path
    every: int = 0
    evaluation: bool = True
    keep: int = 200
    label: str = ""

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1:
            raise ConfigError("A replay folder's 'every' is at least 0 and its 'keep' at least 1.", param="record")

    def wants(self, task: Task, deal: int) -> bool:
        """Whether a game of this task is recorded."""
        if task.metadata.get("split") == "eval":
            return self.evaluation
        return bool(self.every) and deal % self.every == 0

    async def keep_replay(self, make: Callable[[], Replay]) -> Path | None:
        """Write a replay off the event loop. None, and one line in the log, where it cannot be written."""
        return await asyncio.to_thread(self.write, make)

    def write(self, make: Callable[[], Replay]) -> Path | None:
        """Write a replay. None, and one line in the log, where it cannot be written."""
        try:
            replay = make()
            self.folder.mkdir(parents=True, exist_ok=True)
            name = "-".join(p for p in (replay.seed, replay.episode.kind, replay.episode.episode_id[:40]) if p)
            path = self.folder / (re.sub(r"[^\w.-]", "_", name) + SUFFIX)
            save(replay, path)
            self._bound()
        except (OSError, ValueError) as err:
            log.warning("a replay could not be kept in %s (%s); the game is not touched by that", self.folder, err)
            return None
        return path

    def _bound(self) -> None:
        with _prune:
            aged = []
            for path in self.folder.glob(f"*{SUFFIX}"):
                try:
                    aged.append((path.stat().st_mtime_ns, path))
                except FileNotFoundError:  # another process was quicker
                    continue
            for _, path in sorted(aged)[: -self.keep]:
                path.unlink(missing_ok=True)
