"""What a finished demo leaves: ``summary.json``, a table, and a picture of the curve."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from rich.console import Console
from rich.table import Table

from ajet.demo.behaviour import behaviour
from ajet.demo.behaviour import draw as draw_behaviour
from ajet.demo.behaviour import table as behaviour_table
from ajet.demo.player import CURVE
from ajet.demo.replays import list_replays
from ajet.demo.runs import seconds_before
from ajet.evaluation.intervals import difference

ENDS = (3, 5)
"""Steps at the beginning and at the end of training that are compared, in runs that have so many."""


def _load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def build_summary(
    folder: Path,
    history: list[dict[str, Any]],
    *,
    seed: int,
    targets: list[str],
    wall_seconds: float,
    drops: dict[str, int],
) -> dict[str, Any]:
    """The summary of one run.

    Args:
        folder: the experiment's folder, with ``eval_initial.json`` and ``eval_final.json`` where they were played.
        history: one dict of metrics per step, as the server reports them.
        wall_seconds: training only, evaluation apart.
        drops: reason → how many, as the server counts them.
    """
    train = [
        {
            "step": int(row["step"]),
            "win_rate": {
                key.removeprefix("env/win/"): value for key, value in row.items() if key.startswith("env/win/")
            },
            "games": int(row.get("pool/episodes", 0)),
        }
        for row in history
    ]
    path = folder / CURVE
    curve = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    evaluation: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    for which in ("initial", "final"):
        loaded = _load(folder / f"eval_{which}.json")
        results, measured[which] = loaded.get("results", {}), loaded.get("measures", {})
        evaluation[which] = {role: {"wins": int(sum(w)), "games": len(w)} for role, w in results.items()}
    return {
        "seed": seed,
        "steps": len(train),
        "trainable_targets": targets,
        "train": train,
        "curve": curve,
        "eval": evaluation,
        "paired": paired(folder),
        "behaviour": behaviour(measured["initial"], measured["final"]),
        "learning_signal": [_signal(row) for row in history],
        "wall_seconds": round(wall_seconds, 1),
        "sampled_tokens": int(sum(row.get("tokens/sampled", 0) for row in history)),
        "trained_tokens": int(sum(row.get("tokens/trained", 0) for row in history)),
        "dropped": drops,
        "replays": list_replays(folder),
    }


def _signal(row: dict[str, Any]) -> dict[str, Any]:
    """What each role had to learn from in one step: mean reward and advantage, and groups without any."""
    of_role: dict[str, dict[str, float]] = {}
    for key, value in row.items():
        kind, _, rest = key.partition("/")
        role, _, name = rest.partition("/")
        if kind in ("reward", "advantage") and name in ("mean", "abs_mean", "zero_group_share"):
            of_role.setdefault(role, {})[f"{kind}_{name}" if name != "zero_group_share" else name] = value
    return {"step": int(row["step"]), "roles": of_role}


def paired(folder: Path) -> dict[str, Any]:
    """Role → paired difference of the final and the initial policy's wins, where both were evaluated."""
    before = _load(folder / "eval_initial.json").get("results", {})
    after = _load(folder / "eval_final.json").get("results", {})
    found = {
        role: difference([(won, 1.0) for won in before[role]], [(won, 1.0) for won in after[role]])
        for role in before
        if role in after
    }
    return {role: {"mean": d.value, "low": d.low, "high": d.high} for role, d in found.items() if d is not None}


