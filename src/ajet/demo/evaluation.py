"""Playing fixed held-out deals with the served policy, so that two policies can be compared deal by deal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from ajet.client import SwarmClient
from ajet.envs.werewolves.presets import BoardConfig
from ajet.envs.werewolves.recording import ReplayFolder
from ajet.envs.werewolves.workflow import ExampleWerewolves
from ajet.schema.errors import AjetError
from ajet.schema.task import Task, WorkflowTask

MAX_TRIES = 4


Measures = dict[str, tuple[float, float]]
"""One game's tallies by metric (:mod:`ajet.envs.werewolves.metrics`)."""


def play_deals(
    client: SwarmClient,
    role: str,
    games: int,
    *,
    max_parallel: int,
    on_game: Callable[[int], None] = lambda done: None,
    first_deal: int = 0,
    board: BoardConfig = None,
    record: ReplayFolder | None = None,
) -> list[Measures]:
    """Play held-out deals ``first_deal … first_deal + games - 1`` with ``role`` on the policy, everyone else scripted.

    The board is the default one or what ``board`` says. Temperature 1; a deal's scripted players draw the same for every
    policy. The first ``record.keep`` deals leave replays.

    Returns:
        What was measured, one per deal; see :func:`wins`.

    Raises:
        AjetError: a deal could not be played in :data:`MAX_TRIES` tries.
    """
    plain = ExampleWerewolves(trainable_targets=[role], temperature=1.0, options=board)
    recorded = ExampleWerewolves(trainable_targets=[role], temperature=1.0, options=board, record=record)
    kept = record.keep if record is not None else 0

    def one(deal: int) -> Measures:
        workflow = recorded if deal < first_deal + kept else plain
        task = Task(task_id=f"eval-{role}-{deal}", metadata={"split": "eval", "random_number": deal, "paired": True})
        for tries_left in reversed(range(MAX_TRIES)):
            try:
                with client.episode(task, episode_type="eval") as episode:  # aborts by itself what raises
                    output = workflow.play(WorkflowTask(task=task, episode_uuid=episode.episode_uuid), episode.api)
                    measures = output.metadata.pop("measures")
                    episode.end(output)
                return dict(measures)
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


def wins(role: str, played: Sequence[Measures]) -> list[float]:
    """One number per deal: 1 where the role's side won, else 0 (a draw is not a win)."""
    return [float(measures[f"{role}/win"][0]) for measures in played]
