"""One training step under way: reference, correction, mini-batches, portions, lanes. See :mod:`ajet.backbone.embedded.trainer`.

Letters: R rows, T a row's tokens, N flat trained tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ajet.algorithm.correction import active, correct
from ajet.backbone.embedded.net import Net
from ajet.backbone.embedded.packing import Pass, Piece, TokenTable, to_rows
from ajet.backbone.mini_batches import mini_batches

if TYPE_CHECKING:
    from ajet.backbone.embedded.trainer import Trainer


@dataclass
class _Seen:
    """What forward passes tell of themselves.

    Attributes:
        real, computed, padded: tokens of samples, distinct ones, and with padding.
        entropy, tokens: sum over the trained tokens, and how many they are.
        drift: how far each log-prob is from the sampler's.
        sums: the loss's metrics, each portion's by its share.
    """

    real: int = 0
    computed: int = 0
    padded: int = 0
    entropy: float = 0.0
    tokens: int = 0
    drift: list[np.ndarray] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, other: _Seen) -> None:
        self.real, self.computed, self.padded = (
            self.real + other.real, self.computed + other.computed, self.padded + other.padded,
        )  # fmt: skip
        self.entropy, self.tokens = self.entropy + other.entropy, self.tokens + other.tokens
        self.drift += other.drift
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value


class Step:
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
        self.seen = _Seen()
        self._sums: dict[str, float] = {}
        self._tokens = 0
        self._steps: list[dict[str, float]] = []
        self._compares = True
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
        parts = trainer.passes(self.pieces)

        @torch.no_grad()
        def fill(own: Sequence[Pass]) -> None:
            for part in own:
                values_N[part.flat_N] = trainer.log_probs(net, part, self.table)[0].to(self.dtype)

        trainer.side_by_side(fill, [parts[i :: trainer.lanes] for i in range(trainer.lanes)])
        return self.scatter(values_N)

    def train(self, step: int) -> None:
        config = self.trainer.config
        by_row: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            by_row.setdefault(piece.row, []).append(piece)
        for chosen in mini_batches(by_row, self.unit_R, config, mix(config.seed, step)):
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
        if forwarded and not (total <= limit or (self.loss.additive and max(size[r] for r in forwarded) <= limit)):
            self._two_pass(forwarded, by_row, all_rows, totals)
        elif forwarded and trainer.lanes > 1 and self.loss.additive:
            self._in_lanes(forwarded, by_row, size, all_rows, totals)
        elif forwarded:
            for portion in [forwarded] if total <= limit else _portions(_alike(forwarded, by_row), size, limit):
                self._loss_of(portion, by_row, all_rows, totals, self.seen).backward()
        self._drift_done()
        norm, applied = trainer.optimizer.step()
        if applied:
            trainer.net.synchronize()
        self._steps.append({"grad_norm": norm, "lr": trainer.optimizer.last_lr, "skipped": float(not applied)})
        self._tokens += totals.tokens

    def _loss_of(
        self, portion: list[int], by_row: dict[int, list[Piece]], all_rows: Any, totals: Any, seen: _Seen
    ) -> torch.Tensor:
        parts = self.trainer.passes([p for r in portion for p in by_row[r]])
        outs = [self._forward(part, seen) for part in parts]
        flat = torch.cat([part.flat_N for part in parts])
        logprob_N, entropy_N = torch.cat([o[0] for o in outs]), _cat_or_none([o[1] for o in outs])
        return self._row_loss(portion, flat, logprob_N, entropy_N, all_rows, totals, seen)

    def _in_lanes(
        self, chosen: list[int], by_row: dict[int, list[Piece]], size: dict[int, int], all_rows: Any, totals: Any
    ) -> None:
        trainer = self.trainer
        leaves = list(trainer.net.parameters().values())
        limit = trainer.config.max_tokens_per_microbatch

        def work(own: list[int]) -> tuple[list[torch.Tensor | None], _Seen]:
            seen = _Seen()
            total: list[torch.Tensor | None] = [None] * len(leaves)
            for portion in _portions(own, size, limit):
                loss = self._loss_of(portion, by_row, all_rows, totals, seen)
                total = _added(total, torch.autograd.grad(loss, leaves, allow_unused=True))
            return total, seen

        gradients: list[torch.Tensor | None] = [None] * len(leaves)
        for found, seen in trainer.side_by_side(work, _shares(_alike(chosen, by_row), size, trainer.lanes)):
            gradients = _added(gradients, found)
            self.seen.add(seen)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = None if gradient is None else gradient.contiguous()  # as the fused optimizer reads it

    def _two_pass(self, chosen: list[int], by_row: dict[int, list[Piece]], all_rows: Any, totals: Any) -> None:
        trainer = self.trainer
        parts = trainer.passes([p for r in chosen for p in by_row[r]])
        with torch.no_grad():
            first = [self._forward(part, self.seen) for part in parts]
        flat = torch.cat([part.flat_N for part in parts])
        logprob_N = torch.cat([f[0] for f in first]).requires_grad_()
        entropy_N = _cat_or_none([f[1] for f in first])
        if entropy_N is not None:
            entropy_N.requires_grad_()
        self._row_loss(chosen, flat, logprob_N, entropy_N, all_rows, totals, self.seen).backward()
        at = 0
        for part in parts:
            span = slice(at, at + len(part.flat_N))
            at = span.stop
            again, entropy = self._forward(part, self.seen, record=False)
            outputs, grads = [again], [logprob_N.grad[span]]  # type: ignore[index]
            if entropy is not None and entropy_N is not None:
                outputs, grads = [again, entropy], [*grads, entropy_N.grad[span]]  # type: ignore[index]
            torch.autograd.backward(outputs, grads)

    def _row_loss(
        self, chosen: list[int], flat: torch.Tensor, logprob_N: torch.Tensor, entropy_N: torch.Tensor | None,
        all_rows: Any, totals: Any, seen: _Seen,
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
            seen.sums[name] = seen.sums.get(name, 0.0) + value * share
        return loss

    def _forward(self, part: Pass, seen: _Seen, record: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
        trainer = self.trainer
        seen.real += part.real_tokens
        seen.computed += len(part.ids_U)
        seen.padded += sum(group.ids_B_T.numel() for group in part.groups)
        logprob_N, entropy = trainer.log_probs(trainer.net, part, self.table)
        entropy_N = entropy() if self.loss.needs_entropy else None
        if record and self._compares:
            flat = part.flat_N.cpu().numpy()
            current = self.table.version_N[flat] == self._version
            seen.drift.append(np.abs(logprob_N.detach().cpu().double().numpy() - self.table.logprob_N[flat])[current])
        if record:
            with torch.no_grad():
                seen_N = entropy_N.detach() if entropy_N is not None else entropy()
            seen.entropy += float(seen_N.sum())
            seen.tokens += len(seen_N)
        return logprob_N, entropy_N

    def _drift_done(self) -> None:
        """Sampler and trainer are compared on the first mini-batch only: after it, the weights differ."""
        found = np.concatenate(self.seen.drift) if self.seen.drift else np.zeros(0)
        if self._compares and len(found):
            self._sums["sampler/logprob_diff_mean"] = float(found.mean())
            self._sums["sampler/logprob_diff_max"] = float(found.max())
        self._compares = False

    def metrics(self) -> dict[str, float]:
        steps = len(self._steps)
        out = {**self._sums, **{k: v / steps for k, v in self.seen.sums.items()}}
        out["actor/grad_norm"] = float(np.mean([s["grad_norm"] for s in self._steps]))
        out["actor/lr"] = self._steps[-1]["lr"]
        out["actor/optimizer_steps"] = float(steps)
        out["actor/skipped_updates"] = float(sum(s["skipped"] for s in self._steps))
        seen = self.seen
        if seen.tokens:
            out["actor/entropy"] = seen.entropy / seen.tokens
        out.update(self._correction)
        out["tokens/forward"] = float(seen.real)
        out["tokens/merged_share"] = 1 - seen.computed / max(1, seen.real)
        out["tokens/padding_share"] = 1 - seen.real / max(1, seen.padded)
        return {k: v if math.isfinite(v) else float("nan") for k, v in out.items()}


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


def _alike(rows: Sequence[int], by_row: dict[int, list[Piece]]) -> list[int]:
    """``rows``, those together that begin alike, so that their beginnings are computed once."""
    begins = {r: np.ascontiguousarray(by_row[r][0].ids_T, ">i4").tobytes() for r in rows}
    return sorted(rows, key=lambda r: (begins[r], r))


def _shares(rows: Sequence[int], size: dict[int, int], lanes: int) -> list[list[int]]:
    """Cut ``rows``, in order, into ``lanes`` runs of about as many tokens; empty ones are left out."""
    total, seen = sum(size[r] for r in rows), 0
    out: list[list[int]] = [[] for _ in range(lanes)]
    for r in rows:
        out[min(lanes - 1, (seen + size[r] // 2) * lanes // max(1, total))].append(r)
        seen += size[r]
    return [share for share in out if share]


def _added(a: Sequence[torch.Tensor | None], b: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [y if x is None else x if y is None else x + y for x, y in zip(a, b, strict=True)]


def _cat_or_none(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    found = [p for p in parts if p is not None]
    return torch.cat(found) if found else None


def mix(seed: int, step: int) -> int:
    return (seed * 1_000_003 + step) % (2**63)
