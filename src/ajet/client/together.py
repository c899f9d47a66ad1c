"""Episodes of several models that play one game: begun, ended or aborted together.

One game, one server a model, one episode on each. What is promised:

- Begun together: if one server cannot grant its episode, those already granted are aborted.
- Ended together: every server is first asked whether it would take its result, and nothing is ended unless all would.
  Then all are ended at once, each tried again until its server acknowledges (ends are idempotent).
- Faults are not rewards: whatever goes wrong, an episode is recorded with the result that was reported for it or not
  at all.

What no client can promise: between the first acknowledgement and the last, this process may be killed, or a server may
stay away past the retry budget. Then the acknowledged episode is recorded, rightly, and the other ends by its silence
or is aborted: its server counts it under ``silent`` or ``aborted`` (``parted`` among the abort reasons), and its group
waits for another game. A server that only restarts does not part anything: its leases come back with it.

What is done when is written once, as generators (:data:`Plan`); :mod:`ajet.client.multi_model` performs them for threads and
for asyncio.

Episodes are asked for in the order of the servers' addresses, whatever the order they are given in. So games that
compete for the last free episodes of two servers cannot hold one each and wait for the other for ever.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from ajet.client.advice import NO_OUTPUT
from ajet.client.episode import abort_reason
from ajet.client.scope import current_scope
from ajet.client.several import refuse_shared_server
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, ConfigError, EpisodeGone, EpisodesParted, NotFound, TrainingFinished
from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.wire import EndFate

T = TypeVar("T")
Outputs = WorkflowOutput | Mapping[str, WorkflowOutput]
WhenFinished = Literal["play_on", "stop"]
_RECORDED: frozenset[str] = frozenset(EndFate.__args__)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Ask:
    """Call ``method`` of one model's client with ``arguments``."""

    method: str
    arguments: tuple[Any, ...]


Plan = Generator[Mapping[str, Ask], Mapping[str, Any], T]
"""Yields what to ask of which model's client, all at once, and is sent each one's answer, or the exception in its place."""


