"""What a user names, and which checkpoint that is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ajet.checkpoint.store import CheckpointStore
from ajet.default_config.schema import BUILTIN_MODEL, AjetConfig
from ajet.envs.werewolves.rules import BoardOptions
from ajet.evaluation.candidates import candidate, checkpoints_of
from ajet.evaluation.report import compare, external
from ajet.evaluation.serving import job_for
from ajet.evaluation.werewolves import Series, known_roles
from ajet.schema.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 2, 4 and 6; the second is the best."""
    folder = tmp_path / "runs" / "one"
    store = CheckpointStore(folder / "checkpoints", keep_last=5)
    for step, metric in ((2, 0.1), (4, 0.9), (6, 0.5)):
        store.save_now(step, lambda d: (d / "config.json").write_text("{}"), digest=f"d{step}", metric=metric)
    tree = AjetConfig().model_dump(mode="json")
    tree["rollout"]["temperature"] = 0.7
    (folder / "job.yaml").write_text(yaml.safe_dump({"ajet": tree}))
    return folder


def test_a_checkpoint_is_itself_and_is_asked_like_its_run(run):
    found = candidate(str(run / "checkpoints" / "step_000004"))
    assert (found.step, found.label, found.notes) == (4, "one/step_000004", ())
    assert found.model_name == BUILTIN_MODEL
    assert found.job is not None
    assert found.job.rollout.temperature == 0.7


@pytest.mark.parametrize("named", [".", "checkpoints"])
def test_a_run_means_its_newest_checkpoint_and_that_is_said(run, named):
    found = candidate(str(run / named))
    assert found.step == 6
    (note,) = found.notes
    assert "newest checkpoint step_000006 is taken" in note
    assert "best by metric is step_000004" in note


def test_a_damaged_checkpoint_is_passed_over_in_a_run_refused_by_name_and_never_touched(run):
    newest = run / "checkpoints" / "step_000006"
    (newest / "config.json").write_text("{ }")
    found = candidate(str(run))
    assert found.step == 4
    assert "step_000006: config.json has" in found.notes[0]
    with pytest.raises(ConfigError, match="damaged"):
        candidate(str(newest))
    assert newest.is_dir()


@pytest.mark.parametrize(
    ("named", "words"),
    [("one/checkpoints/step_000009", "has: step_000002, step_000004, step_000006"), ("", "Runs in it: one"),
     ("none", "Name a checkpoint, a run's folder, or")],
)  # fmt: skip
def test_what_is_not_there_is_said_with_what_is(run, named, words):
    with pytest.raises(ConfigError, match=words):
        candidate(str(run.parent / named))


def test_a_run_without_a_checkpoint_is_named(tmp_path):
    (tmp_path / "young" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match="without a whole checkpoint"):
        candidate(str(tmp_path / "young"))


def test_a_rating_begins_with_the_initial_model(run):
    assert [c.step for c in checkpoints_of(str(run))] == [0, 2, 4, 6]
    with pytest.raises(ConfigError, match="takes a run's folder"):
        checkpoints_of(str(run.parent))


def test_the_server_of_an_evaluation_serves_the_others_frozen_with_the_runs_limits(run):
    found = {"policy": candidate(str(run)), "against": candidate(BUILTIN_MODEL)}
    job = job_for(found, 24)
    assert job.config.model.path == str(found["policy"].path)
    assert job.config.model.frozen == {"against": str(found["against"].path)}
    assert job.config.rollout.temperature == 0.7
    assert job.config.model.served_name == BUILTIN_MODEL
    job.check()


def test_roles_of_the_board_are_known():
    assert known_roles("", BoardOptions()) == ("werewolf", "seer", "witch", "hunter", "villager")
    assert known_roles("seer, seer", BoardOptions()) == ("seer",)
    with pytest.raises(ConfigError, match="not king"):
        known_roles("seer,king", BoardOptions())


def test_void_games_are_left_out_of_the_pairs_and_the_tree_is_json():
    static = {"static/calls": 2.0, "static/latency_s": 0.5, "static/truncated": 0.5, "static/latency_max_s": 0.9,
              "static/rate_limited": 1.0, "static/retries": 2.0, "static/fallback": 0.0}  # fmt: skip
    first = Series([{"seer/win": (1, 1)}, {"seer/win": (0, 1)}, None], [static, {}, {}])
    second = Series([{"seer/win": (1, 1)}, {"seer/win": (1, 1)}, {"seer/win": (0, 1)}], [{}, {}, {}])
    tree = compare("seer", {"policy": first, "against": second})
    assert tree["win"]["policy"]["games"] == 2
    assert tree["win"]["against"]["games"] == 3
    assert (tree["win"]["difference"]["value"], tree["win"]["difference"]["games"]) == (-0.5, 2)
    json.dumps(tree, allow_nan=False)
    assert first.void == 1
    assert external([first, second])["rate_limited"] == 1
    assert external([second]) == {}
