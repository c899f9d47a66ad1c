"""The site builder's hook (``hooks:`` of ``mkdocs.yml``): pages named under ``extra.coming`` may be missing.

A missing one is left out of the menu, and links to it become plain words. Every other missing page, and every broken link,
fails the build as it should.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([\w-]+?)(?:\.zh)?\.md(?:#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Take missing pages out of the menu."""
    missing = _missing(config)
    config.nav = _without(config.nav, {f"{name}.md" for name in missing})
    return config


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Unlink missing pages."""
    missing = _missing(config)
    return _LINK.sub(lambda found: found[1] if found[2] in missing else found[0], markdown)


def _missing(config: Any) -> set[str]:
    coming = config.extra.get("coming") or []
    return {name for name in coming if not (Path(config.docs_dir) / f"{name}.md").is_file()}


def _without(nav: list[Any], pages: set[str]) -> list[Any]:
    kept = []
    for entry in nav:
        (title, value), *_ = entry.items()
        if isinstance(value, list):
            kept.append({title: _without(value, pages)})
        elif value not in pages:
            kept.append(entry)
    return kept
