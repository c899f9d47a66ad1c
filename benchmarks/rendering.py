"""What turning a chat request into token ids costs, and a reply into a message: three ways side by side.

``python -m benchmarks.rendering [--rounds 7] [--json FILE]``. One agent's history grows by a speech and a reply a call, as
in a game; each way prepares every call of it and parses every reply. Rounds interleave the ways, so that a busy machine
is busy for all; the table has medians and the spread over rounds (lowest – highest), of processor time.

- ``whole``: ``tokenizer.apply_chat_template`` of the whole conversation, which is what a gateway without timelines does
  (and which does not keep the sampled ids).
- ``twice``: the template is rendered without and with what is new, and the difference tokenized: keeps the ids. A lower
  bound: it is told which timeline a request extends, checks nothing, and knows no look-alikes.
- ``ours``: :class:`ajet.trajectory.EpisodeTrajectory`.

``others`` is the share of speeches that another agent of the server has heard already (nine players hear the same speech);
ours looks those up. The tokenizer is the built-in model's; ``--model`` names another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.backbone import model_dir
from ajet.default_config.schema import BUILTIN_MODEL
from ajet.trajectory import ChatRenderer, EpisodeTrajectory

SPEECH = (
    "Player {n} speaks: I have watched the votes of the last two nights and I do not believe what Player {m} said. "
)
RULES = (
    "You play Werewolves with nine players. Wolves kill at night, the village votes by day, the seer looks at one. "
    * 12
)
REPLY = "I think that Player {n} lies, and I vote for Player {m} today, as I said before."

Prepare = Callable[[list[dict[str, Any]]], list[int]]


class Whole:
    """The template's own ids, every time."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self.renderer = renderer

    def prepare(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.renderer.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def record(self, messages: list[dict[str, Any]], ids: list[int], reply: list[int]) -> dict[str, Any]:
        text = self.renderer.tokenizer.decode(reply, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return {"role": "assistant", "content": text}


class Twice(Whole):
    """Known ids, and the tokens of what two renderings differ by."""

    def __init__(self, renderer: ChatRenderer) -> None:
        super().__init__(renderer)
        self.known: list[int] = []
        self.count = 0

    def prepare(self, messages: list[dict[str, Any]]) -> list[int]:
        tokenizer = self.renderer.tokenizer
        if not self.known:
            return super().prepare(messages)
        before = tokenizer.apply_chat_template(messages[: self.count], tokenize=False)
        after = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        stop = tokenizer.eos_token
        new = after[before.rfind(stop) + len(stop) :]
        return self.known + tokenizer.encode(new, add_special_tokens=False)

    def record(self, messages: list[dict[str, Any]], ids: list[int], reply: list[int]) -> dict[str, Any]:
        self.known, self.count = ids + reply, len(messages) + 1
        return super().record(messages, ids, reply)


class Ours:
    def __init__(self, renderer: ChatRenderer) -> None:
        self.renderer = renderer
        self.trajectory = EpisodeTrajectory(renderer)
        self.prepared: Any = None

    def prepare(self, messages: list[dict[str, Any]]) -> list[int]:
        self.prepared = self.trajectory.prepare("a", "a", messages)
        return self.prepared.ids

    def record(self, messages: list[dict[str, Any]], ids: list[int], reply: list[int]) -> dict[str, Any]:
        message = self.renderer.parse(reply).message
        zeros = [0] * len(reply)
        self.trajectory.record(
            self.prepared, call_id=f"c{len(messages)}", reply_ids=reply, logprobs=zeros, versions=zeros, temperature=1.0,
            finish_reason="stop", message=message, created=0.0,
        )  # fmt: skip
        return message


def play(way: Whole | Ours, serial: int, calls: int, replies: list[list[int]]) -> tuple[float, list[int]]:
    """One history; seconds of processor time a call, and the last prompt."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": RULES}]
    spent = 0.0
    ids: list[int] = []
    for n in range(calls):
        messages.append({"role": "user", "content": SPEECH.format(n=n, m=serial * calls + n) * 3})
        # A request comes as JSON: its texts are never the objects of the request before.
        request = json.loads(json.dumps(messages))
        began = time.process_time()
        ids = way.prepare(request)
        message = way.record(request, ids, replies[n])
        spent += time.process_time() - began
        messages.append(message)
    return spent / calls, ids


def measure(model: str, calls: int, others: float, rounds: int, histories: int) -> dict[str, Any]:
    renderer = ChatRenderer(model_dir(model))
    encode = renderer.tokenizer.encode
    stop = renderer.stop_token_ids[0]
    replies = [[*encode(REPLY.format(n=n % 9, m=n % 7), add_special_tokens=False), stop] for n in range(calls)]
    ways: dict[str, Callable[[], Whole | Ours]] = {
        "whole": lambda: Whole(renderer),
        "twice": lambda: Twice(renderer),
        "ours": lambda: Ours(renderer),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    serial = 0
    for number in range(rounds + 1):
        # A history that was heard before has the serial of one that was played before.
        serials = []
        for k in range(histories):
            serial += k >= others * histories
            serials.append(serial)
        for name, make in ways.items():
            costs = []
            last: list[int] = []
            for one in serials:
                cost, last = play(make(), one, calls, replies)
                costs.append(cost)
            if number:  # the first round warms up
                found[name].append(statistics.mean(costs) * 1e6)
            elif last != play(Whole(renderer), serials[-1], calls, replies)[1]:
                raise AssertionError(f"{name}: the prompt is not the template's")
    ratios = [t / o for t, o in zip(found["twice"], found["ours"], strict=True)]
    whole_ratios = [w / o for w, o in zip(found["whole"], found["ours"], strict=True)]
    return {
        "calls": calls,
        "others": others,
        "us_per_call": {name: spread(values) for name, values in found.items()},
        "twice_over_ours": spread(ratios),
        "whole_over_ours": spread(whole_ratios),
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--histories", type=int, default=8, help="histories a round and way")
    parser.add_argument("--calls", type=int, nargs="*", default=[1, 12, 60])
    parser.add_argument("--others", type=float, nargs="*", default=[0.0, 0.75])
    parser.add_argument("--model", default=BUILTIN_MODEL)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    print(f"{'calls':>5} {'others':>6}   {'whole µs':>22} {'twice µs':>22} {'ours µs':>22}   twice/ours   whole/ours")
    for calls in options.calls:
        for others in options.others:
            row = measure(options.model, calls, others, options.rounds, options.histories)
            results.append(row)
            cells = [
                f"{c['median']:8.0f} ({c['low']:.0f} – {c['high']:.0f})".rjust(22) for c in row["us_per_call"].values()
            ]
            print(
                f"{calls:5} {others:6.2f}   {' '.join(cells)}   {row['twice_over_ours']['median']:10.1f}"
                f"   {row['whole_over_ours']['median']:10.1f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"rounds": options.rounds, "results": results}, indent=1))


if __name__ == "__main__":
    main()
