"""How the blocking client performs its operations, shows life between them, watches for updates, and closes.

Functions that hold no client: the heartbeat and the exit outlive the object that a script holds. Used by
:mod:`ajet.client.swarm_client`; ``abort_quietly`` by the asyncio client too, for threads whose event loop is gone.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.client.exchange import DEAF_S, ConnectionFault, Operation, Pause
from ajet.client.heartbeat import HeartbeatThread
from ajet.client.operations import LONG_POLL_S, Operations
from ajet.client.settings import Settings
from ajet.client.weight_sync import Ask
from ajet.schema.errors import AjetError

if TYPE_CHECKING:
    from ajet.client.transport import BlockingTransport

T = TypeVar("T")
EXIT_BUDGET_S = 2.0


def drive(operation: Operation[T], transport: BlockingTransport, closed: threading.Event) -> T:
    """Perform the effects of ``operation`` and return what it returns."""
    try:
        effect = next(operation)
        while True:
            if isinstance(effect, Pause):
                if _closed_within(closed, effect.seconds):
                    operation.close()
                    raise AjetError("This client was closed while a call waited.")
                effect = operation.send(None)
                continue
            try:
                reply = transport.send(effect)
            except ConnectionFault as fault:
                effect = operation.throw(fault)
            else:
                effect = operation.send(reply)
    except StopIteration as done:
        return done.value


def _closed_within(closed: threading.Event, seconds: float) -> bool:
    """Sleep for ``seconds``; whether the client was closed meanwhile. Not ``closed.wait``: Ctrl-C inside it can leave the
    event's lock held, and the exit needs it."""
    deadline = time.monotonic() + seconds
    while not closed.is_set():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, DEAF_S))
    return True


def abort_quietly(
    operations: Operations,
    transport: BlockingTransport,
    closed: threading.Event,
    episode: str,
    reason: str,
    budget_s: float,
) -> None:
    """Abort ``episode``; an error is a line, for there is nobody left to raise it to."""
    try:
        drive(operations.abort(episode, reason, budget_s), transport, closed)
    except AjetError as err:
        print(f"[ajet] episode {episode} could not be aborted: {err.message}", file=sys.stderr)


def beater(operations: Operations, transport: BlockingTransport, closed: threading.Event) -> Any:
    def beat(episodes: list[str]) -> bool:
        if not episodes and operations.leases.beat_s is None:
            return True
        try:
            drive(operations.heartbeat(episodes), transport, closed)
        except (AjetError, ConnectionFault) as err:
            operations.notice(f"heartbeat not answered ({err}); trying again")
            return False
        return True

    return beat


def update_asker(operations: Operations, settings: Settings, closed: threading.Event) -> Ask:
    """Asks for a status over a connection of its own; None where there is no answer."""
    from ajet.client.transport import BlockingTransport

    transport = BlockingTransport(settings.server_url, settings.api_key, 1)

    def ask(waits_for: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return drive(operations.status(**waits_for, wait_s=LONG_POLL_S), transport, closed)
        except (AjetError, ConnectionFault) as err:
            if not closed.is_set():
                operations.notice(f"updates cannot be watched just now ({err}); trying again")
            return None

    return ask


def close(
    operations: Operations,
    heartbeat: HeartbeatThread,
    closed: threading.Event,
    transports: tuple[BlockingTransport, ...],
) -> None:
    """The last transport, the heartbeat's own, tells the server: in the others all connections may be waiting for something."""
    heartbeat.stop()
    try:
        try:
            drive(operations.leave(EXIT_BUDGET_S), transports[-1], closed)
        except KeyboardInterrupt:  # once more; a second Ctrl-C leaves at once
            drive(operations.leave(EXIT_BUDGET_S), transports[-1], closed)
            raise
    finally:
        closed.set()
        for transport in transports:
            transport.close()
