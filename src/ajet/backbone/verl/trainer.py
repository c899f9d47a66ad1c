"""The training step over many ranks: rows in, verl's workers compute, one loss over rows, metrics out.

A mini-batch takes one pass without gradient (all its log-probs come to the driver, the loss over rows is differentiated
by them) and one with (each rank back-propagates its share, see :mod:`ajet.backbone.verl.loss`). The first pass is also
what the rollout correction and the comparison with the sampler read, and serves the first mini-batch of a batch.
Advantages, weights, losses and metrics are those of the embedded backbone, by the same functions.

Letters: R rows, T a row's tokens, N flat trained tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.baseline import RunningBaseline
from ajet.algorithm.correction import active, correct
from ajet.backbone.embedded.optimizer import learning_rate
from ajet.backbone.embedded.packing import TokenTable, lay_out, to_rows
from ajet.backbone.embedded.step import mix
from ajet.backbone.embedded.trainer import check_rows
from ajet.backbone.mini_batches import check_follows, mini_batches, seed_draws
from ajet.backbone.protocol import StepResult
from ajet.backbone.verl.entries import Entry, entries_of
from ajet.default_config.schema import TrainerConfig
from ajet.schema.errors import InvalidRequest
from ajet.trajectory.batch import TrainBatch


class Ranks(Protocol):
    """What verl's workers do together (:class:`ajet.backbone.verl.cluster.Cluster`)."""

    vocab: int

    def log_probs(
        self, entries: Sequence[Entry], tokens: int, *, reference: bool = False, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """float32 log-probs (and entropies) by flat number, of ``tokens`` in all; 0 where no entry has the token."""
        ...

    def backward(self, entries: Sequence[Entry], gradient_N: torch.Tensor, entropy_N: torch.Tensor | None) -> None:
        """Add the gradient of ``sum(gradient × log-prob) + sum(entropy gradient × entropy)``."""
        ...

    def optimizer_step(self, lr: float) -> float:
        """Clip, apply, clear; the norm before clipping (nothing is applied where it is not finite)."""
        ...

    def digest(self) -> str: ...


class Trainer:
    """Trains the ranks' weights. ``step``, ``optimizer_steps`` and ``baseline`` are set again after a load."""

    def __init__(self, ranks: Ranks, config: TrainerConfig) -> None:
        from ajet.algorithm.loss import RowLoss

        self.ranks, self.config = ranks, config
        self.step = self.optimizer_steps = 0
        self.baseline = RunningBaseline()
        self.loss = RowLoss(config)

    def train_step(self, batch: TrainBatch) -> StepResult:
        """One batch. Raises :class:`EngineStateConflict` for a step that does not follow, changing nothing."""
        check_follows(batch, self.step)
        rows = sorted(batch.rows, key=lambda r: (r.episode, r.agent))
        table, pieces = lay_out(rows)
        if not pieces:
            raise InvalidRequest(f"The batch of step {batch.step} has no trained tokens in its {len(rows)} rows.")
        check_rows(rows, table, self.ranks.vocab)
        seed_draws(mix(self.config.seed, batch.step), torch.device("cpu"))
        started = time.perf_counter()
        advantages = compute_advantages(rows, self.config.algorithm, self.baseline)
        work = _Step(self, table, entries_of(pieces, table), advantages.per_row, advantages.unit_of_row)
        work.prepare()
        reference_s = time.perf_counter() - started
        work.train(batch.step)
        self.step, self.baseline = batch.step, advantages.baseline
        metrics = {**advantages.metrics, **work.metrics()}
        metrics["timing/reference_s"] = reference_s
        metrics["timing/update_s"] = time.perf_counter() - started
        metrics["tokens/trained"] = float(len(table.id_N))
        metrics["tokens/policy_lag_mean"] = float(np.mean(batch.step - 1 - table.version_N))
        per_row = {f"{r.episode}/{r.agent}": float(a) for r, a in zip(rows, advantages.per_row, strict=True)}
        return StepResult(batch.step, metrics, per_row, self.ranks.digest())


class _Step:
    """One training step under way."""

    def __init__(
        self, trainer: Trainer, table: TokenTable, entries: list[Entry], advantage_R: np.ndarray, unit_R: np.ndarray
    ) -> None:
        self.trainer, self.ranks, self.loss, self.table, self.unit_R = (
            trainer,
            trainer.ranks,
            trainer.loss,
            table,
            unit_R,
        )
        self.rows, self.longest, self.tokens = len(advantage_R), int(table.tokens_R.max()), len(table.id_N)
        self.row_N, self.column_N = torch.from_numpy(table.row_N), torch.from_numpy(table.column_N)
        self.old_R_T = self._scatter(torch.from_numpy(table.logprob_N))
        self.mask_R_T = self._scatter(torch.ones(self.tokens))
        self.advantage_R = torch.from_numpy(advantage_R).float()
        self.reference_R_T: torch.Tensor | None = None
        self.correction_R_T: torch.Tensor | None = None
        self.kept_R = table.tokens_R
        skip = not (self.loss.needs_reference or self.loss.needs_entropy) and self.loss.additive
        self.forwarded_R = (advantage_R != 0) if skip else np.ones(self.rows, bool)
        self.entries = entries
        self.initial_N: torch.Tensor | None = None
        self.initial_entropy_N: torch.Tensor | None = None
        self.out: dict[str, float] = {}
        self.sums: dict[str, float] = {}
        self.steps: list[dict[str, float]] = []
        self.forward_tokens = 0
        self._entropy = self._entropy_tokens = 0.0

    def _scatter(self, values_N: torch.Tensor) -> torch.Tensor:
        return to_rows(values_N, self.row_N, self.column_N, self.rows, self.longest)

    def prepare(self) -> None:
        """Reference and current log-probs, comparison with the sampler, correction."""
        if self.loss.needs_reference:
            self.reference_R_T = self._scatter(self.ranks.log_probs(self.entries, self.tokens, reference=True)[0])
        correction = self.trainer.config.algorithm.rollout_correction
        wanted = self.entries if active(correction) else [e for e in self.entries if self.forwarded_R[e.row]]
        if wanted:
            self.initial_N, self.initial_entropy_N = self._forward(wanted)
            self._compare(wanted)
        if active(correction) and self.initial_N is not None:
            proximal_R_T = self._scatter(self.initial_N)
            found = correct(proximal_R_T, self.old_R_T, self.mask_R_T, correction)
            self.old_R_T, self.mask_R_T, self.correction_R_T = proximal_R_T, found.mask_R_T, found.weight_R_T
            self.kept_R = found.mask_R_T.sum(-1).round().long().numpy()
            rejected = float(self.table.tokens_R.sum() - self.kept_R.sum())
            self.out.update(found.metrics, **{"tokens/rejected": rejected})

    def _forward(self, entries: Sequence[Entry]) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.forward_tokens += sum(len(e.ids_T) for e in entries)
        return self.ranks.log_probs(entries, self.tokens, entropy=True)

    def _compare(self, entries: Sequence[Entry]) -> None:
        """How far the sampler's log-probs are from the trainer's, on tokens of the current policy."""
        assert self.initial_N is not None
        flat = np.concatenate([e.flat_N for e in entries])
        flat = flat[self.table.version_N[flat] == self.trainer.step]
        if len(flat):
            difference = np.abs(self.initial_N.numpy()[flat] - self.table.logprob_N[flat])
            self.out["sampler/logprob_diff_mean"] = float(difference.mean())
            self.out["sampler/logprob_diff_max"] = float(difference.max())

    def train(self, step: int) -> None:
        rows = dict.fromkeys(e.row for e in self.entries)
        for chosen in mini_batches(rows, self.unit_R, self.trainer.config, mix(self.trainer.config.seed, step)):
            self._mini_batch(chosen)

    def _mini_batch(self, chosen: list[int]) -> None:
        """One optimizer step."""
        from ajet.algorithm.loss import Rows, Totals

        lr = learning_rate(self.trainer.config, self.trainer.optimizer_steps)
        totals = Totals(int(self.kept_R[chosen].sum()), len(chosen), self.longest)
        if not totals.tokens:
            self.steps.append({"grad_norm": 0.0, "lr": lr, "skipped": 1.0})
            return
        forwarded = [r for r in chosen if self.forwarded_R[r]]
        entries = [e for e in self.entries if e.row in set(forwarded)]
        gradient_N, entropy_gradient_N = torch.zeros(self.tokens), None
        if forwarded:
            weight = np.zeros(self.rows)
            weight[chosen] = self.loss.row_weights(self.unit_R[chosen], self.kept_R[chosen])
            rows = Rows(
                self.old_R_T, self.mask_R_T, self.advantage_R, torch.from_numpy(weight).float(), self.reference_R_T,
                self.correction_R_T,
            )  # fmt: skip
            logprob_N, entropy_N = self._current(entries)
            if entropy_N is not None:
                flat = np.concatenate([e.flat_N for e in entries])
                self._entropy += float(entropy_N[torch.from_numpy(flat)].sum())
                self._entropy_tokens += len(flat)
            gradient_N, entropy_gradient_N = self._differentiate(forwarded, logprob_N, entropy_N, rows, totals)
        # Without a gradient to add, an even one of zero: weight decay and moments go on as they would in one process.
        self.ranks.backward(entries, gradient_N, entropy_gradient_N)
        norm = self.ranks.optimizer_step(lr)
        self.trainer.optimizer_steps += 1
        self.initial_N = None
        self.steps.append({"grad_norm": norm, "lr": lr, "skipped": float(not math.isfinite(norm))})

    def _current(self, entries: Sequence[Entry]) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.initial_N is not None:
            return self.initial_N, self.initial_entropy_N
        return self._forward(entries)

    def _differentiate(
        self, chosen: list[int], logprob_N: torch.Tensor, entropy_N: torch.Tensor | None, all_rows: Any, totals: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The loss over the rows ``chosen``, differentiated by each token's log-prob (and entropy)."""
        leaf_N = logprob_N.clone().requires_grad_()
        entropy_leaf_N = (
            entropy_N.clone().requires_grad_() if self.loss.needs_entropy and entropy_N is not None else None
        )
        index = torch.tensor(chosen)
        longest = int(self.table.tokens_R[chosen].max())
        log_prob_R_T = self._scatter(leaf_N)[index, :longest]
        entropy_R_T = None if entropy_leaf_N is None else self._scatter(entropy_leaf_N)[index, :longest]
        loss, metrics = self.loss(log_prob_R_T, all_rows.select(index, longest), totals, entropy_R_T)
        loss.backward()
        share = int(self.kept_R[chosen].sum()) / totals.tokens
        for name, value in metrics.items():
            whole = name in ("actor/loss", "actor/pg_loss", "actor/kl_loss")
            self.sums[name] = self.sums.get(name, 0.0) + value * (1.0 if whole else share)
        assert leaf_N.grad is not None
        return leaf_N.grad, None if entropy_leaf_N is None else entropy_leaf_N.grad

    def metrics(self) -> dict[str, float]:
        steps = len(self.steps)
        out = {**self.out, **{k: v / steps for k, v in self.sums.items()}}
        out["actor/grad_norm"] = float(np.mean([s["grad_norm"] for s in self.steps]))
        out["actor/lr"] = self.steps[-1]["lr"]
        out["actor/optimizer_steps"] = float(steps)
        out["actor/skipped_updates"] = float(sum(s["skipped"] for s in self.steps))
        if self._entropy_tokens:
            out["actor/entropy"] = self._entropy / self._entropy_tokens
        out["tokens/forward"] = float(self.forward_tokens)
        return {k: v if math.isfinite(v) else float("nan") for k, v in out.items()}
