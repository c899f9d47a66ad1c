"""The training step: rows in, one or more optimizer steps, metrics out. Deterministic given state and batch.

Invariant 4 is kept here: forward passes run over samples packed by length; their log-probs are scattered back to one
row per (episode, agent); the loss sees rows only. A mini-batch too large for memory is worked through in portions. For
losses that add up over rows a portion is a set of whole rows; for the others, and for a row that alone exceeds
``max_tokens_per_microbatch``, log-probs are computed first without gradient, the loss is differentiated by them, and
a second pass carries that gradient to the weights. Either way loss and gradient do not depend on the portions.

A small model's passes do not keep several cores busy. With ``lanes`` of 2 or more, portions are worked through side by
side, one thread each, and their gradients are added in a fixed order: which thread is ahead changes nothing.

Rows whose advantage is zero are left out of the forward passes only when no KL and no entropy term would train them;
they count in every normalisation all the same.

Letters: R rows, T a row's tokens, N flat trained tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.baseline import RunningBaseline
from ajet.backbone.embedded.head import LogProbs
from ajet.backbone.embedded.net import Net, digest
from ajet.backbone.embedded.optimizer import Optimizer
from ajet.backbone.embedded.packing import Pass, Piece, TokenTable, lay_out, passes
from ajet.backbone.embedded.step import Step, mix
from ajet.backbone.mini_batches import check_follows, seed_draws
from ajet.backbone.protocol import StepResult
from ajet.default_config.schema import TrainerConfig
from ajet.schema.errors import InvalidRequest
from ajet.trajectory.batch import Row, TrainBatch

_CPU_PASS_TOKENS = 2048
"""On a CPU a pass larger than the caches is slower, not faster."""
_PASS_LOGITS = 2**27
"""Logits of one pass at most: with a large vocabulary they take the memory, not the tokens."""


class Trainer:
    """Trains ``net`` in place.

    Args:
        reference: answers the frozen initial model; asked for only where a KL term needs it.
        progressed: called with each forward pass.
        lanes: portions worked through side by side, where the loss adds up over rows.
    """

    def __init__(
        self, net: Net, config: TrainerConfig, reference: Any, device: torch.device,
        progressed: Callable[[], None] = lambda: None, lanes: int = 1,
    ) -> None:  # fmt: skip
        self.lanes = lanes
        self._threads = ThreadPoolExecutor(lanes - 1, "ajet-train") if lanes > 1 else None
        self.net, self.config, self.device = net, config, device
        self.step = 0
        self.baseline = RunningBaseline()
        self.optimizer = Optimizer(net.parameters(), config)
        self._reference = reference
        self._progressed = progressed
        self._loss: Any = None
        self._pass_tokens = config.max_tokens_per_microbatch
        self._best_tokens: int | None = None
        if device.type == "cpu":
            self._best_tokens = min(self._pass_tokens, _CPU_PASS_TOKENS)
            if not net.shares_beginnings:
                self._pass_tokens = self._best_tokens

    def train_step(self, batch: TrainBatch) -> StepResult:
        """One batch. Raises :class:`EngineStateConflict` for a step that does not follow, changing nothing."""
        check_follows(batch, self.step)
        rows = sorted(batch.rows, key=lambda r: (r.episode, r.agent))
        table, pieces = lay_out(rows)
        if not pieces:
            raise InvalidRequest(f"The batch of step {batch.step} has no trained tokens in its {len(rows)} rows.")
        check_rows(rows, table, self.net.vocab)
        loss = self._row_loss()
        seed_draws(mix(self.config.seed, batch.step), self.device)
        started = time.perf_counter()
        advantages = compute_advantages(rows, self.config.algorithm, self.baseline)
        work = Step(self, loss, table, pieces, advantages.per_row, advantages.unit_of_row)
        work.compute_reference()
        work.correct()
        reference_s = time.perf_counter() - started
        work.train(batch.step)
        self.step, self.baseline = batch.step, advantages.baseline
        metrics = {**advantages.metrics, **work.metrics()}
        metrics["timing/reference_s"] = reference_s
        metrics["timing/update_s"] = time.perf_counter() - started
        metrics["tokens/trained"] = float(len(table.id_N))
        metrics["tokens/policy_lag_mean"] = float(np.mean(batch.step - 1 - table.version_N))
        result_advantages = {f"{r.episode}/{r.agent}": float(a) for r, a in zip(rows, advantages.per_row, strict=True)}
        return StepResult(batch.step, metrics, result_advantages, digest(self.net))

    def log_probs(self, net: Net, part: Pass, table: TokenTable) -> LogProbs:
        """Log-probs of the tokens of one pass at each one's own temperature, and their distributions' entropies."""
        self._progressed()
        flat = part.flat_N.cpu().numpy()
        id_N = torch.from_numpy(table.id_N[flat]).to(self.device)
        return net.log_probs_at(part, id_N, table.temperature_N[flat])

    def side_by_side(self, work: Callable[[Any], Any], shares: Sequence[Any]) -> list[Any]:
        """``work`` of each share, at most ``lanes`` of them, at once; results in their order."""
        others = [self._threads.submit(work, share) for share in shares[1:]] if self._threads else []
        first = [work(share) for share in (shares if self._threads is None else shares[:1])]
        return first + [other.result() for other in others]

    def passes(self, pieces: Sequence[Piece]) -> list[Pass]:
        """``pieces`` cut into forward passes that fit."""
        wanted = self._pass_tokens if self.net.frugal else max(1, _PASS_LOGITS // self.net.vocab)
        return passes(pieces, self._pass_tokens, wanted, self.device, best_tokens=self._best_tokens)

    def reference(self) -> Net:
        return self._reference()

    def _row_loss(self) -> Any:
        if self._loss is None:
            from ajet.algorithm.loss import RowLoss  # verl: seconds

            self._loss = RowLoss(self.config)
        return self._loss


def check_rows(rows: Sequence[Row], table: TokenTable, vocab: int) -> None:
    """Refuse what would crash or poison the step. A NaN would not always show in the gradient: verl's clamps swallow some."""
    for row in rows:
        if not math.isfinite(row.reward):
            raise InvalidRequest(
                f"The reward of {row.agent} in episode {row.episode} is {row.reward}: rewards must be finite."
            )
        for sample in row.samples:
            if int(sample.ids_T.max()) >= vocab or int(sample.ids_T.min()) < 0:
                raise InvalidRequest(
                    f"A sample of {row.agent} in episode {row.episode} has a token id outside of the model's {vocab}."
                )
    wrong = np.flatnonzero(~np.isfinite(table.logprob_N))
    if len(wrong):
        row = rows[int(table.row_N[wrong[0]])]
        raise InvalidRequest(
            f"A log-prob of {row.agent} in episode {row.episode} is {table.logprob_N[wrong[0]]}: it cannot be trained."
        )
