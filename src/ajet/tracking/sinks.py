"""One open tracker. Used by :mod:`ajet.tracking.reporter` only, in its own process: what is imported here is heavy, and
may print, ask, hang or end the process.

verl's ``Tracking`` opens and closes TensorBoard, W&B, SwanLab and Trackio. Its module is loaded by itself, because the
package around it takes seconds and 400 MB to import (Ray, transformers). MLflow is opened here: verl's adapter swallows
every failure, and ours must be seen to be counted and made up for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

NO_PROMPT = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_INIT_TIMEOUT": "90"}


@dataclass(frozen=True)
class Run:
    """What is to be reported where.

    Attributes:
        id: the tracker's name for this run; None until the tracker has given one (MLflow).
        new: nothing of it was reported yet.
        folder: of the tracker's files, where the user's environment names none.
    """

    project: str
    name: str
    id: str | None
    new: bool
    folder: Path
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Sink:
    """An open tracker.

    Attributes:
        log: report a step's numbers; returns when the tracker has taken them as safely as it can be made to.
    """

    run_id: str
    log: Callable[[dict[str, float], int], Any]
    finish: Callable[[], Any]


def open_sink(tracker: str, run: Run) -> Sink:
    """Open ``tracker`` so that it goes on with ``run``. Raises whatever the tracker raises."""
    run.folder.mkdir(parents=True, exist_ok=True)
    return {"tensorboard": _tensorboard, "wandb": _wandb, "swanlab": _swanlab, "mlflow": _mlflow, "trackio": _trackio}[
        tracker
    ](run)


def _default(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _verl(tracker: str, run: Run, config: Mapping[str, Any] | None = None) -> Any:
    """verl's ``Tracking`` with one open tracker."""
    package = find_spec("verl")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("verl is not installed; it comes with: pip install 'agentjet[server]'")
    spec = spec_from_file_location("verl_tracking", Path(package.origin).parent / "utils" / "tracking.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Tracking(run.project, run.name, [tracker], config=config)


def _tensorboard(run: Run) -> Sink:
    _default({"TENSORBOARD_DIR": str(run.folder / (run.id or run.name))})
    tracking = _verl("tensorboard", run)

    def log(values: dict[str, float], step: int) -> None:
        tracking.log(values, step)
        # Else up to two minutes of steps lie in memory.
        tracking.logger["tensorboard"].writer.flush()

    return Sink(run.id or run.name, log, tracking.finish)


def _wandb(run: Run) -> Sink:
    assert run.id is not None
    _default({"WANDB_DIR": str(run.folder), **NO_PROMPT})
    os.environ.update(WANDB_RUN_ID=run.id, WANDB_RESUME="allow")
    tracking = _verl("wandb", run, {**run.config, "trainer": {}})  # verl looks for a proxy below "trainer"
    wandb = tracking.logger["wandb"]

    def log(values: dict[str, float], step: int) -> None:
        # verl's call leaves a step open until the next one comes.
        wandb.log(values, step=step, commit=True)

    return Sink(run.id, log, tracking.finish)


def _swanlab(run: Run) -> Sink:
    assert run.id is not None
    _default({"SWANLAB_LOG_DIR": str(run.folder)})
    os.environ.update(SWANLAB_RUN_ID=run.id, SWANLAB_RESUME="allow")
    tracking = _verl("swanlab", run, run.config)
    return Sink(run.id, tracking.log, tracking.finish)


def _trackio(run: Run) -> Sink:
    _default({"TRACKIO_DIR": str(run.folder)})
    import trackio  # pyright: ignore[reportMissingImports]

    # verl leaves an open run alone; its own call would begin another one after each restart.
    name = run.id or run.name
    trackio.init(project=run.project, name=name, config=dict(run.config), resume="allow")
    tracking = _verl("trackio", run)
    return Sink(name, tracking.log, tracking.finish)


def _mlflow(run: Run) -> Sink:
    # A file store is the user's choice, where it is one; MLflow refuses it unless told again.
    _default({"MLFLOW_TRACKING_URI": f"sqlite:///{run.folder / 'mlflow.db'}", "MLFLOW_ALLOW_FILE_STORE": "true"})
    import mlflow  # pyright: ignore[reportMissingImports]

    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    if run.id is None:
        experiment = mlflow.set_experiment(run.project)
        mlflow.start_run(experiment_id=experiment.experiment_id, run_name=run.name)
        mlflow.log_params(_flat(run.config))
    else:
        mlflow.start_run(run_id=run.id)
    active = mlflow.active_run()
    assert active is not None

    def log(values: dict[str, float], step: int) -> None:
        allowed = {re.sub(r"[^/\w.\- :]", "_", re.sub(r"/+", "/", key)): value for key, value in values.items()}
        mlflow.log_metrics(allowed, step=step)

    return Sink(active.info.run_id, log, partial(mlflow.end_run, "FINISHED"))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found.update(_flat(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return found
