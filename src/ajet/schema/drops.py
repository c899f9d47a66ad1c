"""Why an episode is not trained: every drop is counted under exactly one of these, and each is said in words here.

Counted by :mod:`ajet.pool` and :mod:`ajet.server`, shown by clients, monitors and the troubleshooting page.
"""

from __future__ import annotations

from enum import Enum


class DropReason(str, Enum):
    """Reasons for which an episode never enters a batch. ``words``: the reason as a sentence."""

    words: str

    def __new__(cls, value: str, words: str) -> DropReason:
        member = str.__new__(cls, value)
        member._value_ = value
        member.words = words
        return member

    ABORTED = (
        "aborted",
        "given back by its client: an exception, a forgotten output, Ctrl-C, a debug client; normal for games that still play "
        "when training ends",
    )
    SILENT = "silent", "its client gave no sign of life for discard_episode_timeout seconds"
    TOO_OLD = "max_age", "open for longer than swarm.max_episode_age_s, however alive its client"
    NO_CALLS = "no_calls", "its agents never called the model: do they use the episode's base_url and api_key?"
    LATE_END = "late_end", "its result came after its lease had ended; counted beside the reason for that"
    POLICY_LAG = "policy_lag", "all its tokens are older than swarm.max_policy_lag updates"
    GROUP_BROKEN = "group_broken", "its group lost an episode to policy_lag and cannot be complete in time"
    GROUP_DEADLINE = "group_deadline", "its group stayed incomplete for swarm.group_deadline_s seconds"
    EQUAL_REWARDS = "equal_rewards", "all rewards of its group are equal: nothing to compare, so another was collected"
    NOTHING_TO_TRAIN = "nothing_to_train", "none of its tokens is within the limits of length and lag"
    TRAINING_FINISHED = (
        "training_finished", "came after the batch of the last step, complete or not; normal at the end of a run",
    )  # fmt: skip

    def __str__(self) -> str:
        return self.value


def drops_text(drops: dict[str, int]) -> list[str]:
    """A line for each reason, with its count and its words; reasons that this version does not know have none."""
    known = {reason.value: f": {reason.words}" for reason in DropReason}
    return [f"{reason} {count}{known.get(reason, '')}" for reason, count in sorted(drops.items())]
