"""How clients with different tasks say which part of each batch they play. Sent with each request for an episode."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

ShareName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


class SwarmThrottlePolicy(BaseModel):
    """How much of each batch a client plays, where clients with different tasks train together.

    Attributes:
        ratio: how far ahead of its part of the next batch the client may play; further begins wait on the server.
        expected_batch_size: tasks (groups) of a batch that it means to play: its weight against the other clients, unless
            the job declares ``swarm.shares``.
        expected_num_repeat: episodes of each; None: the job's ``rollout.num_repeat``.
        current_task_id: the task that the episode is for. A group that has begun is never held back.
        share: name of the part, which several clients may have in common; None: the client's own.
    """

    model_config = ConfigDict(extra="forbid")

    ratio: Annotated[float, Field(ge=1, le=1000)] = 1.5
    expected_batch_size: Annotated[float, Field(gt=0, le=10**6)] | None = None
    expected_num_repeat: Annotated[int, Field(ge=1, le=10**6)] | None = None
    current_task_id: Annotated[str, Field(max_length=512)] | None = None
    share: ShareName | None = None
