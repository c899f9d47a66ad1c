"""Playing Werewolves to measure policies.

Game g of a role is deal g // 9 with its seats rotated by g % 9, so that in nine games of a deal every role sits on every
seat as often. The deals are held out (their seeds are in a name space of their own) and the same for every policy, with
the same draws of ties, speech order and scripted players. In one game the policy under test plays one role, everyone
else is scripted, a frozen checkpoint, or somebody's endpoint. Rotated games of one deal are as different as games of
different deals (measured: docs/werewolves.md), so each game is a unit for the intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.envs.werewolves.full import Language
from ajet.envs.werewolves.rules import BoardOptions, Role
from ajet.envs.werewolves.strengths import Strength
from ajet.envs.werewolves.workflow import COMPACT_MODELS, ExampleWerewolves
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import ConfigError, InfrastructureFault
from ajet.schema.task import Task, WorkflowTask

ALL_ROLES = tuple(role.value for role in (Role.WEREWOLF, Role.SEER, Role.WITCH, Role.HUNTER, Role.VILLAGER))
TRIES = 2
"""Of a game whose endpoint failed."""
TOLERATED_VOID = 0.1
"""Share of games that may stay void; with more the evaluation is."""

Measures = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Setting:
    """How games are played, the same for all policies.

    Attributes:
        compact: the candidates are asked by compact prompts.
        temperature: of all candidates; None: the server's.
        opponent_url, opponent_name: somebody's endpoint for the roles that are not under test.
        first_deal: of the held-out deals.
    """

    compact: bool
    temperature: float | None = None
    language: Language = "en"
    strength: Strength = "normal"
    options: BoardOptions = field(default_factory=BoardOptions)
    opponent_url: str | None = None
    opponent_name: str | None = None
    opponent_key: str | None = None
    opponent_budget_s: float = 600.0
    first_deal: int = 0


@dataclass(frozen=True)
class Side:
    """Who plays what in a series of games.

    Attributes:
        roles: under test, played by ``model``; what is measured.
        others: role → frozen model; roles in neither are the setting's opponents.
    """

    roles: tuple[str, ...]
    model: str
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Series:
    """What came of it: per game the tallies and the numbers of the external endpoint; None where a game was void."""

    measures: list[Measures | None]
    numbers: list[dict[str, float]]

    @property
    def void(self) -> int:
        return sum(m is None for m in self.measures)

    def units(self, name: str, games: Iterable[int] | None = None) -> list[tuple[float, float]]:
        """Total and count of one metric, game by game; (0, 0) where it did not occur or the game was void."""
        chosen = self.measures if games is None else [self.measures[g] for g in games]
        return [(m or {}).get(name, (0.0, 0.0)) for m in chosen]

    def names(self) -> list[str]:
        return sorted({name for m in self.measures if m for name in m})


async def play_series(
    api: OpenaiBaseUrlAndApiKey,
    sides: Sequence[Side],
    games: int,
    setting: Setting,
    *,
    parallel: int,
    on_game: Callable[[], None] = lambda: None,
) -> list[Series]:
    """Play ``games`` games of each side, at most ``parallel`` at once, game by game over all sides.

    Raises:
        InfrastructureFault: too many games were void: the endpoint is down, and what is left would be a biased sample.
        ConfigError: no game can be played so.
    """
    workflows = [_workflow(side, setting) for side in sides]
    found = [Series([None] * games, [{} for _ in range(games)]) for _ in sides]
    gate = asyncio.Semaphore(parallel)
    tolerated = max(3, int(TOLERATED_VOID * games * len(sides)))
    void: list[InfrastructureFault] = []

    async def one(s: int, g: int) -> None:
        async with gate:
            for tries_left in reversed(range(TRIES)):
                try:
                    output = await workflows[s].execute(_task(g, setting), replace(api, model=sides[s].model))
                    break
                except InfrastructureFault as fault:
                    if not tries_left:
                        void.append(fault)
                        if len(void) > tolerated:
                            raise
                        on_game()
                        return
            found[s].measures[g] = dict(output.metadata["measures"])
            found[s].numbers[g] = {k: v for k, v in output.log_metrics.items() if k.startswith(("static/", "policy/"))}
            on_game()

    tasks = [asyncio.ensure_future(one(s, g)) for g in range(games) for s in range(len(sides))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return found


def known_roles(text: str, options: BoardOptions) -> tuple[str, ...]:
    """Roles from a list with commas. Raises ConfigError for one that the board does not have."""
    on_board = {role.value for role in options.roles}
    known = [*(r for r in ALL_ROLES if r in on_board), *sorted(on_board - set(ALL_ROLES))]
    roles = tuple(dict.fromkeys(role.strip() for role in text.split(",") if role.strip())) or tuple(known)
    unknown = [role for role in roles if role not in known]
    if unknown:
        raise ConfigError(f"--roles takes roles out of {', '.join(known)}; not {', '.join(unknown)}.", param="--roles")
    return roles


def _task(game: int, setting: Setting) -> WorkflowTask:
    deal, rotation = divmod(game, len(setting.options.roles))
    deal += setting.first_deal
    metadata: dict[str, Any] = {"split": "eval", "random_number": deal, "rotation": rotation, "paired": True}
    return WorkflowTask(task=Task(task_id=f"eval-{deal}-{rotation}", metadata=metadata))


def _workflow(side: Side, setting: Setting) -> ExampleWerewolves:
    return ExampleWerewolves(
        list(side.roles), setting.opponent_name, setting.opponent_url, setting.opponent_key, options=setting.options,
        language=setting.language, live="both", temperature=setting.temperature, opponents=setting.strength,
        external_budget_s=setting.opponent_budget_s, frozen_opponents=dict(side.others),
        compact_models=(COMPACT_MODELS, "frozen") if setting.compact else (COMPACT_MODELS,),
    )  # fmt: skip
