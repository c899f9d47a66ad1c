"""Claims about which run a demo plays, what it says of that, and what becomes of a finished one."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ajet.copilot.job import AgentJetJob
from ajet.demo import runs, werewolves
from ajet.schema.errors import ConfigError

AGAIN = "ajet-swarm demo werewolves"


def finished(folder: Path, steps: int) -> Path:
    (folder / "replays" / "final").mkdir(parents=True)
    for name in ("eval_final.json", "win_rate.png", "replays/final/a.replay.json", runs.STARTED):
        (folder / name).write_text("1.0")
    (folder / "eval_initial.json").write_text(json.dumps({"results": {"werewolf": [0.0] * 6, "seer": [1.0] * 6}}))
    (folder / runs.SUMMARY).write_text(json.dumps({"steps": steps, "wall_seconds": 75.5}))
    return folder


def test_a_first_run_is_new_and_needs_no_words(tmp_path: Path):
    run = runs.find_run(tmp_path, "run")
    assert run == runs.Run(tmp_path / "run", None, "new")
    assert runs.words(run, 45, None, AGAIN) == ""
    assert runs.find_run(tmp_path, "run", fresh=True).why == "new"


def test_an_unfinished_run_goes_on_and_says_which_steps_it_keeps(tmp_path: Path):
    (tmp_path / "run").mkdir()
    run = runs.find_run(tmp_path, "run")
    assert (run.folder, run.why) == (tmp_path / "run", "unfinished")
    assert runs.words(run, 45, 45, AGAIN) == f"continuing the unfinished run in {tmp_path / 'run'}, 45 steps"
    assert "keeps its 45 steps" in runs.words(run, 45, 5, AGAIN)


def test_a_second_run_says_why_it_is_one_and_how_to_train_the_first_further(tmp_path: Path):
    first = finished(tmp_path / "run", 5)
    run = runs.find_run(tmp_path, "run")
    assert (run.folder, run.former, run.why) == (tmp_path / "run-2", first, "finished")
    said = runs.words(run, 45, None, AGAIN)
    assert f"{first} is finished (5 steps) and is not overwritten: this is a new run, in {run.folder}" in said
    assert said.endswith("ajet-swarm demo werewolves --continue")
    assert runs.words(run, 60, 60, AGAIN).endswith("--continue --steps 60")
    assert runs.words(run, 5, 5, AGAIN).endswith("--continue --steps N, with N above 5")
    fresh = runs.find_run(tmp_path, "run", fresh=True)
    assert f"because of --fresh; {first} stays" in runs.words(fresh, 45, None, AGAIN)


def test_a_finished_run_that_is_reopened_keeps_what_was_measured_of_it(tmp_path: Path):
    folder = finished(tmp_path / "run", 5)
    assert runs.find_run(tmp_path, "run", further=True) == runs.Run(folder, folder, "further")
    assert runs.deals_of(folder) == 6
    runs.reopen(folder, print)
    aside = folder / "until_step_000005"
    for name in (*runs.MEASURED, runs.SUMMARY):
        assert (aside / name).exists(), name
        assert not (folder / name).exists(), name
    assert not (folder / runs.STARTED).exists()
    assert (runs.seconds_before(folder), runs.deals_of(folder)) == (75.5, 6)
    assert runs.find_run(tmp_path, "run").why == "unfinished"
    runs.reopen(folder, print)  # one that is unfinished stays as it is
    assert (aside / runs.SUMMARY).exists()


def test_of_several_runs_the_last_is_trained_further(tmp_path: Path):
    finished(tmp_path / "run", 5)
    second = finished(tmp_path / "run-2", 45)
    assert runs.find_run(tmp_path, "run", further=True).folder == second


def test_wishes_that_cannot_be_met_say_what_to_do_and_write_nothing(tmp_path: Path):
    with pytest.raises(ConfigError, match="Leave --continue out"):
        werewolves.run(exp_dir=tmp_path, further=True)
    with pytest.raises(ConfigError, match="one of them"):
        werewolves.run(exp_dir=tmp_path, further=True, fresh=True)
    assert list(tmp_path.iterdir()) == []
    folder = finished(tmp_path / "werewolves-werewolf-seer-seed0", 5)
    AgentJetJob(experiment_name=folder.name, total_training_steps=5).dump_job_as_yaml(folder / runs.JOB)
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigError, match="above 5"):
        werewolves.run(exp_dir=tmp_path, further=True, steps=5)
    assert sorted(folder.rglob("*")) == before


def test_to_train_further_and_to_be_interrupted_is_no_error_when_it_is_said_again(tmp_path: Path):
    folder = finished(tmp_path / "run", 5)
    AgentJetJob(experiment_name=folder.name, total_training_steps=5).dump_job_as_yaml(folder / runs.JOB)
    for _ in range(2):
        chosen = runs.find_run(tmp_path, "run", further=True)
        asked = AgentJetJob(experiment_name=folder.name, total_training_steps=45)
        job = werewolves._open(Console(file=io.StringIO()), chosen, asked, None, AGAIN)
        assert (job.total_training_steps, runs.steps_of(folder)) == (45, None)
        assert AgentJetJob(folder / runs.JOB).total_training_steps == 45


def test_the_command_that_is_told_has_the_options_that_choose_the_run():
    options = {"--trainable": ("seer", "werewolf,seer"), "--seed": (0, 0), "--exp-dir": (Path("my runs"), Path("x"))}
    assert runs.command(options, "--continue") == f"{AGAIN} --trainable seer --exp-dir 'my runs' --continue"
