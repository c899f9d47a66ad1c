"""What becomes of an application's request: trained, served untrained, or left to the plain endpoint.

===========================  ==========================================================================================
the swarm server …           the request is …
===========================  ==========================================================================================
is ROLLING or UPDATING       played in ``num_repeat`` episodes, judged and trained; the best answer is returned
… and it cannot be trained   served as asked by one eval episode (greedy sampling, ``top_p``, penalties, …)
is FINISHED                  served by one eval episode
is not there, or is slow     left to the plain endpoint, where one was named; else refused with a 503 that says why
===========================  ==========================================================================================

A request that is itself at fault (too long, malformed) gets the server's own 400. Every request is counted by what became
of it and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx

from ajet.client import AsyncSwarmClient
from ajet.passive.endpoints import forward, words
from ajet.passive.groups import Group, Groups
from ajet.passive.judge import Answer, Asked, Judge, Unjudged, ask
from ajet.passive.settings import Bounds, PlainEndpoint, trusts_proxies
from ajet.schema.errors import (
    AjetError,
    EngineFailed,
    EngineUnavailable,
    InfrastructureFault,
    InvalidKey,
    InvalidRequest,
    RateLimited,
    ServerUnreachable,
    TrainingFinished,
    UnsupportedForTraining,
)
from ajet.schema.wire import EngineState

if TYPE_CHECKING:
    from ajet.copilot.job import AgentJetJob

log = logging.getLogger("ajet.passive")
LOOK_AGAIN_S = 1.0
"""How old a look at the server may be that a request still goes by."""
CLOSE_S = 10.0
SERVING = (EngineState.ROLLING, EngineState.UPDATING, EngineState.BOOTING, EngineState.FINISHED)
_OURS = frozenset({"stream", "stream_options", "n", "model"})
"""Fields of a request that are answered here and not passed on."""


@dataclass(frozen=True)
class Served:
    """An answer for the application: a chat completion, and what became of the request."""

    completion: dict[str, Any]
    how: Literal["trained", "untrained"]
    why: str = ""


class NotServed(InfrastructureFault):
    """The swarm server cannot serve this request now; the message says why."""


class PassiveClient:
    """Stands between an application and the model. Use it from one event loop, inside ``async with``.

    Args:
        server_url: of the swarm server; its key is ``api_key`` or the environment's ``AJET_SWARM_KEY``.
        judge: compares the answers to one request; see :mod:`ajet.passive.judge`.
        job: started where the engine is OFFLINE; None leaves that to others.
        fallback: serves the application while the swarm server cannot.
        ignore: fields of requests that are left out before the model is asked, such as ``temperature``, so that an
            application that fixes them can be trained on; each use is counted.
        bounds: how much at once, and how long.

    Attributes:
        counts: requests by what became of them and why.
    """

    def __init__(
        self,
        server_url: str,
        judge: Judge,
        *,
        api_key: str | None = None,
        job: AgentJetJob | None = None,
        fallback: PlainEndpoint | None = None,
        ignore: Collection[str] = (),
        bounds: Bounds = Bounds(),  # noqa: B008  frozen
        verbose: bool = True,
    ) -> None:
        self.judge, self.job, self.fallback, self.bounds = judge, job, fallback, bounds
        self.ignore = frozenset(ignore)
        self.counts: Counter[str] = Counter()
        self._client = AsyncSwarmClient(server_url, verbose, job, api_key=api_key)
        # Looks are not waited for: while the server is away, the application must not be.
        self._look = AsyncSwarmClient(server_url, False, api_key=api_key, retry_budget_s=0)
        self._seen: tuple[float, dict[str, Any] | AjetError] | None = None
        self._looking = asyncio.Lock()
        self._turns = asyncio.Semaphore(bounds.max_requests)
        self._waiting = 0
        self._groups = Groups(self._client, bounds.episode_s)
        self._http: httpx.AsyncClient | None = None
        self._plain: httpx.AsyncClient | None = None
        self._starting: asyncio.Task[None] | None = None

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> PassiveClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._http = httpx.AsyncClient(limits=limits, trust_env=trusts_proxies(self._client.server_url))
        if self.fallback is not None:
            self._plain = httpx.AsyncClient(limits=limits, trust_env=trusts_proxies(self.fallback.base_url))
        if self.job is not None:
            self._starting = asyncio.get_running_loop().create_task(self._start_engine())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._groups.settled(CLOSE_S)
        await self._client.close()
        await self._look.close()
        for http in (self._http, self._plain):
            if http is not None:
                await http.aclose()

    async def _start_engine(self) -> None:
        """In the background: the application is served meanwhile, by the plain endpoint if there is one."""
        try:
            await self._client.auto_sync_train_config_and_start_engine(self.job)
        except AjetError as err:
            log.error("the engine was not started: %s", err.message)

    # ── a request ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, body: dict[str, Any]) -> Served:
        """Answer one chat request; ``stream`` is the caller's business.

        Raises:
            NotServed: the swarm server cannot; :meth:`forward` may.
            RateLimited: too many requests are being answered.
            InvalidRequest and its kin: the request is at fault.
        """
        asked = _read(body)
        async with self._turn():
            try:
                served = await self._serve(asked)
            except NotServed:
                raise
            except AjetError as err:
                self.counts[f"refused/{err.code}"] += 1
                raise
            except asyncio.CancelledError:
                self.counts["left"] += 1
                raise
        self.counts[served.how] += 1
        if served.why:
            self.counts[f"{served.how}/{served.why}"] += 1
        return served

    async def forward(self, body: dict[str, Any], why: NotServed) -> httpx.Response:
        """The plain endpoint's response to ``body``, open to be read or streamed.

        Raises:
            NotServed: there is none, or it does not answer either.
        """
        if self.fallback is None or self._plain is None:
            self.counts["unserved"] += 1
            raise NotServed(f"{why.message} No fallback endpoint is configured; try again later.")
        try:
            response = await forward(self._plain, self.fallback, body, self.bounds.call_s)
        except InfrastructureFault as err:
            self.counts["unserved"] += 1
            raise NotServed(f"{why.message} The fallback failed too: {err.message}") from err
        self.counts["fallback"] += 1
        return response

    async def model_name(self) -> str:
        """Of the served model."""
        with contextlib.suppress(NotServed):
            return (await self._status()).get("model") or "policy"
        return "policy"

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._turns.locked() and self._waiting >= self.bounds.max_waiting:
            self.counts["refused/rate_limited"] += 1
            busy = RateLimited(
                f"{self.bounds.max_requests} requests are being answered and {self._waiting} wait. Try again in a moment."
            )
            busy.retry_after = 1.0
            raise busy
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    async def _serve(self, asked: Asked) -> Served:
        status = await self._status()
        if status["state"] == EngineState.FINISHED:
            return await self._untrained(asked, "training_finished")
        repeat = (status.get("pool") or {}).get("num_repeat") or 0
        wanted = asked.body.get("n") or 1
        if repeat and wanted > repeat:
            raise InvalidRequest(f"n is at most {repeat} here: the job's num_repeat.", param="n")
        try:
            return await self._trained(asked, repeat, wanted)
        except UnsupportedForTraining as err:
            return await self._untrained(asked, err.param or err.code)
        except TrainingFinished:
            return await self._untrained(asked, "training_finished")

    async def _trained(self, asked: Asked, repeat: int, wanted: int) -> Served:
        group = await self._begin(asked, repeat or await self._repeat(), "train")
        assert self._http is not None
        try:
            await group.call(self._http, self._passed_on(asked), self.bounds.call_s)
            answers = [answer for answer in group.answers if answer is not None]
            if group.faults:
                raise Unjudged(f"incomplete_group: {len(group.faults)} calls failed: {group.faults[0]}")
            rewards = await ask(self.judge, asked, answers, self.bounds.judge_s)
        except Unjudged as err:
            reason = str(err)
            self._groups.abort(group, f"passive_{reason}")
            if not answers:
                raise NotServed(f"The swarm server gave no answer: {group.faults[0]}") from err
            self._say_once(reason)
            return Served(_completion(asked, answers[:wanted]), "untrained", reason.partition(":")[0])
        except BaseException as err:
            left = isinstance(err, asyncio.CancelledError)
            self._groups.abort(group, "passive_left: the application hung up" if left else f"passive_refused: {err}")
            raise
        order = sorted(range(len(answers)), key=lambda i: -rewards[i])
        self._groups.end(group, rewards, order[0])
        return Served(_completion(asked, [answers[i] for i in order[:wanted]]), "trained")

    async def _untrained(self, asked: Asked, why: str) -> Served:
        """One eval episode: sampled as asked, never trained, and given back without a reward."""
        if (asked.body.get("n") or 1) > 1:
            raise InvalidRequest(f"n above 1 is served only where the request can be trained ({why}).", param="n")
        group = await self._begin(asked, 1, "eval")
        assert self._http is not None
        try:
            await group.call(self._http, self._passed_on(asked), self.bounds.call_s)
        finally:
            self._groups.abort(group, f"passive_untrained: {why}")
        if group.answers[0] is None:
            raise NotServed(f"The swarm server gave no answer: {group.faults[0]}")
        return Served(_completion(asked, [group.answers[0]]), "untrained", why)

    async def _begin(self, asked: Asked, size: int, kind: str) -> Group:
        """Raises :class:`NotServed` where the episodes are not granted in time."""
        try:
            return await self._groups.begin(asked, size, kind, self.bounds.begin_s)
        except asyncio.TimeoutError:
            raise NotServed(
                f"The swarm server granted no {size} episodes within {self.bounds.begin_s:g} s: it is updating, or full "
                f"(its max_env_worker must be at least num_repeat, {size})."
            ) from None
        except (ServerUnreachable, EngineUnavailable, EngineFailed, RateLimited, InvalidKey) as err:
            self._seen = None
            raise NotServed(f"The swarm server cannot serve: {err.message}") from err

    def _passed_on(self, asked: Asked) -> dict[str, Any]:
        left_out = self.ignore.intersection(asked.body)
        for name in left_out:
            self.counts[f"ignored/{name}"] += 1
        return {name: value for name, value in asked.body.items() if name not in left_out | _OURS}

    # ── looking at the server ────────────────────────────────────────────────────────────────────────────────────────

    async def _status(self) -> dict[str, Any]:
        """Raises :class:`NotServed` where no engine serves."""
        async with self._looking:
            now = time.monotonic()
            if self._seen is None or now - self._seen[0] > LOOK_AGAIN_S:
                try:
                    self._seen = now, await self._look.get_status()
                except AjetError as err:
                    self._seen = now, err
            _, seen = self._seen
        if isinstance(seen, AjetError):
            raise NotServed(f"The swarm server cannot be asked: {seen.message}") from seen
        if seen["state"] not in SERVING:
            why = f": {seen['failure']}" if seen.get("failure") else ""
            raise NotServed(f"The engine of {self._client.server_url} is {seen['state']}{why}.")
        return seen

    async def _repeat(self) -> int:
        """``num_repeat`` of the job; a booting engine is waited for."""
        deadline = time.monotonic() + self.bounds.begin_s
        with contextlib.suppress(AjetError):
            await self._look.wait_until((EngineState.ROLLING, EngineState.FINISHED), deadline - time.monotonic())
        self._seen = None
        repeat = ((await self._status()).get("pool") or {}).get("num_repeat")
        if not repeat:
            raise NotServed(f"The engine of {self._client.server_url} is still booting.")
        return int(repeat)

    def _say_once(self, reason: str) -> None:
        """One line a kind of failure; the rest is counted."""
        kind = reason.partition(":")[0]
        if not self.counts[f"untrained/{kind}"]:
            log.warning("a group was not trained: %s (said once; /passive/stats counts)", reason)


def _read(body: dict[str, Any]) -> Asked:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise InvalidRequest("messages must be a list with at least one message.", param="messages")
    n = body.get("n")
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        raise InvalidRequest("n must be a whole number of at least 1.", param="n")
    return Asked(messages, body.get("tools") or [], body)


def _completion(asked: Asked, answers: list[Answer]) -> dict[str, Any]:
    """One chat completion of the ``answers``, under the name that the application asked for."""
    usage: Counter[str] = Counter()
    for answer in answers:
        usage["completion_tokens"] += (answer.completion.get("usage") or {}).get("completion_tokens", 0)
    usage["prompt_tokens"] = (answers[0].completion.get("usage") or {}).get("prompt_tokens", 0)
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    choices = [{**answer.completion["choices"][0], "index": i} for i, answer in enumerate(answers)]
    model = asked.body.get("model") or answers[0].completion.get("model")
    return {**answers[0].completion, "model": model, "choices": choices, "usage": dict(usage)}


def refusal(err: BaseException) -> AjetError:
    """``err`` as what the application is told."""
    return (
        err if isinstance(err, AjetError) else AjetError(f"The passive client failed on this request ({words(err)}).")
    )
