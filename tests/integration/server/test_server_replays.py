"""Claims about ``ajet-swarm replay`` with a game that was trained: joined from the server, and from its folder alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.client import SwarmClient
from ajet.envs.werewolves import ExampleWerewolves
from ajet.envs.werewolves.recording import SUFFIX, ReplayFolder
from ajet.envs.werewolves.replay import load
from ajet.schema.task import Task, WorkflowTask


def replay(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ajet.cli", "replay", *map(str, arguments)],
        capture_output=True, text=True, encoding="utf-8", timeout=60, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip


@pytest.fixture
def games(swarm, tmp_path) -> list[Path]:
    """Replays of a trained step: two deals of two games."""
    swarm.start()
    folder = tmp_path / "replays"
    workflow = ExampleWerewolves(
        trainable_targets=["werewolf"], prompt_style="compact", record=ReplayFolder(folder, every=1)
    )
    client = SwarmClient(swarm.url, verbose=False)
    try:
        for number in (3, 6):
            task = Task(task_id=f"deal-{number}", metadata={"random_number": number})
            for _ in range(2):
                with client.episode(task) as episode:
                    play = workflow.execute(WorkflowTask(task=task, episode_uuid=episode.episode_uuid), episode.api)
                    episode.end(asyncio.run(play))
    finally:
        client.close()
    swarm.wait_step(1)
    return sorted(folder.glob(f"*{SUFFIX}"))


def test_a_trained_game_is_joined_from_the_server_and_from_its_folder_alike(games, swarm, tmp_path):
    assert len(games) == 4
    advantages = []
    for path in games:
        by_folder = tmp_path / "by-folder.json"
        answer = replay(path, "--exp-dir", tmp_path / "exp", "--out", by_folder)
        assert answer.returncode == 0, answer.stderr
        assert load(path).policy_version is None  # --out leaves the file alone
        answer = replay(path, "--join", swarm.url)
        assert answer.returncode == 0, answer.stderr
        game = load(path)
        wolves = [s for s in game.seats if s.role == "werewolf"]
        spoke = {d.seat for d in game.decisions if d.exchanges}
        replies = [x for d in game.decisions for x in d.exchanges]
        assert f"{len(replies)} of {len(replies)} replies have their log-probs" in answer.stderr
        assert "fate trained, step 1" in answer.stderr
        assert all(x.call is not None and len(x.call.logprobs) == len(x.call.ids) > 0 for x in replies)
        assert {s.seat for s in game.seats if s.advantage is not None} == spoke <= {s.seat for s in wolves}
        assert (game.episode.fate, game.episode.step, game.policy_version) == ("trained", 1, (0, 0))
        advantages.append({s.advantage for s in game.seats if s.advantage is not None})
        found = load(by_folder)
        assert found.seats == game.seats
        # Beside a folder there may be no tokenizer: all but the texts agree.
        assert [x.call.model_copy(update={"texts": ()}) for d in found.decisions for x in d.exchanges if x.call] == [
            x.call.model_copy(update={"texts": ()}) for x in replies if x.call
        ]
    assert advantages == [{0.5}] * 4  # what the fake backbone's step says


def test_a_game_is_printed_and_made_a_page(games, tmp_path):
    text = replay(games[0], "--once")
    assert (text.returncode, text.stderr) == (0, "")
    assert "── Night 1 ──" in text.stdout
    assert "\x1b" not in text.stdout
    public = replay(games[0], "--once", "--view", "public", "--language", "zh")
    assert "── 第1天 ──" in public.stdout
    assert "狼人是" not in public.stdout
    replies = replay(games[0], "--once", "--replies", "--view", "wolves")
    assert "Who to kill?" in replies.stdout
    page = tmp_path / "game.html"
    made = replay(games[0], "--html", page, "--view", "wolves", "--language", "zh")
    assert (made.returncode, made.stdout.strip()) == (0, str(page))
    data = json.loads(page.read_text("utf-8").split('id="data">')[1].split("</script>")[0])
    assert (data["view"], data["lang"], len(data["events"])) == ("wolves", "zh", len(load(games[0]).events))


def test_what_cannot_be_shown_is_one_line(games, swarm, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    other = tmp_path / "other.json"
    other.write_text(games[0].read_text().replace(load(games[0]).episode.episode_id, "ep-unknown"))
    for words, arguments in {
        "is no replay": (broken, "--once"),
        "cannot be read": (tmp_path / "none.json", "--once"),
        "--view is god": (games[0], "--once", "--view", "10"),
        "--language is en or zh": (games[0], "--once", "--language", "fr"),
        "There is no episode ep-unknown": (other, "--join", swarm.url),
        "no terminal": (games[0],),
        "give --join or --exp-dir": (games[0], "--out", tmp_path / "x.json", "--once"),
        "Give one of them": (games[0], "--join", swarm.url, "--exp-dir", tmp_path),
        "cannot be written": (games[0], "--html", tmp_path / "no" / "x.html"),
    }.items():
        answer = replay(*arguments)
        assert answer.returncode == 1, arguments
        assert words in answer.stderr
        assert answer.stderr.count("\n") == 1, answer.stderr


def test_plain_text_is_plain_in_any_encoding(games):
    answer = replay(games[0], "--once", "--language", "zh", PYTHONIOENCODING="ascii")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.isascii()
