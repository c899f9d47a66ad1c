"""One chat call: wait for the engine, render, sample, record, answer.

Promises: a reply is answered (a stream: finished) only after its call is durable in the journal; a call whose client
went away, or whose episode ended meanwhile, is cancelled and not recorded; a backbone that dies under a call that has
shown nothing yet costs the client a wait, not an error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.backbone.protocol import BackboneDied, Chunk, Sampling
from ajet.pool.records import CallRecorded
from ajet.schema.endpoint import EpisodeKey
from ajet.schema.errors import AjetError, ContextLengthExceeded, EngineUnavailable, InvalidRequest, RateLimited
from ajet.server.answers import Identity
from ajet.server.chat_request import ChatRequest, check_sampling
from ajet.server.engine import Engine
from ajet.server.episode import OpenEpisode
from ajet.server.experiment import Experiment
from ajet.trajectory import Call, ChatRenderer, Prepared

UNLIKELY_PER_TOKEN = 8
"""Characters a token; a prompt with more of them for the whole context is hardly one that fits."""
log = logging.getLogger("ajet.chat")

MALFORMED = "malformed_tool_calls"

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


async def answer(
    engine: Engine,
    key: EpisodeKey,
    body: dict[str, Any],
    request: ChatRequest,
    identity: Identity,
    on_text: OnText | None = None,
) -> Answered:
    """Serve one request; a repeat of an answered one gets that answer (see :mod:`ajet.server.answers`).

    Raises:
        EpisodeGone, NotFound: the episode is not open. InvalidRequest and its kin: the request is at fault.
        EngineUnavailable, DiskRefused: retry. EngineFailed: do not.
    """
    limits = engine.settings.limits
    registry = await engine.wait_registry(limits.chat_wait_s)
    episode = await registry.find(key.episode)
    episode.check_open()
    if len(episode.in_flight) >= limits.chats_per_episode:
        raise RateLimited(f"{len(episode.in_flight)} calls of this episode are in flight. Retry in a second.")
    check_sampling(body, request, trained=episode.train and not request.frozen)
    task = asyncio.current_task()
    assert task is not None
    engine.telemetry.in_flight += 1
    registry.leases.enter(episode.id, registry.now())
    episode.in_flight.add(task)
    place: asyncio.Future[None] | None = None
    try:
        if request.frozen:
            return await _serve(engine, episode, key, request, identity, on_text)
        place = await episode.answers.turn(key.agent, identity)
        known = episode.answers.known(key.agent, identity)
        if known is not None:
            return _repeat(engine, episode, known, on_text)
        return await _serve(engine, episode, key, request, identity, on_text)
    except AjetError:
        episode.answers.failed(key.agent, identity)
        raise
    except asyncio.CancelledError:
        # The episode ended, or the engine stopped, under the call; else the client went away.
        episode.check_open()
        if engine.tearing_down:
            raise EngineUnavailable(
                f"The engine is {engine.state}; send the request again when it is ROLLING."
            ) from None
        raise
    finally:
        episode.answers.leave(key.agent, identity, place)
        episode.in_flight.discard(task)
        registry.leases.leave(episode.id, registry.now())
        engine.telemetry.in_flight -= 1


async def _serve(
    engine: Engine,
    episode: OpenEpisode,
    key: EpisodeKey,
    request: ChatRequest,
    identity: Identity,
    on_text: OnText | None,
) -> Answered:
    experiment, _ = await engine.wait_backbone(engine.settings.limits.chat_wait_s)
    renderer = experiment.renderer
    assert renderer is not None
    await _refuse_hopeless(renderer, request, experiment.config.rollout.max_model_len)
    recorded = not request.frozen
    if recorded:
        tag = episode.tags.get(key.agent)
        if tag is not None and tag != key.tag:
            raise InvalidRequest(
                f"Agent {key.agent!r} spoke with tag {tag!r} before and cannot change it to {key.tag!r}."
            )
        prepared = episode.trajectory.prepare(key.agent, key.tag, request.messages, request.tools)
        ids = prepared.ids
    else:
        prepared = None
        ids = renderer.render(request.messages, request.tools)
    sampling = _sampling(experiment, episode, request, len(ids))
    session = f"{episode.id}/{key.agent}"
    if request.n == 1:
        replies = [await _sample(engine, renderer, ids, sampling, session, request, 0, on_text)]
    else:
        replies = await _sample_many(engine, renderer, ids, sampling, session, request, on_text)
    episode.check_open()
    created = time.time()
    for reply in replies:
        _read(renderer, reply, request, streamed=on_text is not None)
        if reply.malformed:
            _count_malformed(engine, episode, key.agent)
    call_id = episode.new_call_id()
    if prepared is not None:
        calls = await _record(
            experiment, episode, prepared, replies, sampling.temperature, call_id, created, identity.name
        )
        episode.tags.setdefault(key.agent, key.tag)
        engine.telemetry.timeline([call.branch for call in calls], prepared.respelled)
    done = Answered(call_id, int(created), replies, len(ids))
    engine.telemetry.call(len(ids), done.completion_tokens)
    return done


async def _refuse_hopeless(renderer: ChatRenderer, request: ChatRequest, most: int) -> None:
    """Find out apart from the event loop whether a prompt that is far too long really is.

    Tokenizing one of many megabytes takes seconds, in which nobody else would be served.
    """
    size = sum(_length(message.get("content")) for message in request.messages)
    if size <= UNLIKELY_PER_TOKEN * most:
        return
    counted = await asyncio.to_thread(renderer.far_beyond, request.messages, request.tools, most)
    if counted is not None:
        raise _too_long(most, f"more than {counted}")


def _length(content: Any) -> int:
    return len(content) if isinstance(content, str) else sum(len(str(part)) for part in content or ())


def _too_long(most: int, tokens: int | str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {most} tokens, and the messages have {tokens}. Shorten them, or raise "
        "rollout.max_model_len.",
        param="messages",
    )


def _count_malformed(engine: Engine, episode: OpenEpisode, agent: str) -> None:
    """Count a tool call that could not be read. One line for it, and no flood where a model makes nothing else."""
    engine.telemetry.count(MALFORMED)
    many = engine.telemetry.counts[MALFORMED]
    if str(many).strip("0") == "1":
        log.warning(
            "agent %r of episode %s wrote a tool call that cannot be read; its text was returned as content "
            "(the %d. such reply since the start; the next line comes at %d)", agent, episode.id, many, many * 10,
        )  # fmt: skip


def _repeat(engine: Engine, episode: OpenEpisode, calls: list[Call], on_text: OnText | None) -> Answered:
    """The answer on record, once more. Alternatives to its tokens (``top_logprobs``) are not kept."""
    engine.telemetry.count("chat_repeats")
    replies = []
    for call in calls:
        tools = call.finish_reason == "stop" and bool(call.message.get("tool_calls"))
        reply = Reply(call.choice, call.reply_ids, call.logprobs, call.versions, message=call.message)
        reply.finish_reason = "tool_calls" if tools else call.finish_reason
        replies.append(reply)
        for part in ("reasoning_content", "content"):
            if on_text is not None and call.message.get(part) and not tools:
                on_text(call.choice, part, call.message[part], None)
    prompt = len(episode.trajectory.full_ids(calls[0].call_id)) - len(calls[0].reply_ids)
    return Answered(calls[0].call_id, int(calls[0].created), replies, prompt)


def _sampling(experiment: Experiment, episode: OpenEpisode, request: ChatRequest, prompt_tokens: int) -> Sampling:
    rollout = experiment.config.rollout
    room = rollout.max_model_len - prompt_tokens
    if room < 1:
        raise _too_long(rollout.max_model_len, prompt_tokens)
    default = rollout if episode.train else rollout.val_kwargs
    limit = min(rollout.max_response_length_in_one_turn, room)
    assert experiment.renderer is not None
    return Sampling(
        temperature=default.temperature if request.temperature is None else request.temperature,
        top_p=default.top_p if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k),
        max_tokens=limit if request.max_tokens is None else min(request.max_tokens, limit),
        stop_token_ids=experiment.renderer.stop_token_ids,
        seed=request.seed,
        top_logprobs=request.top_logprobs,
    )


async def _sample_many(
    engine: Engine,
    renderer: ChatRenderer,
    ids: list[int],
    sampling: Sampling,
    session: str,
    request: ChatRequest,
    on_text: OnText | None,
) -> list[Reply]:
    tasks = [
        asyncio.create_task(
            _sample(
                engine,
                renderer,
                ids,
                sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + i),
                session,
                request,
                i,
                on_text,
            )
        )
        for i in range(request.n)
    ]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _sample(
    engine: Engine,
    renderer: ChatRenderer,
    ids: list[int],
    sampling: Sampling,
    session: str,
    request: ChatRequest,
    index: int,
    on_text: OnText | None,
) -> Reply:
    """Sample one choice, starting over if the backbone dies before anything was shown."""
    while True:
        _, backbone = await engine.wait_backbone(engine.settings.limits.chat_wait_s)
        reply = Reply(index)
        watcher = _Watcher(renderer, request, on_text) if request.stop or on_text else None
        stream = backbone.generate(
            ids, sampling, session=session, model="frozen" if request.frozen else "policy", stream=watcher is not None
        )
        try:
            async for chunk in stream:
                if watcher is None:
                    reply.add(chunk)
                elif watcher.take(reply, chunk):
                    break
                if chunk.finish_reason is not None:
                    reply.finish_reason = chunk.finish_reason
            if reply.finish_reason == "cancelled":
                raise BackboneDied("the backbone cancelled a generation")
            if watcher is not None:
                watcher.flush(reply)
            return reply
        except BackboneDied as err:
            if watcher is not None and watcher.shown:
                raise EngineUnavailable(f"The backbone died in mid-reply ({err}). Send the request again.") from err
            # The engine notices on its own; wait until it has, then until it is back.
            await engine.changed.wait_until(lambda gone=backbone: engine.backbone is not gone, 5.0)
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()


class _Watcher:
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


def _read(renderer: ChatRenderer, reply: Reply, request: ChatRequest, *, streamed: bool) -> None:
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


async def _record(
    experiment: Experiment,
    episode: OpenEpisode,
    prepared: Prepared,
    replies: list[Reply],
    temperature: float,
    call_id: str,
    created: float,
    request: str,
) -> list[Call]:
    """Put the replies on their timeline and on record, as one atom."""
    calls = []
    for i, reply in enumerate(replies):
        calls.append(
            episode.trajectory.record(
                prepared,
                call_id=call_id if i == 0 else episode.new_call_id(),
                reply_ids=reply.ids,
                logprobs=reply.logprobs,
                versions=reply.versions,
                temperature=temperature,
                finish_reason="length" if reply.finish_reason == "length" else "stop",
                message=reply.message,
                created=created,
                request=request,
                choice=i,
            )
        )
    written = experiment.journal.append(*(CallRecorded(episode.n, call) for call in calls))
    try:
        await asyncio.shield(written)
    except asyncio.CancelledError:
        # The client is gone, but the record is on its way: it stays, and memory agrees with it.
        written.add_done_callback(lambda done: _settle_record(episode, calls, done))
        raise
    except Exception:
        for call in calls:
            episode.forget(call)
        raise
    episode.answers.add(calls)
    return calls


def _settle_record(episode: OpenEpisode, calls: list[Call], done: asyncio.Future[None]) -> None:
    if done.cancelled() or done.exception() is not None:
        for call in calls:
            episode.forget(call)
    else:
        episode.answers.add(calls)


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
