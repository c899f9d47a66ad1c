"""What a client does, without input or output: each operation is a generator of effects (:mod:`ajet.client.exchange`)."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from ajet.client import advice
from ajet.client.exchange import Call, ConnectionFault, Operation, Pause, Reply, as_json, checked, read
from ajet.client.leases import OpenEpisodes
from ajet.client.reads import API, Reads
from ajet.client.retry import Backoff
from ajet.client.scope import current_scope
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import (
    AjetError,
    EngineFailed,
    EngineUnavailable,
    EpisodeGone,
    InvalidRequest,
    NotFound,
    ServerUnreachable,
    TrainingFinished,
)
from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.throttle import SwarmThrottlePolicy
from ajet.schema.wire import (
    CLOSED,
    AbortRequest,
    AgreeAnswer,
    AgreeRequest,
    BeginAnswer,
    BeginRequest,
    EndAnswer,
    EndRequest,
    EngineState,
    HeartbeatAnswer,
    HeartbeatRequest,
    JobAnswer,
    JobRequest,
    NotYet,
)

LONG_POLL_S = 30.0
ABORT_BUDGET_S = 30.0
LEAVE_AGAIN_S = 0.2
SERVING = (EngineState.ROLLING, EngineState.UPDATING, EngineState.FINISHED)


class Operations(Reads):
    """The operations of one client, and what they share: identity, leases, budget, notices.

    Args:
        server_url: without a trailing slash.
        say: prints one line to the user.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        server_url: str,
        *,
        retry_budget_s: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(server_url, retry_budget_s=retry_budget_s, say=say, clock=clock)
        self.client_id = f"client-{uuid.uuid4().hex}"
        self.leases = OpenEpisodes()
        self.debug = False
        """Every episode will be aborted."""
        self.took_part = False
        """The server may hold something for this client."""

    # ── job and engine ───────────────────────────────────────────────────────────────────────────────────────────────

    def sync_job(self, job: Any) -> Operation[bool]:
        """``PUT /job`` with an AgentJetJob or a configuration tree. Returns whether that changed the server's job."""
        from ajet.default_config.load import check_config

        config = getattr(job, "config", job)
        check_config(config)
        body = JobRequest(job=config.model_dump(mode="json"))
        reply = yield from self.request(Call("PUT", f"{API}/job", as_json(body)))
        return read(JobAnswer, reply.body).changed

    def start(self) -> Operation[None]:
        yield from self.request(Call("POST", f"{API}/engine/start"))

    def stop(self) -> Operation[None]:
        yield from self.request(Call("POST", f"{API}/engine/stop"))

    def wait_until(self, states: Iterable[str], timeout: float | None = None) -> Operation[EngineState]:
        wanted = tuple(EngineState(str(state)) for state in states)
        endings = dict.fromkeys((*wanted, EngineState.FAILED, EngineState.FINISHED))
        deadline = None if timeout is None else self._clock() + timeout
        while True:
            asked = self._clock()
            left = LONG_POLL_S if deadline is None else max(0.0, deadline - asked)
            status = yield from self.status(wait_states=endings, wait_s=min(LONG_POLL_S, left))
            state = EngineState(status["state"])
            if state in wanted:
                return state
            if state is EngineState.FAILED:
                raise engine_failed(status)
            if state is EngineState.FINISHED and EngineState.ROLLING in wanted:
                raise TrainingFinished("Training is finished: total_training_steps is reached.")
            if state is EngineState.FINISHED:
                endings.pop(state, None)
            now = self._clock()
            if deadline is not None and now >= deadline:
                raise EngineUnavailable(f"The engine is still {state} after {timeout:g} s, not {' or '.join(wanted)}.")
            self.notice(f"the engine of {self.server_url} is {state}; waiting for {' or '.join(wanted)}")
            if now - asked < 0.5:  # a server that did not hold the request must not be asked in a tight loop
                yield Pause(0.5)

    def auto_start(self, job: Any, force_restart: bool) -> Operation[EngineState]:
        status = yield from self.status()
        state = EngineState(status["state"])
        if force_restart and state is not EngineState.OFFLINE:
            yield from self.stop()
            yield from self.wait_until([EngineState.OFFLINE])
        elif state is EngineState.STOPPING:
            yield from self.wait_until([EngineState.OFFLINE])
        changed = yield from self.sync_job(job)
        if state is EngineState.FAILED and not changed and not force_restart:
            failed = engine_failed(status)
            raise EngineFailed(
                f"{failed.message} Once the cause is gone, try again with force_restart=True, or with another job.",
                details=failed.details,
            )
        yield from self.start()
        return (yield from self.wait_until(SERVING))

    # ── episodes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self, timeout_s: float, kind: str, task: Task | None, throttle: Any = None
    ) -> Operation[tuple[str, OpenaiBaseUrlAndApiKey]]:
        # What is not asked for is not sent, so that an older server need not know it.
        also = {"share": self.share, "throttle": as_throttle(throttle), "debug": self.debug or None}
        request = checked(
            BeginRequest,
            client_id=self.client_id,
            request_id=new_request_id(),
            kind=kind,
            discard_episode_timeout=timeout_s,
            task_id=(task.task_id or None) if task is not None else None,
            wait_s=LONG_POLL_S,
            **{name: value for name, value in also.items() if value is not None},
        )
        call = Call("POST", f"{API}/episodes", as_json(request, only_set=True), wait_s=LONG_POLL_S)
        self.took_part = True
        began = self._clock()
        absent = Backoff(self.retry_budget_s)
        while True:
            asked = self._clock()
            reply = yield from self.request(call)
            if reply.status != 202:
                break
            not_yet = read(NotYet, reply.body)
            now = self._clock()
            if not_yet.state is EngineState.FAILED:
                raise engine_failed((yield from self.status()))
            if not_yet.state in (EngineState.OFFLINE, EngineState.STOPPING):
                if absent.next_delay(now) is None:
                    raise EngineUnavailable(
                        f"The engine of {self.server_url} is {not_yet.state} since {self.retry_budget_s:g} s or more. "
                        "Start it with auto_sync_train_config_and_start_engine(job)."
                    )
            else:
                absent = Backoff(self.retry_budget_s)
            # Waiting for a place or an update is daily business; for an engine that nobody starts it is not.
            if not_yet.state is EngineState.OFFLINE or now - began >= LONG_POLL_S:
                self.notice(f"waiting for an episode: {not_yet.message} {self._hint(not_yet)}".rstrip())
            if now - asked < 0.5:
                yield Pause(0.5)
        answer = read(BeginAnswer, reply.body)
        self._warn_of_proxy()
        self.leases.beat_s = answer.beat_s or self.leases.beat_s
        self.leases.add(answer.episode_id, answer.discard_episode_timeout)
        api = OpenaiBaseUrlAndApiKey(
            base_url=self.server_url + answer.base_path,
            api_key=answer.api_key,
            episode_uuid=answer.episode_id,
            model=answer.model,
        )
        return answer.episode_id, api

    def end(self, task: Task, episode: str, output: WorkflowOutput) -> Operation[EndAnswer]:
        request = end_request(task, output)
        try:
            reply = yield from self.request(Call("POST", f"{API}/episodes/{episode}/end", as_json(request)))
        except (EpisodeGone, NotFound) as gone:
            self.leases.remove(episode, gone.message)
            raise
        self.leases.remove(episode, "ended")
        if (scope := current_scope.get()) is not None:
            scope.reported = True
        answer = read(EndAnswer, reply.body)
        if answer.fate == "no_calls":
            self.tell_once(
                "an episode ended in which the model was never called: there is nothing to train, and it fills no batch. "
                "Do your agents use the api.base_url and api.api_key that begin_episode returned? Such episodes are "
                "counted as drops under no_calls."
            )
        return answer

    def _hint(self, not_yet: NotYet) -> str:
        if not_yet.state is EngineState.OFFLINE:
            return (
                "Some client must call auto_sync_train_config_and_start_engine(job); giving up after "
                f"{self.retry_budget_s:g} s."
            )
        if not_yet.reason == "capacity":
            return "Does every begin_episode have its end_episode or abort_episode? (ajet-swarm overwatch shows who plays.)"
        return ""

    def _warn_of_proxy(self) -> None:
        """Our own calls pass by a proxy on this machine; those of the agents' OpenAI clients may not."""
        proxy = advice.caught_by(self.server_url)
        if proxy is not None and advice.proxy_of(self.server_url) is None:
            self.tell_once(
                f"the environment names the proxy {proxy}, and OpenAI clients would send their calls to {self.server_url} "
                "through it. So that they do not: export NO_PROXY=127.0.0.1,localhost."
            )

    def check_end(self, task: Task, episode: str, output: WorkflowOutput) -> Operation[None]:
        """Whether :meth:`end` would be taken now; nothing is recorded."""
        call = Call("POST", f"{API}/episodes/{episode}/check", as_json(end_request(task, output)))
        try:
            yield from self.request(call)
        except EpisodeGone as gone:
            self.leases.remove(episode, gone.message)
            raise

    def abort(self, episode: str, reason: str, budget_s: float | None = None) -> Operation[bool]:
        """Give the lease back. Returns whether the server knows; if not, the lease ends by its silence."""
        if reason == advice.NO_OUTPUT:
            self.tell_once(advice.NO_OUTPUT_HINT)
            if (scope := current_scope.get()) is not None:
                scope.without_output = True
        self.leases.remove(episode, reason)
        if budget_s is not None and budget_s <= 0:
            return False  # no time is left: the goodbye tells it, or the silence
        request = AbortRequest(request_id=new_request_id(), reason=reason[:2000] or "aborted by the client")
        limit = None if budget_s is None else max(budget_s, 0.1)
        call = Call("POST", f"{API}/episodes/{episode}/abort", as_json(request), limit_s=limit)
        budget = ABORT_BUDGET_S if budget_s is None else budget_s
        try:
            yield from self.request(call, min(budget, self.retry_budget_s))
        except (EpisodeGone, NotFound):
            return True
        except ServerUnreachable as err:
            self.notice(
                f"could not tell the server that episode {episode} is aborted; its lease will expire ({err.message})"
            )
            return False
        return True

    def agree(self) -> Operation[dict[str, Any]]:
        """Agree to the update that is next as this begins; a repeat never counts for a later one."""
        step = int((yield from self.status())["batch_step"]) + 1
        request = AgreeRequest(client_id=self.client_id, step=step)
        reply = yield from self.request(Call("POST", f"{API}/agree", as_json(request)))
        answer = read(AgreeAnswer, reply.body)
        if not answer.counted:
            self.notice(f"agree_sync_weight() changes nothing here. {answer.message}")
        return answer.model_dump(mode="json")

    def leave(self, budget_s: float) -> Operation[None]:
        """End the client's part within ``budget_s`` seconds: the server is told once, and aborts what is open.

        That includes what was granted as the client was interrupted. What a server that does not know this leaves open is
        aborted one by one; what cannot be told in time ends by its silence. Raises nothing.
        """
        if not self.took_part:
            return
        deadline = self._clock() + budget_s
        episodes = self.leases.ids()
        request = HeartbeatRequest(client_id=self.client_id, episodes=episodes, leaving=True)
        call = Call("POST", f"{API}/heartbeat", as_json(request))
        gone = None
        while gone is None:
            try:
                reply: Reply = yield call.within(deadline - self._clock())
                if reply.status >= 300:
                    raise self._error(call, reply)
                gone = read(HeartbeatAnswer, reply.body).gone
            except (ConnectionFault, AjetError) as err:
                if not episodes or self._clock() + LEAVE_AGAIN_S >= deadline:
                    self.took_part = False
                    if episodes:
                        what = "an episode is" if len(episodes) == 1 else f"{len(episodes)} episodes are"
                        self._say(f"could not tell {self.server_url} that {what} given back; leases expire ({err})")
                    return
                yield Pause(LEAVE_AGAIN_S)
        for episode in episodes:
            self.leases.remove(episode, CLOSED)
            left = deadline - self._clock()
            if episode not in gone and left > 0:
                abort = as_json(AbortRequest(request_id=new_request_id(), reason=CLOSED))
                with contextlib.suppress(ConnectionFault):
                    yield Call("POST", f"{API}/episodes/{episode}/abort", abort).within(left)
        self.took_part = False

    def heartbeat(self, episodes: list[str]) -> Operation[HeartbeatAnswer]:
        """One beat for ``episodes``, without retries; leases the server has ended are forgotten."""
        request = HeartbeatRequest(client_id=self.client_id, episodes=episodes)
        call = Call("POST", f"{API}/heartbeat", as_json(request, only_set=True))
        reply: Reply = yield call
        if reply.status >= 300:
            raise self._error(call, reply)
        answer = read(HeartbeatAnswer, reply.body)
        for episode, reason in answer.gone.items():
            self.leases.remove(episode, reason)
        return answer

    def can_continue(self, episode: str) -> Operation[bool]:
        if self.leases.gone_reason(episode) is not None:
            return False
        request = HeartbeatRequest(client_id=self.client_id, episodes=[episode])
        reply = yield from self.request(Call("POST", f"{API}/heartbeat", as_json(request, only_set=True)))
        gone = read(HeartbeatAnswer, reply.body).gone
        if episode in gone:
            self.leases.remove(episode, gone[episode])
        return episode not in gone


