"""Claims about the demo's numbers: paired differences and the summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.demo import werewolves
from ajet.demo.evaluation import paired_difference
from ajet.demo.report import build_summary, draw_curve
from ajet.schema.errors import ConfigError


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=60))
def test_a_paired_difference_is_the_difference_of_means_and_lies_in_its_interval(pairs):
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    d = paired_difference(before, after)
    assert d.mean == pytest.approx(sum(after) / len(after) - sum(before) / len(before))
    assert d.low <= d.mean <= d.high


def test_an_interval_worked_by_hand():
    # Differences 1, 0, 0, 1: mean 0.5, sample deviation sqrt(1/3), standard error that over 2.
    d = paired_difference([0, 0, 1, 0], [1, 0, 1, 1])
    assert d.mean == 0.5
    assert d.high - d.mean == pytest.approx(1.96 * (1 / 3) ** 0.5 / 2)


def test_unequal_lists_are_refused():
    with pytest.raises(ValueError, match="paired"):
        paired_difference([1.0], [])


def history(n: int) -> list[dict]:
    return [
        {"step": i, "env/win/werewolf": 0.1 * i, "pool/episodes": 12, "tokens/sampled": 100, "tokens/trained": 90}
        for i in range(1, n + 1)
    ]


def test_the_summary_has_what_the_readme_promises(tmp_path: Path):
    for which, results in (("initial", [0.0, 0.0, 1.0]), ("final", [1.0, 0.0, 1.0])):
        (tmp_path / f"eval_{which}.json").write_text(json.dumps({"seconds": 1.0, "results": {"werewolf": results}}))
    summary = build_summary(
        tmp_path, history(3), seed=4, targets=["werewolf"], wall_seconds=12.34, drops={"aborted": 2}
    )
    assert summary["train"][2] == {"step": 3, "win_rate": {"werewolf": pytest.approx(0.3)}, "games": 12}
    assert summary["eval"]["initial"] == {"werewolf": {"wins": 1, "games": 3}}
    assert summary["eval"]["final"] == {"werewolf": {"wins": 2, "games": 3}}
    assert (summary["seed"], summary["steps"], summary["wall_seconds"]) == (4, 3, 12.3)
    assert (summary["sampled_tokens"], summary["trained_tokens"], summary["dropped"]) == (300, 270, {"aborted": 2})
    picture = draw_curve(summary, tmp_path / "curve.png")
    assert picture is not None
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_curve_of_evaluations_takes_the_place_of_the_training_win_rate(tmp_path: Path):
    (tmp_path / "curve.jsonl").write_text(json.dumps({"step": 2, "wins": {"werewolf": 40.0}, "games": 100}) + "\n")
    summary = build_summary(tmp_path, history(3), seed=0, targets=["werewolf"], wall_seconds=1.0, drops={})
    assert summary["curve"] == [{"step": 2, "wins": {"werewolf": 40.0}, "games": 100}]
    assert draw_curve(summary, tmp_path / "curve.png") is not None


def test_a_finished_run_is_never_overwritten_and_an_unfinished_one_is_continued(tmp_path: Path):
    assert werewolves._experiment_name(tmp_path, "run", fresh=False) == "run"
    (tmp_path / "run").mkdir()
    assert werewolves._experiment_name(tmp_path, "run", fresh=False) == "run"
    assert werewolves._experiment_name(tmp_path, "run", fresh=True) == "run-2"
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert werewolves._experiment_name(tmp_path, "run", fresh=False) == "run-2"


@pytest.mark.parametrize("roles", ["wolf", "", "werewolf,king"])
def test_unknown_roles_are_refused_with_the_known_ones(roles, tmp_path: Path):
    with pytest.raises(ConfigError, match="werewolf, seer, witch, hunter, villager"):
        werewolves.run(trainable=roles, exp_dir=tmp_path)


@pytest.mark.parametrize(
    ("board", "trainable", "says"),
    [
        ("moon", "werewolf", "no board 'moon'"),
        ("werewolf=1,seer=1,villager=1", "werewolf", "6 to 12"),
        (None, "guard", "not guard"),
        ("guard-8", "guard,hunter", "werewolf, seer, witch, guard, villager; not hunter"),
    ],
)
def test_boards_that_cannot_be_played_are_refused_before_anything_is_written(board, trainable, says, tmp_path: Path):
    with pytest.raises(ConfigError, match=says):
        werewolves.run(board=board, trainable=trainable, exp_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
