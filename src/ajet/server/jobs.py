"""Jobs: checking one against the tree and this machine, and remembering across restarts which one runs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from ajet.default_config.load import config_from_dict, machine_problems
from ajet.default_config.schema import AjetConfig
from ajet.pool import journal_read
from ajet.schema.errors import ConfigError
from ajet.tracking.names import tracker_problems

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_MARK = "current.json"


def validated(tree: dict[str, Any], exp_dir: Path) -> AjetConfig:
    """The configuration of a tree that came over the wire. Raises :class:`ConfigError` naming the key at fault."""
    config = config_from_dict(tree)
    experiment_folder(config, exp_dir)
    return config


def visible_gpus() -> int:
    """GPUs this process may use, as far as can be told without loading torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([part for part in chosen.split(",") if part.strip() not in ("", "-1")])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def check_machine(config: AjetConfig) -> None:
    """Raises :class:`ConfigError` for what the job asks of this machine and it does not have."""
    problems = machine_problems(config, visible_gpus()) + tracker_problems(config.trainer_common.logger)
    if problems:
        raise ConfigError(" ".join(problems), details={"problems": problems})


def experiment_folder(config: AjetConfig, exp_dir: Path) -> Path:
    """The experiment's folder. Raises :class:`ConfigError` for a name that is not a plain folder name."""
    name = config.experiment_name
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"experiment_name {name!r} cannot be a folder. Use letters, digits, '.', '_' and '-' (at most 128).",
            param="experiment_name",
        )
    return Path(config.experiment_dir or exp_dir) / name


def find_journal(folder: Path) -> Path | None:
    """The journal of an experiment's folder, also where ``journal.dir`` put it elsewhere; None where there is none."""
    path = folder / "journal.sqlite"
    if path.is_file():
        return path
    try:
        job = yaml.safe_load((folder / "job.yaml").read_text())["ajet"]
        path = Path(job["journal"]["dir"]) / job["experiment_name"] / "journal.sqlite"
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None
    return path if path.is_file() else None


def journal_of(folder: Path) -> tuple[Path, Path]:
    """The journal of an experiment's folder (or the file itself), and the folder.

    Raises:
        ConfigError: there is none, or it is of another version.
    """
    if folder.is_file():
        path, folder = folder, folder.parent
    else:
        found = find_journal(folder)
        if found is None:
            raise ConfigError(
                f"There is no journal in {folder}. Name the experiment's folder (it holds journal.sqlite), or the file "
                "itself where journal.dir put it elsewhere."
            )
        path = found
    journal_read.check_version(path)
    return path, folder


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
