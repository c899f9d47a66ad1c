"""Which trackers there are, by verl's names, and whether what they need is installed. Imports none of them."""

from __future__ import annotations

from importlib.util import find_spec

from ajet.default_config.schema import TrackerName

_NEEDS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("torch", "tensorboard"), "wandb": ("wandb",), "swanlab": ("swanlab",), "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}  # fmt: skip


def chosen(logger: TrackerName | list[TrackerName]) -> tuple[TrackerName, ...]:
    """``trainer_common.logger`` as a list without repetition, in the order given."""
    return tuple(dict.fromkeys([logger] if isinstance(logger, str) else logger))


def tracker_problems(logger: TrackerName | list[TrackerName]) -> list[str]:
    """One sentence for each chosen tracker that is not installed here, with the command that installs it."""
    found = []
    for name in chosen(logger):
        missing = [module for module in _NEEDS.get(name, ()) if not _installed(module)]
        if missing:
            found.append(
                f"trainer_common.logger names {name}, and {' and '.join(missing)} is not installed where the server runs. "
                f"Run: pip install {' '.join(missing)} (or pip install 'agentjet[trackers]' for all of them), or leave "
                f"{name} out."
            )
    return found


def _installed(module: str) -> bool:
    """A folder of that name in the working directory (``./wandb``) is no installation: it has no origin."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None
