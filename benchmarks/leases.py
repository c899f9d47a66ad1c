"""How many open episodes one server carries: heartbeats, chat calls and memory with 10,000 leases from 100 clients.

``python -m benchmarks.leases [--episodes 10000] [--clients 100] [--seconds 20] [--json FILE]``. The server is a process
of its own (real tokenizer, instant fake backbone, journal on, fsync on); the load is this one. Each client beats once a
second for all of its episodes, by name; chat calls go to random open episodes at a fixed rate. Requests are sent when
their time has come, whatever became of earlier ones, and latencies count from that time, so that a stall shows.

The machine's own noise is measured beside it: how late a timer of this process fires. It is part of every latency.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway import Connection, cpu_seconds

BEAT_S = 1.0
TIMEOUT_S = 10.0
PROBE_S = 0.01


@dataclass(frozen=True)
class Scale:
    """What is measured."""

    episodes: int = 10_000
    clients: int = 100
    calls_per_s: float = 200.0
    seconds: float = 20.0
    pairs_s: float = 5.0
    pair_connections: int = 32


def quantiles(values: list[float]) -> dict[str, float]:
    """In milliseconds."""
    cuts = statistics.quantiles(values, n=100) if len(values) > 1 else values * 99
    found = {"p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98], "max_ms": max(values)}
    return {name: round(value * 1e3, 3) for name, value in found.items()}


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no memory size of process {pid}")


class Connections:
    """Keep-alive connections; as many as are in use at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Connection] = []

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        connection = self._free.pop() if self._free else None
        if connection is None:
            connection = Connection(self._port)
            await connection.open()
        answer = await connection.ask(method, path, body, key)
        self._free.append(connection)
        return answer


