"""A renderer without a tokenizer: one id per UTF-8 byte. For servers that must start quickly, to be killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet.trajectory.renderer import Extension, ParsedReply, StreamDecoder, Unstable, content_text
from ajet.trajectory.replies import ReplySplitter

STOP = 256


class Prompt(list[int]):
    """Ids that stand for the text they would be made of."""

    marked = True


class ByteRenderer:
    """The part of :class:`ajet.trajectory.ChatRenderer` that the server uses."""

    stop_token_ids = (STOP,)

    def prompt(self, messages: list[dict[str, Any]], tools: Any = None, unknown: Any = None) -> Prompt:
        return Prompt([i for m in messages for i in (*self._line(m), STOP)] + list(b"assistant:"))

    def far_beyond(self, messages: list[dict[str, Any]], tools: Any, most: int) -> int | None:
        count = len(self.prompt(messages, tools))
        return count if count > most else None

    @staticmethod
    def ids(prompt: list[int]) -> list[int]:
        return prompt

    def render(self, messages: list[dict[str, Any]], tools: Any = None) -> list[int]:
        return self.prompt(messages, tools)

    @staticmethod
    def _line(message: dict[str, Any]) -> bytes:
        return f"{message['role']}:{content_text(message.get('content'))}".encode()

    @staticmethod
    def extend(prompt: list[int], known: list[int], reply_ids: list[int], tools: Any) -> Extension | Unstable:
        body = [i for i in reply_ids if i != STOP]
        end = len(known) + len(body)
        if prompt[:end] != [*known, *body]:
            return Unstable("", "")
        return Extension(prompt[end + (reply_ids[-1:] == [STOP]) :])

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return "<stop>" if token_id == STOP else self.decode([token_id])

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        return [self.token_text(i) for i in ids]

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(self)  # type: ignore[arg-type]

    def parse(self, reply_ids: Sequence[int], tools: Any = None) -> ParsedReply:
        return ParsedReply({"role": "assistant", "content": self.decode(reply_ids)}, "stop", False)

    @staticmethod
    def reply_splitter() -> ReplySplitter:
        return ReplySplitter(thinks=False, prefilled=False)

    @staticmethod
    def message_of(text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": text}
