"""Claims about trackers, each with its real library and a process of its own, in the modes that need no account."""

import asyncio
import json
import os
import signal
import time
from dataclasses import replace

import pytest

from ajet.default_config.schema import AjetConfig
from ajet.tracking.names import tracker_problems
from ajet.tracking.process import Patience, Trackers
from tests.fakes.tracker_files import READERS
from tests.faults import processes
from tests.faults.processes import children

DEADLINE_S = 90.0
QUICK = Patience(backoff_s=0.05, backoff_max_s=0.2, close_s=40.0)
INSTALLED = [name for name in ("tensorboard", "wandb", "swanlab", "mlflow", "trackio") if not tracker_problems([name])]


def config(*names):
    found = AjetConfig(experiment_name="run", project_name="proj")
    found.trainer_common.logger = list(names)
    return found


class Experiment:
    """A folder whose file of steps grows, and its trackers."""

    def __init__(self, tmp_path):
        self.folder = tmp_path / "exp" / "run"
        self.folder.mkdir(parents=True)
        self.files = tmp_path / "exp" / "trackers"
        self.warnings = []
        self.last = 0

    def trackers(self, *names, patience=QUICK):
        made = Trackers(config(*names), self.folder, self.warnings.append, patience)
        made.start(self.last)
        return made

    def train(self, trackers=None):
        """A step; says how long its trackers held it up."""
        self.last += 1
        step = {"step": self.last, "time": time.time(), "reward/mean": self.last / 8, "dropped": {"late": 1}}
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(step) + "\n")
        began = time.perf_counter()
        if trackers is not None:
            trackers.step(step)
        return time.perf_counter() - began

    def points(self, *steps):
        return [(step, step / 8) for step in steps]


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    return Experiment(tmp_path)


async def until(holds):
    await asyncio.wait_for(asyncio.to_thread(processes.until, holds, DEADLINE_S), DEADLINE_S + 5)


@pytest.mark.parametrize("name", INSTALLED)
async def test_every_step_is_reported_once_in_one_run_over_two_lives_of_the_server(experiment, name):
    experiment.train()  # on record before the tracker ever starts
    runs = []
    for _ in range(2):
        trackers = experiment.trackers(name)
        experiment.train(trackers)
        await until(lambda: trackers.status()[0].step == experiment.last)  # noqa: B023
        await trackers.close()
        runs.append(json.loads((experiment.folder / f"tracker-{name}.json").read_text())["run"])
    assert runs[0] == runs[1]
    assert experiment.warnings == []
    if name in READERS:
        assert READERS[name](experiment.files / name) == experiment.points(1, 2, 3)
    else:
        # SwanLab's offline files are its own secret; both lives wrote for the same run.
        assert len(list((experiment.files / name).glob(f"run-*-{runs[0].replace('-', '_')}"))) == 2


async def test_a_tracker_that_fails_is_counted_and_said_once_and_catches_up_when_it_works(
    experiment, tmp_path, monkeypatch
):
    blocked = tmp_path / "no-folder"
    blocked.write_text("a file stands where the folder is to be")
    monkeypatch.setenv("TENSORBOARD_DIR", str(blocked / "runs"))
    trackers = experiment.trackers("tensorboard")
    held = [experiment.train(trackers) for _ in range(3)]
    await until(lambda: trackers.status()[0].failures >= 2)
    assert "Not a directory" in trackers.status()[0].error
    assert max(held) < 1.0
    (warning,) = experiment.warnings
    assert warning.startswith("Tracker tensorboard does not work: NotADirectoryError")
    assert "Training goes on" in warning
    blocked.unlink()
    await until(lambda: trackers.status()[0].step == 3)
    assert trackers.status()[0].error is None
    await trackers.close()
    assert READERS["tensorboard"](blocked / "runs") == experiment.points(1, 2, 3)


async def hang(experiment, trackers):
    """The tracker takes a step, and then nothing any more."""
    experiment.train(trackers)
    await until(lambda: trackers.status()[0].step == 1)
    (process,) = children(os.getpid())
    os.kill(process, signal.SIGSTOP)


async def test_a_tracker_that_hangs_holds_up_nobody_and_is_ended_and_goes_on(experiment):
    trackers = experiment.trackers("tensorboard", patience=replace(QUICK, hang_s=4.0))
    await hang(experiment, trackers)
    assert max(experiment.train(trackers) for _ in range(20)) < 1.0
    await until(lambda: trackers.status()[0].failures >= 1)
    await until(lambda: trackers.status()[0].step == 21)
    (warning,) = experiment.warnings
    assert "it gave no sign for 4 s and was ended" in warning
    await trackers.close()
    assert READERS["tensorboard"](experiment.files) == experiment.points(*range(1, 22))


async def test_one_that_hangs_at_the_end_is_ended_then(experiment):
    trackers = experiment.trackers("tensorboard", patience=replace(QUICK, close_s=0.3))
    await hang(experiment, trackers)
    began = time.monotonic()
    await trackers.close()
    assert time.monotonic() - began < 10
    assert children(os.getpid()) == []


async def test_a_finished_run_is_ended_and_not_opened_again(experiment):
    trackers = experiment.trackers("tensorboard")
    experiment.train(trackers)
    trackers.finish()
    await until(lambda: trackers.status()[0].step == 1 and children(os.getpid()) == [])
    await trackers.close()
    again = Trackers(config("tensorboard"), experiment.folder, experiment.warnings.append, QUICK)
    again._total = 1
    again.start(1)
    await asyncio.wait_for(again._reporters[0].task, DEADLINE_S)
    assert READERS["tensorboard"](experiment.files) == experiment.points(1)
    assert len(list(experiment.files.rglob("events.*"))) == 1
