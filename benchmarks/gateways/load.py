"""The load, and what the servers under it use."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gateways.systems import Direct
from benchmarks.gateways.wire import Client, HttpError, head
from benchmarks.gateways.workload import CALLS, Workload


@dataclass
class Load:
    """Calls made so far, and whether to go on."""

    until: float
    """On ``time.monotonic()``."""
    most_calls: int | None = None
    latencies: list[float] = field(default_factory=list)
    calls: int = 0

    def over(self) -> bool:
        return time.monotonic() >= self.until or (self.most_calls is not None and self.calls >= self.most_calls)


async def play(client: Client, speaks: Direct, name: str, workload: list[bytes], load: Load) -> None:
    """Whole episodes, one after another, until the load is over; the last may be left open."""
    k = 0
    while not load.over():
        path, key, episode = await speaks.begin(client, name, k)
        requests = [head("POST", path, len(body), key) + body for body in workload]
        for request in requests:
            began = time.perf_counter()
            status, answer = await client.send(request)
            load.latencies.append(time.perf_counter() - began)
            if status != 200:
                raise HttpError(f"{path}: {status} {answer[:300].decode(errors='replace')}")
            load.calls += 1
            if load.over():
                break
        else:
            await speaks.end(client, episode)
        k += 1


async def run(port: int, speaks: Direct, workload: list[bytes], connections: int, load: Load, name: str) -> float:
    """Load the server at ``port``. Returns the seconds it took."""
    clients = await asyncio.gather(*(Client.connect(port) for _ in range(connections)))
    began = time.monotonic()
    await asyncio.gather(*(play(c, speaks, f"{name}-{i}", workload, load) for i, c in enumerate(clients)))
    wall = time.monotonic() - began
    for client in clients:
        client.close()
    return wall


async def check(port: int, speaks: Direct, workload: Workload) -> str:
    """Play one episode and look at everything: the answers, and what is on record.

    Returns what is on record. Raises AssertionError where an answer is not the model's.
    """
    client = await Client.connect(port)
    path, key, episode = await speaks.begin(client, "check", 0)
    for body in workload.bodies:
        status, answer = await client.send(head("POST", path, len(body), key) + body.encode())
        assert status == 200, answer[:300]
        choice = json.loads(answer)["choices"][0]
        assert choice["message"]["content"] == workload.reply_text, choice["message"]
        assert choice["finish_reason"] == "stop"
    await speaks.end(client, episode)
    kept = await speaks.recorded(client, episode)
    for _ in range(20):
        if kept is None or kept == CALLS:
            break
        await asyncio.sleep(0.1)
        kept = await speaks.recorded(client, episode)
    client.close()
    return "nothing" if kept is None else f"{kept} of {CALLS} calls with ids and log-probs"


def figures(latencies: list[float], wall: float) -> dict[str, float]:
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "calls_per_s": len(latencies) / wall,
        "calls": len(latencies),
    }


def _tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _tree(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """CPU that a process and its children have used."""
    total = 0
    for one in _tree(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def settle(pid: int, seconds: float) -> float:
    """Wait until a process is idle, at most ``seconds``: what it had put off must not slow down the next one.

    Returns the seconds it took.
    """
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        before = cpu_seconds(pid)
        await asyncio.sleep(0.1)
        if cpu_seconds(pid) - before < 0.015:
            break
    return time.monotonic() - began


def resident_mb(pid: int) -> float:
    """Resident memory of a process and its children."""
    total = 0
    for one in _tree(pid):
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total / 1024


def disk_ms(folder: Path, count: int = 200) -> dict[str, float]:
    """Median milliseconds until 4 KiB are on disk, at the end of a file and in place of what it has."""
    block = os.urandom(4096)
    path = folder / "probe"
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    taken: dict[str, list[float]] = {"append_ms": [], "overwrite_ms": []}
    try:
        for name in taken:
            for k in range(count):
                began = time.perf_counter()
                os.pwrite(file, block, 4096 * k)
                os.fdatasync(file)
                taken[name].append((time.perf_counter() - began) * 1e3)
    finally:
        os.close(file)
        path.unlink()
    return {name: statistics.median(values) for name, values in taken.items()}
