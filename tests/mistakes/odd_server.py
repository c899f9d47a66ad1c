"""A server process with the fake backbone and one oddity, for mistakes that a sound server does not show.

``python -m tests.mistakes.odd_server EXP_DIR PORT [--version V] [--no-logprobs] [--hold-train] [--no-patience]``
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import ajet
from ajet.backbone import create_backbone
from ajet.backbone.protocol import Backbone, Chunk
from ajet.default_config.schema import AjetConfig
from ajet.server.main import serve
from ajet.server.settings import Limits
from tests.fakes.backbone import FakeBackbone
from tests.fakes.renderer import ByteRenderer


class WithoutLogprobs(FakeBackbone):
    """Samples, and says nothing of how likely that was."""

    async def generate(self, *args: Any, **kw: Any) -> AsyncIterator[Chunk]:
        async for chunk in super().generate(*args, **kw):
            yield replace(chunk, logprobs=[])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("exp_dir")
    parser.add_argument("port", type=int)
    parser.add_argument("--version", default=ajet.__version__)
    parser.add_argument("--no-logprobs", action="store_true")
    parser.add_argument("--hold-train", action="store_true", help="updates never end")
    parser.add_argument("--no-patience", action="store_true", help="the real backbone, and its first death is the last")
    options = parser.parse_args()
    ajet.__version__ = options.version
    kind = WithoutLogprobs if options.no_logprobs else FakeBackbone

    def make(config: AjetConfig) -> Backbone:
        if options.no_patience:
            return create_backbone(config)
        return kind(hold_train=asyncio.Event() if options.hold_train else None)

    serve(
        port=options.port, exp_dir=options.exp_dir, backbone_factory=make,
        renderer_factory=lambda _: ByteRenderer(),  # type: ignore[arg-type, return-value]
        limits=Limits(backbone_deaths=1) if options.no_patience else None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
