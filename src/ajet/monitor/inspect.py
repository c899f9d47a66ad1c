"""An episode in the terminal: its tokens with owner, mask, log-prob and advantage; and why its agents fork.

Takes what ``GET /swarm/v1/episodes/{id}?tokens=true`` answers, wherever it comes from. In colour where rich's console
has colours; elsewhere as plain text that says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

SCALE = ((-0.1, "green"), (-1.0, "yellow"), (-3.0, "dark_orange"), (float("-inf"), "red"))
"""Colours of sampled tokens by their log-prob: above the number."""
UNTRAINED = "magenta strike"
PROMPT = "dim"

LEGEND = (
    "prompt is dim · sampled: log-prob > -0.1 green, > -1 yellow, > -3 orange, else red · not trained: magenta, struck"
)

Detail = Mapping[str, Any]

ADVICE: dict[str, tuple[str, str]] = {
    "first": ("The agent's first call.", "Nothing to do."),
    "continues": ("The history only grew.", "Nothing to do: this is the cheapest way."),
    "choice": ("A further reply to the same request (n > 1).", "Nothing to do: each reply is a timeline of its own."),
    "parallel": (
        "The request continues a call that another request had continued already.",
        "Nothing to do if the agent explores several ways on purpose, or calls in parallel. Else pass the latest reply back.",
    ),
    "retry": (
        "The same messages were sent again, and not as a repeat of the same request.",
        "Both replies are trained. If the first was lost on the way, send the Idempotency-Key header (OpenAI SDKs do with "
        "max_retries): the first answer comes again and nothing is sampled twice.",
    ),
    "system_changed": (
        "The system message is not what it was.",
        "Keep what changes (time, state, memory) out of the system message: append it as a user message.",
    ),
    "tools_changed": (
        "The list of tools is not what it was.",
        "Offer the same tools, in the same order, in every call of one agent; say in a message which of them apply now.",
    ),
    "history_edited": (
        "An earlier message is not what it was.",
        "Append instead of rewriting. A framework that trims or re-formats replies must be told to pass them on as they came.",
    ),
    "messages_removed": (
        "Earlier messages are missing (a sliding window, a compacted memory).",
        "Keep the whole history and raise max_model_len, or cut it rarely and by much: each cut starts a branch.",
    ),
    "reasoning_dropped": (
        "The reply came back without its reasoning, or the chat template leaves earlier reasoning out.",
        "Pass reasoning_content back with the assistant's message. Where the template itself drops it, every turn of a user "
        "starts a branch: use a model or a template that keeps it, or let the agent act through tools within one turn.",
    ),
    "new_conversation": (
        "The request has nothing in common with the last one but its system message.",
        "Nothing to do if each request stands alone by design. Several conversations at once deserve an agent name each.",
    ),
    "stop_string": (
        "The last reply was cut before a stop string, so the history lacks what was sampled behind the cut.",
        "Let the model end its turn by itself, or cut the text in the agent and pass the whole reply back.",
    ),
    "template_unstable": (
        "The chat template writes the known part of the history differently now that more follows, or has no words for a "
        "special token that the reply holds or ends with.",
        "Use a template that only appends (see which characters differ), or a model whose template does.",
    ),
    "after_restart": (
        "The server restarted meanwhile and the request does not continue a reply; why can no longer be told.",
        "Nothing to do.",
    ),
}
"""Cause of a branch (:class:`ajet.trajectory.Branch`) → what it means, what to do."""


def show_episode(console: Console, detail: Detail, *, table: bool = False) -> None:
    """Print an episode with its samples.

    Args:
        table: one line a token, with id, owner, mask, log-prob, policy version and advantage, instead of running text.
    """
    _head(console, detail)
    calls = {call["call_id"]: call for call in detail["calls"]}
    if console.is_terminal and not table:
        console.print(LEGEND, style="dim", markup=False)
    for number, sample in enumerate(detail["samples"]):
        agent = sample["agent"]
        pieces = sample["pieces"]
        total = sum(len(piece["ids"]) for piece in pieces)
        trained = sum(sum(piece["trained"]) for piece in pieces)
        console.print()
        console.print(
            f"sample {number} · {agent} ({sample['tag']}) · {total} tokens, {trained} trained · "
            f"advantage {_number(detail['advantages'].get(agent))}",
            style="bold", markup=False,
        )  # fmt: skip
        if table:
            console.print(_tokens(sample, calls, detail["advantages"].get(agent)))
            continue
        for piece in pieces:
            _piece(console, piece, calls[piece["call"]])


def _head(console: Console, detail: Detail) -> None:
    words = [f"fate {detail['fate']}"]
    if detail.get("reason"):
        words.append(str(detail["reason"]))
    if detail.get("step") is not None:
        words.append(f"step {detail['step']}")
    if detail.get("reward") is not None:
        words.append(f"reward {detail['reward']}")
    console.print(f"episode {detail['episode_id']} · task {detail['task_id']}", style="bold", markup=False)
    console.print(" · ".join(words), markup=False)
    counts = ", ".join(f"{name} {n}" for name, n in sorted(detail["branches"].items()))
    console.print(f"{len(detail['calls'])} calls: {counts or 'none'}", markup=False)
    if detail["dropped_tokens"]:
        lost = ", ".join(f"{reason} {n}" for reason, n in sorted(detail["dropped_tokens"].items()))
        console.print(f"sampled tokens that are not trained: {lost}", markup=False)


def _piece(console: Console, piece: Mapping[str, Any], call: Mapping[str, Any]) -> None:
    n = len(piece["ids"])
    if piece["first_sample"] is not None:
        console.print(
            f"  [{piece['call']} {piece['kind']}: {n} tokens, as in sample {piece['first_sample']}]",
            style=PROMPT, markup=False,
        )  # fmt: skip
        return
    texts = piece["texts"] if piece["texts"] is not None else [f"⟨{i}⟩" for i in piece["ids"]]
    if piece["kind"] == "prompt":
        console.print(f"  [{piece['call']} prompt · {n} tokens · {call['branch']}]", style="dim cyan", markup=False)
        console.print(Text("".join(texts), style=PROMPT))
        return
    logprobs = call["logprobs"]
    mean = sum(logprobs) / n if n else 0.0
    head = (
        f"  [{piece['call']} reply · {n} tokens, {sum(piece['trained'])} trained · mean log-prob {mean:.3f} · policy "
        f"{_versions(call['versions'])} · temperature {call['temperature']:g} · {call['finish_reason']}]"
    )
    if piece["why"]:
        head += f" not trained: {piece['why']}"
    console.print(head, style="cyan", markup=False)
    line = Text()
    for text, logprob, trained in zip(texts, logprobs, piece["trained"], strict=True):
        line.append(text, style=_colour(logprob) if trained else UNTRAINED)
    console.print(line)


def _tokens(sample: Mapping[str, Any], calls: Mapping[str, Any], advantage: float | None) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("at", "id", "token", "owner", "mask", "log-prob", "policy", "advantage"):
        table.add_column(name, justify="right" if name in ("at", "id", "log-prob", "policy", "advantage") else "left")
    at = 0
    for piece in sample["pieces"]:
        call = calls[piece["call"]]
        texts = piece["texts"] if piece["texts"] is not None else [""] * len(piece["ids"])
        reply = piece["kind"] == "reply"
        for k, (token, text) in enumerate(zip(piece["ids"], texts, strict=True)):
            trained = reply and piece["trained"][k]
            mask = "train" if trained else piece["why"] or "shared" if reply else "prompt"
            sampled = (f"{call['logprobs'][k]:.4f}", str(call["versions"][k])) if reply else ("", "")
            table.add_row(
                str(at), str(token), Text(repr(text)[1:-1]), f"{call['agent']}/{piece['call']}", mask, *sampled,
                _number(advantage) if trained else "",
                style=_colour(call["logprobs"][k]) if trained else UNTRAINED if reply else PROMPT,
            )  # fmt: skip
            at += 1
    return table


def _colour(logprob: float) -> str:
    return next(colour for above, colour in SCALE if logprob > above or above == float("-inf"))


def _versions(versions: list[int]) -> str:
    low, high = (min(versions), max(versions)) if versions else (0, 0)
    return str(low) if low == high else f"{low}–{high}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.4f}"


def show_forks(
    console: Console,
    causes: Mapping[str, int],
    branched: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    examples: int = 3,
) -> None:
    """Print why agents fork: causes by how often, and for each the message that differs and what to do.

    Args:
        causes: calls by cause. branched: (episode, call) of those that start a branch.
        examples: places shown a cause.
    """
    calls = sum(causes.values())
    growing = causes.get("first", 0) + causes.get("continues", 0)
    console.print(f"{calls} calls, {calls - growing} start a branch", style="bold", markup=False)
    if calls == growing:
        console.print("Every history only grows: each agent has one timeline, and nothing is computed twice.")
        return
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for episode, call in branched:
        found.setdefault(call["branch"], []).append((episode, call))
    for cause, places in sorted(found.items(), key=lambda item: -causes.get(item[0], 0)):
        meaning, todo = ADVICE.get(cause, ("A cause this version does not know.", ""))
        console.print()
        console.print(Text.assemble((cause, "bold yellow"), f" × {causes.get(cause, 0)}  {meaning}"))
        shown = [place for place in places if place[1].get("fork")][:examples]
        for episode, call in shown:
            fork = call["fork"]
            where = f"message {fork['message']}, {fork['part']}" if fork["message"] is not None else fork["part"]
            console.print(f"  {call['agent']} · call {call['call_id']} of episode {episode} · {where}", markup=False)
            console.print(Text.assemble("    had ", (repr(fork["had"]), "red")))
            console.print(Text.assemble("    has ", (repr(fork["has"]), "green")))
        if not shown and places:
            episode, call = places[0]
            console.print(f"  {call['agent']} · call {call['call_id']} of episode {episode}", markup=False)
        console.print(f"  What to do: {todo}", markup=False)
