"""Random multi-agent conversations: what agents do to their histories, and what a model may sample.

A :class:`Step` is one call. :func:`requests` turns what an agent knows into the messages it sends, :func:`sample`
into ids such as a backbone may return: in the tokenizer's own spelling or not, cut off or not, with tools, thinking,
broken tool calls, look-alikes and characters that tokens split.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]

TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "vote", "parameters": {"type": "object"}}},
]
AGENTS = ("wolf", "seer")
MOVES = (
    "grow", "grow", "grow", "grow", "parts", "edit", "edit_reply", "strip_reply", "drop_reasoning", "remove", "slide",
    "system", "tools", "no_tools", "restart", "retry", "older", "foreign", "same_time",
)  # fmt: skip
REPLIES = (
    "text", "text", "odd", "think", "think_open", "call", "call_odd", "calls", "call_xml", "broken", "empty", "special",
    "raw",
)  # fmt: skip
TEXT = st.text(st.sampled_from("ab \nz.é漢🐺<|>{}\"'\ue0fa") | st.characters(exclude_categories=["Cs"]), max_size=12)
MIXED = TEXT | st.sampled_from(["<|im_end|>", "a <|im_start|>system\n", "</think> so", "<tool_call>{}</tool_call>"])


@dataclass(frozen=True)
class Step:
    """One call: who, what happened to the history, what is sampled, and how."""

    agent: str
    move: str
    text: str
    reply: str
    said: str
    ends: bool
    streamed: bool
    choices: int
    version: int
    seed: int


def steps(max_size: int = 9) -> st.SearchStrategy[list[Step]]:
    one = st.builds(
        Step,
        agent=st.sampled_from(AGENTS),
        move=st.sampled_from(MOVES),
        text=MIXED,
        reply=st.sampled_from(REPLIES),
        said=MIXED,
        ends=st.booleans() | st.just(True),
        streamed=st.booleans(),
        choices=st.sampled_from([1, 1, 1, 1, 2]),
        version=st.integers(0, 3),
        seed=st.integers(0, 999),
    )
    return st.lists(one, min_size=1, max_size=max_size)


@dataclass
class Mind:
    """What one agent knows: the histories it had, newest last, and the tools it was offered."""

    histories: list[list[Message]] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def requests(mind: Mind, step: Step) -> list[list[Message]]:
    """The messages of this step's request; two requests where both go out before either is answered."""
    last = [dict(message) for message in mind.histories[-1]] if mind.histories else []
    more = _more(last, step)
    move = step.move
    if not last or move in ("restart", "foreign"):
        mind.tools = TOOLS if step.seed % 3 else None
        begun: list[Message] = [{"role": "system", "content": "Play."}] if step.seed % 2 else []
        if move == "foreign":
            begun += [user("before"), {"role": "assistant", "content": step.said}]
        return [[*begun, user(step.text)]]
    if move == "same_time":
        return [[*last, *more], [*last, *more, user("too")]]
    return [_moved(mind, last, more, step)]


def _moved(mind: Mind, last: list[Message], more: list[Message], step: Step) -> list[Message]:
    move = step.move
    if move == "parts":
        return [*last, *more[:-1], {**more[-1], "content": [{"type": "text", "text": t} for t in (step.text, "", "!")]}]
    if move == "edit":
        at = step.seed % len(last)
        last[at] = {**last[at], "content": f"edited {step.text}"}
    elif move == "edit_reply":
        last[-1] = {**last[-1], "content": f"{last[-1].get('content') or ''}."}
    elif move == "strip_reply":
        last[-1] = {**last[-1], "content": (last[-1].get("content") or "").strip()}
    elif move == "drop_reasoning":
        last = [{k: v for k, v in message.items() if k != "reasoning_content"} for message in last]
    elif move == "remove":
        del last[step.seed % len(last)]
    elif move == "slide":
        last = last[len(last) // 2 :]
    elif move == "system":
        last = [{"role": "system", "content": f"Now {step.seed}"}, *(m for m in last if m["role"] != "system")]
    elif move == "tools":
        mind.tools = TOOLS[:1] if mind.tools != TOOLS[:1] else TOOLS
    elif move == "no_tools":
        mind.tools = None
    elif move == "retry":
        return mind.sent
    elif move == "older":
        last = mind.histories[step.seed % len(mind.histories)]
        return [*last, *_more(last, step)]
    return [*last, *more]


def _more(last: list[Message], step: Step) -> list[Message]:
    """What happens after a reply: results of its tool calls, or somebody speaks."""
    calls = (last[-1].get("tool_calls") or []) if last else []
    if calls and step.seed % 4:
        return [{"role": "tool", "tool_call_id": call["id"], "content": step.text} for call in calls]
    return [user(step.text)]


def sample(renderer: Any, step: Step, max_tokens: int = 200) -> list[int]:
    """Ids of a reply. Ends with a stop token unless the step's reply is cut off."""
    rng = random.Random(step.seed)
    encode = lambda text: renderer.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    arguments = {"who": step.said, "n": rng.choice([1, 1.5, None, True, [1, {"x": "é"}]])}
    call = json.dumps({"name": "look", "arguments": arguments}, ensure_ascii=False)
    odd_call = json.dumps({"arguments": arguments, "name": "vote"}, separators=(",", ":"))
    kind = step.reply
    if kind == "odd":
        # Spelt in other tokens than the tokenizer would.
        ids = [i for ch in step.said + "the quick" for i in encode(ch)]
    elif kind == "think":
        ids = encode(f"<think>\n{step.said}\n</think>\n\nso {step.said}")
    elif kind == "think_open":
        ids = encode(f"<think>{step.said}")
    elif kind == "call":
        ids = encode(f"<tool_call>\n{call}\n</tool_call>")
    elif kind == "call_odd":
        ids = encode(f"<think>hm</think>  go <tool_call>{odd_call}</tool_call> {step.said}")
    elif kind == "calls":
        ids = encode(f"\n<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{odd_call}\n</tool_call>")
    elif kind == "call_xml":
        body = "".join(
            f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items() if isinstance(v, str | int)
        )
        ids = encode(f"<tool_call>\n<function=look>\n{body}</function>\n</tool_call>")
    elif kind == "broken":
        bad = [call[:-1], call[: len(call) // 2], "{}", "[1]", '{"name": 5}', '{"name": "x", "arguments": "\\ud800"}',
               '{"name": "x", "arguments": ' + "[" * 5000, '{"name": "x", "arguments": ' + "9" * 5000 + "}"]  # fmt: skip
        ids = encode(f"ok <tool_call>{rng.choice(bad)}{rng.choice(['', '</tool_call>'])}")
    elif kind == "empty":
        ids = []
    elif kind == "special":
        # Sampled specials in the middle of a text, and their look-alikes in ordinary tokens.
        ids = [*encode("a"), *encode(rng.choice(["<|im_start|>", "<think>", "</think>", "</tool_call>"])), *encode("b")]
        ids += [i for ch in "<|im_end|>" for i in encode(ch)]
    elif kind == "raw":
        ids = [rng.randrange(5, len(renderer.tokenizer)) for _ in range(8)]
    else:
        ids = encode(step.said)
    stops = renderer.stop_token_ids
    ids = [i for i in ids if i not in stops][: max_tokens - 1]
    return [*ids, stops[0]] if step.ends or not ids else ids
