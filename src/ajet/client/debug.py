"""Clients to try an agent with: episodes begin and agents talk to the model, and every episode is aborted.

Promise: nothing that is played through these clients is ever trained. The client aborts instead of ending, and the server
refuses the end of an episode that was begun so; it does not count the client among those who take part (shares, "agree"
rules). The output is checked as an end would be.
"""

from __future__ import annotations

from typing import Any

from ajet.client.async_client import AsyncSwarmClient
from ajet.client.operations import check_output
from ajet.client.swarm_client import SwarmClient
from ajet.schema.task import Task, WorkflowOutput

REASON = "debug: never trained"


def _would_have(task: Task, output: WorkflowOutput) -> str:
    check_output(task, output)
    return (
        f"debug: would have ended task {getattr(task, 'task', task).task_id!r} with reward {output.reward!r}; aborted"
    )


class DebugSwarmClient(SwarmClient):
    """A :class:`SwarmClient` whose episodes are all aborted. Put it in the place of the real one, and nothing else."""

    def _build(self) -> None:
        super()._build()
        self._operations.debug = True

    def end_episode(
        self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput, declare_client_active: bool = True
    ) -> None:
        """Check the result, say it, and abort. Raises as :meth:`SwarmClient.end_episode` does for a wrong result."""
        self.say(_would_have(task, workflow_output))
        self.abort_episode(episode_uuid, REASON)

    def agree_sync_weight(self) -> dict[str, Any]:
        """Agrees to nothing."""
        return {"counted": False, "message": "a debug client agrees to nothing"}


class AsyncDebugSwarmClient(AsyncSwarmClient):
    """The same for asyncio."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._operations.debug = True

    async def end_episode(
        self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput, declare_client_active: bool = True
    ) -> None:
        """See :meth:`DebugSwarmClient.end_episode`."""
        self._settings.say(_would_have(task, workflow_output))
        await self.abort_episode(episode_uuid, REASON)

    async def agree_sync_weight(self) -> dict[str, Any]:
        """Agrees to nothing."""
        return {"counted": False, "message": "a debug client agrees to nothing"}
