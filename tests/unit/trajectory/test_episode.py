"""Claims about timelines, and about samples: every sampled token is trained once, as it was sampled."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.pool.records import pack_body, pack_call, unpack_body, unpack_call
from ajet.trajectory import Call, EpisodeTrajectory, build_rows
from ajet.trajectory.rows import PROMPT_TOO_LONG, RESPONSE_TOO_LONG, TOO_OLD

WIDE = (10**6, 10**6, 10**6)


def say(traj, renderer, agent, messages, text, *, end=True, version=0, tools=None, tag=None):
    """One call: prepare, 'sample' the text, record. Returns the call and the messages with the reply appended."""
    prepared = traj.prepare(agent, tag or agent, messages, tools)
    ids = renderer.tokenizer.encode(text, add_special_tokens=False) + ([renderer.stop_token_ids[0]] if end else [])
    n = len(traj.calls)
    call = traj.record(
        prepared,
        call_id=f"c{n}",
        reply_ids=ids,
        logprobs=[-(n + 1) - i / 1000 for i in range(len(ids))],
        versions=[version] * len(ids),
        temperature=0.7,
        finish_reason="stop" if end else "length",
        message=renderer.parse(ids, tools).message,
        created=0.0,
    )
    return call, [*messages, call.message]


def user(text):
    return {"role": "user", "content": text}


def test_a_growing_history_is_one_timeline_with_verbatim_ids(renderer):
    traj = EpisodeTrajectory(renderer)
    first, history = say(traj, renderer, "a", [user("hello")], "hi there")
    second, _ = say(traj, renderer, "a", [*history, user("more")], "ok")
    assert second.parent == first.call_id
    assert second.branch == "continues"
    full = traj.full_ids(second.call_id)
    assert full[: len(traj.full_ids(first.call_id))] == traj.full_ids(first.call_id)
    rendered = renderer.render([user("hello"), first.message, user("more")])
    assert full[: -len(second.reply_ids)] == rendered


def test_a_reply_cut_off_is_closed_as_the_template_would(renderer):
    traj = EpisodeTrajectory(renderer)
    first, history = say(traj, renderer, "a", [user("hello")], "I was cut", end=False)
    second, _ = say(traj, renderer, "a", [*history, user("go on")], "ok")
    assert second.parent == first.call_id
    assert traj.full_ids("c1")[: -len(second.reply_ids)] == renderer.render(
        [user("hello"), first.message, user("go on")]
    )


def test_sampled_ids_survive_although_the_text_would_tokenize_otherwise(renderer):
    traj = EpisodeTrajectory(renderer)
    prepared = traj.prepare("a", "a", [user("x")])
    odd = [i for ch in "the quick" for i in renderer.tokenizer.encode(ch, add_special_tokens=False)]
    assert odd != renderer.tokenizer.encode("the quick", add_special_tokens=False)
    odd.append(renderer.stop_token_ids[0])
    call = traj.record(
        prepared, call_id="c0", reply_ids=odd, logprobs=[0.0] * len(odd), versions=[0] * len(odd), temperature=1.0,
        finish_reason="stop", message=renderer.parse(odd).message, created=0.0,
    )  # fmt: skip
    after = traj.prepare("a", "a", [user("x"), call.message, user("y")])
    assert after.ids[len(prepared.ids) : len(prepared.ids) + len(odd)] == odd


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda h: [user("edited"), *h[1:], user("next")], "history_edited"),
        (lambda h: [{"role": "system", "content": "new"}, *h, user("next")], "system_changed"),
        (lambda h: h[:1], "retry"),
        (lambda h: [user("another start")], "new_conversation"),
    ],
)
def test_a_rewritten_history_starts_a_branch_with_its_cause(renderer, change, cause):
    traj = EpisodeTrajectory(renderer)
    _, history = say(traj, renderer, "a", [user("hello")], "hi")
    prepared = traj.prepare("a", "a", change(history))
    assert prepared.parent is None
    assert prepared.branch == cause


def test_changed_tools_start_a_branch(renderer):
    traj = EpisodeTrajectory(renderer)
    _, history = say(traj, renderer, "a", [user("hello")], "hi")
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert traj.prepare("a", "a", [*history, user("x")], tools).branch == "tools_changed"


def test_agents_never_share_a_timeline(renderer):
    traj = EpisodeTrajectory(renderer)
    _, history = say(traj, renderer, "a", [user("hello")], "hi")
    assert traj.prepare("b", "b", [*history, user("x")]).parent is None


@st.composite
def conversations(draw):
    """Steps of (agent, how the history changes, reply text, whether it ended)."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.sampled_from(["grow", "grow", "grow", "edit", "restart", "retry", "older"]),
                st.text("abc éß漢", max_size=6),
                st.booleans(),
                st.integers(0, 3),
            ),
            max_size=10,
        )
    )


