"""What training consumes: samples, rows and batches as plain NumPy. No torch; every room may import it.

Dimension letters: T tokens of one sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sample:
    """One root-to-leaf path of a timeline: what one row of a forward pass reads.

    Attributes:
        ids_T: int32, the whole path, prompt and replies.
        trained_T: bool, True where the token was sampled by the policy *and* is trained in this sample.
        logprobs_T: float32, log-prob it was sampled with (0 where not trained).
        temperature_T: float32, temperature it was sampled at (1 where not trained).
        versions_T: int32, policy version that sampled it (-1 where not trained).
    """

    ids_T: np.ndarray
    trained_T: np.ndarray
    logprobs_T: np.ndarray
    temperature_T: np.ndarray
    versions_T: np.ndarray

    def to_wire(self) -> dict[str, bytes]:
        return {
            "ids": self.ids_T.astype("<i4").tobytes(),
            "trained": np.packbits(self.trained_T).tobytes(),
            "logprobs": self.logprobs_T.astype("<f4").tobytes(),
            "temperature": self.temperature_T.astype("<f4").tobytes(),
            "versions": self.versions_T.astype("<i4").tobytes(),
        }

    @classmethod
    def from_wire(cls, wire: dict[str, bytes]) -> Sample:
        ids = np.frombuffer(wire["ids"], "<i4")
        trained = np.unpackbits(np.frombuffer(wire["trained"], np.uint8), count=len(ids)).astype(bool)
        return cls(
            ids,
            trained,
            np.frombuffer(wire["logprobs"], "<f4"),
            np.frombuffer(wire["temperature"], "<f4"),
            np.frombuffer(wire["versions"], "<i4"),
        )


@dataclass(frozen=True)
class Row:
    """The unit that the loss sees: everything one agent sampled in one episode, in order, with its reward."""

    episode: str
    agent: str
    tag: str
    task: str
    reward: float
    samples: list[Sample]

    @property
    def trained_tokens(self) -> int:
        return int(sum(s.trained_T.sum() for s in self.samples))

    def to_wire(self) -> dict[str, Any]:
        return {
            "episode": self.episode,
            "agent": self.agent,
            "tag": self.tag,
            "task": self.task,
            "reward": self.reward,
            "samples": [s.to_wire() for s in self.samples],
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Row:
        return cls(**{**wire, "samples": [Sample.from_wire(s) for s in wire["samples"]]})


@dataclass(frozen=True)
class TrainBatch:
    """One step's data. ``step`` is the policy version that training on it produces (first step: 1)."""

    step: int
    rows: list[Row]

    def to_wire(self) -> dict[str, Any]:
        return {"step": self.step, "rows": [r.to_wire() for r in self.rows]}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> TrainBatch:
        return cls(wire["step"], [Row.from_wire(r) for r in wire["rows"]])
