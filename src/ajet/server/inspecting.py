"""One episode whole, from the journal: what ``GET /episodes/{id}`` and ``ajet-swarm inspect`` show.

Reads the journal only, so it works beside a running server and without one.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from ajet.backbone import model_dir
from ajet.default_config.schema import AjetConfig
from ajet.pool import journal_read
from ajet.pool.records import unpack_call
from ajet.schema.errors import ConfigError, NotFound
from ajet.schema.wire import EpisodeDetail
from ajet.server.jobs import journal_of
from ajet.trajectory import ChatRenderer, build_rows
from ajet.trajectory.calls import Call
from ajet.trajectory.view import view_samples

log = logging.getLogger("ajet.inspect")

LAST = "last"
"""Names the newest episode that has calls."""
_LATER_VERSION = 2**31 - 1


def detail(
    path: Path,
    episode_id: str,
    config: AjetConfig,
    *,
    version: int = _LATER_VERSION,
    tokens: bool = False,
    renderer: ChatRenderer | None = None,
) -> EpisodeDetail:
    """The episode.

    Args:
        path: the journal.
        config: the job, for the limits on what is trained.
        version: the policy version now; a batch of a later step is not trained yet.
        tokens: with its samples, token by token. renderer: for the tokens' texts.

    Raises:
        NotFound: there is no such episode.
    """
    if episode_id == LAST:
        episode_id = _newest(path) or LAST
    record = journal_read.episode(path, episode_id)
    if record is None:
        raise NotFound(f"There is no episode {episode_id}.")
    done = record.done
    fate, reason = "open", None
    if done is not None:
        fate, reason = (done.fate, None) if done.how == "end" else ("aborted", done.reason)
    if record.dropped is not None:
        fate, reason = "dropped", record.dropped
    elif record.step is not None:
        fate = "trained" if record.step <= version else "pooled"
    body = done.body if done is not None else {}
    found = EpisodeDetail(
        episode_id=episode_id,
        kind=record.lease.kind,  # type: ignore[arg-type]
        client_id=record.lease.client,
        task_id=body.get("task") or record.lease.task,
        fate=fate,
        reason=reason,
        step=record.step,
        reward=body.get("reward"),
        is_success=body.get("is_success"),
        advantages=record.advantages,
        branches=dict(Counter(call.branch for call in record.calls)),
        calls=[call.to_wire() for call in record.calls],
    )
    limits = config.data.max_prompt_length, config.data.max_response_length, config.rollout.max_model_len
    lag = config.swarm.max_policy_lag
    min_version = record.step - 1 - lag if record.step is not None else -_LATER_VERSION
    takes_part = record.lease.kind == "train" and fate in ("open", "pooled", "trained")
    if takes_part and record.calls:
        _, dropped = build_rows(
            episode_id, "", record.calls, {call.agent: 0.0 for call in record.calls},
            limits=limits, min_version=min_version,
        )  # fmt: skip
        found.dropped_tokens = dict(dropped)
    if tokens:
        found.samples = view_samples(
            record.calls,
            limits=limits,
            min_version=min_version,
            takes_part=takes_part,
            texts=renderer.token_texts if renderer is not None else None,
        )
    return found


def _newest(path: Path) -> str | None:
    with closing(journal_read.connect(path)) as db:
        row = db.execute("SELECT episode FROM lease WHERE n = (SELECT max(n) FROM call)").fetchone()
        return row[0] if row else None


def detail_of_folder(folder: Path, episode_id: str, *, tokens: bool = True) -> dict[str, Any]:
    """The episode from an experiment's folder, as the server would answer it. Texts where the model's tokenizer is here.

    Raises:
        ConfigError: there is no journal, or it holds no job. NotFound: there is no such episode.
    """
    path, _ = journal_of(folder)
    jobs = journal_read.jobs(path)
    if not jobs:
        raise ConfigError(f"The journal {path} holds no job yet.")
    config = jobs[-1][1]
    renderer = None
    if tokens:
        try:
            renderer = ChatRenderer(model_dir(config.model.path))
        except ConfigError:
            log.warning("the tokenizer of %s cannot be loaded here: tokens are shown by id", config.model.path)
    return detail(path, episode_id, config, tokens=tokens, renderer=renderer).model_dump(mode="json")


def branched_calls(path: Path, newest: int) -> tuple[Counter[str], list[tuple[str, Call]]]:
    """Calls of the newest episodes by cause, and those that start a branch, newest episode first.

    Args:
        newest: of so many episodes.
    """
    causes: Counter[str] = Counter()
    branched: list[tuple[str, Call]] = []
    with closing(journal_read.connect(path)) as db:
        rows: sqlite3.Cursor = db.execute(
            """SELECT l.episode, c.body FROM call c JOIN lease l USING(n)
               WHERE c.n > (SELECT max(n) FROM call) - ? ORDER BY c.n DESC, c.k""",
            (newest,),
        )
        for episode, body in rows:
            call = unpack_call(body)
            causes[call.branch] += 1
            if call.branch not in ("first", "continues"):
                branched.append((episode, call))
    return causes, branched
