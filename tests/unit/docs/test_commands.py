"""Every command, snippet and configuration of the documentation is checked against the code it speaks of.

``tests/e2e/test_documented_commands.py`` runs what can be run against a server. Here each command is parsed by the program it
names; a command whose program is not here (a cluster, Docker) stands in :data:`ELSEWHERE` with the reason, and any other is a failure.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ajet.cli import app
from ajet.default_config.load import section_of
from ajet.default_config.schema import AjetConfig
from tests.fakes.pages import ROOT, Block, Command, blocks, commands, is_shell

ELSEWHERE = {
    ".": "changes the shell that reads it",
    "source": "changes the shell that reads it",
    "cd": "changes the shell that reads it",
    "export": "changes the shell that reads it; its variables are looked up in the source",
    "git": "fetches the project",
    "mkdir": "the shell's own",
    "cp": "the shell's own",
    "cat": "the shell's own",
    "tail": "the shell's own",
    "kill": "the shell's own",
    "ssh": "another machine",
    "ray": "starts a cluster of several machines",
    "docker": "no Docker here; docker/prove.py runs the steps of its files",
    "nvidia-smi": "needs a GPU",
    "uv": "an installer beside pip",
    "apt-get": "changes the system",
    "sudo": "changes the system",
    "hadolint": "a linter that is not a Python package",
    "chromium": "a browser; the pages that need it have tests of their own",
    "tensorboard": "a tracker's page; its tests are those of the trackers",
    "wandb": "a tracker's page; its tests are those of the trackers",
    "mlflow": "a tracker's page; its tests are those of the trackers",
    "swanlab": "a tracker's page; its tests are those of the trackers",
    "trackio": "a tracker's page; its tests are those of the trackers",
}
FLAGS = {"ray": {"start", "--head", "--port", "--address", "stop"}}
"""What a program of :data:`ELSEWHERE` may be given, where that is little."""
OTHER_YAML = {"services", "version", "volumes"}
"""Top keys of YAML that is not a job's (a compose file)."""
EXTRAS = set(
    re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().partition("optional-dependencies]")[2], re.M)
)
ALL = commands()


def test_the_documentation_has_commands():
    assert len(ALL) > 60
    assert len({block.where for block in blocks() if is_shell(block)}) > 25


@pytest.mark.parametrize("command", sorted({str(c): c for c in ALL}.values(), key=str), ids=str)
def test_a_documented_command_is_one_that_its_program_takes(command: Command):
    program, *words = command.words
    if program == "ajet-swarm":
        _check_cli(words, command)
    elif program in ("python", "python3"):
        _check_python(words, command)
    elif program == "pytest":
        assert (ROOT / words[0]).exists() or words[0].startswith("-"), f"{command.where}: {words[0]} is not there"
    elif program == "make":
        _check_make(words, command)
    elif program == "pip":
        _check_pip(words, command)
    elif program == "curl":
        _check_curl(words, command)
    else:
        assert program in ELSEWHERE, f"{command.where}: nobody checks `{command}`; run it in a test, or say why not"
        if program == "export":
            _check_variable(words[0].partition("=")[0], command)
        for word in words if program in FLAGS else ():
            name = word.partition("=")[0]
            assert name in FLAGS[program], f"{command.where}: {program} {name}"


def _check_cli(words: list[str], command: Command) -> None:
    node: Any = typer.main.get_command(app)
    while hasattr(node, "commands"):
        if not words or words[0] == "--help":
            return
        assert words[0] in node.commands, f"{command.where}: ajet-swarm has no command {words[0]!r}"
        node, words = node.commands[words[0]], words[1:]
    if "--help" in words:
        return
    try:
        node.make_context(node.name, list(words))  # parses and converts, and runs nothing
    except Exception as refused:
        message = refused.format_message() if hasattr(refused, "format_message") else repr(refused)
        if command.named and len(words) == 0:
            return
        assert "does not exist" in message, f"{command.where}: {message}"  # a folder of the reader's own


