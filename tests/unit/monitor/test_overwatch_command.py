"""Claims about what ``ajet-swarm overwatch`` needs, and what it says where that is missing."""

import io
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ajet.cli import app
from ajet.monitor.overwatch.command import overwatch
from ajet.schema.errors import AjetError, ConfigError
from tests.faults.processes import ROOT, environment


class Tty(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, Tty())


def test_without_textual_it_says_what_to_install(monkeypatch):
    on_a_terminal(monkeypatch)
    monkeypatch.delitem(sys.modules, "ajet.monitor.overwatch.app", raising=False)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    with pytest.raises(AjetError, match=r"agentjet\[monitor\]"):
        overwatch("http://127.0.0.1:1", 2.0, False)


def test_an_address_that_is_none_is_refused_before_the_terminal_is_touched(monkeypatch):
    on_a_terminal(monkeypatch)
    with pytest.raises(ConfigError, match="server_url"):
        overwatch("127.0.0.1:1", 2.0, False)


@pytest.mark.parametrize("name", ["overwatch", "top"])
def test_once_needs_neither_textual_nor_torch_under_either_name(name):
    code = f"""
import sys
sys.modules["textual"] = sys.modules["torch"] = sys.modules["starlette"] = None
sys.argv = ["ajet-swarm", "{name}", "--once", "--swarm-url", "http://127.0.0.1:1"]
from ajet.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, env=environment(), timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(b"ajet-swarm: No answer from http://127.0.0.1:1: ")


def test_intervals_that_would_hurt_are_refused():
    assert CliRunner().invoke(app, ["overwatch", "--refresh-interval", "0"]).exit_code == 2
