"""Which checkpoint a call for ``frozen:<name>`` means. Names come from the job and from the run's own checkpoints; nothing
that a call says is used as a path.
"""

from __future__ import annotations

import re

from ajet.backbone import model_dir
from ajet.backbone.protocol import FROZEN
from ajet.schema.errors import NotFound
from ajet.server.experiment import Experiment

_STEP = re.compile(r"(?:step_)?([0-9]{1,9})")


def backbone_model(model: str, experiment: Experiment) -> str:
    """The backbone's name for the frozen model that a call names.

    Once found, a name keeps its directory: a checkpoint that retention removes later is served on from memory.

    Raises:
        NotFound: there is no such model; the message says which there are.
        ConfigError: ``model.frozen`` names a directory that is not there.
    """
    if model == FROZEN:
        return FROZEN
    known = experiment.frozen_models.get(model)
    if known is None:
        known = experiment.frozen_models[model] = f"{FROZEN}:{_directory(model, experiment)}"
    return known


def names(experiment: Experiment) -> list[str]:
    """All that can be asked for, as a call names it."""
    steps = sorted(path.name for path in (experiment.folder / "checkpoints").glob("step_*") if path.is_dir())
    return [FROZEN, *(f"{FROZEN}:{name}" for name in [*experiment.config.model.frozen, *steps])]


def _directory(model: str, experiment: Experiment) -> str:
    name = model.removeprefix(f"{FROZEN}:")
    path = experiment.config.model.frozen.get(name)
    if path is not None:
        return str(model_dir(path))
    step = _STEP.fullmatch(name)
    if step:
        found = experiment.folder / "checkpoints" / f"step_{int(step[1]):06d}"
        if (found / "config.json").exists():
            return str(found.resolve())
    raise NotFound(
        f"There is no frozen model {name!r}. This server has: {', '.join(names(experiment))}. Add it to model.frozen, or "
        "name a step whose checkpoint exists.",
        param="model",
    )
