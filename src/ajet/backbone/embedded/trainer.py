"""The training step: rows in, one or more optimizer steps, metrics out. Deterministic given state and batch.

Invariant 4 is kept here: forward passes run over samples packed by length; their log-probs are scattered back to one
row per (episode, agent); the loss sees rows only. A mini-batch too large for memory is worked through in portions. For
losses that add up over rows a portion is a set of whole rows; for the others, and for a row that alone exceeds
``max_tokens_per_microbatch``, log-probs are computed first without gradient, the loss is differentiated by them, and
a second pass carries that gradient to the weights. Either way loss and gradient do not depend on the portions.

Rows whose advantage is zero are left out of the forward passes only when no KL and no entropy term would train them;
they count in every normalisation all the same.

Letters: R rows, T a row's tokens, N flat trained tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.correction import active, correct
from ajet.backbone.embedded.net import Net, digest
from ajet.backbone.embedded.optimizer import Optimizer
from ajet.backbone.embedded.packing import Pass, Piece, TokenTable, lay_out, passes, to_rows
from ajet.backbone.protocol import StepResult
from ajet.default_config.schema import TrainerConfig
from ajet.schema.errors import EngineStateConflict, InvalidRequest
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
    """

    def __init__(
        self, net: Net, config: TrainerConfig, reference: Any, device: torch.device,
        progressed: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.net, self.config, self.device = net, config, device
        self.step = 0
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
        if batch.step != self.step + 1:
            raise EngineStateConflict(
                f"The trainer is at step {self.step}: it takes the batch of step {self.step + 1}, not {batch.step}."
            )
        rows = sorted(batch.rows, key=lambda r: (r.episode, r.agent))
        table, pieces = lay_out(rows)
        if not pieces:
            raise InvalidRequest(f"The batch of step {batch.step} has no trained tokens in its {len(rows)} rows.")
        _check(rows, table, self.net.vocab)
        loss = self._row_loss()
        torch.manual_seed(_mix(self.config.seed, batch.step))  # clip_cov draws
        started = time.perf_counter()
        advantages = compute_advantages(rows, self.config.algorithm)
        work = _Work(self, loss, table, pieces, advantages.per_row, advantages.unit_of_row)
        work.compute_reference()
        work.correct()
        reference_s = time.perf_counter() - started
        work.train(batch.step)
        self.step = batch.step
        metrics = {**advantages.metrics, **work.metrics()}
        metrics["timing/reference_s"] = reference_s
        metrics["timing/update_s"] = time.perf_counter() - started
        metrics["tokens/trained"] = float(len(table.id_N))
        metrics["tokens/policy_lag_mean"] = float(np.mean(batch.step - 1 - table.version_N))
        result_advantages = {f"{r.episode}/{r.agent}": float(a) for r, a in zip(rows, advantages.per_row, strict=True)}
        return StepResult(batch.step, metrics, result_advantages, digest(self.net))

    def log_probs(self, net: Net, part: Pass, table: TokenTable) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the tokens of one pass at each one's own temperature, and the distributions' log-probs."""
        self._progressed()
        logits_N_V = net.logits_at(part)
        flat = part.flat_N.cpu().numpy()
        temperature = table.temperature_N[flat]
        if (temperature != 1.0).any():
            logits_N_V = logits_N_V / torch.from_numpy(temperature).to(logits_N_V)[:, None]
        logprob_N_V = torch.log_softmax(logits_N_V, -1)
        id_N = torch.from_numpy(table.id_N[flat]).to(self.device)
        return logprob_N_V.gather(1, id_N[:, None])[:, 0], logprob_N_V

    def passes(self, pieces: Sequence[Piece]) -> list[Pass]:
        """``pieces`` cut into forward passes that fit."""
        wanted = max(1, _PASS_LOGITS // self.net.vocab)
        return passes(pieces, self._pass_tokens, wanted, self.device, best_tokens=self._best_tokens)

    def reference(self) -> Net:
        return self._reference()

    def _row_loss(self) -> Any:
        if self._loss is None:
            from ajet.algorithm.loss import RowLoss  # verl: seconds

            self._loss = RowLoss(self.config)
        return self._loss


class _Work:
    """One training step under way."""

    def __init__(
        self, trainer: Trainer, loss: Any, table: TokenTable, pieces: Sequence[Piece], advantage_R: np.ndarray,
        unit_R: np.ndarray,
    ) -> None:  # fmt: skip
        self.trainer, self.loss, self.table, self.pieces = trainer, loss, table, pieces
        self.unit_R = unit_R
        device = trainer.device
        self.dtype = next(iter(trainer.net.parameters().values())).dtype
        rows, longest = len(advantage_R), int(table.tokens_R.max())
        self.rows, self.longest = rows, longest
        self.row_N = torch.from_numpy(table.row_N).to(device)
        self.column_N = torch.from_numpy(table.column_N).to(device)
        self.old_R_T = self.scatter(torch.from_numpy(table.logprob_N).to(device, self.dtype))
        self.mask_R_T = self.scatter(torch.ones(len(table.id_N), device=device, dtype=self.dtype))
        self.advantage_R = torch.from_numpy(advantage_R).to(device, self.dtype)
        self.reference_R_T: torch.Tensor | None = None
        self.correction_R_T: torch.Tensor | None = None
        self.kept_R = table.tokens_R
        self._correction: dict[str, float] = {}
        skip = not (loss.needs_reference or loss.needs_entropy) and loss.additive
        self.forwarded_R = (advantage_R != 0) if skip else np.ones(rows, bool)
        self.padded = self.real = self.computed = 0
        self._sums: dict[str, float] = {}
        self._tokens = 0
        self._steps: list[dict[str, float]] = []
        self._entropy = [0.0, 0]
        self._drift: list[np.ndarray] | None = []
        self._version = trainer.step

    def scatter(self, values_N: torch.Tensor) -> torch.Tensor:
        return to_rows(values_N, self.row_N, self.column_N, self.rows, self.longest)

    @torch.no_grad()
    def compute_reference(self) -> None:
        """Log-probs under the initial model, once for all passes over the batch."""
        if self.loss.needs_reference:
            self.reference_R_T = self._all_log_probs(self.trainer.reference())

    @torch.no_grad()
    def correct(self) -> None:
        """Weigh or reject what another policy sampled than the one about to be updated."""
        config = self.trainer.config.algorithm.rollout_correction
        if not active(config):
            return
        proximal_R_T = self._all_log_probs(self.trainer.net)
        found = correct(proximal_R_T, self.old_R_T, self.mask_R_T, config)
        self.old_R_T, self.mask_R_T, self.correction_R_T = proximal_R_T, found.mask_R_T, found.weight_R_T
        self.kept_R = found.mask_R_T.sum(-1).round().long().cpu().numpy()
        self._correction = {**found.metrics, "tokens/rejected": float(self.table.tokens_R.sum() - self.kept_R.sum())}

    def _all_log_probs(self, net: Net) -> torch.Tensor:
        trainer = self.trainer
        values_N = torch.zeros(len(self.table.id_N), device=trainer.device, dtype=self.dtype)
        for part in trainer.passes(self.pieces):
            values_N[part.flat_N] = trainer.log_probs(net, part, self.table)[0].to(self.dtype)
        return self.scatter(values_N)

    def train(self, step: int) -> None:
        config = self.trainer.config
        by_row: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            by_row.setdefault(piece.row, []).append(piece)
        rows_of_unit: dict[int, list[int]] = {}
        for r in by_row:
            rows_of_unit.setdefault(int(self.unit_R[r]), []).append(r)
        units = list(rows_of_unit)
        generator = torch.Generator().manual_seed(_mix(config.seed, step))
        for _ in range(config.ppo_epochs):
            order = [units[i] for i in torch.randperm(len(units), generator=generator).tolist()]
            count = min(config.mini_batch_num, len(units))
            for m in range(count):
                chosen = [r for unit in order[m::count] for r in rows_of_unit[unit]]
                self._mini_batch(chosen, by_row)

    def _mini_batch(self, chosen: list[int], by_row: dict[int, list[Piece]]) -> None:
        """One optimizer step."""
        from ajet.algorithm.loss import Rows, Totals

        trainer, tokens_R = self.trainer, self.kept_R
        totals = Totals(int(tokens_R[chosen].sum()), len(chosen), self.longest)
        if not totals.tokens:
            self._steps.append({"grad_norm": 0.0, "lr": trainer.optimizer.last_lr, "skipped": 1.0})
            return
        weight = np.zeros(self.rows)
        weight[chosen] = self.loss.row_weights(self.unit_R[chosen], tokens_R[chosen])
        weight_R = torch.from_numpy(weight).to(trainer.device, self.dtype)
        all_rows = Rows(
            self.old_R_T, self.mask_R_T, self.advantage_R, weight_R, self.reference_R_T, self.correction_R_T
        )
        limit = trainer.config.max_tokens_per_microbatch
        size = {r: sum(len(p.ids_T) for p in by_row[r]) for r in chosen}
        forwarded = [r for r in chosen if self.forwarded_R[r]]
        total = sum(size[r] for r in forwarded)
        trainer.optimizer.zero_grad()
        if total <= limit:
            portions = [forwarded] if forwarded else []
        elif self.loss.additive and max(size[r] for r in forwarded) <= limit:
            # Rows that begin alike stand together, so that their beginnings are computed once.
            begins = {r: np.ascontiguousarray(by_row[r][0].ids_T, ">i4").tobytes() for r in forwarded}
            portions = _portions(sorted(forwarded, key=lambda r: (begins[r], r)), size, limit)
        else:
            portions = []
            self._two_pass(forwarded, by_row, all_rows, totals)
        for portion in portions:
            parts = trainer.passes([p for r in portion for p in by_row[r]])
            outs = [self._forward(part) for part in parts]
            flat = torch.cat([part.flat_N for part in parts])
            loss = self._row_loss(
                portion, flat, torch.cat([o[0] for o in outs]), _cat_or_none([o[1] for o in outs]), all_rows, totals
            )
            loss.backward()
        self._drift_done()
        norm, applied = trainer.optimizer.step()
        if applied:
            trainer.net.synchronize()
        self._steps.append({"grad_norm": norm, "lr": trainer.optimizer.last_lr, "skipped": float(not applied)})
        self._tokens += totals.tokens

    def _two_pass(self, chosen: list[int], by_row: dict[int, list[Piece]], all_rows: Any, totals: Any) -> None:
        trainer = self.trainer
        parts = trainer.passes([p for r in chosen for p in by_row[r]])
        with torch.no_grad():
            first = [self._forward(part) for part in parts]
        flat = torch.cat([part.flat_N for part in parts])
        logprob_N = torch.cat([f[0] for f in first]).requires_grad_()
        entropy_N = _cat_or_none([f[1] for f in first])
        if entropy_N is not None:
            entropy_N.requires_grad_()
        self._row_loss(chosen, flat, logprob_N, entropy_N, all_rows, totals).backward()
        at = 0
        for part in parts:
            span = slice(at, at + len(part.flat_N))
            at = span.stop
            again, entropy = self._forward(part, record=False)
            outputs, grads = [again], [logprob_N.grad[span]]  # type: ignore[index]
            if entropy is not None and entropy_N is not None:
                outputs, grads = [again, entropy], [*grads, entropy_N.grad[span]]  # type: ignore[index]
            torch.autograd.backward(outputs, grads)

    def _row_loss(
        self, chosen: list[int], flat: torch.Tensor, logprob_N: torch.Tensor, entropy_N: torch.Tensor | None,
        all_rows: Any, totals: Any,
    ) -> torch.Tensor:  # fmt: skip
        """Scatter to the rows ``chosen`` and apply the loss to them."""
        place = np.full(self.rows, -1)
        place[chosen] = np.arange(len(chosen))
        device = self.trainer.device
        row = torch.from_numpy(place).to(device)[self.row_N[flat]]
        column = self.column_N[flat]
        longest = int(self.table.tokens_R[chosen].max())
        log_prob_R_T = to_rows(logprob_N, row, column, len(chosen), longest)
        entropy_R_T = None if entropy_N is None else to_rows(entropy_N, row, column, len(chosen), longest)
        rows = all_rows.select(torch.tensor(chosen, device=device), longest)
        loss, metrics = self.loss(log_prob_R_T, rows, totals, entropy_R_T)
        tokens = int(self.kept_R[chosen].sum())
        for name, value in metrics.items():
            share = 1.0 if name in ("actor/loss", "actor/pg_loss", "actor/kl_loss") else tokens / totals.tokens
            self._sums[name] = self._sums.get(name, 0.0) + value * share
        return loss

    def _forward(self, part: Pass, record: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
        trainer = self.trainer
        self.real += part.real_tokens
        self.computed += len(part.ids_U)
        self.padded += sum(group.ids_B_T.numel() for group in part.groups)
        logprob_N, logprob_N_V = trainer.log_probs(trainer.net, part, self.table)
        entropy_N = _entropy(logprob_N_V) if self.loss.needs_entropy else None
        if record and self._drift is not None:
            flat = part.flat_N.cpu().numpy()
            current = self.table.version_N[flat] == self._version
            self._drift.append(np.abs(logprob_N.detach().cpu().double().numpy() - self.table.logprob_N[flat])[current])
        if record:
            with torch.no_grad():
                seen_N = entropy_N.detach() if entropy_N is not None else _entropy(logprob_N_V.detach())
            self._entropy[0] += float(seen_N.sum())
            self._entropy[1] += len(seen_N)
        return logprob_N, entropy_N

    def _drift_done(self) -> None:
        """Sampler and trainer are compared on the first mini-batch only: after it, the weights differ."""
        if self._drift is not None:
            found = np.concatenate(self._drift) if self._drift else np.zeros(0)
            if len(found):
                self._sums["sampler/logprob_diff_mean"] = float(found.mean())
                self._sums["sampler/logprob_diff_max"] = float(found.max())
            self._drift = None

    def metrics(self) -> dict[str, float]:
        steps = len(self._steps)
        out = {k: v if k.startswith("sampler/") else v / steps for k, v in self._sums.items()}
        out["actor/grad_norm"] = float(np.mean([s["grad_norm"] for s in self._steps]))
        out["actor/lr"] = self._steps[-1]["lr"]
        out["actor/optimizer_steps"] = float(steps)
        out["actor/skipped_updates"] = float(sum(s["skipped"] for s in self._steps))
        if self._entropy[1]:
            out["actor/entropy"] = self._entropy[0] / self._entropy[1]
        out.update(self._correction)
        out["tokens/forward"] = float(self.real)
        out["tokens/merged_share"] = 1 - self.computed / max(1, self.real)
        out["tokens/padding_share"] = 1 - self.real / max(1, self.padded)
        return {k: v if math.isfinite(v) else float("nan") for k, v in out.items()}


def _check(rows: Sequence[Row], table: TokenTable, vocab: int) -> None:
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


def _portions(rows: Sequence[int], size: dict[int, int], limit: int) -> list[list[int]]:
    """Split ``rows``, in order, into runs of at most ``limit`` tokens."""
    out: list[list[int]] = [[]]
    used = 0
    for r in rows:
        if out[-1] and used + size[r] > limit:
            out.append([])
            used = 0
        out[-1].append(r)
        used += size[r]
    return out


def _cat_or_none(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    found = [p for p in parts if p is not None]
    return torch.cat(found) if found else None


def _entropy(logprob_N_V: torch.Tensor) -> torch.Tensor:
    return -(logprob_N_V.exp() * logprob_N_V).sum(-1)


def _mix(seed: int, step: int) -> int:
    return (seed * 1_000_003 + step) % (2**63)
