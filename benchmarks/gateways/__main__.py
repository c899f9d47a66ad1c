"""What a training call costs through each gateway: ours, rllm-model-gateway, Agent-Lightning and the LiteLLM proxy.

All servers run at once, each one process with one worker, in front of the same fake model: a process that answers at once
with 100 tokens, their ids and log-probs. They are loaded one after another, in an order that turns with every round, first
by one client, then by 16. Every client plays whole episodes of twelve growing calls (330 to 2,400 tokens; begin, calls, reward)
and latencies are those of the calls. *Added* p50 is what one client waits longer than without a gateway, in the same round.
Memory is measured apart, on fresh servers: resident after 1,000 calls and after 20,000, or as many as fit --memory-seconds.

Peers are not installed with this package. Give each a Python of its own, and name it:

  python3.11 -m venv rllm    && rllm/bin/pip    install rllm-model-gateway==0.1.0 'uvicorn[standard]'
  python3.12 -m venv agl     && agl/bin/pip     install agentlightning==1.0.2 'uvicorn[standard]'   (Python >= 3.12)
  python3.11 -m venv litellm && litellm/bin/pip install 'litellm[proxy]' httptools
  python -m benchmarks.gateways --rllm-python rllm/bin/python --agentlightning-python agl/bin/python \\
      --litellm-python litellm/bin/python --fast-dir /dev/shm

``uvicorn[standard]`` is not among what they ask for; it makes them faster. What is not given is listed as not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.gateways.load import Load, check, cpu_seconds, disk_ms, figures, resident_mb, run, settle
from benchmarks.gateways.systems import DIRECT, System, all_systems
from benchmarks.gateways.wire import Client, HttpError
from benchmarks.gateways.workload import Workload, make

CONNECTIONS = 16
FIRST, LAST = 1_000, 20_000
"""Calls after which memory is looked at."""
START_S = 120.0
SETTLE_S = 5.0
"""Longest wait for a server to finish what it put off."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.asynccontextmanager
async def process(command: list[str], port: int, ready: str, folder: Path, env: dict[str, str]) -> AsyncIterator[int]:
    """A server that answers. Yields its process id."""
    # Peers must not find our packages, nor we lose them.
    found = os.pathsep.join(filter(None, sys.path)) if command[0] == sys.executable else ""
    whole = {**os.environ, **env, "PYTHONPATH": found}
    with (folder / "output.log").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=whole)  # noqa: ASYNC220
        try:
            until = time.monotonic() + START_S
            while True:
                with contextlib.suppress(OSError, HttpError):
                    client = await Client.connect(port)
                    await client.ask("GET", ready)
                    client.close()
                    break
                if server.poll() is not None or time.monotonic() > until:
                    tail = (folder / "output.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{command[:4]} did not start:\n{tail}")
                await asyncio.sleep(0.1)
            yield server.pid
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


class Bench:
    """The fake model, and servers in front of it."""

    def __init__(self, folder: Path, workload: Workload, upstream: int, upstream_pid: int) -> None:
        self.folder = folder
        self.workload = workload
        self.bodies = [body.encode() for body in workload.bodies]
        self.upstream = upstream
        self.upstream_pid = upstream_pid
        self._made = 0

    @contextlib.asynccontextmanager
    async def started(self, system: System) -> AsyncIterator[tuple[int, int]]:
        """The system, ready for episodes. Yields (process id, port)."""
        if system.command is None:
            yield self.upstream_pid, self.upstream
            return
        self._made += 1
        folder = self.folder / f"server-{self._made}"
        folder.mkdir()
        port = free_port()
        async with process(system.command(folder, port, self.upstream), port, system.ready, folder, system.env) as pid:
            client = await Client.connect(port)
            await system.speaks.prepare(client, self.upstream)
            client.close()
            yield pid, port

    async def loaded(self, system: System, pid: int, port: int, connections: int, load: Load, name: str) -> dict:
        cpu = cpu_seconds(pid)
        wall = await run(port, system.speaks, self.bodies, connections, load, name)
        await settle(pid, SETTLE_S)
        found = figures(load.latencies, wall)
        # What is put off until after the answers counts too.
        return {**found, "cpu_ms_per_call": (cpu_seconds(pid) - cpu) / found["calls"] * 1e3}


