"""What an experiment's folder holds, and whether it is sound. Reads only, also beside a running server.

Findings are ``ok``, ``note`` (worth knowing), or ``bad`` (something is damaged or will not work), each with what to do.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import shutil
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ajet.checkpoint.store import CheckpointStore
from ajet.pool import journal_read
from ajet.pool.filesystem import network_filesystem
from ajet.pool.journal_sql import SCHEMA_VERSION
from ajet.schema.errors import AjetError, ConfigError
from ajet.server.experiment import DEVICE, THREADS
from ajet.server.jobs import find_journal, visible_gpus

Level = Literal["ok", "note", "bad"]
_PACKAGES = ("agentjet", "torch", "transformers", "tokenizers", "verl", "renderers", "openai")
_LOW_DISK = 2 * 2**30
_LOOKS = 5


@dataclass(frozen=True)
class Finding:
    level: Level
    about: str
    words: str


@dataclass
class Report:
    """Of one experiment, or of the machine."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return all(finding.level != "bad" for finding in self.findings)

    def say(self, level: Level, about: str, words: str) -> None:
        self.findings.append(Finding(level, about, words))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "sound": self.sound, "facts": self.facts, "findings": [vars(f) for f in self.findings],
        }  # fmt: skip


def experiments(path: Path) -> list[Path]:
    """The experiment at ``path``, or all of the folder of experiments ``path``.

    Raises:
        ConfigError: there are none.
    """
    marks = ("journal.sqlite", "job.yaml")
    if any((path / mark).exists() for mark in marks):
        return [path]
    found = sorted({p.parent for mark in marks for p in path.glob(f"*/{mark}")})
    if not found:
        raise ConfigError(
            f"There is no experiment in {path}. Name an experiment's folder (it holds journal.sqlite), or a folder of them."
        )
    return found


def examine_machine() -> Report:
    """Versions and devices."""
    report = Report("this machine")
    for package in _PACKAGES:
        try:
            report.facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            report.facts[package] = "not installed"
            if package in ("torch", "transformers", "verl"):
                report.say("note", package, "is not installed: this machine can run clients, and no server. "
                           "pip install 'agentjet[server]'")  # fmt: skip
    report.facts["python"] = platform.python_version()
    report.facts["sqlite"] = sqlite3.sqlite_version
    report.facts["gpus"] = visible_gpus()
    report.facts["cpus"] = _cpus()
    return report


def examine(folder: Path) -> Report:
    """One experiment's journal, checkpoints and disk."""
    report = Report(str(folder))
    journal = find_journal(folder)
    if journal is None:
        report.say(
            "bad", "journal", "is missing: neither is journal.sqlite in this folder, nor is it where job.yaml says that "
            "journal.dir puts it. A server that starts here goes on from the newest checkpoint, if there is one, with no "
            "memory of episodes.",
        )  # fmt: skip
    elif _examine_journal(report, journal):
        home = _home(folder, journal)
        if home is None:
            report.say(
                "note", "checkpoints", "lie in the experiment's folder, not beside this journal: name that folder."
            )
        else:
            _examine_checkpoints(report, home, journal)
    for place in {folder, journal.parent if journal is not None else folder}:
        _examine_disk(report, place, is_journal=journal is not None and place == journal.parent)
    return report


def _home(folder: Path, journal: Path) -> Path | None:
    """Where the checkpoints are, for a folder that may hold nothing but the journal."""
    if journal.parent != folder or (folder / "checkpoints").is_dir():
        return folder
    jobs = journal_read.jobs(journal)
    config = jobs[-1][1] if jobs else None
    if config is None or config.journal.dir is None:
        return folder
    return Path(config.experiment_dir) / config.experiment_name if config.experiment_dir else None


