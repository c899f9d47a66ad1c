"""What an evaluation came to: one JSON-able tree, and tables made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ajet.evaluation.elo import Rating
from ajet.evaluation.intervals import Estimate, difference, estimate
from ajet.evaluation.werewolves import Series

PLAIN = frozenset({"speech_chars", "first_claim_day", "calls", "days"})
"""Metrics that are no shares."""
FIRST = ("win", "draw")


WIDTH = 100
"""Columns that the tables take at least: a number cut off says nothing, a line that wraps can still be read."""


def compare(role: str, series: Mapping[str, Series]) -> dict[str, Any]:
    """Every metric of one role: estimates by policy, and with two policies the paired difference (first - second)."""
    names = sorted({name for s in series.values() for name in s.names()}, key=_order)
    tree: dict[str, Any] = {}
    for name in names:
        if name.startswith((f"{role}/", "game/")):
            shown = name.removeprefix(f"{role}/")
            tree[shown] = {key: _plain(estimate(s.units(name))) for key, s in series.items()}
            if len(series) == 2:
                first, second = series.values()
                both = [
                    g
                    for g, (a, b) in enumerate(zip(first.measures, second.measures, strict=True))
                    if a is not None and b is not None
                ]
                tree[shown]["difference"] = _plain(difference(second.units(name, both), first.units(name, both)))
    return tree


def _order(name: str) -> tuple[bool, int, str]:
    short = name.split("/")[-1]
    return name.startswith("game/"), FIRST.index(short) if short in FIRST else len(FIRST), name


def _plain(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def external(series: Sequence[Series]) -> dict[str, float]:
    """How somebody's endpoint behaved over all games; empty where there was none."""
    games = [numbers for s in series for numbers in s.numbers if "static/calls" in numbers]
    calls = sum(g["static/calls"] for g in games)
    if not games:
        return {}
    weighed = {k: sum(g[f"static/{k}"] * g["static/calls"] for g in games) for k in ("latency_s", "truncated")}
    return {
        "calls": calls,
        "latency_s": weighed["latency_s"] / max(1.0, calls),
        "latency_max_s": max(g["static/latency_max_s"] for g in games),
        "rate_limited": sum(g["static/rate_limited"] for g in games),
        "retries": sum(g["static/retries"] for g in games),
        "truncated": weighed["truncated"] / max(1.0, calls),
        "fallback": sum(g["static/fallback"] for g in games) / len(games),
    }


def print_report(console: Console, tree: Mapping[str, Any]) -> None:
    """Tables of an evaluation."""
    console.width = max(console.width, WIDTH)
    policies = tree["policies"]
    for key, policy in policies.items():
        console.print(
            f"{key:9} {policy['path']}" + (f"  (step {policy['step']})" if policy["step"] is not None else "")
        )
    console.print(
        f"opponents {tree['opponents']}; {tree['games']} games a role, {tree['void']} void, 95% intervals"
        + ("; differences are policy - against, paired by game" if len(policies) == 2 else "")
    )
    for role, metrics in tree["roles"].items():
        table = Table(title=f"{role} on the policy", title_justify="left", title_style="bold")
        table.add_column("", no_wrap=True)
        for key in policies:
            table.add_column(key, justify="right", no_wrap=True)
        if len(policies) == 2:
            table.add_column("policy - against", justify="right", no_wrap=True)
        for name, found in metrics.items():
            digits = 1 if name.split("/")[-1] in PLAIN else 3
            cells = [_cell(found[key], digits) for key in policies]
            if len(policies) == 2:
                cells.append(_cell(found["difference"], digits, signed=True))
            table.add_row(name, *cells)
        console.print(table)
    if tree["external"]:
        numbers = "  ".join(f"{k} {v:.3g}" for k, v in tree["external"].items())
        console.print(f"the opponents' endpoint: {numbers}")


def _cell(found: Mapping[str, Any] | None, digits: int, signed: bool = False) -> str:
    if found is None:
        return "-"
    sign = "+" if signed else ""
    value = f"{found['value']:{sign}.{digits}f}"
    if found["low"] is None:
        return value
    digits = min(digits, 2)
    return f"{value} [{found['low']:{sign}.{digits}f}, {found['high']:{sign}.{digits}f}]"


def print_elo(console: Console, tree: Mapping[str, Any]) -> None:
    """The ratings' table."""
    table = Table(title="Elo relative to the first checkpoint, 95% intervals", title_justify="left", title_style="bold")
    for label in ("checkpoint", "Elo", "interval", "as wolves", f"as {tree['good']}"):
        table.add_column(label, justify="left" if label == "checkpoint" else "right")
    for row in tree["ratings"]:
        interval = f"{row['low']:+.0f} … {row['high']:+.0f}"
        table.add_row(row["checkpoint"], f"{row['elo']:+.0f}", interval, f"{row['wolves']:+.0f}", f"{row['good']:+.0f}")
    console.print(table)
    console.print(f"{tree['pairings']} pairings of {tree['games']} games, everyone else scripted; {tree['void']} void")


def elo_rows(labels: Sequence[str], ratings: Sequence[Rating]) -> list[dict[str, Any]]:
    return [{"checkpoint": label, **asdict(rating)} for label, rating in zip(labels, ratings, strict=True)]