async def rounds(bench: Bench, systems: list[System], options: argparse.Namespace) -> dict[str, Any]:
    """``{system: {"kept": …, "rounds": [{"one": figures, "many": figures}]}}``"""
    found: dict[str, Any] = {}
    async with contextlib.AsyncExitStack() as stack:
        running: dict[str, tuple[int, int]] = {}
        for system in systems:
            running[system.name] = await stack.enter_async_context(bench.started(system))
            kept = await check(running[system.name][1], system.speaks, bench.workload)
            found[system.name] = {"kept": kept, "rounds": []}
            print(f"started {system.name}: on record {kept}", flush=True)
        for system in systems:
            await bench.loaded(
                system, *running[system.name], CONNECTIONS, Load(time.monotonic() + options.warm_up), "warm"
            )
        for k in range(options.rounds):
            turn = k % len(systems)
            for system in systems[turn:] + systems[:turn]:
                parts = {}
                for part, connections, seconds in (("one", 1, options.one), ("many", CONNECTIONS, options.many)):
                    load = Load(time.monotonic() + seconds)
                    parts[part] = await bench.loaded(system, *running[system.name], connections, load, f"{part}-{k}")
                found[system.name]["rounds"].append(parts)
            load_now = os.getloadavg()[0]
            print(f"round {k + 1} of {options.rounds} done, load average {load_now:.1f}", flush=True)
            found[DIRECT.name]["rounds"][-1]["load"] = load_now
    return found


async def memory(bench: Bench, system: System, seconds: float) -> dict[str, float]:
    """Resident memory of a fresh server as calls add up."""
    async with bench.started(system) as (pid, port):
        idle = resident_mb(pid)
        load = Load(time.monotonic() + seconds, FIRST)
        await run(port, system.speaks, bench.bodies, CONNECTIONS, load, "first")
        first, calls = resident_mb(pid), load.calls
        load.most_calls = LAST
        await run(port, system.speaks, bench.bodies, CONNECTIONS, load, "then")
        return {
            "idle_mb": idle,
            "first_mb": first,
            "first_calls": calls,
            "last_mb": resident_mb(pid),
            "last_calls": load.calls,
        }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def summary(systems: list[System], found: dict[str, Any]) -> dict[str, Any]:
    """Medians and spread over the rounds; differences and ratios are taken within a round first."""
    direct = found[DIRECT.name]["rounds"]
    peers = [found[s.name]["rounds"] for s in systems if not s.ours and s is not DIRECT]
    table: dict[str, Any] = {}
    for system in systems:
        mine = found[system.name]["rounds"]
        row: dict[str, Any] = {
            f"{part}_{key}": spread([r[part][key] for r in mine])
            for part in ("one", "many")
            for key in ("p50_ms", "p99_ms", "calls_per_s", "cpu_ms_per_call")
        }
        base = direct if system.hops else [{"one": {"p50_ms": 0.0}}] * len(mine)
        row["added_p50_ms"] = spread([r["one"]["p50_ms"] - d["one"]["p50_ms"] for r, d in zip(mine, base, strict=True)])
        if peers and system is not DIRECT:
            best = [max(p[k]["many"]["calls_per_s"] for p in peers) for k in range(len(mine))]
            row["of_best_peer"] = spread([r["many"]["calls_per_s"] / b for r, b in zip(mine, best, strict=True)])
        row["kept"] = found[system.name]["kept"]
        table[system.name] = row
    return table


