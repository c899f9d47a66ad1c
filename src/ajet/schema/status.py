"""What a server says of itself: status, pool, metrics and events. Readers ignore fields they do not know."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ajet.schema.wire import EngineState, Wire


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
