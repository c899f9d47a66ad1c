"""Jobs: checking one, comparing two, and remembering across restarts which one runs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_MARK = "current.json"


def validated(tree: dict[str, Any], exp_dir: Path) -> AjetConfig:
    """The configuration of a tree that came over the wire. Raises :class:`ConfigError` naming the key at fault."""
    try:
        config = AjetConfig.model_validate(tree)
    except ValidationError as err:
        problems = [{"key": ".".join(map(str, e["loc"])), "message": e["msg"]} for e in err.errors(include_url=False)]
        raise ConfigError(
            f"The job is not valid: {problems[0]['key']}: {problems[0]['message']}.",
            param=problems[0]["key"],
            details={"problems": problems},
        ) from None
    if config.rollout.top_p < 1:
        raise ConfigError(
            "rollout.top_p must be 1.0: the trainer cannot reproduce a truncated distribution.", param="rollout.top_p"
        )
    experiment_folder(config, exp_dir)
    return config


def job_diff(running: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> dict[str, list[Any]]:
    """Key → [running, wanted] for every leaf that differs."""
    diff: dict[str, list[Any]] = {}
    for key in sorted({*running, *wanted}):
        ours, theirs = running.get(key), wanted.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            diff.update(job_diff(ours, theirs, f"{prefix}{key}."))
        elif ours != theirs:
            diff[prefix + key] = [ours, theirs]
    return diff


def experiment_folder(config: AjetConfig, exp_dir: Path) -> Path:
    """The experiment's folder. Raises :class:`ConfigError` for a name that is not a plain folder name."""
    name = config.experiment_name
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"experiment_name {name!r} cannot be a folder. Use letters, digits, '.', '_' and '-' (at most 128).",
            param="experiment_name",
        )
    return Path(config.experiment_dir or exp_dir) / name


def running_job(data_dir: Path) -> AjetConfig | None:
    """The job that was running when the server went away, if one was."""
    try:
        mark = json.loads((data_dir / _MARK).read_text())
        return AjetConfig.model_validate(mark["job"]) if mark["running"] else None
    except (OSError, KeyError, ValueError, TypeError):
        return None


def note_running(data_dir: Path, job: AjetConfig | None, running: bool) -> None:
    """Remember it, atomically. Raises OSError."""
    path = data_dir / _MARK
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump({"running": running, "job": job.model_dump(mode="json") if job else None}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
