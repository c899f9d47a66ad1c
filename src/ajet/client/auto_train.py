"""``auto_train_with_dataset``: the whole training loop in one call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ajet.client.episode import abort_reason
from ajet.client.executor import PeriodicDrainThreadPoolExecutor
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task, WorkflowOutput

if TYPE_CHECKING:
    from ajet.client.swarm_client import SwarmClient

Agent = Callable[[Task, OpenaiBaseUrlAndApiKey], Any]
"""(task, endpoint) → :class:`WorkflowOutput`, or a coroutine of one."""


def auto_train_with_dataset(
    dataset: Any,
    client: SwarmClient,
    execute_agent: Agent,
    local_grpo_n: int = 2,
    remote_batch_size: int = 8,
    *,
    max_parallel: int | None = None,
    discard_episode_timeout: float = 240,
) -> dict[str, int]:
    """Play the tasks of ``dataset`` again and again until training is finished. Returns how the runs went.

    Args:
        dataset: a task reader (``generate_training_tasks``), or anything that can be iterated over anew for each epoch.
        client: whose engine runs already (``auto_sync_train_config_and_start_engine``).
        execute_agent: plays one task against the endpoint and returns its output. What it raises aborts the episode.
        local_grpo_n: episodes that this client plays of each task. Groups hold the job's ``rollout.num_repeat``; where
            that is more, other clients play the rest.
        remote_batch_size: tasks of a batch; with ``local_grpo_n`` it is how many runs are drained together.
        max_parallel: runs at once; default: ``local_grpo_n × remote_batch_size``.

    Raises:
        ConfigError: no task in the dataset, or more episodes of a task than a group holds.
        Errors of :class:`PeriodicDrainThreadPoolExecutor` where every run fails.
    """
    if local_grpo_n < 1 or remote_batch_size < 1:
        raise ConfigError("local_grpo_n and remote_batch_size are at least 1.")
    if not hasattr(client, "begin_episode") or inspect.iscoroutinefunction(client.begin_episode):
        raise ConfigError("auto_train_with_dataset runs threads and takes a SwarmClient, not an AsyncSwarmClient.")
    _check_group(client, local_grpo_n)

    def rollout(task: Task) -> Any:
        episode, api = client.begin_episode(discard_episode_timeout=discard_episode_timeout, task=task)
        try:
            output = execute_agent(task, api)
            if inspect.iscoroutine(output):
                output = asyncio.run(output)
            if not isinstance(output, WorkflowOutput):
                raise TypeError(f"execute_agent returns a WorkflowOutput, and this one returned {output!r}")
        except BaseException as error:
            client.abort_episode(episode, reason=abort_reason(error))
            raise
        client.end_episode(task, episode, output)
        return output.reward

    runs = local_grpo_n * remote_batch_size
    executor = PeriodicDrainThreadPoolExecutor(workers=runs, max_parallel=max_parallel or runs)
    with executor:
        while not executor.finished:
            played = 0
            for task in _tasks(dataset):
                for _ in range(local_grpo_n):
                    executor.submit_with_periodic_drain(fn=rollout, task=task)
                played += 1
            if not played:
                raise ConfigError("The dataset has no tasks (an iterator can be used once only; give a list).")
    return executor.stats


def _tasks(dataset: Any) -> Iterable[Task]:
    return dataset.generate_training_tasks() if hasattr(dataset, "generate_training_tasks") else iter(dataset)


def _check_group(client: SwarmClient, local_grpo_n: int) -> None:
    wanted = (client.get_status().get("pool") or {}).get("num_repeat") or local_grpo_n
    if local_grpo_n > wanted:
        raise ConfigError(
            f"local_grpo_n is {local_grpo_n}, and a group of this job holds {wanted} episodes (rollout.num_repeat): the rest of "
            f"each task would wait for nobody. Set local_grpo_n to {wanted}, or num_repeat to {local_grpo_n}."
        )
    if local_grpo_n < wanted:
        client.say(
            f"this client plays {local_grpo_n} episodes of each task and a group holds {wanted}: the others must come from other "
            f"clients with the same tasks. Alone, set local_grpo_n={wanted}."
        )
