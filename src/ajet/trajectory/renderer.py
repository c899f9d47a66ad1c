"""Chat messages → token ids, and sampled ids → a message, with the tokenizer's own chat template.

Promises:

- A whole conversation renders to exactly the ids of ``tokenizer.apply_chat_template``.
- :meth:`ChatRenderer.render_extension` yields only what follows a sampled reply, so the reply's ids stay verbatim.
- Special tokens that occur inside *message text* are spelt out as ordinary tokens, never parsed as specials.
- Parsing a reply never raises: what is not a well-formed tool call is returned as text and flagged.

``renderers`` parses replies (tool calls, reasoning); it cannot extend an opaque template, so rendering is ours.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.schema.errors import ConfigError, InvalidRequest

Message = dict[str, Any]

_BREAK = "\ue0fa"
"""A private-use character put inside special-token look-alikes, and cut out again before tokenizing."""


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


class StreamDecoder:
    """Text of a growing reply, handed out only when final: never half a character, never a special token."""

    def __init__(self, renderer: ChatRenderer) -> None:
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


class ChatRenderer:
    """Renders and parses for one model.

    Args:
        model_dir: a transformers model directory with a tokenizer and a chat template.

    Raises:
        ConfigError: the directory has no tokenizer, or the tokenizer no chat template.
    """

    def __init__(self, model_dir: str | Path) -> None:
        from renderers import DefaultRenderer, DefaultRendererConfig
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
        except (OSError, ValueError) as err:
            raise ConfigError(f"No tokenizer could be loaded from {model_dir}: {err}", param="model.path") from err
        template = tokenizer.chat_template
        if not isinstance(template, str):
            raise ConfigError(
                f"The tokenizer in {model_dir} has no chat template. Use an instruct model, or add chat_template.jinja.",
                param="model.path",
            )
        self.tokenizer: Any = tokenizer
        markup = (t for t in tokenizer.get_added_vocab() if t in tokenizer.all_special_tokens or t[:1] in ("<", "["))
        self._specials = sorted(markup, key=len, reverse=True)
        tool_parser = None
        if "<tool_call>" in template:
            tool_parser = "qwen3.5" if "<function=" in template else "qwen3"
        self._parses = tool_parser is not None or "<think>" in template
        config = DefaultRendererConfig(
            tool_parser=tool_parser, reasoning_parser="think" if "<think>" in template else None
        )
        self._parser = DefaultRenderer(tokenizer, config)
        self.stop_token_ids: tuple[int, ...] = self._find_stop_tokens(Path(model_dir))
        self._stop_texts = {i: tokenizer.decode([i], skip_special_tokens=False) for i in self.stop_token_ids}

    def _find_stop_tokens(self, model_dir: Path) -> tuple[int, ...]:
        """The tokenizer's end token and those of ``generation_config.json``."""
        found = [self.tokenizer.eos_token_id]
        path = model_dir / "generation_config.json"
        if path.exists():
            more = json.loads(path.read_text()).get("eos_token_id")
            found += more if isinstance(more, list) else [more]
        stops = tuple(dict.fromkeys(i for i in found if i is not None))
        if not stops:
            raise ConfigError(f"The tokenizer in {model_dir} names no end-of-sequence token.", param="model.path")
        return stops

    # ── to tokens ────────────────────────────────────────────────────────────────────────────────────────────────

    def render(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Ids of the whole conversation, ready for a reply."""
        return self._tokenize(self._text(messages, tools, add_generation_prompt=True))

    def render_extension(
        self,
        messages: list[Message],
        known: int,
        tools: list[dict[str, Any]] | None,
        last_reply_id: int | None,
        reply_text: str,
    ) -> list[int] | None:
        """Ids that follow a sampled reply, up to where the next reply starts.

        Args:
            messages: the whole conversation.
            known: how many of them lie in the timeline; ``messages[known - 1]`` is the sampled reply.
            last_reply_id: the reply's last sampled id, None for an empty reply. Where it is not a stop token the
                reply was cut off, and the extension closes it first.
            reply_text: the reply's text without its stop token.

        Returns:
            None where the template is not prefix-stable here (it renders the known part differently once more
            follows), so that the caller must start a branch.
        """
        before = self._text(messages[:known], tools, add_generation_prompt=False)
        after = self._text(messages, tools, add_generation_prompt=True)
        if not after.startswith(before):
            return None
        stop_text = self._stop_texts.get(last_reply_id) if last_reply_id is not None else None
        if stop_text is not None:
            cut = before.rfind(stop_text)
            if cut < 0 or before[cut + len(stop_text) :].strip():
                return None
            return self._tokenize(after[cut + len(stop_text) :])
        # Cut off: everything the template writes after the content closes the turn.
        content = self._escape(reply_text).strip()
        start = before.rfind(content) if content else -1
        if content and start >= 0:
            return self._tokenize(after[start + len(content) :])
        closers = [before.rfind(text) for text in self._stop_texts.values() if text and before.rfind(text) >= 0]
        return self._tokenize(after[max(closers) :]) if closers else None

    def _text(self, messages: list[Message], tools: list[dict[str, Any]] | None, *, add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(
                [self._for_template(m) for m in messages],
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as err:
            raise InvalidRequest(f"This model's chat template refuses these messages: {err}", param="messages") from err

    def _for_template(self, message: Message) -> Message:
        """Text parts joined, look-alikes broken, tool arguments as objects (many templates iterate them)."""
        out = {k: v for k, v in message.items() if v is not None}
        out["content"] = self._escape(content_text(message.get("content")))
        if isinstance(out.get("reasoning_content"), str):
            out["reasoning_content"] = self._escape(out["reasoning_content"])
        if out.get("tool_calls"):
            out["tool_calls"] = [self._tool_call(call) for call in out["tool_calls"]]
        return out

    def _tool_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = dict(call.get("function") or {})
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = self._escape(arguments)
            try:
                parsed = json.loads(arguments)
                if "\\u" in arguments:
                    json.dumps(parsed, ensure_ascii=False).encode()  # half a character is text, not an object
                function["arguments"] = parsed
            except (ValueError, RecursionError):
                function["arguments"] = arguments
        return {**call, "function": function}

    def _escape(self, text: str) -> str:
        for special in self._specials:
            if special in text:
                text = text.replace(special, special[0] + _BREAK + special[1:])
        return text

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in text.split(_BREAK):
            ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return ids

    # ── from tokens ──────────────────────────────────────────────────────────────────────────────────────────────

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids without special tokens, exactly as sampled otherwise."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def token_text(self, token_id: int) -> str:
        """One token as text (for ``logprobs``)."""
        return self.tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(self)

    def parse(self, reply_ids: Sequence[int], tools: list[dict[str, Any]] | None = None) -> ParsedReply:
        """The assistant message of a reply. Tool calls are read only where the request offered tools."""
        ids = list(reply_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        if not self._parses:
            return ParsedReply({"role": "assistant", "content": self.decode(ids)}, "stop", False)
        parsed = self._parser.parse_response(ids)
        message: Message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        calls = parsed.tool_calls if tools else []
        bad = any(str(call.status) != "ok" for call in calls)
        if bad or (parsed.tool_calls and not tools):
            # Nothing is guessed: the text comes back as sampled, tags included.
            text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            message["content"] = text.partition("</think>")[2] if parsed.reasoning_content else text
            return ParsedReply(message, "stop", bad)
        if calls:
            message["content"] = (parsed.content or "").strip() or None
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{uuid.uuid4().hex[:24]}",
                    "type": "function",
                    "function": {
                        "name": call.name or "",
                        "arguments": call.arguments
                        if isinstance(call.arguments, str)
                        else json.dumps(call.arguments or {}, ensure_ascii=False),
                    },
                }
                for call in calls
            ]
            return ParsedReply(message, "tool_calls", False)
        return ParsedReply(message, "stop", False)


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
