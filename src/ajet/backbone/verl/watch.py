"""Notices that an actor or a host is gone, within seconds, whoever is waiting for whom.

A dead rank leaves the others inside a collective, and a driver that waits for the first rank's answer would wait with
them. So every actor is asked for a sign of life on the side: Ray fails a call to a dead actor at once, and a busy actor
answers later, which is no reason to act. Hosts are looked up in Ray's own table.

A thread of the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

INTERVAL_S = 1.0
UNREACHABLE_S = 30.0
"""An actor whose host cannot be reached for so long counts as dead."""


class Watch(threading.Thread):
    """Calls ``gone(cause)`` once, then ends.

    Args:
        actors: by the name a cause is told with.
    """

    def __init__(self, actors: Mapping[str, Any], gone: Callable[[str], None]) -> None:
        super().__init__(name="ajet-verl-watch", daemon=True)
        self._actors, self._gone = dict(actors), gone
        self._stop_event = threading.Event()
        self._unreachable: dict[str, float] = {}

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        import ray

        asked: dict[Any, str] = {}
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        while not self._stop_event.wait(INTERVAL_S):
            waiting = set(asked.values())
            for name, actor in self._actors.items():
                if name not in waiting:
                    asked[actor.__ray_ready__.remote()] = name
            done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0.2)
            for ref in done:
                cause = self._cause(asked.pop(ref), ref)
                if cause:
                    self._gone(cause)
                    return
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            for node, address in nodes.items():
                if node not in alive:
                    self._gone(f"The Ray node on {address} is gone.")
                    return

    def _cause(self, name: str, ref: Any) -> str | None:
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        try:
            ray.get(ref)
        except ActorUnavailableError as error:
            self._unreachable[name] = self._unreachable.get(name, 0.0) + INTERVAL_S
            return f"{name} cannot be reached: {error}" if self._unreachable[name] >= UNREACHABLE_S else None
        except RayError as error:
            return f"{name} is gone: {error}"
        self._unreachable.pop(name, None)
        return None
