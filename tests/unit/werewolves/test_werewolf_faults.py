"""Faults that people reported of systems like this one, 1 to 6, each tried with model players over a whole game."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.full import Conversation
from ajet.envs.werewolves.play import play_game
from ajet.envs.werewolves.players import ModelPlayer
from ajet.schema.errors import ConfigError, ContextLengthExceeded, InfrastructureFault
from tests.unit.werewolves.table import (
    HUNTER,
    SEER,
    V1,
    V2,
    V3,
    W1,
    W2,
    W3,
    WITCH,
    exiled,
    kinds,
    night_deaths,
    play,
    table,
)


class Canned:
    """An endpoint that replies what a function says."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self.reply = reply
        self.prompts: list[str] = []

    async def chat(self, messages, api_key, temperature, traffic=None):
        self.prompts.append(messages[-1]["content"])
        return {"role": "assistant", "content": self.reply(messages[-1]["content"])}


class Passive:
    """Does nothing, or what a table says."""

    def __init__(self, does: dict[tuple[str, int], Action] | None = None) -> None:
        self.does = does or {}

    async def act(self, request: Request) -> Action:
        return self.does.get((request.kind, request.day), Action())


async def game_with(
    game: Game, seat: int, reply: Callable[[str], str], others: dict[int, Passive] | None = None
) -> tuple[ModelPlayer, Canned]:
    """Play with one seat as a model of full style and everyone else passive."""
    endpoint = Canned(reply)
    model = ModelPlayer(Conversation(game, seat), endpoint, "key", rng=random.Random(0))  # type: ignore[arg-type]
    players = {i: Passive() for i in range(len(game.roles))} | (others or {}) | {seat: model}
    await play_game(game, players)  # type: ignore[arg-type]
    assert game.winner
    return model, endpoint


# 1 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "outcome"), [('{"resurrect": "false"}', "valid"), ('{"poison": true, "name": null}', "fallback")]
)
async def test_a_false_save_and_a_poison_without_a_name_do_nothing_and_are_counted(reply, outcome):
    game = table(max_days=1)
    wolves = {i: Passive({("kill", 1): Action(V1)}) for i in (W1, W2, W3)}
    model, _ = await game_with(
        game,
        WITCH,
        lambda prompt: reply if "save" in prompt or "Poison" in prompt else '{"say": "hm", "vote": null}',
        wolves,
    )
    assert night_deaths(game) == {1: (V1,)}
    assert game.antidote
    assert game.poison
    assert model.outcomes[outcome] >= 1
    assert sum(model.outcomes.values()) == 3  # night, speech, vote


# 2 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_vote_that_names_nobody_is_an_abstention_and_the_game_goes_on():
    game = table(max_days=2)
    model, endpoint = await game_with(game, V1, lambda prompt: "wait and see")
    assert dict(kinds(game, "votes")[0].votes)[V1] is None
    assert game.day == 2
    assert model.outcomes["fallback"] == 2  # two days' votes; a speech may be any words
    assert model.outcomes["valid"] == 2
    assert model.calls == 2 + 2 * 3  # two repair turns each
    assert sum("Answer again" in prompt for prompt in endpoint.prompts) == 4


async def test_a_repaired_vote_counts_as_repaired():
    game = table(max_days=1)
    model, _ = await game_with(game, V1, lambda prompt: "vote: 1" if "Answer again" in prompt else "hm")
    assert dict(kinds(game, "votes")[0].votes)[V1] == W1
    assert model.outcomes == {"valid": 1, "repaired": 1}


# 3 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nine_votes_exile_the_right_player_and_all_votes_are_kept():
    game = table(max_days=1)
    ballot = {0: V1, 1: V1, 2: V1, 3: W1, 4: W1, 5: W1, 6: W1, 7: V1, 8: V1}
    play(game, lambda r: Action(ballot[r.player]) if r.kind == "vote" else Action())
    assert dict(kinds(game, "votes")[0].votes) == ballot
    assert exiled(game) == [(1, V1)]


def test_the_dead_are_not_exiled_and_the_length_is_bounded():
    game = table(max_days=12)
    asked = play(game, lambda r: Action(V1) if r.kind in ("vote", "kill") and r.day < 3 else Action())
    assert exiled(game) == []  # he died in the first night
    assert game.day == 12
    assert len(asked) < 12 * 40


# 4 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wolf_tie", ["seeded", "none"])
def test_wolves_who_disagree_while_the_witch_poisons(wolf_tie):
    game = table(max_days=1, wolf_tie=wolf_tie)
    picks = {W1: Action(V1), W2: Action(V2), W3: Action(V3)}
    play(game, {("kill", 1): picks, ("witch", 1): Action(W1)})
    dead = night_deaths(game)[1]
    if wolf_tie == "none":
        assert dead == (W1,)
    else:
        assert dead[0] in (V1, V2, V3)
        assert dead[1:] == (W1,)


