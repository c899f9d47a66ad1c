"""From what a user names to a checkpoint that can be served, and how its run had it asked."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml
from pydantic import ValidationError

from ajet.backbone import model_dir
from ajet.checkpoint.store import MANIFEST, Checkpoint, CheckpointStore
from ajet.default_config.schema import BUILTIN_MODEL, AjetConfig
from ajet.schema.errors import ConfigError

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Candidate:
    """A policy to measure.

    Attributes:
        path: its directory. label: how reports name it.
        job: of the run it comes from; None for a model that is from no run.
        notes: what was chosen on the user's behalf.
    """

    path: Path
    label: str
    step: int | None = None
    job: AjetConfig | None = None
    notes: tuple[str, ...] = ()

    @property
    def model_name(self) -> str:
        """The name that decides how it is prompted: of the model it was trained from."""
        if self.job is None:
            return self.path.name
        return self.job.model.served_name or Path(self.job.model.path).name


def candidate(text: str) -> Candidate:
    """The checkpoint that ``text`` names: a checkpoint, a run (its newest whole checkpoint), a model, or a built-in name.

    Raises:
        ConfigError: there is none; the message says what is there.
    """
    path = Path(text).expanduser()
    if text == BUILTIN_MODEL:
        shipped = resources.files("ajet.envs.werewolves") / "werewolves.yaml"
        return Candidate(
            model_dir(text), text, job=AjetConfig.model_validate(yaml.safe_load(shipped.read_text())["ajet"])
        )
    if (path / "config.json").is_file():
        fault = CheckpointStore(path.parent).fault(path) if (path / MANIFEST).exists() else None
        if fault is not None:
            raise ConfigError(f"The checkpoint {text} is damaged: {fault}. Name another one, or the run's folder.")
        return _checkpoint(path.resolve())
    store = _store(path)
    if store is not None:
        newest, skipped = _newest_whole(store)
        if newest is None:
            raise ConfigError(f"{text} is a run without a whole checkpoint{skipped}. Let it train until its first one.")
        best = store.best()
        hint = f"; its best by metric is {best.path.name}" if best is not None and best.step != newest.step else ""
        note = f"{text} is a run: its newest checkpoint {newest.path.name} is taken{skipped}{hint}"
        found = _checkpoint(newest.path.resolve())
        return Candidate(found.path, found.label, found.step, found.job, (note,))
    if path.exists():
        raise ConfigError(
            f"{text} is no checkpoint (it has no config.json) and no run (it has no folder {CHECKPOINTS!r})."
            f"{_inside(path)}"
        )
    parent = path.parent
    beside = sorted(p.name for p in parent.glob("step_*")) if parent.is_dir() else []
    there = f" {parent} has: {', '.join(beside)}." if beside else ""
    try:
        return Candidate(model_dir(text), path.name)
    except ConfigError:
        raise ConfigError(
            f"There is no checkpoint {text}.{there} Name a checkpoint, a run's folder, or {BUILTIN_MODEL}."
        ) from None


def checkpoints_of(text: str) -> list[Candidate]:
    """All whole checkpoints of a run, by step, after the model it began from.

    Raises:
        ConfigError: it is no run, or has fewer than one checkpoint.
    """
    store = _store(Path(text).expanduser())
    if store is None:
        raise ConfigError(f"--elo takes a run's folder (one with a folder {CHECKPOINTS!r}); {text} is none.")
    whole = [_checkpoint(c.path.resolve()) for c in store.all() if store.fault(c.path) is None]
    if not whole:
        raise ConfigError(f"{text} has no whole checkpoint yet, so there is nothing to rate.")
    job = whole[0].job
    if job is not None:
        whole.insert(0, Candidate(model_dir(job.model.path), "initial", 0, job))
    if len(whole) < 2:
        raise ConfigError(f"{text} has one checkpoint, and a rating compares at least two.")
    return whole


def _store(path: Path) -> CheckpointStore | None:
    for directory in (path / CHECKPOINTS, path):
        store = CheckpointStore(directory)
        if store.directories() or (directory.name == CHECKPOINTS and directory.is_dir()):
            return store
    return None


def _newest_whole(store: CheckpointStore) -> tuple[Checkpoint | None, str]:
    """The newest whole one (nothing is set aside: this only looks), and words for what was passed over."""
    damaged = []
    for path in reversed(store.directories()):
        fault = store.fault(path)
        if fault is None:
            return store.read(path), f" ({', '.join(damaged)} passed over)" if damaged else ""
        damaged.append(f"{path.name}: {fault}")
    return None, f" ({', '.join(damaged)})" if damaged else ""


def _checkpoint(path: Path) -> Candidate:
    found = CheckpointStore(path.parent).read(path)
    run = path.parent.parent
    job = _job(run / "job.yaml") if path.parent.name == CHECKPOINTS else None
    label = f"{run.name}/{path.name}" if path.parent.name == CHECKPOINTS else path.name
    return Candidate(path, label, found.step if found else None, job)


def _job(path: Path) -> AjetConfig | None:
    try:
        tree = yaml.safe_load(path.read_text())["ajet"]
        return AjetConfig.model_validate(tree)
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValidationError):
        return None


def _inside(path: Path) -> str:
    runs = sorted(p.parent.name for p in path.glob(f"*/{CHECKPOINTS}")) if path.is_dir() else []
    return f" Runs in it: {', '.join(runs[:8])}." if runs else ""
