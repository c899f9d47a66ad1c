"""The connections under the operations: reuse, what breaks them, proxies, and what is said of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ajet.client.exchange import Call, ConnectionFault
from ajet.client.transport import BlockingTransport

OK = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"a": "b"}\n'


class Peer:
    """A server of one thread. ``heads`` is what came; each connection is handled by ``serve`` until it returns."""

    def __init__(self, serve: Callable[[Peer, socket.socket], None]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self._serve = serve
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            with peer:
                peer.settimeout(10)
                self._serve(self, peer)

    def read(self, peer: socket.socket) -> bool:
        """One request; False when the client went away."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = peer.recv(65536)
            if not part:
                return False
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0
        )
        while len(body) < length:
            body += peer.recv(65536)
        self.heads.append(head.decode())
        self.bodies.append(body)
        return True

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(10)


@contextmanager
def serving(serve: Callable[[Peer, socket.socket], None]) -> Iterator[Peer]:
    peer = Peer(serve)
    try:
        yield peer
    finally:
        peer.close()


def always_ok(peer: Peer, connection: socket.socket) -> None:
    while peer.read(connection):
        connection.sendall(OK)


def test_requests_share_a_connection_and_carry_key_path_and_parameters():
    with serving(always_ok) as peer:
        transport = BlockingTransport(peer.url + "/behind/a/path", "secret", 4)
        assert transport.send(Call("GET", "/x", params={"wait_s": "1", "of": "a b"})).body == {"a": "b"}
        reply = transport.send(Call("POST", "/y", json.dumps({"n": 1}).encode()))
        transport.close()
    assert reply.status == 200
    assert peer.connections == 1
    first, second = peer.heads
    assert first.startswith("GET /behind/a/path/x?wait_s=1&of=a+b HTTP/1.1")
    assert "authorization: Bearer secret" in first
    assert second.startswith("POST /behind/a/path/y HTTP/1.1")
    assert "content-type: application/json" in second
    assert peer.bodies[1] == b'{"n": 1}'


def test_a_connection_that_the_server_closed_meanwhile_is_no_fault():
    closed = threading.Event()

    def once(peer: Peer, connection: socket.socket) -> None:
        peer.read(connection)
        connection.sendall(OK)
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        closed.set()

    with serving(once) as peer:
        transport = BlockingTransport(peer.url, None, 1)
        transport.send(Call("GET", "/"))
        assert closed.wait(10)
        assert transport.send(Call("GET", "/")).status == 200
        transport.close()
    assert peer.connections == 2


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nconte"],
    ids=["nothing", "cut body", "no HTTP", "cut head"],
)
def test_a_cut_answer_is_a_fault_without_secrets_and_the_next_request_works(answer):
    def cut_first(peer: Peer, connection: socket.socket) -> None:
        if peer.connections > 1:
            always_ok(peer, connection)
        elif peer.read(connection):
            connection.sendall(answer)

    with serving(cut_first) as peer:
        transport = BlockingTransport(peer.url, "secret", 1)
        with pytest.raises(ConnectionFault) as fault:
            transport.send(Call("GET", "/"))
        assert "secret" not in str(fault.value)
        assert str(fault.value)
        assert transport.send(Call("GET", "/")).status == 200
        transport.close()


def test_a_refused_connection_is_a_fault():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(ConnectionFault, match=r"(?i)refused"):
        BlockingTransport(f"http://127.0.0.1:{port}", None, 1).send(Call("GET", "/"))


def test_a_body_that_is_no_json_and_a_retry_after_are_read():
    def busy(peer: Peer, connection: socket.socket) -> None:
        peer.read(connection)
        connection.sendall(b"HTTP/1.1 503 X\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy")

    with serving(busy) as peer:
        reply = BlockingTransport(peer.url, None, 1).send(Call("GET", "/"))
    assert (reply.status, reply.body, reply.retry_after) == (503, None, 7.0)


def test_a_proxy_from_the_environment_is_used_but_not_for_this_machine(monkeypatch):
    with serving(always_ok) as proxy, serving(always_ok) as local:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        far = BlockingTransport("http://swarm.example:10086", "k", 1)
        assert far.send(Call("GET", "/x")).status == 200
        far.close()
        near = BlockingTransport(local.url, "k", 1)
        assert near.send(Call("GET", "/x")).status == 200
        near.close()
        monkeypatch.setenv("no_proxy", "swarm.example")
        monkeypatch.setenv("NO_PROXY", "swarm.example")
        with pytest.raises(ConnectionFault):
            BlockingTransport("http://swarm.example:10086", "k", 1).send(Call("GET", "/x"))
    assert proxy.heads[0].startswith("GET http://swarm.example:10086/x HTTP/1.1")
    assert len(proxy.heads) == len(local.heads) == 1
