"""Why an episode is not trained. Every drop is counted under exactly one of these."""

from __future__ import annotations

from enum import Enum


class DropReason(str, Enum):
    """Reasons for which an episode never enters a batch."""

    ABORTED = "aborted"
    """Its client aborted it: an infrastructure fault, a bug, or a debug run."""
    SILENT = "silent"
    """No sign of life within ``discard_episode_timeout``."""
    TOO_OLD = "max_age"
    """Open longer than ``swarm.max_episode_age_s``, however alive its client."""
    NO_CALLS = "no_calls"
    """It ended without a recorded call: nothing was sampled, so nothing can be trained."""
    LATE_END = "late_end"
    """Its result came after its lease had ended. Counted beside the reason for which the lease ended."""
    POLICY_LAG = "policy_lag"
    """All its tokens were sampled by policies older than ``swarm.max_policy_lag`` allows."""
    GROUP_BROKEN = "group_broken"
    """Its group lost a member to ``policy_lag`` and so can no longer be complete in time."""
    GROUP_DEADLINE = "group_deadline"
    """Its group stayed partial longer than ``swarm.group_deadline_s``."""
    EQUAL_REWARDS = "equal_rewards"
    """All rewards of its group are equal and the collection rule goes on collecting in its place."""
    NOTHING_TO_TRAIN = "nothing_to_train"
    """In a batch, but none of its tokens is inside the length and lag limits (see ``dropped_tokens``)."""
    TRAINING_FINISHED = "training_finished"
    """Complete or not, it came after the last step's batch."""

    def __str__(self) -> str:
        return self.value
