"""What one step says of itself: the line in ``metrics.jsonl``, and what deserves a warning.

The journal is the truth; ``metrics.jsonl`` is a copy for people and tools. It is rewritten from the journal at every
start and after every write that the disk refused, so no line is ever missing or doubled for long.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ajet.pool.journal_read import BatchEpisode
from ajet.pool.records import BatchFormed, StepDone
from ajet.server.rewards import mean_reward

ZERO_STEPS = 3
"""So many steps in a row without any advantage for a tag are worth a warning."""


def batch_metrics(batch: BatchFormed, episodes: list[BatchEpisode]) -> dict[str, Any]:
    """Rewards, success and the environment's own numbers, averaged over a batch's episodes."""
    successes = [float(e.done.body["is_success"]) for e in episodes if e.done.body.get("is_success") is not None]
    rewards = [mean_reward(e.done.body["rewards"]) for e in episodes]
    found: dict[str, Any] = {
        "reward/mean": _mean(rewards),
        "pool/groups": len(episodes) // batch.num_repeat,
        "pool/episodes": len(episodes),
        "tokens/sampled": sum(e.done.body.get("sampled", 0) for e in episodes),
        "calls": sum(e.done.body.get("calls", 0) for e in episodes),
    }
    if successes:
        found["win_rate"] = _mean(successes)
    shares: dict[str, list[float]] = {}
    for episode, reward in zip(episodes, rewards, strict=True):
        shares.setdefault(episode.lease.share, []).append(reward)
    if set(shares) != {""}:
        for share, of_share in sorted(shares.items()):
            name = f"share/{share or 'others'}"
            found |= {f"{name}/groups": len(of_share) // batch.num_repeat, f"{name}/reward/mean": _mean(of_share)}
    numbers: dict[str, list[float]] = {}
    for episode in episodes:
        for key, value in (episode.done.body.get("log_metrics") or {}).items():
            if math.isfinite(value):
                numbers.setdefault(f"env/{key}", []).append(float(value))
    found.update({key: _mean(values) for key, values in sorted(numbers.items())})
    by_tag: dict[str, list[float]] = {}
    for episode in episodes:
        for tag, values in episode.done.body["rewards"].items():
            by_tag.setdefault(tag, []).extend(values)
    found.update({f"reward/{tag}/mean": _mean(values) for tag, values in sorted(by_tag.items())})
    found.update(_zero_shares(batch.num_repeat, episodes))
    branches = Counter(call.branch for episode in episodes for call in episode.calls)
    found.update({f"timelines/{branch}": n for branch, n in sorted(branches.items())})
    return found


def _zero_shares(num_repeat: int, episodes: list[BatchEpisode]) -> dict[str, float]:
    """Share of groups, by tag, whose rewards are all equal: they have nothing to compare."""
    groups = [episodes[i : i + num_repeat] for i in range(0, len(episodes), num_repeat)]
    zero: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    equal = 0
    for group in groups:
        values: dict[str, set[float]] = {}
        for episode in group:
            for tag, rewards in episode.done.body["rewards"].items():
                values.setdefault(tag, set()).update(rewards)
        for tag, different in values.items():
            seen[tag] += 1
            zero[tag] += len(different) == 1
        equal += all(len(different) == 1 for different in values.values())
    shares = {f"advantage/{tag}/zero_group_share": zero[tag] / seen[tag] for tag in sorted(seen)}
    return {**shares, "pool/equal_reward_groups": equal}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def lag_histogram(batch: BatchFormed, episodes: list[BatchEpisode]) -> dict[str, int]:
    """Policy lag → sampled tokens. The policy being updated is version ``step - 1``."""
    lags: Counter[int] = Counter()
    for episode in episodes:
        for call in episode.calls:
            for version, n in Counter(call.versions).items():
                lags[batch.step - 1 - version] += n
    return {str(lag): n for lag, n in sorted(lags.items())}


@dataclass
class ZeroAdvantageWatch:
    """Tells when a tag has had nothing to learn from for several steps."""

    streak: Counter[str] = field(default_factory=Counter)

    def see(self, metrics: dict[str, Any]) -> list[str]:
        """Warnings that hold after this step."""
        for key, share in metrics.items():
            if key.startswith("advantage/") and key.endswith("/zero_group_share"):
                tag = key[len("advantage/") : -len("/zero_group_share")]
                if not tag:  # that of all tags together
                    continue
                self.streak[tag] = self.streak[tag] + 1 if share >= 1.0 else 0
        return [_nothing_to_learn(tag, n, metrics) for tag, n in sorted(self.streak.items()) if n >= ZERO_STEPS]


def _nothing_to_learn(tag: str, steps: int, metrics: dict[str, Any]) -> str:
    mean, spread = metrics.get(f"reward/{tag}/mean"), metrics.get(f"reward/{tag}/std")
    if mean is None or spread is None:
        ends = ""
    elif spread == 0:
        ends = f" Every one of its games ended with the same reward, {mean:g}: all won, or all lost."
    else:
        ends = f" Its games end alike within each group and differ between groups only (mean reward {mean:.2f})."
    return (
        f"Every group of tag {tag!r} had equal rewards for {steps} steps in a row: this looks like training but teaches "
        f"{tag!r} nothing.{ends} Check that its reward can vary, make the task easier or harder (stronger or weaker "
        "opponents), raise rollout.num_repeat, or set trainer_common.algorithm.running_baseline."
    )


def line(step: StepDone) -> dict[str, Any]:
    """A step as ``metrics.jsonl`` and ``GET /metrics/history`` show it."""
    return {"step": step.step, "time": step.created, "digest": step.digest, **step.metrics}


class MetricsFile:
    """``metrics.jsonl`` of one experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dirty = True

    def append(self, step: StepDone) -> None:
        """Add a line. Raises OSError, and is then dirty until :meth:`rewrite`."""
        self.dirty = True
        with self.path.open("ab") as file:
            file.write(orjson.dumps(line(step)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.dirty = False

    def rewrite(self, steps: list[StepDone]) -> None:
        """Make the file say what the journal says."""
        temporary = self.path.with_suffix(".jsonl.tmp")
        with temporary.open("wb") as file:
            for step in steps:
                file.write(orjson.dumps(line(step)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        self.dirty = False