def _examine_journal(report: Report, path: Path) -> bool:
    """False where it cannot be read at all."""
    report.facts["journal"] = str(path)
    report.facts["server"] = "has it open" if _is_open(path) else "none has it open"
    report.facts["journal_bytes"] = _size(path) + _size(Path(f"{path}-wal"))
    report.facts["reserve_bytes"] = _size(path.with_suffix(".reserve"))
    try:
        with journal_read.reading(path) as db:
            faults = [row[0] for row in db.execute("PRAGMA integrity_check(5)")]
            if faults != ["ok"]:
                report.say(
                    "bad", "journal", f"SQLite finds it damaged: {'; '.join(faults)}. Copy the folder; then recover what can be "
                    f"read with: sqlite3 {path} .recover",
                )  # fmt: skip
                return False
            if not _readable(report, db.execute("PRAGMA user_version").fetchone()[0]):
                return False
            journal_read.check_bodies(db)
            _examine_records(report, db)
    except (AjetError, ValueError, TypeError) as err:
        cause = err.__cause__ or err
        report.say(
            "bad", "journal", f"cannot be read ({cause}). Copy the folder before anything else is done with it; the newest whole "
            "checkpoint can still be trained on under another experiment_name.",
        )  # fmt: skip
        return False
    return True


def _readable(report: Report, version: int) -> bool:
    """Whether tables of schema ``version`` are those that this AgentJet knows."""
    if version == 0:
        report.say(
            "bad", "journal", "is empty: nothing is known of any episode or step. If it held a run, put a copy of it back; a "
            "server that starts here goes on from the newest checkpoint, if there is one.",
        )  # fmt: skip
    elif version > SCHEMA_VERSION:
        report.say(
            "bad", "journal", f"was written by a newer AgentJet (schema {version}; this one knows {SCHEMA_VERSION}), and no "
            "server of this one starts here. Upgrade AgentJet.",
        )  # fmt: skip
    elif version < SCHEMA_VERSION:
        report.say(
            "note", "journal", f"is of schema {version}, this AgentJet writes {SCHEMA_VERSION}: start a server here once "
            "to bring it up to date, then ask again.",
        )  # fmt: skip
    return version == SCHEMA_VERSION


def _examine_records(report: Report, db: sqlite3.Connection) -> None:
    def one(query: str) -> int:
        return db.execute(query).fetchone()[0]

    count = {table: one(f"SELECT count(*) FROM {table}") for table in ("lease", "call", "done", "batch", "step")}
    steps = [step for (step,) in db.execute("SELECT step FROM step ORDER BY step")]
    batches = [step for (step,) in db.execute("SELECT step FROM batch ORDER BY step")]
    tally = dict(db.execute("SELECT name, n FROM tally"))
    meta = dict(db.execute("SELECT key, value FROM meta"))
    report.facts |= {
        "steps": steps[-1] if steps else 0,
        "episodes": count["lease"],
        "episodes_open": one("SELECT count(*) FROM lease WHERE n NOT IN (SELECT n FROM done)"),
        "episodes_waiting": one(
            "SELECT count(*) FROM done WHERE fate = 'pooled' AND n NOT IN (SELECT n FROM member) "
            "AND n NOT IN (SELECT n FROM dropped)"
        ),
        "episodes_trained": one("SELECT count(*) FROM member"),
        "calls_kept": count["call"],
        "drops": {name[5:]: n for name, n in sorted(tally.items()) if name.startswith("drop/")},
        "device": meta.get(DEVICE, "unknown"),
        "cpu_threads": int(meta.get(THREADS, 0)),
    }
    if report.facts["cpu_threads"] > _cpus():
        report.say(
            "note", "cpu_threads", f"the run was trained with {report.facts['cpu_threads']}, and this machine has {_cpus()} cores: "
            "it goes on with as many threads, slower, so that its sums stay the same to the last bit.",
        )  # fmt: skip
    problems = []
    if steps and steps != list(range(steps[0], steps[-1] + 1)):
        problems.append("steps are missing in between")
    lonely = sorted(set(steps) - set(batches))
    if lonely:
        problems.append(f"step {lonely[0]} has no batch")
    if len(set(batches) - set(steps)) > 1:
        problems.append("more than one batch was formed and not trained")
    if one("SELECT count(*) FROM member WHERE n NOT IN (SELECT n FROM done WHERE fate = 'pooled')"):
        problems.append("a batch names episodes that were never finished")
    if one("SELECT count(*) FROM dropped WHERE n IN (SELECT n FROM member)"):
        problems.append("an episode is both trained and dropped")
    if one("SELECT count(*) FROM call WHERE n NOT IN (SELECT n FROM lease)"):
        problems.append("there are calls of episodes that never began")
    rows: Counter[str] = Counter(dict(db.execute("SELECT reason, count(*) FROM dropped GROUP BY reason")))
    for fate, n in db.execute(
        "SELECT fate, count(*) FROM done JOIN lease USING(n) WHERE kind = 'train' "
        "AND (how = 'abort' OR fate IN ('no_calls', 'training_finished')) GROUP BY fate"
    ):
        rows[fate] += n
    for reason, n in rows.items():
        if n > tally.get(f"drop/{reason}", 0):
            problems.append(f"{n} episodes were dropped as {reason}, and {tally.get(f'drop/{reason}', 0)} are counted")
    for problem in problems:
        report.say(
            "bad", "journal", f"{problem}. Its records do not agree; please report this with a copy of the folder."
        )
    if not problems:
        report.say("ok", "journal", "is sound, and its records agree.")
    if set(batches) - set(steps):
        report.say("note", "journal", f"step {max(batches)} was under way; a server that starts here trains it first.")