@contextlib.asynccontextmanager
async def server(
    model_dir: str, folder: str | None, job: dict[str, Any], *flags: str
) -> AsyncIterator[tuple[int, int]]:
    """A rolling server process. Yields (pid, port)."""
    with tempfile.TemporaryDirectory(dir=folder) as exp_dir:
        command = [sys.executable, "-m", "benchmarks.gateway", "--serve", exp_dir, "--model", model_dir, *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: ASYNC220
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            port = int(line.strip().rpartition(":")[2])
            asks = Connections(port)
            while True:
                try:
                    await asks.ask("PUT", "/swarm/v1/job", {"job": job})
                    break
                except ConnectionError:
                    await asyncio.sleep(0.05)
            await asks.ask("POST", "/swarm/v1/engine/start", {})
            await asks.ask("GET", "/swarm/v1/status?wait_state=ROLLING&wait_s=30")
            yield process.pid, port
        finally:
            process.terminate()
            process.wait(30)


async def paced(every_s: float, until: float, act: Callable[[], Awaitable[None]], latencies: list[float]) -> None:
    """Call ``act`` every ``every_s``, without waiting for it; latencies count from when it was due."""
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        await act()
        latencies.append(loop.time() - due)

    due = loop.time() + random.random() * every_s
    while due < until:
        await asyncio.sleep(max(0.0, due - loop.time()))
        task = asyncio.create_task(one(due))
        running.add(task)
        task.add_done_callback(lambda done: (running.discard(done), done.result()))
        due += every_s
    while running:
        await asyncio.wait(running)


async def nothing() -> None:
    pass


async def begin(asks: Connections, client: str, request: str) -> dict[str, Any]:
    body = {"client_id": client, "request_id": request, "wait_s": 60, "discard_episode_timeout": TIMEOUT_S}
    return await asks.ask("POST", "/swarm/v1/episodes", body)


async def measure(scale: Scale, model_dir: str, folder: str | None = None) -> dict[str, Any]:
    job = {
        "experiment_name": "leases",
        "rollout": {
            "max_env_worker": scale.episodes + scale.pair_connections,
            "max_model_len": 100000,
            "max_response_length_in_one_turn": 16,
        },
        "data": {"train_batch_size": 1_000_000},
    }
    async with server(model_dir, folder, job) as (pid, port):
        asks = Connections(port)
        empty = resident_bytes(pid)
        opened: dict[str, list[dict[str, Any]]] = {f"client-{c}": [] for c in range(scale.clients)}

        async def open_all(client: str, count: int) -> None:
            for k in range(count):
                opened[client].append(await begin(asks, client, f"r{k}"))

        began = time.monotonic()
        stop_beats = asyncio.Event()

        async def keep_alive() -> None:
            """While the rest is opened, what is open shows life."""
            while not stop_beats.is_set():
                for client in opened:
                    await asks.ask("POST", "/swarm/v1/heartbeat", {"client_id": client})
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stop_beats.wait(), BEAT_S)

        beats_alive = asyncio.create_task(keep_alive())
        await asyncio.gather(*(open_all(client, scale.episodes // scale.clients) for client in opened))
        begins_per_s = scale.episodes / (time.monotonic() - began)
        full = resident_bytes(pid)

        every = [one for episodes in opened.values() for one in episodes]
        beats: list[float] = []
        calls: list[float] = []
        noise: list[float] = []
        gone: set[str] = set()
        loop = asyncio.get_running_loop()
        until = loop.time() + scale.seconds
        cpu = cpu_seconds(pid)

        async def beat(client: str) -> None:
            names = [one["episode_id"] for one in opened[client]]
            answer = await asks.ask("POST", "/swarm/v1/heartbeat", {"client_id": client, "episodes": names})
            gone.update(answer["gone"])

        async def call() -> None:
            messages = [{"role": "system", "content": "You are a wolf. " * 40}, {"role": "user", "content": "Speak."}]
            body = {"model": "policy", "messages": messages}
            await asks.ask("POST", "/v1/chat/completions", body, random.choice(every)["api_key"])

        stop_beats.set()
        await beats_alive
        workers = [paced(BEAT_S, until, lambda client=client: beat(client), beats) for client in opened]
        workers += [paced(8 / scale.calls_per_s, until, call, calls) for _ in range(8)]
        workers.append(paced(PROBE_S, until, nothing, noise))
        await asyncio.gather(*workers)
        cpu = cpu_seconds(pid) - cpu
        status = await asks.ask("GET", "/swarm/v1/status")
        after = resident_bytes(pid)

        pairs = [0]
        ended = loop.time() + scale.pairs_s

        async def pair(worker: int) -> None:
            while loop.time() < ended:
                pairs[0] += 1
                begun = await begin(asks, f"pair-{worker}", f"p{pairs[0]}")
                body = {"request_id": "e", "task": {"task_id": "t"}, "output": {"reward": 1.0}}
                await asks.ask("POST", f"/swarm/v1/episodes/{begun['episode_id']}/end", body)

        async def all_alive() -> None:
            """The many stay open while pairs come and go."""
            for client in opened:
                await asks.ask("POST", "/swarm/v1/heartbeat", {"client_id": client})

        pair_beats: list[float] = []
        started = time.monotonic()
        await asyncio.gather(
            *(pair(worker) for worker in range(scale.pair_connections)), paced(BEAT_S, ended, all_alive, pair_beats)
        )
        wall = time.monotonic() - started
        last = await asks.ask("GET", "/swarm/v1/status")
    return {
        "episodes": len(every),
        "clients": scale.clients,
        "seconds": scale.seconds,
        "heartbeat": {"count": len(beats), **quantiles(beats)},
        "chat": {"count": len(calls), "per_s": round(len(calls) / scale.seconds, 1), **quantiles(calls)},
        "noise": quantiles(noise),
        "server_cpu_share": round(cpu / scale.seconds, 3),
        "leases_lost": len(gone) + 2 * len(every) - status["leases"]["open_train"] - last["leases"]["open_train"],
        "drops": {k: n for k, n in last["drops"].items() if k != "no_calls"},
        "begins_per_s": round(begins_per_s, 1),
        "pairs_per_s": round(pairs[0] / wall, 1),
        "bytes_per_open_episode": round((full - empty) / len(every)),
        "bytes_per_open_episode_after_calls": round((after - empty) / len(every)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Scale()
    parser.add_argument("--episodes", type=int, default=default.episodes)
    parser.add_argument("--clients", type=int, default=default.clients)
    parser.add_argument("--calls", type=float, default=default.calls_per_s, help="chat calls a second")
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--dir", help="folder for the journal; default: the system's temporary folder")
    parser.add_argument("--json")
    options = parser.parse_args()
    from tests.fakes.chat_model import save_tokenizer

    scale = Scale(options.episodes, options.clients, options.calls, options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(scale, str(save_tokenizer(Path(folder) / "model")), options.dir))
    print(f"{result['episodes']} open episodes of {result['clients']} clients, {result['seconds']:g} s:")
    print(f"{'':12} {'count':>7} {'p50 ms':>9} {'p95 ms':>9} {'p99 ms':>9} {'max ms':>9}")
    for name in ("heartbeat", "chat", "noise"):
        row = result[name]
        cells = " ".join(f"{row[k]:9.2f}" for k in ("p50_ms", "p95_ms", "p99_ms", "max_ms"))
        print(f"{name:12} {row.get('count', ''):>7} {cells}")
    for name in (
        "leases_lost",
        "drops",
        "begins_per_s",
        "pairs_per_s",
        "bytes_per_open_episode",
        "bytes_per_open_episode_after_calls",
        "server_cpu_share",
    ):
        print(f"{name:36} {result[name]}")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
