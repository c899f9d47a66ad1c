"""Why a request starts a branch: the causes, and the message at fault.

A branch is never wrong, but it costs: its whole prompt is computed again, and a token that two branches share is
context in one of them. An agent whose history only grows has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ajet.trajectory.template import Message, content_text


class Branch(str, Enum):
    """How a call stands to the calls before it. The values are what the journal keeps."""

    FIRST = "first"
    CONTINUES = "continues"
    CHOICE = "choice"
    PARALLEL = "parallel"
    RETRY = "retry"
    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    HISTORY_EDITED = "history_edited"
    MESSAGES_REMOVED = "messages_removed"
    REASONING_DROPPED = "reasoning_dropped"
    NEW_CONVERSATION = "new_conversation"
    STOP_STRING = "stop_string"
    TEMPLATE_UNSTABLE = "template_unstable"
    AFTER_RESTART = "after_restart"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Fork:
    """Where a branch left the agent's last request.

    Attributes:
        message: index of the first message that differs; None where the difference is not in a message.
        part: ``role``, ``content``, ``reasoning_content``, ``tool_calls``, ``tools``, … or ``text`` (of the template).
        had: what was there, from just before the first difference. has: what is there now.
    """

    message: int | None
    part: str
    had: str
    has: str

    def to_wire(self) -> dict[str, Any]:
        return {"message": self.message, "part": self.part, "had": self.had, "has": self.has}


def snippets(had: str, has: str, before: int = 24, behind: int = 56) -> tuple[str, str]:
    """Both texts around their first difference."""
    at = common_length(had, has)
    start = max(0, at - before)
    return had[start : at + behind], has[start : at + behind]


def common_length(one: str, other: str) -> int:
    """How many characters two texts share at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_PARTS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


def part_text(message: Message, part: str) -> str:
    if part == "content":
        return content_text(message.get("content"))
    if part == "tool_calls":
        calls = [call.get("function") or {} for call in message.get("tool_calls") or []]
        return "; ".join(f"{call.get('name')}({call.get('arguments')})" for call in calls)
    return str(message.get(part) or "")


def message_fork(index: int, had: Message | None, has: Message | None) -> Fork:
    """How one message differs from what stood in its place."""
    if had is None or has is None:
        there = had or has or {}
        text = f"{there.get('role')}: {part_text(there, 'content')}"[:80]
        return Fork(index, "message", text if had else "(nothing)", text if has else "(nothing)")
    for part in _PARTS:
        old, new = part_text(had, part), part_text(has, part)
        if old != new:
            return Fork(index, part, *snippets(old, new))
    ids = [[call.get("id") for call in m.get("tool_calls") or []] for m in (had, has)]
    return Fork(index, "tool_calls", f"ids {ids[0]}"[:80], f"ids {ids[1]}"[:80])
