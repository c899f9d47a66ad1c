"""A burst of large results: many episodes of one client end at the same moment, each with megabytes of records.

``python -m tests.faults.burst PORT EPISODES MEGABYTES`` begins the episodes, waits for a line on stdin, sends all ends at
once, each over its own connection, and prints ``{"statuses": {...}, "fates": {...}, "seconds": ...}``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.gateway import Connection

CLIENT = "burst"


def records(megabytes: float) -> list[dict[str, Any]]:
    """What a game would keep of itself: many small entries."""
    one = {
        "turn": 1,
        "speaker": "Player 3",
        "text": "I have watched the votes of the last two nights. " * 3,
        "votes": [1, 2],
    }
    return [one] * int(megabytes * 1e6 / len(json.dumps(one)))


async def burst(port: int, episodes: int, megabytes: float) -> dict[str, Any]:
    opened = [Connection(port) for _ in range(episodes)]
    await asyncio.gather(*(connection.open() for connection in opened))

    async def begin(k: int) -> str:
        body = {"client_id": CLIENT, "request_id": f"r{k}", "wait_s": 60, "kind": "eval"}
        return (await opened[k].ask("POST", "/swarm/v1/episodes", body))["episode_id"]

    names = await asyncio.gather(*(begin(k) for k in range(episodes)))
    body = {
        "request_id": "end",
        "task": {"task_id": "t"},
        "output": {"reward": 1.0, "metadata": {"records": records(megabytes)}},
    }
    statuses: Counter[str] = Counter()
    fates: Counter[str] = Counter()

    async def end(k: int) -> None:
        try:
            answer = await opened[k].ask("POST", f"/swarm/v1/episodes/{names[k]}/end", body)
            statuses["ok"] += 1
            fates[answer["fate"]] += 1
        except Exception as err:
            statuses[repr(err)[:200]] += 1

    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    await asyncio.gather(*(end(k) for k in range(episodes)))
    return {"statuses": dict(statuses), "fates": dict(fates), "seconds": round(time.monotonic() - began, 2)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(burst(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
