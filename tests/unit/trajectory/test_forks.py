"""Claims about branches: each has its cause, and says where it left the agent's last request."""

import pytest

from ajet.trajectory import Branch, ChatRenderer, EpisodeTrajectory
from tests.fakes import templates
from tests.fakes.chat_model import save_tokenizer

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
VOTE = {"type": "function", "function": {"name": "vote", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def thinking(tmp_path_factory) -> ChatRenderer:
    return ChatRenderer(save_tokenizer(tmp_path_factory.mktemp("thinking"), templates.THINKING, templates.ADDED))


def user(text):
    return {"role": "user", "content": text}


class Agent:
    """One agent whose model says what it is told to."""

    def __init__(self, renderer):
        self.renderer, self.trajectory, self.n = renderer, EpisodeTrajectory(renderer), 0

    def reply(self, prepared, text, tools=None, *, finish="stop", message=None, end=True):
        ids = self.renderer.tokenizer.encode(text, add_special_tokens=False)
        ids += [self.renderer.stop_token_ids[0]] if end else []
        self.n += 1
        return self.trajectory.record(
            prepared, call_id=f"c{self.n}", reply_ids=ids, logprobs=[-1.0] * len(ids), versions=[0] * len(ids),
            temperature=1.0, finish_reason=finish, message=message or self.renderer.parse(ids, tools).message,
            created=0.0,
        )  # fmt: skip

    def say(self, messages, text, tools=None, **how):
        call = self.reply(self.trajectory.prepare("a", "a", messages, tools), text, tools, **how)
        return [*messages, call.message]


SYSTEM = {"role": "system", "content": "It is day 1."}


def test_a_framework_that_puts_its_agents_name_into_a_reply_stays_on_the_timeline(renderer):
    agent = Agent(renderer)
    history = agent.say([SYSTEM, user("one")], "yes")
    named = [*history[:-1], {**history[-1], "name": "solver"}]
    call = agent.reply(agent.trajectory.prepare("a", "a", [*named, user("two")]), "no")
    assert call.branch == Branch.CONTINUES


def test_where_the_template_writes_an_assistants_name_the_name_is_a_branch(tmp_path):
    writes = (
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + (' ' + m.name if m.name else '') + '\n' }}"
        "{{- m.content + '<|im_end|>\n' }}{%- endfor %}" + templates.GENERATE
    )
    agent = Agent(ChatRenderer(save_tokenizer(tmp_path, writes, templates.ADDED)))
    history = agent.say([user("one")], "yes")
    named = [*history[:-1], {**history[-1], "name": "solver"}]
    call = agent.reply(agent.trajectory.prepare("a", "a", [*named, user("two")]), "no")
    assert call.branch not in (Branch.FIRST, Branch.CONTINUES)


@pytest.mark.parametrize(
    ("change", "cause", "place"),
    [
        (lambda h: [{**SYSTEM, "content": "It is day 2."}, *h[1:]], "system_changed", (0, "content", "It is day 1.", "It is day 2.")),
        (lambda h: h[1:], "system_changed", (0, "role", "system", "user")),
        (lambda h: [*h[:2], {**h[2], "content": "yes."}, *h[3:]], "history_edited", (2, "content", "yes", "yes.")),
        (lambda h: [h[0], *h[3:]], "messages_removed", (1, "content", "one", "two")),
        (lambda h: [h[0], user("unheard of")], "new_conversation", (1, "content", "one", "unheard of")),
        (lambda h: [*h[:3], {**h[3], "name": "bob"}, h[4]], "history_edited", (3, "name", "", "bob")),
    ],
)  # fmt: skip
def test_the_message_that_differs_is_named_with_both_texts(renderer, change, cause, place):
    agent = Agent(renderer)
    history = agent.say([SYSTEM, user("one")], "yes")
    history = agent.say([*history, user("two")], "no")
    prepared = agent.trajectory.prepare(
        "a", "a", [*change(history), user("next")] if cause != "new_conversation" else change(history)
    )
    assert prepared.branch == cause
    assert (prepared.fork.message, prepared.fork.part, prepared.fork.had, prepared.fork.has) == place


def test_snippets_begin_just_before_the_first_difference(renderer):
    agent = Agent(renderer)
    long = "x" * 500
    history = agent.say([user(f"{long}A{long}")], "ok")
    fork = agent.trajectory.prepare("a", "a", [user(f"{long}B{long}"), history[1], user("?")]).fork
    assert (fork.had, fork.has) == ("x" * 24 + "A" + "x" * 55, "x" * 24 + "B" + "x" * 55)


