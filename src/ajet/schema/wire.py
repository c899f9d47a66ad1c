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


class HeartbeatRequest(WireRequest):
    """``POST /heartbeat``. With ``episodes`` only those are kept alive (a lease whose grant never reached the client
    then ends by silence); without it all of the client's. With ``leaving`` the client says goodbye: from now on it does not
    take part (its open episodes are not ended by it)."""

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


# ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class PoolFill(Wire):
    """How full the next batch is. Groups hold ``num_repeat`` episodes each."""

    rule: str
    groups_complete: int = 0
    groups_partial: int = 0
    groups_needed: int = 0
    groups_non_dummy: int = 0
    episodes_finished: int = 0
    episodes_needed: int = 0
    num_repeat: int = 0


class LeaseStatus(Wire):
    """Open leases and requests that wait for one."""

    open_train: int = 0
    open_eval: int = 0
    waiting_train: int = 0
    waiting_eval: int = 0
    capacity: int = 0
    clients: int = 0


class DiskStatus(Wire):
    """The disk under the journal, on which every answer waits.

    Attributes:
        ok: whether it took the last write.
        error: what it said when it refused.
        path: the journal's folder.
        since: Unix seconds when it began to refuse.
        write_s: seconds the last write took, its fsync included.
        stalled_s: seconds for which a write has not come back yet; 0 where none is under way.
        free_bytes: free space where the experiment (its checkpoints, metrics, log) lies.
        journal_free_bytes: free space where the journal lies; the same where that is one disk.
        journal_bytes: the journal's size, its write-ahead log included.
    """

    ok: bool = True
    error: str | None = None
    path: str | None = None
    since: float | None = None
    write_s: float = 0.0
    stalled_s: float = 0.0
    free_bytes: int | None = None
    journal_free_bytes: int | None = None
    journal_bytes: int | None = None


class CheckpointStatus(Wire):
    """The newest whole checkpoint, and whether the disk takes the next.

    Attributes:
        step: of the newest whole one.
        path: its directory.
        error: why the last save was refused; None where it was not.
        since: Unix seconds of the first refused save after the newest whole one.
        refused: saves refused since the newest whole one.
        wanted_bytes: what the next save is estimated to take.
    """

    step: int | None = None
    path: str | None = None
    error: str | None = None
    since: float | None = None
    refused: int = 0
    wanted_bytes: int | None = None


class Speeds(Wire):
    """Over the last ten seconds or so, and totals since the server started."""

    calls_per_s: float = 0.0
    sampled_tokens_per_s: float = 0.0
    calls: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    in_flight: int = 0


class ClientActivity(Wire):
    """One client's open episodes, in sum. Times in seconds.

    Attributes:
        calls: recorded in them so far. in_flight: chat requests being answered now.
        idle_s, patience_s: silence, and the ``discard_episode_timeout``, of the episode that is nearest to its end by
            silence.
        oldest_s: age of the oldest.
    """

    client_id: str
    episodes: int = 0
    calls: int = 0
    in_flight: int = 0
    idle_s: float = 0.0
    patience_s: float
    oldest_s: float = 0.0


class TaskActivity(Wire):
    """One task's episodes.

    Attributes:
        task_id: None gathers running episodes that have not told their task yet.
        ready: complete groups that wait for their batch.
        finished, needed: episodes of the group that is filling, and of a whole one.
        running: open train episodes.
    """

    task_id: str | None
    ready: int = 0
    finished: int = 0
    needed: int
    running: int = 0


class Activity(Wire):
    """Who plays what now: the clients that are quiet for half their patience or longer, then those with most episodes;
    the tasks whose groups are fullest, then those that only run or only wait."""

    clients: list[ClientActivity] = Field(default_factory=list)
    clients_total: int = 0
    tasks: list[TaskActivity] = Field(default_factory=list)
    tasks_total: int = 0


class TrackerStatus(Wire):
    """One of ``trainer_common.logger``.

    Attributes:
        step: the last one it was told of. failures: times it failed or hung since the engine started.
        error: why it does not work now.
    """

    name: str
    step: int = 0
    failures: int = 0
    error: str | None = None


