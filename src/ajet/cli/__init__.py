"""``ajet-swarm``: its commands, by what they are about, in the order in which help lists them."""

from ajet.cli import serving  # noqa: F401  (they register themselves)

# isort: split
from ajet.cli import records  # noqa: F401

# isort: split
from ajet.cli import games  # noqa: F401
from ajet.cli.app import app, main

__all__ = ["app", "main"]
