"""A digest of sharded weights that also tells how far apart two states are. Needs neither torch nor verl.

``sha256:~numbers``: the SHA-256 of all ranks' shards in order (equal bits on an equal layout), and for a few buckets of
tensors the sum and the sum of squares. Reductions over many devices do not give the same bits twice, so a step that is
re-applied is compared by the numbers, within :data:`TOLERANCE`; the hash says whether it was exact.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence

BUCKETS = 4
TOLERANCE = 1e-3
"""Relative to a bucket's norm: what is still the same run (float32 reductions in another order differ by about 1e-6)."""


def bucket_of(name: str) -> int:
    return zlib.crc32(name.encode()) % BUCKETS


def combined(parts: Sequence[tuple[str, Sequence[float]]]) -> str:
    """The digest of all ranks' ``(sha256, sums)``, in order of rank."""
    sha = hashlib.sha256("".join(part[0] for part in parts).encode()).hexdigest()
    sums = [math.fsum(part[1][i] for part in parts) for i in range(2 * BUCKETS)]
    return sha + "~" + ",".join(f"{value:.9e}" for value in sums)


def same_weights(a: str, b: str, tolerance: float = TOLERANCE) -> bool:
    """Whether two digests are of the same weights; exactly, where one of them has no numbers."""
    if a == b or "~" not in a or "~" not in b:
        return a == b
    left, right = ([float(v) for v in digest.split("~")[1].split(",")] for digest in (a, b))
    if len(left) != len(right):
        return False
    for i in range(0, len(left), 2):
        scale = math.sqrt(max(left[i + 1], right[i + 1], 1e-30))
        if abs(left[i] - right[i]) > tolerance * scale:
            return False
        if abs(math.sqrt(max(left[i + 1], 0)) - math.sqrt(max(right[i + 1], 0))) > tolerance * scale:
            return False
    return True
