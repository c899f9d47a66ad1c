"""Frames between the server and its worker: a 4-byte big-endian length, then msgpack. Nothing is pickled. No torch.

Server → worker: one request a frame, ``{"op", "id", ...}``. Worker → server: one frame per tick, a list of events
``[kind, id, value]`` with kind ``chunk``, ``result`` or ``error``.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import asdict
from typing import Any

import msgpack

from ajet.backbone.protocol import BackboneInfo, Chunk, Sampling, StepResult
from ajet.schema.errors import TooLarge

HEADER = struct.Struct(">I")
FRAME_LIMIT = 1 << 31


def encode(message: Any) -> bytes:
    """Raises :class:`TooLarge` for what no frame carries."""
    body: bytes = msgpack.packb(message, use_bin_type=True)  # type: ignore[assignment]
    if len(body) > FRAME_LIMIT:
        raise TooLarge(
            f"A message between the server and its backbone has {len(body) / 2**30:.1f} GiB, and at most "
            f"{FRAME_LIMIT / 2**30:.0f} GiB are carried. Lower data.train_batch_size, rollout.num_repeat or the episodes' length."
        )
    return HEADER.pack(len(body)) + body


def decode(body: bytes | memoryview) -> Any:
    return msgpack.unpackb(body, raw=False, strict_map_key=False)


def pack_ids(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> list[int]:
    return array("i", data).tolist()


def chunk_to_wire(chunk: Chunk) -> list[Any]:
    return [chunk.ids, chunk.logprobs, chunk.versions, chunk.top_logprobs, chunk.finish_reason]


def chunk_from_wire(wire: list[Any]) -> Chunk:
    ids, logprobs, versions, top, finish = wire
    return Chunk(ids, logprobs, versions, [[(i, p) for i, p in alternatives] for alternatives in top], finish)


def sampling_to_wire(sampling: Sampling) -> dict[str, Any]:
    return {**sampling.__dict__, "stop_token_ids": list(sampling.stop_token_ids)}


def sampling_from_wire(wire: dict[str, Any]) -> Sampling:
    return Sampling(**{**wire, "stop_token_ids": tuple(wire["stop_token_ids"])})


def result_to_wire(value: Any) -> Any:
    return asdict(value) if isinstance(value, StepResult | BackboneInfo) else value
