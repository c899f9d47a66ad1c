"""Requests and answers of the swarm API (``/swarm/v1``), shared by server and client.

Requests refuse unknown fields; answers may grow, so readers ignore fields they do not know. Every request that
changes state carries a ``request_id`` of the caller's choosing: a repeat with the same id returns the first answer.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.throttle import ShareName, SwarmThrottlePolicy

EpisodeKind = Literal["train", "eval"]
RequestId = Annotated[str, Field(min_length=1, max_length=128)]
ClientId = Annotated[str, Field(min_length=1, max_length=128)]
MAX_WAIT_S = 300.0
"""Longest that one request may wait on the server; clients ask again after it."""


class EngineState(str, Enum):
    """Life cycle of the engine."""

    OFFLINE = "OFFLINE"
    """No engine. A job may be set and started."""
    BOOTING = "BOOTING"
    """Loading the model, or coming back from a crash; requests wait."""
    ROLLING = "ROLLING"
    """Serving and collecting episodes."""
    UPDATING = "UPDATING"
    """Training or saving; requests wait."""
    FINISHED = "FINISHED"
    """``total_training_steps`` is reached; eval episodes are still served."""
    FAILED = "FAILED"
    """Gave up; ``Status.failure`` says why."""
    STOPPING = "STOPPING"
    """Finishing the current update and saving, then OFFLINE."""

    def __str__(self) -> str:
        return self.value


class Wire(BaseModel):
    """An answer. Readers ignore fields they do not know."""

    model_config = ConfigDict(extra="ignore")


class WireRequest(BaseModel):
    """A request. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


# ── job and engine ───────────────────────────────────────────────────────────────────────────────────────────────────


class JobRequest(WireRequest):
    """``PUT /job``: the tree under ``ajet:`` (as of ``AjetConfig.model_dump()``); left-out keys take their defaults."""

    job: dict[str, Any]


class JobAnswer(Wire):
    """``PUT /job`` and ``GET /job``: the resolved tree (``job`` is None where none was set)."""

    job: dict[str, Any] | None
    state: EngineState
    changed: bool = False


class EngineAnswer(Wire):
    """``POST /engine/start`` and ``/engine/stop``. Both are idempotent and return at once; wait with ``GET /status``."""

    state: EngineState


# ── episodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class BeginRequest(WireRequest):
    """``POST /episodes``.

    Attributes:
        discard_episode_timeout: seconds of silence (no chat call, no heartbeat) that end the lease.
        task_id: the task, where it is known already; it may also be told only when the episode ends.
        wait_s: how long the server may hold the request until it can grant it.
        share: the part of each batch that the episode is for, by its name in the job's ``swarm.shares`` or of the client's
            choosing; ``throttle`` says how large it is and how far ahead the client may play.
        debug: the client only looks and will abort: it is not counted among those who take part.
    """

    client_id: ClientId
    request_id: RequestId
    kind: EpisodeKind = "train"
    discard_episode_timeout: Annotated[float, Field(gt=0, le=7 * 86400)] = 240.0
    task_id: Annotated[str, Field(max_length=512)] | None = None
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 30.0
    share: ShareName | None = None
    throttle: SwarmThrottlePolicy | None = None
    debug: bool = False

    @property
    def told_task(self) -> str | None:
        """The task, as far as the client tells it."""
        return self.task_id or (self.throttle.current_task_id if self.throttle else None) or None


class BeginAnswer(Wire):
    """201. ``base_url`` is what the server believes its address is; prefer the client's own address + ``base_path``.

    ``beat_s``: where set, who takes part counts (shares, the "agree" rules): beat at least so often, also between episodes.
    """

    episode_id: str
    api_key: str
    base_url: str
    base_path: str = "/v1"
    model: str = "policy"
    kind: EpisodeKind
    policy_version: int
    discard_episode_timeout: float
    beat_s: float | None = None


class NotYet(Wire):
    """202: nothing was granted within ``wait_s``; ask again (with the same ``request_id`` you keep your place).

    ``reason`` is ``capacity`` (all ``max_env_worker`` episodes are open), ``share`` (the client is far enough ahead of its
    share of the next batch), ``updating``, ``booting``, ``offline`` or ``stopping``.
    """

    granted: Literal[False] = False
    reason: str
    message: str
    state: EngineState


class EndRequest(WireRequest):
    """``POST /episodes/{id}/end``. The task id must not be empty."""

    request_id: RequestId
    task: Task
    output: WorkflowOutput


