"""Episodes: begin, end, abort, heartbeat, list and look."""

from __future__ import annotations

import asyncio
import json
import time

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ajet.schema.errors import EngineFailed, EngineUnavailable, InvalidRequest, NotFound
from ajet.schema.wire import (
    AbortAnswer,
    AbortRequest,
    AgreeAnswer,
    AgreeRequest,
    BeginAnswer,
    BeginRequest,
    CheckAnswer,
    EndAnswer,
    EndRequest,
    EngineState,
    EpisodeDetail,
    EpisodeList,
    EpisodeSummary,
    HeartbeatAnswer,
    HeartbeatRequest,
    NotYet,
)
from ajet.server.engine import Engine
from ajet.server.episode import OpenEpisode
from ajet.server.http import json_response, read_model, read_parsed, until_disconnect
from ajet.server.inspecting import detail
from ajet.server.routes.route import SWARM, Route
from ajet.server.sharing import takes_part
from ajet.server.status import served_name

END_WAIT_S = 60.0
"""How long an end or abort waits for a booting server before it gets its 503."""
OFFLINE_WAIT_S = 3.0
"""How long a begin waits for somebody to start an engine before its client is told that there is none."""
LIST_LIMIT = 1000
_WHY = {
    EngineState.OFFLINE: "offline",
    EngineState.BOOTING: "booting",
    EngineState.UPDATING: "updating",
    EngineState.STOPPING: "stopping",
}


