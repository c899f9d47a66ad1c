"""Playing fixed held-out deals with the served policy, and comparing two policies on the same deals."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from ajet.client import SwarmClient
from ajet.envs.werewolves.recording import ReplayFolder
from ajet.envs.werewolves.workflow import ExampleWerewolves
from ajet.schema.errors import AjetError
from ajet.schema.task import Task, WorkflowTask

MAX_TRIES = 4


@dataclass(frozen=True)
class Paired:
    """Difference of two policies on the same deals: mean and 95% interval (normal approximation)."""

    mean: float
    low: float
    high: float


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Paired:
    """``after - before`` deal by deal. Raises ValueError for unequal or empty lists."""
    if len(before) != len(after) or not before:
        raise ValueError(f"paired lists must be equally long and not empty: {len(before)} and {len(after)}")
    diffs = [b - a for a, b in zip(before, after, strict=True)]
    n = len(diffs)
    mean = sum(diffs) / n
    variance = sum((d - mean) ** 2 for d in diffs) / max(1, n - 1)
    half = 1.96 * math.sqrt(variance / n)
    return Paired(mean, mean - half, mean + half)


def play_deals(
    client: SwarmClient,
    role: str,
    games: int,
    *,
    max_parallel: int,
    on_game: Callable[[int], None] = lambda done: None,
    first_deal: int = 0,
    record: ReplayFolder | None = None,
) -> list[float]:
    """Play held-out deals ``first_deal … first_deal + games - 1`` with ``role`` on the policy, everyone else scripted.

    Temperature 1; a deal's scripted players draw the same for every policy. The first ``record.keep`` deals leave replays.

    Returns:
        One number per deal: 1 where the role's side won, else 0 (a draw is not a win).

    Raises:
        AjetError: a deal could not be played in :data:`MAX_TRIES` tries.
    """
    plain = ExampleWerewolves(trainable_targets=[role], temperature=1.0)
    recorded = ExampleWerewolves(trainable_targets=[role], temperature=1.0, record=record)
    kept = record.keep if record is not None else 0

    def one(deal: int) -> float:
        workflow = recorded if deal < first_deal + kept else plain
        task = Task(task_id=f"eval-{role}-{deal}", metadata={"split": "eval", "random_number": deal, "paired": True})
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                with client.episode(task, episode_type="eval") as episode:  # aborts by itself what raises
                    play = workflow.execute(WorkflowTask(task=task, episode_uuid=episode.episode_uuid), episode.api)
                    output = asyncio.run(play)
                    episode.end(output)
                return float(bool(output.is_success))
            except AjetError as error:
                if not (tries_left and error.retryable):
                    raise
        raise AssertionError("the last try returns or raises")

    with ThreadPoolExecutor(max_parallel, thread_name_prefix="eval") as pool:
        plays = [pool.submit(one, deal) for deal in range(first_deal, first_deal + games)]
        try:
            for done, play in enumerate(as_completed(plays), start=1):
                play.result()
                on_game(done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # one deal that cannot be played voids the evaluation
            raise
    return [play.result() for play in plays]
