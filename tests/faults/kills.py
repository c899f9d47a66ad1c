"""A Werewolves run whose server is killed again and again, against its own journal trained in one go.

``python -m tests.faults.kills --seed 0 --kills 20 --steps 25 [--json FILE]``: a real server and a real client; SIGKILL to
the server at random moments (booting, re-applying, collecting, updating, saving); at the end ``ajet-swarm
replay-journal`` in a process of its own. Exit code 0 only if the client ended cleanly, every digest agrees, the final
model, optimizer and schedule are the same bytes, and ``metrics.jsonl`` has each step once, as the journal has it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ajet.checkpoint.store import CheckpointStore
from ajet.pool import journal_read
from ajet.server.metrics import line
from tests.faults.processes import ROOT, Server, environment, kill, python, until

JOB = ROOT / "tutorial" / "example_werewolves_swarm" / "werewolves.yaml"
NAME = "killed"
FILES = ("model.safetensors", "trainer_state.safetensors", "trainer_state.json")
"""Weights; AdamW's moments; steps done, the schedule's count, digests."""
EARLY, BOOT_S = 0.3, 5.0
"""So many of the kills come before the server has booted: within so many seconds."""


def job_file(folder: Path, steps: int, groups: int, repeat: int, seed: int) -> Path:
    tree = yaml.safe_load(JOB.read_text())
    job = tree["ajet"]
    job["experiment_name"] = NAME
    job["data"]["train_batch_size"], job["rollout"]["num_repeat"] = groups, repeat
    job["trainer_common"].update(total_training_steps=steps, save_freq=5, seed=seed)
    job["journal"] = {"keep": "all"}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@contextmanager
def playing(
    folder: Path, steps: int, groups: int, repeat: int, seed: int, command: list[str] | None = None
) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    """A server that has booted and a client that plays Werewolves on it until training is finished."""
    job = job_file(folder, steps, groups, repeat, seed)
    server = Server(folder / "server", folder / "server.log", command)
    server.start()
    client = python(
        ["-m", "ajet.demo.player", "--swarm-url", server.url, "--job", str(job), "--folder", str(folder / "client"),
         "--trainable", "werewolf,seer", "--live", "alternate", "--seed", str(seed), "--eval-games", "0"],
        folder / "client.log",
    )  # fmt: skip
    try:
        until(lambda: server.state() == "ROLLING", what="the first boot")
        yield server, client
    except BaseException:
        for log in (folder / "server.log", folder / "client.log"):
            print(f"── {log.name}\n{log.read_text()[-4000:]}", file=sys.stderr)
        raise
    finally:
        kill(client)
        server.stop()


def finish(folder: Path, server: Server, client: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the run's end, and compare it with its journal trained in one go."""
    code = client.wait(timeout=1800)
    status = until(server.status, what="the last status")
    server.stop()
    found = compare(server.exp_dir / NAME, folder)
    diverged = [w for w in status["warnings"] if w.startswith("DIVERGENCE")]
    return {
        **found, "ok": found["ok"] and code == 0 and not diverged, "steps": status["step"], "client_exit": code,
        "divergences": diverged, "drops": status["drops"],
    }  # fmt: skip


def run(seed: int, kills: int, steps: int, groups: int, repeat: int, gap_s: tuple[float, float]) -> dict[str, Any]:
    """The whole trial; its figures."""
    draw = random.Random(seed)
    began = time.monotonic()
    states: Counter[str] = Counter()
    done = 0
    with tempfile.TemporaryDirectory(prefix="ajet-kills-") as name:
        folder = Path(name)
        with playing(folder, steps, groups, repeat, seed) as (server, client):
            for number in range(kills):
                if number and draw.random() < EARLY:
                    time.sleep(draw.uniform(0.1, BOOT_S))
                else:
                    until(lambda: server.state() in ("ROLLING", "UPDATING", "FINISHED"), what="a boot")
                    time.sleep(draw.uniform(*gap_s))
                state = server.state() or "starting"
                if state == "FINISHED" or client.poll() is not None:
                    break
                server.kill()
                states[state] += 1
                done += 1
                print(f"kill {done} in {state}", file=sys.stderr, flush=True)
                server.start()
            found = finish(folder, server, client)
    return {
        **found, "ok": found["ok"] and done == kills, "seed": seed, "kills": done, "killed_in": dict(states),
        "wall_seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def compare(experiment: Path, folder: Path) -> dict[str, Any]:
    """The journal trained in one go by another process, against what the killed run left."""
    replayed = subprocess.run(
        [sys.executable, "-m", "ajet.cli", "replay-journal", str(experiment), "--out", str(folder / "again"), "--json"],
        capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=1800,
    )  # fmt: skip
    try:
        again = json.loads(replayed.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise RuntimeError(f"replay-journal failed: {replayed.stdout} {replayed.stderr}") from None
    journal = experiment / "journal.sqlite"
    steps = journal_read.steps(journal)
    last = CheckpointStore(experiment / "checkpoints").latest_valid()
    assert last is not None
    differ = [name for name in FILES if (last.path / name).read_bytes() != (folder / "again" / name).read_bytes()]
    curves = [json.loads(text) for text in (experiment / "metrics.jsonl").read_text().splitlines()]
    same_curves = curves == [json.loads(json.dumps(line(step))) for step in steps]
    digests = {step.digest == digest for step, digest in ((steps[-1], again["digest"]), (steps[-1], last.digest))}
    return {
        "ok": again["ok"] and not differ and same_curves and digests == {True} and again["start"] == 0,
        "replayed_steps": again["steps"], "digests_that_differ": again["diverged"], "files_that_differ": differ,
        "same_metrics": same_curves, "digest": again["digest"],
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--gap", type=float, nargs=2, default=(0.0, 4.0), help="seconds from serving to a kill")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    found = run(options.seed, options.kills, options.steps, options.groups, options.repeat, tuple(options.gap))
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