class ShareView(Wire):
    """One share of the next batch. ``seats``: groups it gives; ``ready``: complete ones it has (of different tasks, where
    the rule counts tasks); ``live``: somebody plays for it; ``owed``: part of a group carried over."""

    share: str
    weight: float
    seats: int
    ready: int
    live: bool
    owed: float = 0.0


class EvalReport(Wire):
    """What eval episodes came to since the last step (the next step's metrics have it as ``eval/…``).

    ``policy_version``: the newest that played them. Rewards are means, ``reward_by_tag`` by tag.
    """

    episodes: int = 0
    policy_version: int = 0
    reward: float | None = None
    success_rate: float | None = None
    reward_by_tag: dict[str, float] = Field(default_factory=dict)


class Status(Wire):
    """``GET /status``. With ``wait_state=ROLLING,FINISHED`` (and/or ``wait_step=7``, ``wait_batch=8``) and ``wait_s=30``
    it answers as soon as one holds (the state is one of those, the step, the batch is reached), else after ``wait_s`` with
    whatever is true then. With
    ``top=20`` it holds ``activity``, of at most so many clients and tasks."""

    state: EngineState
    since: float
    """Unix seconds."""
    failure: str | None = None
    last_error: str | None = None
    experiment: str | None = None
    experiment_dir: str | None = None
    model: str | None = None
    step: int = 0
    total_steps: int = 0
    policy_version: int = 0
    batch_step: int = 0
    """The newest update whose batch is fixed: ``step``, and one more while it is under way."""
    backbone: dict[str, Any] = Field(default_factory=dict)
    pool: PoolFill | None = None
    leases: LeaseStatus = Field(default_factory=LeaseStatus)
    drops: dict[str, int] = Field(default_factory=dict)
    """Episodes not trained, by reason (since the experiment began)."""
    dropped_tokens: dict[str, int] = Field(default_factory=dict)
    checkpoint: CheckpointStatus = Field(default_factory=CheckpointStatus)
    disk: DiskStatus = Field(default_factory=DiskStatus)
    speeds: Speeds = Field(default_factory=Speeds)
    warnings: list[str] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict)
    """The last step's."""
    trackers: list[TrackerStatus] = Field(default_factory=list)
    server_version: str = ""
    started: float = 0.0
    now: float = 0.0
    """The server's clock when it answered: what ``since`` and ``started`` are to be compared with."""
    activity: Activity | None = None
    held: dict[str, int] = Field(default_factory=dict)
    """Requests for an episode that had to wait for another reason than capacity, by reason."""
    shares: list[ShareView] = Field(default_factory=list)
    agreed: list[str] = Field(default_factory=list)
    """Clients that have agreed to the next update, and those who take part and have not."""
    not_agreed: list[str] = Field(default_factory=list)
    eval: EvalReport = Field(default_factory=EvalReport)


class GroupView(Wire):
    """One group of ``GET /pool``."""

    task_id: str
    share: str = ""
    finished: int
    needed: int
    open: int = 0
    complete: bool
    reward_mean: float
    reward_std: float
    episodes: list[str]
    age_s: float


class PoolAnswer(Wire):
    """``GET /pool``."""

    fill: PoolFill | None
    groups: list[GroupView]
    drops: dict[str, int]
    dropped_tokens: dict[str, int]


class MetricsHistory(Wire):
    """``GET /metrics/history?since=STEP``: the lines of ``metrics.jsonl``."""

    steps: list[dict[str, Any]]


class Event(Wire):
    """One server-sent event of ``GET /events`` (``event:`` is ``kind``; ``data:`` is this as JSON).

    ``kind``: ``state`` {state, failure}, ``step`` {step, metrics}, ``drop`` {reason, episodes}, ``checkpoint``
    {step, path}, ``warning`` {message}, ``disk`` {ok, error}.
    """

    id: int
    kind: str
    time: float
    data: dict[str, Any]
