"""The reward of ``benchmarks/trl_grpo.py``, for both sides. Imports nothing."""


def reward(text: str) -> float:
    """Share of a reply's characters that are not ASCII; 0 for an empty one.

    Each token of a byte-level vocabulary is all ASCII or not at all, so a policy that settles on one kind of token has a
    reward of 0 or 1, and no run ends on a compromise.
    """
    return sum(ord(c) > 127 for c in text) / len(text) if text else 0.0