# 5 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_vote_for_the_dead_is_an_abstention_and_counted():
    game = table(max_days=1)
    wolves = {i: Passive({("kill", 1): Action(V2)}) for i in (W1, W2, W3)}
    model, _ = await game_with(game, V1, lambda prompt: "vote: Player8", wolves)
    assert dict(kinds(game, "votes")[0].votes)[V1] is None
    assert model.outcomes["fallback"] == 1
    game = table(max_days=1)
    play(game, {("kill", 1): Action(V2), ("vote", 1): {V1: Action(V2)}})
    assert exiled(game) == []
    assert game.illegal["villager"] == 1


def test_the_dead_are_never_asked_again_but_for_last_words_and_a_shot():
    for seed in range(30):
        game, rng = Game(seed), random.Random(seed)

        def answer(request: Request, game: Game = game, rng: random.Random = rng) -> Action:
            assert game.alive[request.player] or request.kind in ("last_words", "shoot")
            return Action(rng.choice(request.legal) if request.legal else None, say="x", save=rng.random() < 0.3)

        play(game, answer)
        gone: set[int] = set()
        for event in game.events:
            if event.kind == "speech":
                assert event.actor not in gone
            if event.kind in ("exile", "shot"):
                gone.add(event.target)  # type: ignore[arg-type]
            if event.kind == "deaths":
                gone |= set(event.players)


# 6 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

_TIE = """
import json
from ajet.envs.werewolves.engine import Action
from tests.unit.werewolves.table import V1, V2, V3, exiled, kinds, play, table
out = []
for seed in range(6):
    game = table(seed=seed, max_days=1)
    first = {0: V1, 1: V2, 2: V2, 3: V3, 4: V3}
    play(game, lambda r: Action() if r.kind != "vote" else Action(game.rng.choice(r.legal)) if r.revote
         else Action(first.get(r.player)))
    out.append([kinds(game, "tie")[0].players, exiled(game), kinds(game, "votes")[-1].votes])
print(json.dumps(out))
"""


def test_a_tie_exiles_one_of_the_tied_the_same_under_every_hash_seed():
    results = set()
    for hash_seed in ("0", "1", "31337"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-c", _TIE], env=env, capture_output=True, text=True, check=True, timeout=60
        )
        results.add(done.stdout)
    assert len(results) == 1
    for tied, gone, _ in json.loads(results.pop()):
        assert tied == [V2, V3]
        assert all(seat in (V2, V3) for _, seat in gone)


# players ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Narrow(Canned):
    """An endpoint into which only so many messages fit."""

    def __init__(self, most: int) -> None:
        super().__init__(lambda prompt: '{"say": "hm", "vote": null}')
        self.most = most

    async def chat(self, messages, api_key, temperature, traffic=None):
        if len(messages) > self.most:
            raise ContextLengthExceeded("too long")
        return await super().chat(messages, api_key, temperature)


async def test_a_prompt_that_became_too_long_is_a_fallback_not_a_crash():
    game = table(max_days=2)
    model = ModelPlayer(Conversation(game, V1), Narrow(5), "key", rng=random.Random(0))  # type: ignore[arg-type]
    await play_game(game, {i: Passive() for i in range(9)} | {V1: model})  # type: ignore[arg-type]
    assert game.winner == "draw"
    assert model.outcomes == {"valid": 2, "fallback": 2}
    assert model.calls == 2


async def test_a_first_prompt_that_does_not_fit_is_an_error_of_the_configuration():
    game = table(max_days=1)
    model = ModelPlayer(Conversation(game, V1), Narrow(1), "key", rng=random.Random(0))  # type: ignore[arg-type]
    model.endpoint.model = "small"
    with pytest.raises(ConfigError, match=r"'small'.*max_model_len"):
        await play_game(game, {i: Passive() for i in range(9)} | {V1: model})  # type: ignore[arg-type]


async def test_a_fault_of_one_player_cancels_the_others_who_are_being_asked():
    cancelled: list[int] = []

    class Slow(Passive):
        async def act(self, request: Request) -> Action:
            if request.kind != "vote":
                return Action()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(request.player)
                raise
            raise AssertionError

    class Broken(Passive):
        async def act(self, request: Request) -> Action:
            if request.kind != "vote":
                return Action()
            raise InfrastructureFault("gone")

    game = table()
    players = {i: Slow() for i in range(9)} | {SEER: Broken()}
    with pytest.raises(InfrastructureFault, match="gone"):
        await asyncio.wait_for(play_game(game, players), 10)
    assert sorted(cancelled) == [i for i in range(9) if i != SEER]
    assert game.winner is None


async def test_the_hunter_as_a_model_shoots():
    game = table(max_days=1)
    wolves = {i: Passive({("kill", 1): Action(HUNTER)}) for i in (W1, W2, W3)}
    await game_with(game, HUNTER, lambda prompt: "shoot: 2号" if "shoot" in prompt else "Farewell.", wolves)
    assert [(e.actor, e.target) for e in kinds(game, "shot")] == [(HUNTER, W2)]
    assert kinds(game, "last_words")[0].text == "Farewell."
