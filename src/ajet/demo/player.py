"""The demo's client process: evaluates the initial policy, plays until training is finished, evaluates the final one.

Says what it does as JSON lines on standard output, for the process that shows the progress. Started again after a
crash it goes on: an evaluation that is on disk is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

from ajet.client import SwarmClient
from ajet.copilot.job import AgentJetJob
from ajet.demo.evaluation import Measures, play_deals, wins
from ajet.demo.files import write
from ajet.demo.replays import evaluation_replays, join_replays, training_replays
from ajet.demo.runs import STARTED, seconds_before
from ajet.envs.werewolves.workflow import ExampleWerewolves
from ajet.schema.errors import JobConflict
from ajet.schema.task import Task, WorkflowTask
from ajet.task_reader import RouterTaskReader
from ajet.utils.thread_executors import PeriodicDrainThreadPoolExecutor

CURVE = "curve.jsonl"
CURVE_EVERY = 5
"""Steps between two points of the curve."""
CURVE_DEALS, CURVE_FIRST = 100, 10_000
"""Deals of a point, and the first of them: other deals than those of the evaluation."""

_lock = threading.Lock()


def say(**fields: Any) -> None:
    with _lock:
        print(json.dumps(fields), flush=True)


def say_waiting(words: str) -> None:
    """By the pipe: the log may lie on the disk that refuses."""
    say(waiting=words)


def evaluate(
    client: SwarmClient, roles: list[str], folder: Path, which: str, games: int, parallel: int, board: dict[str, Any]
) -> None:
    """Write ``eval_<which>.json``: role → one number per held-out deal, and what was measured in each."""
    path = folder / f"eval_{which}.json"
    if path.exists():
        return
    played: dict[str, list[Measures]] = {}
    started = time.monotonic()
    for n, role in enumerate(roles):
        last = [0.0]

        def progress(done: int, offset: int = n * games, last: list[float] = last) -> None:
            if time.monotonic() - last[0] > 0.5 or done == games:
                last[0] = time.monotonic()
                say(phase=f"eval_{which}", done=offset + done, total=games * len(roles))

        played[role] = play_deals(
            client, role, games, max_parallel=parallel, on_game=progress, board=board,
            record=evaluation_replays(folder, which, role),
        )  # fmt: skip
    results = {role: wins(role, games) for role, games in played.items()}
    tree = {"seconds": time.monotonic() - started, "results": results, "measures": played}
    write(path, json.dumps(tree, separators=(",", ":")), say_waiting)


def opposed(targets: list[str]) -> bool:
    """Whether the targets play against each other."""
    return "werewolf" in targets and len(targets) > 1


def follow_curve(
    client: SwarmClient, targets: list[str], folder: Path, total: int, stop: threading.Event, board: dict[str, Any]
) -> None:
    """Every few steps, play some held-out deals of each role against scripted players: ``curve.jsonl``.

    For runs in which both sides are live in one game: there the training win rate cannot show progress.
    """
    path = folder / CURVE
    lines = path.read_text().splitlines() if path.exists() else []
    done = [json.loads(line)["step"] for line in lines]
    for step in range(CURVE_EVERY, total, CURVE_EVERY):
        if done and step <= done[-1]:
            continue
        status = client.get_status(wait_step=step, wait_s=30)
        while status["step"] < step:
            if stop.is_set() or status["state"] in ("FINISHED", "FAILED", "OFFLINE"):
                return
            status = client.get_status(wait_step=step, wait_s=30)
        won = {
            r: sum(wins(r, play_deals(client, r, CURVE_DEALS, max_parallel=16, first_deal=CURVE_FIRST, board=board)))
            for r in targets
        }
        lines.append(json.dumps({"step": status["step"], "wins": won, "games": CURVE_DEALS}))
        write(path, "".join(f"{line}\n" for line in lines), say_waiting)


def train(
    client: SwarmClient,
    job: AgentJetJob,
    targets: list[str],
    live: Literal["alternate", "both"],
    seed: int,
    folder: Path,
) -> None:
    """Play training games until the server says that training is finished."""
    workflow = ExampleWerewolves(
        trainable_targets=targets, live=live, options=job.config.env.werewolves, record=training_replays(folder)
    )

    def rollout(task: Task) -> None:
        with client.episode(task) as episode:
            episode.end(workflow.play(WorkflowTask(task=task, episode_uuid=episode.episode_uuid), episode.api))

    reader = RouterTaskReader("random_dummy", {"type": "random_dummy", "seed": seed})
    with PeriodicDrainThreadPoolExecutor(workers=10**9, max_parallel=job.max_env_worker) as executor:
        while not executor.finished:
            for task in reader.generate_training_tasks():
                for _ in range(job.num_repeat):
                    executor.submit(rollout, task=task)


def start_engine(client: SwarmClient, job: AgentJetJob) -> None:
    """Start it with this run's job, also where the server has resumed the run with the fewer steps it had before."""
    try:
        client.auto_sync_train_config_and_start_engine(job)
    except JobConflict:
        client.auto_sync_train_config_and_start_engine(job, force_restart=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swarm-url", required=True)
    parser.add_argument("--job", required=True, help="job.yaml")
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--trainable", required=True, help="roles, comma-separated")
    parser.add_argument("--live", required=True, choices=["alternate", "both"])
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument("--eval-games", required=True, type=int)
    args = parser.parse_args(argv)
    targets = args.trainable.split(",")
    job = AgentJetJob(base_yaml_config=args.job)
    board = job.config.env.werewolves
    client = SwarmClient(args.swarm_url, verbose=False)
    say(phase="boot")
    start_engine(client, job)
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.eval_games:
        evaluate(client, targets, args.folder, "initial", args.eval_games, job.max_env_worker, board)
    say(phase="train")
    started = args.folder / STARTED
    if not started.exists():
        write(started, f"{time.time() - seconds_before(args.folder):.3f}\n", say_waiting)
    stop = threading.Event()
    curve: threading.Thread | None = None
    if args.live == "both" and opposed(targets) and args.eval_games:
        total = job.config.trainer_common.total_training_steps
        curve = threading.Thread(
            target=follow_curve, args=(client, targets, args.folder, total, stop, board), daemon=True
        )
        curve.start()
    train(client, job, targets, args.live, args.seed, args.folder)
    if curve is not None:
        stop.set()
        curve.join()
    if args.eval_games:
        evaluate(client, targets, args.folder, "final", args.eval_games, job.max_env_worker, board)
    join_replays(client, args.folder)
    say(phase="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
