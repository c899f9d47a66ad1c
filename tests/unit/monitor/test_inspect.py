"""Claims about ``ajet-swarm inspect`` as people read it."""

import io

import pytest
from rich.console import Console

from ajet.monitor.inspect import ADVICE, show_episode, show_forks
from ajet.trajectory import Branch


def call(call_id, branch="continues", fork=None, **changes):
    return {
        "call_id": call_id, "agent": "wolf", "tag": "werewolf", "branch": branch, "fork": fork, "temperature": 1.0,
        "logprobs": [-0.01, -0.5], "versions": [3, 4], "finish_reason": "stop", **changes,
    }  # fmt: skip


def piece(call_id, kind, ids, texts, trained=(), why=None, first=None):
    return {
        "call": call_id, "kind": kind, "ids": ids, "texts": texts, "trained": list(trained), "why": why,
        "first_sample": first,
    }  # fmt: skip


DETAIL = {
    "episode_id": "e1", "task_id": "t1", "fate": "trained", "reason": None, "step": 4, "reward": {"werewolf": 1.0},
    "branches": {"first": 1, "history_edited": 1}, "dropped_tokens": {"policy_lag": 1}, "advantages": {"wolf": 0.5},
    "calls": [call("c1", "first"), call("c2", "history_edited")],
    "samples": [
        {"agent": "wolf", "tag": "werewolf", "pieces": [
            piece("c1", "prompt", [1, 2], ["<s>", "[bold]hi"]),
            piece("c1", "reply", [3, 4], ["yes", "</s>"], [True, False], "policy_lag"),
        ]},
        {"agent": "wolf", "tag": "werewolf", "pieces": [
            piece("c1", "prompt", [1, 2], None, first=0),
            piece("c2", "reply", [5, 6], ["no", "</s>"], [True, True]),
        ]},
    ],
}  # fmt: skip


def shown(show, *args, terminal=False, **kw):
    out = io.StringIO()
    show(
        Console(
            file=out,
            force_terminal=terminal,
            width=160,
            highlight=False,
            color_system="truecolor" if terminal else None,
        ),
        *args,
        **kw,
    )
    return out.getvalue()


def test_plain_text_names_owner_mask_log_prob_advantage_and_cause():
    text = shown(show_episode, DETAIL)
    assert "\x1b" not in text
    for words in (
        "episode e1 · task t1", "fate trained · step 4", "history_edited 1", "not trained: policy_lag", "advantage +0.5000",
        "[c1 reply · 2 tokens, 1 trained · mean log-prob -0.255 · policy 3–4", "yes</s>", "[bold]hi",
        "[c1 prompt: 2 tokens, as in sample 0]",
    ):  # fmt: skip
        assert words in text


def test_a_terminal_shows_the_mask_and_the_log_prob_in_colour():
    text = shown(show_episode, DETAIL, terminal=True)
    green, struck = "\x1b[32myes", "\x1b[9;35m</s>"
    assert green in text
    assert struck in text


def test_the_table_has_one_line_a_token_with_everything():
    lines = shown(show_episode, DETAIL, table=True).splitlines()
    trained = next(line for line in lines if " yes " in line)
    assert [*trained.split()] == ["2", "3", "yes", "wolf/c1", "train", "-0.0100", "3", "+0.5000"]
    lost = next(line for line in lines if "policy_lag" in line and "</s>" in line)
    assert lost.split() == ["3", "4", "</s>", "wolf/c1", "policy_lag", "-0.5000", "4"]


def test_why_an_agent_forks_names_the_message_the_characters_and_what_to_do():
    fork = {"message": 2, "part": "content", "had": "it is noon", "has": "it is one"}
    text = shown(show_forks, {"first": 3, "history_edited": 2}, [("e1", call("c2", "history_edited", fork))] * 2)
    assert "5 calls, 2 start a branch" in text
    assert "call c2 of episode e1 · message 2, content" in text
    assert "had 'it is noon'" in text
    assert "has 'it is one'" in text
    assert ADVICE["history_edited"][1] in text.replace("\n", " ")


def test_agents_that_only_grow_are_told_so():
    assert "only grows" in shown(show_forks, {"first": 2, "continues": 9}, [])


@pytest.mark.parametrize("branch", list(Branch))
def test_every_cause_has_a_meaning_and_an_advice(branch):
    assert all(ADVICE[branch.value])