def show(systems: list[System], table: dict[str, Any]) -> None:
    def cell(row: dict[str, Any], key: str, digits: int) -> str:
        if key not in row:
            return "–"
        value = row[key]
        return f"{value['median']:.{digits}f} ({value['low']:.{digits}f}–{value['high']:.{digits}f})"

    columns = (
        ("added p50 ms", "added_p50_ms", 2),
        ("p50 ms", "one_p50_ms", 2),
        ("p99 ms", "one_p99_ms", 2),
        (f"{CONNECTIONS}: calls/s", "many_calls_per_s", 0),
        ("of best peer", "of_best_peer", 2),
        (f"{CONNECTIONS}: p50 ms", "many_p50_ms", 1),
        (f"{CONNECTIONS}: p99 ms", "many_p99_ms", 1),
        (f"{CONNECTIONS}: CPU ms/call", "many_cpu_ms_per_call", 2),
    )
    print("\nmedian (lowest–highest round); at one client, then at", CONNECTIONS)
    print(f"{'':24}" + "".join(f"{title:>22}" for title, _, _ in columns))
    for system in systems:
        row = table[system.name]
        print(f"{system.name:24}" + "".join(f"{cell(row, key, digits):>22}" for _, key, digits in columns))
    print()
    for system in systems:
        print(
            f"{system.name:24} {system.version():10} answer and record: {system.durable}; {table[system.name]['kept']}"
        )


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    # Whoever ends the benchmark ends its servers.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    pythons = {
        n: getattr(options, f"{n}_python") or options.peers_python for n in ("rllm", "agentlightning", "litellm")
    }
    result: dict[str, Any] = {"load_before": os.getloadavg()[0], "cores": os.cpu_count()}
    with contextlib.ExitStack() as folders:
        folder = Path(folders.enter_context(tempfile.TemporaryDirectory(dir=options.dir)))
        fast = folders.enter_context(tempfile.TemporaryDirectory(dir=options.fast_dir)) if options.fast_dir else None
        systems, result["not_measured"] = all_systems(pythons, fast)
        if options.only:
            systems = [s for s in systems if s is DIRECT or s.name in options.only]
        for name, path in (("dir", folder), ("fast_dir", fast)):
            if path is not None:
                result[f"disk_{name}"] = disk_ms(Path(path))
                print(f"4 KiB on disk in --{name.replace('_', '-')}: {result[f'disk_{name}']}", flush=True)
        workload = make(folder)
        workload.save(folder / "workload.json")
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.gateways.upstream", str(port), str(folder / "workload.json")]
        async with process(command, port, "/health", folder, {}) as pid:
            one = Bench(folder, workload, port, pid)
            if "rounds" in options.parts:
                result["rounds"] = await rounds(one, systems, options)
                result["table"] = summary(systems, result["rounds"])
                show(systems, result["table"])
            if "memory" in options.parts:
                result["memory"] = {}
                print(f"\n{'resident MB':24} {'idle':>8} {'after':>16} {'after':>16} {'growth':>8}")
                for system in systems:
                    if system is DIRECT:
                        continue
                    row = result["memory"][system.name] = await memory(one, system, options.memory_seconds)
                    first = f"{row['first_mb']:.0f} at {row['first_calls']:,}"
                    last = f"{row['last_mb']:.0f} at {row['last_calls']:,}"
                    growth = row["last_mb"] - row["first_mb"]
                    print(f"{system.name:24} {row['idle_mb']:8.0f} {first:>16} {last:>16} {growth:8.0f}", flush=True)
    for name, why in result["not_measured"].items():
        print(f"NOT MEASURED: {name}: {why}")
    result["load_after"] = os.getloadavg()[0]
    print(f"load average {result['load_before']:.1f} before, {result['load_after']:.1f} after; {result['cores']} cores")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateways", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", type=float, default=2.0, help="seconds of one client in a round")
    parser.add_argument("--many", type=float, default=3.0, help=f"seconds of {CONNECTIONS} clients in a round")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds")
    parser.add_argument("--memory-seconds", type=float, default=100.0, help="longest time for the memory of one system")
    parser.add_argument("--parts", nargs="+", choices=("rounds", "memory"), default=["rounds", "memory"])
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", help="names of the table's rows")
    parser.add_argument("--peers-python", metavar="PATH", help="a Python that has all peers, or those not given below")
    for name in ("rllm", "agentlightning", "litellm"):
        parser.add_argument(f"--{name}-python", metavar="PATH")
    parser.add_argument("--dir", help="folder for journals and databases; default: the system's temporary folder")
    parser.add_argument("--fast-dir", help="a folder in memory: measures our journal there too")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    try:
        result = uvloop.run(bench(options))
    except asyncio.CancelledError:
        sys.exit("ended before it was done")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