class EpisodesTogether:
    """One game's episodes, one on each server: the state of the game, and the plans of what to ask next.

    Args:
        clients: a name of your choosing → the client of that model's server.
        task: the task, where it is known already.
        discard_episode_timeout, episode_type: as of :meth:`SwarmClient.begin_episode`.
        when_finished: models rarely finish in the same game. ``play_on``: a finished one plays on by eval episodes,
            served and not trained, until all are finished. ``stop``: the first that is finished ends the script.

    Attributes:
        apis: name → the endpoint of that model's episode. episodes: name → its id.
        finished: names of the models that play on untrained.
        output: set it instead of calling ``end``.
    """

    CLIENT: ClassVar[str]
    """The clients that it takes, by name; those of :class:`AsyncSwarmClient` have methods that are awaited."""

    def __init__(
        self,
        clients: Mapping[str, Any],
        task: Task | None = None,
        discard_episode_timeout: float = 240,
        episode_type: str = "train",
        when_finished: WhenFinished = "play_on",
    ) -> None:
        if not clients:
            raise ConfigError("There is no model to play. Give a dict of name → client.", param="clients")
        for name, client in clients.items():
            awaited = inspect.iscoroutinefunction(getattr(client, "begin_episode", None))
            if awaited != (self.CLIENT == "AsyncSwarmClient"):
                raise ConfigError(
                    f"{type(self).__name__} takes {self.CLIENT}s, and {name} is {client!r}: with SwarmClients use "
                    "begin_episodes, with AsyncSwarmClients AsyncMultiModelEpisode.",
                    param="clients",
                )
        if when_finished not in ("play_on", "stop"):
            raise ConfigError(f"when_finished is play_on or stop, not {when_finished!r}.", param="when_finished")
        refuse_shared_server(clients, "would play two models of one game")
        self.clients = dict(clients)
        self.task = task
        self.apis: dict[str, OpenaiBaseUrlAndApiKey] = {}
        self.episodes: dict[str, str] = {}
        self.finished: set[str] = set()
        self.output: Outputs | None = None
        self._timeout_s, self._kind, self._when_finished = discard_episode_timeout, episode_type, when_finished
        self._open: set[str] = set()
        self._ended: set[str] = set()
        self._over = False

    # ── begin ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _beginning(self) -> Plan[None]:
        order = sorted(self.clients, key=lambda name: self.clients[name].server_url)
        name = order[0]
        try:
            for name in order:
                try:
                    yield from self._begin(name, self._kind)
                except TrainingFinished:
                    if self._when_finished == "stop":
                        raise
                    self.finished.add(name)
                    if len(self.finished) == len(order):
                        raise
            # After all that are trained: one who holds a finished model's episode waits for nobody.
            for name in order:
                if name in self.finished:
                    yield from self._begin(name, "eval")
        except BaseException as err:
            yield from self._aborting(f"partner_not_begun: {name}: {abort_reason(err)}")
            raise
        if self.finished:
            _still_training()

    def _begin(self, name: str, kind: str) -> Plan[None]:
        begun = (yield {name: Ask("begin_episode", (self._timeout_s, kind, self.task))})[name]
        if isinstance(begun, BaseException):
            raise begun
        self.episodes[name], self.apis[name] = begun
        self._open.add(name)

    # ── end and abort ────────────────────────────────────────────────────────────────────────────────────────────────

    def _ending(self, output: Outputs, task: Task | None) -> Plan[None]:
        told = task or self.task or Task()
        outputs = self._outputs(output)
        results = {name: (told, self.episodes[name], outputs[name]) for name in self.clients}
        if not self._ended:
            yield from self._checking(results)
        answers = yield {n: Ask("end_episode", results[n]) for n in self.clients if n not in self._ended}
        lost = {name: answer for name, answer in answers.items() if not self._is_ended(name, answer)}
        if not lost:
            self._over = True
            return
        first = next(iter(lost.values()))
        if not isinstance(first, Exception) or not self._ended:
            raise first
        told_of = {name: err.message if isinstance(err, AjetError) else repr(err) for name, err in lost.items()}
        where = "; ".join(f"{name} at {self.clients[name].server_url}: {why}" for name, why in told_of.items())
        raise EpisodesParted(
            f"Recorded: {', '.join(sorted(self._ended))}. Not acknowledged: {where}. What is recorded stays so; what is "
            "not has no reward, is aborted or ends by its silence, and is counted there. Its group takes another game.",
            details={"ended": sorted(self._ended), "lost": told_of},
        ) from first

    def _outputs(self, output: Outputs) -> dict[str, WorkflowOutput]:
        if isinstance(output, WorkflowOutput):
            return dict.fromkeys(self.clients, output)
        wrong = sorted(set(output) ^ set(self.clients))
        if wrong:
            raise ConfigError(
                f"Give one output, or one for each of {', '.join(self.clients)}; missing or unknown: {', '.join(wrong)}.",
                param="output",
            )
        return dict(output)

    def _checking(self, results: Mapping[str, tuple[Any, ...]]) -> Plan[None]:
        """Ask all servers whether they would take their results; raise the first refusal."""
        answers = yield {name: Ask("check_episode", result) for name, result in results.items()}
        # A server that cannot be asked (NotFound): its end says it.
        refused = {
            n: answer for n, answer in answers.items() if answer is not None and not isinstance(answer, NotFound)
        }
        for name, error in refused.items():
            if isinstance(error, EpisodeGone):
                self._open.discard(name)
                yield from self._aborting(f"partner_gone: {name}: {error.message}")
                raise error
        if refused:
            raise next(iter(refused.values()))

    def _is_ended(self, name: str, answer: Any) -> bool:
        if isinstance(answer, EpisodeGone):
            self._open.discard(name)
        # Nobody else ends this episode: where it is on record, an earlier report of ours arrived, and only its answer was lost.
        recorded = isinstance(answer, EpisodeGone) and answer.details.get("fate") in _RECORDED
        if answer is not None and not recorded:
            return False
        self._open.discard(name)
        self._ended.add(name)
        return True

    def _aborting(self, reason: str) -> Plan[None]:
        """Abort what is open; nothing is raised."""
        self._over = True
        names, self._open = sorted(self._open), set()
        if not names:
            return
        answers = yield {n: Ask("abort_episode", (self.episodes[n], reason)) for n in names}
        for name, error in answers.items():
            if isinstance(error, BaseException):
                print(f"[ajet] episode {self.episodes[name]} of {name} could not be aborted: {error!r}", flush=True)

    # ── as a block ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _leaving(self, error: BaseException | None) -> Plan[None]:
        """The block is left, by ``error`` where one left it."""
        if self._over:
            return
        if error is not None:
            yield from self._aborting(_why(error))
        elif self.output is None:
            yield from self._aborting(NO_OUTPUT)
        else:
            try:
                yield from self._ending(self.output, None)
            except AjetError as refused:
                yield from self._aborting(_why(refused))
                raise


def _why(error: BaseException) -> str:
    """The reason for an abort; that others are recorded is one of its own."""
    return f"parted: {error}" if isinstance(error, EpisodesParted) else abort_reason(error)


def _still_training() -> None:
    """One finished model is no reason for the executor to wind down while another learns."""
    scope = current_scope.get()
    if scope is not None:
        scope.finished = False
