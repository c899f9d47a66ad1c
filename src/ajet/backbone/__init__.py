"""What samples and trains. The server sees :mod:`ajet.backbone.protocol` only. Importing this imports no torch."""

from __future__ import annotations

from ajet.backbone.models import model_dir
from ajet.backbone.protocol import Backbone, Patience
from ajet.default_config.schema import AjetConfig

__all__ = ["create_backbone", "model_dir"]


def create_backbone(config: AjetConfig, patience: Patience | None = None) -> Backbone:
    """The backbone that ``config.backbone`` names, not started yet; ``patience``: before it counts as hung."""
    if config.backbone == "verl":
        from ajet.backbone.verl.process import VerlBackbone

        return VerlBackbone(patience or Patience())
    if config.rollout.name == "vllm":
        from ajet.backbone.vllm.backbone import VllmBackbone

        return VllmBackbone(patience or Patience())
    from ajet.backbone.embedded.process import EmbeddedBackbone

    return EmbeddedBackbone(patience or Patience())
