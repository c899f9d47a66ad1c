"""Chat messages → text, with the tokenizer's own chat template.

Promises:

- The text is what ``tokenizer.apply_chat_template`` writes for the same messages, byte for byte. (Content parts are
  joined, missing content is empty, tool arguments are objects: what the templates expect.)
- What reads like a token of the vocabulary (``<|im_end|>``, ``<tool_call>``, …) inside the *text* of a message, a tool
  or an argument is remembered as a cut: :class:`ajet.trajectory.encoding.TextEncoder` spells it out as ordinary tokens.
  One exception: ``<think>`` and ``</think>`` in what the assistant said, since templates look for them there.

Used by :class:`ajet.trajectory.ChatRenderer` only. No tokens here.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ajet.schema.errors import InvalidRequest

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None

THINK = ("<think>", "</think>")
_MARKS = ("\ue0fa", "\ue0fb", "\U000f00fa", "\U0010fffd")
"""Private-use characters; the first that a request does not use marks where its look-alikes are cut."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: what the template writes.
        cuts: places in ``text``, each inside a look-alike, that no token may span.
        marked: some message or tool holds a look-alike, whether or not the template wrote it.
    """

    text: str
    cuts: tuple[int, ...] = ()
    marked: bool = False

    def begins_with(self, other: Rendered) -> bool:
        """Whether ``other`` is a beginning of this, look-alikes included."""
        if not self.text.startswith(other.text):
            return False
        return self.cuts[: bisect_left(self.cuts, len(other.text))] == other.cuts if self.cuts or other.cuts else True

    def find_markup(self, texts: Iterable[str], start: int) -> tuple[int, str] | None:
        """The first place from ``start`` on where the template itself wrote one of ``texts``."""
        best: tuple[int, str] | None = None
        for text in texts:
            at = self.text.find(text, start) if text else -1
            while at >= 0 and self._cut_inside(at, at + len(text)):
                at = self.text.find(text, at + 1)
            if at >= 0 and (best is None or at < best[0]):
                best = at, text
        return best

    def has_markup(self, text: str, at: int) -> bool:
        """Whether the template itself wrote ``text`` at ``at``."""
        return self.text.startswith(text, at) and not self._cut_inside(at, at + len(text))

    def _cut_inside(self, start: int, end: int) -> bool:
        return bisect_right(self.cuts, start) < bisect_left(self.cuts, end)


class ChatTemplate:
    """The chat template of one tokenizer.

    Args:
        tokenizer: of transformers, with a chat template.
        added: texts of all tokens that a tokenizer finds in plain text.
    """

    def __init__(self, tokenizer: Any, added: Iterable[str]) -> None:
        self._apply_template = compiled(tokenizer) or tokenizer.apply_chat_template
        self._added = sorted({text for text in added if len(text) > 1}, key=len, reverse=True)
        self._added_assistant = [text for text in self._added if text not in THINK]
        self._initials = tuple({text[0] for text in self._added})
        self._clean_tools: list[dict[str, Any]] | None = None
        """The last tools that were seen to hold no look-alikes."""

    def render(self, messages: list[Message], tools: Tools = None, unknown: Iterable[int] | None = None) -> Rendered:
        """The whole conversation, ready for a reply.

        Args:
            unknown: indices of the messages that need looking at; the others are known to be a role and a text
                without look-alikes. None: all do.

        Raises:
            InvalidRequest: the template refuses the messages, or a content part is not text.
        """
        plain = list(messages)
        mark, suspicious = "", False
        for k in range(len(messages)) if unknown is None else unknown:
            plain[k] = self._plain(messages[k])
            suspicious = suspicious or self._suspicious(plain[k])
        if suspicious or self._suspicious_tools(tools):
            mark = self._free_mark(plain, tools)
            plain = [self._marked(message, mark) for message in plain]
            tools = self._mark_all(tools, self._added, mark)
        text = self._apply(plain, tools)
        if not mark or mark not in text:
            return Rendered(text, marked=bool(mark))
        pieces = text.split(mark)
        cuts, at = [], 0
        for piece in pieces[:-1]:
            at += len(piece)
            cuts.append(at)
        return Rendered("".join(pieces), tuple(cuts), marked=True)

    def _apply(self, messages: list[Message], tools: Tools) -> str:
        from jinja2 import TemplateError

        try:
            return self._apply_template(messages, tools=tools or None, add_generation_prompt=True, tokenize=False)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as err:
            raise InvalidRequest(f"This model's chat template refuses these messages: {err}", param="messages") from err

    @staticmethod
    def _plain(message: Message) -> Message:
        """Text parts joined, nothing that is null, tool arguments as objects (many templates iterate them)."""
        content = message.get("content")
        if type(content) is str and len(message) == 2:
            return message
        out = {k: v for k, v in message.items() if v is not None}
        out["content"] = content_text(content)
        if out.get("tool_calls"):
            out["tool_calls"] = [_with_object(call) for call in out["tool_calls"]]
        return out

    # ── look-alikes ──────────────────────────────────────────────────────────────────────────────────────────────

    def _suspicious(self, message: Message) -> bool:
        """Whether some look-alike may be in it; cheap, and never wrong where it says no."""
        if len(message) == 2:
            content = message["content"]
            return any(initial in content for initial in self._initials) and self._holds(content)
        return self._holds(message)

    def _suspicious_tools(self, tools: Tools) -> bool:
        if not tools or tools == self._clean_tools:
            return False
        if self._holds(tools):
            return True
        self._clean_tools = tools
        return False

    def _holds(self, node: Any) -> bool:
        if isinstance(node, str):
            return any(text in node for text in self._added)
        if isinstance(node, dict):
            return any(self._holds(k) or self._holds(v) for k, v in node.items())
        return isinstance(node, list) and any(self._holds(item) for item in node)

    @staticmethod
    def _free_mark(messages: list[Message], tools: Tools) -> str:
        used = json.dumps([messages, tools], ensure_ascii=False, default=str)
        for mark in _MARKS:
            if mark not in used:
                return mark
        raise InvalidRequest(
            "The messages use every character that could mark special-token look-alikes in them. Remove the "
            "private-use characters.",
            param="messages",
        )

    def _marked(self, message: Message, mark: str) -> Message:
        said = self._added_assistant if message.get("role") == "assistant" else self._added
        return {
            key: value if key == "role" else self._mark_all(value, said if key == "content" else self._added, mark)
            for key, value in message.items()
        }

    def _mark_all(self, node: Any, added: list[str], mark: str) -> Any:
        if isinstance(node, str):
            for text in added:
                if text in node:
                    node = node.replace(text, text[0] + mark + text[1:])
            return node
        if isinstance(node, dict):
            return {self._mark_all(k, added, mark): self._mark_all(v, added, mark) for k, v in node.items()}
        return [self._mark_all(item, added, mark) for item in node] if isinstance(node, list) else node


def compiled(tokenizer: Any) -> Callable[..., str] | None:
    """``tokenizer.apply_chat_template`` for plain dicts and as text, without what it does anew at every call.

    That is half of a short conversation's cost: the template's globals, the special tokens' map, the search for the
    template. None where the tokenizer has a method of its own, or transformers no longer has the one private name used
    here, the compiler of templates; then the tokenizer's method does all of it.
    """
    from transformers import PreTrainedTokenizerBase

    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        return None
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return None
    template = _compile_jinja_template(tokenizer.chat_template)
    fixed = {**template.globals, **tokenizer.special_tokens_map, "documents": None}
    render = template.root_render_func

    def apply(messages: list[Message], *, tools: Tools, add_generation_prompt: bool, tokenize: bool) -> str:
        assert not tokenize
        names = {**fixed, "messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return "".join(render(template.new_context(names, shared=True)))

    return apply


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    function["arguments"] = arguments_value(function.get("arguments"))
    return {**call, "function": function}


def arguments_value(arguments: Any) -> Any:
    """A tool call's arguments as what their JSON says; the text itself where it says nothing that can be written."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return arguments
    return value


def content_text(content: Any) -> str:
    """A message's content as one text. Raises :class:`InvalidRequest` for parts that are not text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text", "refusal"):
                parts.append(str(part.get("text") or part.get("refusal") or ""))
            else:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise InvalidRequest(f"This model reads text only; a content part is {kind!r}.", param="messages")
        return "".join(parts)
    raise InvalidRequest(f"content must be text or a list of parts, not {type(content).__name__}.", param="messages")
