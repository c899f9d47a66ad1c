"""What verl's training worker differentiates: the loss over rows, as it depends on the log-probs at hand.

Invariant 4 over many devices: the loss is defined on rows (episode, agent), and a row's samples may lie on several ranks
and in several micro-batches. So it is computed once, where all log-probs of a mini-batch are known (the driver), and
its derivative by each token's log-prob (and entropy) travels with the tokens. Each rank then back-propagates
``sum(derivative × log-prob)``: the gradient of the weights is that of the loss over rows, for every loss, whatever lies
where. verl averages gradients over ranks, hence the factor.

Imported in verl's workers.
"""

from __future__ import annotations

from typing import Any

LOGPROB_GRADIENT, ENTROPY_GRADIENT = "ajet_logprob_gradient", "ajet_entropy_gradient"
"""Nested like ``input_ids``: what the loss changes by per log-prob (entropy) at the position before its token."""


def row_gradient_loss(model_output: dict[str, Any], data: Any, dp_group: Any = None) -> tuple[Any, dict[str, Any]]:
    """verl's loss-function contract (``TrainingWorker.set_loss_fn``)."""
    loss = (model_output["log_probs"].values() * data[LOGPROB_GRADIENT].values()).sum()
    if ENTROPY_GRADIENT in data:
        loss = loss + (model_output["entropy"].values() * data[ENTROPY_GRADIENT].values()).sum()
    return loss * data["dp_size"], {}