EndFate = Literal["pooled", "eval", "no_calls", "training_finished"]


class EndAnswer(Wire):
    """200. ``fate``: ``pooled`` (waits in its group), ``eval`` (counted, never trained), ``no_calls`` (no call was
    recorded, so nothing can be trained; counted), ``training_finished`` (came after the last step; counted)."""

    episode_id: str
    task_id: str
    fate: EndFate
    calls: int
    policy_version: int


class CheckAnswer(Wire):
    """``POST /episodes/{id}/check``, with what would be sent to ``/end``: 200 where that end would be taken now. Nothing is
    recorded, and the lease counts it as a sign of life. What ``/end`` would refuse is refused with the same error."""

    episode_id: str
    calls: int


class AbortRequest(WireRequest):
    """``POST /episodes/{id}/abort``. ``reason`` is shown to users and counted by its first word(s) before ``:``."""

    request_id: RequestId
    reason: Annotated[str, Field(min_length=1, max_length=2000)] = "aborted by the client"


class AbortAnswer(Wire):
    """200. ``reason``: why the episode is gone."""

    episode_id: str
    reason: str


CLOSED = "client closed: the episode was still open"
"""Why an episode was aborted that a goodbye found open."""


class HeartbeatRequest(WireRequest):
    """``POST /heartbeat``. With ``episodes`` only those are kept alive (a lease whose grant never reached the client
    then ends by silence); without it all of the client's. With ``leaving`` the client says goodbye, for good: it takes part no
    longer, its requests for episodes wait no longer, and all episodes it has open are aborted, those included whose grant
    never reached it."""

    client_id: ClientId
    episodes: Annotated[list[str], Field(max_length=100_000)] | None = None
    leaving: bool = False


class HeartbeatAnswer(Wire):
    """``gone``: episode → why its lease ended, for episodes the client believes in."""

    alive: int
    gone: dict[str, str]
    state: EngineState
    policy_version: int


class AgreeRequest(WireRequest):
    """``POST /agree``: the client agrees to update ``step`` (``Status.batch_step`` + 1 when it decides; None: the next).
    Because the update is named, a repeat never counts for a later one."""

    client_id: ClientId
    step: Annotated[int, Field(ge=1, le=10**9)] | None = None


class AgreeAnswer(Wire):
    """200, once the agreement is on disk.

    Attributes:
        step: the update agreed to. counted: whether the job's collection rule asks for agreement at all.
        under_way: the batch of this update is fixed already, so nothing was left to agree to.
        agreed: clients that have agreed. waiting_for: those who take part and have not (no matter under the "any" rule).
        message: what happens next.
    """

    step: int
    counted: bool
    under_way: bool = False
    agreed: list[str] = Field(default_factory=list)
    waiting_for: list[str] = Field(default_factory=list)
    message: str = ""


class EpisodeSummary(Wire):
    """One entry of ``GET /episodes``. Times in seconds."""

    episode_id: str
    client_id: str
    kind: EpisodeKind
    task_id: str | None
    calls: int
    in_flight: int
    age_s: float
    idle_s: float
    discard_episode_timeout: float
    policy_version: int


class EpisodeList(Wire):
    """``GET /episodes``: open episodes, longest idle first."""

    episodes: list[EpisodeSummary]
    total: int


class EpisodeDetail(Wire):
    """``GET /episodes/{id}``: the whole episode.

    ``fate``: ``open``, an :data:`EndFate`, ``aborted``, ``trained`` or ``dropped``; ``reason`` names the cause of the
    last two of abort and drop. ``advantages`` are by agent. ``branches`` counts calls by how they stand to those
    before them; ``dropped_tokens`` sampled tokens that are not trained, by reason. ``calls`` are journal records (token
    ids, log-probs, versions, the message, branch and fork). ``samples``, with ``?tokens=true``: what training reads, one
    entry a timeline, cut into pieces by the call that owns them, each token with its text and its training mask.
    """

    episode_id: str
    kind: EpisodeKind
    client_id: str
    task_id: str | None
    fate: str
    reason: str | None = None
    step: int | None = None
    reward: float | dict[str, float] | None = None
    is_success: bool | None = None
    advantages: dict[str, float] = Field(default_factory=dict)
    branches: dict[str, int] = Field(default_factory=dict)
    dropped_tokens: dict[str, int] = Field(default_factory=dict)
    calls: list[dict[str, Any]] = Field(default_factory=list)
    samples: list[dict[str, Any]] = Field(default_factory=list)
