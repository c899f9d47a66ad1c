"""Who plays what just now, in sums: open episodes by client and by task. For people who watch a run.

One pass over what is open; what is returned is bounded, however many episodes, clients and tasks there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet.pool.groups import GroupPool
from ajet.schema.wire import Activity, ClientActivity, TaskActivity
from ajet.server.episode import OpenEpisode

QUIET = 0.5
"""A client whose quietest episode has used so much of its patience is listed before busier ones."""


def activity(episodes: Iterable[OpenEpisode], pool: GroupPool, top: int, now: float) -> Activity:
    """The ``top`` clients and tasks that matter most.

    Args:
        episodes: the open ones. now: on the clock of their leases and of the pool, in seconds.
    """
    clients: dict[str, ClientActivity] = {}
    running: dict[str | None, int] = {}
    for episode in episodes:
        lease = episode.lease
        idle, age = (0.0 if lease.busy else now - lease.seen), now - lease.granted
        one = clients.get(lease.client)
        if one is None:
            one = clients[lease.client] = ClientActivity(
                client_id=lease.client, idle_s=idle, patience_s=lease.timeout_s
            )
        one.episodes += 1
        one.calls += len(episode.trajectory.calls)
        one.in_flight += len(episode.in_flight)
        one.oldest_s = max(one.oldest_s, age)
        if idle * one.patience_s > one.idle_s * lease.timeout_s:
            one.idle_s, one.patience_s = idle, lease.timeout_s
        if lease.kind == "train":
            running[episode.opened.task] = running.get(episode.opened.task, 0) + 1
    tasks = _tasks(pool, running)
    return Activity(
        clients=[_rounded(one) for one in sorted(clients.values(), key=_client_order)[:top]],
        clients_total=len(clients),
        tasks=sorted(tasks, key=_task_order)[:top],
        tasks_total=len(tasks),
    )


def _tasks(pool: GroupPool, running: dict[str | None, int]) -> list[TaskActivity]:
    found = {task: TaskActivity(task_id=task, running=n, needed=pool.num_repeat) for task, n in running.items()}
    for group in pool.groups():
        one = found.get(group.task)
        if one is None:
            one = found[group.task] = TaskActivity(task_id=group.task, needed=pool.num_repeat)
        if len(group.members) == pool.num_repeat:
            one.ready += 1
        else:
            one.finished = len(group.members)
    return list(found.values())


def _task_order(task: TaskActivity) -> tuple[int, int, int, str]:
    return -task.finished, -task.running, -task.ready, task.task_id or ""


def _client_order(client: ClientActivity) -> tuple[float, int, str]:
    share = client.idle_s / client.patience_s
    return -share if share >= QUIET else 0.0, -client.episodes, client.client_id


def _rounded(client: ClientActivity) -> ClientActivity:
    client.idle_s, client.oldest_s = round(client.idle_s, 3), round(client.oldest_s, 3)
    return client
