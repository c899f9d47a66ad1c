"""What one agent has sent and been answered, as a tree of messages: which known history does a request begin with?

Each message is stored once, so that following a history costs a look-up a message; only a message never seen before
is digested. The digests chain (``digest(parent) + message``) and are what the journal keeps as ``context_key``: after
a restart the tree is empty and the digests alone recognize a history.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ajet.trajectory.template import Message, Tools, arguments_value, content_text


class Node:
    """A history: tools and messages from the beginning up to ``message``."""

    __slots__ = ("children", "clean", "digest", "message", "parent", "plain")

    def __init__(self, digest: str, parent: Node | None, message: Message | None) -> None:
        self.digest = digest
        self.parent = parent
        self.message = message
        self.children: dict[Any, Node] = {}
        self.clean = False
        """``message`` is known to be a role and a text that a template takes as they are."""
        self.plain = parent is None
        """Every message so far is a role and a text and nothing else, so that equal messages are the same message."""

    def child(self, message: Message) -> Node:
        """This history with one more message."""
        # Most messages are a role and a text; this is all that following a known history costs.
        content = message.get("content")
        plain = len(message) == 2 and type(content) is str and "role" in message
        key = (message["role"], content) if plain else _key(message)
        found = self.children.get(key)
        if found is None:
            text = key if isinstance(key, str) else json.dumps([*key, "", [], "", ""], ensure_ascii=False)
            found = self.children[key] = Node(link(self.digest, text), self, message)
            found.plain = plain and self.plain
        return found


class Histories:
    """Histories by their tools."""

    def __init__(self) -> None:
        self._roots: list[tuple[Tools, Node]] = []
        self._last: tuple[list[Message], list[Node]] = [], []

    def path(self, tools: Tools, messages: list[Message]) -> list[Node]:
        """``path[k]`` is the history of the first k messages."""
        node = self._root(tools)
        known, last = self._last
        # Mostly a request is the one before and two messages more: comparing is cheaper than looking each one up.
        if last and last[0] is node and last[-1].plain and messages[: len(known)] == known:
            path, node = last.copy(), last[-1]
        else:
            path = [node]
        for message in messages[len(path) - 1 :]:
            node = node.child(message)
            path.append(node)
        self._last = messages, path
        return path

    def _root(self, tools: Tools) -> Node:
        for known, node in self._roots:
            if known == tools:
                return node
        node = Node(_digest(json.dumps(tools, sort_keys=True, ensure_ascii=False) if tools else ""), None, None)
        node = next((known for _, known in self._roots if known.digest == node.digest), node)
        self._roots.append((tools, node))
        return node


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def link(digest: str, text: str) -> str:
    """The digest of a history with one more message."""
    return _digest(digest + text)


def _key(message: Message) -> tuple[str, str] | str:
    """What makes two messages the same; a pair where only role and text count."""
    if any(message.get(part) for part in ("reasoning_content", "tool_calls", "tool_call_id")) or _name(message):
        return canonical(message)
    return message.get("role") or "", content_text(message.get("content"))


def canonical(message: Message) -> str:
    """What makes two messages the same: role, text, reasoning, tool calls; not the extras that SDKs add.

    Arguments count by what their JSON says: clients parse them and write them anew.
    """
    calls = [
        [call.get("id"), (call.get("function") or {}).get("name"), _arguments(call.get("function") or {})]
        for call in message.get("tool_calls") or []
    ]
    parts = [
        message.get("role"),
        content_text(message.get("content")),
        message.get("reasoning_content") or "",
        calls,
        message.get("tool_call_id") or "",
        _name(message),
    ]
    return json.dumps(parts, ensure_ascii=False)


def _name(message: Message) -> str:
    """Who is named as the speaker. Replies leave here without a name and frameworks (AgentScope) put their agent's in, so
    an assistant's counts only in the text: where a template writes it, the rendered prompt no longer continues."""
    return "" if message.get("role") == "assistant" else message.get("name") or ""


def _arguments(function: dict[str, Any]) -> Any:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return arguments
    value = arguments_value(arguments)
    return arguments if value is arguments else json.dumps(value, ensure_ascii=False)
