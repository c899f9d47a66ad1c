"""The documentation as its tests see it: pages, their fenced blocks, and the commands in those."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELLS = ("bash", "sh", "shell", "console", "")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```\s*$", re.M | re.S)
_TICKS = re.compile(r"`((?:ajet-swarm|make|pip install|python -m) [^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``where`` is its page and line."""

    where: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One command of a shell block, or of a sentence; without comments and assignments before it."""

    where: str
    words: tuple[str, ...]
    named: bool = False
    """Named by a sentence, where a command may stand without its arguments."""

    def __str__(self) -> str:
        return shlex.join(self.words)


def pages() -> list[Path]:
    """All pages that a user reads."""
    return sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")])


def blocks() -> list[Block]:
    """All fenced blocks of all pages."""
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            indent = len(match["indent"])
            body = "\n".join(row[indent:] for row in match["text"].split("\n"))
            found.append(Block(f"{page.relative_to(ROOT)}:{line}", match["language"], body))
    return found


def is_shell(block: Block) -> bool:
    """Whether it holds commands: a block without a language does when its first line begins with one."""
    return block.language in SHELLS[:-1] or (
        block.language == "" and bool(re.match(r"ajet-swarm |python |make |\$ ", block.text))
    )


def commands() -> list[Command]:
    """All commands of shell blocks, and those that sentences name in backticks."""
    found = []
    for block in filter(is_shell, blocks()):
        for line in re.sub(r"\\\n\s*", "", block.text).split("\n"):
            found += _of_line(block.where, line.removeprefix("$ "))
    for page in pages():
        text = _FENCE.sub("", page.read_text(encoding="utf-8"))
        for match in _TICKS.finditer(text):
            if not re.search(r"[…|*]|\[-", match[1]):  # a form, not a command
                where = str(page.relative_to(ROOT))
                found += [Command(where, c.words, named=True) for c in _of_line(where, match[1].replace("\n", " "))]
    return found


def _of_line(where: str, line: str) -> list[Command]:
    if re.search(r"\[--|…", line.split(" #")[0]):
        line = re.sub(r"\[--[^\]]*\]\S*", "", line)  # a form: what is optional is left out
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[Command] = []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("&;|"):
            if words:
                found.append(Command(where, tuple(words)))
            words = []
        elif words or not re.fullmatch(r"[A-Z_]+=\S*", word):
            words.append(word)
    return found