async def begin(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    wanted = await read_model(request, BeginRequest)
    with request.app.state.begins.enter(wanted.client_id):
        granted = await until_disconnect(request.receive, _begin(engine, wanted))
    if granted is None:
        why = _WHY.get(engine.state, "capacity")
        registry = engine.experiment.registry if engine.experiment else None
        if why == "capacity" and registry is not None and registry.sharing.held(wanted):
            why = "share"
        words = {
            "share": "This client is far enough ahead of its share of the next batch; others catch up.",
            "capacity": "All max_env_worker episodes are open; one must end first.",
            "offline": "No engine is running. Set a job and start it.",
        }.get(why, f"The engine is {engine.state}.")
        return json_response(NotYet(reason=why, message=f"{words} Ask again.", state=engine.state), 202)
    host = request.headers.get("host") or f"{engine.settings.host}:{engine.settings.port}"
    answer = BeginAnswer(
        model=served_name(engine) or "policy",
        episode_id=granted.id,
        api_key=request.app.state.keys.episode_key(granted.id),
        base_url=f"{request.url.scheme}://{host}/v1",
        kind=granted.opened.kind,  # type: ignore[arg-type]
        policy_version=granted.opened.version,
        discard_episode_timeout=granted.opened.timeout_s,
        beat_s=_beat_s(engine, wanted),
    )
    return json_response(answer, 201)


def _beat_s(engine: Engine, wanted: BeginRequest) -> float | None:
    registry = engine.experiment.registry if engine.experiment else None
    return registry.sharing.beat_s if registry is not None and takes_part(wanted) else None


async def _begin(engine: Engine, wanted: BeginRequest) -> OpenEpisode | None:
    if wanted.task_id is not None and not wanted.task_id.strip():
        raise InvalidRequest("task_id is empty. Leave it out, or name the task.", param="task_id")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wanted.wait_s
    while True:
        if engine.state is EngineState.FINISHED and wanted.kind == "train":
            raise engine.finished_error()
        engine.check_disk()
        if engine.state is EngineState.FAILED:
            raise EngineFailed(f"The engine failed: {engine.failure}")
        experiment = engine.experiment
        left = max(0.0, deadline - loop.time())
        if experiment is not None and experiment.registry is not None and not engine.tearing_down:
            registry = experiment.registry
            return await registry.admission.begin(wanted, left)
        if not left:
            return None
        if engine.state is EngineState.OFFLINE and not engine.resuming:
            # Nobody may ever start it: say so soon, and not only when the client's patience is over.
            left = min(left, OFFLINE_WAIT_S)
            deadline = loop.time() + left
        seen = engine.state
        await engine.changed.wait_until(
            lambda state=seen: (
                engine.state is not state
                or (
                    engine.experiment is not None and engine.experiment.registry is not None and not engine.tearing_down
                )
            ),
            left,
        )


async def end(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    result, metadata = await read_parsed(request, _parse_end)
    registry = await engine.wait_registry(END_WAIT_S)
    return json_response(await registry.end(request.path_params["id"], result, metadata))


async def check(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    result, _ = await read_parsed(request, _parse_end)
    registry = await engine.wait_registry(END_WAIT_S)
    episode = request.path_params["id"]
    return json_response(CheckAnswer(episode_id=episode, calls=await registry.check(episode, result)))


def _parse_end(body: bytes) -> tuple[EndRequest, str]:
    """A result, and its metadata as the text that is kept.

    What a game says of itself may be megabytes: as objects it would live until the disk has it, for nobody to read.
    """
    try:
        # The quick way; what it does not take (NaN, half a character, a wrong type) goes the way that names the fault.
        tree = orjson.loads(body)
        metadata = tree["output"].pop("metadata", {})
        if isinstance(metadata, dict):
            text = orjson.dumps(metadata).decode()
            del metadata
            return EndRequest.model_validate(tree), text
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    result = EndRequest.model_validate_json(body)
    return result, json.dumps(result.output.metadata, default=str)


async def abort(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    wanted = await read_model(request, AbortRequest)
    registry = await engine.wait_registry(END_WAIT_S)
    episode = request.path_params["id"]
    return json_response(AbortAnswer(episode_id=episode, reason=await registry.abort(episode, wanted)))


async def heartbeat(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    beat = await read_model(request, HeartbeatRequest)
    registry = engine.experiment.registry if engine.experiment and not engine.tearing_down else None
    alive, gone = 0, {}
    if registry is not None:
        if beat.leaving:
            await registry.leave(beat.client_id)
            alive, missing = 0, beat.episodes or []
        else:
            alive, missing = registry.heartbeat(beat.client_id, beat.episodes)
        for episode in missing[:10_000]:
            try:
                gone[episode] = (await registry.fates.of(episode)).reason
            except (NotFound, EngineUnavailable):
                gone[episode] = "unknown here"
            except Exception as err:
                gone[episode] = str(err)
    return json_response(HeartbeatAnswer(alive=alive, gone=gone, state=engine.state, policy_version=engine.version))


async def agree(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    wanted = await read_model(request, AgreeRequest)
    registry = await engine.wait_registry(END_WAIT_S)
    return json_response(await registry.sharing.agree(wanted.client_id, wanted.step))


def _summary(episode: OpenEpisode, now: float) -> EpisodeSummary:
    opened = episode.opened
    return EpisodeSummary(
        episode_id=episode.id,
        client_id=opened.client,
        kind=opened.kind,  # type: ignore[arg-type]
        task_id=opened.task,
        calls=len(episode.trajectory.calls),
        in_flight=len(episode.in_flight),
        age_s=round(time.time() - opened.created, 3),
        idle_s=0.0 if episode.in_flight else round(now - episode.lease.seen, 3),
        discard_episode_timeout=opened.timeout_s,
        policy_version=opened.version,
    )


async def list_open(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    registry = engine.experiment.registry if engine.experiment else None
    episodes = list(registry.open.values()) if registry else []
    now = registry.now() if registry else 0.0
    found = sorted((_summary(e, now) for e in episodes), key=lambda e: -e.idle_s)
    return json_response(EpisodeList(episodes=found[:LIST_LIMIT], total=len(found)))


async def one(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    if engine.experiment is None:
        raise NotFound("No experiment is loaded, so there is no episode to look at.")
    experiment = engine.experiment
    found = await asyncio.to_thread(
        detail,
        experiment.journal.path,
        request.path_params["id"],
        experiment.config,
        version=engine.version,
        tokens=request.query_params.get("tokens") == "true",
        renderer=experiment.renderer,
    )
    return json_response(found)


ROUTES = [
    Route(
        "POST",
        f"{SWARM}/episodes",
        begin,
        "Begin an episode; waits until it is granted.",
        request=BeginRequest,
        answer=BeginAnswer,
        also={202: NotYet},
        statuses=(201, 202, 409),
    ),
    Route("GET", f"{SWARM}/episodes", list_open, "Open episodes, longest idle first.", answer=EpisodeList),
    Route(
        "GET",
        f"{SWARM}/episodes/{{id}}",
        one,
        "One episode whole: calls, tokens, log-probs, rewards, advantages, fate.",
        answer=EpisodeDetail,
        query={"tokens": {"type": "boolean", "description": "With the samples training reads, token by token."}},
    ),
    Route(
        "POST",
        f"{SWARM}/episodes/{{id}}/end",
        end,
        "Report an episode's result. Idempotent.",
        request=EndRequest,
        answer=EndAnswer,
        statuses=(200, 410, 507),
    ),
    Route(
        "POST",
        f"{SWARM}/episodes/{{id}}/check",
        check,
        "Say whether /end would take this result now; records nothing.",
        request=EndRequest,
        answer=CheckAnswer,
        statuses=(200, 410),
    ),
    Route(
        "POST",
        f"{SWARM}/episodes/{{id}}/abort",
        abort,
        "End an episode without a result. Idempotent.",
        request=AbortRequest,
        answer=AbortAnswer,
        statuses=(200, 410, 507),
    ),
    Route(
        "POST",
        f"{SWARM}/heartbeat",
        heartbeat,
        "One sign of life for all of a client's episodes; or its goodbye.",
        request=HeartbeatRequest,
        answer=HeartbeatAnswer,
        statuses=(200, 507),
    ),
    Route(
        "POST",
        f"{SWARM}/agree",
        agree,
        "Agree to the next weight update, for the collection rules that ask. Idempotent.",
        request=AgreeRequest,
        answer=AgreeAnswer,
        statuses=(200, 507),
    ),
]