def _examine_checkpoints(report: Report, folder: Path, journal: Path) -> None:
    """Look until the folder stands still: a running server saves, prunes and compacts meanwhile."""
    store = CheckpointStore(folder / "checkpoints")
    for _ in range(_LOOKS):
        before = _names(store)
        found = Report(report.name)
        _look_at_checkpoints(found, store, journal)
        if _names(store) == before:
            break
    report.findings += found.findings
    report.facts |= found.facts


def _names(store: CheckpointStore) -> list[str]:
    return sorted(os.listdir(store.directory)) if store.directory.is_dir() else []


def _look_at_checkpoints(report: Report, store: CheckpointStore, journal: Path) -> None:
    digests = {step.step: step.digest for step in journal_read.steps(journal)}
    whole: list[int] = []
    for path in store.directories():
        checkpoint = store.read(path)
        try:
            fault = store.fault(path)
        except OSError as err:
            fault = f"cannot be read ({err})"
        if fault is not None or checkpoint is None:
            report.say("bad", path.name, f"{fault}. A server that starts here sets it aside and uses the one before.")
        elif digests.get(checkpoint.step, checkpoint.digest) != checkpoint.digest:
            report.say("bad", path.name, "holds other weights than the journal has for this step.")
        else:
            whole.append(checkpoint.step)
            if digests and checkpoint.step > max(digests):
                report.say(
                    "bad", path.name, "is of a step that the journal does not have: the journal was lost or replaced."
                )
    report.facts["checkpoints"] = whole
    aside = [name for name in _names(store) if name.startswith(".corrupt-")]
    if aside:
        report.say(
            "note", "checkpoints", f"damaged ones were set aside: {', '.join(aside)}. Delete them when you have looked."
        )
    start = max(whole, default=0)
    later = journal_read.batches_after(journal, start)
    report.facts["steps_to_apply_at_start"] = len(later)
    missing = [batch.step for batch in later if journal_read.compacted_calls_missing(journal, batch)]
    if missing:
        report.say(
            "bad", "checkpoints", f"the newest whole one is of step {start}, and the journal no longer holds the calls of step "
            f"{missing[0]} that followed. Restore a checkpoint of step {missing[-1]} or later.",
        )  # fmt: skip
    elif digests or whole:
        begin = f"step {start}" if start else "the initial model"
        report.say("ok", "checkpoints", f"a server starts from {begin} and re-applies {len(later)} steps.")


def _examine_disk(report: Report, folder: Path, *, is_journal: bool) -> None:
    usage = shutil.disk_usage(folder)
    report.facts["disk_free_bytes"] = min(usage.free, report.facts.get("disk_free_bytes", usage.free))
    needed = CheckpointStore(folder / "checkpoints").estimate()
    if usage.free < needed:
        report.say(
            "bad",
            "disk",
            f"has {usage.free:,} bytes free; the next checkpoint needs about {needed:,}. Free some space.",
        )
    elif usage.free < _LOW_DISK:
        report.say("note", "disk", f"has only {usage.free:,} bytes free.")
    kind = network_filesystem(folder)
    if kind and is_journal:
        report.say("bad", "disk", f"{folder} is on a network file system ({kind}), where a journal is not safe and no server "
                   "opens it. Set journal.dir to a local folder; checkpoints may stay.")  # fmt: skip
    elif kind:
        report.say("note", "disk", f"{folder} is on a network file system ({kind}): right for checkpoints only.")
    if not os.access(folder, os.W_OK):
        report.say("bad", "disk", f"{folder} cannot be written by this user.")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_open(path: Path) -> bool:
    try:
        with path.with_suffix(".lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