def print_report(summary: dict[str, Any], folder: Path, picture: Path | None, checkpoint: str | None) -> None:
    console = Console()
    rows = summary["train"]
    if len(rows) >= sum(ENDS):
        console.print(_training_table(summary))
    if summary["paired"]:
        table = Table(title="Held-out deals, everyone else scripted", title_justify="left")
        table.add_column("role")
        for label in ("initial", "final", "difference", "95% interval", "deals"):
            table.add_column(label, justify="right")
        for role, d in summary["paired"].items():
            a, b = summary["eval"]["initial"][role], summary["eval"]["final"][role]
            table.add_row(
                role,
                f"{a['wins'] / a['games']:.3f}",
                f"{b['wins'] / b['games']:.3f}",
                f"{d['mean']:+.3f}",
                f"{d['low']:+.3f} … {d['high']:+.3f}" if d["low"] is not None else "-",
                str(a["games"]),
            )
        console.print(table)
        unclear = [role for role, d in summary["paired"].items() if d["low"] is None or d["low"] <= 0 <= d["high"]]
        if unclear:
            console.print(f"An interval that holds 0 may be chance: {', '.join(unclear)}.", highlight=False)
    if summary["behaviour"]:
        console.print(behaviour_table(summary))
    before = seconds_before(folder)
    parts = f", {before:.0f} s of them before it was continued" if before else ""
    console.print(f"training took {summary['wall_seconds']:.0f} s for {summary['steps']} steps{parts}")
    if picture:
        console.print(f"curve       {picture}", soft_wrap=True)
    console.print(f"summary     {folder / 'summary.json'}", soft_wrap=True)
    for which, paths in summary["replays"].items():
        console.print(f"replays     {len(paths)} {which}: ajet-swarm replay {folder / paths[-1]}", soft_wrap=True)
    if checkpoint:
        console.print(f"checkpoint  {checkpoint}", soft_wrap=True)


def _training_table(summary: dict[str, Any]) -> Table:
    """The two ends of the training curve, which do not overlap."""
    table = Table(title="Training win rate", title_justify="left")
    table.add_column("role")
    for label in (f"first {ENDS[0]} steps", f"last {ENDS[1]} steps", "change"):
        table.add_column(label, justify="right")
    for role in summary["trainable_targets"]:
        series = [row["win_rate"][role] for row in summary["train"] if role in row["win_rate"]]
        if series:
            a, b = mean(series[: ENDS[0]]), mean(series[-ENDS[1] :])
            table.add_row(role, f"{a:.3f}", f"{b:.3f}", f"{b - a:+.3f}")
    return table


def draw_curve(summary: dict[str, Any], path: Path) -> Path | None:
    """Win rate by role over steps, with the held-out evaluations at both ends, and the behaviour before and after beside
    it. None where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    both = bool(summary["behaviour"])
    figure, panels = plt.subplots(1, 1 + both, figsize=(15 if both else 8, 4.8), dpi=120, squeeze=False)
    axes = panels[0][0]
    colours = dict(
        zip(summary["trainable_targets"], ["#b3372f", "#2f6db3", "#3c8c4a", "#8a5fb0", "#b08a2f"], strict=False)
    )
    for role, colour in colours.items():
        label = f"{role} side, training (mean of 5 steps)"
        points = [(row["step"], row["win_rate"][role]) for row in summary["train"] if role in row["win_rate"]]
        if summary["curve"]:
            label = f"{role} side against scripted players"
            points = [(row["step"], row["wins"][role] / row["games"]) for row in summary["curve"]]
        if not points:
            continue
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=colour, alpha=0.35, linewidth=1)
        window = 1 if summary["curve"] else 5
        smooth = [mean(ys[max(0, i + 1 - window) : i + 1]) for i in range(len(ys))]
        axes.plot(xs, smooth, color=colour, linewidth=2, label=label)
        for which, x in (("initial", 0), ("final", summary["steps"])):
            result = summary["eval"].get(which, {}).get(role)
            if result:
                p, n = result["wins"] / result["games"], result["games"]
                axes.errorbar(
                    [x], [p], yerr=[1.96 * (p * (1 - p) / n) ** 0.5], fmt="o", color=colour, capsize=4,
                    label=f"{role} side, {n} held-out deals" if which == "initial" else None,
                )  # fmt: skip
    axes.set_xlabel("training step")
    axes.set_ylabel("win rate")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left", fontsize=8)
    axes.set_title("Nine-player Werewolves")
    if both:
        draw_behaviour(panels[0][1], summary, colours)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path
