"""The commands and snippets of the documentation, run as they stand there: a server, the page's own client, and what one asks then.

What they are parsed by is checked in ``tests/unit/docs``; commands that take minutes stand in :data:`RUN_BY` with the test that
runs them.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from ajet.cli import app
from tests.fakes.pages import Block, Command, blocks, commands
from tests.faults.processes import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

RUN_BY = {
    "demo": "tests/e2e/test_training_loop.py",
    "eval": "tests/e2e/test_evaluation.py",
    "play": "tests/e2e/test_training_loop.py",
    "start": "tests/faults/processes.py",
    "replay": "tests/integration/server/test_server_replays.py",
    "passive": "tests",
}
"""Command of ``ajet-swarm`` → the file, or the folder, in which real processes run it."""
HERE = ("status", "overwatch", "inspect", "doctor", "skill", "replay-journal", "stop")
"""Commands that run here, in this order."""
SCRIPT = "tutorial/your_own_agent/mind_meld.py"


def _documented() -> list[Command]:
    found = {str(c): c for c in commands() if c.words[0] == "ajet-swarm" and len(c.words) > 1}
    return sorted(found.values(), key=str)


def test_every_command_of_ajet_swarm_is_run_here_or_by_a_test_that_is_named():
    for command in _documented():
        name = {"top": "overwatch"}.get(command.words[1], command.words[1])
        if name.startswith("-") or name in HERE:
            continue
        assert name in RUN_BY, f"{command.where}: run `{command}` in a test, and name it in RUN_BY"
        home = ROOT / RUN_BY[name]
        text = home.read_text() if home.is_file() else "".join(p.read_text() for p in home.rglob("test_*.py"))
        assert f'"{name}"' in text, f"{home} does not run {name}"


def _run(words: list[str], cwd: Path, url: str) -> subprocess.CompletedProcess[str]:
    env = {**environment(), "AJET_SWARM_URL": url, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, text=True, capture_output=True, timeout=150)


def _ready(command: Command, run: Path) -> list[str] | None:
    """The words, with the reader's own names filled in; None for what this test has nothing to fill in for."""
    words = []
    for word in command.words[1:]:
        if word.startswith("saved_experiments"):
            word = str(run.parent if word == "saved_experiments" else run)
        words.append({"EPISODE": "last"}.get(word, word))
    if "--swarm-url" in words:
        del words[words.index("--swarm-url") : words.index("--swarm-url") + 2]
    if words[0] in ("overwatch", "top") and "--once" not in words:
        words.append("--once")  # the screen itself is run by Textual's pilot in tests/unit/monitor
    if words == ["doctor"]:
        words.append(str(run))
    if words[0] == "replay-journal" and (len(words) == 1 or command.named):
        return None
    if words[:2] == ["doctor", "--backbone"] or (words[0] == "doctor" and "verl" in words):
        return None  # verl's own environment: make test-verl
    return words


def _play_by_hand(server: Any) -> None:
    """The recipe of docs/http.md: each line as the shell would read it, with what the line before answered filled in."""
    recipes = [b.text for b in blocks() if b.where.startswith("docs/http") and "begin-1" in b.text]
    english, chinese = ([shlex.split(line, comments=True) for line in _lines(text)] for text in recipes)
    assert english == chinese
    begin, _, chat, end, look = english
    begun = _curl(begin, server.url, {})
    known = {"EPISODE": begun["episode_id"], "KEY": begun["api_key"]}
    assert _curl(chat, server.url, known)["choices"][0]["message"]["role"] == "assistant"
    assert _curl(end, server.url, known)["fate"] == "eval"
    whole = _curl(look, server.url, known)
    assert (whole["reward"], [piece["kind"] for piece in whole["samples"][0]["pieces"]]) == (0.5, ["prompt", "reply"])


def _lines(text: str) -> list[str]:
    return text.replace("\\\n", "").strip().splitlines()


