"""Claims about what a chat request may say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.schema.errors import AjetError, InvalidRequest, UnsupportedForTraining
from ajet.server.chat_request import _NEUTRAL, check_sampling, parse_chat
from ajet.server.settings import Limits

LIMITS = Limits()
GOOD = {"messages": [{"role": "user", "content": "hi"}]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    ["messages", "model", "tools", "tool_choice", "stream", "stream_options", "temperature", "top_p", "top_k", "max_tokens",
     "max_completion_tokens", "stop", "n", "seed", "logprobs", "top_logprobs", "response_format", *_NEUTRAL]
)  # fmt: skip


@given(st.dictionaries(fields, json_values, max_size=5), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_body_is_accepted_or_refused_by_name_never_a_crash(body, valid, trained):
    body = {**body, **(GOOD if valid else {})}
    refusal = None
    try:
        check_sampling(body, parse_chat(body, LIMITS), trained=trained)
    except AjetError as err:
        refusal = err
    assert refusal is None or (refusal.http_status == 400 and refusal.message)


@pytest.mark.parametrize("name", sorted(_NEUTRAL))
def test_what_changes_sampling_is_never_ignored(name):
    body = {**GOOD, name: 0.123}
    with pytest.raises(UnsupportedForTraining) as caught:
        check_sampling(body, parse_chat(body, LIMITS), trained=True)
    assert caught.value.param == name
    with pytest.raises(InvalidRequest):
        check_sampling(body, parse_chat(body, LIMITS), trained=False)


def test_neutral_values_and_unknown_fields_are_fine():
    body = {**GOOD, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "min_p": 0, "user": "u", "metadata": {"a": 1},
            "top_p": 1, "top_k": -1, "response_format": {"type": "text"}, "parallel_tool_calls": True}  # fmt: skip
    check_sampling(body, parse_chat(body, LIMITS), trained=True)


def test_max_completion_tokens_wins():
    assert parse_chat({**GOOD, "max_tokens": 5, "max_completion_tokens": 3}, LIMITS).max_tokens == 3


def test_message_count_is_bounded():
    with pytest.raises(InvalidRequest, match="at most"):
        parse_chat({"messages": GOOD["messages"] * 5000}, LIMITS)
