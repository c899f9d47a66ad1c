"""Claims about how answers leave and how a peer that left is noticed."""

import asyncio

from ajet.server.connection import Peer, _Joined


class Wire:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_a_head_and_a_body_that_follow_each_other_are_one_write_and_later_pieces_go_as_they_come():
    wire = Wire()
    joined = _Joined(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joined.write(b"head ")
    assert wire.written == []
    joined.write(b"body")
    joined.write(b" more")
    await asyncio.sleep(0)
    assert wire.written == [b"head body", b" more"]


async def test_a_head_whose_body_is_not_there_yet_leaves_when_the_loop_turns():
    wire = Wire()
    joined = _Joined(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joined.write(b"head ")
    await asyncio.sleep(0)
    assert wire.written == [b"head "]
    joined.write(b"body")
    assert wire.written == [b"head ", b"body"]


async def test_closing_sends_the_head_first():
    wire = Wire()
    joined = _Joined(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joined.write(b"head")
    joined.close()
    await asyncio.sleep(0)
    assert wire.written == [b"head"]
    assert joined.is_closing()


def test_all_who_watch_a_peer_are_told_once_and_those_who_come_later_can_see_it():
    peer, told = Peer(), []

    def first() -> None:
        told.append("first")
        peer.watchers.discard(first)

    peer.watchers |= {first, lambda: told.append("second")}
    peer.leave()
    assert sorted(told) == ["first", "second"]
    assert peer.gone
