"""What the chat path costs: requests a second, server CPU and latency with an instant fake backbone, journal on and off.

``python -m benchmarks.gateway [--seconds 5] [--connections 32] [--json FILE]``. The server is a process of its own with
a real tokenizer; the load is another process that speaks HTTP over plain sockets, so that it costs little itself. Each
connection plays episodes of twelve calls over a growing history, then ends them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CALLS = 12
SPEECH = "Player {n} speaks: I have watched the votes of the last two nights and I do not believe what Player 4 said. "


def serve(exp_dir: str, model_dir: str, profile: str | None, no_journal: bool) -> None:
    """The server process. ``no_journal``: appends are believed and not written, to see what writing costs."""
    from ajet.server.main import serve as run
    from ajet.trajectory import ChatRenderer
    from tests.fakes.backbone import FakeBackbone

    renderer = ChatRenderer(model_dir)
    if no_journal:
        from ajet.pool.journal import Journal

        def believe(_self: Journal, *_records: Any) -> asyncio.Future[None]:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        Journal.append = believe  # type: ignore[method-assign]

    def start() -> None:
        run(
            port=0,
            exp_dir=exp_dir,
            backbone_factory=lambda _config: FakeBackbone(keep=False),
            renderer_factory=lambda _config: renderer,
            on_listening=lambda url: print(url, flush=True),
        )

    if profile is None:
        start()
        return
    import cProfile
    import signal

    signal.signal(signal.SIGTERM, lambda *_: None)
    profiler = cProfile.Profile()
    profiler.runcall(start)
    profiler.dump_stats(profile)


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else b""
        auth = f"authorization: Bearer {key}\r\n" if key else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n{auth}\r\n"
        self._writer.write(head.encode() + data)
        headers = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(x.split(b":")[1]) for x in headers.split(b"\r\n") if x.lower().startswith(b"content-length"))
        answer = json.loads(await self._reader.readexactly(length))
        if headers[9:10] != b"2":
            raise RuntimeError(f"{path}: {answer}")
        return answer


async def play(connection: Connection, name: str, until: float, latencies: list[float], ends: list[int]) -> None:
    k = 0
    while time.monotonic() < until:
        k += 1
        begun = await connection.ask(
            "POST", "/swarm/v1/episodes", {"client_id": name, "request_id": str(k), "wait_s": 60, "kind": "eval"}
        )
        messages = [{"role": "system", "content": "You are a wolf. " * 40}]
        for n in range(CALLS):
            messages.append({"role": "user", "content": SPEECH.format(n=n) * 3})
            started = time.perf_counter()
            reply = await connection.ask(
                "POST",
                "/v1/chat/completions",
                {"model": "policy", "messages": messages, "temperature": 1},
                begun["api_key"],
            )
            latencies.append(time.perf_counter() - started)
            messages.append(reply["choices"][0]["message"])
        body = {"request_id": "e", "task": {"task_id": "t"}, "output": {"reward": 1.0}}
        await connection.ask("POST", f"/swarm/v1/episodes/{begun['episode_id']}/end", body)
        ends[0] += 1


async def load(port: int, connections: int, seconds: float) -> dict[str, float]:
    opened = [Connection(port) for _ in range(connections)]
    await asyncio.gather(*(c.open() for c in opened))
    latencies: list[float] = []
    ends = [0]
    began = time.monotonic()
    await asyncio.gather(
        *(play(c, f"c{i}-{connections}", began + seconds, latencies, ends) for i, c in enumerate(opened))
    )
    wall = time.monotonic() - began
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "calls_per_s": len(latencies) / wall,
        "episodes_per_s": ends[0] / wall,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "calls": len(latencies),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(sync: str, model_dir: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.dir) as exp_dir:
        command = [sys.executable, "-m", "benchmarks.gateway", "--serve", exp_dir, "--model", model_dir]
        if options.profile:
            command += ["--profile", options.profile]
        if sync == "off":
            command.append("--no-journal")
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: ASYNC220
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().strip().rpartition(":")[2])
            control = Connection(port)
            await asyncio.sleep(0.3)
            await control.open()
            job = {
                "experiment_name": "gateway",
                "journal": {"sync": "full" if sync == "off" else sync},
                "rollout": {"max_env_worker": 4096, "max_model_len": 100000, "max_response_length_in_one_turn": 16},
            }
            await control.ask("PUT", "/swarm/v1/job", {"job": job})
            await control.ask("POST", "/swarm/v1/engine/start", {})
            await control.ask("GET", "/swarm/v1/status?wait_state=ROLLING&wait_s=30")
            before = cpu_seconds(server.pid)
            busy = await load(port, options.connections, options.seconds)
            cpu = cpu_seconds(server.pid) - before
            alone = await load(port, 1, min(options.seconds, 2.0))
            return {
                "journal": sync,
                **busy,
                "cpu_ms_per_call": cpu / busy["calls"] * 1e3,
                "alone_p50_ms": alone["p50_ms"],
            }
        finally:
            server.terminate()
            server.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--sync", nargs="*", default=["full", "normal", "off"])
    parser.add_argument("--dir", help="folder for the journals; default: the system's temporary folder")
    parser.add_argument("--json")
    parser.add_argument("--profile", help="write the server's cProfile here")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--no-journal", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.model, options.profile, options.no_journal)
        return
    from tests.fakes.chat_model import save_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        model_dir = str(save_tokenizer(Path(folder) / "model"))
        results = [asyncio.run(measure(sync, model_dir, options)) for sync in options.sync]
    print(
        f"{'journal':8} {'calls/s':>9} {'episodes/s':>10} {'CPU ms/call':>12} {'p50 ms':>8} {'p99 ms':>8} {'alone p50 ms':>13}"
    )
    for r in results:
        print(
            f"{r['journal']:8} {r['calls_per_s']:9.0f} {r['episodes_per_s']:10.1f} {r['cpu_ms_per_call']:12.3f} "
            f"{r['p50_ms']:8.2f} {r['p99_ms']:8.2f} {r['alone_p50_ms']:13.2f}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
