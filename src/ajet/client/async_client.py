"""AsyncSwarmClient: the same client for asyncio. Drives the same operations; see :class:`SwarmClient` for each method.

One instance belongs to one event loop. Training being finished is a plain ``TrainingFinished`` here. Close it with
``async with`` or :meth:`AsyncSwarmClient.close`, so that what is open is aborted.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.client.blocking import EXIT_BUDGET_S, abort_quietly
from ajet.client.episode import AsyncEpisode
from ajet.client.exchange import ConnectionFault, Operation, Pause
from ajet.client.operations import LONG_POLL_S, Operations
from ajet.client.report import rollout_stat, rollout_text
from ajet.client.scope import current_scope
from ajet.client.settings import DEFAULT_POOL_SIZE, DEFAULT_RETRY_BUDGET_S, Settings
from ajet.client.several import start_engines_async
from ajet.client.weight_sync import Callback, WeightSyncCallbacks, arguments
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, ConfigError, EpisodeGone, TrainingFinished
from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.throttle import SwarmThrottlePolicy
from ajet.schema.wire import EngineState

if TYPE_CHECKING:
    from ajet.client.transport import AsyncTransport
    from ajet.copilot.job import AgentJetJob

T = TypeVar("T")
RETRY_S = 2.0


class AsyncSwarmClient:
    """Talks to one swarm server from coroutines. Arguments as of :class:`ajet.client.SwarmClient`."""

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
        from ajet.client.transport import AsyncTransport

        self._settings = Settings.of(server_url, api_key, verbose, retry_budget_s, pool_size)
        self._job = agentjet_job
        url, key = self._settings.server_url, self._settings.api_key
        self._operations = Operations(url, retry_budget_s=retry_budget_s, say=self._settings.say)
        self._operations.share = share
        self._operations.leases.on_change = self._keep_beating
        self._on_update = WeightSyncCallbacks()
        self._watching: asyncio.Task[None] | None = None
        self._transport = AsyncTransport(url, key, pool_size)
        self._beats = AsyncTransport(url, key, 1)
        self._heartbeat: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        if auto_start_swarm_server:
            from ajet.client.autostart import start_server

            start_server(url, key, self._settings.say)

    def __repr__(self) -> str:
        return f"AsyncSwarmClient({self.server_url!r})"

    @property
    def server_url(self) -> str:
        return self._settings.server_url

    @property
    def client_id(self) -> str:
        """Names this client to the server; new for each instance."""
        return self._operations.client_id

    async def _run(self, operation: Operation[T], over: AsyncTransport | None = None) -> T:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            operation.close()
            raise AjetError(
                "This AsyncSwarmClient was used in another asyncio.run() before, and its connections belong to that one. "
                "Make a client inside each asyncio.run(), or use SwarmClient, which any thread may call."
            )
        self._loop = loop
        return await drive(operation, over or self._transport)

    async def auto_sync_train_config_and_start_engine(
        self, agent_jet_job: AgentJetJob | None = None, force_restart: bool = False
    ) -> None:
        await self._run(self._operations.auto_start(self._job_or(agent_jet_job), force_restart))

    async_and_start_multi_engine = staticmethod(start_engines_async)
    """Several servers at once: see :func:`ajet.client.several.start_engines`."""

    async def sync_train_config(self, agent_jet_job: AgentJetJob | None = None) -> None:
        await self._run(self._operations.sync_job(self._job_or(agent_jet_job)))

    async def start_engine(self) -> None:
        await self._run(self._operations.start())
        await self.wait_until((EngineState.ROLLING, EngineState.UPDATING, EngineState.FINISHED))

    async def stop_engine(self) -> None:
        await self._run(self._operations.stop())
        await self.wait_until(EngineState.OFFLINE)

    async def get_status(self, *, wait_step: int | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        ended = (EngineState.FINISHED, EngineState.FAILED) if wait_step is not None else ()
        return await self._run(self._operations.status(wait_states=ended, wait_step=wait_step, wait_s=wait_s))

    async def get_engine_status(self) -> EngineState:
        return EngineState((await self.get_status())["state"])

    async def wait_until(self, state: str | EngineState | Iterable[str], timeout: float | None = None) -> EngineState:
        return await self._run(self._operations.wait_until([state] if isinstance(state, str) else state, timeout))

    async def begin_episode(
        self,
        discard_episode_timeout: float = 240,
        episode_type: str = "train",
        task: Task | None = None,
        throttle_policy: SwarmThrottlePolicy | None = None,
    ) -> tuple[str, OpenaiBaseUrlAndApiKey]:
        scope = current_scope.get()
        if scope is not None and scope.closed is not None:
            raise EpisodeGone(f"This worker may begin no episode any more: {scope.closed}.")
        try:
            episode, api = await self._run(
                self._operations.begin(discard_episode_timeout, episode_type, task, throttle_policy)
            )
        except TrainingFinished:
            if scope is not None:
                scope.finished = True
            raise
        if scope is not None:
            refused = scope.adopt(episode, self._aborter(episode), is_eval=episode_type == "eval")
            if refused is not None:
                await self.abort_episode(episode, reason=refused)
                raise EpisodeGone(f"This worker may begin no episode any more: {refused}.")
        return episode, api

    async def end_episode(
        self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput, declare_client_active: bool = True
    ) -> None:
        try:
            await self._run(self._operations.end(task, episode_uuid, workflow_output))
        except EpisodeGone:
            self._release(episode_uuid)
            raise
        self._release(episode_uuid)

    async def check_episode(self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput) -> None:
        """Ask whether :meth:`end_episode` would be taken now; nothing is recorded."""
        await self._run(self._operations.check_end(task, episode_uuid, workflow_output))

    async def abort_episode(self, episode_uuid: str, reason: str = "aborted by the client") -> None:
        self._release(episode_uuid)
        await self._run(self._operations.abort(episode_uuid, reason))

    async def can_continue_episode(self, episode_uuid: str) -> bool:
        return await self._run(self._operations.can_continue(episode_uuid))

    def episode(
        self,
        task: Task | None = None,
        discard_episode_timeout: float = 240,
        episode_type: str = "train",
        throttle_policy: SwarmThrottlePolicy | None = None,
    ) -> AsyncEpisode:
        """``async with client.episode(task) as episode:`` begins, and ends or aborts by itself."""
        return AsyncEpisode(self, task, discard_episode_timeout, episode_type, throttle_policy)

    async def agree_sync_weight(self) -> dict[str, Any]:
        """See :meth:`ajet.client.SwarmClient.agree_sync_weight`."""
        return await self._run(self._operations.agree())

    async def add_entering_weight_sync_callback(self, callback: Callback) -> None:
        """See :meth:`ajet.client.SwarmClient.add_entering_weight_sync_callback`; ``callback`` may be a coroutine function."""
        if self._on_update.add(callback, await self.get_status()):
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="ajet-weight-sync")

    async def _watch(self) -> None:
        """Wait for updates and tell of them, until cancelled."""
        from ajet.client.transport import AsyncTransport

        transport = AsyncTransport(self.server_url, self._settings.api_key, 1)
        try:
            while True:
                wanted = self._operations.status(**self._on_update.waits_for, wait_s=LONG_POLL_S)
                try:
                    status = await drive(wanted, transport)
                except (AjetError, ConnectionFault) as err:
                    self._operations.notice(f"updates cannot be watched just now ({err}); trying again")
                    await asyncio.sleep(RETRY_S)
                    continue
                for callback, step in self._on_update.due(status):
                    try:
                        answer = callback(*arguments(callback, step))
                        if inspect.isawaitable(answer):
                            await answer
                    except Exception as err:  # the user's code: shown, and borne
                        self._on_update.failed(callback, step, err)
        finally:
            await transport.close()

    async def get_global_step(self) -> int:
        return int((await self.get_status())["step"])

    async def get_steps(self, since: int = 0) -> list[dict[str, Any]]:
        return await self._run(self._operations.steps(since))

    async def print_new_steps(self) -> None:
        for line in await self._run(self._operations.new_step_lines()):
            print(line, flush=True)

    async def get_rollout_stat(self) -> dict[str, Any]:
        return rollout_stat(await self.get_status())

    async def print_rollout_stat(self) -> None:
        print(rollout_text(await self.get_rollout_stat()), flush=True)

    async def get_episode_buffer(self) -> list[dict[str, Any]]:
        return await self._run(self._operations.open_episodes())

    async def get_episode(self, episode_id: str, *, tokens: bool = False) -> dict[str, Any]:
        """One episode whole (:class:`ajet.schema.wire.EpisodeDetail`): calls, log-probs, rewards, advantages, fate.

        Args:
            episode_id: or ``last`` for the newest one with calls.
            tokens: with the samples training reads, token by token.
        """
        return await self._run(self._operations.episode(episode_id, tokens))

    async def close(self) -> None:
        """Abort what is open and close the connections."""
        for task in (self._heartbeat, self._watching):
            if task is not None:
                task.cancel()
        try:
            if self._operations.took_part:
                # Over the heartbeat's own: in the other one all connections may be waiting for something.
                await self._run(self._operations.leave(EXIT_BUDGET_S), self._beats)
        finally:
            await self._transport.close()
            await self._beats.close()

    async def __aenter__(self) -> AsyncSwarmClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _job_or(self, job: AgentJetJob | None) -> AgentJetJob:
        chosen = job if job is not None else self._job
        if chosen is None:
            raise ConfigError("There is no job. Pass an AgentJetJob here, or to AsyncSwarmClient(agentjet_job=…).")
        return chosen

    def _release(self, episode: str) -> None:
        scope = current_scope.get()
        if scope is not None:
            scope.release(episode)

    def _aborter(self, episode: str) -> Any:
        def abort(reason: str, budget_s: float) -> None:
            """From the worker's thread, whose event loop may be gone: over a connection of its own."""
            from ajet.client.transport import BlockingTransport

            transport = BlockingTransport(self.server_url, self._settings.api_key, 1)
            try:
                abort_quietly(self._operations, transport, threading.Event(), episode, reason, budget_s)
            finally:
                transport.close()

        return abort

    def _keep_beating(self) -> None:
        self._changed.set()
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = asyncio.get_running_loop().create_task(self._beat(), name="ajet-heartbeat")

    async def _beat(self) -> None:
        """Beats while anything is open, then ends; the next ``begin_episode`` starts it again."""
        last, failed = time.monotonic(), False
        while (interval := self._operations.leases.interval_s()) is not None:
            left = last + (min(interval, RETRY_S) if failed else interval) - time.monotonic()
            if left > 0:
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except asyncio.TimeoutError:
                    pass
                else:
                    continue
            last = time.monotonic()
            episodes = self._operations.leases.ids()
            if not episodes and self._operations.leases.beat_s is None:
                continue
            try:
                await drive(self._operations.heartbeat(episodes), self._beats)
                failed = False
            except (AjetError, ConnectionFault) as err:
                failed = True
                self._operations.notice(f"heartbeat not answered ({err}); trying again")


async def drive(operation: Operation[T], transport: Any) -> T:
    """Perform the effects of ``operation`` and return what it returns."""
    try:
        effect = next(operation)
        while True:
            if isinstance(effect, Pause):
                await asyncio.sleep(effect.seconds)
                effect = operation.send(None)
                continue
            try:
                reply = await transport.send(effect)
            except ConnectionFault as fault:
                effect = operation.throw(fault)
            else:
                effect = operation.send(reply)
    except StopIteration as done:
        return done.value
