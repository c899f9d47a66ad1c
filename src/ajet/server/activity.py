"""Who plays what just now, in sums: open episodes by client and by task. For people who watch a run.

One pass over what is open; what is returned is bounded, however many episodes, clients and tasks there are.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from ajet.pool.groups import GroupPool
from ajet.schema.status import Activity, ClientActivity, TaskActivity
from ajet.server.episode import OpenEpisode

QUIET = 0.5
"""A client whose quietest episode has used so much of its patience is listed before busier ones."""


@dataclass(slots=True)
class _Client:
    """As :class:`ClientActivity`; plain, because ten thousand episodes are added up between two requests."""

    client_id: str
    patience_s: float
    episodes: int = 0
    calls: int = 0
    in_flight: int = 0
    idle_s: float = 0.0
    granted: float = math.inf

    def order(self) -> tuple[float, int, str]:
        share = self.idle_s / self.patience_s
        return -share if share >= QUIET else 0.0, -self.episodes, self.client_id


def activity(episodes: Iterable[OpenEpisode], pool: GroupPool, top: int, now: float) -> Activity:
    """The ``top`` clients and tasks that matter most.

    Args:
        episodes: the open ones. now: on the clock of their leases, in seconds.
    """
    clients: dict[str, _Client] = {}
    running: Counter[str | None] = Counter()
    for episode in episodes:
        lease = episode.lease
        one = clients.get(lease.client)
        if one is None:
            one = clients[lease.client] = _Client(lease.client, lease.timeout_s)
        one.episodes += 1
        one.calls += len(episode.trajectory.calls)
        one.in_flight += len(episode.in_flight)
        if lease.granted < one.granted:
            one.granted = lease.granted
        if not lease.busy:
            idle = now - lease.seen
            if idle * one.patience_s > one.idle_s * lease.timeout_s:
                one.idle_s, one.patience_s = idle, lease.timeout_s
        if lease.kind == "train":
            running[episode.opened.task] += 1
    tasks = _tasks(pool, running)
    return Activity(
        clients=[
            ClientActivity(
                client_id=one.client_id,
                episodes=one.episodes,
                calls=one.calls,
                in_flight=one.in_flight,
                idle_s=round(one.idle_s, 3),
                patience_s=one.patience_s,
                oldest_s=round(max(0.0, now - one.granted), 3),
            )
            for one in heapq.nsmallest(top, clients.values(), key=_Client.order)
        ],
        clients_total=len(clients),
        tasks=[
            TaskActivity(task_id=task, ready=ready, finished=finished, needed=pool.num_repeat, running=running[task])
            for task, (finished, ready) in heapq.nsmallest(top, tasks.items(), key=partial(_task_order, running))
        ],
        tasks_total=len(tasks),
    )


def _tasks(pool: GroupPool, running: Counter[str | None]) -> dict[str | None, tuple[int, int]]:
    """Task → episodes of its group that is filling, whole groups that wait."""
    found: dict[str | None, tuple[int, int]] = dict.fromkeys(running, (0, 0))
    for group in pool.groups():
        finished, ready = found.get(group.task, (0, 0))
        size = len(group.members)
        found[group.task] = (finished, ready + 1) if size == pool.num_repeat else (size, ready)
    return found


def _task_order(running: Counter[str | None], item: tuple[str | None, tuple[int, int]]) -> tuple[int, int, int, str]:
    task, (finished, ready) = item
    return -finished, -running[task], -ready, task or ""
