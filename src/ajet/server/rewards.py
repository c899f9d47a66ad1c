"""Whether an episode's result may be recorded, and what it says of each tag."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ajet.schema.errors import IncompleteReward, InvalidRequest
from ajet.schema.task import Task, WorkflowOutput

METRICS, METRIC_NAME = 256, 128
"""Numbers of an episode that become curves, and how long their names may be."""


def check_result(
    task: Task,
    output: WorkflowOutput,
    tags: dict[str, str],
    declared: str | None,
    opposed: Sequence[Collection[str]] = (),
) -> None:
    """Refuse a result that could not be trained as it is meant.

    Args:
        tags: agent → tag, of all agents with a recorded call.
        declared: the task id told when the episode began, if it was.
        opposed: sides that play against each other, as collections of tags.

    Raises:
        InvalidRequest: empty task id, another task than declared, no reward, a number that is not finite, too many; one
            number for opposed sides.
        IncompleteReward: a dict that leaves out agents that spoke; ``details['missing']`` names them.
    """
    if not task.task_id.strip():
        raise InvalidRequest(
            "task.task_id is empty. Episodes of one task form a group, so every task needs an id.", param="task.task_id"
        )
    if len(task.task_id) > 512:
        raise InvalidRequest("task.task_id is longer than 512 characters.", param="task.task_id")
    if declared and declared != task.task_id:
        raise InvalidRequest(
            f"This episode began for task {declared!r} and cannot end as task {task.task_id!r}. Give the same task to both.",
            param="task.task_id",
        )
    if output.reward is None:
        raise InvalidRequest(
            "output.reward is None. Report a number, or abort the episode if it could not be played.",
            param="output.reward",
        )
    if not isinstance(output.reward, dict):
        _refuse_shared_reward(set(tags.values()), opposed)
    bad = [key for key, value in output.log_metrics.items() if not math.isfinite(value)]
    if bad:
        raise InvalidRequest(
            f"output.log_metrics has numbers that are not finite: {', '.join(bad)}.", param="output.log_metrics"
        )
    long = [key[:40] for key in output.log_metrics if len(key) > METRIC_NAME]
    if len(output.log_metrics) > METRICS or long:
        raise InvalidRequest(
            f"output.log_metrics may have {METRICS} numbers with names of at most {METRIC_NAME} characters"
            + (f"; too long: {', '.join(long[:3])}…" if long else f", not {len(output.log_metrics)}")
            + ". They become curves: put long logs into output.metadata.",
            param="output.log_metrics",
        )
    if isinstance(output.reward, dict):
        missing = [
            agent if agent == tag else f"{agent} (tag {tag})"
            for agent, tag in tags.items()
            if agent not in output.reward and tag not in output.reward
        ]
        if missing:
            raise IncompleteReward(
                f"output.reward covers neither the name nor the tag of: {', '.join(missing)}. It has: "
                f"{', '.join(list(output.reward)[:20]) or 'nothing'}. Add a number for each agent that spoke.",
                param="output.reward",
                details={"missing": [a for a, t in tags.items() if a not in output.reward and t not in output.reward]},
            )


def _refuse_shared_reward(spoke: set[str], opposed: Sequence[Collection[str]]) -> None:
    sides = [sorted(spoke.intersection(side)) for side in opposed]
    present = [side for side in sides if side]
    if len(present) > 1:
        versus = " against ".join("+".join(side) for side in present)
        example = ", ".join(f"{side[0]!r}: …" for side in present)
        raise InvalidRequest(
            f"output.reward is one number, and {versus} played this episode: it would pay the losers for the winners' play. "
            f"Report a dict with each side's own result: {{{example}}}. (swarm.opposed_tags says who is opposed.)",
            param="output.reward",
        )


def rewards_by_tag(output: WorkflowOutput, tags: dict[str, str]) -> dict[str, tuple[float, ...]]:
    """Tag → the rewards of its agents, sorted. A name in a reward dict wins over a tag."""
    reward = output.reward
    assert reward is not None
    found: dict[str, list[float]] = {}
    for agent, tag in tags.items():
        value = reward if not isinstance(reward, dict) else reward[agent] if agent in reward else reward[tag]
        found.setdefault(tag, []).append(float(value))
    return {tag: tuple(sorted(values)) for tag, values in sorted(found.items())}


def mean_reward(rewards: dict[str, tuple[float, ...]] | dict[str, list[float]]) -> float:
    values = [value for of_tag in rewards.values() for value in of_tag]
    return sum(values) / len(values) if values else 0.0
