"""Claims about a person at the table: what they are told, what they may type, and how they leave."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ajet.demo.lines import Lines
from ajet.demo.play import Table, run
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.person import Person, PersonLeft
from ajet.envs.werewolves.replay import load
from ajet.envs.werewolves.rules import Role
from ajet.schema.errors import ConfigError
from tests.unit.werewolves.table import SEER, V1, W1, W2, WITCH, play, table

ANYTHING = ["3", "5", "7", "y", "I suspect Player2.", "1", "8", "0", "n", "9", "2", "4", "6"]


def person(game: Game, seat: int, *lines: str, language: str = "en") -> tuple[Person, list[str]]:
    """A person who types these lines, and what they were shown."""
    left, shown = list(lines), []

    async def ask(question: str) -> str:
        shown.append(question)
        if not left:
            raise EOFError
        return left.pop(0)

    return Person(game, seat, language, lambda words, tone: shown.append(words), ask, None), shown  # type: ignore[arg-type]


def answer(seated: Person, **fields) -> Action:
    given = {"legal": (0, 4, 5), "day": 1, **fields}
    return asyncio.run(seated.act(Request(seated.seat, seated.game.roles[seated.seat], **given)))


@pytest.mark.parametrize("name", ["5", "Player5", "player 5", "5号", " #5 ", "５"])
def test_a_player_is_named_in_any_of_the_usual_ways(name):
    seated, _ = person(table(), SEER, name)
    assert answer(seated, kind="check") == Action(4)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_cannot_be_done_is_asked_again_with_what_can(language):
    seated, shown = person(table(), SEER, "", "8", "99", "who?", "-1", "5", language=language)
    assert answer(seated, kind="check") == Action(4)
    wrong = [
        line
        for line in shown
        if ("Player1, Player5, Player6, or 0" if language == "en" else "1号、5号、6号，或 0") in line
    ]
    assert len(wrong) == 5
    assert any("99" in line for line in wrong)


@pytest.mark.parametrize("nobody", ["0", "nobody", "无人"])
def test_nobody_is_named_where_that_is_allowed(nobody):
    seated, _ = person(table(), V1, nobody)
    assert answer(seated, kind="vote") == Action(None)
    seated, _ = person(table(), V1, nobody, "1")
    assert answer(seated, kind="vote", may_pass=False) == Action(0)


def test_the_witch_saves_or_poisons_or_waits():
    offers = {"kind": "witch", "may_save": True, "may_poison": True, "victim": 4}
    assert answer(person(table(), WITCH, "maybe", "yes")[0], **offers) == Action(save=True)
    assert answer(person(table(), WITCH, "n", "6")[0], **offers) == Action(5)
    assert answer(person(table(), WITCH, "不", "0")[0], **offers) == Action()
    assert answer(person(table(), WITCH, "1")[0], kind="witch", may_poison=True) == Action(0)
    assert answer(person(table(), WITCH)[0], kind="witch", legal=()) == Action()


def test_a_wolf_speaks_to_wolves_and_a_speaker_to_all():
    assert answer(person(table(), W1, "6", "the loud one")[0], kind="kill") == Action(5, "the loud one")
    assert answer(person(table(), W1, "  hello  ")[0], kind="speak", legal=()) == Action(say="hello")
    seated, shown = person(table(), V1, "")
    assert answer(seated, kind="last_words", legal=()) == Action(say="")
    assert "(you say nothing)" in shown


def test_help_rules_and_the_table_are_shown_on_demand_and_are_no_answers():
    seated, shown = person(table(dead=(7,)), SEER, "?", "/who", "/rules", "/help", "6")
    assert answer(seated, kind="check") == Action(5)
    said = "\n".join(shown)
    assert "8  dead" in said
    assert "Werewolf with 9 players" in said
    assert said.count("You may name Player1") == 2
    for line in ("/quit", "/q"):
        with pytest.raises(PersonLeft):
            answer(person(table(), SEER, line)[0], kind="check")
    with pytest.raises(PersonLeft):
        answer(person(table(), SEER)[0], kind="check")


def test_a_person_is_told_what_their_seat_learns_and_nothing_else():
    game = table(max_days=1)
    script = {
        ("kill", 1): {W1: Action(V1, say="GROWL"), W2: Action(V1)}, ("check", 1): Action(W2),
        ("speak", 1): Action(say="I suspect Player1."),
    }  # fmt: skip
    play(game, script)
    for seat in range(9):
        seated, shown = person(game, seat, language="zh")
        seated.greet()
        seated.catch_up()
        said = "\n".join(shown)
        assert ("GROWL" in said) == (seat in (W2, 2))
        assert ("你查验了2号：狼人。" in said) == (seat == SEER)
        assert ("你的狼同伴" in said) == (game.roles[seat] is Role.WEREWOLF)
        assert "我怀疑1号。" in said
        assert said.count("— 第1天 —") == 1


# ── the whole command ────────────────────────────────────────────────────────────────────────────────────────────────


def command(*arguments: str, folder: Path, **options):
    path = os.pathsep.join(os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
    return subprocess.Popen(
        [sys.executable, "-m", "ajet.cli", "play", "werewolves", *arguments], cwd=folder, text=True, encoding="utf-8",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}, **options,
    )  # fmt: skip


@pytest.mark.parametrize(("role", "language"), [("seer", "en"), ("werewolf", "zh"), ("witch", "zh"), ("hunter", "en")])
def test_a_script_of_lines_plays_a_game_to_its_end_and_leaves_a_replay(role, language, tmp_path):
    lines = "\n".join(ANYTHING * 60) + "\n"
    process = command("--role", role, "--language", language, "--seed", "11", "--replay", "mine.json", folder=tmp_path)
    said, errors = process.communicate(lines, timeout=60)
    assert (process.returncode, errors) == (0, "")
    replay = load(tmp_path / "mine.json")
    (me,) = [s for s in replay.seats if s.player == "person"]
    assert me.role == role
    assert {s.player for s in replay.seats} == {"person", "scripted"}
    assert ("You are Player" if language == "en" else "你是") in said
    assert f"ajet-swarm replay {'mine.json'}" in said
    seen = said.split("— What really happened —" if language == "en" else "— 真相 —")
    assert len(seen) == 2
    assert all(
        seat.role == "villager" or seat.seat == me.seat or f"{seat.seat + 1} " in seen[1] for seat in replay.seats
    )
    mine = [d for d in replay.decisions if d.seat == me.seat]
    assert mine
    assert all(len(d.exchanges) == 1 and d.outcome == "valid" for d in mine)
    assert replay.episode.kind == "play"


def test_the_same_seed_deals_the_same_game(tmp_path):
    found = []
    for n in range(2):
        process = command("--role", "seer", "--seed", "4", "--replay", f"{n}.json", folder=tmp_path)
        process.communicate("\n".join(ANYTHING * 60), timeout=60)
        found.append(load(tmp_path / f"{n}.json"))
    assert found[0].events == found[1].events


@pytest.mark.parametrize("how", ["ctrl-c", "end of input", "/quit"])
def test_a_person_leaves_cleanly(how, tmp_path):
    process = command("--role", "seer", "--seed", "3", folder=tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    said = ""
    deadline = time.monotonic() + 30
    while "Whom do you check?" not in said:
        assert time.monotonic() < deadline, said
        assert process.poll() is None, said
        said += process.stdout.read(1)
    if how == "ctrl-c":
        process.send_signal(signal.SIGINT)
        rest, errors = process.stdout.read(), process.stderr.read() if process.stderr else ""
        process.wait(20)
        process.stdin.close()
    else:
        rest, errors = process.communicate("/quit\n" if how == "/quit" else "", timeout=20)
    assert process.returncode == 130
    assert "You left the table" in rest
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_the_replay_is_said_and_the_game_shown(tmp_path):
    process = command("--role", "any", "--seed", "3", "--replay", "no/such/folder/x.json", folder=tmp_path)
    said, _ = process.communicate("\n".join(ANYTHING * 60), timeout=60)
    assert process.returncode == 0
    assert "The replay could not be written to no/such/folder/x.json" in said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"role": "king"}, "--role is any"),
        ({"language": "fr"}, "--language is one of en, zh"),
        ({"opponents": "godlike"}, "--opponents"),
        ({"policy_roles": ("king",)}, "--policy-roles"),
        ({"policy": "a", "swarm_url": "b"}, "Give one of them"),
        ({"policy": "/nowhere"}, "is no checkpoint"),
    ],
)
def test_what_cannot_be_played_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        run(Table(**wrong))


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_lines_come_whole_whatever_the_pieces_and_the_last_needs_no_end():
    reading, writing = os.pipe()
    try:
        lines = Lines(reading)
        text = "三号\r\nab\n\nlast".encode()
        for n in range(len(text)):
            os.write(writing, text[n : n + 1])
        os.close(writing)
        assert [await asyncio.wait_for(lines.next(), 10) for _ in range(4)] == ["三号", "ab", "", "last"]
        for _ in range(2):
            with pytest.raises(EOFError):
                await asyncio.wait_for(lines.next(), 10)
    finally:
        os.close(reading)
