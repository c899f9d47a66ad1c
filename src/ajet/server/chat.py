"""One chat call: wait for the engine, render, sample, record, answer.

Promises: a reply is answered (a stream: finished) only after its call is durable in the journal; a call whose client
went away, or whose episode ended meanwhile, is cancelled and not recorded; a backbone that dies under a call that has
shown nothing yet costs the client a wait, not an error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

from ajet.backbone.protocol import POLICY, BackboneDied, Sampling
from ajet.pool.records import CallRecorded
from ajet.schema.endpoint import EpisodeKey
from ajet.schema.errors import (
    AjetError,
    ContextLengthExceeded,
    EngineFailed,
    EngineUnavailable,
    InvalidRequest,
    RateLimited,
)
from ajet.server.answers import Identity
from ajet.server.chat_request import ChatRequest, check_sampling
from ajet.server.engine import Engine
from ajet.server.episode import OpenEpisode
from ajet.server.experiment import Experiment
from ajet.server.frozen import backbone_model
from ajet.server.replies import Answered, OnText, Reply, Watcher, read
from ajet.trajectory import Call, ChatRenderer, Prepared

UNLIKELY_PER_TOKEN = 8
"""Characters a token; a prompt with more of them for the whole context is hardly one that fits."""
log = logging.getLogger("ajet.chat")

MALFORMED = "malformed_tool_calls"


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
    async with experiment.places.take(train=episode.train, choices=request.n):
        if request.n == 1:
            replies = [await _sample(engine, renderer, ids, sampling, session, request, 0, on_text)]
        else:
            replies = await _sample_many(engine, renderer, ids, sampling, session, request, on_text)
    episode.check_open()
    created = time.time()
    for reply in replies:
        read(renderer, reply, request, streamed=on_text is not None)
        if reply.malformed:
            count_malformed(engine, episode, key.agent)
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


def count_malformed(engine: Engine, episode: OpenEpisode, agent: str) -> None:
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
        experiment, backbone = await engine.wait_backbone(engine.settings.limits.chat_wait_s)
        model = backbone_model(request.model, experiment) if request.frozen else POLICY
        reply = Reply(index)
        watcher = Watcher(renderer, request, on_text) if request.stop or on_text else None
        stream = backbone.generate(ids, sampling, session=session, model=model, stream=watcher is not None)
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
            if model == POLICY and len(reply.logprobs) != len(reply.ids):
                raise EngineFailed(
                    f"The sampler gave {len(reply.ids)} tokens and {len(reply.logprobs)} log-probs. Without the ones they were "
                    "sampled with they cannot be trained, so nothing is recorded. Have the sampler return them, or use another "
                    "rollout.name."
                )
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
