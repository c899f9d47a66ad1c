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
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ajet.checkpoint.store import CheckpointStore
from ajet.pool import journal_read
from ajet.pool.journal import network_filesystem
from ajet.pool.journal_sql import SCHEMA_VERSION
from ajet.schema.errors import ConfigError, JournalDamaged
from ajet.server.experiment import THREADS
from ajet.server.jobs import visible_gpus

Level = Literal["ok", "note", "bad"]
_PACKAGES = ("agentjet", "torch", "transformers", "tokenizers", "verl", "renderers", "openai")
_LOW_DISK = 2 * 2**30


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
    if (path / "journal.sqlite").is_file() or (path / "job.yaml").is_file():
        return [path]
    found = sorted(p.parent for p in path.glob("*/journal.sqlite"))
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
    report.facts["gpus"] = visible_gpus()
    report.facts["cpus"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return report


def examine(folder: Path) -> Report:
    """One experiment's journal, checkpoints and disk."""
    report = Report(str(folder))
    journal = folder / "journal.sqlite"
    if not journal.is_file():
        report.say(
            "note",
            "journal",
            "is not in this folder (journal.dir puts it elsewhere); name its file's folder to check it.",
        )
    elif _examine_journal(report, journal):
        _examine_checkpoints(report, folder, journal)
    _examine_disk(report, folder)
    return report


def _examine_journal(report: Report, path: Path) -> bool:
    """False where it cannot be read at all."""
    report.facts["server"] = "has it open" if _is_open(path) else "none has it open"
    wal = Path(f"{path}-wal")
    report.facts["journal_bytes"] = path.stat().st_size + (wal.stat().st_size if wal.exists() else 0)
    try:
        with closing(journal_read.connect(path)) as db:
            db.execute("BEGIN")
            faults = [row[0] for row in db.execute("PRAGMA integrity_check(5)")]
            if faults != ["ok"]:
                report.say(
                    "bad", "journal", f"SQLite finds it damaged: {'; '.join(faults)}. Copy the folder; then recover what can be "
                    f"read with: sqlite3 {path} .recover",
                )  # fmt: skip
                return False
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version != SCHEMA_VERSION:
                report.say(
                    "note", "journal", f"is of schema {version}, this AgentJet writes {SCHEMA_VERSION}: start a server here once "
                    "to bring it up to date, then ask again.",
                )  # fmt: skip
                return False
            journal_read.check_bodies(db)
            _examine_records(report, db)
    except (sqlite3.DatabaseError, JournalDamaged, ValueError, KeyError, TypeError) as err:
        report.say(
            "bad", "journal", f"cannot be read ({err}). Copy the folder before anything else is done with it; the newest whole "
            "checkpoint can still be trained on under another experiment_name.",
        )  # fmt: skip
        return False
    return True


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
        "cpu_threads": int(meta.get(THREADS, 0)),
    }
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
    store = CheckpointStore(folder / "checkpoints")
    digests = {step.step: step.digest for step in journal_read.steps(journal)}
    whole: list[int] = []
    for checkpoint in store.all():
        fault = store.fault(checkpoint.path)
        name = checkpoint.path.name
        if fault is not None:
            report.say("bad", name, f"{fault}. A server that starts here sets it aside and uses the one before.")
        elif digests.get(checkpoint.step, checkpoint.digest) != checkpoint.digest:
            report.say("bad", name, "holds other weights than the journal has for this step.")
        else:
            whole.append(checkpoint.step)
    report.facts["checkpoints"] = whole
    aside = sorted(p.name for p in store.directory.glob(".corrupt-*")) if store.directory.is_dir() else []
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
    elif digests:
        begin = f"step {start}" if start else "the initial model"
        report.say("ok", "checkpoints", f"a server starts from {begin} and re-applies {len(later)} steps.")


def _examine_disk(report: Report, folder: Path) -> None:
    usage = shutil.disk_usage(folder)
    report.facts["disk_free_bytes"] = usage.free
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
    if kind:
        report.say("note", "disk", f"is a network file system ({kind}): checkpoints may lie there, the journal may not "
                   "(journal.dir).")  # fmt: skip
    if not os.access(folder, os.W_OK):
        report.say("bad", "disk", f"{folder} cannot be written by this user.")


def _is_open(path: Path) -> bool:
    try:
        with path.with_suffix(".lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
