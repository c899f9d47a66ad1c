"""Numbers of a game against games worked by hand, and what a wolf's words give away."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.envs.werewolves.baselines import play as play_baselines
from ajet.envs.werewolves.baselines import seer, wolf
from ajet.envs.werewolves.engine import Action, Game
from ajet.envs.werewolves.leaks import leak
from ajet.envs.werewolves.metrics import Tally, add, measure, shares
from ajet.envs.werewolves.rules import Role
from tests.unit.werewolves.table import HUNTER, SEER, V1, V2, V3, W1, W2, W3, WITCH, play, table, votes

WOLVES, GOOD = (W1, W2, W3), (SEER, WITCH, HUNTER, V1, V2, V3)


def one_by_hand() -> Game:
    """Night 1: two wolves attack the villager V1, one its fellow W2; the seer finds W1; the witch does nothing.
    Day 1: the seer claims and tells, W3 claims falsely; W1 is voted out by four of six good and its fellow W2 and says
    that W2 is its fellow. Night 2: W2 and W3 attack the seer; the witch poisons W2. Day 2: only W3 is left; the hunter
    is voted out (by two), shoots W3, and the good side wins."""
    game = table()
    says = {
        ("speak", 1): {
            SEER: Action(say="I am the seer. Player1 is a wolf."), W3: Action(say="I am the seer. Player7 is a wolf."),
            V2: Action(say="I suspect Player3."),
        },
        ("last_words", 1): {W1: Action(say="My teammate Player2 lives. I am a wolf.")},
    }  # fmt: skip
    does = {
        ("kill", 1): {W1: Action(V1), W2: Action(V1), W3: Action(W2)},
        ("check", 1): Action(W1),
        ("vote", 1): votes(V2, W1, V2, W1, W1, None, V1, W1, V2),
        ("kill", 2): Action(SEER),
        ("check", 2): Action(V2),
        ("witch", 2): Action(W2),
        ("vote", 2): {W3: Action(HUNTER), V2: Action(HUNTER), WITCH: Action(W3)},
        ("shoot", 2): Action(W3),
    }
    play(game, {**says, **does})
    assert game.winner == "good"
    return game


def test_a_game_by_hand():
    found = measure(one_by_hand())
    # V1 is dead on day 1: ballots of W1 W2 W3 SEER WITCH HUNTER V2 V3, where V3's own vote for V2 is the last.
    expected = {
        "werewolf/teammate_kill": Tally(1, 5), "werewolf/seer_kill": Tally(2, 5), "werewolf/claimer_kill": Tally(2, 2),
        "werewolf/teammate_night": Tally(0, 2), "werewolf/kill_agreement": Tally(2, 4),
        "werewolf/vote_agreement": Tally(1, 3), "werewolf/teammate_vote": Tally(1, 4),
        "werewolf/seer_claim": Tally(1, 4), "werewolf/gave_self_away": Tally(1, 5),
        "werewolf/gave_teammate_away": Tally(1, 5), "werewolf/vote_accuracy": Tally(3, 4),
        "werewolf/abstain": Tally(0, 4), "werewolf/wolf_exile_vote": Tally(1, 2), "werewolf/survival": Tally(0, 3),
        "werewolf/win": Tally(0, 1), "werewolf/draw": Tally(0, 1),
        "seer/hit": Tally(1, 2), "seer/claim": Tally(1, 1), "seer/first_claim_day": Tally(1, 1),
        "seer/claim_survival": Tally(0, 1), "seer/report": Tally(1, 1), "seer/false_report": Tally(0, 1),
        "seer/known_wolf_vote": Tally(1, 1), "seer/vote_accuracy": Tally(1, 1), "seer/wolf_exile_vote": Tally(1, 1),
        "seer/survival": Tally(0, 1), "seer/win": Tally(1, 1),
        "witch/poison_precision": Tally(1, 1), "witch/poison_used": Tally(1, 1), "witch/save_used": Tally(0, 1),
        "witch/vote_accuracy": Tally(2, 2), "witch/survival": Tally(1, 1),
        "hunter/shot": Tally(1, 1), "hunter/shot_precision": Tally(1, 1), "hunter/survival": Tally(0, 1),
        "villager/wolf_exile_vote": Tally(1, 2), "villager/vote_accuracy": Tally(1, 3), "villager/survival": Tally(2, 3),
        "villager/win": Tally(1, 1),
        "game/days": Tally(2, 1), "game/draw": Tally(0, 1), "game/exile_hit": Tally(1, 2),
        "game/end_wolves_dead": Tally(1, 1), "game/end_max_days": Tally(0, 1),
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert "witch/save_good" not in found


def test_only_the_seats_asked_for_are_measured():
    game = one_by_hand()
    found = measure(game, [SEER])
    assert {name.split("/")[0] for name in found} == {"seer", "game"}
    whole = measure(game)
    assert {k: whole[k] for k in found} == found


def test_a_saved_victim_and_a_hunter_who_may_not_shoot():
    game = table(max_days=1)
    play(game, {("kill", 1): Action(W1), ("witch", 1): Action(save=True)})
    found = measure(game)
    assert found["witch/save_good"] == Tally(0, 1)  # a wolf that its own pack attacked
    assert found["werewolf/teammate_night"] == Tally(1, 1)
    assert found["game/end_max_days"] == Tally(1, 1)
    poisoned = table(max_days=1)
    play(poisoned, {("kill", 1): Action(V1), ("witch", 1): Action(HUNTER)})
    assert "hunter/shot" not in measure(poisoned)
    killed = table(max_days=1)
    play(killed, {("kill", 1): Action(HUNTER)})
    assert measure(killed)["hunter/shot"] == Tally(0, 1)
    assert "hunter/shot_precision" not in measure(killed)
    last = table(dead=(V1, V2, SEER, WITCH), max_days=1)
    play(last, {("kill", 1): Action(HUNTER)})  # the wolves have won before he could
    assert "hunter/shot" not in measure(last)


def test_a_claim_is_survived_when_the_next_morning_finds_her_alive():
    claim = Action(say="I am the seer. Player2 is a wolf.")
    for attacked, alive in ((SEER, 0), (V1, 1)):
        game = table(max_days=2)
        play(game, {("check", 1): Action(W2), ("speak", 1): {SEER: claim}, ("kill", 2): Action(attacked)})
        assert measure(game)["seer/claim_survival"] == Tally(alive, 1)
    exiled = table(max_days=1)
    out = {("speak", 1): {SEER: claim}, ("vote", 1): {seat: Action(SEER) for seat in WOLVES}}
    play(exiled, out)
    assert measure(exiled)["seer/claim_survival"] == Tally(0, 1)
    ended = table(max_days=1)
    play(ended, {("speak", 1): {SEER: claim}})
    assert "seer/claim_survival" not in measure(ended)


def test_a_revote_without_a_wolf_asks_nothing_of_the_good_and_known_wolves_count_only_where_they_stand():
    game = table(max_days=1)
    play(game, {("check", 1): Action(W1), ("vote", 1): votes(V1, V1, None, V2, V2)})
    found = measure(game)
    # V1 and V2 tie, and the seer votes for V2 both times; the second time no wolf could be named.
    assert found["seer/vote_accuracy"] == Tally(0, 1)
    assert found["seer/known_wolf_vote"] == Tally(0, 1)
    assert found["seer/abstain"] == Tally(0, 2)


def test_replies_of_models_are_counted_by_role():
    game = one_by_hand()
    asked = {
        W1: SimpleNamespace(outcomes=Counter(valid=3, repaired=1), calls=6, truncated=1),
        W2: SimpleNamespace(outcomes=Counter(fallback=2), calls=2, truncated=2),
    }
    found = measure(game, asked, asked)
    assert found["werewolf/valid"] == Tally(3, 6)
    assert found["werewolf/repaired"] == Tally(1, 6)
    assert found["werewolf/fallback"] == Tally(2, 6)
    assert found["werewolf/truncated"] == Tally(3, 8)
    assert found["werewolf/calls"] == Tally(8, 2)


@given(st.integers(0, 10_000))
def test_shares_of_any_game_lie_between_0_and_1_and_roles_add_up(seed):
    game = play_baselines(seed, {Role.WEREWOLF: wolf(), Role.SEER: seer()})
    found = measure(game)
    unbounded = ("speech_chars", "days", "first_claim_day", "calls")
    assert all(0 <= t.total <= t.n for name, t in found.items() if not name.endswith(unbounded)), found
    assert sum(t.total for name, t in found.items() if name.startswith("game/end_")) == 1
    assert found["werewolf/win"].total + found["seer/win"].total + found["game/draw"].total == 1
    alive = sum(t.total for name, t in found.items() if name.endswith("/survival"))
    assert alive == sum(game.alive)
    apart: dict[str, Tally] = {}
    for seat in range(9):
        add(apart, {k: t for k, t in measure(game, [seat]).items() if k.endswith(("/vote_accuracy", "/abstain"))})
    assert apart == {k: t for k, t in found.items() if k.endswith(("/vote_accuracy", "/abstain"))}


def test_adding_up_weighs_by_what_was_counted():
    tallies: dict[str, Tally] = {}
    add(tallies, {"x": Tally(1, 1)})
    add(tallies, {"x": [0, 3], "y": [0, 0]})
    assert shares(tallies) == {"x": 0.25}


def test_habits_show_in_the_numbers():
    def over(baseline, name):
        tallies: dict[str, Tally] = {}
        for seed in range(60):
            add(tallies, measure(play_baselines(seed, {Role.WEREWOLF: baseline})))
        return shares(tallies)[name]

    assert over(wolf("spare_kill"), "werewolf/teammate_kill") == 0 < over(wolf(), "werewolf/teammate_kill")
    assert over(wolf("spare_vote"), "werewolf/teammate_vote") == 0 < over(wolf(), "werewolf/teammate_vote")
    assert over(wolf("quiet"), "werewolf/seer_claim") == 0 < over(wolf("claim"), "werewolf/seer_claim")
    assert over(wolf("agree"), "werewolf/kill_agreement") > over(wolf(), "werewolf/kill_agreement") + 0.2


# ── what words give away ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    ["I am a wolf.", "Fine: I'm one of the werewolves!", "We wolves have won.", "My fellow wolf is safe.",
     "We killed Player4 last night.", "As a werewolf I vote for Player2.", "我是狼人。", "我是一只狼", "我们狼人赢了", "昨晚我们刀了3号"],
)  # fmt: skip
def test_confessions(text):
    assert leak(text).confesses


@pytest.mark.parametrize(
    "text",
    ["I am not a wolf.", "I am the seer. Player3 is a wolf.", "Player2 says I am a wolf.", "If I were a wolf I would hide.",
     "They think that I am a werewolf, which is absurd.", "I suspect Player3.", "The wolves killed Player4.", "", "I am a villager.",
     "我不是狼人。", "3号说我是狼人。", "如果我是狼人", "我是村民。", "我是预言家，3号是狼人。", "I never said I am a wolf"],
)  # fmt: skip
def test_no_confessions(text):
    assert not leak(text).confesses


@pytest.mark.parametrize(
    ("text", "seats"),
    [("I am the seer. Player3 is a wolf.", {2}), ("My teammate Player2 lives.", {1}), ("Player4 is my fellow wolf.", {3}),
     ("Player5 and I are wolves", {4}), ("3号是狼人", {2}), ("我的同伴3号很安全", {2}), ("2号是我的狼队友", {1}), ("2号和我都是狼", {1}),
     ("I suspect Player3.", set()), ("Player3 is good.", set()), ("Player3 is not a wolf.", set()), ("3号不是狼人", set())],
)  # fmt: skip
def test_seats_that_words_call_wolves(text, seats):
    assert leak(text).names == seats


# ── every role on every seat ─────────────────────────────────────────────────────────────────────────────────────────


def test_nine_rotations_of_a_deal_seat_every_role_everywhere_as_often():
    seated = Counter(
        (role, seat) for rotation in range(9) for seat, role in enumerate(Game("d", rotation=rotation).roles)
    )
    times = Counter(Game("d").roles)
    assert seated == {(role, seat): times[role] for role in times for seat in range(9)}
    assert Game("d", rotation=9).roles == Game("d").roles
    turned = Game("d", rotation=1)
    assert turned.roles == (Game("d").roles[-1], *Game("d").roles[:-1])
    assert turned.wolves == {i for i, role in enumerate(turned.roles) if role is Role.WEREWOLF}
