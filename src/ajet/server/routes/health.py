"""``/healthz``, ``/readyz`` and the Prometheus text at ``/metrics``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from ajet.schema.wire import EngineState
from ajet.server.engine import SERVING, Engine
from ajet.server.http import json_response
from ajet.server.routes.route import SWARM, Route
from ajet.server.status import status


class Health(BaseModel):
    """``GET /healthz``."""

    status: str


class Readiness(BaseModel):
    """``GET /readyz``: 200 while chat calls and episodes are served (or wait for an update), else 503."""

    status: str
    state: EngineState


async def healthz(_request: Request) -> Response:
    return json_response(Health(status="ok"))


async def readyz(request: Request) -> Response:
    state = request.app.state.engine.state
    ready = state in SERVING or state is EngineState.UPDATING
    return json_response(Readiness(status="ready" if ready else "not ready", state=state), 200 if ready else 503)


class _Collector:
    """The server's counters at the moment of the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        now = status(self._engine)
        state = GaugeMetricFamily("ajet_engine_state", "1 for the state the engine is in", labels=["state"])
        for one in EngineState:
            state.add_metric([one.value], float(one is now.state))
        yield state
        gauges = {
            "ajet_step": ("Optimizer steps done", now.step),
            "ajet_total_steps": ("Optimizer steps wanted", now.total_steps),
            "ajet_open_episodes": ("Open train episodes", now.leases.open_train),
            "ajet_open_eval_episodes": ("Open eval episodes", now.leases.open_eval),
            "ajet_eval_episodes": ("Eval episodes that ended since the last step", now.eval.episodes),
            "ajet_eval_reward": ("Their mean reward", now.eval.reward if now.eval.reward is not None else math.nan),
            "ajet_waiting_begins": ("Requests waiting for a lease", now.leases.waiting_train + now.leases.waiting_eval),
            "ajet_clients": ("Clients with open episodes", now.leases.clients),
            "ajet_groups_complete": ("Complete groups in the pool", now.pool.groups_complete if now.pool else 0),
            "ajet_groups_partial": ("Partial groups in the pool", now.pool.groups_partial if now.pool else 0),
            "ajet_chat_in_flight": ("Chat calls in flight", now.speeds.in_flight),
            "ajet_disk_ok": ("1 while the journal's disk takes writes", float(now.disk.ok)),
            "ajet_disk_refusing_seconds": (
                "For how long the journal's disk has refused writes",
                max(0.0, time.time() - now.disk.since) if now.disk.since else 0.0,
            ),
            "ajet_disk_write_seconds": ("What the journal's last write took, fsync included", now.disk.write_s),
            "ajet_disk_stalled_seconds": ("For how long a write has not come back", now.disk.stalled_s),
            "ajet_disk_free_bytes": ("Free space where the experiment lies", now.disk.free_bytes or 0),
            "ajet_journal_free_bytes": ("Free space where the journal lies", now.disk.journal_free_bytes or 0),
            "ajet_journal_bytes": ("Size of the journal", now.disk.journal_bytes or 0),
            "ajet_checkpoint_step": ("Step of the newest checkpoint", now.checkpoint.step or 0),
            "ajet_checkpoints_refused": ("Saves the disk refused since the newest checkpoint", now.checkpoint.refused),
            "ajet_checkpoint_wanted_bytes": (
                "What the next save is estimated to take",
                now.checkpoint.wanted_bytes or 0,
            ),
        }
        for name, (words, value) in gauges.items():
            yield GaugeMetricFamily(name, words, value=value)
        counters = {
            "ajet_chat_calls": ("Chat calls answered", now.speeds.calls),
            "ajet_sampled_tokens": ("Tokens sampled", now.speeds.sampled_tokens),
            "ajet_trained_tokens": ("Tokens trained", now.speeds.trained_tokens),
            "ajet_respelled_replies": (
                "Calls whose chat template spells the reply before them otherwise than it was sampled",
                self._engine.telemetry.respelled,
            ),
        }
        for name, (words, value) in counters.items():
            yield CounterMetricFamily(name, words, value=value)
        failures = CounterMetricFamily("ajet_tracker_failures", "Times a tracker failed or hung", labels=["tracker"])
        for tracker in now.trackers:
            failures.add_metric([tracker.name], tracker.failures)
        yield failures
        for name, words, values in (
            ("ajet_dropped_episodes", "Episodes not trained, by reason", now.drops),
            ("ajet_held_begins", "Requests for an episode that were held back, by reason", now.held),
            ("ajet_dropped_tokens", "Sampled tokens not trained, by reason", now.dropped_tokens),
            ("ajet_timelines", "Recorded calls, by why they branch or do not", dict(self._engine.telemetry.branches)),
            ("ajet_server", "Errors and incidents", dict(self._engine.telemetry.counts)),
        ):
            family = CounterMetricFamily(name, words, labels=["reason"])
            for key, count in values.items():
                family.add_metric([key], count)
            yield family


async def metrics(request: Request) -> Response:
    registry = CollectorRegistry()
    registry.register(_Collector(request.app.state.engine))  # type: ignore[arg-type]
    return Response(generate_latest(registry), media_type=f"{_TEXT}; charset=utf-8")


_TEXT = "text/plain; version=0.0.4"

ROUTES = [
    Route("GET", "/healthz", healthz, "The process is alive.", "open", answer=Health),
    Route(
        "GET",
        "/readyz",
        readyz,
        "The engine serves.",
        "open",
        answer=Readiness,
        also={503: Readiness},
        statuses=(200, 503),
    ),
    Route("GET", "/metrics", metrics, "Prometheus text.", media=_TEXT),
    Route("GET", f"{SWARM}/metrics", metrics, "Prometheus text.", media=_TEXT),
]
