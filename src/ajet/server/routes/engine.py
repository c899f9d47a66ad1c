"""``PUT /job``, ``GET /job``, ``POST /engine/start`` and ``/engine/stop``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ajet.schema.wire import EngineAnswer, JobAnswer, JobRequest
from ajet.server.engine import Engine
from ajet.server.http import json_response, read_model
from ajet.server.routes.route import SWARM, Route


async def put_job(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    wanted = await read_model(request, JobRequest)
    changed = engine.put_job(wanted.job)
    assert engine.job is not None
    return json_response(JobAnswer(job=engine.job.model_dump(mode="json"), state=engine.state, changed=changed))


async def get_job(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    job = engine.job.model_dump(mode="json") if engine.job else None
    return json_response(JobAnswer(job=job, state=engine.state))


async def start(request: Request) -> Response:
    return json_response(EngineAnswer(state=await request.app.state.engine.start()))


async def stop(request: Request) -> Response:
    return json_response(EngineAnswer(state=await request.app.state.engine.stop()))


ROUTES = [
    Route(
        "PUT",
        f"{SWARM}/job",
        put_job,
        "Set the job; 409 with the difference while another one runs.",
        request=JobRequest,
        answer=JobAnswer,
    ),
    Route("GET", f"{SWARM}/job", get_job, "The resolved job.", answer=JobAnswer),
    Route("POST", f"{SWARM}/engine/start", start, "Boot the engine. Idempotent; returns at once.", answer=EngineAnswer),
    Route(
        "POST",
        f"{SWARM}/engine/stop",
        stop,
        "Finish the update, save, go OFFLINE. Idempotent; returns at once.",
        answer=EngineAnswer,
    ),
]
