"""A swarm server of the standard library that keeps the wire protocol and misbehaves on request.

``faults`` holds, by the first words of a request (``POST /swarm/v1/episodes``), what to do with the next ones:
a number is answered as that HTTP status; ``cut`` closes the connection before anything happens; ``lost`` does the work
and closes the connection instead of answering; ``half`` does the work and sends half of the answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ajet.schema.errors import (
    AjetError,
    EngineFailed,
    EpisodeGone,
    IncompleteReward,
    InvalidKey,
    JobConflict,
    NotFound,
    TrainingFinished,
    error_body,
)


class FakeSwarm:
    """State of the fake server; every attribute may be read and changed by a test."""

    def __init__(self, port: int = 0, key: str | None = None) -> None:
        self.lock = threading.Condition()
        self.key = key
        self.state = "ROLLING"
        self.failure: str | None = None
        self.step = 0
        self.batch_step = 0
        self.history: list[dict[str, Any]] = []
        self.experiment_dir: str | None = "/exp"
        self.num_repeat = 4
        self.beat_s: float | None = None
        self.agreements: list[dict[str, Any]] = []
        self.goodbyes: list[str] = []
        self.job: dict[str, Any] | None = None
        self.capacity = 10_000
        self.finish_after: int | None = None
        self.granted: dict[str, dict[str, Any]] = {}
        self.open: set[str] = set()
        self.ended: dict[str, dict[str, Any]] = {}
        self.aborted: dict[str, str] = {}
        self.gone: dict[str, str] = {}
        self.answers: dict[str, tuple[int, Any]] = {}
        self.beats: list[tuple[float, list[str]]] = []
        self.requests: list[str] = []
        self.status_queries: list[dict[str, str]] = []
        self.connections = 0
        self.faults: dict[str, list[Any]] = defaultdict(list)
        self.refuse_result: str | None = None
        self.knows_goodbye = True
        self.retry_after: str | None = None
        self.http = _Server(("127.0.0.1", port), _Handler)
        self.http.swarm = self
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def set_state(self, state: str, failure: str | None = None) -> None:
        with self.lock:
            self.state, self.failure = state, failure
            self.lock.notify_all()

    def until(self, condition: Any, timeout: float = 10.0) -> None:
        """Wait until ``condition()`` holds, looking again after every request."""
        with self.lock:
            assert self.lock.wait_for(condition, timeout), "the expected never happened"

    def take_fault(self, line: str) -> Any:
        with self.lock:
            for prefix, queue in self.faults.items():
                if line.startswith(prefix) and queue:
                    return queue.pop(0)
        return None

    # ── routes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        route = path.removeprefix("/swarm/v1")
        request_id = (body or {}).get("request_id")
        with self.lock:
            if request_id in self.answers:
                return self.answers[request_id]
            status, reply = self.route(method, route, query, body)
            if request_id and status != 202:
                self.answers[request_id] = (status, reply)
            return status, reply

    def route(self, method: str, route: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if (method, route) == ("GET", "/status"):
            self.status_queries.append(query)
            wanted = query.get("wait_state", "").split(",")
            if query.get("wait_s"):
                batch = int(query.get("wait_batch", 1 << 30))
                self.lock.wait_for(
                    lambda: self.state in [*wanted, "FAILED"] or self.batch_step >= batch,
                    min(float(query["wait_s"]), 5.0),
                )
            return 200, {
                "state": self.state,
                "since": 0.0,
                "failure": self.failure,
                "step": self.step,
                "batch_step": self.batch_step,
                "experiment_dir": self.experiment_dir,
                "pool": {"rule": "r", "num_repeat": self.num_repeat},
                "total_steps": 25,
            }
        if (method, route) == ("GET", "/metrics/history"):
            return 200, {"steps": [step for step in self.history if step["step"] > int(query["since"])]}
        if (method, route) == ("PUT", "/job"):
            running = self.job if self.state not in ("OFFLINE", "FAILED") else None
            if running is not None and running != body["job"]:
                diff = {"rollout.num_repeat": [running["rollout"]["num_repeat"], body["job"]["rollout"]["num_repeat"]]}
                raise JobConflict(
                    "The engine runs another job. Stop it first: `ajet-swarm stop`.", details={"diff": diff}
                )
            self.job = body["job"]
            return 200, {"job": self.job, "state": self.state}
        if route == "/engine/start":
            if self.state == "OFFLINE":
                self.state = "BOOTING"
                threading.Timer(0.05, self.set_state, ["ROLLING"]).start()
            return 200, {"state": self.state}
        if route == "/engine/stop":
            self.state = "OFFLINE"
            self.lock.notify_all()
            return 200, {"state": self.state}
        if (method, route) == ("GET", "/episodes"):
            return 200, {"episodes": [{"episode_id": e} for e in sorted(self.open)], "total": len(self.open)}
        if (method, route) == ("POST", "/episodes"):
            return self.begin(body)
        if route == "/agree":
            self.agreements.append(body)
            return 200, {"step": body["step"], "counted": True, "agreed": [body["client_id"]]}
        if route == "/heartbeat":
            if body.get("leaving"):
                self.goodbyes.append(body["client_id"])
                own = [e for e in self.open if self.granted[e]["client_id"] == body["client_id"]]
                for episode in own if self.knows_goodbye else []:
                    self.abort(episode, {"reason": "client closed: the episode was still open"})
            self.beats.append((time.monotonic(), body["episodes"]))
            gone = {e: self.gone_reason(e) for e in body["episodes"] if e not in self.open}
            return 200, {"alive": len(self.open), "gone": gone, "state": self.state, "policy_version": 0}
        if route.startswith("/episodes/"):
            _, _, episode, verb = route.split("/")
            return getattr(self, verb)(episode, body)
        raise NotFound(f"no route {route}")

    def gone_reason(self, episode: str) -> str:
        return self.gone.get(episode) or self.aborted.get(episode) or "ended"

    def begin(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.knows_goodbye and body["client_id"] in self.goodbyes:
            raise EpisodeGone("The client was closed.")
        if self.state == "FAILED":
            raise EngineFailed(f"The engine has failed: {self.failure}")
        over = self.finish_after is not None and len(self.ended) >= self.finish_after
        if (over or self.state == "FINISHED") and body["kind"] == "train":
            self.state = "FINISHED"
            raise TrainingFinished("Training is finished: total_training_steps is reached.")
        free = self.lock.wait_for(
            lambda: self.state in ("ROLLING", "FINISHED") and len(self.open) < self.capacity, min(body["wait_s"], 0.3)
        )
        if not free:
            return 202, {"reason": "capacity", "message": "all episodes are open", "state": self.state}
        episode = f"ep{len(self.granted)}"
        self.granted[episode] = body
        self.open.add(episode)
        return 201, {
            "episode_id": episode, "api_key": f"ajet-ep.{episode}.sig", "base_url": "http://inside:1/v1",
            "kind": body["kind"], "policy_version": 0, "discard_episode_timeout": body["discard_episode_timeout"],
            "beat_s": self.beat_s,
        }  # fmt: skip

    def check(self, episode: str, body: dict[str, Any]) -> tuple[int, Any]:
        if episode not in self.open:
            raise EpisodeGone(
                f"Episode {episode} is gone: {self.gone_reason(episode)}.", details=self.gone_details(episode)
            )
        if self.refuse_result is not None:
            raise IncompleteReward(self.refuse_result)
        return 200, {"episode_id": episode, "calls": 1}

    def gone_details(self, episode: str) -> dict[str, Any]:
        return {"fate": "pooled" if episode in self.ended else "aborted"}

    def end(self, episode: str, body: dict[str, Any]) -> tuple[int, Any]:
        if episode not in self.open:
            raise EpisodeGone(
                f"Episode {episode} is gone: {self.gone_reason(episode)}.", details=self.gone_details(episode)
            )
        self.open.discard(episode)
        assert episode not in self.ended
        self.ended[episode] = body
        return 200, {
            "episode_id": episode, "task_id": body["task"]["task_id"], "fate": "pooled", "calls": 1, "policy_version": 0,
        }  # fmt: skip

    def abort(self, episode: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.open.discard(episode)
        self.aborted.setdefault(episode, body["reason"])
        return 200, {"episode_id": episode, "reason": self.aborted[episode]}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    swarm: FakeSwarm

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Cut connections are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.swarm.connections += 1

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        swarm = self.server.swarm
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        line = f"{self.command} {parts.path}"
        with swarm.lock:
            swarm.requests.append(line)
            swarm.lock.notify_all()
        fault = swarm.take_fault(line)
        if fault == "cut":
            self.close_connection = True
            return
        if isinstance(fault, int):
            self._send(fault, {"error": {"message": "told to", "code": {507: "disk_refused"}.get(fault, "x")}})
            return
        try:
            if swarm.key is not None and self.headers.get("authorization") != f"Bearer {swarm.key}":
                raise InvalidKey("This needs the admin key.")
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, reply = swarm.answer(self.command, parts.path, query, json.loads(body) if body else None)
        except AjetError as err:
            status, reply = err.http_status, error_body(err)
        with swarm.lock:
            swarm.lock.notify_all()
        if fault == "lost":
            self.close_connection = True
            return
        self._send(status, reply, half=fault == "half")

    do_GET = do_POST = do_PUT = _serve

    def _send(self, status: int, reply: Any, half: bool = False) -> None:
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        if self.server.swarm.retry_after is not None and status in (429, 503):
            self.send_header("retry-after", self.server.swarm.retry_after)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if half else content)
        self.wfile.flush()
        if half:
            self.close_connection = True
