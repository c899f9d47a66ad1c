"""Whatever the players do, the game ends by its rules: random and hostile actions on random boards."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ajet.envs.werewolves.engine import Action, Event, Game, Request
from ajet.envs.werewolves.rules import GODS, BoardOptions, Role, winner
from tests.unit.werewolves.table import play

BOARDS = st.builds(
    BoardOptions,
    roles=st.tuples(
        st.integers(1, 3), st.integers(1, 5), st.sets(st.sampled_from(sorted(GODS)), min_size=1)
    )
    .map(lambda n: (*[Role.WEREWOLF] * n[0], *[Role.VILLAGER] * n[1], *sorted(n[2])))
    .filter(lambda roles: roles.count(Role.WEREWOLF) * 2 < len(roles)),
    wolf_win=st.sampled_from(["side_wiped", "parity"]),
    witch_self_save=st.sampled_from(["never", "first_night", "always"]),
    day_tie=st.sampled_from(["revote", "nobody"]),
    wolf_tie=st.sampled_from(["seeded", "none"]),
    self_vote=st.booleans(),
    max_days=st.integers(1, 6),
    guard_self=st.booleans(),
    guard_repeat=st.booleans(),
    guard_and_save=st.sampled_from(["dies", "lives"]),
    idiot_again=st.sampled_from(["immune", "exiled"]),
)  # fmt: skip


class Reckless:
    """Legal, illegal and absurd actions; checks every request."""

    def __init__(self, game: Game, rng: random.Random, legal_share: float) -> None:
        self.game, self.rng, self.legal_share = game, rng, legal_share

    def __call__(self, request: Request) -> Action:
        game, rng = self.game, self.rng
        assert request.role is game.roles[request.player]
        assert request.day == game.day
        assert game.winner is None
        assert game.alive[request.player] or request.kind in ("shoot", "last_words")
        assert all(game.alive[i] for i in request.legal)
        assert request.kind != "check" or not set(request.legal) & set(game.checked)
        if request.kind in ("vote", "day") and not game.options.self_vote:
            assert request.player not in request.legal
        if rng.random() < self.legal_share:
            target = rng.choice((None, *request.legal))
        else:
            target = rng.randrange(-2, len(game.roles) + 3)
        return Action(target, say=f"words {rng.random()}", save=rng.random() < 0.5)


def replay(game: Game) -> list[bool]:
    """Who should be alive, from the public events alone."""
    alive = [True] * len(game.roles)

    def dies(seat: int | None) -> None:
        assert seat is not None
        assert alive[seat], "nobody dies twice"
        alive[seat] = False

    for event in game.public:
        if event.kind == "deaths":
            for seat in event.players:
                dies(seat)
        elif event.kind in ("exile", "shot"):
            dies(event.target)
    return alive


def check_votes(game: Game, event: Event) -> None:
    voters = [v for v, _ in event.votes]
    assert len(set(voters)) == len(voters)
    assert all(t is None or t in event.players for _, t in event.votes)


@given(BOARDS, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]), st.sets(st.integers(0, 10)))
def test_any_actions_end_in_a_result_that_follows_from_what_was_announced(options, seed, legal_share, one_call):
    game = Game(seed, options, one_call=frozenset(i for i in one_call if i < len(options.roles)))
    rng = random.Random(seed)
    asked = play(game, Reckless(game, rng, legal_share))
    assert replay(game) == game.alive
    won = winner(options, game.roles, game.alive)
    assert game.winner == (won or "draw")
    if game.winner == "draw":
        assert (game.end_cause, game.day) == ("max_days", options.max_days)
    assert [e for e in game.events if e.kind == "game_over"] == game.events[-1:]
    assert game.events[-1].text == game.winner
    assert game.day <= options.max_days
    n = len(options.roles)
    assert len(asked) <= options.max_days * (4 * n + 7)
    saves = [e for e in game.events if e.kind == "witch_saved"]
    poisons = [e for e in game.events if e.kind == "witch_poisoned"]
    assert len(saves) <= 1
    assert len(poisons) <= 1
    assert not {e.day for e in saves} & {e.day for e in poisons}
    assert len([e for e in game.events if e.kind == "shot"]) <= 1
    for event in game.events:
        if event.kind == "votes":
            check_votes(game, event)
        if event.kind == "deaths":
            assert len(event.players) <= 2
    if legal_share == 1.0:
        assert sum(game.illegal.values()) == game.illegal["witch"]  # save and poison at once, a save of nobody
    assert game.public == [e for e in game.events if e.audience is None]


@given(BOARDS, st.integers(0, 2**32))
def test_the_same_seed_and_actions_play_the_same_game(options, seed):
    games = [Game(seed, options) for _ in range(2)]
    for game in games:
        play(game, Reckless(game, random.Random(seed), 0.7))
    assert games[0].events == games[1].events
    assert games[0].illegal == games[1].illegal


@given(BOARDS, st.integers(0, 2**32))
def test_a_seat_sees_public_events_and_its_own_and_the_wolves_share_theirs(options, seed):
    game = Game(seed, options)
    play(game, Reckless(game, random.Random(seed), 0.9))
    for seat, role in enumerate(game.roles):
        for event in game.visible(seat):
            if event.kind == "guarded":
                assert role is Role.GUARD
            elif event.kind in ("wolf_pick", "wolf_target", "teammates"):
                assert role is Role.WEREWOLF
            elif event.kind == "check":
                assert role is Role.SEER
            elif event.kind.startswith("witch"):
                assert role is Role.WITCH
            elif event.kind == "role":
                assert event.actor == seat
            else:
                assert event.audience is None
