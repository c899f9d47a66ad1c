"""The command ``ajet-swarm`` itself, what its commands have in common, and how it ends."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ajet.schema.errors import AjetError

app = typer.Typer(
    name="ajet-swarm",
    help="Serve and train one language model for agents that run anywhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Url = Annotated[
    str,
    typer.Option("--swarm-url", envvar="AJET_SWARM_URL", help="The swarm server. The key comes from AJET_SWARM_KEY."),
]
DEFAULT_URL = "http://127.0.0.1:10086"


def flat(tree: dict, prefix: str = "") -> list[tuple[str, object]]:
    """Dotted key and value of all that is not empty, a line each."""
    rows: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            rows += flat(value, f"{prefix}{key}.")
        elif value not in (None, {}, []):
            rows.append((prefix + key, f"{value:.4g}" if isinstance(value, float) else value))
    return rows


def main() -> None:
    """Entry point: errors made on purpose are one line, not a traceback."""
    try:
        app()
    except AjetError as err:
        print(f"ajet-swarm: {err.message}", file=sys.stderr)
        if os.environ.get("AJET_DEBUG"):
            raise
        sys.exit(1)
    except ModuleNotFoundError as err:
        if os.environ.get("AJET_DEBUG") or (err.name or "ajet").split(".")[0] == "ajet":
            raise
        print(
            f"ajet-swarm: this command needs {err.name}, which is not installed. Run: pip install 'agentjet[server]'",
            file=sys.stderr,
        )
        sys.exit(1)
