"""Claims about the demo's numbers: what changed, and the summary."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ajet.demo import behaviour, report, werewolves
from ajet.demo.report import build_summary, draw_curve, print_report
from ajet.schema.errors import ConfigError


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


def evaluated(folder: Path, which: str, kills: list[tuple[float, float]], wins: list[float]) -> None:
    games = [
        {"werewolf/teammate_kill": kill, "werewolf/win": (won, 1.0)} for kill, won in zip(kills, wins, strict=True)
    ]
    tree = {"seconds": 1.0, "results": {"werewolf": wins}, "measures": {"werewolf": games}}
    (folder / f"eval_{which}.json").write_text(json.dumps(tree))


def test_the_summary_says_which_behaviour_changed_with_intervals(tmp_path: Path):
    evaluated(tmp_path, "initial", [(3, 6), (2, 4), (1, 2), (2, 4)], [0.0, 0.0, 1.0, 0.0])
    evaluated(tmp_path, "final", [(0, 6), (1, 5), (0, 3), (0, 2)], [1.0, 0.0, 1.0, 1.0])
    steps = history(3)
    steps[0] |= {
        "reward/werewolf/mean": 0.3,
        "advantage/werewolf/mean": 0.0,
        "advantage/werewolf/zero_group_share": 0.5,
    }
    summary = build_summary(tmp_path, steps, seed=0, targets=["werewolf"], wall_seconds=1.0, drops={})
    found = summary["behaviour"]["werewolf"]["teammate_kill"]
    assert found["initial"]["value"] == pytest.approx(8 / 16)
    assert found["final"]["value"] == pytest.approx(1 / 16)
    assert found["difference"]["value"] == pytest.approx(-7 / 16)
    assert found["difference"]["low"] < found["difference"]["value"] < found["difference"]["high"] < 0
    assert summary["paired"]["werewolf"]["mean"] == 0.5
    assert summary["learning_signal"][0] == {
        "step": 1, "roles": {"werewolf": {"reward_mean": 0.3, "advantage_mean": 0.0, "zero_group_share": 0.5}},
    }  # fmt: skip
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(behaviour.table(summary))
    (line,) = [line for line in console.export_text().splitlines() if "attacks on a teammate" in line]
    assert "0.500" in line
    assert "0.062" in line
    assert line.rstrip(" │").endswith("*")
    assert draw_curve(summary, tmp_path / "curve.png") is not None


def test_a_curve_of_evaluations_takes_the_place_of_the_training_win_rate(tmp_path: Path):
    (tmp_path / "curve.jsonl").write_text(json.dumps({"step": 2, "wins": {"werewolf": 40.0}, "games": 100}) + "\n")
    summary = build_summary(tmp_path, history(3), seed=0, targets=["werewolf"], wall_seconds=1.0, drops={})
    assert summary["curve"] == [{"step": 2, "wins": {"werewolf": 40.0}, "games": 100}]
    assert draw_curve(summary, tmp_path / "curve.png") is not None


@pytest.mark.parametrize(("steps", "compared"), [(5, False), (7, False), (8, True)])
def test_few_steps_are_not_shown_as_a_trend_and_what_may_be_chance_is_called_so(steps, compared, tmp_path, monkeypatch):
    console = Console(width=100, record=True, file=io.StringIO())
    monkeypatch.setattr(report, "Console", lambda: console)
    for which, wolves, seer in (
        ("initial", [0.0] * 30 + [1.0] * 10, [0.0, 1.0] * 20),
        ("final", [1.0] * 40, [1.0, 0.0] * 20),
    ):
        results = {"seconds": 1.0, "results": {"werewolf": wolves, "seer": seer}}
        (tmp_path / f"eval_{which}.json").write_text(json.dumps(results))
    summary = build_summary(
        tmp_path, history(steps), seed=0, targets=["werewolf", "seer"], wall_seconds=1.0, drops={}
    )  # fmt: skip
    print_report(summary, tmp_path, None, None)
    said = console.export_text()
    assert ("Training win rate" in said) == compared
    assert "An interval that holds 0 may be chance: seer.\n" in said


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
