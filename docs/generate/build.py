"""All generated files, and whether the committed ones are what the code gives."""

from __future__ import annotations

from pathlib import Path

from docs.generate import configuration, curves, figures, http, skill

ROOT = Path(__file__).resolve().parents[2]
MODULES = (figures, curves, configuration, http, skill)


def files() -> dict[Path, str]:
    """Path → text of everything that is generated. A module names files below ``docs/``; the skill also goes into the package."""
    found = {ROOT / "docs" / name: text for module in MODULES for name, text in module.files().items()}
    return {path.resolve(): text for path, text in found.items()}


def stale() -> list[str]:
    """Names of files that are absent or differ."""
    return [
        str(path.relative_to(ROOT))
        for path, text in files().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def write() -> list[str]:
    """Write what is stale; returns the names."""
    old = stale()
    wanted = files()
    for name in old:
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    return old
