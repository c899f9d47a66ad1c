"""The calls of one open episode: which timeline a request extends, and what it adds to it.

Invariant: ``full_ids(call)`` is exactly what the backbone saw plus what it sampled. A request extends a call when its
tools and messages *begin with* that call's request and reply; else it starts a branch, under a named cause.
Not thread-safe: the server's event loop is its only user.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ajet.trajectory.calls import Call
from ajet.trajectory.renderer import ChatRenderer, Message, content_text


@dataclass(frozen=True)
class Prepared:
    """A request on its timeline, ready to be sampled.

    Attributes:
        ids: the whole prompt. parent: the call it extends, or None. delta: ids after the parent's.
        branch: ``first`` / ``continues``, or why a new branch starts (``retry``, ``parallel``, ``system_changed``,
            ``tools_changed``, ``history_edited``, ``new_conversation``, ``template_unstable``; ``after_restart`` where
            the cause can no longer be told).
    """

    agent: str
    tag: str
    ids: list[int]
    parent: str | None
    delta: list[int]
    branch: str
    request_key: str
    head: tuple[str, str]
    """Keys of the tools and of the system message."""


class _Agent:
    """What is known of one agent's calls."""

    def __init__(self) -> None:
        self.extends: dict[str, str] = {}
        """context_key → call id"""
        self.requests: set[str] = set()
        self.last_call: str | None = None
        self.last_head: tuple[str, str] | None = None
        """Keys of the tools and of the system message of the last request; None before it, or when restored."""


class EpisodeTrajectory:
    """All agents of one episode.

    Args:
        renderer: of the served model.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._agents: dict[str, _Agent] = {}
        self.calls: dict[str, Call] = {}
        """Every recorded call, in order."""
        self.branches: Counter[str] = Counter()
        self._full: dict[str, list[int]] = {}

    @property
    def tags(self) -> dict[str, str]:
        """Agent → tag, of all agents with a recorded call."""
        return {call.agent: call.tag for call in self.calls.values()}

    def full_ids(self, call_id: str) -> list[int]:
        """Prompt and reply of a call."""
        if call_id not in self._full:
            chain: list[Call] = []
            walk: str | None = call_id
            while walk is not None and walk not in self._full:
                chain.append(self.calls[walk])
                walk = self.calls[walk].parent
            ids = list(self._full[walk]) if walk is not None else []
            for call in reversed(chain):
                ids = ids + call.prompt_delta + call.reply_ids
            self._full[call_id] = ids
        return self._full[call_id]

    def prepare(
        self, agent: str, tag: str, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> Prepared:
        """Render a request, reusing the ids of the timeline it extends.

        Raises:
            InvalidRequest: the chat template refuses the messages.
        """
        state = self._agents.setdefault(agent, _Agent())
        keys = _chain(tools, messages)
        head = (keys[0], keys[1] if len(messages) and messages[0].get("role") == "system" else "")
        cause = self._cause(state, keys, head)
        for known in range(len(messages), 0, -1):
            parent = state.extends.get(keys[known])
            if parent is None or messages[known - 1].get("role") != "assistant" or known == len(messages):
                continue
            call = self.calls[parent]
            delta = self._renderer.render_extension(
                messages,
                known,
                tools,
                call.reply_ids[-1] if call.reply_ids else None,
                self._renderer.decode(call.reply_ids),
            )
            if delta is None:
                cause = "template_unstable"
                break
            if cause not in ("retry",):
                cause = "continues" if parent == state.last_call else "parallel"
            return Prepared(agent, tag, self.full_ids(parent) + delta, parent, delta, cause, keys[-1], head)
        ids = self._renderer.render(messages, tools)
        return Prepared(agent, tag, ids, None, ids, cause, keys[-1], head)

    def _cause(self, state: _Agent, keys: list[str], head: tuple[str, str]) -> str:
        if state.last_call is None:
            return "first"
        if state.last_head is None:
            return "after_restart"
        if keys[-1] in state.requests:
            return "retry"
        if head[0] != state.last_head[0]:
            return "tools_changed"
        if head[1] != state.last_head[1]:
            return "system_changed"
        return "history_edited" if len(keys) > 3 else "new_conversation"

    def record(
        self,
        prepared: Prepared,
        *,
        call_id: str,
        reply_ids: list[int],
        logprobs: list[float],
        versions: list[int],
        temperature: float,
        finish_reason: str,
        message: Message,
        created: float,
        request: str = "",
        choice: int = 0,
    ) -> Call:
        """Add a sampled reply; later requests may extend it from now on."""
        call = Call(
            call_id=call_id,
            agent=prepared.agent,
            tag=prepared.tag,
            parent=prepared.parent,
            prompt_delta=prepared.delta,
            reply_ids=list(reply_ids),
            logprobs=list(logprobs),
            versions=list(versions),
            temperature=temperature,
            finish_reason=finish_reason,
            context_key=_link(prepared.request_key, _canonical(message)),
            branch=prepared.branch,
            created=created,
            message=message,
            request=request,
            choice=choice,
        )
        self._full[call_id] = prepared.ids + call.reply_ids
        self._add(call, prepared)
        return call

    def restore(self, call: Call) -> None:
        """Add a call that the journal kept. Calls must come in the order they were recorded."""
        self._add(call, None)

    def _add(self, call: Call, prepared: Prepared | None) -> None:
        state = self._agents.setdefault(call.agent, _Agent())
        self.calls[call.call_id] = call
        self.branches[call.branch] += 1
        state.extends[call.context_key] = call.call_id
        state.last_call = call.call_id
        if prepared is not None:
            state.requests.add(prepared.request_key)
            state.last_head = prepared.head


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _link(key: str, text: str) -> str:
    return _digest(key + text)


def _canonical(message: Message) -> str:
    """What makes two messages the same: role, text, reasoning, tool calls; not the extras that SDKs add."""
    calls = [
        [call.get("id"), (call.get("function") or {}).get("name"), (call.get("function") or {}).get("arguments")]
        for call in message.get("tool_calls") or []
    ]
    parts = [
        message.get("role"),
        content_text(message.get("content")),
        message.get("reasoning_content") or "",
        calls,
        message.get("tool_call_id") or "",
        message.get("name") or "",
    ]
    return json.dumps(parts, ensure_ascii=False)


def _chain(tools: list[dict[str, Any]] | None, messages: list[Message]) -> list[str]:
    """``chain[k]`` identifies tools plus the first k messages."""
    keys = [_digest(json.dumps(tools, sort_keys=True, ensure_ascii=False) if tools else "")]
    for message in messages:
        keys.append(_link(keys[-1], _canonical(message)))
    return keys
