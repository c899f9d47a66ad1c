"""Claims about holding back, by simulation: whatever the clients play, training never stands still for it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.pool.groups import EPISODES, TASKS, Finished, GroupPool
from ajet.pool.leases import LeaseBook
from ajet.pool.roster import Roster
from ajet.schema.throttle import SwarmThrottlePolicy
from ajet.schema.wire import BeginRequest
from ajet.server.sharing import HELD, Sharing


class NoJournal:
    """Keeps nothing: what is claimed here is about memory."""

    def append(self, *_records):
        done = asyncio.Future(loop=self.loop)
        done.set_result(None)
        return done

    loop = asyncio.new_event_loop()


clients = st.lists(
    st.fixed_dictionaries(
        {
            "size": st.sampled_from([None, 1.0, 2.0, 5.0, 40.0]),
            "named": st.booleans(),
            "tells": st.booleans(),
            "breadth": st.booleans(),
            "ratio": st.sampled_from([1.0, 1.5, 3.0]),
            "threads": st.integers(1, 6),
        }
    ),
    min_size=1,
    max_size=3,
)


class Client:
    """Asks for the next episode of its tasks, each of which it plays ``repeat`` times, one after the other or in rounds."""

    def __init__(self, number, plan, repeat):
        self.name, self.plan, self.repeat, self.played, self.asks = f"c{number}", plan, repeat, 0, 0

    def task(self):
        n = self.played
        wide = 7
        return f"t{(n // (wide * self.repeat)) * wide + n % wide if self.plan['breadth'] else n // self.repeat}"

    def request(self):
        self.asks += 1
        plan, task = self.plan, self.task()
        throttle = None
        if plan["size"]:
            throttle = SwarmThrottlePolicy(
                ratio=plan["ratio"], expected_batch_size=plan["size"], current_task_id=task if plan["tells"] else None
            )
        return task, BeginRequest(
            client_id=self.name,
            request_id=str(self.asks),
            share=f"s{self.name}" if plan["named"] else None,
            throttle=throttle,
            task_id=f"{task}" if plan["tells"] and not throttle else None,
        )


@given(
    clients, st.integers(1, 4), st.integers(1, 6), st.integers(1, 8), st.sampled_from([TASKS, EPISODES]), st.integers()
)
@settings(max_examples=60, deadline=None)
def test_whoever_is_held_back_comes_free_and_every_live_share_trains(plans, repeat, size, capacity, rule, seed):
    draw = random.Random(seed)
    pool = GroupPool(repeat, size, rule, max_policy_lag=10**6)
    sharing = Sharing(
        NoJournal(),
        LeaseBook(capacity, 1e9),
        pool,
        Roster(1e9),
        {},
        next_step=lambda: 1,
        now=lambda: 0.0,  # type: ignore[arg-type]
    )
    held: Counter[str] = Counter()
    sharing.count = lambda name: held.update([name])
    everyone = [Client(i, plan, repeat) for i, plan in enumerate(plans)]
    waiting: dict[str, tuple[Client, str, BeginRequest]] = {}
    playing: dict[str, tuple[Client, str, BeginRequest]] = {}
    trained: Counter[str] = Counter()
    batches = count = idle = 0
    while batches < 4:
        for client in everyone:
            busy = sum(entry[0] is client for entry in (*waiting.values(), *playing.values()))
            if busy < client.plan["threads"] and not any(entry[0] is client for entry in waiting.values()):
                task, request = client.request()
                waiting[f"{client.name}/{request.request_id}"] = (client, task, request)
                sharing.join(request)
        granted = None
        if len(playing) < capacity:
            granted = (
                sharing.pick(waiting, lambda key: waiting[key][2]) if sharing.active else next(iter(waiting), None)
            )
        if granted is not None:
            client, task, request = waiting.pop(granted)
            client.played += 1
            sharing.enter(granted, sharing.share_of(request), request.told_task)
            playing[granted] = client, task, request
            if draw.random() < 0.5:
                continue
        ended = bool(playing)
        if playing:
            key = draw.choice(sorted(playing))
            client, task, request = playing.pop(key)
            share = sharing.share_of(request)
            sharing.exit(key)
            if draw.random() < 0.9:  # else aborted
                count += 1
                # Clients without a named share have tasks of their own.
                name = task if request.share else f"{client.name}-{task}"
                pool.add(
                    Finished(
                        f"e{count}", name if not client.plan["tells"] else task, {"main": (float(count),)}, 0, share
                    ),
                    0.0,
                )
        batch = pool.take(sharing.moment(), 0.0)
        idle = idle + 1 if batch is None else 0
        assert granted is not None or ended or batch is not None, "nothing can happen any more"
        assert idle < 20_000
        if batch is not None:
            sharing.settle(batch)
            batches += 1
            trained.update(group.share for group in batch.groups)
    assert set(held) <= {HELD}
    assert sharing.active or set(trained) == {""}
