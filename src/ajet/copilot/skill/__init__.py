"""The skill file for coding assistants (``ajet-swarm skill``). ``SKILL.md`` is generated from ``docs/your-own-agent.md``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from ajet.schema.errors import AjetError

NAME = "ajet"


def skill_text() -> str:
    """The file's text."""
    return resources.files(__name__).joinpath("SKILL.md").read_text(encoding="utf-8")


def install(folder: Path) -> Path:
    """Write ``folder/ajet/SKILL.md`` and return its path.

    Raises:
        AjetError: the folder cannot be written.
    """
    path = folder / NAME / "SKILL.md"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(skill_text(), encoding="utf-8")
    except OSError as err:
        raise AjetError(f"The skill cannot be written to {path}: {err.strerror}. Name a folder that can be.") from err
    return path
