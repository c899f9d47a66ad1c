"""Runs the demo: starts the server and the client, shows progress, leaves the report.

Both processes are this one's children and end with it. Which run is played is said in :mod:`ajet.demo.runs`.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ajet.copilot.job import AgentJetJob
from ajet.demo import runs
from ajet.demo.files import when_there_is_room, write
from ajet.demo.report import build_summary, draw_curve, print_report
from ajet.envs.werewolves.presets import board_options, board_text
from ajet.schema.errors import AjetError, ConfigError, EngineFailed

DEFAULT_TARGETS = "werewolf,seer"


def config_path() -> Path:
    """The shipped configuration of this demo."""
    return Path(str(resources.files("ajet.envs.werewolves") / "werewolves.yaml"))


def run(
    *,
    trainable: str = DEFAULT_TARGETS,
    steps: int | None = None,
    seed: int = 0,
    exp_dir: Path = Path("saved_experiments"),
    port: int = 0,
    config: Path | None = None,
    eval_games: int = 600,
    live: str = "alternate",
    board: str | None = None,
    fresh: bool = False,
    further: bool = False,
) -> int:
    """Train Werewolves on this machine. Returns the exit code; see ``ajet-swarm demo werewolves --help``."""
    console = Console()
    targets = [role.strip() for role in trainable.split(",") if role.strip()]
    if board is not None:
        board = board_text(board_options(board))
    if live not in ("alternate", "both"):
        raise ConfigError(f"--live is alternate or both, not {live!r}.")
    base = f"werewolves-{'-'.join(targets)}-seed{seed}"
    if board is not None:
        base += f"-{board.replace('=', '').replace(',', '-')}"
    chosen = runs.find_run(exp_dir, base, fresh=fresh, further=further)
    folder = chosen.folder
    given = str(config or config_path())
    job = AgentJetJob(base_yaml_config=given, experiment_name=folder.name, total_training_steps=steps)
    if board is not None:
        job.config.env.werewolves = {**job.config.env.werewolves, "board": board}
    roles = list(dict.fromkeys(role.value for role in board_options(job.config.env.werewolves).roles))
    unknown = [role for role in targets if role not in roles]
    if unknown or not targets:
        raise ConfigError(f"--trainable takes roles out of {', '.join(roles)}; not {', '.join(unknown) or 'none'}.")
    job.config.trainer_common.seed = seed
    job.config.experiment_dir = str(exp_dir.resolve())
    again = runs.command(
        {
            "--trainable": (trainable, DEFAULT_TARGETS), "--seed": (seed, 0), "--board": (board, None),
            "--live": (live, "alternate"), "--exp-dir": (exp_dir, Path("saved_experiments")), "--config": (config, None),
        }
    )  # fmt: skip
    job = _open(console, chosen, job, steps, again)
    deals = runs.deals_of(folder)
    if deals not in (None, eval_games):
        console.print(f"evaluating on {deals} held-out deals a role, those of its initial policy", highlight=False)
        eval_games = deals
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    play = [
        "--swarm-url", url, "--job", str(folder / runs.JOB), "--folder", str(folder), "--trainable", ",".join(targets),
        "--live", live, "--seed", str(seed), "--eval-games", str(eval_games),
    ]  # fmt: skip
    signal.signal(signal.SIGTERM, terminated)
    with ExitStack() as stack:
        try:
            server, client = _processes(stack, folder, port, play)
            where = f"{len(targets)} trainable role(s): {', '.join(targets)}   (log: {folder / 'demo_client.log'})"
            for line in (
                f"server   {url}   (log: {folder / 'demo_server.log'})",
                f"watch    ajet-swarm overwatch --swarm-url {url}   (in another terminal)",
                f"client   {where}",
            ):
                console.print(line, soft_wrap=True)
            history, status = _watch(console, url, server, client, job)
        except KeyboardInterrupt:
            console.print("stopped; the same command continues this run")
            return 130
    _report(console, folder, history, status, seed, targets)
    usual = AgentJetJob(given).total_training_steps
    if len(history) < usual:
        told = f"This run has {len(history)} steps; what it learns shows over the usual {usual}. Train it on:"
        console.print(f"{told}\n            {again} --continue", soft_wrap=True, highlight=False)
    return 0


def _open(console: Console, chosen: runs.Run, asked: AgentJetJob, steps: int | None, again: str) -> AgentJetJob:
    """The job of the chosen run, in its folder: the one it began with, to more steps where it is to be trained further.

    Raises:
        ConfigError: it is finished, and has as many steps already.
    """
    folder, job_file = chosen.folder, chosen.folder / runs.JOB
    begun = AgentJetJob(job_file) if job_file.exists() else None
    if begun is not None and chosen.why == "further":
        done = runs.steps_of(folder)
        if done is not None and asked.total_training_steps <= done:
            raise ConfigError(f"{folder} has {done} steps. Say how many it is to have: --steps N, above {done}.")
        begun.total_training_steps = max(begun.total_training_steps, asked.total_training_steps)
    job = begun or asked
    said = runs.words(chosen, job.total_training_steps, steps, again)
    if said:
        console.print(said, soft_wrap=True, highlight=False)
    folder.mkdir(parents=True, exist_ok=True)
    if begun is None or chosen.why == "further":
        job.dump_job_as_yaml(str(job_file))
    if chosen.why == "further":
        runs.reopen(folder, console.print)
    return job


def _report(
    console: Console,
    folder: Path,
    history: list[dict[str, Any]],
    status: dict[str, Any],
    seed: int,
    targets: list[str],
) -> None:
    """What a finished run leaves: summary, picture, tables."""
    started = folder / runs.STARTED
    seconds = history[-1]["time"] - float(started.read_text()) if history and started.exists() else 0.0
    drops = status.get("drops", {})
    summary = build_summary(folder, history, seed=seed, targets=targets, wall_seconds=seconds, drops=drops)
    checkpoint = (status.get("checkpoint") or {}).get("path")
    path = folder / "win_rate.png"
    picture = when_there_is_room(path, lambda: draw_curve(summary, path), console.print)
    write(folder / "summary.json", json.dumps(summary, indent=1), console.print)
    print_report(summary, folder, picture, checkpoint)


def _processes(stack: ExitStack, folder: Path, port: int, play: list[str]) -> tuple[_Child, _Child]:
    """The server and the client of a run; they end with ``stack``."""
    # The server's own folder is the run's too: a run never resumes another run's job.
    serve = ["--swarm-port", str(port), "--exp-dir", str(folder / "server")]
    server = child(stack, [sys.executable, "-m", "ajet.cli", "start", *serve], folder / "demo_server.log")
    player = [sys.executable, "-m", "ajet.demo.player", *play]
    return server, child(stack, player, folder / "demo_client.log", lines=True)


def terminated(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt  # so that both children are ended


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Child:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        self.lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def tail(self, n: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n:])


def child(stack: ExitStack, command: list[str], log: Path, *, lines: bool = False) -> _Child:
    out = stack.enter_context(log.open("a"))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE if lines else out,
        stderr=out,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    child = _Child(process, log)

    def end() -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    stack.callback(end)
    if lines:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                try:
                    child.lines.put(json.loads(line))
                except ValueError:
                    with suppress(OSError):  # a full disk: the words are lost, the run is not
                        out.write(line)
                        out.flush()

        threading.Thread(target=read, daemon=True).start()
    return child


PHASES = {"boot": "starting", "eval_initial": "evaluating the initial policy", "train": "training", "eval_final": "evaluating the final policy", "done": "done"}  # fmt: skip


def _watch(
    console: Console, url: str, server: _Child, client: _Child, job: AgentJetJob
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Show progress until the client is done. Returns the steps' metrics and the server's last status."""
    total = job.config.trainer_common.total_training_steps
    history: list[dict[str, Any]] = []
    status: dict[str, Any] = {}
    phase = "boot"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    plain = not console.is_terminal
    with Progress(*columns, console=console, disable=plain) as bars, httpx.Client(base_url=url, timeout=10) as http:
        bar = bars.add_task(PHASES[phase], total=None, note="")
        seen, waiting = 0, False
        while client.process.poll() is None or not client.lines.empty():
            try:
                event: dict[str, Any] | None = client.lines.get(timeout=1.0)
            except queue.Empty:
                event = None
            if event is not None and "waiting" in event:
                bars.console.print(event["waiting"], style="red")
            elif event is not None:
                if event["phase"] != phase:
                    phase = event["phase"]
                    if plain:
                        console.print(f"{PHASES[phase]} …")
                    bars.remove_task(bar)
                    bar = bars.add_task(PHASES[phase], total=total if phase == "train" else None, note="")
                if "total" in event:
                    bars.update(bar, completed=event["done"], total=event["total"])
                    continue
            if server.process.poll() is not None:
                raise EngineFailed(f"The server ended with code {server.process.returncode}:\n{server.tail()}")
            try:
                status = http.get("/swarm/v1/status").json()
                history = http.get("/swarm/v1/metrics/history").json()["steps"]
            except (httpx.HTTPError, ValueError, KeyError):
                continue
            if status.get("state") == "FAILED":
                raise EngineFailed(f"The engine failed: {status.get('last_error')}")
            disk = status.get("disk") or {}
            refused = None if disk.get("ok", True) else f"{disk.get('path')} refuses writes ({disk.get('error')})"
            if refused and not waiting:
                bars.console.print(f"waiting: the disk under {refused}. Free some space; nothing is lost.", style="red")
            waiting = bool(refused)
            if phase == "train":
                bars.update(bar, completed=len(history), note=_note(history, status))
                for n in range(seen, len(history)):
                    line = f"step {int(history[n]['step']):>3}/{total}  {_note(history[: n + 1], status)}"
                    (console.print if plain else bars.console.print)(line, highlight=False)
                seen = len(history)
        bars.update(bar, completed=total)
    if client.process.returncode != 0:
        raise AjetError(f"The client ended with code {client.process.returncode}:\n{client.tail()}")
    return history, status


def _note(history: list[dict[str, Any]], status: dict[str, Any]) -> str:
    if not history:
        pool = status.get("pool") or {}
        return f"groups {pool.get('groups_complete', 0)}/{pool.get('groups_needed', '?')}"
    row = history[-1]
    wins = "  ".join(
        f"{k.removeprefix('env/win/')} {v:.2f}" for k, v in sorted(row.items()) if k.startswith("env/win/")
    )
    seconds = row.get("time/collect_s", 0.0) + row.get("time/update_s", 0.0)
    if len(history) > 1:
        seconds = row["time"] - history[-2]["time"]
    seconds = max(seconds, 1e-3)
    return (
        f"win rate: {wins}   {row.get('pool/episodes', 0) / seconds:.1f} games/s"
        f"  {row.get('tokens/sampled', 0) / seconds:.0f} tokens/s"
    )
