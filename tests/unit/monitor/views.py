"""Views of a server as overwatch has them, and a server that says what a test wants."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ajet.monitor.overwatch.feed import View
from ajet.schema.errors import AjetError, InvalidKey, error_body
from ajet.schema.status import (
    Activity,
    CheckpointStatus,
    ClientActivity,
    DiskStatus,
    LeaseStatus,
    PoolFill,
    Speeds,
    Status,
    TaskActivity,
)
from ajet.schema.wire import EngineState

NOW = 1_750_000_000.0
URL = "http://127.0.0.1:10086"
RUN = "/data/saved_experiments/werewolves"


def idle() -> Status:
    return Status(
        state=EngineState.OFFLINE, since=NOW - 60, started=NOW - 61, now=NOW, disk=DiskStatus(free_bytes=10**9)
    )


def client(name: str, **changes: Any) -> ClientActivity:
    return ClientActivity(
        **{"client_id": name, "episodes": 4, "calls": 31, "idle_s": 3.0, "patience_s": 240.0, **changes}
    )


def task(name: str | None, **changes: Any) -> TaskActivity:
    return TaskActivity(**{"task_id": name, "finished": 6, "needed": 8, "running": 2, **changes})


def rolling(**changes: Any) -> Status:
    """A server in the middle of a run."""
    values: dict[str, Any] = {
        "state": EngineState.ROLLING, "since": NOW - 310, "started": NOW - 4000, "now": NOW, "experiment": "werewolves",
        "experiment_dir": RUN, "model": "ajet-tiny-werewolves", "step": 17, "total_steps": 45, "policy_version": 17,
        "backbone": {"device": "cpu"},
        "pool": PoolFill(
            rule="rollout_until_finish_enough_tasks", groups_complete=3, groups_partial=5, groups_needed=8,
            groups_non_dummy=3, episodes_finished=29, episodes_needed=64, num_repeat=8,
        ),
        "leases": LeaseStatus(open_train=60, open_eval=2, waiting_train=4, capacity=64, clients=2),
        "drops": {"policy_lag": 12, "silent": 3, "aborted": 40},
        "checkpoint": CheckpointStatus(step=15, path=f"{RUN}/checkpoints/step_000015"),
        "disk": DiskStatus(ok=True, free_bytes=12_300_000_000, journal_bytes=120_000_000),
        "speeds": Speeds(calls_per_s=12.1, sampled_tokens_per_s=1234.5, in_flight=8),
        "metrics": {"tokens/trained": 52000, "timing/update_s": 10.4},
        "activity": Activity(
            clients=[client("laptop", idle_s=130.0), client("cluster-7")], clients_total=2,
            tasks=[task("deal-1"), task("deal-2", finished=1, running=0, ready=1), task(None, finished=0)], tasks_total=3,
        ),
        **changes,
    }  # fmt: skip
    return Status(**values)


def steps(n: int = 17) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "step": k, "time": NOW, "win_rate": 0.5, "env/win/werewolf": 0.3 + 0.02 * k, "env/win/seer": 0.4,
            "reward/werewolf/mean": 0.2 + 0.03 * k, "reward/seer/mean": 0.1, "reward/mean": 0.2, "actor/loss": math.nan,
        }
        for k in range(1, n + 1)
    )  # fmt: skip


def seen(status: Status | None, **changes: Any) -> View:
    values = {"url": URL, "at": NOW, "status": status, "answered": NOW, "steps": steps(), **changes}
    return View(**values)


@dataclass
class FakeFeed:
    """Shows one view after another; the last one for ever. An error among them is raised."""

    views: list[View | AjetError]
    view: View = field(default_factory=lambda: View(URL, NOW))
    looks: int = 0
    closed: bool = False

    async def look(self) -> View:
        self.looks += 1
        found = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(found, AjetError):
            raise found
        self.view = found
        return found

    def pause(self, interval_s: float) -> float:
        return interval_s if self.view is self.views[-1] else 0.0

    async def close(self) -> None:
        self.closed = True


class AnsweringServer:
    """``/status`` and ``/metrics/history`` over HTTP, one connection a request, so that :meth:`stop` is felt at once.

    Attributes:
        status: its answer; an int is answered as that HTTP status, text as a page. key: demanded where not None.
    """

    def __init__(self, port: int = 0) -> None:
        self.status: Status | int | str = idle()
        self.steps: list[dict[str, Any]] | int = []
        self.key: str | None = None
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                code, body = outer.answer(self.path, self.headers.get("authorization"))
                content = body.encode()
                self.send_response(code)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, path: str, authorization: str | None) -> tuple[int, str]:
        if self.key is not None and authorization != f"Bearer {self.key}":
            error = InvalidKey("This is not the server's admin key.")
            return error.http_status, json.dumps(error_body(error))
        parts = urlsplit(path)
        if parts.path == "/swarm/v1/metrics/history":
            if isinstance(self.steps, int):
                return self.steps, json.dumps(
                    {"error": {"message": "the journal is damaged", "code": "journal_damaged"}}
                )
            since = int(parse_qs(parts.query)["since"][0])
            return 200, json.dumps({"steps": [step for step in self.steps if step["step"] > since]})
        if isinstance(self.status, int):
            return self.status, "<html>no</html>"
        return 200, self.status if isinstance(self.status, str) else self.status.model_dump_json()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
