"""From ``model.path`` to a directory. No torch, and no network: what is not here is named as missing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ajet.default_config.schema import BUILTIN_MODEL, BUILTIN_MODELS
from ajet.schema.errors import ConfigError

_NO_LANGUAGE_MODEL = re.compile(
    r"(?<!LMHead)Model$|For(MaskedLM|\w+Classification|\w+Answering|MultipleChoice|PreTraining|NextSentencePrediction|CTC)$"
)
"""Architectures of transformers without a head that writes."""
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def model_dir(path: str) -> Path:
    """The directory of a model: a path, a built-in name, or a repository already in the local Hugging Face cache.

    Raises:
        ConfigError: nothing is there, or what is there is no causal language model.
    """
    if path in BUILTIN_MODELS:
        import ajet

        builtin = Path(next(iter(ajet.__path__))) / "envs" / BUILTIN_MODELS[path] / "tiny" / "model"
        if not (builtin / "config.json").exists():
            raise ConfigError(
                f"model.path: the built-in model {path} is not in this installation. Install the agentjet wheel, "
                "or set model.path to a transformers model directory.", param="model.path",
            )  # fmt: skip
        return builtin
    directory = Path(path).expanduser()
    if (directory / "config.json").exists():
        _refuse_other_kinds(directory)
        return directory.resolve()
    if directory.is_dir():
        raise ConfigError(
            f"model.path: {directory} has no config.json. Set it to a directory that transformers can load.",
            param="model.path",
        )
    if _REPO.fullmatch(path):
        cached = _cached(path)
        if cached is not None:
            _refuse_other_kinds(cached)
            return cached
        raise ConfigError(
            f"model.path: there is no directory {path!r}, and no such model in the local Hugging Face cache. Nothing is "
            f"downloaded on its own: run `huggingface-cli download {path}` first, or set model.path to a directory.",
            param="model.path",
        )
    raise ConfigError(
        f"model.path: there is no directory {path!r}. Set it to a transformers model directory, or to {BUILTIN_MODEL} for "
        "the built-in model.", param="model.path",
    )  # fmt: skip


def _refuse_other_kinds(directory: Path) -> None:
    """Say at once, and not after a boot, that a model classifies or embeds. Raises :class:`ConfigError`."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"model.path: {directory / 'config.json'} cannot be read ({err}). Is the download whole?",
            param="model.path",
        ) from err
    named = config.get("architectures") if isinstance(config, dict) else None
    kinds = [str(name) for name in named] if isinstance(named, list) else []
    if kinds and all(_NO_LANGUAGE_MODEL.search(kind) for kind in kinds):
        raise ConfigError(
            f"model.path: {directory} holds a {' / '.join(kinds)}, which writes no text. Set it to a causal language model, "
            "such as one whose config.json names …ForCausalLM.",
            param="model.path",
        )


def _cached(repo: str) -> Path | None:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    root = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / ("models--" + repo.replace("/", "--"))
    try:
        revision = (root / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = root / "snapshots" / revision
    return snapshot if (snapshot / "config.json").exists() else None
