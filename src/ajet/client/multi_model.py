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

Episodes are asked for in the order of the servers' addresses, whatever the order they are given in. So games that
compete for the last free episodes of two servers cannot hold one each and wait for the other for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ajet.client.episode import abort_reason
from ajet.client.scope import current_scope
from ajet.client.several import at_once, refuse_shared_server
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, ConfigError, EpisodeGone, EpisodesParted, NotFound, TrainingFinished
from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.wire import EndFate

if TYPE_CHECKING:
    from ajet.client.swarm_client import SwarmClient

Outputs = WorkflowOutput | Mapping[str, WorkflowOutput]
WhenFinished = Literal["play_on", "stop"]
_RECORDED: frozenset[str] = frozenset(EndFate.__args__)  # type: ignore[attr-defined]


class MultiModelEpisode:
    """One game's episodes, one on each server; a ``with`` block that ends or aborts them together.

    Leaving the block ends the episodes where :meth:`end` was called or :attr:`output` was set, and aborts them
    otherwise, with the exception as the reason where one left the block.

    Args:
        clients: a name of your choosing → the client of that model's server.
        task: the task, where it is known already.
        discard_episode_timeout, episode_type: as of :meth:`SwarmClient.begin_episode`.
        when_finished: models rarely finish in the same game. ``play_on``: a finished one plays on by eval episodes,
            served and not trained, until all are finished. ``stop``: the first that is finished ends the script.

    Attributes:
        apis: name → the endpoint of that model's episode. episodes: name → its id.
        finished: names of the models that play on untrained.
        output: set it instead of calling :meth:`end`.
    """

    def __init__(
        self,
        clients: Mapping[str, SwarmClient],
        task: Task | None = None,
        discard_episode_timeout: float = 240,
        episode_type: str = "train",
        when_finished: WhenFinished = "play_on",
    ) -> None:
        if not clients:
            raise ConfigError("There is no model to play. Give a dict of name → client.", param="clients")
        if when_finished not in ("play_on", "stop"):
            raise ConfigError(f"when_finished is play_on or stop, not {when_finished!r}.", param="when_finished")
        refuse_shared_server(clients, "would play two models of one game")
        self.clients = dict(clients)
        self.task = task
        self.apis: dict[str, OpenaiBaseUrlAndApiKey] = {}
        self.episodes: dict[str, str] = {}
        self.finished: set[str] = set()
        self.output: Outputs | None = None
        self._arguments = (discard_episode_timeout, episode_type, when_finished)
        self._open: set[str] = set()
        self._ended: set[str] = set()
        self._over = False

    # ── begin ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> MultiModelEpisode:
        """Begin all episodes; if one cannot be, the others are aborted.

        Raises:
            TrainingFinished: every model is finished (with ``when_finished="stop"``: one is).
            Whatever :meth:`SwarmClient.begin_episode` raises.
        """
        timeout_s, kind, when_finished = self._arguments
        order = sorted(self.clients, key=lambda name: self.clients[name].server_url)
        name = order[0]
        try:
            for name in order:
                try:
                    self._begin(name, timeout_s, kind)
                except TrainingFinished:
                    if when_finished == "stop":
                        raise
                    self.finished.add(name)
                    if len(self.finished) == len(order):
                        raise
            # After all that are trained: one who holds a finished model's episode waits for nobody.
            for name in order:
                if name in self.finished:
                    self._begin(name, timeout_s, "eval")
        except BaseException as err:
            self._over = True
            self._abort_open(f"partner_not_begun: {name}: {abort_reason(err)}")
            raise
        if self.finished:
            _still_training()
        return self

    def _begin(self, name: str, timeout_s: float, kind: str) -> None:
        client = self.clients[name]
        self.episodes[name], self.apis[name] = client.begin_episode(timeout_s, kind, self.task)
        self._open.add(name)

    # ── end and abort ────────────────────────────────────────────────────────────────────────────────────────────────

    def end(self, output: Outputs, task: Task | None = None) -> None:
        """Report the game to every server, each until it acknowledges.

        Args:
            output: one for all, whose reward is a dict by agent or tag of which each server takes its own agents'; or
                one for each name.
            task: where none was given at the beginning.

        Raises:
            InvalidRequest, IncompleteReward: a server would not take its result; nothing was ended, all are open.
            EpisodeGone: an episode had ended (expired, aborted); the others were aborted.
            EpisodesParted: some are recorded, and the others were not acknowledged; see the module. Those that are
                still open may be ended by calling this again.
        """
        told = task or self.task or Task()
        outputs = self._outputs(output)
        left = [name for name in self.clients if name not in self._ended]
        if not self._ended:
            self._check(told, outputs)
        work = {name: lambda name=name: self._end(name, told, outputs[name]) for name in left}
        lost = {name: err for name, err in at_once(work).items() if err is not None}
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

    def _check(self, task: Task, outputs: dict[str, WorkflowOutput]) -> None:
        """Ask all servers whether they would take their results; raise the first refusal."""

        def asker(name: str) -> None:
            with contextlib.suppress(NotFound):  # a server that cannot be asked: its end says it
                self.clients[name].check_episode(task, self.episodes[name], outputs[name])

        refused = {n: e for n, e in at_once({n: lambda n=n: asker(n) for n in self.clients}).items() if e is not None}
        for name, error in refused.items():
            if isinstance(error, EpisodeGone):
                self._open.discard(name)
                self._over = True
                self._abort_open(f"partner_gone: {name}: {error.message}")
                raise error
        if refused:
            raise next(iter(refused.values()))

    def _end(self, name: str, task: Task, output: WorkflowOutput) -> None:
        try:
            self.clients[name].end_episode(task, self.episodes[name], output)
        except EpisodeGone as gone:
            self._open.discard(name)
            if gone.details.get("fate") not in _RECORDED:
                raise
            # Nobody else ends this episode: an earlier report of ours arrived, and only its answer was lost.
        self._open.discard(name)
        self._ended.add(name)

    def abort(self, reason: str = "aborted by the client") -> None:
        """Abort what is open of them."""
        self._over = True
        self._abort_open(reason)

    def _abort_open(self, reason: str) -> None:
        names, self._open = sorted(self._open), set()
        work = {n: lambda n=n: self.clients[n].abort_episode(self.episodes[n], reason) for n in names}
        for name, error in at_once(work).items():
            if isinstance(error, BaseException):
                print(f"[ajet] episode {self.episodes[name]} of {name} could not be aborted: {error!r}", flush=True)

    # ── as a block ───────────────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> MultiModelEpisode:
        return self if self.episodes else self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._over:
            return
        if error is not None:
            self.abort(_why(error))
        elif self.output is None:
            self.abort("no output: the episode's block was left without one")
        else:
            try:
                self.end(self.output)
            except AjetError as refused:
                self.abort(_why(refused))
                raise


def _why(error: BaseException) -> str:
    """The reason for an abort; that others are recorded is one of its own."""
    return f"parted: {error}" if isinstance(error, EpisodesParted) else abort_reason(error)


def begin_episodes(
    clients: Mapping[str, SwarmClient],
    task: Task | None = None,
    discard_episode_timeout: float = 240,
    episode_type: str = "train",
    when_finished: WhenFinished = "play_on",
) -> MultiModelEpisode:
    """Begin one episode on each server, or none; see :class:`MultiModelEpisode`."""
    return MultiModelEpisode(clients, task, discard_episode_timeout, episode_type, when_finished).begin()


def _still_training() -> None:
    """One finished model is no reason for the executor to wind down while another learns."""
    scope = current_scope.get()
    if scope is not None:
        scope.finished = False
