"""The reward of ``benchmarks/trl_grpo.py``, for both sides. Imports nothing."""

VOWELS = frozenset("aeiou")


def reward(text: str) -> float:
    """Share of a reply's characters that are vowels; 0 for an empty one."""
    return sum(c in VOWELS for c in text) / len(text) if text else 0.0
