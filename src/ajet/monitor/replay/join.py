"""Joins a replay with the server's view of its episode: tokens with log-probs, policy versions, advantages, fate.

Advantages exist only after the step that trained the episode, so this comes after the game: from a running server, or
from the journal in an experiment's folder. Pure but for :func:`from_server` and :func:`from_folder`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.envs.werewolves.replay import CallRecord, DecisionRecord, Exchange, Replay
from ajet.schema.errors import ConfigError

Detail = Mapping[str, Any]
"""What ``GET /swarm/v1/episodes/{id}?tokens=true`` answers."""


@dataclass(frozen=True)
class Joined:
    """A joined replay; ``replies`` of the trainable model it has, ``matched`` of them found on the server."""

    replay: Replay
    replies: int
    matched: int

    def words(self) -> str:
        """What came of it, for people."""
        episode = self.replay.episode
        fate = f"fate {episode.fate}" + (f", step {episode.step}" if episode.step is not None else "")
        advantages = sum(seat.advantage is not None for seat in self.replay.seats)
        return f"{self.matched} of {self.replies} replies have their log-probs, {advantages} seats an advantage; {fate}"


def join(replay: Replay, detail: Detail) -> Joined:
    """Join.

    A seat's replies and its agent's calls are matched in order, by their text: a reply that was sampled and never arrived
    (a lost connection) matches nothing and is passed over.

    Raises:
        ConfigError: the view is of another episode.
    """
    if detail["episode_id"] != replay.episode.episode_id:
        raise ConfigError(
            f"This replay is of episode {replay.episode.episode_id!r}, the server's view is of {detail['episode_id']!r}."
        )
    pieces = _reply_pieces(detail)
    waiting: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for call in detail["calls"]:
        waiting[call["agent"]].append(call)
    names = [seat.name for seat in replay.seats]
    policy = {seat.seat for seat in replay.seats if seat.player == "policy"}
    replies = matched = 0
    decisions: list[DecisionRecord] = []
    for decision in replay.decisions:
        exchanges: list[Exchange] = []
        for exchange in decision.exchanges:
            call = None
            if decision.seat in policy and exchange.reply is not None:
                replies += 1
                call = _take(waiting[names[decision.seat]], exchange.reply)
                matched += call is not None
            exchanges.append(
                exchange if call is None else exchange.model_copy(update={"call": _record(call, pieces)})
            )  # fmt: skip
        decisions.append(decision.model_copy(update={"exchanges": tuple(exchanges)}))
    advantages = detail.get("advantages") or {}
    seats = tuple(
        seat.model_copy(update={"advantage": advantages[seat.name]}) if seat.name in advantages else seat
        for seat in replay.seats
    )
    versions = [version for call in detail["calls"] for version in call["versions"]]
    update: dict[str, Any] = {
        "decisions": tuple(decisions),
        "seats": seats,
        "episode": replay.episode.model_copy(update={"fate": detail["fate"], "step": detail.get("step")}),
    }
    if versions:
        update["policy_version"] = (min(versions), max(versions))
    return Joined(replay.model_copy(update=update), replies, matched)


def _take(calls: list[Mapping[str, Any]], reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first waiting call with this reply; it and those before it wait no longer."""
    for place, call in enumerate(calls):
        message = call.get("message") or {}
        if str(message.get("content") or "") == str(reply.get("content") or ""):
            del calls[: place + 1]
            return call
    return None


def _reply_pieces(detail: Detail) -> dict[str, Mapping[str, Any]]:
    """Call → the piece of a sample that holds its reply, from the sample that trains it."""
    found: dict[str, Mapping[str, Any]] = {}
    for sample in detail.get("samples") or ():
        for piece in sample["pieces"]:
            if piece["kind"] == "reply" and piece["first_sample"] is None:
                found[piece["call"]] = piece
    return found


def _record(call: Mapping[str, Any], pieces: Mapping[str, Mapping[str, Any]]) -> CallRecord:
    ids = call["reply_ids"]
    piece = pieces.get(call["call_id"], {})
    return CallRecord(
        call_id=call["call_id"],
        ids=tuple(ids),
        texts=tuple(piece.get("texts") or (f"⟨{token}⟩" for token in ids)),
        logprobs=tuple(call["logprobs"]),
        versions=tuple(call["versions"]),
        trained=tuple(piece.get("trained") or (False for _ in ids)),
        temperature=call["temperature"],
        finish_reason=call["finish_reason"],
    )


def _episode(replay: Replay) -> str:
    if not replay.episode.episode_id:
        raise ConfigError("This replay names no episode, so there is nothing to join it with.")
    return replay.episode.episode_id


def from_server(replay: Replay, url: str) -> Joined:
    """Join with a running server.

    Raises:
        NotFound: it does not know the episode. ServerUnreachable, InvalidKey: as any call.
    """
    from ajet.client import SwarmClient

    client = SwarmClient(url, verbose=False, retry_budget_s=0)
    try:
        return join(replay, client.get_episode(_episode(replay), tokens=True))
    finally:
        client.close()


def from_folder(replay: Replay, folder: Path) -> Joined:
    """Join with the journal of an experiment, server or not.

    Raises:
        ConfigError: there is no journal. NotFound: it does not know the episode.
    """
    try:
        from ajet.server.inspecting import detail_of_folder
    except ImportError as err:
        raise ConfigError(
            f"Reading a journal needs the server's packages ({err.name} is missing). Run: pip install 'agentjet[server]'"
        ) from err
    return join(replay, detail_of_folder(folder, _episode(replay)))
