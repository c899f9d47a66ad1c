"""What one chat call sampled: its choices, as text while they grow and as messages when they are whole. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ajet.backbone.protocol import Chunk
from ajet.server.chat_request import ChatRequest
from ajet.trajectory import ChatRenderer

OnText = Callable[[int, str, str, list[dict[str, Any]] | None], None]
"""Called with (choice index, ``content`` or ``reasoning_content``, text that is final, log-probs) during sampling."""


@dataclass
class Reply:
    """One sampled choice."""

    index: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: str = "length"
    message: dict[str, Any] = field(default_factory=dict)
    malformed: bool = False
    stopped_at: int | None = None
    """Length of the text before a stop string, where one was hit."""

    def add(self, chunk: Chunk, count: int | None = None) -> None:
        self.ids += chunk.ids[:count]
        self.logprobs += chunk.logprobs[:count]
        self.versions += chunk.versions[:count]
        self.top += chunk.top_logprobs[:count]


@dataclass(frozen=True)
class Answered:
    """A whole answer."""

    call_id: str
    created: int
    replies: list[Reply]
    prompt_tokens: int

    @property
    def completion_tokens(self) -> int:
        return sum(len(reply.ids) for reply in self.replies)

    def usage(self) -> dict[str, int]:
        done = self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": done,
            "total_tokens": self.prompt_tokens + done,
        }


class Watcher:
    """Follows a reply's text as it grows: finds stop strings, hands out what is final."""

    def __init__(self, renderer: ChatRenderer, request: ChatRequest, on_text: OnText | None) -> None:
        self._renderer = renderer
        self._stops = request.stop
        self._hold = max((len(stop) for stop in request.stop), default=1) - 1
        # With tools the text becomes calls only when it is whole.
        self._on_text = None if request.tools else on_text
        self._logprobs = request.logprobs
        self._decoder = renderer.stream_decoder()
        self._splitter = renderer.reply_splitter()
        self._text = ""
        self._sent = 0
        self._sent_ids = 0
        self.shown = False

    def take(self, reply: Reply, chunk: Chunk) -> bool:
        """Add a chunk. True where a stop string was completed: the reply ends with that token."""
        if not self._stops:
            reply.add(chunk)
            self._text += self._decoder.push(chunk.ids)
            self._show(reply, len(self._text))
            return False
        for k, token in enumerate(chunk.ids):
            before = len(self._text)
            self._text += self._decoder.push([token])
            if self._stop_hit(reply, before):
                reply.add(chunk, k + 1)
                reply.finish_reason = "stop"
                return True
        reply.add(chunk)
        self._show(reply, max(self._sent, len(self._text) - self._hold))
        return False

    def _stop_hit(self, reply: Reply, before: int) -> bool:
        start = max(0, before - self._hold)
        hits = [at for at in (self._text.find(stop, start) for stop in self._stops) if at >= 0]
        if not hits:
            return False
        reply.stopped_at = min(hits)
        return True

    def flush(self, reply: Reply) -> None:
        """The reply is over: hand out the rest."""
        if reply.stopped_at is None:
            before = len(self._text)
            self._text += self._decoder.flush()
            if self._stop_hit(reply, before):
                reply.finish_reason = "stop"
        self._show(reply, len(self._text) if reply.stopped_at is None else reply.stopped_at, last=True)

    def _show(self, reply: Reply, end: int, last: bool = False) -> None:
        if self._on_text is None:
            return
        pieces = self._splitter.push(self._text[self._sent : end])
        if last:
            pieces += self._splitter.flush()
        self._sent = max(self._sent, end)
        entries = None
        if self._logprobs:
            entries = logprob_entries(self._renderer, reply, self._sent_ids)
            self._sent_ids = len(reply.ids)
        if entries and not pieces:
            pieces = [("content", "")]
        for part, piece in pieces:
            self.shown = True
            self._on_text(reply.index, part, piece, entries)
            entries = None

    @property
    def text(self) -> str:
        return self._text


def read(renderer: ChatRenderer, reply: Reply, request: ChatRequest, *, streamed: bool) -> None:
    """The assistant message of a reply, as it is answered and as a later request will quote it."""
    if (streamed or reply.stopped_at is not None) and not request.tools:
        text = renderer.decode(reply.ids)
        reply.message = renderer.message_of(text if reply.stopped_at is None else text[: reply.stopped_at])
        return
    parsed = renderer.parse(reply.ids, request.tools)
    reply.message, reply.malformed = parsed.message, parsed.malformed
    if reply.stopped_at is not None and isinstance(reply.message.get("content"), str):
        content = reply.message["content"]
        cuts = [at for at in (content.find(stop) for stop in request.stop) if at >= 0]
        reply.message = {**reply.message, "content": content[: min(cuts)] if cuts else content}
    if parsed.finish_hint == "tool_calls" and reply.finish_reason == "stop":
        reply.finish_reason = "tool_calls"


def logprob_entries(renderer: ChatRenderer, reply: Reply, start: int = 0) -> list[dict[str, Any]]:
    """OpenAI's ``logprobs.content`` for the reply's tokens from ``start``; the stop token is left out."""
    entries = []
    for i in range(start, len(reply.ids)):
        if reply.ids[i] in renderer.stop_token_ids:
            continue
        entry = _token(renderer, reply.ids[i], reply.logprobs[i])
        top = reply.top[i] if i < len(reply.top) else []
        entry["top_logprobs"] = [_token(renderer, token, value) for token, value in top]
        entries.append(entry)
    return entries


def _token(renderer: ChatRenderer, token: int, logprob: float) -> dict[str, Any]:
    text = renderer.token_text(token)
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode("utf-8", "replace"))}