def end_request(task: Task, output: WorkflowOutput) -> EndRequest:
    """What reports ``output``. Raises :class:`InvalidRequest` for what no server takes."""
    task = check_output(task, output)
    return EndRequest(request_id=new_request_id(), task=task, output=output)


def new_request_id() -> str:
    return uuid.uuid4().hex


def check_output(task: Task, output: WorkflowOutput) -> Task:
    """The task of a result that can be reported. Raises :class:`InvalidRequest`."""
    task = getattr(task, "task", task)  # a WorkflowTask will do
    if not task.task_id:
        raise InvalidRequest(
            "end_episode needs a task with a task_id: episodes of one id form a group.", param="task_id"
        )
    if output.reward is None:
        raise InvalidRequest(
            "WorkflowOutput.reward is None. Give a number, or abort the episode if it could not be judged.",
            param="reward",
        )
    return task


def as_throttle(policy: Any) -> SwarmThrottlePolicy | None:
    """A throttle policy from whatever holds its fields. Raises :class:`InvalidRequest`."""
    if policy is None or isinstance(policy, SwarmThrottlePolicy):
        return policy
    fields = policy if isinstance(policy, dict) else getattr(policy, "__dict__", None)
    if not isinstance(fields, dict):
        raise InvalidRequest(f"throttle_policy is a SwarmThrottlePolicy, not {policy!r}.", param="throttle_policy")
    return checked(SwarmThrottlePolicy, **fields)


def engine_failed(status: dict[str, Any]) -> EngineFailed:
    cause = status.get("failure") or status.get("last_error") or "the server gave no cause"
    return EngineFailed(f"The engine has failed: {cause}", details={"failure": cause})