def _curl(words: list[str], url: str, variables: dict[str, str]) -> Any:
    """What ``curl`` does with the few options that the recipe uses; not every machine that runs tests has it."""
    options = {"-d": "", "-H": ""}
    filled = [re.sub(r"\$(\w+)", lambda name: variables[name[1]], word) for word in words]
    rest = iter(filled[1:])
    target = ""
    for word in rest:
        if word in options:
            options[word] = next(rest)
        elif word != "-sS":
            target = word.replace("http://127.0.0.1:10086", url)
    headers = dict([options["-H"].split(": ", 1)] if options["-H"] else [])
    method, content = ("POST", options["-d"]) if options["-d"] else ("GET", None)
    answer = httpx.request(method, target, content=content, headers=headers, timeout=60)
    assert answer.is_success, answer.text
    return answer.json()


def _snippet(block: Block, url: str) -> str:
    return block.text.replace("http://127.0.0.1:10086", url)


def test_the_page_your_own_agent_is_followed_from_its_script_to_the_evaluation(make_server, tmp_path, monkeypatch):
    server = make_server()
    trained = _run([str(ROOT / SCRIPT), "--swarm-url", server.url, "--steps", "1"], tmp_path, server.url)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert re.search(r"^step 1/1  reward \d\.\d{3}  win rate \d\.\d\d$", trained.stdout, re.M)
    assert "FINISHED  step 1/1" in trained.stdout
    run = Path(server.status()["experiment_dir"])

    snippets = [b for b in blocks() if b.where.startswith("docs/your-own-agent.md") and b.language == "python"]
    ran = 0
    for block in snippets:
        if "10086" in block.text and "argparse" not in block.text:
            path = tmp_path / "snippet.py"
            path.write_text(_snippet(block, server.url))
            done = _run([str(path)], tmp_path, server.url)
            assert done.returncode == 0, f"{block.where}\n{done.stdout}{done.stderr}"
            if "get_episode" in block.text:
                assert "Say one word." in done.stdout.partition("[reply]")[0]
            if "n=12" in block.text:
                assert len(ast.literal_eval(done.stdout)) == 12
            ran += 1
    assert ran == 4
    _play_by_hand(server)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AJET_SWARM_URL", server.url)
    runner = CliRunner()
    failed = []
    ready = {tuple(w): c for c in _documented() if c.words[1] in (*HERE, "top") and (w := _ready(c, run)) is not None}
    ran_names = set()
    order = {name: n for n, name in enumerate((*HERE, "top"))}
    for words, command in sorted(ready.items(), key=lambda pair: order[pair[0][0]]):
        if words[0] in ("replay-journal", "stop"):
            continue
        done = runner.invoke(app, list(words))
        ran_names.add(words[0])
        if done.exit_code != 0 or not done.output.strip():
            failed.append(f"{command.where}: {command}: {done.exit_code} {done.exception!r}\n{done.output[-500:]}")
    stopped = _run(["-m", "ajet.cli", "stop"], tmp_path, server.url)
    assert "OFFLINE" in stopped.stdout, stopped.stderr
    again = _run(["-m", "ajet.cli", "replay-journal", str(run)], tmp_path, server.url)
    assert (again.returncode, "every digest agrees" in again.stdout) == (0, True), again.stdout + again.stderr
    assert not failed, "\n".join(failed)
    assert {"status", "overwatch", "inspect", "doctor", "skill"} <= ran_names


def test_the_skill_is_installed_where_one_says(tmp_path):
    done = _run(["-m", "ajet.cli", "skill", "--into", "skills"], tmp_path, "http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "skills" / "ajet" / "SKILL.md").read_text(encoding="utf-8")
    assert text.startswith("---\nname: ajet\ndescription: ")
    assert (ROOT / SCRIPT).read_text(encoding="utf-8").rstrip() in text
    assert os.path.getsize(tmp_path / "skills" / "ajet" / "SKILL.md") < 30_000
