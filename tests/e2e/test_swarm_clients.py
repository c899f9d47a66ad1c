"""The tutorials of ``tutorial/swarm_clients``, each as real processes against a real server."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from ajet.cli import app
from tests.e2e.conftest import Server
from tests.faults import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
FOLDER = processes.ROOT / "tutorial" / "swarm_clients"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    made = Server(folder / "exp", folder / "server.out")
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def offline(server: Server) -> Iterator[None]:
    """Each tutorial brings its own job."""
    yield
    httpx.post(f"{server.url}/swarm/v1/engine/stop", timeout=30)
    server.status(wait_state="OFFLINE", wait_s=30)
    assert server.state() == "OFFLINE"


def run(run_script: Any, server: Server, name: str, *options: str) -> Any:
    return run_script(str(FOLDER / name), "--swarm-url", server.url, *options, cwd=processes.ROOT)


def output_of(script: Any) -> str:
    output, _ = script.communicate(timeout=120)
    assert script.returncode == 0, output
    return output


def groups(step: dict[str, Any]) -> Counter[str]:
    return Counter({key.split("/")[1]: n for key, n in step.items() if re.fullmatch("share/.*/groups", key)})


def test_two_clients_share_40_to_60_and_one_that_is_killed_starves_nobody(server, run_script):
    options = ["--steps", "1000", "--silence-s", "3"]
    digits = run(run_script, server, "two_tasks.py", "--task", "digits", *options)
    words = run(run_script, server, "two_tasks.py", "--task", "words", *options)

    def both() -> bool:
        found = server.status() or {}
        live = {one["share"] for one in found.get("shares", []) if one["live"]}
        return live == {"digits", "words"} and found["state"] == "ROLLING"

    processes.until(both, what="both clients")
    shown = CliRunner().invoke(app, ["overwatch", "--once", "--swarm-url", server.url]).output
    assert re.search(r"^shares      digits .* of 2 groups, 40%$", shown, re.M), shown
    assert re.search(r"^            words .* of 3 groups, 60%$", shown, re.M), shown
    first = server.status()["step"] + 2
    server.wait_step(first + 9)
    steps = [step for step in server.steps() if first <= step["step"] < first + 10]
    total = sum((groups(step) for step in steps), Counter())
    print(f"ten batches: {dict(total)}; each {[tuple(groups(step).values()) for step in steps]}")
    assert sum(total.values()) == 50
    assert abs(total["digits"] / 50 - 0.4) <= 0.05 * 0.4
    words.kill()
    at = server.status()["step"]
    began = time.monotonic()
    server.wait_step(at + 3, timeout_s=60)
    print(
        f"three more steps {time.monotonic() - began:.1f} s after the kill: {[dict(groups(s)) for s in server.steps()[at:]]}"
    )
    assert groups(server.steps()[-1])["digits"] == 5
    assert digits.poll() is None
    digits.kill()


@pytest.mark.parametrize(("rule", "clients"), [("all", 2), ("any", 1)])
def test_updates_come_when_the_clients_agree(server, run_script, rule, clients):
    scripts = [run(run_script, server, "agree.py", "--rule", rule, "--steps", "2") for _ in range(clients)]
    for script in scripts:
        assert "2 updates" in output_of(script)
    assert [step["step"] for step in server.steps()] == [1, 2]
    assert all(step["pool/groups"] >= 4 for step in server.steps())


def test_the_callback_is_called_once_for_each_update_and_may_fail(server, run_script):
    output = output_of(run(run_script, server, "on_update.py"))
    assert re.findall(r"update (\d) begins", output) == ["1", "2", "3"]
    assert "a bug in a callback is shown" in output
    assert server.state() == "FINISHED"


def test_one_call_trains_until_training_is_finished(server, run_script):
    assert "2 steps" in output_of(run(run_script, server, "auto_train.py", "--steps", "2"))
    assert server.state() == "FINISHED"


def test_eval_and_debug_episodes_stand_beside_training(server, run_script):
    training = run(run_script, server, "auto_train.py", "--steps", "100000")
    server.wait_step(3)
    looked = output_of(run(run_script, server, "look.py"))
    evaluated = output_of(run(run_script, server, "evaluate.py"))
    assert looked.count("fate: aborted") == 2
    assert "mean reward" in evaluated
    assert server.status()["drops"].get("aborted", 0) == 2  # those of look.py; nothing else was lost by it

    def reported() -> int:
        waiting = server.status()["eval"]["episodes"]
        return waiting + sum(step.get("eval/episodes", 0) for step in server.steps())

    processes.until(lambda: reported() == 8, what="every eval episode in the metrics")
    assert training.poll() is None
    training.kill()


def test_no_tutorial_is_longer_than_it_should_be():
    lengths = {path.name: len(path.read_text().splitlines()) for path in Path(FOLDER).glob("*.py")}
    assert max(lengths.values()) < 100, lengths
