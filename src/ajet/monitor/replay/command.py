"""What ``ajet-swarm replay`` does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ajet.envs.werewolves.replay import Replay, View, load, save
from ajet.envs.werewolves.wording import Language
from ajet.schema.errors import AjetError, ConfigError

WIDTH = 100
"""Of plain text, where standard output is no terminal."""


def view_of(name: str, seats: int) -> View:
    """A view by its name on the command line: god, public, wolves, or a player's number.

    Raises:
        ConfigError: there is no such view.
    """
    if name == "god" or name == "public" or name == "wolves":
        return name
    number = name.lower().removeprefix("player")
    if number.isdigit() and 1 <= int(number) <= seats:
        return int(number) - 1
    raise ConfigError(f"--view is god, public, wolves, or a player from 1 to {seats}; not {name!r}.")


def language_of(name: str | None, replay: Replay) -> Language:
    """A language by its name; None is the one the game was played in.

    Raises:
        ConfigError: there is no such language.
    """
    if name is None:
        return replay.language
    if name == "en" or name == "zh":
        return name
    raise ConfigError(f"--language is en or zh, not {name!r}.")


def replay(
    file: Path, *, once: bool, html: Path | None, view: str, language: str | None, private: bool,
    join_url: str | None, exp_dir: Path | None, out: Path | None,
) -> None:  # fmt: skip
    """Show a replay, write its page, or join it with the server's record.

    Raises:
        AjetError: the file is no replay, the server does not know the episode, or there is no terminal to draw on.
    """
    game = load(file)
    seen, words = view_of(view, len(game.seats)), language_of(language, game)
    if join_url is not None or exp_dir is not None:
        game = _join(game, join_url, exp_dir, out or file)
        if html is None and not once:
            return
    elif out is not None:
        raise ConfigError("--out says where a joined replay goes; give --join or --exp-dir with it.")
    if html is not None:
        from ajet.monitor.replay.page import page

        _write(html, page(game, view=seen, language=words))
        print(html)
    if once:
        _print(game, seen, words, private)
    elif html is None:
        _show(game, seen, words)


def _join(game: Replay, url: str | None, exp_dir: Path | None, out: Path) -> Replay:
    from ajet.monitor.replay.join import from_folder, from_server

    if url is not None and exp_dir is not None:
        raise ConfigError("--join asks a server, --exp-dir reads a folder. Give one of them.")
    joined = from_folder(game, exp_dir) if exp_dir is not None else from_server(game, url or "")
    try:
        save(joined.replay, out)
    except OSError as err:
        raise ConfigError(f"The joined replay cannot be written to {out}: {err.strerror}.") from err
    print(f"{out}: {joined.words()}", file=sys.stderr)
    return joined.replay


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as err:
        raise ConfigError(f"The page cannot be written to {path}: {err.strerror}. Name another file.") from err


def _print(game: Replay, view: View, language: Language, private: bool) -> None:
    from ajet.monitor.overwatch.drawing import ASCII
    from ajet.monitor.replay.text import whole

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    console = Console(
        file=sys.stdout, force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True
    )  # fmt: skip
    encoding = sys.stdout.encoding or "utf-8"
    for line in whole(game, view, language, width, private=private):
        try:
            line.plain.encode(encoding)
        except UnicodeEncodeError:
            line = Text(line.plain.translate(ASCII).encode(encoding, "replace").decode(encoding))
        console.print(line)


def _show(game: Replay, view: View, language: Language) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise AjetError("This is no terminal to draw on. Use --once for plain text, or --html FILE for a page.")
    try:
        from ajet.monitor.replay.app import ReplayApp
    except ImportError as err:
        raise AjetError(
            f"The terminal view is not installed ({err.name} is missing). Run: pip install 'agentjet[monitor]', or use "
            "--once or --html FILE."
        ) from err
    ReplayApp(game, view, language).run()
