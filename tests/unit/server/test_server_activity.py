"""Claims about what the server says of who plays what."""

import time
from collections import Counter
from types import SimpleNamespace

from ajet.pool.groups import Finished, GroupPool
from ajet.pool.leases import Lease
from ajet.server.activity import activity


def episode(client, task="t", *, kind="train", seen=100.0, granted=100.0, patience=240.0, busy=0, calls=0):
    lease = Lease(f"e{id(client)}", client, kind, patience, granted, seen, busy)
    trajectory = SimpleNamespace(calls=dict.fromkeys(range(calls)))
    return SimpleNamespace(
        lease=lease, opened=SimpleNamespace(task=task), trajectory=trajectory, in_flight=set(range(busy))
    )


def pool(finished, num_repeat=4):
    made = GroupPool(num_repeat=num_repeat, batch_size=8)
    for n, task in enumerate(finished):
        made.add(Finished(f"f{n}", task, {"default": (1.0,)}, 0), 0.0)
    return made


def test_a_clients_episodes_are_summed_and_its_idle_time_is_of_the_one_nearest_to_its_end():
    found = activity(
        [
            episode("a", calls=3, seen=90.0, patience=100.0, granted=20.0),
            episode("a", calls=2, seen=70.0, patience=3600.0),
            episode("a", calls=1, seen=0.0, busy=2, patience=1.0),
        ],
        pool([]), 10, now=100.0,
    )  # fmt: skip
    (client,) = found.clients
    assert (client.episodes, client.calls, client.in_flight, client.oldest_s) == (3, 6, 2, 80.0)
    assert (client.idle_s, client.patience_s) == (10.0, 100.0)


def test_quiet_clients_come_first_then_busy_ones():
    open_now = [episode("many", seen=99.0) for _ in range(5)] + [episode("one", seen=99.0)]
    open_now += [episode("quiet", seen=-30.0), episode("quieter", seen=-100.0)]
    found = activity(open_now, pool([]), 3, now=100.0)
    assert [client.client_id for client in found.clients] == ["quieter", "quiet", "many"]
    assert found.clients_total == 4


def test_tasks_show_ready_groups_finished_episodes_and_running_ones():
    open_now = [episode("a", "filling"), episode("a", "new"), episode("a", None), episode("a", "filling", kind="eval")]
    found = activity(open_now, pool(["filling"] * 6 + ["whole"] * 4), 10, now=100.0)
    shown = {task.task_id: (task.ready, task.finished, task.needed, task.running) for task in found.tasks}
    assert shown == {"filling": (1, 2, 4, 1), "whole": (1, 0, 4, 0), "new": (0, 0, 4, 1), None: (0, 0, 4, 1)}
    assert found.tasks[0].task_id == "filling"
    assert found.tasks_total == 4


def test_ten_thousand_episodes_make_a_short_answer_that_adds_up():
    open_now = [episode(f"c{n % 300}", f"task-{n % 2000}", calls=2) for n in range(10_000)]
    waiting = pool([f"task-{n % 1500}" for n in range(3000)])
    began = time.perf_counter()
    found = activity(open_now, waiting, 20, now=101.0)
    assert time.perf_counter() - began < 2.0
    assert (len(found.clients), found.clients_total, len(found.tasks), found.tasks_total) == (20, 300, 20, 2000)
    assert len(found.model_dump_json()) < 8000
    whole = activity(open_now, waiting, 10_000, now=101.0)
    assert sum(client.episodes for client in whole.clients) == 10_000
    assert Counter(task.finished for task in whole.tasks) == {2: 1500, 0: 500}
