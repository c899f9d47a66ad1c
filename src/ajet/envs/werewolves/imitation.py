"""Random legal play as examples for a warm start: prompts, replies, and what else would have been as legal.

The policy here has no strategy: targets are uniform over whom the rules allow (a wolf's victim may be a teammate or the
wolf itself), sentences are drawn from a fixed mix. One exception, stated because it matters: a share of a seer's
statements report a check it really made (:data:`TRUTHFUL`); without it the seer was not found to discover claiming.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.compact import SECTIONS, compact_reply, compact_text
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.rules import Role
from ajet.envs.werewolves.scripted import ScriptedPlayer, name

TRUTHFUL = 0.35
"""Share of a seer's statements that report a check it really made, where one of a living player exists."""

READING = 0.5
"""Reading lessons per imitated call: "One of Team?" about the same state, answered with any name under that heading (or,
"One not of Team?", under another). They teach to tell the headings apart and say nothing about whom to choose."""

LIVE = (
    *[(Role.WEREWOLF,)] * 3, *[(Role.SEER,)] * 7,
    (Role.WITCH, Role.HUNTER, Role.VILLAGER), (Role.WEREWOLF, Role.SEER),
)  # fmt: skip
"""Which roles play at random in a game; the others are scripted. Drawn uniformly."""


@dataclass(frozen=True)
class Choice:
    """A name in a reply: ``start`` is the character where ``PlayerN`` begins, ``seats`` what could stand there."""

    start: int
    seats: tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """One imitated call: the user message, the reply, and the free choices in it."""

    role: Role
    user: str
    reply: str
    choices: tuple[Choice, ...]


def _sentence(game: Game, me: int, results: dict[int, bool], rng: random.Random) -> tuple[str, tuple[int, ...]]:
    """A sentence, and the seats that could stand in it as well (empty: nothing to choose)."""
    others = game.living(me)
    other = rng.choice(others or (me,))
    living = [i for i in results if game.alive[i]]
    if living and rng.random() < TRUTHFUL:
        target = rng.choice(living)
        return f"I am the seer. {name(target)} is {'a wolf' if results[target] else 'good'}.", tuple(living)
    x = rng.random()
    if x < 0.2:
        return "I have no idea.", ()
    if x < 0.45:
        return f"I suspect {name(other)}.", others
    if x < 0.65:
        return f"I trust {name(other)}.", others
    if x < 0.75:
        return "I am a villager.", ()
    return f"I am the seer. {name(other)} is {'a wolf' if rng.random() < 0.5 else 'good'}.", others


def random_action(
    game: Game, request: Request, results: dict[int, bool], rng: random.Random
) -> tuple[Action, tuple[int, ...], tuple[int, ...]]:
    """A random legal action; the seats its target, and the seats its sentence, were drawn from."""
    legal = request.legal
    say, said = "", ()
    if request.kind in ("speak", "day", "last_words"):
        say, said = _sentence(game, request.player, results, rng)
    if request.kind == "witch":
        if request.may_save and rng.random() < 0.5:
            return Action(save=True), (), ()
        if request.may_poison and legal and rng.random() < 0.4:
            return Action(rng.choice(legal)), legal, ()
        return Action(), (), ()
    if request.kind == "shoot" and rng.random() < 0.3:
        return Action(), (), ()
    target = rng.choice(legal) if legal else None
    return Action(target, say), legal if target is not None else (), said


def examples(seed: int, games: int) -> Iterator[Example]:
    """Examples of ``games`` games, reproducibly from ``seed``."""
    for n in range(games):
        yield from _one_game(f"imitation-{seed}-{n}")


def reading_lesson(user: str, rng: random.Random) -> Example | None:
    """A question about a prompt's headings, with every right answer equally likely; None where there is none."""
    sections: dict[str, tuple[int, ...]] = {}
    for line in user.split("\n"):
        head, colon, names = line.partition(": ")
        if colon and head in SECTIONS:
            sections[head] = tuple(int(n[6:]) - 1 for n in names.split() if n.startswith("Player"))
    head = rng.choice(sorted(sections))
    inside = rng.random() < 0.6
    right = sections[head] if inside else tuple(i for h, seats in sections.items() if h != head for i in seats)
    if not right:
        return None
    body, _, _ = user.rpartition("\n")
    reply = f"name: {name(rng.choice(right))}"
    return Example(
        Role.VILLAGER,
        f"{body}\nOne {'' if inside else 'not '}of {head}?",
        reply,
        (Choice(reply.index("Player"), right),),
    )


def _one_game(seed: str) -> Iterator[Example]:
    rng = random.Random(seed)
    live = rng.choice(LIVE)
    game = Game(seed)
    game.one_call = frozenset(i for i, role in enumerate(game.roles) if role in live)
    board = Board(game)
    players = [ScriptedPlayer(game, board, i, random.Random(rng.random())) for i in range(len(game.roles))]
    run = game.run()
    requests = next(run)
    while True:
        actions = []
        for request in requests:
            if request.role not in live:
                actions.append(players[request.player].act(request))
                continue
            results = {e.target: bool(e.is_wolf) for e in game.visible(request.player) if e.kind == "check"}
            action, targets, said = random_action(game, request, results, rng)  # type: ignore[arg-type]
            reply = compact_reply(request, action)
            choices = []
            if said:
                choices.append(Choice(action.say.index("Player"), said))
            if targets:
                choices.append(Choice(reply.rindex("Player"), targets))
            user = compact_text(game, board, request)
            yield Example(request.role, user, reply, tuple(choices))
            if rng.random() < READING:
                lesson = reading_lesson(user, rng)
                if lesson is not None:
                    yield lesson
            actions.append(action)
        try:
            requests = run.send(actions)
        except StopIteration:
            return
