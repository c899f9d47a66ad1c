"""A real server, many clients, faults drawn from a seed, and an audit of what came of it.

``python -m tests.faults.chaos --seed 0 --kills 20 [--clients 32] [--json FILE]``. Faults: SIGKILL of the server, of its
backbone, of processes of clients; SIGSTOP of the server for some seconds; a full disk (where a small tmpfs can be
mounted: as root); connections cut in mid-request and mid-reply, delayed and duplicated requests. Clients write down
what they were told before they go on; at the end every acknowledged call and end must be in the journal, no episode
trained twice, every drop explained. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from ajet import AgentJetJob, SwarmClient
from tests.faults import small_disk
from tests.faults.audit import audit, read_records
from tests.faults.processes import Server, kill, python, small_job, until
from tests.faults.proxy import FaultProxy

NAME = "chaos"
DISK_MIB = 96
GROUPS, REPEAT = 4, 2
KILLS = {"server": 0.45, "backbone": 0.3, "clients": 0.25}
OTHER = {"disk": 0.15, "pause": 0.1}
"""Chance of one of these between two kills."""
TRACEBACK = "Traceback (most recent call last)"
NO_ROWS = {"nothing_to_train", "late_end"}
"""Counted beside what an episode has for its fate."""


def job(keep: Literal["needed", "all"], lag: int) -> AgentJetJob:
    """Small steps, often: an episode is a few calls of eight tokens."""
    made = small_job(NAME, groups=GROUPS, repeat=REPEAT, steps=100_000, save_freq=3)
    config = made.config
    config.checkpoint.keep_last = 2
    config.swarm.max_episode_age_s = 40.0
    config.swarm.max_policy_lag = lag
    config.journal.keep = keep
    return made


class Chaos:
    """One trial."""

    def __init__(self, folder: Path, disk: bool, seed: int, clients: int) -> None:
        self.draw = random.Random(seed)
        self.folder, self.disk, self.seed = folder, folder / "disk" if disk else None, seed
        self.server = Server(folder / "disk" / "server", folder / "server.log")
        self.proxy = FaultProxy(("127.0.0.1", self.server.port), rate=0.08, seed=seed)
        self.records = folder / "records"
        self.records.mkdir()
        self.per_process = max(1, clients // 4)
        self.processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.client_processes = max(1, clients // self.per_process)
        self.made = 0
        self.done: Counter[str] = Counter()
        self.schedule: list[tuple[float, str]] = []
        """(seconds since the start, fault), in order."""
        self.began = time.monotonic()

    def add_clients(self) -> None:
        self.made += 1
        log = self.records / f"{self.made:03d}.jsonl"
        arguments = [self.proxy.url, str(log), f"{self.seed}-{self.made}", str(self.per_process)]
        process = python(["-m", "tests.faults.chaos_client", *arguments], self.folder / "clients.log")
        self.processes.append((process, log))

    def start(self, keep: Literal["needed", "all"], lag: int) -> None:
        self.server.start()
        until(self.server.status, what="the server's start")
        with SwarmClient(self.server.url, verbose=False) as client:
            client.auto_sync_train_config_and_start_engine(job(keep, lag))
        for _ in range(self.client_processes):
            self.add_clients()
        self.trained(1)

    def trained(self, step: int) -> None:
        """Wait for a step."""
        until(lambda: ((self.server.status() or {}).get("step") or 0) >= step, what=f"step {step}")

    def some_steps(self) -> None:
        """Let it get somewhere between two faults."""
        time.sleep(self.draw.uniform(0.2, 2.5))

    def serve_again(self) -> None:
        until(lambda: self.server.state() in ("ROLLING", "UPDATING"), what="serving again")

    def note(self, fault: str) -> None:
        self.done[fault] += 1
        self.schedule.append((round(time.monotonic() - self.began, 1), fault))

    def kill_server(self) -> None:
        self.note("kill_server")
        self.server.kill()
        time.sleep(self.draw.uniform(0.0, 1.0))
        self.server.start()
        if self.draw.random() < 0.7:
            self.serve_again()

    def kill_backbone(self) -> None:
        pid = until(self.server.backbone, what="a backbone")
        self.note("kill_backbone")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if self.draw.random() < 0.5:
            self.serve_again()

    def kill_clients(self) -> None:
        process, _ = self.processes.pop(self.draw.randrange(len(self.processes)))
        self.note("kill_clients")
        kill(process)
        self.add_clients()

    def fill_disk(self) -> None:
        if self.disk is None:
            return
        if self.draw.random() < 0.7:
            self.serve_again()
        self.note("disk_filled")
        filler = self.disk / "filler"
        until_s = time.monotonic() + self.draw.uniform(0.5, 4.0)
        with filler.open("wb", buffering=0) as file:
            while time.monotonic() < until_s:
                try:
                    file.write(b"\0" * 65536)
                except OSError:
                    # What the server gives back (its reserve, an old checkpoint) is taken too.
                    time.sleep(0.05)
        filler.unlink()

    def pause_server(self) -> None:
        assert self.server.process is not None
        self.note("paused")
        os.kill(self.server.process.pid, signal.SIGSTOP)
        time.sleep(self.draw.uniform(0.5, 4.0))
        os.kill(self.server.process.pid, signal.SIGCONT)

    def hurt(self, kills: int) -> None:
        while sum(self.done[f"kill_{kind}"] for kind in KILLS) < kills:
            self.some_steps()
            kind = self.draw.choices(list(KILLS), list(KILLS.values()))[0]
            {"server": self.kill_server, "backbone": self.kill_backbone, "clients": self.kill_clients}[kind]()
            if self.draw.random() < OTHER["disk"]:
                self.fill_disk()
            if self.draw.random() < OTHER["pause"]:
                self.pause_server()
            state = self.server.state()
            if state == "FAILED":
                raise RuntimeError(f"the engine gave up: {self.server.status()}")
            print(f"{dict(self.done)} {state}", file=sys.stderr, flush=True)

    def wind_down(self) -> tuple[list[int], dict[str, Any]]:
        """Faults end, training goes on, clients finish what they have; their exit codes, and the last status."""
        self.proxy.rate = 0.0
        self.serve_again()
        self.trained(until(self.server.status, what="a status")["step"] + 1)
        for _, log in self.processes:
            Path(f"{log}.stop").touch()
        codes = [process.wait(timeout=300) for process, _ in self.processes]
        self.serve_again()
        status = until(self.server.status, what="the last status")
        self.server.stop()
        return codes, status

    def close(self) -> None:
        for process, _ in self.processes:
            kill(process)
        self.server.stop()
        self.proxy.close()


def run(seed: int, kills: int, clients: int) -> dict[str, Any]:
    """One trial, audited."""
    began = time.monotonic()
    keep: Literal["needed", "all"] = "all" if seed % 2 == 0 else "needed"
    lag = 1 if seed % 3 == 0 else 8
    with tempfile.TemporaryDirectory(prefix="ajet-chaos-") as name:
        folder = Path(name)
        with small_disk.mounted(folder / "disk", DISK_MIB) as disk:
            chaos = Chaos(folder, disk, seed, clients)
            try:
                chaos.start(keep, lag)
                chaos.hurt(kills)
                codes, status = chaos.wind_down()
                journal = chaos.server.exp_dir / NAME / "journal.sqlite"
                found = audit(journal, read_records(chaos.records))
                size = journal.stat().st_size
            except BaseException:
                for log in (folder / "server.log", folder / "clients.log"):
                    print(f"── {log.name}\n{log.read_text()[-6000:]}", file=sys.stderr)
                raise
            finally:
                chaos.close()
            said = (folder / "server.log").read_text()
            failures = (folder / "clients.log").read_text() if any(codes) else ""
    lines = said.splitlines()
    diverged = [line for line in lines if "DIVERGENCE" in line]
    tracebacks = ["\n".join(lines[max(0, i - 2) : i + 40]) for i, line in enumerate(lines) if TRACEBACK in line]
    not_resumed = [line for line in lines if "could not be resumed" in line]
    tally = found["counts"]["drops"]
    # A lease may run out between the last status and the stop; none may come back.
    found["inconsistent"] += [
        f"{reason}: {n} in the status, {tally.get(reason, 0)} rows"
        for reason, n in status["drops"].items()
        if reason not in NO_ROWS and n > tally.get(reason, 0)
    ]
    bad = [key for key, value in found.items() if key != "counts" and value]
    return {
        "ok": not (bad or diverged or any(codes) or tracebacks or not_resumed),
        "seed": seed, "clients": clients, "keep": keep, "max_policy_lag": lag, "faults": dict(chaos.done),
        "requests": dict(chaos.proxy.counts),
        "disk_faults": disk, "client_exit": codes, "client_failures": failures[-4000:], "divergences": diverged,
        "server_tracebacks": tracebacks[:5], "not_resumed": not_resumed,
        "disk_refusals_logged": said.count("refuses writes"), "saves_refused": said.count("could not be saved"),
        **found, "drops_in_status": status["drops"], "journal_bytes": size,
        "schedule": chaos.schedule, "server_starts": chaos.server.starts,
        "wall_seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--kills", type=int, default=20, help="of each seed")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    results = []
    for seed in options.seed:
        results.append(run(seed, options.kills, options.clients))
        print(json.dumps(results[-1], indent=1), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    if len(results) > 1:
        kills = sum(n for r in results for name, n in r["faults"].items() if name.startswith("kill_"))
        sums = {
            k: sum(len(r[k]) for r in results)
            for k in ("lost_calls", "lost_ends", "trained_twice", "unexplained_drops")
        }
        print(json.dumps({"seeds": options.seed, "kills": kills, **sums}))
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
