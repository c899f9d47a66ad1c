"""A server process with the fake backbone, to be killed.

``python -m tests.fakes.serve_fake EXP_DIR PORT [--hold-train]``; prints its URL when it listens.
"""

from __future__ import annotations

import argparse
import asyncio

from ajet.server.main import serve
from tests.fakes.backbone import FakeBackbone
from tests.fakes.renderer import ByteRenderer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("exp_dir")
    parser.add_argument("port", type=int)
    parser.add_argument("--hold-train", action="store_true", help="updates never end")
    options = parser.parse_args()

    def make(_config):
        return FakeBackbone(hold_train=asyncio.Event() if options.hold_train else None)

    serve(
        port=options.port,
        exp_dir=options.exp_dir,
        backbone_factory=make,
        renderer_factory=lambda _config: ByteRenderer(),
        on_listening=lambda url: print(url, flush=True),
    )


if __name__ == "__main__":
    main()
