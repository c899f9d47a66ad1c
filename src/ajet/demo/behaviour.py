"""Which behaviour training changed: the same held-out deals before and after, with 95% intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from ajet.evaluation.intervals import difference, estimate

SHOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "werewolf": (
        ("teammate_kill", "attacks on a teammate"),
        ("seer_kill", "attacks on the seer"),
        ("claimer_kill", "attacks on a seer claimant"),
        ("kill_agreement", "agreement on the attack"),
        ("teammate_vote", "votes against a teammate"),
        ("seer_claim", "speeches claiming to be seer"),
        ("gave_teammate_away", "speeches betraying a teammate"),
        ("fallback", "unusable replies"),
    ),
    "seer": (
        ("claim", "games with a seer reveal"),
        ("report", "speeches with a true check"),
        ("false_report", "speeches with a false check"),
        ("known_wolf_vote", "votes for a wolf she knows"),
        ("hit", "checks that find a wolf"),
        ("survival", "alive at the end"),
        ("fallback", "unusable replies"),
    ),
    "witch": (("poison_precision", "poisoned were wolves"), ("save_good", "saved were good")),
    "hunter": (("shot_precision", "shot were wolves"), ("vote_accuracy", "votes for a wolf")),
    "villager": (("vote_accuracy", "votes for a wolf"), ("wolf_exile_vote", "voted for the exiled wolf")),
}
"""Role → metric and how it reads, most telling first."""

Played = Sequence[Mapping[str, Sequence[float]]]
"""One game's tallies each, as ``eval_<which>.json`` has them."""


def behaviour(before: Mapping[str, Played], after: Mapping[str, Played]) -> dict[str, dict[str, dict[str, Any]]]:
    """Role → metric → initial, final and their paired difference, each ``{value, low, high, n, games}``.

    What occurred in one of the two evaluations only has no difference and is left out.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for role in before.keys() & after.keys():
        names = sorted({name for game in [*before[role], *after[role]] for name in game})
        for name in names:
            a, b = ([tuple(game.get(name, (0.0, 0.0))) for game in played] for played in (before[role], after[role]))
            initial, final, change = estimate(a), estimate(b), difference(a, b)  # type: ignore[arg-type]
            if initial is not None and final is not None and change is not None:
                both = {"initial": asdict(initial), "final": asdict(final), "difference": asdict(change)}
                found.setdefault(role, {})[name.removeprefix(f"{role}/")] = both
    return found


def rows(summary: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(role, words, estimates) of what is shown, in order."""
    return [
        (role, words, summary["behaviour"][role][metric])
        for role in summary["trainable_targets"]
        for metric, words in SHOWN.get(role, ())
        if metric in summary["behaviour"].get(role, {})
    ]


def table(summary: Mapping[str, Any]) -> Table:
    """What changed; a star marks an interval that leaves zero out."""
    shown = Table(title="What training changed (held-out deals; * the interval leaves zero out)", title_justify="left")
    shown.add_column("behaviour", no_wrap=True)
    for label in ("before", "after", "change, 95% interval", ""):
        shown.add_column(label, justify="right", no_wrap=True)
    heading = None
    for role, words, found in rows(summary):
        if role != heading:  # a line of its own: a column more would not fit into 80
            heading = role
            shown.add_row(f"[bold]{role}[/]")
        a, b, d = found["initial"], found["final"], found["difference"]
        known = d["low"] is not None
        shown.add_row(
            f"  {words}", f"{a['value']:.3f}", f"{b['value']:.3f}",
            f"{d['value']:+.2f}" + (f" ({d['low']:+.2f} … {d['high']:+.2f})" if known else ""),
            "*" if known and d["low"] * d["high"] > 0 else "",
        )  # fmt: skip
    return shown


def draw(axes: Any, summary: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    """Initial (hollow) and final (filled) shares with their intervals, one line a behaviour."""
    found = rows(summary)
    for y, (role, _, estimates) in enumerate(reversed(found)):
        colour = colours[role]
        for which, dy, face in (("initial", 0.14, "white"), ("final", -0.14, colour)):
            e = estimates[which]
            error = None if e["low"] is None else [[e["value"] - e["low"]], [e["high"] - e["value"]]]
            axes.errorbar(
                [e["value"]], [y + dy], xerr=error, fmt="o", color=colour, markerfacecolor=face, capsize=3, markersize=5,
                label=f"{role}, {which}" if y == len(found) - 1 or role != list(reversed(found))[y + 1][0] else None,
            )  # fmt: skip
    axes.set_yticks(range(len(found)), [words for _, words, _ in reversed(found)], fontsize=8)
    axes.set_xlim(-0.02, 1.02)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, loc="lower right")
    axes.set_title("Behaviour before and after, 95% intervals", fontsize=10)
