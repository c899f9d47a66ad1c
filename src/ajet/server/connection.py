"""One peer's connection: how slowly it may speak, how slowly it may listen, how large its head may be.

uvicorn's own HTTP protocol waits for ever for the rest of a request. This one promises that no peer, whatever it sends
or leaves out, holds a connection longer than stated in :class:`ajet.server.settings.Limits`, or memory beyond it:

- a head that does not come whole in time, or that is too large, is answered 408 or 431, and the connection closed;
- a body that trickles is answered 408; the time in which *we* do not read (the server is busy) is not held against it;
- a peer that does not read its answer is cut off, and so is one that vanished without a word (TCP keep-alive);
- what follows an answer that was given before the body had come whole is read for a moment only, and not kept;
- more connections than allowed are answered 503 and closed;
- an answer's head and body leave in one write, where the body is there at once.

Used by :func:`ajet.server.main.server_config` only. The path of a request that arrives in one piece pays nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ajet.schema.errors import AjetError, InvalidRequest, RateLimited, TooLarge, error_body
from ajet.server.settings import Limits

ON_GONE = "ajet.on_gone"
"""In a request's ``extensions``: its :class:`Peer`."""
LINGER_S = 2.0
"""How long what is left of a refused request is read and thrown away, so that its sender gets to read the answer."""
WINDOW_S = 10.0
"""A body's speed is looked at this often."""
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class _TooSlow(InvalidRequest):
    http_status, code = 408, "too_slow"


class _HeadTooLarge(TooLarge):
    http_status = 431


class _Full(RateLimited):
    http_status, code = 503, "too_many_connections"


class Peer:
    """Who is at the other end, and whom to call when that is nobody any more.

    A cheaper way to know than a task that waits in ``receive``.
    """

    __slots__ = ("gone", "watchers")

    def __init__(self) -> None:
        self.gone = False
        self.watchers: set[Callable[[], None]] = set()

    def leave(self) -> None:
        self.gone = True
        for watcher in list(self.watchers):
            watcher()


class Connection(HttpToolsProtocol):
    """See the module. Made by the class that :func:`bounded` returns."""

    limits = Limits()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # type: ignore[override]
        self._partial = False
        """A head has begun to come."""
        self._complete = True
        """The last request has come whole."""
        self._heads = self._head_bytes = self._bytes = 0
        self._slow_windows = self._body_windows = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._peer = Peer()
        super().connection_made(transport)  # type: ignore[arg-type]
        _notice_dead_peers(transport, self.limits.write_s)
        if len(self.connections) > self.limits.connections:
            self._refuse(_Full(f"This server has {self.limits.connections} connections open. Retry in a second."))
        else:
            self._watch(self.config.timeout_keep_alive, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch(None)
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)
        self._peer.leave()

    # ── what comes ───────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        partial, heads = self._partial, self._heads
        self._bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._partial:
            # A piece that is head from end to end counts; the one that began it is bounded by itself.
            if partial and heads == self._heads:
                self._head_bytes += len(data)
                if self._head_bytes > self.limits.header_bytes + self.limits.url_bytes:
                    self._refuse(_HeadTooLarge("The headers are larger than this server accepts."))
                    return
            if self._timer is None and self._idle():
                self._watch(self.limits.header_s, self._head_late)
        elif not self._complete:
            if self._timer is None:
                self._slow_windows = self._body_windows = self._bytes = 0
                self._watch(WINDOW_S, self._look_at_body)
        elif self._timer is None and self.timeout_keep_alive_task is None and self._idle():
            # Bytes between two requests are no sign of life.
            self._watch(self.config.timeout_keep_alive, self.transport.close)

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        self._partial, self._complete = True, False
        self._head_bytes = 0
        if self._timer is not None:
            self._watch(None)
        super().on_message_begin()
        self.scope["extensions"] = {ON_GONE: self._peer}  # type: ignore[dict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._partial:  # what comes after a chunked body is of no use to anybody
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._partial = False
        self._heads += 1
        if self._timer is not None:
            self._watch(None)
        super().on_headers_complete()
        self.cycle.transport = _Joined(self.transport, self.loop)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        self._complete = True
        if self._timer is not None:
            self._watch(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._complete and self._idle():
            self._unset_keepalive_if_required()
            self._watch(LINGER_S, self.transport.close)

    def _head_late(self) -> None:
        self._refuse(_TooSlow(f"The request's head did not come within {self.limits.header_s:g} s."))

    def _look_at_body(self) -> None:
        """Two slow windows in a row, or too many in all, end the request."""
        self._timer = None
        came, self._bytes = self._bytes, 0
        if not self.flow.read_paused:
            self._body_windows += 1
            slow = came < self.limits.body_bytes_per_s * WINDOW_S
            self._slow_windows = self._slow_windows + 1 if slow else 0
        if self._slow_windows >= 2 or self._body_windows * WINDOW_S > self.limits.body_s:
            self._refuse(_TooSlow("The request's body came too slowly. Send it again over a faster connection."))
            return
        self._watch(WINDOW_S, self._look_at_body)

    def _watch(self, seconds: float | None, then: Callable[[], None] = lambda: None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, then)

    # ── what goes ────────────────────────────────────────────────────────────────────────────────────────────────

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest(f"{msg} Speak HTTP/1.1."))

    def _refuse(self, err: AjetError) -> None:
        """Answer for the application, where it has not begun to, and close."""
        self._watch(None)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        unanswered = cycle is None or cycle.response_complete or not cycle.response_started
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self._peer.leave()
        if unanswered:
            body = orjson.dumps(error_body(err))
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[err.http_status] + head + body)
        self.transport.close()


class _Joined:
    """One answer's way to the transport: its head waits for what the application says next, until the loop turns."""

    __slots__ = ("_head", "_loop", "_said", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._said = False
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if not self._said:
            self._said, self._head = True, data
            self._loop.call_soon(self._flush)
        elif self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def bounded(limits: Limits) -> type[Connection]:
    """The protocol class for a server with these limits."""
    return type("BoundedConnection", (Connection,), {"limits": limits})


def _notice_dead_peers(transport: asyncio.BaseTransport, unread_s: float) -> None:
    """Let the kernel end connections whose peer is gone, or reads nothing for ``unread_s`` (where it can)."""
    peer = transport.get_extra_info("socket")
    if peer is None:
        return
    with contextlib.suppress(OSError):  # not a TCP socket
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", int(unread_s * 1000))):
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
