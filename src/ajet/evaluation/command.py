"""``ajet-swarm eval werewolves``: from words on the command line to a report."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ajet.envs.werewolves.rules import BoardOptions, Role
from ajet.envs.werewolves.workflow import COMPACT_MODELS, KEY_VARIABLES
from ajet.evaluation.candidates import Candidate, candidate, checkpoints_of
from ajet.evaluation.elo import Played, rate
from ajet.evaluation.report import compare, elo_rows, external, print_elo, print_report
from ajet.evaluation.serving import serve
from ajet.evaluation.werewolves import Series, Setting, Side, known_roles, play_series
from ajet.schema.errors import ConfigError

SCRIPTED, FROZEN = "scripted", "frozen:"


@dataclass(frozen=True)
class Options:
    """The command's options, but for who plays; see ``ajet-swarm eval werewolves --help``."""

    games: int = 90
    roles: str = ""
    strength: str = "normal"
    opponent_model: str | None = None
    temperature: float | None = None
    prompt_style: str = "auto"
    language: str = "en"
    first_deal: int = 0
    parallel: int = 24
    json_path: Path | None = None


def evaluate(policy: str, against: str | None, opponents: str, options: Options) -> dict[str, Any]:
    """Measure ``policy`` (and ``against``, on the same deals), role by role; prints tables and returns the tree.

    Raises:
        ConfigError: something that was named does not exist, or does not go together.
    """
    console = Console(highlight=False, soft_wrap=True)
    setting = _setting(options)
    roles = known_roles(options.roles, setting.options)
    candidates = {"policy": candidate(policy)}
    if against is not None:
        candidates["against"] = candidate(against)
    policies = list(candidates)
    if opponents.startswith(FROZEN):
        candidates["opponents"] = candidate(opponents.removeprefix(FROZEN))
    elif urlsplit(opponents).scheme in ("http", "https"):
        if not options.opponent_model:
            raise ConfigError("--opponents URL needs --opponent-model, the name to ask that endpoint for.")
        key = next((os.environ[v] for v in KEY_VARIABLES if os.environ.get(v)), None)
        setting = replace(setting, opponent_url=opponents, opponent_name=options.opponent_model, opponent_key=key)
    elif opponents != SCRIPTED:
        raise ConfigError(f"--opponents takes scripted, frozen:CHECKPOINT or a URL; not {opponents!r}.")
    setting = _ask_like(setting, candidates, options, console)
    _writable(options.json_path)
    began = time.monotonic()
    everybody = {role.value for role in setting.options.roles}
    with serve(candidates, options.parallel) as served:
        sides = [
            Side(
                (role,), served.models[key],
                dict.fromkeys(everybody - {role}, served.models["opponents"]) if "opponents" in candidates else {},
            )
            for role in roles for key in policies
        ]  # fmt: skip
        with _progress(len(sides) * options.games) as step:
            found = asyncio.run(
                play_series(served.api, sides, options.games, setting, parallel=options.parallel, on_game=step)
            )
    by_role: dict[str, dict[str, Series]] = {}
    for n, side in enumerate(sides):
        by_role.setdefault(side.roles[0], {})[policies[n % len(policies)]] = found[n]
    tree = {
        "policies": {key: _named(candidates[key]) for key in policies},
        "opponents": _opponents(opponents, candidates, options),
        "games": options.games,
        "first_deal": options.first_deal,
        "temperature": _temperature(setting, candidates),
        "void": sum(series.void for series in found),
        "roles": {role: compare(role, series) for role, series in by_role.items()},
        "external": external(found),
        "seconds": round(time.monotonic() - began, 1),
    }
    print_report(console, tree)
    _write(options.json_path, tree, console)
    return tree


