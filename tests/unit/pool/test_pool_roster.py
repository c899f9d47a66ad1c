"""Claims about who takes part and what is agreed to."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.pool.groups import ALL_AGREE, ANY_AGREES, Finished, GroupPool, Moment
from ajet.pool.roster import Roster

CLIENTS = st.sampled_from("abc")
steps = st.lists(
    st.tuples(st.sampled_from(["join", "sign", "agree", "leave", "time", "expire"]), CLIENTS, st.integers(1, 3)),
    max_size=60,
)


@given(steps)
@settings(max_examples=300, deadline=None)
def test_an_update_is_agreed_to_only_by_somebody_and_by_all_who_take_part(given_steps):
    roster, now = Roster(silence_s=10.0), 0.0
    seen: dict[str, float] = {}
    present: set[str] = set()
    agreed: dict[str, int] = {}
    joined: set[str] = set()
    for what, client, n in given_steps:
        if what == "time":
            now += n * 3
        elif what == "join":
            roster.join(client, "", now)
            present.add(client)
            joined.add(client)
        elif what == "sign":
            roster.sign(client, now)
            if client in joined:
                present.add(client)
        elif what == "agree":
            roster.agree(client, n, now)
            agreed[client] = max(n, agreed.get(client, 0))
        elif what == "leave":
            roster.leave(client)
            present.discard(client)
        else:
            gone = roster.silent(now, lambda _client: None)
            assert set(gone) == {c for c in present if now - seen[c] >= 10.0}
            for one in gone:
                roster.leave(one)
            present -= set(gone)
        if what in ("join", "sign", "agree"):
            seen[client] = now
        assert {one.client for one in roster.present()} == present
        for step in (1, 2, 3):
            anyone = {c for c, s in agreed.items() if s >= step}
            assert roster.agreed(step, every=False) == bool(anyone)
            assert roster.agreed(step, every=True) == (bool(anyone) and present <= anyone)


def test_agreeing_again_or_to_an_older_update_changes_nothing():
    roster = Roster(10.0)
    roster.join("a", "", 0.0)
    roster.agree("a", 2, 0.0)
    before = roster.changes
    roster.agree("a", 2, 1.0)
    roster.agree("a", 1, 1.0)
    assert roster.changes == before
    assert roster.agreed(2, every=True)
    assert not roster.agreed(3, every=False)


def test_a_chat_call_of_an_open_episode_is_a_sign_of_life():
    roster = Roster(10.0)
    roster.join("a", "", 0.0)
    assert roster.silent(12.0, lambda _client: 8.0) == []
    assert roster.next_silent() == 18.0
    assert roster.silent(18.0, lambda _client: 8.0) == ["a"]


@given(st.lists(st.sampled_from("xyz"), max_size=20), st.sampled_from([ANY_AGREES, ALL_AGREE]), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_an_agreed_update_takes_every_complete_group_and_nothing_else(tasks, rule, repeat):
    pool = GroupPool(repeat, 99, rule)
    for i, task in enumerate(tasks):
        pool.add(Finished(f"e{i}", task, {"main": (0.0,)}, 0), 0.0)
    complete, partial = len(pool.complete()), [m.episode for group in pool.partial() for m in group.members]
    assert pool.take(Moment(agreed=False)) is None
    batch = pool.take(Moment(agreed=True))
    if not complete:
        assert batch is None  # never on nothing, never on a part of a group
        return
    assert len(batch.groups) == complete
    assert all(len(group.members) == repeat for group in batch.groups)
    assert [m.episode for group in pool.partial() for m in group.members] == partial
