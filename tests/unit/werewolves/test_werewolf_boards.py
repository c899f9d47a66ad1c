"""Other boards: guard and idiot by their options, and how a user says which board to play."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.envs.werewolves.baselines import play as play_scripted
from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.compact import compact_reply, compact_text, parse_compact
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.full import Conversation, rules_text
from ajet.envs.werewolves.presets import PRESETS, board_options, board_text
from ajet.envs.werewolves.replies import parse_reply
from ajet.envs.werewolves.rules import NINE_PLAYERS, BoardOptions, Role
from ajet.envs.werewolves.scripted import ScriptedPlayer, name
from ajet.schema.errors import ConfigError
from tests.unit.werewolves.table import exiled, kinds, night_deaths, play, table

TEN = "wwwsihgdvv"
W1, W2, W3, SEER, WITCH, HUNTER, GUARD, IDIOT, V1, V2 = range(10)


# ── guard ────────────────────────────────────────────────────────────────────────────────────────────────────────


def protects(asked: list[Request]) -> dict[int, tuple[int, ...]]:
    """Night → whom the guard might protect."""
    return {r.day: r.legal for r in asked if r.kind == "protect"}


def test_a_protected_player_survives_the_wolves_and_nobody_else_learns_why():
    game = table(TEN, max_days=1)
    play(game, {("kill", 1): Action(V1), ("protect", 1): Action(V1)})
    assert night_deaths(game) == {1: ()}
    assert [(e.actor, e.target, e.audience) for e in kinds(game, "guarded")] == [(GUARD, V1, frozenset({GUARD}))]


def test_protection_is_only_for_the_night_it_was_given():
    game = table(TEN, max_days=2)
    play(game, {("protect", 1): Action(V1), ("kill", 2): Action(V1)})
    assert night_deaths(game) == {1: (), 2: (V1,)}


@pytest.mark.parametrize("repeat", [False, True])
def test_the_same_player_twice_running_only_where_the_board_allows_it(repeat):
    game = table(TEN, max_days=3, guard_repeat=repeat)
    script = {("protect", d): Action(V1) for d in (1, 2)} | {("kill", 2): Action(V1)}
    asked = play(game, script)
    assert (V1 in protects(asked)[2]) is repeat
    assert game.alive[V1] is repeat
    assert game.illegal["guard"] == (0 if repeat else 1)


def test_after_a_night_without_protection_the_same_player_may_be_protected_again():
    game = table(TEN, max_days=3)
    asked = play(game, {("protect", 1): Action(V1), ("protect", 3): Action(V1), ("kill", 3): Action(V1)})
    assert V1 not in protects(asked)[2]
    assert night_deaths(game)[3] == ()
    assert not game.illegal


@pytest.mark.parametrize("allowed", [False, True])
def test_the_guard_protects_himself_only_where_the_board_allows_it(allowed):
    game = table(TEN, max_days=1, guard_self=allowed)
    asked = play(game, {("protect", 1): Action(GUARD), ("kill", 1): Action(GUARD)})
    assert (GUARD in protects(asked)[1]) is allowed
    assert game.alive[GUARD] is allowed


@pytest.mark.parametrize(("option", "lives"), [("dies", False), ("lives", True)])
def test_protected_and_saved_at_once_dies_or_lives_by_its_option(option, lives):
    game = table(TEN, max_days=1, guard_and_save=option)
    play(game, {("protect", 1): Action(V1), ("kill", 1): Action(V1), ("witch", 1): Action(save=True)})
    assert game.alive[V1] is lives
    assert not game.antidote


def test_a_hunter_who_was_protected_and_saved_dies_by_the_wolves_and_shoots():
    game = table(TEN, max_days=1)
    script = {("protect", 1): Action(HUNTER), ("kill", 1): Action(HUNTER), ("witch", 1): Action(save=True)}
    play(game, script | {("shoot", 1): Action(W1)})
    assert [(e.actor, e.target) for e in kinds(game, "shot")] == [(HUNTER, W1)]


def test_protection_does_not_help_against_poison():
    game = table(TEN, max_days=1)
    play(game, {("protect", 1): Action(V1), ("witch", 1): Action(V1)})
    assert night_deaths(game) == {1: (V1,)}


def test_the_witch_is_shown_a_protected_victim():
    game = table(TEN, max_days=1)
    asked = play(game, {("protect", 1): Action(V1), ("kill", 1): Action(V1)})
    assert next(r for r in asked if r.kind == "witch").victim == V1


def test_the_guard_is_asked_first_may_pass_and_never_when_dead():
    game = table(TEN, max_days=2)
    asked = play(game, {("kill", 1): Action(GUARD)})
    assert asked[0].kind == "protect"
    assert protects(asked).keys() == {1}
    assert not game.illegal


def test_a_guard_with_nobody_left_to_protect_is_not_asked():
    game = table("wgvv", dead=(2,), guard_self=False, max_days=2)
    asked = play(game, {("protect", 1): Action(0), ("kill", 1): Action(None)})
    assert protects(asked) == {1: (0, 3), 2: (3,)}
    game = table("wgv", guard_self=False, max_days=2, wolf_win="parity")
    game.guarded, game.alive[2] = 0, False
    assert play(game)[0].kind == "kill"


# ── idiot ────────────────────────────────────────────────────────────────────────────────────────────────────────


def exile_idiot(option: str = "immune", days: int = 2, again: bool = True) -> tuple[Game, list[Request]]:
    game = table(TEN, max_days=days, idiot_again=option)
    return game, play(game, lambda r: Action(IDIOT) if r.kind == "vote" and (again or r.day == 1) else Action())


def test_a_voted_out_idiot_reveals_himself_and_lives_on_without_a_vote_but_with_his_voice():
    game, asked = exile_idiot()
    assert [(e.day, e.actor, e.audience) for e in kinds(game, "idiot")] == [(1, IDIOT, None)]
    assert exiled(game) == []
    assert game.alive[IDIOT]
    assert not [r for r in asked if r.kind == "last_words"]
    assert [r.day for r in asked if r.kind == "speak" and r.player == IDIOT] == [1, 2]
    assert [r.day for r in asked if r.kind == "vote" and r.player == IDIOT] == [1]
    assert IDIOT not in dict(kinds(game, "votes")[1].votes)


def test_a_revealed_idiot_may_not_be_voted_for_by_default():
    game, asked = exile_idiot()
    assert all(IDIOT not in r.legal for r in asked if r.kind == "vote" and r.day == 2)
    assert sum(game.illegal.values()) == 1 + 9  # his own vote for himself, then nine for a man who is immune


def test_a_revealed_idiot_is_exiled_the_next_time_where_the_board_says_so():
    game, asked = exile_idiot("exiled", days=3)
    assert exiled(game) == [(2, IDIOT)]
    assert len(kinds(game, "idiot")) == 1
    assert [(r.day, r.player) for r in asked if r.kind == "last_words"] == [(2, IDIOT)]


def test_a_revealed_idiot_asked_in_one_call_only_speaks():
    game = table(TEN, max_days=2)
    game.one_call = frozenset(range(10))
    asked = play(game, lambda r: Action(IDIOT, say="hm") if r.kind == "day" and r.day == 1 else Action())
    assert [(r.day, r.kind) for r in asked if r.player == IDIOT and r.kind in ("day", "speak")] == [
        (1, "day"), (2, "speak"),
    ]  # fmt: skip


def test_a_revealed_idiot_has_no_vote_in_a_revote_either():
    game = table(TEN, max_days=2)

    def answer(request: Request) -> Action:
        if request.kind != "vote":
            return Action()
        return Action(IDIOT if request.day == 1 else {0: V1, 1: V2}.get(request.player))

    asked = play(game, answer)
    again = [r.player for r in asked if r.kind == "vote" and r.revote]
    assert sorted(again) == [i for i in range(10) if i not in (IDIOT, V1, V2)]


def test_an_idiot_killed_at_night_or_shot_dies_like_anybody():
    game = table(TEN, max_days=1)
    play(game, {("kill", 1): Action(IDIOT)})
    assert night_deaths(game) == {1: (IDIOT,)}
    game = table(TEN, max_days=1)
    play(game, {("vote", 1): Action(HUNTER), ("shoot", 1): Action(IDIOT)})
    assert not game.alive[IDIOT]
    assert not kinds(game, "idiot")


def test_a_revealed_idiot_is_a_living_god_until_he_is_killed():
    game = table("wwdvvv", max_days=9)
    script = {("vote", 1): Action(2), ("kill", 3): Action(2)}
    play(game, script)
    assert (game.winner, game.day, game.end_cause) == ("wolf", 3, "side_wiped")


# ── saying which board ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_default_is_the_nine_player_board_however_it_is_said():
    ways = [None, {}, "classic-9", {"board": "classic-9"}, {"villager": 3, "hunter": 1, "witch": 1, "seer": 1, "werewolf": 3},
            "villager=3, werewolf=3,seer=1,witch=1,hunter=1", BoardOptions()]  # fmt: skip
    assert {board_options(way) for way in ways} == {BoardOptions()}
    assert board_options(None).roles == NINE_PLAYERS


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_board_of_its_size_and_plays_to_a_result(preset):
    options = board_options(preset)
    assert len(options.roles) == int(preset.rpartition("-")[2])
    assert board_options(board_text(options)) == options
    won = Counter(play_scripted(seed, options=options).winner for seed in range(200))
    assert set(won) <= {"wolf", "good", "draw"}
    assert min(won["wolf"], won["good"]) >= 20, "one side hardly ever wins"


def test_options_stand_beside_the_board():
    options = board_options(
        {
            "board": {"werewolf": 4, "villager": 4, "seer": 1, "witch": 1, "hunter": 1, "guard": 1},
            "guard_and_save": "lives",
        }
    )
    assert (len(options.roles), options.guard_and_save) == (12, "lives")
    assert board_options({"witch_self_save": "always"}).roles == NINE_PLAYERS


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("moon", "guard-12"),
        ({"board": "moon"}, "guard-12"),
        ("werewolf=3,cook=6", "no role 'cook'"),
        ("werewolf=three,villager=6", "number of werewolfs"),
        ("werewolf=1,werewolf=2,villager=5", "counted twice"),
        ({"werewolf": 2, "villager": -1}, "number of villagers"),
        ({"werewolf": True, "villager": 6}, "number of werewolfs"),
        ({"board": 9}, "counts of roles"),
        ({"colour": "red"}, "colour"),
        ({"wolf_win": "never"}, "side_wiped, parity"),
        ({"guard_self": "no"}, "false, true"),
        ({"max_days": 0}, "max_days"),
        ({"max_days": "many"}, "max_days"),
        ({"werewolf": 1, "seer": 1, "villager": 3}, "6 to 12"),
        ({"werewolf": 4, "seer": 1, "villager": 8}, "6 to 12"),
        (BoardOptions(roles=(Role.WEREWOLF, Role.SEER, Role.VILLAGER)), "6 to 12"),
        ({"villager": 5, "seer": 1}, "at least one werewolf"),
        ({"werewolf": 3, "villager": 2, "seer": 1}, "fewer werewolves"),
        ({"werewolf": 2, "villager": 6}, "side_wiped"),
        ({"werewolf": 2, "seer": 1, "witch": 1, "hunter": 1, "guard": 1}, "side_wiped"),
        ({"werewolf": 2, "guard": 2, "villager": 4}, "at most once"),
    ],
)  # fmt: skip
def test_a_board_that_cannot_be_played_is_refused_and_says_why(given, says):
    with pytest.raises(ConfigError, match=says):
        board_options(given)


# ── prompts and players ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_rules_text_explains_guard_and_idiot_where_they_are(language):
    text = rules_text(board_options("guard-12"), language)
    assert ("guard may protect" if language == "en" else "守卫先选择守护") in text
    assert ("idiot" if language == "en" else "白痴") not in text
    text = rules_text(board_options("idiot-12"), language)
    assert ("An idiot who is voted out" if language == "en" else "白痴被投票放逐时翻牌") in text


def test_everybody_is_told_of_the_idiot_and_only_the_guard_of_his_protection():
    game, _ = exile_idiot()
    game.guarded = None
    for seat in range(10):
        talk = Conversation(game, seat)
        told = talk.messages(Request(seat, game.roles[seat], "speak", (), 2))[-1]["content"]
        assert "Player8 is voted out, reveals the idiot, and lives on without a vote." in told
    game = table(TEN, max_days=1)
    play(game, {("protect", 1): Action(V2)})
    for seat in range(10):
        talk = Conversation(game, seat)
        told = talk.messages(Request(seat, game.roles[seat], "speak", (), 1))[-1]["content"]
        assert ("You protect Player10." in told) == (seat == GUARD)


def test_compact_prompts_of_the_guard_say_whom_he_protected_last():
    game = table(TEN, max_days=2)
    board, texts = Board(game), []

    def answer(request: Request) -> Action:
        if request.kind == "protect":
            texts.append(compact_text(game, board, request))
            return Action(V1)
        return Action()

    play(game, answer)
    assert texts[0].endswith("Last: none\nWho to protect?")
    assert texts[1].endswith("Last: Player9\nWho to protect?")
    assert "Player7" in texts[0].split("Others")[1]


def test_compact_prompts_show_a_revealed_idiot():
    game, _ = exile_idiot()
    game.alive[V1] = True
    text = compact_text(game, Board(game), Request(W1, Role.WEREWOLF, "vote", (SEER,), 2))
    assert "\nIdiot: Player8\n" in text


@given(st.sampled_from(["guard-12", "idiot-12", "guard-8"]), st.integers(0, 10**6))
def test_every_decision_on_every_board_can_be_written_and_read_in_both_styles(preset, seed):
    game = Game(seed, board_options(preset))
    board, rng = Board(game), random.Random(seed)
    game.one_call = frozenset(i for i in range(len(game.roles)) if rng.random() < 0.5)

    def answer(request: Request) -> Action:
        target = rng.choice((None, *request.legal))
        action = Action(target, say="I have no idea." if request.kind in ("speak", "day", "last_words") else "")
        if request.kind == "witch":
            action = Action(target if request.may_poison else None)
        assert compact_text(game, board, request)
        assert parse_compact(compact_reply(request, action), request) == action
        if request.kind in ("protect", "check", "kill", "vote", "shoot"):
            said = "nobody" if target is None else name(target)
            assert parse_reply(f"{request.kind}: {said}", request).action == Action(target)
            assert parse_reply(f'{{"{request.kind}": "{said}"}}', request).action == Action(target)
        return action

    play(game, answer)


def scripted(game: Game, seat: int) -> ScriptedPlayer:
    return ScriptedPlayer(game, Board(game), seat, random.Random(0))


def test_a_scripted_guard_protects_a_lone_seer_claimer_and_not_twice():
    game = table("wwwsghvvv")
    game.day = 2
    game._tell("speech", actor=3, text="I am the seer. Player1 is a wolf.")
    guard = scripted(game, 4)
    assert guard.act(Request(4, Role.GUARD, "protect", game.living(), 2)).target == 3
    assert guard.act(Request(4, Role.GUARD, "protect", game.living(3), 3)).target != 3


def test_a_scripted_guard_leaves_the_first_night_to_the_witch_where_both_would_kill():
    game = table(TEN)
    assert scripted(game, GUARD).act(Request(GUARD, Role.GUARD, "protect", game.living(), 1)).target is None
    game = table(TEN, guard_and_save="lives")
    assert scripted(game, GUARD).act(Request(GUARD, Role.GUARD, "protect", game.living(), 1)).target is not None


def test_scripted_players_believe_a_revealed_idiot():
    game, _ = exile_idiot()
    watcher = scripted(game, V1)
    watcher._learn()
    score = watcher.suspicion()
    assert min(range(10), key=lambda i: score[i] if i != V1 else 99) == IDIOT


def test_a_scripted_guard_is_worth_something_to_the_good_side():
    """The same deals, once with the guard awake and once asleep."""

    def asleep(player: ScriptedPlayer, request: Request) -> Action:
        return Action() if request.kind == "protect" else player.act(request)

    options = board_options("starter-6")
    awake = sum(play_scripted(n, options=options).winner == "good" for n in range(600))
    without = sum(play_scripted(n, {Role.GUARD: asleep}, options=options).winner == "good" for n in range(600))
    assert awake > without + 20
