"""What a user's script handles: tasks, workflows and their outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey


class Task(BaseModel):
    """One problem to play. Episodes of the same ``task_id`` form a group and share a baseline.

    Attributes:
        task_id: identity of the group; never empty once an episode ends.
        main_query: the instruction, where the task is a text.
        init_messages: chat messages to start from.
        metadata: anything JSON-able that the workflow needs (a seed, a file name, …).
    """

    model_config = ConfigDict(extra="allow")

    task_id: str = ""
    main_query: str = ""
    init_messages: list[dict[str, Any]] = Field(default_factory=list)
    env_type: str = "no_env"
    metadata: dict[str, Any] = Field(default_factory=dict)


class WorkflowTask(BaseModel):
    """A task as handed to :meth:`Workflow.execute`, with the identity of the episode that plays it."""

    model_config = ConfigDict(extra="allow")

    task: Task
    episode_uuid: str = ""
    task_id: str = ""

    def model_post_init(self, _context: Any) -> None:
        if not self.task_id:
            self.task_id = self.task.task_id


class WorkflowOutput(BaseModel):
    """What an episode came to.

    Attributes:
        reward: one number for all agents, or a dict by agent name or by tag. A dict must cover every agent that
            spoke. Finite numbers only; ``None`` is refused when the episode ends.
        is_success: whether the task was solved, for the curves; defaults to unknown.
        metadata: kept with the episode.
        log_metrics: numbers averaged into the step's metrics.
    """

    model_config = ConfigDict(extra="forbid")

    reward: float | dict[str, float] | None = None
    is_success: bool | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    log_metrics: dict[str, float] = Field(default_factory=dict)

    @field_validator("reward", mode="wrap")
    @classmethod
    def _numbers(cls, given: Any, check: ValidatorFunctionWrapHandler) -> float | dict[str, float] | None:
        try:
            value = check(given)
        except ValidationError:
            # pydantic's own words list each member of the union, and a page of the web for each.
            raise PydanticCustomError(
                "reward",
                "reward is a number, or a dict of numbers by agent name or tag; found {found}. Give float(…), or abort the "
                "episode if it could not be judged",
                {"found": repr(given)[:200]},
            ) from None
        for number in value.values() if isinstance(value, dict) else [value]:
            if number is not None and not (math.isfinite(number) and abs(number) <= 1e6):
                raise PydanticCustomError(
                    "reward",
                    "reward must be finite and within ±1e6, found {found}. Give another number, or abort the episode if it "
                    "could not be judged",
                    {"found": repr(number)},
                )
        return value


class Workflow(ABC):
    """A runnable environment. Subclass it, or pass any async callable of the same shape."""

    @abstractmethod
    async def execute(self, workflow_task: WorkflowTask, api: OpenaiBaseUrlAndApiKey) -> WorkflowOutput:
        """Play ``workflow_task`` against the endpoint ``api`` and return its reward.

        Raises:
            InfrastructureFault: when the episode could not be played for reasons that are nobody's policy.
        """
