"""Sampled ids → an assistant message: reasoning, content, tool calls; whole or as it grows.

Promises:

- Parsing never raises. A tool call that cannot be read is not guessed at: its text comes back as content, as sampled,
  and the reply is flagged.
- Nothing that was said is lost: text before, between and behind tool calls is content.
- A streamed reply is cut into reasoning and content as the whole one is.

The grammars of tool calls are those of ``renderers``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ajet.trajectory.encoding import TextEncoder
from ajet.trajectory.template import THINK, Message, Tools, arguments_value

OPEN, CLOSE = THINK
CONTENT, REASONING = "content", "reasoning_content"


@dataclass(frozen=True)
class ParsedReply:
    """A sampled reply as an OpenAI assistant message.

    Attributes:
        message: ``role``, ``content``, and ``reasoning_content`` / ``tool_calls`` where there are any.
        finish_hint: ``tool_calls`` where the reply called a tool, else ``stop``.
        malformed: the reply tried to call a tool and the call could not be read; its text is in ``content``.
    """

    message: Message
    finish_hint: str
    malformed: bool


def tool_grammar(template: str) -> str | None:
    """Name of the ``renderers`` parser for the calls a template writes, None where it writes none we know."""
    if "<tool_call>" in template:
        return "qwen3.5" if "<function=" in template else "glm" if "<arg_key>" in template else "qwen3"
    return "deepseek-v3" if "<｜tool▁calls▁begin｜>" in template else None


class ReplyParser:
    """Parses the replies of one model.

    Args:
        template: source of its chat template.
        stop_token_ids: a reply that ended by itself ends with one of them.
        prefilled: the template's generation prompt ends inside an open ``<think>``.
    """

    def __init__(
        self, tokenizer: Any, encoder: TextEncoder, template: str, stop_token_ids: tuple[int, ...], prefilled: bool
    ) -> None:
        from renderers.parsers import get_tool_parser

        self._encoder = encoder
        self._stops = stop_token_ids
        grammar = tool_grammar(template)
        self._tools: Any = get_tool_parser(grammar, tokenizer) if grammar else None
        self._thinks = prefilled or OPEN in template or CLOSE in template
        self._prefilled = prefilled
        self._open_id, self._close_id = encoder.added.get(OPEN), encoder.added.get(CLOSE)

    def parse(self, reply_ids: Sequence[int], tools: Tools) -> ParsedReply:
        """The assistant message of a reply. Tool calls are read only where the request offered tools."""
        ids = list(reply_ids)
        if ids and ids[-1] in self._stops:
            ids.pop()
        message: Message = {"role": "assistant", "content": ""}
        reasoning, ids, text = self._split(ids)
        if reasoning:
            message[REASONING] = reasoning
        if ids is None:
            return ParsedReply(message, "stop", False)
        if text is None:
            text = self._encoder.decode(ids, skip_special=True)
        message["content"] = text
        attempts, spans = self._attempts(ids)
        if attempts == []:
            return ParsedReply(message, "stop", False)
        calls = None if attempts is None or not tools else [_call(attempt) for attempt in attempts]
        if calls is None or None in calls:
            message["content"] = self._encoder.decode(ids, skip_special=False)
            return ParsedReply(message, "stop", bool(tools))
        message["content"] = self._around(ids, spans).strip() or None
        message["tool_calls"] = calls
        return ParsedReply(message, "tool_calls", False)

    def _split(self, ids: list[int]) -> tuple[str | None, list[int] | None, str | None]:
        """Reasoning; the ids behind it (None where it never ended); their text where no token ends with ``</think>``."""
        if not self._thinks:
            return None, ids, None
        if self._open_id is None or self._close_id is None:
            return self._split_text(ids)
        decode = self._encoder.decode
        opened = ids.index(self._open_id) if self._open_id in ids else -1
        explicit = opened >= 0 and not decode(ids[:opened], skip_special=False).strip()
        if not explicit and not self._prefilled:
            return None, ids, None
        start = opened + 1 if explicit else 0
        if self._close_id not in ids[start:]:
            return decode(ids[start:], skip_special=True), None, None
        closed = ids.index(self._close_id, start)
        return decode(ids[start:closed], skip_special=True), ids[closed + 1 :], None

    def _split_text(self, ids: list[int]) -> tuple[str | None, list[int] | None, str | None]:
        text = self._encoder.decode(ids, skip_special=True)
        message = self.message_of(text)
        if REASONING not in message and not self._prefilled and not text.lstrip().startswith(OPEN):
            return None, ids, None
        behind = text.find(CLOSE)
        if behind < 0:
            return message.get(REASONING), None, None
        behind += len(CLOSE)
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self._encoder.decode(ids[:middle], skip_special=True)) < behind:
                low = middle + 1
            else:
                high = middle
        return message.get(REASONING), ids[low:], text[behind:]

    def _attempts(self, ids: list[int]) -> tuple[list[Any] | None, list[tuple[int, int]]]:
        """Tool calls that were tried; None where the parser gave up."""
        if self._tools is None or not ids:
            return [], []
        try:
            attempts = self._tools.extract(ids)[1]
        except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
            # JSON nested too deep, a number too long, a list where a name should be.
            return None, []
        return attempts, [attempt.token_span for attempt in attempts if attempt.token_span is not None]

    def _around(self, ids: list[int], spans: list[tuple[int, int]]) -> str:
        pieces, at = [], 0
        for start, end in spans:
            pieces.append(self._encoder.decode(ids[at:start], skip_special=True).strip())
            at = end
        pieces.append(self._encoder.decode(ids[at:], skip_special=True).strip())
        return "\n".join(piece for piece in pieces if piece)

    # ── growing replies ──────────────────────────────────────────────────────────────────────────────────────────

    def splitter(self) -> ReplySplitter:
        return ReplySplitter(self._thinks, self._prefilled)

    def message_of(self, text: str) -> Message:
        """The message of a reply's whole text, as :class:`ReplySplitter` hands it out. Reads no tool calls."""
        splitter = self.splitter()
        found = {CONTENT: "", REASONING: ""}
        for name, piece in [*splitter.push(text), *splitter.flush()]:
            found[name] += piece
        message: Message = {"role": "assistant", "content": found[CONTENT]}
        return {**message, REASONING: found[REASONING]} if found[REASONING] else message