@given(conversations())
@settings(max_examples=150, deadline=None)
def test_every_sampled_token_is_trained_once_as_it_was_sampled(renderer, steps):
    traj = EpisodeTrajectory(renderer)
    histories: dict[str, list[list]] = {"a": [[user("start")]], "b": [[user("start")]]}
    for n, (agent, how, text, end, version) in enumerate(steps):
        past = histories[agent]
        last = past[-1]
        if how == "grow" and len(last) > 1:
            messages = [*last, user(f"turn {n}")]
        elif how == "edit":
            messages = [user(f"edited {n}"), *last[1:], user("and")] if len(last) > 1 else [user(f"edited {n}")]
        elif how == "older":
            messages = [*past[len(past) // 2], user(f"again {n}")]
        elif how == "retry":
            messages = last[:-1] if len(last) > 1 else last
        else:
            messages = [user(f"fresh {n}")]
        _, history = say(traj, renderer, agent, messages, text, end=end, version=version)
        past.append(history)
    # A journal restores the same trajectory.
    again = EpisodeTrajectory(renderer)
    for call in traj.calls.values():
        again.restore(Call.from_wire(call.to_wire()))
    assert {c: again.full_ids(c) for c in again.calls} == {c: traj.full_ids(c) for c in traj.calls}

    rows, dropped = build_rows("e", "t", traj.calls.values(), 1.0, limits=WIDE)
    assert not dropped
    for agent in "ab":
        want = Counter(
            (i, float(np.float32(lp)), v)
            for c in traj.calls.values()
            if c.agent == agent
            for i, lp, v in zip(c.reply_ids, c.logprobs, c.versions, strict=True)
        )
        got = Counter(
            (int(i), float(lp), int(v))
            for row in rows
            if row.agent == agent
            for s in row.samples
            for i, lp, v, t in zip(s.ids_T, s.logprobs_T, s.versions_T, s.trained_T, strict=True)
            if t
        )
        assert got == want
    paths = {tuple(traj.full_ids(c)) for c in traj.calls}
    assert all(tuple(s.ids_T.tolist()) in paths for row in rows for s in row.samples)


def test_rewards_by_agent_win_over_rewards_by_tag(renderer):
    traj = EpisodeTrajectory(renderer)
    say(traj, renderer, "p1", [user("x")], "a", tag="wolf")
    say(traj, renderer, "p2", [user("x")], "b", tag="wolf")
    rows, _ = build_rows("e", "t", traj.calls.values(), {"wolf": 1.0, "p2": 0.5}, limits=WIDE)
    assert {r.agent: r.reward for r in rows} == {"p1": 1.0, "p2": 0.5}
    with pytest.raises(KeyError):
        build_rows("e", "t", traj.calls.values(), {"p1": 1.0}, limits=WIDE)


def test_what_is_not_trained_is_counted_by_reason(renderer):
    traj = EpisodeTrajectory(renderer)
    call, history = say(traj, renderer, "a", [user("hello")], "hi", version=1)
    say(traj, renderer, "a", [*history, user("more")], "okay", version=3)
    prompt, n = len(call.prompt_delta), len(call.reply_ids)
    calls = list(traj.calls.values())
    assert build_rows("e", "t", calls, 1.0, limits=(prompt - 1, 9999, 9999)) == (
        [],
        Counter({PROMPT_TOO_LONG: n + len(calls[1].reply_ids)}),
    )
    rows, dropped = build_rows("e", "t", calls, 1.0, limits=(prompt, n, 9999))
    assert rows[0].trained_tokens == n
    assert dropped == Counter({RESPONSE_TOO_LONG: len(calls[1].reply_ids)})
    rows, dropped = build_rows("e", "t", calls, 1.0, limits=WIDE, min_version=2)
    assert dropped == Counter({TOO_OLD: n})
    assert rows[0].trained_tokens == len(calls[1].reply_ids)


def test_calls_of_earlier_journals_are_read(renderer):
    traj = EpisodeTrajectory(renderer)
    call, history = say(traj, renderer, "a", [user("x")], "y")
    say(traj, renderer, "a", [user("z"), *history[1:], user("w")], "v")
    edited = traj.calls["c1"]
    assert unpack_call(pack_call(edited)).fork == edited.fork is not None
    whole = unpack_body(pack_call(call))
    for kept, (request, choice) in ((-1, ("", 0)), (-3, ("", 0))):
        older = unpack_call(pack_body(whole[:kept]))
        assert (older.reply_ids, older.request, older.choice, older.fork) == (call.reply_ids, request, choice, None)


def test_an_episode_keeps_whole_ids_only_at_the_ends_of_its_timelines(renderer):
    traj = EpisodeTrajectory(renderer)
    history = [user("x")]
    for _ in range(20):
        _, history = say(traj, renderer, "a", history, "y")
        history = [*history, user("z")]
    assert set(traj._full) == {"c19"} == set(traj._prompts)
    assert traj.full_ids("c3") == [
        i for n in range(4) for i in (*traj.calls[f"c{n}"].prompt_delta, *traj.calls[f"c{n}"].reply_ids)
    ]
    assert set(traj._full) == {"c19"}
