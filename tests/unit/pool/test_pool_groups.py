"""Claims about groups and batches, by property: every episode leaves the pool exactly once, groups are exact."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ajet.pool.groups import EPISODES, NON_DUMMY, TASKS, Finished, GroupPool
from ajet.schema.drops import DropReason


def finished(episode, task="t", reward=0.0, version=0, tag="main"):
    return Finished(episode, task, {tag: (reward,)}, version)


class PoolMachine(RuleBasedStateMachine):
    """Random ends, updates and sweeps against what the pool promises."""

    @initialize(
        repeat=st.integers(1, 3),
        size=st.integers(1, 3),
        rule_name=st.sampled_from([TASKS, EPISODES, NON_DUMMY]),
        lag=st.integers(0, 2),
        deadline=st.sampled_from([None, 5.0]),
    )
    def begin(self, repeat, size, rule_name, lag, deadline):
        self.pool = GroupPool(repeat, size, rule_name, lag, deadline)
        self.added: set[str] = set()
        self.left: Counter[str] = Counter()
        self.version, self.now, self.count = 0, 0.0, 0

    @rule(task=st.sampled_from("abcd"), reward=st.sampled_from([0.0, 1.0]), lag=st.integers(0, 3))
    def end(self, task, reward, lag):
        self.count += 1
        name = f"e{self.count}"
        self.added.add(name)
        self.pool.add(finished(name, task, reward, max(0, self.version - lag)), self.now)

    @rule(seconds=st.floats(0, 4))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(put_back=st.booleans())
    def update(self, put_back):
        drops = self.pool.sweep(self.version, self.now)
        self.left.update(drop.episode for drop in drops)
        assert all(isinstance(drop.reason, DropReason) for drop in drops)
        batch = self.pool.take()
        if batch is None:
            assert not self.pool.ready()
            return
        if put_back:
            self.pool.put_back(batch)
            again = self.pool.take()
            assert again is not None
            assert again.episodes == batch.episodes
        assert len(batch.groups) == self.pool.batch_size
        for group in batch.groups:
            assert len(group.members) == self.pool.num_repeat
            assert {member.task for member in group.members} == {group.task}
            assert all(member.version >= self.version - self.pool.max_policy_lag for member in group.members)
            assert not (self.pool.rule == NON_DUMMY and group.equal_rewards)
        if self.pool.rule != EPISODES:
            assert len({group.task for group in batch.groups}) == self.pool.batch_size
        self.left.update(batch.episodes)
        self.version += 1

    @rule()
    def finish(self):
        self.left.update(drop.episode for drop in self.pool.drain(DropReason.TRAINING_FINISHED))
        assert len(self.pool) == 0

    @invariant()
    def every_episode_is_in_the_pool_or_left_it_once(self):
        assert max(self.left.values(), default=0) <= 1
        inside = [m.episode for group in self.pool.groups() for m in group.members]
        assert len(inside) == len(set(inside)) == len(self.pool)
        assert set(inside).isdisjoint(self.left)
        assert set(inside) | set(self.left) == self.added


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0])), max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_same_ends_give_the_same_batches(ends):
    def run():
        pool, batches = GroupPool(2, 2), []
        for i, (task, reward) in enumerate(ends):
            pool.add(finished(f"e{i}", task, reward), 0.0)
            batch = pool.take()
            if batch is not None:
                batches.append(batch.episodes)
        return batches

    assert run() == run()


def test_a_fifth_episode_of_a_task_opens_its_next_group():
    pool = GroupPool(num_repeat=4, batch_size=1)
    for i in range(5):
        pool.add(finished(f"e{i}"), 0.0)
    assert pool.take().episodes == ["e0", "e1", "e2", "e3"]
    assert [group.members[0].episode for group in pool.partial()] == ["e4"]


def test_a_complete_group_with_one_stale_member_is_broken_and_each_member_counted():
    pool = GroupPool(num_repeat=2, batch_size=1, max_policy_lag=1)
    pool.add(finished("old", version=0), 0.0)
    pool.add(finished("new", version=2), 0.0)
    reasons = {drop.episode: drop.reason for drop in pool.sweep(version=2, now=0.0)}
    assert reasons == {"old": DropReason.POLICY_LAG, "new": DropReason.GROUP_BROKEN}


def test_rewards_are_equal_only_if_no_tag_differs():
    pool = GroupPool(num_repeat=2, batch_size=1, rule=NON_DUMMY)
    pool.add(Finished("a", "t", {"wolf": (1.0, 1.0), "seer": (0.0,)}, 0), 0.0)
    pool.add(Finished("b", "t", {"wolf": (1.0, 1.0), "seer": (1.0,)}, 0), 0.0)
    assert pool.sweep(0, 0.0) == []
    assert pool.take().episodes == ["a", "b"]


def test_a_partial_group_past_its_deadline_is_dropped_with_what_it_has():
    pool = GroupPool(num_repeat=2, batch_size=1, group_deadline_s=10.0)
    pool.add(finished("a"), now=0.0)
    assert pool.next_deadline() == 10.0
    assert pool.sweep(0, 9.0) == []
    assert [drop.reason for drop in pool.sweep(0, 10.5)] == [DropReason.GROUP_DEADLINE]
