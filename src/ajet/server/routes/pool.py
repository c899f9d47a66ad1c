"""``GET /pool`` and the training curves."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from ajet.pool import journal_read
from ajet.pool.groups import task_space
from ajet.schema.status import GroupView, MetricsHistory, PoolAnswer
from ajet.server.engine import Engine
from ajet.server.http import json_response, whole_number
from ajet.server.metrics import line
from ajet.server.routes.route import SWARM, Route
from ajet.server.status import pool_fill

GROUP_LIMIT = 2000


async def pool(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    experiment = engine.experiment
    if experiment is None or experiment.pool is None or experiment.registry is None:
        return json_response(PoolAnswer(fill=None, groups=[], drops={}, dropped_tokens={}))
    registry, waiting = experiment.registry, experiment.pool
    open_by_task = Counter((task_space(e.opened.share), e.opened.task) for e in registry.open.values() if e.opened.task)
    now = registry.now()
    groups = []
    for group in waiting.groups()[:GROUP_LIMIT]:
        mean, std = group.reward_mean_std()
        complete = len(group.members) == waiting.num_repeat
        groups.append(
            GroupView(
                task_id=group.task,
                share=group.share,
                finished=len(group.members),
                needed=waiting.num_repeat,
                open=0 if complete else open_by_task[group.key],
                complete=complete,
                reward_mean=mean,
                reward_std=std,
                episodes=[member.episode for member in group.members],
                age_s=round(now - group.opened, 3),
            )
        )
    return json_response(
        PoolAnswer(
            fill=pool_fill(waiting),
            groups=groups,
            drops=registry.tally("drop"),
            dropped_tokens=registry.tally("tokens"),
        )
    )


async def history(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    since = whole_number(request.query_params.get("since", "0"), 9, "since")
    if engine.experiment is None:
        return json_response(MetricsHistory(steps=[]))
    steps = await asyncio.to_thread(journal_read.steps, engine.experiment.journal.path, since)
    return json_response(MetricsHistory(steps=[line(step) for step in steps]))


ROUTES = [
    Route("GET", f"{SWARM}/pool", pool, "Groups and how complete they are; drops by reason.", answer=PoolAnswer),
    Route(
        "GET",
        f"{SWARM}/metrics/history",
        history,
        "The training curves: the lines of metrics.jsonl.",
        answer=MetricsHistory,
        query={"since": {"type": "integer", "minimum": 0, "maximum": 999_999_999, "default": 0}},
    ),
]