def _call(attempt: Any) -> dict[str, Any] | None:
    """An OpenAI tool call, or None where it is not one."""
    # The XML grammar says "invalid_json" of every argument that is plain text, which is how it writes text.
    if str(attempt.status) not in ("ok", "invalid_json"):
        return None
    name, arguments = attempt.name, attempt.arguments
    if not isinstance(name, str) or not name:
        return None
    if isinstance(arguments, str):
        if not isinstance(arguments_value(arguments), dict):
            return None
        written = arguments
    elif isinstance(arguments, dict) or arguments is None:
        written = json.dumps(arguments or {}, ensure_ascii=False)
    else:
        return None
    try:
        (name + written).encode()
    except UnicodeEncodeError:
        # "\ud800" is valid JSON and no text.
        return None
    return {
        "id": attempt.id or f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": written},
    }


class ReplySplitter:
    """Cuts a growing text into ``reasoning_content`` and ``content``; holds back what may be part of a marker."""

    def __init__(self, thinks: bool, prefilled: bool) -> None:
        self._held = ""
        self._state = "start" if thinks else CONTENT
        self._prefilled = prefilled

    def push(self, text: str) -> list[tuple[str, str]]:
        """Add text; return (field, text) pairs that are final."""
        if self._state == CONTENT and not self._held:
            return [(CONTENT, text)] if text else []
        self._held += text
        out: list[tuple[str, str]] = []
        if self._state == "start":
            head = self._held.lstrip()
            if head.startswith(OPEN):
                self._state, self._held = REASONING, head[len(OPEN) :]
            elif OPEN.startswith(head):
                return []
            else:
                self._state = REASONING if self._prefilled else CONTENT
        if self._state == REASONING:
            before, marker, behind = self._held.partition(CLOSE)
            if marker:
                out.append((REASONING, before))
                self._state, self._held = CONTENT, behind
            else:
                keep = _marker_part(self._held)
                out.append((REASONING, self._held[: len(self._held) - keep]))
                self._held = self._held[len(self._held) - keep :]
        if self._state == CONTENT:
            out.append((CONTENT, self._held))
            self._held = ""
        return [(name, piece) for name, piece in out if piece]

    def flush(self) -> list[tuple[str, str]]:
        """The reply is over: what was held back."""
        name = REASONING if self._state == REASONING or (self._state == "start" and self._prefilled) else CONTENT
        held, self._held = self._held, ""
        return [(name, held)] if held else []


def _marker_part(text: str) -> int:
    """How many characters at the end may be the beginning of ``</think>``."""
    return next((n for n in range(min(len(CLOSE) - 1, len(text)), 0, -1) if CLOSE.startswith(text[-n:])), 0)


class StreamDecoder:
    """Text of a growing reply, handed out only when final: never half a character, never a special token."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self._ids: list[int] = []
        self._context, self._read = 0, 0
        """Text of ids before ``_read`` was handed out; those from ``_context`` on are decoded again, as context."""

    def push(self, ids: Sequence[int]) -> str:
        """Add sampled ids; return the text that has become final. Costs what is new, not what is old."""
        self._ids.extend(ids)
        piece = self._piece()
        if not piece or piece.endswith("\ufffd"):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return piece

    def flush(self) -> str:
        """What is left at the end, incomplete characters included."""
        piece = self._piece()
        self._context = self._read = len(self._ids)
        return piece

    def _piece(self) -> str:
        known = self._renderer.decode(self._ids[self._context : self._read])
        return self._renderer.decode(self._ids[self._context :])[len(known) :]
