"""Recorded games for tests, with and without what a server knows of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ajet.envs.werewolves.replay import Replay
from ajet.monitor.replay.join import join
from tests.unit.werewolves.model_table import ModelTable


@lru_cache(maxsize=8)
def game(seed: int = 2, language: str = "en") -> Replay:
    """A game with nine models."""
    return ModelTable(seed, language).play()


def detail(replay: Replay, **changes: Any) -> dict[str, Any]:
    """A server's view of the replay's episode: a call for each reply, a token for each word."""
    calls, samples = [], []
    for seat in replay.seats:
        pieces = []
        for _, exchange, _ in replay.prompts(seat.seat):
            if exchange.reply is None:
                continue
            words = [f"{word} " for word in exchange.reply["content"].split(" ")]
            n, number = len(words), len(calls)
            calls.append(
                {
                    "call_id": f"c{number}", "agent": seat.name, "tag": seat.role, "reply_ids": list(range(n)),
                    "logprobs": [-0.02 * (k + 1) ** 2 for k in range(n)], "versions": [3] * (n - 1) + [4],
                    "temperature": 1.0, "finish_reason": "stop", "message": dict(exchange.reply),
                }
            )  # fmt: skip
            pieces.append({"call": f"c{number}", "kind": "prompt", "ids": [1], "texts": ["x"], "trained": [], "first_sample": None})  # fmt: skip
            pieces.append(
                {
                    "call": f"c{number}", "kind": "reply", "ids": list(range(n)), "texts": words,
                    "trained": [True] * (n - 1) + [False], "first_sample": None,
                }
            )  # fmt: skip
        samples.append({"agent": seat.name, "tag": seat.role, "pieces": pieces})
    advantages = {seat.name: 1.25 if seat.role == "werewolf" else -0.5 for seat in replay.seats}
    return {
        "episode_id": replay.episode.episode_id, "fate": "trained", "step": 5, "advantages": advantages, "calls": calls,
        "samples": samples, **changes,
    }  # fmt: skip


@lru_cache(maxsize=8)
def joined(seed: int = 2, language: str = "en") -> Replay:
    """The same, joined."""
    replay = game(seed, language)
    return join(replay, detail(replay)).replay
