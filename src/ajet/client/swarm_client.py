"""SwarmClient: the blocking client. One instance serves any number of threads.

Invariants: every open episode is kept alive by one heartbeat thread until it ends, is aborted, or the process goes;
at the end of the process (or of the client) what is still open is aborted; every error is an
:class:`~ajet.schema.errors.AjetError`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.client.blocking import abort_quietly, beater, close, drive, update_asker
from ajet.client.episode import Episode
from ajet.client.exchange import Operation
from ajet.client.finish import StopTraining
from ajet.client.heartbeat import HeartbeatThread
from ajet.client.operations import Operations
from ajet.client.report import rollout_stat, rollout_text
from ajet.client.scope import current_scope
from ajet.client.settings import DEFAULT_POOL_SIZE, DEFAULT_RETRY_BUDGET_S, Settings
from ajet.client.several import start_engines
from ajet.client.weight_sync import Callback, WeightSyncCallbacks, watch
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import ConfigError, EpisodeGone, TrainingFinished
from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.throttle import SwarmThrottlePolicy
from ajet.schema.wire import EngineState

if TYPE_CHECKING:
    from ajet.copilot.job import AgentJetJob

T = TypeVar("T")


class SwarmClient:
    """Talks to one swarm server.

    Args:
        server_url: for example ``http://127.0.0.1:10086``.
        verbose: say on standard error when something is waited for.
        agentjet_job: the job that the methods below take when none is given to them.
        auto_start_swarm_server: where the address is this machine's and nothing listens there, start
            ``ajet-swarm start`` as a child and stop it at exit.
        api_key: the admin key; default: the environment's ``AJET_SWARM_KEY``.
        retry_budget_s: seconds that a call waits for a server that does not answer (restart, network) before it raises
            :class:`~ajet.schema.errors.ServerUnreachable`; 144 times as long while the server says that its disk is full.
        pool_size: connections at most; one a thread that waits is enough.
        share: the part of each batch that this client plays for, where clients with different tasks train together: a name
            in the job's ``swarm.shares``, or one that a ``SwarmThrottlePolicy`` gives a size.
    """

    def __init__(
        self,
        server_url: str,
        verbose: bool = True,
        agentjet_job: AgentJetJob | None = None,
        auto_start_swarm_server: bool = False,
        api_key: str | None = None,
        *,
        retry_budget_s: float = DEFAULT_RETRY_BUDGET_S,
        pool_size: int = DEFAULT_POOL_SIZE,
        share: str | None = None,
    ) -> None:
        self._share = share
        self._settings = Settings.of(server_url, api_key, verbose, retry_budget_s, pool_size)
        self._job = agentjet_job
        self._build()
        _rebuild_after_fork(self)
        if auto_start_swarm_server:
            from ajet.client.autostart import start_server

            start_server(self._settings.server_url, self._settings.api_key, self._settings.say)

    def _build(self) -> None:
        from ajet.client.transport import BlockingTransport

        url, key = self._settings.server_url, self._settings.api_key
        self._operations = Operations(url, retry_budget_s=self._settings.retry_budget_s, say=self._settings.say)
        self._operations.share = self._share
        self._on_update = WeightSyncCallbacks()
        self._transport = BlockingTransport(url, key, self._settings.pool_size)
        self._closed = threading.Event()
        beats = BlockingTransport(url, key, 1)
        heartbeat = HeartbeatThread(self._operations.leases, beater(self._operations, beats, self._closed))
        self._finalizer = weakref.finalize(
            self, close, self._operations, heartbeat, self._closed, (self._transport, beats)
        )

    def __repr__(self) -> str:
        return f"SwarmClient({self.server_url!r})"

    @property
    def server_url(self) -> str:
        return self._settings.server_url

    @property
    def client_id(self) -> str:
        """Names this client to the server; new for each instance."""
        return self._operations.client_id

    def _run(self, operation: Operation[T]) -> T:
        return drive(operation, self._transport, self._closed)

    # ── job and engine ───────────────────────────────────────────────────────────────────────────────────────────────

    def auto_sync_train_config_and_start_engine(
        self, agent_jet_job: AgentJetJob | None = None, force_restart: bool = False
    ) -> None:
        """Send the job, start the engine, and wait until it serves. An engine that runs this job is joined.

        Raises:
            JobConflict: the running engine has another job; the message lists the differences.
            EngineFailed: the engine has failed, with the cause; ``force_restart=True`` tries again.
            ServerUnreachable: no server within the budget.
        """
        self._run(self._operations.auto_start(self._job_or(agent_jet_job), force_restart))

    async_and_start_multi_engine = staticmethod(start_engines)
    """Several servers at once, blocking: see :func:`ajet.client.several.start_engines`."""

    def sync_train_config(self, agent_jet_job: AgentJetJob | None = None) -> None:
        """Send the job only. Raises :class:`~ajet.schema.errors.JobConflict` where another one runs."""
        self._run(self._operations.sync_job(self._job_or(agent_jet_job)))

    def start_engine(self) -> None:
        """Start the engine with the job that was sent, and wait until it serves."""
        self._run(self._operations.start())
        self.wait_until((EngineState.ROLLING, EngineState.UPDATING, EngineState.FINISHED))

    def stop_engine(self) -> None:
        """Finish the running update, save, and wait until the engine is OFFLINE. The server stays up."""
        self._run(self._operations.stop())
        self.wait_until(EngineState.OFFLINE)

    def get_status(self, *, wait_step: int | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        """Everything the server says about itself (:class:`ajet.schema.status.Status`).

        Args:
            wait_step: answer when this step is reached or training has ended, at the latest after ``wait_s`` seconds.
        """
        ended = (EngineState.FINISHED, EngineState.FAILED) if wait_step is not None else ()
        return self._run(self._operations.status(wait_states=ended, wait_step=wait_step, wait_s=wait_s))

    def get_engine_status(self) -> EngineState:
        """The engine's state; compares and prints as its name."""
        return EngineState(self.get_status()["state"])

    def wait_until(self, state: str | EngineState | Iterable[str], timeout: float | None = None) -> EngineState:
        """Wait (on the server, not by asking again and again) until the engine is in ``state``, or in one of several.

        Raises:
            EngineFailed: it failed instead.
            TrainingFinished: ROLLING was asked for, and training is finished.
            EngineUnavailable: ``timeout`` seconds passed.
        """
        return self._run(self._operations.wait_until([state] if isinstance(state, str) else state, timeout))

    # ── episodes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_episode(
        self,
        discard_episode_timeout: float = 240,
        episode_type: str = "train",
        task: Task | None = None,
        throttle_policy: SwarmThrottlePolicy | None = None,
    ) -> tuple[str, OpenaiBaseUrlAndApiKey]:
        """Ask for an episode and wait until it is granted.

        Args:
            discard_episode_timeout: seconds without a sign of life after which the server ends the episode. This
                client shows life by itself while its process runs.
            episode_type: ``train``, or ``eval``, which is never trained.
            task: the task, where it is known already.
            throttle_policy: how much of each batch this client plays, and how far ahead, where clients with different tasks
                train together; the server holds the request back while the client is far enough ahead.

        Returns:
            The episode's id, and the endpoint that its agents call.

        Raises:
            TrainingFinished: no further training episode is granted. Uncaught, it ends the script with exit code 0.
            EngineFailed, EngineUnavailable, ServerUnreachable: there is no engine to play with.
        """
        scope = current_scope.get()
        if scope is not None and scope.closed is not None:
            raise EpisodeGone(f"This worker may begin no episode any more: {scope.closed}.")
        try:
            episode, api = self._run(
                self._operations.begin(discard_episode_timeout, episode_type, task, throttle_policy)
            )
        except TrainingFinished as err:
            if scope is not None:
                scope.finished = True
            raise StopTraining(err.message) from None
        if scope is not None:
            refused = scope.adopt(episode, self._aborter(episode), is_eval=episode_type == "eval")
            if refused is not None:
                self.abort_episode(episode, reason=refused)
                raise EpisodeGone(f"This worker may begin no episode any more: {refused}.")
        return episode, api

    def end_episode(
        self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput, declare_client_active: bool = True
    ) -> None:
        """Report what the episode came to. The answer means that it is on the server's disk.

        A lost reply, a restarting server and a full disk are waited for; the report is never counted twice.
        ``declare_client_active`` is kept for scripts that pass it.

        Raises:
            EpisodeGone: the lease had ended (expired, aborted); the message says why. Nothing is trained.
            IncompleteReward: a reward dict that misses a recorded agent or tag. The episode stays open.
            InvalidRequest: no task id, no reward, or values that are not JSON.
        """
        try:
            self._run(self._operations.end(task, episode_uuid, workflow_output))
        except EpisodeGone:
            self._release(episode_uuid)
            raise
        self._release(episode_uuid)

    def check_episode(self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput) -> None:
        """Ask whether :meth:`end_episode` would be taken now; nothing is recorded. Raises what that would raise."""
        self._run(self._operations.check_end(task, episode_uuid, workflow_output))

    def abort_episode(self, episode_uuid: str, reason: str = "aborted by the client") -> None:
        """Give the episode back; it never becomes a reward. Repeats, and episodes that are gone, are fine.

        Raises nothing where the server is away: the lease then ends by its silence.
        """
        self._release(episode_uuid)
        self._run(self._operations.abort(episode_uuid, reason))

    def can_continue_episode(self, episode_uuid: str) -> bool:
        """Whether the episode's lease still lives."""
        return self._run(self._operations.can_continue(episode_uuid))

    def episode(
        self,
        task: Task | None = None,
        discard_episode_timeout: float = 240,
        episode_type: str = "train",
        throttle_policy: SwarmThrottlePolicy | None = None,
    ) -> Episode:
        """``with client.episode(task) as episode:`` begins, and ends or aborts by itself; see :class:`Episode`. Arguments as of
        :meth:`begin_episode`."""
        return Episode(self, task, discard_episode_timeout, episode_type, throttle_policy)

    # ── updates ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def agree_sync_weight(self) -> dict[str, Any]:
        """Agree to the next weight update, under the collection rules that ask
        (``rollout_until_any_client_agree_sync_weight``, ``rollout_until_all_clients_agree_sync_weight``).

        The answer means that the agreement is on the server's disk. It is never counted twice or for a later update.

        Returns:
            :class:`ajet.schema.wire.AgreeAnswer` as a dict: the update agreed to (``step``), who has agreed, who is waited
            for. To wait for the update itself: ``client.get_status(wait_step=step, wait_s=60)``.
        """
        return self._run(self._operations.agree())

    def add_entering_weight_sync_callback(self, callback: Callback) -> None:
        """Have ``callback()`` called once for each weight update as it begins, in a thread of this client.

        A callback that demands an argument gets the update's number. What it raises is shown and ends nothing. Updates that
        begin while the server cannot be reached are told when it can, in order. A forked child tells nobody.
        """
        if self._on_update.add(callback, self.get_status()):
            watch(self._on_update, update_asker(self._operations, self._settings, self._closed), self._closed)

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def get_global_step(self) -> int:
        """Weight updates so far."""
        return int(self.get_status()["step"])

    def get_steps(self, since: int = 0) -> list[dict[str, Any]]:
        """Metrics of the training steps after step ``since``, a dict for each: ``step``, ``reward/mean``, … (``metrics.jsonl``)."""
        return self._run(self._operations.steps(since))

    def print_new_steps(self) -> None:
        """Print one line (step, mean reward, win rate) for each training step since the last call. Call it in the loop.

        The first call prints the newest step only, so that a run that is resumed does not begin with pages.
        """
        for line in self._run(self._operations.new_step_lines()):
            print(line, flush=True)

    def get_rollout_stat(self) -> dict[str, Any]:
        """State, step, how full the next batch is, open episodes, and what was dropped and why."""
        return rollout_stat(self.get_status())

    def print_rollout_stat(self) -> None:
        """Print :meth:`get_rollout_stat` in a few lines."""
        print(rollout_text(self.get_rollout_stat()), flush=True)

    def get_episode_buffer(self) -> list[dict[str, Any]]:
        """The open episodes of all clients, longest idle first."""
        return self._run(self._operations.open_episodes())

    def get_episode(self, episode_id: str, *, tokens: bool = False) -> dict[str, Any]:
        """One episode whole (:class:`ajet.schema.wire.EpisodeDetail`): calls, log-probs, rewards, advantages, fate.

        Args:
            episode_id: or ``last`` for the newest one with calls.
            tokens: with the samples training reads, token by token.
        """
        return self._run(self._operations.episode(episode_id, tokens))

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Abort what is open and close the connections. Happens by itself at the end of the process."""
        self._finalizer()

    def __enter__(self) -> SwarmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, text: str) -> None:
        """One line to the user, on standard error, where the client is verbose."""
        self._settings.say(text)

    def _job_or(self, job: AgentJetJob | None) -> AgentJetJob:
        chosen = job if job is not None else self._job
        if chosen is None:
            raise ConfigError("There is no job. Pass an AgentJetJob here, or to SwarmClient(agentjet_job=…).")
        return chosen

    def _release(self, episode: str) -> None:
        scope = current_scope.get()
        if scope is not None:
            scope.release(episode)

    def _aborter(self, episode: str) -> Any:
        def abort(reason: str, budget_s: float) -> None:
            abort_quietly(self._operations, self._transport, self._closed, episode, reason, budget_s)

        return abort


def _rebuild_after_fork(client: SwarmClient) -> None:
    """A forked child is another client: the parent's episodes, connections and heartbeat are not its own."""
    reference = weakref.ref(client)

    def after_in_child() -> None:
        forked = reference()
        if forked is not None:
            forked._finalizer.detach()
            forked._build()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_in_child)


__all__ = ["Episode", "SwarmClient"]