def test_a_changed_list_of_tools_is_a_branch_and_the_same_list_is_not(renderer):
    agent = Agent(renderer)
    history = agent.say([user("x")], "y", [LOOK, VOTE])
    assert agent.trajectory.prepare("a", "a", [*history, user("z")], [LOOK, VOTE]).branch == "continues"
    changed = agent.trajectory.prepare("a", "a", [*history, user("z")], [VOTE, LOOK])
    assert (changed.branch, changed.fork.part) == ("tools_changed", "tools")


def test_requests_in_flight_together_are_parallel_and_the_first_answered_continues(renderer):
    agent = Agent(renderer)
    history = agent.say([user("x")], "y")
    one = agent.trajectory.prepare("a", "a", [*history, user("left")])
    other = agent.trajectory.prepare("a", "a", [*history, user("right")])
    assert agent.reply(one, "l").branch == Branch.CONTINUES
    assert agent.reply(other, "r").branch == Branch.PARALLEL
    late = agent.trajectory.prepare("a", "a", [*history, user("behind")])
    assert (late.branch, late.parent) == (Branch.PARALLEL, "c1")


def test_the_same_messages_again_are_a_retry(renderer):
    agent = Agent(renderer)
    history = agent.say([user("x")], "y")
    more = [*history, user("z")]
    agent.say(more, "1")
    again = agent.trajectory.prepare("a", "a", more)
    assert (again.branch, again.parent) == (Branch.RETRY, "c1")
    assert agent.trajectory.prepare("a", "a", [user("x")]).branch == Branch.RETRY


def test_an_edit_behind_a_known_reply_branches_from_that_reply(renderer):
    agent = Agent(renderer)
    first = agent.say([user("x")], "y")
    second = agent.say([*first, user("z")], "w")
    edited = agent.trajectory.prepare("a", "a", [*first, user("Z"), second[-1], user("and")])
    assert (edited.branch, edited.parent, edited.fork.message) == (Branch.HISTORY_EDITED, "c1", 2)


def test_a_reply_cut_at_a_stop_string_is_not_extended(renderer):
    agent = Agent(renderer)
    history = agent.say(
        [user("x")], "one END", end=False, finish="stop", message={"role": "assistant", "content": "one "}
    )
    prepared = agent.trajectory.prepare("a", "a", [*history, user("y")])
    assert (prepared.branch, prepared.parent) == (Branch.STOP_STRING, None)
    assert prepared.fork.had.startswith("one END")
    assert prepared.ids == renderer.render([*history, user("y")])


def test_reasoning_that_the_client_or_the_template_drops_is_named(thinking):
    agent = Agent(thinking)
    history = agent.say([user("x")], "<think>\nhm\n</think>\n\nyes")
    assert history[-1]["reasoning_content"] == "\nhm\n"
    by_template = agent.trajectory.prepare("a", "a", [*history, user("y")])
    assert (by_template.branch, by_template.fork.part) == (Branch.REASONING_DROPPED, "text")
    assert "<think>" in by_template.fork.had
    without = [history[0], {"role": "assistant", "content": history[1]["content"]}, user("y")]
    by_client = agent.trajectory.prepare("a", "a", without)
    assert (by_client.branch, by_client.fork.part) == (Branch.REASONING_DROPPED, "reasoning_content")


def test_reasoning_within_a_turn_of_tools_continues(thinking):
    agent = Agent(thinking)
    history = agent.say(
        [user("x")],
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>',
        [LOOK],
    )
    call = history[-1]["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "a wolf"}
    prepared = agent.trajectory.prepare("a", "a", [*history, result], [LOOK])
    assert (prepared.branch, prepared.respelled) == (Branch.CONTINUES, False)
    rewritten = {**call, "function": {**call["function"], "arguments": '{ "a":1 }'}}
    history[-1] = {**history[-1], "tool_calls": [rewritten]}
    assert agent.trajectory.prepare("a", "a", [*history, result], [LOOK]).branch == Branch.CONTINUES


def test_a_tool_call_in_other_spaces_keeps_its_sampled_ids(thinking):
    agent = Agent(thinking)
    history = agent.say([user("x")], '<tool_call>{"name":"look","arguments":{"a":1}}</tool_call>', [LOOK])
    result = {"role": "tool", "tool_call_id": history[-1]["tool_calls"][0]["id"], "content": "a wolf"}
    prepared = agent.trajectory.prepare("a", "a", [*history, result], [LOOK])
    assert (prepared.branch, prepared.respelled, prepared.parent) == (Branch.CONTINUES, True, "c1")
    assert prepared.ids[: -len(prepared.delta)] == agent.trajectory.full_ids("c1")
    text = thinking.tokenizer.decode(prepared.delta)
    assert text == "\n<|im_start|>user\n<tool_response>\na wolf\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
