"""Claims about shares, by property: batches are whole, nobody falls behind, nobody waits for who is gone."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.pool.groups import EPISODES, Finished, GroupPool, Moment
from ajet.pool.shares import Shares

NAMES = ["a", "b", "c", "d"]
weights = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 100).map(float), min_size=1)


@given(weights, st.integers(1, 50), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_who_delivers_is_never_a_whole_group_behind_its_weight(given_weights, total, batches):
    shares = Shares(dict(given_weights))
    got: Counter[str] = Counter()
    for n in range(1, batches + 1):
        composed = shares.compose(total, dict.fromkeys(given_weights, total), set(given_weights))
        assert sum(composed.seats.values()) == total
        assert not composed.missing
        shares.carry = composed.carry
        got.update(composed.seats)
        for share, weight in given_weights.items():
            due = n * total * weight / sum(given_weights.values())
            assert got[share] > due - len(given_weights) + 0.999999 - 1e-6 * n
            assert abs(got[share] - due) < max(1, len(given_weights) - 1) + 1e-6 * n


@given(
    weights,
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 30)),
    st.sets(st.sampled_from(NAMES)),
    st.integers(1, 30),
)
@settings(max_examples=300, deadline=None)
def test_a_batch_is_exact_or_says_whom_it_waits_for(given_weights, available, live, total):
    composed = Shares(given_weights).compose(total, available, live)
    assert composed.missing <= live
    assert all(seats >= 0 for seats in composed.seats.values())
    if composed.missing:
        assert all(available.get(share, 0) < composed.seats[share] for share in composed.missing)
        return
    assert all(seats <= available.get(share, 0) for share, seats in composed.seats.items())
    assert sum(composed.seats.values()) == min(total, sum(available.values()))
    assert live or sum(available.values()) < total or sum(composed.seats.values()) == total


@given(weights, st.integers(1, 30), st.data())
@settings(max_examples=200, deadline=None)
def test_the_share_of_who_is_gone_is_lent_by_weight_and_not_owed_back(given_weights, total, data):
    gone = data.draw(st.sampled_from(sorted(given_weights)))
    rest = set(given_weights) - {gone}
    left = data.draw(st.integers(0, total))
    available = {**dict.fromkeys(rest, total), gone: left}
    shares = Shares(dict(given_weights), carry=dict.fromkeys(given_weights, 0.0))
    composed = shares.compose(total, available, rest)
    assert composed.seats.get(gone, 0) <= left
    if rest:
        assert not composed.missing
        assert sum(composed.seats.values()) == total
        if composed.seats.get(gone, 0) < shares.weight(gone) * total / sum(given_weights.values()) - 1:
            assert gone not in composed.carry
        back = Shares(dict(given_weights), carry=composed.carry).compose(
            total, dict.fromkeys(given_weights, total), set(given_weights)
        )
        fair = Shares(dict(given_weights)).compose(total, dict.fromkeys(given_weights, total), set(given_weights))
        assert back.seats[gone] <= fair.seats[gone] + 1


events = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.sampled_from(["end", "end", "end", "leave", "come"])),
    max_size=80,
)


@given(events, st.integers(1, 4), st.sampled_from([1, 2]))
@settings(max_examples=100, deadline=None)
def test_the_same_events_give_the_same_batches_and_every_group_is_of_one_share(given_events, size, repeat):
    def run():
        pool = GroupPool(repeat, size, EPISODES, shares=Shares({"a": 40.0, "b": 60.0}))
        live, batches = {"a", "b"}, []
        for i, (share, task, what) in enumerate(given_events):
            if what == "leave":
                live.discard(share)
            elif what == "come":
                live.add(share)
            else:
                pool.add(Finished(f"e{i}", str(task), {"main": (0.0,)}, 0, share), 0.0)
            while (batch := pool.take(Moment(frozenset(live)), 0.0)) is not None:
                pool.settle(batch)
                for group in batch.groups:
                    assert {member.share for member in group.members} == {group.share}
                batches.append(batch.episodes)
        return batches

    assert run() == run()


def filled(pool, share, groups, start=0):
    for i in range(start, start + groups):
        pool.add(Finished(f"{share}{i}", str(i), {"main": (float(i),)}, 0, share), 0.0)


def both():
    return GroupPool(1, 10, shares=Shares({"a": 40.0, "b": 60.0}), share_wait_s=30.0)


def test_a_batch_waits_for_a_share_whose_client_lives_and_not_for_one_that_is_gone():
    pool = both()
    filled(pool, "a", 20)
    filled(pool, "b", 2)
    assert pool.take(Moment(frozenset("ab")), 0.0) is None
    batch = pool.take(Moment(frozenset("a")), 0.0)
    assert Counter(group.share for group in batch.groups) == {"a": 8, "b": 2}


def test_a_share_that_lives_and_does_not_deliver_is_waited_for_so_long_and_no_longer():
    pool = both()
    live = Moment(frozenset("ab"))
    filled(pool, "b", 1)
    assert pool.take(live, 0.0) is None
    assert pool.next_deadline() is None  # nobody has all its groups yet, so nobody is kept waiting
    filled(pool, "a", 4)
    assert pool.take(live, 100.0) is None
    assert pool.next_deadline() == 130.0
    assert pool.take(live, 130.0) is None  # lent, but not filled yet
    assert pool.composition(live, 130.0).seats == {"a": 9, "b": 1}
    filled(pool, "a", 5, start=4)
    batch = pool.take(live, 131.0)
    assert Counter(group.share for group in batch.groups) == {"a": 9, "b": 1}
    filled(pool, "a", 20, start=10)
    assert pool.take(live, 132.0) is None  # the next batch waits anew


def test_equal_task_ids_of_two_named_shares_are_two_tasks_and_of_unnamed_ones_one():
    pool = GroupPool(2, 1)
    pool.add(Finished("x", "0", {"main": (0.0,)}, 0, "math"), 0.0)
    pool.add(Finished("y", "0", {"main": (1.0,)}, 0, "games"), 0.0)
    assert [len(group.members) for group in pool.partial()] == [1, 1]
    pool = GroupPool(2, 1)
    pool.add(Finished("x", "0", {"main": (0.0,)}, 0, "@client-1"), 0.0)
    pool.add(Finished("y", "0", {"main": (1.0,)}, 0, "@client-2"), 0.0)
    assert [group.share for group in pool.complete()] == ["@client-1"]


def test_a_part_of_a_group_is_carried_over():
    shares = Shares({"a": 40.0, "b": 60.0})
    got = []
    for _ in range(10):
        composed = shares.compose(2, {"a": 2, "b": 2}, {"a", "b"})
        shares.carry = composed.carry
        got.append(composed.seats["a"])
    assert sum(got) == 8
    assert set(got) == {0, 1}
