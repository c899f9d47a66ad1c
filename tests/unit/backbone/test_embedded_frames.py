"""Claims about the frames between a server and its worker."""

import msgpack
import pytest

from ajet.backbone.embedded import wire
from ajet.schema.errors import TooLarge


def test_a_message_that_no_frame_carries_is_refused_with_what_to_lower(monkeypatch):
    monkeypatch.setattr(wire, "FRAME_LIMIT", 100)
    assert wire.decode(wire.encode([1, "x" * 80])[4:]) == [1, "x" * 80]
    with pytest.raises(TooLarge, match="train_batch_size"):
        wire.encode("x" * 200)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_a_frame_that_is_none_is_an_error_and_takes_no_memory(body):
    with pytest.raises((ValueError, msgpack.UnpackException)):
        wire.decode(body)
