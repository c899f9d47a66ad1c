"""The default board, to the bit: what the embedded model was taught and what the demo trains against must not move.

A digest here may change only together with the model and the measured results. Each covers some hundred seeded games.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from ajet.envs.werewolves.baselines import play, seer, wolf
from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Event, Game
from ajet.envs.werewolves.full import Conversation, rules_text
from ajet.envs.werewolves.imitation import examples
from ajet.envs.werewolves.rules import BoardOptions, Role
from ajet.envs.werewolves.scripted import ScriptedPlayer


class Digest:
    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, *parts: Any) -> None:
        self._sha.update(repr(parts).encode())

    def add_game(self, game: Game) -> None:
        self.add(
            [role.value for role in game.roles], game.winner, game.end_cause, game.day, sorted(game.illegal.items())
        )
        for event in game.events:
            self.add(*_plain(event))

    def hex(self) -> str:
        return self._sha.hexdigest()[:32]


def _plain(e: Event) -> tuple[Any, ...]:
    heard = None if e.audience is None else sorted(e.audience)
    return e.day, e.kind, e.actor, e.target, e.text, e.players, e.votes, e.is_wolf, heard


def test_scripted_games_are_the_same_to_the_last_draw():
    digest = Digest()
    for seed in range(300):
        game = Game(seed, play_seed=f"draws-{seed}")
        board, rng = Board(game), random.Random(seed)
        players = [ScriptedPlayer(game, board, i, random.Random(rng.random())) for i in range(len(game.roles))]
        run = game.run()
        requests = next(run)
        while True:
            try:
                actions = [players[r.player].act(r) for r in requests]
                digest.add([(a.target, a.say, a.save) for a in actions])
                requests = run.send(actions)
            except StopIteration:
                break
        digest.add_game(game)
        digest.add(game.rng.random(), [p.rng.random() for p in players], [p.suspicion() for p in players])
    assert digest.hex() == "3e0f6a9d0170739597dcf332dfc30eb9"


def test_games_of_live_habits_against_scripted_players_are_the_same():
    digest = Digest()
    habits = [
        {Role.WEREWOLF: wolf()},
        {Role.WEREWOLF: wolf("spare_kill", "spare_vote", "kill_claimer", "agree", "vote_accused", "quiet")},
        {Role.SEER: seer()},
        {Role.SEER: seer("truthful", "vote_wolf", "check_accused")},
        {Role.WEREWOLF: wolf("claim"), Role.SEER: seer("truthful")},
    ]
    for n, baselines in enumerate(habits):
        for seed in range(60):
            digest.add_game(play(f"{n}-{seed}", baselines))
    assert digest.hex() == "b3dddf8ff645bb2093b8831dac58ec2c"


def test_compact_prompts_and_replies_are_the_same():
    digest = Digest()
    for example in examples(41, 200):
        digest.add(example.role.value, example.user, example.reply, [(c.start, c.seats) for c in example.choices])
    assert digest.hex() == "08af05847cbc38ebf5778bbb47d3b312"


def test_full_prompts_are_the_same():
    digest = Digest()
    for language in ("en", "zh"):
        digest.add(rules_text(BoardOptions(), language))
        for seed in range(30):
            game = Game(seed)
            talk = [Conversation(game, i, language) for i in range(len(game.roles))]
            rng = random.Random(seed)
            run = game.run()
            requests = next(run)
            try:
                while True:
                    actions = []
                    for r in requests:
                        digest.add(talk[r.player].messages(r)[-1])
                        target = rng.choice((None, *r.legal))
                        actions.append(Action(target, say=f"words {rng.randrange(99)}", save=rng.random() < 0.4))
                    requests = run.send(actions)
            except StopIteration:
                pass
            digest.add([t._messages[0] for t in talk])
    assert digest.hex() == "7c6905b5816f44219bd08f8996daf168"
