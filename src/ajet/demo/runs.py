"""Which run a demo plays: a new one, an unfinished one that goes on, or a finished one that is to learn further.

A run is a folder below the folder of experiments, named after its roles, board and seed; further ones get a number. It is
finished once its ``summary.json`` is there, and a finished run is never overwritten: :func:`reopen` puts aside what was
measured of it.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.demo.files import write
from ajet.schema.errors import ConfigError

JOB, SUMMARY = "demo_job.yaml", "summary.json"
STARTED = "demo_training_started"
"""File with the time at which training began, Unix seconds."""
EARLIER = "demo_seconds_before"
"""File with the seconds that a run was trained before it was reopened."""
MEASURED = ("eval_final.json", "win_rate.png", "replays/final")
"""What is measured at a run's end, and again at its next one."""


@dataclass(frozen=True)
class Run:
    """Where a demo plays.

    Attributes:
        former: the newest run that was there already.
        why: ``new``, ``unfinished`` (goes on by itself), ``finished`` (the former one is, so this one is new), ``fresh`` (a
            new one was asked for), ``further`` (the former one, to be trained to more steps).
    """

    folder: Path
    former: Path | None
    why: str


def find_run(exp_dir: Path, base: str, *, fresh: bool = False, further: bool = False) -> Run:
    """The run of this name that is to be played; nothing is written.

    Raises:
        ConfigError: ``further``, and there is no run of this name; both wishes at once; or too many runs.
    """
    if fresh and further:
        raise ConfigError("--fresh begins a new run and --continue trains the last one: give one of them.")
    former = None
    for n in range(1, 10_000):
        folder = exp_dir / (base if n == 1 else f"{base}-{n}")
        if not folder.exists():
            break
        former = folder
        if not fresh and not further and not (folder / SUMMARY).exists():
            return Run(folder, former, "unfinished")
    else:
        raise ConfigError(f"Too many runs in {exp_dir}; remove some or give --exp-dir another folder.")
    if further:
        if former is None:
            raise ConfigError(f"There is no run {base} in {exp_dir} to go on with. Leave --continue out to begin one.")
        return Run(former, former, "further")
    return Run(folder, former, "fresh" if fresh and former else "finished" if former else "new")


def steps_of(folder: Path) -> int | None:
    """Training steps of a finished run."""
    try:
        return int(json.loads((folder / SUMMARY).read_text())["steps"])
    except FileNotFoundError:
        return None


def deals_of(folder: Path) -> int | None:
    """Held-out deals a role that the initial policy was measured on, where it was: the final one is to play the same."""
    try:
        results = json.loads((folder / "eval_initial.json").read_text())["results"]
    except FileNotFoundError:
        return None
    return min(len(games) for games in results.values())


def reopen(folder: Path, say: Callable[[str], None]) -> None:
    """Make a finished run unfinished: what was measured at its end moves into ``until_step_N``."""
    steps = steps_of(folder)
    if steps is None:
        return
    aside = folder / f"until_step_{steps:06d}"
    (aside / "replays").mkdir(parents=True, exist_ok=True)
    for name in MEASURED:
        if (folder / name).exists():
            shutil.move(folder / name, aside / name)
    summary = json.loads((folder / SUMMARY).read_text())
    (folder / STARTED).unlink(missing_ok=True)
    write(folder / EARLIER, f"{summary['wall_seconds']}\n", say)
    shutil.move(folder / SUMMARY, aside / SUMMARY)  # last: from here on the run is unfinished
    say(f"what was measured at step {steps}, replays and curve included, is now in {aside}")


def seconds_before(folder: Path) -> float:
    """Seconds that the run was trained before it was reopened."""
    try:
        return float((folder / EARLIER).read_text())
    except FileNotFoundError:
        return 0.0


def command(options: dict[str, tuple[Any, Any]], *more: str) -> str:
    """``ajet-swarm demo werewolves`` with the options (flag → value, default) that are not the default ones, and ``more``."""
    given = [f"{flag} {shlex.quote(str(value))}" for flag, (value, default) in options.items() if value != default]
    return " ".join(["ajet-swarm demo werewolves", *given, *more])


def words(run: Run, steps: int, asked: int | None, again: str) -> str:
    """What is said about the choice of ``run``; nothing about a first one.

    Args:
        steps: those that it will have. asked: those that were asked for, if any. again: the command that chooses it.
    """
    if run.why == "unfinished":
        kept = (
            "" if asked in (None, steps) else f"; it keeps its {steps} steps until they are done, --continue adds more"
        )
        return f"continuing the unfinished run in {run.folder}, {steps} steps{kept}"
    if run.why == "further":
        return f"training the run in {run.folder} further, to step {steps}"
    if run.why == "fresh":
        return f"a new run in {run.folder}, because of --fresh; {run.former} stays as it is"
    if run.why == "finished" and run.former is not None:
        done = steps_of(run.former) or 0
        more = f"{again} --continue" + (f" --steps {steps}" if asked and steps > done else "")
        more += "" if steps > done else f" --steps N, with N above {done}"
        return (
            f"{run.former} is finished ({done} steps) and is not overwritten: this is a new run, in {run.folder}, from the "
            f"initial model.\nTo train the finished one further instead: {more}"
        )
    return ""
