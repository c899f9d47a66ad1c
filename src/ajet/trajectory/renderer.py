"""Chat messages → token ids, and sampled ids → a message, for one model.

What equality with the tokenizer's own ``apply_chat_template`` means here:

- A conversation that starts a timeline has exactly its ids.
- A conversation that extends a timeline has the timeline's ids verbatim, then the ids of what the template writes
  behind the last reply. The whole decodes to the template's text, byte for byte, also where the reply was cut off:
  what the template writes behind the reply's last character closes the turn.
- Where the template spells a sampled reply otherwise (spaces in a tool call's JSON, a trimmed line end) what was
  sampled stays, and everything around it is equal. Such a reply is *respelled*, and counted.
- Where the template leaves out something that was sampled (earlier reasoning, text behind a stop string), or writes
  what came before it differently, there is no extension: the caller starts a branch.
- Look-alikes of special tokens in message text are spelt out: the same bytes, never the special token.

The tokenizer's texts are compared as it decodes them: a character that was cut in half counts as U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.schema.errors import ConfigError
from ajet.trajectory.encoding import TextEncoder
from ajet.trajectory.forks import snippets
from ajet.trajectory.replies import ParsedReply, ReplyParser, ReplySplitter, StreamDecoder
from ajet.trajectory.template import THINK, ChatTemplate, Message, Rendered, Tools, arguments_value, content_text

__all__ = [
    "ChatRenderer",
    "Extension",
    "Message",
    "ParsedReply",
    "Rendered",
    "StreamDecoder",
    "Unstable",
    "content_text",
]


@dataclass(frozen=True)
class Extension:
    """What a request adds behind a timeline: ``ids``; ``respelled`` where the template spells its last reply otherwise."""

    ids: list[int]
    respelled: bool = False


@dataclass(frozen=True)
class Unstable:
    """The template does not write a timeline again as it is: ``had`` at the first difference, and ``has`` now."""

    had: str
    has: str


PIECE = 8192
"""Characters that are tokenized at a time where others wait for the interpreter."""


class ChatRenderer:
    """Renders and parses for one model.

    Args:
        model_dir: a transformers model directory with a tokenizer and a chat template.

    Raises:
        ConfigError: the directory has no tokenizer, or the tokenizer no chat template.
    """

    def __init__(self, model_dir: str | Path) -> None:
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
        self.stop_token_ids: tuple[int, ...] = self._find_stop_tokens(Path(model_dir))
        self._encoder = TextEncoder(tokenizer, self.stop_token_ids[0])
        self._stop_texts = {i: self._encoder.decode([i], skip_special=False) for i in self.stop_token_ids}
        self._markup_ids = frozenset(i for text, i in self._encoder.added.items() if text not in THINK)
        special = set(tokenizer.all_special_tokens)
        self._template = ChatTemplate(
            tokenizer, (text for text in self._encoder.added if text in special or text[:1] in ("<", "["))
        )
        opening = self._template.render([{"role": "user", "content": "Hello"}]).text
        self._parser = ReplyParser(
            tokenizer, self._encoder, template, self.stop_token_ids, prefilled=opening.rstrip().endswith("<think>")
        )

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

    def render(self, messages: list[Message], tools: Tools = None) -> list[int]:
        """Ids of the whole conversation, ready for a reply. Raises :class:`InvalidRequest`."""
        return self.ids(self.prompt(messages, tools))

    def prompt(self, messages: list[Message], tools: Tools = None, unknown: Iterable[int] | None = None) -> Rendered:
        """The conversation as text, ready for a reply. ``unknown``: see :meth:`ChatTemplate.render`.

        Raises:
            InvalidRequest: the chat template refuses the messages.
        """
        return self._template.render(messages, tools, unknown)

    def ids(self, prompt: Rendered) -> list[int]:
        """Ids of a whole prompt."""
        return self._encoder.encode(prompt)

    def far_beyond(self, messages: list[Message], tools: Tools, most: int) -> int | None:
        """Tokens counted so far when it was clear that there are more than ``most``; None where it never was.

        For a thread beside an event loop: it works in small pieces (the tokenizer holds the interpreter while it works on
        one), stops as soon as it can, and leaves room for what cutting a text into pieces adds.
        """
        text = self.prompt(messages, tools).text
        counted = 0
        for at in range(0, len(text), PIECE):
            counted += self._encoder.count(text[at : at + PIECE])
            if counted > most + most // 4 + 64:
                return counted
        return None

    def extend(self, prompt: Rendered, known: Rendered, reply_ids: list[int], tools: Tools) -> Extension | Unstable:
        """What ``prompt`` adds to a timeline whose last call had the prompt ``known`` and this sampled reply."""
        if not prompt.begins_with(known):
            return Unstable(*snippets(known.text, prompt.text))
        start = len(known.text)
        stop = self._stop_texts.get(reply_ids[-1]) if reply_ids else None
        body = reply_ids if stop is None else reply_ids[:-1]
        said = self._encoder.decode(body, skip_special=False)
        end = start + len(said)
        if prompt.text.startswith(said, start) and (stop is None or prompt.has_markup(stop, end)):
            return Extension(self._encoder.encode(prompt, end + len(stop or "")))
        if stop is None and (end := _behind(prompt.text, start, said)) is not None:
            return Extension(self._encoder.encode(prompt, end), respelled=True)
        found = prompt.find_markup(self._stop_texts.values() if stop is None else [stop], start)
        if found is None or not self._same_words(prompt, start, found[0], said, body, tools):
            return Unstable(*snippets(said + (stop or ""), prompt.text[start:]))
        return Extension(self._encoder.encode(prompt, found[0] + len(stop or "")), respelled=True)

    def _same_words(self, prompt: Rendered, start: int, end: int, said: str, body: list[int], tools: Tools) -> bool:
        """Whether the template's version of a reply says all that was sampled, in other spelling."""
        written = prompt.text[start:end]
        if "".join(written.split()) == "".join(said.split()):
            return True
        ids = self._encoder.encode(Rendered(prompt.text[:end], tuple(c for c in prompt.cuts if c < end)), start)
        if [i for i in ids if i in self._markup_ids] != [i for i in body if i in self._markup_ids]:
            return False
        return _meaning(self._parser.parse(ids, tools).message) == _meaning(self._parser.parse(body, tools).message)

    # ── from tokens ──────────────────────────────────────────────────────────────────────────────────────────────

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids without special tokens, exactly as sampled otherwise."""
        return self._encoder.decode(ids, skip_special=True)

    def token_text(self, token_id: int) -> str:
        """One token as text (for ``logprobs``)."""
        return self._encoder.decode([token_id], skip_special=False)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Text of each token, specials included; a character that several tokens make is the last one's."""
        texts: list[str] = []
        part: list[int] = []
        for i in ids:
            part.append(i)
            text = self._encoder.decode(part, skip_special=False)
            whole = not text.endswith("\ufffd") or len(part) == 4
            texts.append(text if whole else "")
            if whole:
                part = []
        if part:
            texts[-1] = self._encoder.decode(part, skip_special=False)
        return texts

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(self)

    def reply_splitter(self) -> ReplySplitter:
        """Cuts a streamed reply's text into reasoning and content."""
        return self._parser.splitter()

    def message_of(self, text: str) -> Message:
        """The message of a streamed reply's whole text. Reads no tool calls."""
        return self._parser.message_of(text)

    def parse(self, reply_ids: Sequence[int], tools: Tools = None) -> ParsedReply:
        """The assistant message of a reply. Tool calls are read only where the request offered tools."""
        return self._parser.parse(reply_ids, tools)


def _behind(text: str, start: int, said: str) -> int | None:
    """Where ``text`` goes on behind what was said, found at ``start`` in other spaces; None where it is not."""
    at = start
    for letter in "".join(said.split()):
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text) or text[at] != letter:
            return None
        at += 1
    for space in said[len(said.rstrip()) :]:
        if text[at : at + 1] == space:
            at += 1
    return at


def _meaning(message: Message) -> list[Any]:
    """What a reply says, whatever its spaces and the spelling of its JSON."""
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return [
        (message.get("reasoning_content") or "").split(),
        (message.get("content") or "").split(),
        [(call["name"], arguments_value(call["arguments"])) for call in calls],
    ]
