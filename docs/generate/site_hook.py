"""The site builder's hook (``hooks:`` of ``mkdocs.yml``).

Pages named under ``extra.coming`` may be missing: such a one is left out of the menu, and links to it become plain words. Every
other missing page, and every broken link, fails the build as it should.

The source files that a page links to are not part of the site: such a link becomes the file's path in the repository.

A ``text`` block of one line, or one whose first line is a long sentence, is a message that somebody saw: it wraps, so that
its end, which says what to do, is in sight.

Chinese has no spaces between words, so a line that ends inside a Chinese sentence is joined with the next without one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([\w-]+?)(?:\.zh)?\.md(?:#[^)]*)?\)")
_MESSAGE = re.compile(r"^```text\n(?=[^\n]+\n```$|(?:(?!  )[^\n]){90,}\n)", re.M)
_SOURCE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)\)")

_CJK = "\u3000-\u303f\u4e00-\u9fff\uff00-\uffef\u201c\u201d\u2014\u2026"
_BROKEN_LINE = re.compile(rf"(?<=[{_CJK}])\n *(?=[{_CJK}*`\[])|(?<=[*`)])\n *(?=[{_CJK}])")
_FENCE = re.compile(r"(^```.*?^```\s*$)", re.M | re.S)


def on_config(config: Any) -> Any:
    """Take missing pages out of the menu."""
    missing = _missing(config)
    config.nav = _without(config.nav, {f"{name}.md" for name in missing})
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Unlink missing pages and source files; join the lines of Chinese paragraphs; let messages wrap."""
    missing = _missing(config)
    if page.file.src_uri.endswith(".zh.md"):
        markdown = join_lines(markdown)
    markdown = wrap_messages(name_sources(markdown))
    return _LINK.sub(lambda found: found[1] if found[2] in missing else found[0], markdown)


def join_lines(markdown: str) -> str:
    """Without the line ends inside Chinese sentences; code stays as it is."""
    parts = _FENCE.split(markdown)
    return "".join(part if n % 2 else _BROKEN_LINE.sub("", part) for n, part in enumerate(parts))


def name_sources(markdown: str) -> str:
    """Links to source files as paths, which may break after a slash."""
    return _SOURCE.sub(lambda found: _source(found[1], found[2]), markdown)


def _source(words: str, path: str) -> str:
    code = f"<code>{path.replace('/', '/<wbr>')}</code>"
    return code if words.strip("`") == Path(path).name else f"{words} ({code})"


def wrap_messages(markdown: str) -> str:
    """Blocks that hold one message get the class ``message``."""
    return _MESSAGE.sub("```{ .text .message }\n", markdown)


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