@cache
def _source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _check_python(words: list[str], command: Command) -> None:
    if words[:2] == ["-m", "venv"] or words[:2] == ["-m", "pytest"] or words[:1] == ["-c"]:
        return
    if words[0] == "-m":
        spec = importlib.util.find_spec(words[1])
        assert spec, f"{command.where}: there is no module {words[1]}"
        if spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{words[1]}.__main__")
            assert spec, f"{command.where}: {words[1]} cannot be run"
        origin = Path(spec.origin or "")
        files = origin.parent.glob("*.py") if origin.name == "__main__.py" else [origin]
        text = own = "".join(file.read_text(encoding="utf-8") for file in files)
        flags = words[2:]
    else:
        if not words[0].startswith("tutorial/"):
            assert not (ROOT / words[0]).parent.is_dir() or (ROOT / words[0]).is_file(), f"{command.where}: {words[0]}"
            return
        assert (ROOT / words[0]).is_file(), f"{command.where}: {words[0]} is not there"
        own, flags = _source(words[0]), words[1:]
        folder = (ROOT / words[0]).parent
        text = "".join(p.read_text() for p in folder.glob("*.py"))
    for word in flags:
        if word.startswith("--"):
            name = word.partition("=")[0]
            given = rf"arguments\([^)]*\b{name[2:].replace('-', '_')}="  # tutorial/swarm_clients: an option a keyword
            assert f'"{name}"' in text or re.search(given, own), f"{command.where}: {words[0]} knows no {name}"


def _check_make(words: list[str], command: Command) -> None:
    text = _source("Makefile")
    for word in words:
        name, equals, _ = word.partition("=")
        pattern = rf"^{name} \?=|\$\({name}\)|\$\(if \$\({name}\)" if equals else rf"^{re.escape(name)}:"
        assert re.search(pattern, text, re.M), f"{command.where}: the Makefile has no {name}"


def _check_pip(words: list[str], command: Command) -> None:
    for word in words:
        match = re.fullmatch(r"(?:agentjet|\.)\[([\w,]+)\]", word)
        if match:
            assert set(match[1].split(",")) <= EXTRAS, f"{command.where}: there is no extra {match[1]}"
    if "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).is_file()


def _check_curl(words: list[str], command: Command) -> None:
    from ajet.server.app import ROUTES

    paths = [re.sub(r"{\w+}", "[^/]+", route.path) for route in ROUTES] + ["/v1/chat/completions", "/openapi.json"]
    urls = [word for word in words if word.startswith("http") or "/swarm/" in word]
    assert urls, f"{command.where}: curl without an address"
    for url in urls:
        path = re.sub(r"^(https?://)?[^/]*", "", url).partition("?")[0]
        assert any(re.fullmatch(pattern, path) for pattern in paths), f"{command.where}: the server has no {path}"


def _check_variable(name: str, command: Command) -> None:
    if name.startswith("AJET_"):
        assert any(name in path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")), (
            f"{command.where}: nobody reads {name}"
        )


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "yaml"], ids=lambda b: b.where)
def test_documented_configuration_has_only_keys_that_exist(block: Block):
    tree = yaml.safe_load(block.text)
    if set(tree) & OTHER_YAML:
        return
    if "ajet" not in tree and not set(tree) <= set(AjetConfig.model_fields):
        return _only_keys_of_some_section(tree, block)
    _check_tree(tree.get("ajet", tree), AjetConfig, "", block)
    return None


def _check_tree(tree: Any, node: Any, prefix: str, block: Block) -> None:
    for name, value in tree.items():
        assert name in node.model_fields, f"{block.where}: there is no key {prefix}{name}"
        section = section_of(node.model_fields[name].annotation)
        if section is not None and isinstance(value, dict):
            _check_tree(value, section, f"{prefix}{name}.", block)


def _only_keys_of_some_section(tree: Any, block: Block) -> None:
    sections = [s for info in AjetConfig.model_fields.values() if (s := section_of(info.annotation)) is not None]
    assert any(set(tree) <= set(section.model_fields) for section in sections), f"{block.where}: {sorted(tree)}"


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "python"], ids=lambda b: b.where)
def test_documented_python_compiles_and_names_what_exists(block: Block):
    # "…" stands for what the reader fills in.
    tree = ast.parse(re.sub(r",\s*…\s*\)", ")", block.text).replace("…", "..."))
    known: dict[str, Any] = {
        name: getattr(importlib.import_module("ajet"), name) for name in importlib.import_module("ajet").__all__
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("ajet", "tutorial"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}"), (
                    f"{block.where}: {node.module} has no {alias.name}"
                )
                known[alias.asname or alias.name] = getattr(module, alias.name, None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and callable(known.get(node.func.id)):
            taken = inspect.signature(known[node.func.id]).parameters
            if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
                continue
            for keyword in node.keywords:
                assert keyword.arg in taken, f"{block.where}: {node.func.id} takes no {keyword.arg}"
