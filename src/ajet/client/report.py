"""The server's status, cut down to what somebody who collects episodes wants to see."""

from __future__ import annotations

from typing import Any

from ajet.schema.drops import drops_text

BAR_WIDTH = 24


def rollout_stat(status: dict[str, Any]) -> dict[str, Any]:
    """The parts of a status that concern collection."""
    keys = (
        "state",
        "step",
        "total_steps",
        "policy_version",
        "pool",
        "leases",
        "drops",
        "held",
        "shares",
        "eval",
        "warnings",
    )
    return {key: status.get(key) for key in keys}


def rollout_text(stat: dict[str, Any]) -> str:
    """A few lines for a terminal."""
    lines = [f"{stat['state']}  step {stat['step']}/{stat['total_steps']}  policy version {stat['policy_version']}"]
    pool, leases = stat.get("pool") or {}, stat.get("leases") or {}
    if pool:
        lines.append(
            _bar("groups", pool["groups_complete"], pool["groups_needed"]) + f"  (+{pool['groups_partial']} partial)"
        )
        lines.append(_bar("episodes", pool["episodes_finished"], pool["episodes_needed"]))
    if leases:
        open_now = f"open {leases['open_train']} train, {leases['open_eval']} eval of {leases['capacity']}"
        lines.append(
            f"{open_now}; waiting {leases['waiting_train'] + leases['waiting_eval']}; clients {leases['clients']}"
        )
    drops = stat.get("drops") or {}
    if drops:
        lines += ["episodes not trained:", *(f"  {line}" for line in drops_text(drops))]
    shares = stat.get("shares") or []
    if shares:
        lines.append(
            "shares: " + ", ".join(f"{s['share'] or 'others'} {s['ready']}/{s['seats']} groups" for s in shares)
        )
    evals = stat.get("eval") or {}
    if evals.get("episodes"):
        lines.append(f"eval: {evals['episodes']} episodes, mean reward {evals['reward']:.3f}")
    lines += [f"warning: {text}" for text in stat.get("warnings") or []]
    return "\n".join(lines)


def _bar(name: str, current: int, target: int) -> str:
    share = min(1.0, current / target) if target else 0.0
    filled = round(share * BAR_WIDTH)
    return f"{name:<9}[{'█' * filled}{'·' * (BAR_WIDTH - filled)}] {current}/{target}"
