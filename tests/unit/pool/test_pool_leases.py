"""Claims about leases, by property: capacity, order, one end, no silence while busy."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from ajet.pool.leases import LeaseBook
from ajet.schema.drops import DropReason

MAX_AGE = 50.0


class LeaseMachine(RuleBasedStateMachine):
    """Random begins, heartbeats, calls, ends and time against a plain model."""

    episodes = Bundle("episodes")

    @initialize(capacity=st.integers(1, 3))
    def begin(self, capacity):
        self.book = LeaseBook(capacity, MAX_AGE)
        self.now, self.count = 0.0, 0
        self.queue: dict[str, list[str]] = {"train": [], "eval": []}
        self.model: dict[str, dict] = {}

    def _grant(self, kind):
        while True:
            ticket = self.book.next_ticket(kind)
            free = sum(m["kind"] == kind for m in self.model.values()) < self.book.capacity
            assert (ticket is not None) == (free and bool(self.queue[kind]))
            if ticket is None:
                return
            assert ticket == self.queue[kind].pop(0)
            self.book.claim(ticket, "c1", kind, 10.0, self.now)
            self.model[ticket] = {"kind": kind, "granted": self.now, "seen": self.now, "busy": 0}

    @rule(target=episodes, kind=st.sampled_from(["train", "eval"]))
    def ask(self, kind):
        self.count += 1
        ticket = f"e{self.count}"
        self.book.enqueue(ticket, kind)
        self.queue[kind].append(ticket)
        self._grant(kind)
        return ticket

    @rule(episode=episodes)
    def withdraw(self, episode):
        for kind in ("train", "eval"):
            waiting = episode in self.queue[kind]
            assert self.book.withdraw(episode, kind) == waiting
            if waiting:
                self.queue[kind].remove(episode)

    @rule(episode=episodes)
    def touch(self, episode):
        assert self.book.touch(episode, self.now) == (episode in self.model)
        if episode in self.model:
            self.model[episode]["seen"] = self.now

    @rule(episode=episodes)
    def call_begins(self, episode):
        assert self.book.enter(episode, self.now) == (episode in self.model)
        if episode in self.model:
            self.model[episode]["seen"] = self.now
            self.model[episode]["busy"] += 1

    @rule(episode=episodes)
    def call_ends(self, episode):
        if episode in self.model and self.model[episode]["busy"]:
            self.book.leave(episode, self.now)
            self.model[episode]["busy"] -= 1
            self.model[episode]["seen"] = self.now

    @rule(episode=episodes)
    def end(self, episode):
        lease = self.book.close(episode)
        assert (lease is not None) == (episode in self.model)
        known = self.model.pop(episode, None)
        if known:
            self._grant(known["kind"])

    @rule(named=st.booleans(), data=st.data())
    def heartbeat(self, named, data):
        names = data.draw(st.lists(st.sampled_from([*sorted(self.model), "nobody"]), unique=True)) if named else None
        alive, gone = self.book.heartbeat("c1", names, self.now)
        expected = set(self.model) if names is None else set(names) & set(self.model)
        assert alive == len(expected)
        assert gone == ([] if names is None else [name for name in names if name not in self.model])
        for name in expected:
            self.model[name]["seen"] = self.now

    @rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds):
        self.now += seconds
        due = {lease.episode: why for lease, why in self.book.due(self.now)}
        expected = {}
        for name, m in self.model.items():
            if self.now >= m["granted"] + MAX_AGE:
                expected[name] = DropReason.TOO_OLD
            elif not m["busy"] and self.now >= m["seen"] + 10.0:
                expected[name] = DropReason.SILENT
        assert due == expected
        for name in due:
            self.book.close(name)
            kind = self.model.pop(name)["kind"]
            self._grant(kind)

    @rule(seconds=st.floats(0, 30))
    def the_disk_is_full_for_a_while(self, seconds):
        self.now += seconds
        self.book.shift(seconds)
        for m in self.model.values():
            m["granted"] += seconds
            m["seen"] += seconds

    @invariant()
    def capacity_holds(self):
        for kind in ("train", "eval"):
            assert self.book.open(kind) == sum(m["kind"] == kind for m in self.model.values()) <= self.book.capacity
            assert self.book.waiting(kind) == len(self.queue[kind])

    @invariant()
    def nothing_is_due_before_the_next_deadline(self):
        deadline = self.book.next_deadline()
        assert (deadline is None) == (not self.model)
        if deadline is not None:
            true = min(
                min(m["granted"] + MAX_AGE, float("inf") if m["busy"] else m["seen"] + 10.0)
                for m in self.model.values()
            )
            assert deadline <= true


LeaseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeases = LeaseMachine.TestCase


def test_a_client_keeps_only_its_own_leases_alive():
    book = LeaseBook(4, MAX_AGE)
    book.grant("mine", "c1", "train", 10.0, 0.0)
    book.grant("theirs", "c2", "train", 10.0, 0.0)
    assert book.heartbeat("c1", ["mine", "theirs"], 9.0) == (1, ["theirs"])
    assert [lease.episode for lease, _ in book.due(11.0)] == ["theirs"]
