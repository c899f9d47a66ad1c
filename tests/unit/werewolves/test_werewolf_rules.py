"""Every row, option and vector of the rule book, against the engine."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from ajet.envs.werewolves.baselines import play as scripted_game
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.rules import NINE_PLAYERS, BoardOptions, Role, winner
from ajet.schema.errors import ConfigError
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
    votes,
)

SIDE_WIPED, PARITY = BoardOptions(), BoardOptions(wolf_win="parity")


def living(wolves: int, villagers: int, gods: int) -> tuple[tuple[Role, ...], list[bool]]:
    roles = (
        *[Role.WEREWOLF] * max(wolves, 1),
        *[Role.VILLAGER] * max(villagers, 1),
        Role.SEER, Role.WITCH, Role.HUNTER,
    )  # fmt: skip
    alive = [i < wolves for i in range(max(wolves, 1))] + [i < villagers for i in range(max(villagers, 1))]
    return roles, alive + [i < gods for i in range(3)]


# ── who has won ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wolves", "villagers", "gods", "side_wiped", "parity"),
    [
        (2, 0, 3, "wolf", None),
        (2, 1, 1, None, "wolf"),
        (1, 3, 0, "wolf", None),
        (0, 0, 0, "good", "good"),
        (0, 3, 3, "good", "good"),
        (0, 0, 3, "good", "good"),
        (1, 0, 1, "wolf", "wolf"),
        (3, 3, 3, None, None),
        (3, 1, 2, None, "wolf"),
        (1, 1, 1, None, None),
    ],
)
def test_winner_follows_the_vectors(wolves, villagers, gods, side_wiped, parity):
    roles, alive = living(wolves, villagers, gods)
    assert winner(SIDE_WIPED, roles, alive) == side_wiped
    assert winner(PARITY, roles, alive) == parity


def test_the_board_is_three_wolves_three_villagers_seer_witch_hunter():
    assert Counter(BoardOptions().roles) == {
        Role.WEREWOLF: 3, Role.VILLAGER: 3, Role.SEER: 1, Role.WITCH: 1, Role.HUNTER: 1,
    }  # fmt: skip
    assert Counter(Game(7).roles) == Counter(NINE_PLAYERS)


def test_defaults_are_those_of_the_rule_book():
    options = BoardOptions()
    assert (options.wolf_win, options.witch_self_save, options.day_tie, options.wolf_tie, options.max_days) == (
        "side_wiped", "never", "revote", "seeded", 12,
    )  # fmt: skip
    assert not options.self_vote


@pytest.mark.parametrize(
    "bad",
    [
        {"roles": (Role.VILLAGER, Role.SEER)},
        {"roles": (Role.WEREWOLF, Role.WEREWOLF, Role.SEER)},
        {"roles": (Role.WEREWOLF, Role.SEER, Role.SEER, Role.VILLAGER), "wolf_win": "parity"},
        {"roles": (Role.WEREWOLF, Role.SEER, Role.WITCH)},
        {"max_days": 0},
    ],
)
def test_impossible_boards_are_refused(bad):
    with pytest.raises(ConfigError):
        BoardOptions(**bad)


# ── the last wolf ────────────────────────────────────────────────────────────────────────────────────────────────


def assert_good_won_at_once(game: Game, asked: list[Request], last: str) -> None:
    assert game.winner == "good"
    assert game.end_cause == "wolves_dead"
    assert game.events[-1].kind == "game_over"
    assert game.events[-1].text == "good"
    assert game.events[-2].kind == last
    assert len(kinds(game, "game_over")) == 1


def test_exile_of_the_last_wolf_ends_the_game_at_once():
    game = table("wvvsih")
    asked = play(game, {("vote", 1): Action(0)})
    assert_good_won_at_once(game, asked, "exile")
    assert not [r for r in asked if r.kind == "last_words"]
    assert asked[-1].kind == "vote"


def test_poisoning_of_the_last_wolf_ends_the_game_at_once():
    game = table("wvvsih")
    asked = play(game, {("witch", 1): Action(0)})
    assert_good_won_at_once(game, asked, "deaths")
    assert asked[-1].kind == "witch"


def test_the_hunter_shooting_the_last_wolf_at_night_ends_the_game_at_once():
    game = table("wvvsih")
    asked = play(game, {("kill", 1): Action(5), ("shoot", 1): Action(0)})
    assert_good_won_at_once(game, asked, "shot")
    assert asked[-1].kind == "shoot"


def test_the_exiled_hunter_shooting_the_last_wolf_ends_the_game_at_once():
    game = table("wvvsih")
    asked = play(game, {("vote", 1): Action(5), ("shoot", 1): Action(0)})
    assert_good_won_at_once(game, asked, "shot")
    assert [r.kind for r in asked[-2:]] == ["last_words", "shoot"]


def test_everyone_dead_is_a_good_win():
    game = table("wvsi", dead=(1, 2))  # one wolf, one witch; they kill each other
    play(game, {("kill", 1): Action(3), ("witch", 1): Action(0)})
    assert not any(game.alive)
    assert (game.winner, game.events[-1].text) == ("good", "good")


def test_wolves_win_at_once_when_the_last_god_dies_even_if_it_is_the_hunter():
    game = table("wwvvvh")
    asked = play(game, {("kill", 1): Action(5)})
    assert (game.winner, game.end_cause) == ("wolf", "side_wiped")
    assert not [r for r in asked if r.kind in ("shoot", "last_words")]


def test_reaching_max_days_is_a_draw_after_that_days_vote():
    game = table(max_days=3)
    asked = play(game)
    assert (game.winner, game.end_cause, game.day) == ("draw", "max_days", 3)
    assert len([r for r in asked if r.kind == "vote"]) == 27
    assert game.events[-1].text == "draw"


# ── witch ────────────────────────────────────────────────────────────────────────────────────────────────────────


def witch_request(asked: list[Request], day: int = 1) -> Request:
    return next(r for r in asked if r.kind == "witch" and r.day == day)


def test_the_witch_sees_the_victim_only_while_she_holds_the_antidote():
    game = table(max_days=2)
    asked = play(game, {("kill", 1): Action(V1), ("witch", 1): Action(save=True), ("kill", 2): Action(V2)})
    assert witch_request(asked, 1).victim == V1
    assert witch_request(asked, 2).victim is None
    assert not witch_request(asked, 2).may_save
    assert [e.day for e in kinds(game, "witch_sees")] == [1]
    assert night_deaths(game) == {1: (), 2: (V2,)}


def test_save_and_poison_on_one_night_are_not_allowed_and_counted():
    game = table(max_days=1)
    play(game, {("kill", 1): Action(V1), ("witch", 1): Action(W1, save=True)})
    assert night_deaths(game) == {1: ()}
    assert game.poison
    assert game.illegal["witch"] == 1


@pytest.mark.parametrize(
    ("option", "day", "saved"),
    [
        ("never", 1, False),
        ("first_night", 1, True),
        ("first_night", 2, False),
        ("always", 1, True),
        ("always", 2, True),
    ],
)
def test_self_save_follows_its_option(option, day, saved):
    game = table(max_days=day, witch_self_save=option)
    asked = play(game, {("kill", day): Action(WITCH), ("witch", day): Action(save=True)})
    assert witch_request(asked, day).may_save is saved
    assert game.alive[WITCH] is saved
    assert game.illegal["witch"] == (not saved)


def test_an_attacked_witch_who_did_not_use_the_antidote_may_still_poison():
    game = table(max_days=1)
    play(game, {("kill", 1): Action(WITCH), ("witch", 1): Action(W1)})
    assert night_deaths(game) == {1: (WITCH, W1)}


def test_each_potion_works_once():
    game = table(max_days=3)
    script = {("kill", d): Action(V1) for d in (1, 2)} | {
        ("witch", d): Action(W1 if d > 1 else None, save=d == 1) for d in (1, 2, 3)
    }
    asked = play(game, script)
    assert night_deaths(game) == {1: (), 2: (V1, W1), 3: ()}
    assert [r.day for r in asked if r.kind == "witch"] == [1, 2]  # nothing left to ask on the third night


def test_the_witch_may_not_poison_herself_or_the_dead():
    game = table(max_days=2)
    asked = play(game, {("kill", 1): Action(V1), ("witch", 1): Action(WITCH), ("witch", 2): Action(V1)})
    assert WITCH not in witch_request(asked).legal
    assert V1 not in witch_request(asked, 2).legal
    assert game.illegal["witch"] == 2
    assert game.poison


def test_a_save_where_nobody_was_attacked_keeps_the_antidote():
    game = table(max_days=1)
    play(game, {("witch", 1): Action(save=True)})
    assert game.antidote
    assert game.illegal["witch"] == 1


# ── hunter ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hunter_who_was_saved_lives_and_does_not_shoot():
    game = table(max_days=1)
    asked = play(game, {("kill", 1): Action(HUNTER), ("witch", 1): Action(save=True), ("shoot", 1): Action(W1)})
    assert game.alive[HUNTER]
    assert not [r for r in asked if r.kind == "shoot"]


def test_a_hunter_both_attacked_and_poisoned_does_not_shoot_and_has_no_last_words():
    game = table(max_days=1)
    asked = play(game, {("kill", 1): Action(HUNTER), ("witch", 1): Action(HUNTER)})
    assert night_deaths(game) == {1: (HUNTER,)}
    assert not [r for r in asked if r.kind in ("shoot", "last_words")]


def test_a_poisoned_hunter_does_not_shoot():
    game = table(max_days=1)
    asked = play(game, {("witch", 1): Action(HUNTER)})
    assert night_deaths(game) == {1: (HUNTER,)}
    assert not [r for r in asked if r.kind == "shoot"]


def test_attack_poison_and_shot_are_three_deaths_in_that_order():
    game = table(max_days=1)
    asked = play(game, {("kill", 1): Action(HUNTER), ("witch", 1): Action(V1), ("shoot", 1): Action(W2)})
    told = [(e.kind, e.players or (e.actor, e.target)) for e in kinds(game, "deaths", "shot")]
    assert told == [("deaths", (HUNTER, V1)), ("shot", (HUNTER, W2))]
    assert [i for i, lives in enumerate(game.alive) if not lives] == [W2, HUNTER, V1]
    shot = next(r for r in asked if r.kind == "shoot")
    assert not {HUNTER, V1} & set(shot.legal)  # only at the living


def test_an_exiled_hunter_shoots_publicly():
    game = table(max_days=1)
    play(game, {("vote", 1): Action(HUNTER), ("shoot", 1): Action(W1)})
    assert [(e.actor, e.target, e.audience) for e in kinds(game, "shot")] == [(HUNTER, W1, None)]


@pytest.mark.parametrize("target", [HUNTER, V1, 44])
def test_a_shot_at_oneself_the_dead_or_no_seat_hits_nobody_and_is_counted(target):
    game = table(max_days=1)
    play(game, {("kill", 1): Action(HUNTER), ("witch", 1): Action(V1), ("shoot", 1): Action(target)})
    assert not kinds(game, "shot")
    assert game.illegal["hunter"] == 1


def test_the_hunter_may_hold_fire():
    game = table(max_days=1)
    play(game, {("kill", 1): Action(HUNTER)})
    assert not kinds(game, "shot")
    assert not game.illegal


# ── seer ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_seer_learns_good_or_wolf_and_never_the_role():
    game = table(max_days=2)
    play(game, {("check", 1): Action(W2), ("check", 2): Action(HUNTER)})
    learned = kinds(game, "check")
    assert [(e.target, e.is_wolf, e.text) for e in learned] == [(W2, True, ""), (HUNTER, False, "")]


def test_the_seer_may_check_only_living_others_and_nobody_twice():
    game = table(max_days=3)
    asked = play(
        game, {("kill", 1): Action(V1), ("check", 1): Action(W1), ("check", 2): Action(W1), ("check", 3): Action(SEER)}
    )
    legal = {r.day: r.legal for r in asked if r.kind == "check"}
    assert SEER not in legal[1]
    assert W1 not in legal[2]
    assert V1 not in legal[2]
    assert game.illegal["seer"] == 2
    assert len(kinds(game, "check")) == 1


def test_a_seer_killed_tonight_still_checks_first_and_a_dead_one_never():
    game = table(max_days=2)
    asked = play(game, {("kill", 1): Action(SEER), ("check", 1): Action(W1)})
    assert [r.day for r in asked if r.kind == "check"] == [1]


# ── wolves ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wolves_may_name_any_living_player_a_wolf_included_or_nobody():
    game = table(max_days=2)
    asked = play(game, {("kill", 1): {W1: Action(W2), W2: Action(W2)}})
    assert next(r for r in asked if r.kind == "kill").legal == tuple(range(9))
    assert night_deaths(game) == {1: (W2,), 2: ()}
    assert not game.illegal


@pytest.mark.parametrize("wolf_tie", ["seeded", "none"])
def test_the_majority_of_the_wolves_decides(wolf_tie):
    game = table(max_days=1, wolf_tie=wolf_tie)
    play(game, {("kill", 1): {W1: Action(V1), W2: Action(V2), W3: Action(V2)}})
    assert night_deaths(game) == {1: (V2,)}


def test_a_tie_of_the_wolves_is_drawn_among_the_tied_by_the_games_own_generator():
    def victim(seed: int) -> int:
        game = table(seed=seed, max_days=1)
        play(game, {("kill", 1): {W1: Action(V1), W2: Action(V2), W3: Action(V3)}})
        return night_deaths(game)[1][0]

    drawn = [victim(seed) for seed in range(40)]
    assert set(drawn) == {V1, V2, V3}
    assert drawn == [victim(seed) for seed in range(40)]


def test_a_tie_of_the_wolves_kills_nobody_where_the_board_says_so():
    game = table(max_days=1, wolf_tie="none")
    play(game, {("kill", 1): {W1: Action(V1), W2: Action(V2)}})
    assert night_deaths(game) == {1: ()}


# ── day ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tie_leads_to_a_revote_among_the_tied_by_the_others():
    game = table(max_days=1)
    a, b, c = V1, V2, V3

    def answer(request: Request) -> Action:
        if request.kind != "vote":
            return Action()
        if request.revote:
            return Action(c)
        return {0: Action(a), 1: Action(b), 2: Action(b), 3: Action(c), 4: Action(c)}.get(request.player, Action())

    asked = play(game, answer)
    assert kinds(game, "tie")[0].players == (b, c)
    again = [r for r in asked if r.kind == "vote" and r.revote]
    assert {r.player for r in again} == set(range(9)) - {b, c}
    assert all(r.legal == (b, c) for r in again)
    assert [r.player for r in asked if r.kind == "speak" and r.revote] == [b, c]
    assert exiled(game) == [(1, c)]


def test_a_second_tie_exiles_nobody():
    game = table(max_days=1)
    play(game, {("vote", 1): {0: Action(V1), 1: Action(V2)}})
    assert [len(e.players) for e in kinds(game, "tie", "votes")] == [9, 2, 2]
    assert exiled(game) == []
    assert kinds(game, "no_exile")


def test_a_tie_exiles_nobody_at_once_where_the_board_says_so():
    game = table(max_days=1, day_tie="nobody")
    asked = play(game, {("vote", 1): {0: Action(V1), 1: Action(V2)}})
    assert not [r for r in asked if r.revote]
    assert exiled(game) == []


def test_a_tie_of_everybody_leaves_no_voters_and_exiles_nobody():
    game = table("wvvs", max_days=1)
    play(game, {("vote", 1): votes(1, 2, 3, 0)})
    assert exiled(game) == []


@pytest.mark.parametrize("self_vote", [False, True])
def test_a_vote_for_oneself_counts_only_where_the_board_allows_it(self_vote):
    game = table(max_days=1, self_vote=self_vote)
    play(game, {("vote", 1): {V1: Action(V1)}})
    assert exiled(game) == ([(1, V1)] if self_vote else [])
    assert game.illegal["villager"] == (not self_vote)


def test_abstaining_is_allowed_and_not_counted_as_invalid():
    game = table(max_days=1)
    play(game)
    assert exiled(game) == []
    assert not game.illegal


def test_votes_are_secret_until_all_have_voted():
    game = table(max_days=1)
    seen: list[int] = []

    def answer(request: Request) -> Action:
        if request.kind == "vote":
            seen.append(len(kinds(game, "votes")))
        return Action(V1 if request.kind == "vote" and request.player != V1 else None)

    play(game, answer)
    assert seen == [0] * 9
    assert dict(kinds(game, "votes")[0].votes) == {i: None if i == V1 else V1 for i in range(9)}


def test_a_vote_given_with_the_speech_stays_secret_until_the_vote():
    game = table(max_days=1)
    game.one_call = frozenset({W1, SEER})
    heard: list[str] = []

    def answer(request: Request) -> Action:
        heard.append(str([e for e in game.events if e.kind in ("speech", "votes")]))
        if request.kind == "day":
            return Action(V3, say="hello")
        return Action()

    asked = play(game, answer)
    assert {r.player for r in asked if r.kind == "day"} == {W1, SEER}
    assert {r.player for r in asked if r.kind == "vote"} == set(range(9)) - {W1, SEER}
    assert dict(kinds(game, "votes")[0].votes)[SEER] == V3
    assert all(e.target is None for e in kinds(game, "speech"))
    assert exiled(game) == [(1, V3)]


def test_first_night_victim_and_exiled_have_last_words_others_have_none():
    game = table(max_days=2)
    script = {
        ("kill", 1): Action(HUNTER), ("witch", 1): Action(V1), ("shoot", 1): Action(W1), ("vote", 1): Action(V2),
        ("kill", 2): Action(SEER),
    }  # fmt: skip
    asked = play(game, script)
    assert [(r.day, r.player) for r in asked if r.kind == "last_words"] == [(1, HUNTER), (1, V2)]


def test_everybody_alive_speaks_once_in_turn_from_a_drawn_seat():
    def order(seed: int) -> list[int]:
        game = table(seed=seed, max_days=1)
        return [r.player for r in play(game, {("kill", 1): Action(V1)}) if r.kind == "speak"]

    starts = set()
    for seed in range(30):
        seats = order(seed)
        turn = seats.index(min(seats))
        assert seats[turn:] + seats[:turn] == [0, 1, 2, 3, 4, 5, 7, 8]
        starts.add(seats[0])
        assert order(seed) == seats
    assert len(starts) > 4


# ── the deal ─────────────────────────────────────────────────────────────────────────────────────────────────────

_DEALS = """
import json, random
from ajet.envs.werewolves.baselines import play
random.seed()
games = [play(n) for n in range(8)]
print(json.dumps([[[r.value for r in g.roles], g.winner, g.day, [str(e) for e in g.public]] for g in games]))
"""


def in_another_process(hash_seed: str) -> list:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _DEALS], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_the_same_seed_plays_the_same_in_other_processes_under_any_hash_seed():
    first = in_another_process("1")
    assert in_another_process("4242") == first
    assert [deal for deal, *_ in first] == [[r.value for r in Game(n).roles] for n in range(8)]


def test_the_same_seed_deals_the_same_in_64_threads_at_once():
    with ThreadPoolExecutor(64) as pool:
        deals = list(pool.map(lambda n: Game(n % 4).roles, range(256)))
    assert all(deals[n] == Game(n % 4).roles for n in range(256))
    assert len(set(deals)) == 4


def test_the_play_seed_leaves_the_deal_alone():
    assert Game(5, play_seed="a").roles == Game(5, play_seed="b").roles
    assert Game(5, play_seed="a").rng.random() != Game(5, play_seed="b").rng.random()


def test_no_global_generator_is_read_or_moved():
    random.seed(1)
    before = random.getstate()
    first = [(e.kind, e.actor, e.target) for e in scripted_game(3).events]
    assert random.getstate() == before
    random.seed(2)
    assert [(e.kind, e.actor, e.target) for e in scripted_game(3).events] == first


@pytest.mark.parametrize("target", [-1, 9, 44])
def test_a_vote_for_no_seat_is_an_abstention_and_counted(target):
    game = table(max_days=1)
    play(game, {("vote", 1): {V1: Action(target), V2: Action(V3), V3: Action(None)}})
    assert dict(kinds(game, "votes")[0].votes)[V1] is None
    assert exiled(game) == [(1, V3)]
    assert game.illegal == {"villager": 1}


def test_a_wolf_may_attack_itself_and_everybody_may_be_poisoned_but_the_witch_herself():
    game = table(max_days=1)
    asked = play(game, {("kill", 1): Action(W1)})
    assert night_deaths(game) == {1: (W1,)}
    assert witch_request(asked).legal == tuple(i for i in range(9) if i != WITCH)
