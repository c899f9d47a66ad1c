"""From ``model.path`` to a directory. No torch, and no network: what is not here is named as missing."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ajet.default_config.schema import BUILTIN_MODEL, BUILTIN_MODELS
from ajet.schema.errors import ConfigError

_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def model_dir(path: str) -> Path:
    """The directory of a model: a path, a built-in name, or a repository already in the local Hugging Face cache.

    Raises:
        ConfigError: nothing is there.
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
        return directory.resolve()
    if directory.is_dir():
        raise ConfigError(
            f"model.path: {directory} has no config.json. Set it to a directory that transformers can load.",
            param="model.path",
        )
    if _REPO.fullmatch(path):
        cached = _cached(path)
        if cached is not None:
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


def _cached(repo: str) -> Path | None:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    root = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / ("models--" + repo.replace("/", "--"))
    try:
        revision = (root / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = root / "snapshots" / revision
    return snapshot if (snapshot / "config.json").exists() else None
