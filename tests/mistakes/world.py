"""Users' scripts and commands as real processes, and what a user saw of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.processes import ROOT, environment
from tests.mistakes.table import ROWS

LONGEST_S = 60.0
TRACEBACK = "Traceback (most recent call last)"
LINES = 25
"""More than a message and its advice take, and less than a screen."""


@dataclass(frozen=True)
class Seen:
    """All a process wrote, and its exit code."""

    output: str
    code: int

    def shows(self, key: str, *, tracebacks: int = 0) -> None:
        """The message of row ``key`` is there, once and short, and the process did not end as if all were well.

        Args:
            tracebacks: how many the output has; a user's own exception has one.
        """
        row = ROWS[key]
        assert row.pattern().search(self.output), f"not seen: {row.message}\n--- but:\n{self.output}"
        assert self.output.count(TRACEBACK) == tracebacks, self.output
        assert self.code != 0, self.output
        if not tracebacks:
            assert len(self.output.splitlines()) <= LINES, self.output


@dataclass
class Running:
    """A process that writes; its output is read as it comes."""

    process: subprocess.Popen[str]

    def __post_init__(self) -> None:
        self._text = ""
        self._changed = threading.Condition()
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._text += line
                self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def output(self) -> str:
        with self._changed:
            return self._text

    def wait_for(self, key_or_text: str) -> str:
        """Return the output as soon as it holds a row's message, or a text."""
        row = ROWS.get(key_or_text)

        def there() -> bool:
            return bool(row.pattern().search(self._text)) if row is not None else key_or_text in self._text

        with self._changed:
            self._changed.wait_for(lambda: there() or self._closed, LONGEST_S)
            assert there(), f"not seen: {row.message if row else key_or_text}\n--- but:\n{self._text}"
            return self._text

    def interrupt(self) -> Seen:
        """Ctrl-C, and the end."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> Seen:
        """Wait for it."""
        code = self.process.wait(LONGEST_S)
        self._reader.join(LONGEST_S)
        return Seen(self._text, code)


@contextmanager
def running(command: list[str], at: Path, env: dict[str, str] | None = None) -> Iterator[Running]:
    """A process in the folder ``at``; killed at the end if it still runs."""
    process = subprocess.Popen(
        command, cwd=at, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        env={**environment(), "PYTHONUNBUFFERED": "1", **(env or {})}, start_new_session=True,
    )  # fmt: skip
    started = Running(process)
    try:
        yield started
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            started._reader.join(LONGEST_S)
            process.stdout.close()


def run(command: list[str], at: Path, env: dict[str, str] | None = None) -> Seen:
    """A process from its start to its end."""
    with running(command, at, env) as started:
        return started.end()


def ajet_swarm(*arguments: object) -> list[str]:
    """The command line ``ajet-swarm …``."""
    return [sys.executable, "-m", "ajet.cli", *map(str, arguments)]


def script(at: Path, body: str, name: str = "agent.py") -> Path:
    """A user's script whose text is ``body``; its arguments are ``sys.argv[1:]``."""
    path = at / name
    path.write_text(textwrap.dedent(body).lstrip())
    return path


def python(path: Path, *arguments: object) -> list[str]:
    """The command line of a script."""
    return [sys.executable, str(path), *map(str, arguments)]


class Starter:
    """Runs scripts and commands in processes of their own that need not import everything anew; see :mod:`.starter`."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.mistakes.starter"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT, env={**environment(), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip

    def runs(self, path: Path, *arguments: object, env: dict[str, str] | None = None) -> Seen:
        """A script from its start to its end, in its folder."""
        output = path.with_suffix(".seen")
        order = {"script": str(path), "arguments": [*map(str, arguments)], "env": env or {}, "output": str(output)}
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        code = int(self._parent.stdout.readline())
        return Seen(output.read_text(), code)

    def commands(self, at: Path, *arguments: object, env: dict[str, str] | None = None) -> Seen:
        """``ajet-swarm …`` in the folder ``at``."""
        return self.runs(script(at, "from ajet.cli import main\nmain()", "ajet-swarm.py"), *arguments, env=env)

    def close(self) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(LONGEST_S)
        self._parent.stdout.close()


TUTORIAL = ROOT / "tutorial" / "example_werewolves_swarm" / "agent_roll.py"
