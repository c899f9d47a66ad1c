"""Replies as small models really send them."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.envs.werewolves.engine import Action, Request
from ajet.envs.werewolves.replies import MAX_SPEECH, as_bool, fallback, parse_reply
from ajet.envs.werewolves.rules import Role

LEGAL = (1, 2, 3, 4)
"""Seats that may be named in these tests: Player2 to Player5."""


def ask(kind: str = "vote", **fields) -> Request:
    return Request(0, Role.VILLAGER, kind, LEGAL, 1, **fields)  # type: ignore[arg-type]


WITCH = ask("witch", may_save=True, may_poison=True)


@pytest.mark.parametrize(
    "text",
    [
        "vote: 3", "vote: Player3", "vote: player 3", "vote: 3号", "Vote：PLAYER3.", "投票：3号", "投票: 3号玩家", "vote: ３号",
        "**Vote:** Player3", "- vote: **Player 3**", '"vote": "Player3"', "vote: #3", "vote: 玩家3",
        '{"vote": 3}', '{"vote": "3"}', '{"vote": 3.0}', '{"Vote": "Player3"}', '{"target": "Player3"}', '{"vote": "3号"}',
        '```json\n{"vote": "Player3"}\n```', 'I think {so}. {"say": "x", "vote": 3}', '{"say": "two\nlines", "vote": 3}',
        "<think>vote: 2</think>vote: 3", "thinking… vote: 4</think>\nvote: 3", "<THINK>a</THINK> b <think>c</think> vote: d\nvote: 3",
        "vote: 2\nno wait\nvote: 3", '{"vote": 2} no wait {"vote": 3}', '{"vote": 2}\nvote: 3', 'vote: 2\n{"vote": 3}',
        "vote: Player3\nvote: Player1", '{"vote": 3} {"vote": 9}', '{"vote": 3} {"other": 1}', '{{"vote": 3}',
    ],
)  # fmt: skip
def test_a_vote_for_player3_is_understood(text):
    assert parse_reply(text, ask()).action == Action(2)


@pytest.mark.parametrize(
    "text",
    [
        "vote: nobody", "vote: none", "vote: null", "vote: abstain", "vote: pass", "vote: 弃票", "投票：空", "vote: no one",
        '{"vote": null}', '{"vote": "none"}', '{"vote": "null"}', '{"vote": ""}', '{"vote": false}', '{"vote": "弃票"}',
    ],
)  # fmt: skip
def test_naming_nobody_is_an_abstention(text):
    assert parse_reply(text, ask()).action == Action(None)


@pytest.mark.parametrize(
    "text",
    [
        "", "wait and see", "vote: wait and see", "I vote for someone.", "vote: Player1", "vote: Player9", "vote: 0", "vote: -3",
        "vote: 3 or 4", '{"vote": true}', '{"vote": [3]}', '{"vote": {"name": 3}}', '{"vote": 3.5}', '{"vote": 1e999}',
        '{"vote": NaN}', '{"kill": 3}', "kill: 3", "{}", "[3]", "3", "<think>vote: 3", "vote: 3<think>", '{"vote": 3',
    ],
)  # fmt: skip
def test_what_names_nobody_legal_needs_a_repair_and_says_why(text):
    parsed = parse_reply(text, ask())
    assert parsed.action is None
    assert 0 < len(parsed.problem) < 120


def test_nobody_is_no_answer_where_somebody_must_be_named():
    assert parse_reply("vote: nobody", ask(may_pass=False)).action is None


@pytest.mark.parametrize(
    "value",
    [
        "false",
        "False",
        "no",
        "FALSE",
        "0",
        "none",
        "null",
        "",
        "否",
        "nope",
        "not true",
        None,
        0,
        False,
        2,
        -1,
        [],
        {},
        0.0,
    ],
)
def test_nothing_but_true_is_true(value):
    assert as_bool(value) is False


@pytest.mark.parametrize("value", [True, "true", "True", " yes ", "YES.", "1", 1, "是"])
def test_true_is_true(value):
    assert as_bool(value) is True


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"save": true, "poison": null}', Action(save=True)),
        ('{"resurrect": true}', Action(save=True)),
        ("save: yes", Action(save=True)),
        ("save: yes\npoison: nobody", Action(save=True)),
        ("poison: nobody\nsave: yes", Action(save=True)),
        ("解药：是\n毒药：无", Action(save=True)),
        ('{"save": false, "poison": null}', Action()),
        ('{"save": "false", "poison": "none"}', Action()),
        ('{"save": "no"}', Action()),
        ("save: no", Action()),
        ('{"poison": false}', Action()),
        ('{"poison": "no", "target": "Player3"}', Action()),
        ('{"save": false, "poison": "Player3"}', Action(2)),
        ('{"poison": true, "name": "Player3"}', Action(2)),
        ('{"save": "false", "poison": 3}', Action(2)),
        ("save: no\npoison: 3号", Action(2)),
        ("save: yes\non second thoughts\npoison: 3", Action(2)),
    ],
)
def test_the_witchs_choice_is_understood(text, action):
    assert parse_reply(text, WITCH).action == action


@pytest.mark.parametrize(
    "text",
    [
        '{"poison": true, "name": null}',
        '{"poison": true}',
        '{"poison": "yes"}',
        '{"save": true, "poison": 3}',
        '{"poison": 1}',
        '{"kill": 3}',
    ],
)
def test_a_witchs_contradiction_needs_a_repair(text):
    assert parse_reply(text, WITCH).action is None


def test_potions_that_are_gone_cannot_be_used():
    assert parse_reply("save: yes", ask("witch", may_poison=True)).action is None
    assert parse_reply("poison: 3", ask("witch", may_save=True)).action is None
    assert parse_reply('{"save": false, "poison": null}', ask("witch")).action == Action()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("kill", "kill: 3号"),
        ("kill", '{"kill": 3}'),
        ("kill", "击杀：3号"),
        ("check", "check: Player3"),
        ("check", "查验：3"),
        ("shoot", '{"shoot": "Player3"}'),
        ("shoot", "开枪：3号"),
    ],
)
def test_every_kind_has_its_word(kind, text):
    assert parse_reply(text, ask(kind)).action == Action(2)


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ('<think>SECRET</think>{"say": "hello", "vote": 3}', "hello"),
        ('SECRET\n{"say": "hello", "vote": 3}', "hello"),
        ("SECRET\n\nhello\nvote: 3", "hello"),
        ("SECRET plan\n\nsay: hello\nall\nvote: 3", "hello\nall"),
        ("SECRET\n**Statement:** hello\nvote: 3", "hello"),
        ("SECRET\n发言：hello\n投票：3号", "hello"),
        ('SECRET\n{"say": null, "vote": 3}', ""),
        ('SECRET\n{"say": "", "vote": 3}', ""),
        ('{"say": "SECRET", "vote": 2}\n{"say": "hello", "vote": 3}', "hello"),
        ("vote: 3", ""),
    ],
)
def test_only_the_statement_is_heard(text, say):
    assert parse_reply(text, ask("day")).action == Action(2, say)


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ("I trust Player3.", "I trust Player3."),
        ("<think>SECRET</think>\nI trust Player3.", "I trust Player3."),
        ("SECRET</think>I trust Player3.", "I trust Player3."),
        ('SECRET\n{"say": "I trust Player3."}', "I trust Player3."),
        ('SECRET\n{"speak": "I trust Player3."}', "I trust Player3."),
        ("SECRET\n\nI trust Player3.", "I trust Player3."),
        ("x" * 5000, "x" * MAX_SPEECH),
    ],
)
def test_a_speech_is_what_is_meant_for_all(text, say):
    assert parse_reply(text, ask("speak")).action == Action(say=say)


@pytest.mark.parametrize("text", ["", "  \n", "<think>all thought", "<think>x</think>", '{"say": ""}', '{"say": 3}'])
def test_an_empty_speech_needs_a_repair(text):
    assert parse_reply(text, ask("speak")).action is None


def test_wolves_hear_what_is_said_to_them_and_no_reasoning():
    assert parse_reply('SECRET\n{"say": "psst", "kill": 3}', ask("kill")).action == Action(2, "psst")
    assert parse_reply("SECRET\nkill: 3", ask("kill")).action == Action(2, "")


def test_what_cannot_be_sent_on_is_replaced():
    action = parse_reply('{"say": "a\\ud800b", "vote": 3}', ask("day")).action
    assert action is not None
    action.say.encode()


def test_a_fallback_abstains_where_allowed_and_else_names_a_legal_seat_by_its_own_generator():
    assert fallback(ask(), random.Random(0)) == Action()
    must = ask(may_pass=False)
    drawn = [fallback(must, random.Random(n)).target for n in range(30)]
    assert set(drawn) == set(LEGAL)
    assert drawn == [fallback(must, random.Random(n)).target for n in range(30)]


KINDS = ("kill", "check", "witch", "shoot", "speak", "vote", "day", "last_words")
PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "<think>",
                "</think>",
                "{",
                "}",
                '"vote":',
                "vote: ",
                "save: ",
                "\n",
                "Player3",
                "3号",
                "null",
                "true",
                "[",
                '"',
                "say:",
                "```",
                "\ud800",
            ]
        ),
        st.text(max_size=6),
    ),
    max_size=25,
).map("".join)


@given(PIECES, st.sampled_from(KINDS), st.booleans(), st.booleans(), st.booleans())
def test_no_reply_raises_and_every_action_is_legal(text, kind, may_pass, may_save, may_poison):
    request = ask(kind, may_pass=may_pass, may_save=may_save, may_poison=may_poison)
    action = parse_reply(text, request).action
    if action is not None:
        assert action.target is None or action.target in LEGAL
        assert not action.save or (may_save and action.target is None)
        assert "<think>" not in action.say.lower() or '"' in text
        action.say.encode()


@pytest.mark.parametrize(
    "text",
    ["{" * 10**6, '{"a":' * 10**5, "\n" * 10**6, "vote: " + " " * 10**6, "<think>" * 10**5, "*" * 10**6, "[" * 10**5],
)
def test_a_hostile_reply_costs_little(text):
    started = time.process_time()
    for kind in ("day", "speak", "witch"):
        parse_reply(text, ask(kind))
    assert time.process_time() - started < 1.0
