"""Whoever calls a tutorial's script with ``--help`` is told what each of its options is."""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tests.fakes.pages import ROOT
from tutorial.example_frameworks.loop import train

TUTORIAL = ROOT / "tutorial"
SCRIPTS = [path for path in sorted(TUTORIAL.rglob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]
FRAMEWORKS = TUTORIAL / "example_frameworks"
"""Its scripts have the options of their loop; to load them takes frameworks that not everybody has installed."""


class _Asked(Exception):
    """A script is about to read its command line."""


def _parser(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> argparse.ArgumentParser:
    """The parser with which ``run`` reads the command line; it does nothing else."""
    parsers = []

    def asked(parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parsers.append(parser)
        raise _Asked

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", asked)
    with pytest.raises(_Asked):
        run()
    return parsers[0]


def _unexplained(parser: argparse.ArgumentParser) -> list[str]:
    return [action.option_strings[0] for action in parser._actions if not action.help]


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if s.parent != FRAMEWORKS], ids=lambda path: str(path.relative_to(TUTORIAL))
)
def test_every_option_of_a_script_has_its_words(script, monkeypatch):
    parser = _parser(monkeypatch, lambda: runpy.run_path(str(script), run_name="__main__"))
    assert _unexplained(parser) == []
    assert "--help" in parser.format_help()  # and the words can be printed: a stray % cannot


def test_every_option_of_the_frameworks_scripts_has_its_words(monkeypatch):
    assert [s.name for s in SCRIPTS if s.parent == FRAMEWORKS if "loop import train" not in s.read_text()] == []
    assert _unexplained(_parser(monkeypatch, lambda: train("any", lambda problem, api: 0.0))) == []
