"""AdamW with warm-up, schedule, clipping and a state that can be saved and continued bit by bit."""

from __future__ import annotations

import math

import torch

from ajet.default_config.schema import TrainerConfig


class Optimizer:
    """Over named parameters (float32 leaves). The schedule counts optimizer steps, skipped ones included."""

    def __init__(self, parameters: dict[str, torch.Tensor], config: TrainerConfig) -> None:
        optim = config.optim
        self.count = 0
        self.last_lr = 0.0
        self._config, self._trainer = optim, config
        self._names = sorted(parameters)
        self._tensors = [parameters[name].requires_grad_() for name in self._names]
        # Fused: one kernel reads and writes each tensor once.
        self._adam = torch.optim.AdamW(
            self._tensors, lr=optim.lr, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay, fused=True
        )

    def zero_grad(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def learning_rate(self, count: int) -> float:
        """Of the optimizer step number ``count`` (from 0)."""
        return learning_rate(self._trainer, count)

    def step(self) -> tuple[float, bool]:
        """Clip and apply; the gradient's norm before clipping, and whether it was applied (not if non-finite)."""
        for tensor in self._tensors:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
        norm = float(torch.nn.utils.clip_grad_norm_(self._tensors, self._config.grad_clip, foreach=False))
        self.last_lr = self.learning_rate(self.count)
        self.count += 1
        applied = math.isfinite(norm)
        if applied:
            for group in self._adam.param_groups:
                group["lr"] = self.last_lr
            self._adam.step()
        self.zero_grad()
        return norm, applied

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Moments by name, plus each parameter's own step count."""
        out: dict[str, torch.Tensor] = {}
        for name, tensor in zip(self._names, self._tensors, strict=True):
            for key, value in self._adam.state.get(tensor, {}).items():
                out[f"{key}/{name}"] = value.detach().cpu().contiguous()
        return out

    def load_state(self, tensors: dict[str, torch.Tensor], count: int) -> None:
        self.count = count
        for name, tensor in zip(self._names, self._tensors, strict=True):
            if f"step/{name}" in tensors:
                self._adam.state[tensor] = {
                    key: tensors[f"{key}/{name}"].to(tensor.device).clone() for key in ("step", "exp_avg", "exp_avg_sq")
                }


def learning_rate(config: TrainerConfig, count: int) -> float:
    """Of the optimizer step number ``count`` (from 0)."""
    c = config.optim
    if count < c.lr_warmup_steps:
        return c.lr * (count + 1) / c.lr_warmup_steps
    if c.lr_scheduler == "constant":
        return c.lr
    total = config.total_training_steps * config.mini_batch_num * config.ppo_epochs
    along = min(1.0, (count - c.lr_warmup_steps) / max(1, total - c.lr_warmup_steps))
    return c.lr * (c.min_lr_ratio + (1 - c.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * along)))
