"""What durability costs: chat calls a second and latency with the journal at ``full``, ``normal`` and not written at all.

``python -m benchmarks.durability [--rounds 5] [--seconds 4] [--connections 32] [--json FILE]``. Three servers run at once,
each a process with a real tokenizer and an instant fake backbone; they are loaded one after another, in an order that
turns with every round, so that what else the machine does meets all three alike. Each round has two parts: many
connections (calls a second, server CPU), and one alone (what a call that shares its commit with nobody waits for).

``full``: an answer is sent after an fsync, and survives a power loss. ``normal``: it survives a killed process.
``none``: appends are believed and not written. Figures are medians over the rounds with their spread; *added* latency
and ratios are taken within a round, then the median over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gateway import Connection, cpu_seconds, play
from benchmarks.leases import server

MODES = ("full", "normal", "none")


async def load(port: int, connections: int, seconds: float, name: str) -> dict[str, float]:
    opened = [Connection(port) for _ in range(connections)]
    await asyncio.gather(*(connection.open() for connection in opened))
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    began = loop.time()
    until = began + seconds
    await asyncio.gather(*(play(c, f"{name}-{i}", until, latencies, [0]) for i, c in enumerate(opened)))
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "calls_per_s": len(latencies) / (loop.time() - began),
        "calls": len(latencies),
        "p50_ms": cuts[49] * 1e3,
        "p95_ms": cuts[94] * 1e3,
        "p99_ms": cuts[98] * 1e3,
    }


async def one_round(pid: int, port: int, options: argparse.Namespace, name: str) -> dict[str, float]:
    before = cpu_seconds(pid)
    many = await load(port, options.connections, options.seconds, f"many-{name}")
    cpu = cpu_seconds(pid) - before
    alone = await load(port, 1, options.seconds / 2, f"alone-{name}")
    return {
        **many,
        "cpu_ms_per_call": cpu / many["calls"] * 1e3,
        **{f"alone_{key}": alone[key] for key in ("p50_ms", "p95_ms", "p99_ms")},
    }


async def measure(options: argparse.Namespace, model_dir: str) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for mode in MODES:
            job: dict[str, Any] = {
                "experiment_name": f"durability-{mode}",
                "journal": {"sync": "full" if mode == "none" else mode},
                "rollout": {"max_env_worker": 4096, "max_model_len": 100000, "max_response_length_in_one_turn": 16},
            }
            flags = ["--no-journal"] if mode == "none" else []
            servers[mode] = await stack.enter_async_context(server(model_dir, options.dir, job, *flags))
        for mode in MODES:
            await load(servers[mode][1], options.connections, 1.0, "warm")
        for k in range(options.rounds):
            for mode in MODES[k % 3 :] + MODES[: k % 3]:
                found[mode].append(await one_round(*servers[mode], options, f"r{k}"))
                print(f"round {k + 1} {mode:7} {found[mode][-1]['calls_per_s']:8.0f} calls/s", flush=True)
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def compare(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Every figure's median and spread, and each mode beside ``none`` in the same round."""
    table: dict[str, Any] = {}
    for mode in MODES:
        rounds, bare = found[mode], found["none"]
        table[mode] = {key: spread([r[key] for r in rounds]) for key in rounds[0] if key != "calls"}
        table[mode]["calls_per_s_ratio"] = spread(
            [r["calls_per_s"] / b["calls_per_s"] for r, b in zip(rounds, bare, strict=True)]
        )
        for key in rounds[0]:
            if key.endswith("_ms"):
                table[mode][f"added_{key}"] = spread([r[key] - b[key] for r, b in zip(rounds, bare, strict=True)])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--dir", help="folder for the journals; default: the system's temporary folder")
    parser.add_argument("--json")
    options = parser.parse_args()
    from tests.fakes.chat_model import save_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(options, str(save_tokenizer(Path(folder) / "model"))))
    table = compare(found)
    rows = [
        ("calls/s", "calls_per_s"),
        ("calls/s, of none", "calls_per_s_ratio"),
        ("server CPU ms/call", "cpu_ms_per_call"),
        *((f"{options.connections} at once {q} ms", f"{q}_ms") for q in ("p50", "p95", "p99")),
        *((f"{options.connections} at once {q} added ms", f"added_{q}_ms") for q in ("p50", "p95", "p99")),
        *((f"alone {q} ms", f"alone_{q}_ms") for q in ("p50", "p95", "p99")),
        *((f"alone {q} added ms", f"added_alone_{q}_ms") for q in ("p50", "p95", "p99")),
    ]
    print(f"\n{options.rounds} rounds, median (lowest … highest)")
    print(f"{'':24} " + " ".join(f"{mode:>27}" for mode in MODES))
    for title, key in rows:
        cells = []
        for mode in MODES:
            s = table[mode][key]
            cells.append(f"{s['median']:9.2f} ({s['low']:.2f} … {s['high']:.2f})".rjust(27))
        print(f"{title:24} " + " ".join(cells))
    if options.json:
        Path(options.json).write_text(json.dumps({"rounds": found, "table": table}, indent=1))


if __name__ == "__main__":
    main()
