"""What a finished demo leaves: ``summary.json``, a table, and a picture of the curve."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from rich.console import Console
from rich.table import Table

from ajet.demo.evaluation import paired_difference
from ajet.demo.player import CURVE
from ajet.demo.replays import list_replays


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
    for which in ("initial", "final"):
        results = _load(folder / f"eval_{which}.json").get("results", {})
        evaluation[which] = {role: {"wins": int(sum(w)), "games": len(w)} for role, w in results.items()}
    return {
        "seed": seed,
        "steps": len(train),
        "trainable_targets": targets,
        "train": train,
        "curve": curve,
        "eval": evaluation,
        "paired": {role: vars(d) for role, d in paired(folder).items()},
        "wall_seconds": round(wall_seconds, 1),
        "sampled_tokens": int(sum(row.get("tokens/sampled", 0) for row in history)),
        "trained_tokens": int(sum(row.get("tokens/trained", 0) for row in history)),
        "dropped": drops,
        "replays": list_replays(folder),
    }


def paired(folder: Path) -> dict[str, Any]:
    """Role → paired difference of the final and the initial policy, where both were evaluated."""
    before = _load(folder / "eval_initial.json").get("results", {})
    after = _load(folder / "eval_final.json").get("results", {})
    return {role: paired_difference(before[role], after[role]) for role in before if role in after}


def print_report(summary: dict[str, Any], folder: Path, picture: Path | None, checkpoint: str | None) -> None:
    console = Console()
    rows = summary["train"]
    table = Table(title="Training win rate", title_justify="left")
    table.add_column("role")
    for label in ("first 3 steps", "last 5 steps", "change"):
        table.add_column(label, justify="right")
    for role in summary["trainable_targets"]:
        series = [row["win_rate"][role] for row in rows if role in row["win_rate"]]
        if series:
            first, last = series[:3], series[-5:]
            a, b = sum(first) / len(first), sum(last) / len(last)
            table.add_row(role, f"{a:.3f}", f"{b:.3f}", f"{b - a:+.3f}")
    console.print(table)
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
                f"{d['low']:+.3f} … {d['high']:+.3f}",
                str(a["games"]),
            )
        console.print(table)
    console.print(f"training took {summary['wall_seconds']:.0f} s for {summary['steps']} steps")
    if picture:
        console.print(f"curve       {picture}")
    console.print(f"summary     {folder / 'summary.json'}")
    for which, paths in summary["replays"].items():
        console.print(f"replays     {len(paths)} {which}: ajet-swarm replay {folder / paths[-1]}", soft_wrap=True)
    if checkpoint:
        console.print(f"checkpoint  {checkpoint}")


def draw_curve(summary: dict[str, Any], path: Path) -> Path | None:
    """Win rate by role over steps, with the held-out evaluations at both ends. None where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
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
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path