def rate_run(run: str, options: Options, most: int) -> dict[str, Any]:
    """Elo of a run's checkpoints: each as wolves against each as the good roles under test; prints and returns the tree.

    Args:
        most: checkpoints at most, spread over the run; its first and last always.

    Raises:
        ConfigError: ``run`` is no run with checkpoints, or the roles are of one side.
    """
    console = Console(highlight=False, soft_wrap=True)
    setting = _setting(options)
    roles = known_roles(options.roles or f"{Role.WEREWOLF.value},{Role.SEER.value}", setting.options)
    good = tuple(role for role in roles if role != Role.WEREWOLF.value)
    if not good or Role.WEREWOLF.value not in roles:
        raise ConfigError("--elo plays wolves against good roles: --roles must name werewolf and another role.")
    found = checkpoints_of(run)
    if len(found) > most:
        found = [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]
    candidates = {f"c{n}": c for n, c in enumerate(found)}
    setting = _ask_like(setting, candidates, options, console)
    _writable(options.json_path)
    keys = list(candidates)
    pairs = [(i, j) for i in range(len(keys)) for j in range(len(keys))]
    began = time.monotonic()
    with serve(candidates, options.parallel) as served:
        sides = [
            Side(
                (Role.WEREWOLF.value,), served.models[keys[i]], dict.fromkeys(good, served.models[keys[j]])
            )
            for i, j in pairs
        ]  # fmt: skip
        with _progress(len(sides) * options.games) as step:
            series = asyncio.run(
                play_series(served.api, sides, options.games, setting, parallel=options.parallel, on_game=step)
            )
    played = []
    for (i, j), s in zip(pairs, series, strict=True):
        won = sum(t for t, _ in s.units("werewolf/win")) + 0.5 * sum(t for t, _ in s.units("werewolf/draw"))
        played.append(Played(i, j, won, options.games - s.void))
    labels = [c.path.name if c.step != 0 else "initial" for c in found]
    tree = {
        "run": run,
        "good": "+".join(good),
        "games": options.games,
        "pairings": len(pairs),
        "void": sum(s.void for s in series),
        "ratings": elo_rows(labels, rate(played, len(keys))),
        "wins": [{"wolves": labels[p.wolves], "good": labels[p.good], "won": p.won, "games": p.games} for p in played],
        "seconds": round(time.monotonic() - began, 1),
    }
    print_elo(console, tree)
    _write(options.json_path, tree, console)
    return tree


def _setting(options: Options) -> Setting:
    for flag, value, allowed in (
        ("--strength", options.strength, ("easy", "normal", "hard")),
        ("--language", options.language, ("en", "zh")),
        ("--prompt-style", options.prompt_style, ("auto", "compact", "full")),
    ):
        if value not in allowed:
            raise ConfigError(f"{flag} is one of {', '.join(allowed)}; not {value!r}.", param=flag)
    return Setting(
        compact=options.prompt_style == "compact", temperature=options.temperature, language=options.language,  # type: ignore[arg-type]
        strength=options.strength, options=BoardOptions(), first_deal=options.first_deal,  # type: ignore[arg-type]
    )  # fmt: skip


def _ask_like(setting: Setting, candidates: dict[str, Candidate], options: Options, console: Console) -> Setting:
    """Prompts and temperature as the candidates were trained with, where they are not told."""
    for found in candidates.values():
        for note in found.notes:
            console.print(f"note: {note}")
    compact = {found.model_name.startswith(COMPACT_MODELS) for found in candidates.values()}
    if options.prompt_style != "auto":
        compact = {options.prompt_style == "compact"}
    elif len(compact) > 1:
        names = ", ".join(f"{c.label} ({c.model_name})" for c in candidates.values())
        raise ConfigError(
            f"Some of these were taught compact prompts and some were not, as far as their names tell: {names}. Say "
            "--prompt-style compact or full for all of them."
        )
    return replace(setting, compact=compact.pop(), temperature=_temperature(setting, candidates))


def _temperature(setting: Setting, candidates: dict[str, Candidate]) -> float:
    """As told, else what the first candidate that comes from a run was trained at."""
    if setting.temperature is not None:
        return setting.temperature
    return next((c.job.rollout.temperature for c in candidates.values() if c.job is not None), 1.0)


def _opponents(text: str, candidates: dict[str, Candidate], options: Options) -> str:
    if "opponents" in candidates:
        return f"{FROZEN}{candidates['opponents'].path}"
    return f"{text} ({options.strength if text == SCRIPTED else options.opponent_model})"


def _named(found: Candidate) -> dict[str, Any]:
    return {"path": str(found.path), "label": found.label, "step": found.step}


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    columns = (TextColumn("games"), BarColumn(bar_width=30), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("games", total=total)
        yield lambda: bar.advance(task)


def _writable(path: Path | None) -> None:
    """Before anything is played."""
    if path is not None and not (path.parent.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)):
        raise ConfigError(f"--json: {path} cannot be written. Name a file in an existing folder.")


def _write(path: Path | None, tree: dict[str, Any], console: Console) -> None:
    if path is not None:
        path.write_text(json.dumps(tree, indent=1) + "\n")
        console.print(f"json      {path}")
