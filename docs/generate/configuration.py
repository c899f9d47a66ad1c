"""The configuration reference in both languages. Chinese meanings are in ``configuration_zh.yaml``, one a key of the tree."""

from __future__ import annotations

from pathlib import Path

import yaml

from ajet.copilot.job import KEYWORDS
from ajet.default_config.document import ENGLISH, Language, document, keys

ZH = yaml.safe_load(Path(__file__).with_name("configuration_zh.yaml").read_text(encoding="utf-8"))


def untranslated() -> list[str]:
    """Keys of the tree without a Chinese meaning."""
    return sorted(set(keys()) - set(ZH["meanings"]))


def files() -> dict[str, str]:
    """File name below ``docs/`` → its text."""
    aliases = {key: keyword for keyword, key in KEYWORDS.items()}
    chinese = Language(ZH["introduction"], ZH["header"], ZH["alias"], ZH["words"], ZH["meanings"])
    return {"configuration.md": document(ENGLISH, aliases), "configuration.zh.md": document(chinese, aliases)}
