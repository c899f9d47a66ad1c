"""Several servers, one model each: started together.

Promises: every job is checked before the first server hears of any; all servers are told at once and all are waited
for; one that fails leaves the others as they are, serving, and the error says which failed, why, and which serve.
Calling it again joins those that serve and starts the rest.

Their episodes, begun and ended together, are :mod:`ajet.client.multi_model`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.default_config.load import check_config
from ajet.schema.errors import AjetError, ConfigError, EnginesNotStarted

if TYPE_CHECKING:
    from ajet.client.async_client import AsyncSwarmClient
    from ajet.client.swarm_client import SwarmClient
    from ajet.copilot.job import AgentJetJob

T = TypeVar("T")


def start_engines(pairs: Iterable[tuple[SwarmClient, AgentJetJob]], force_restart: bool = False) -> None:
    """Send each job to its client's server and start the engines, all at once; return when every one serves.

    Args:
        pairs: a client and its job, one pair a server.
        force_restart: as of :meth:`SwarmClient.auto_sync_train_config_and_start_engine`, for each of them.

    Raises:
        ConfigError: a job that no server would take, or two pairs for one server. Nothing was sent.
        EnginesNotStarted: names each server that failed, with its cause. The others serve, and go on serving.
    """
    pairs = list(pairs)
    check_pairs(pairs)

    def starter(client: SwarmClient, job: AgentJetJob) -> Callable[[], str]:
        def start() -> str:
            client.auto_sync_train_config_and_start_engine(job, force_restart=force_restart)
            return client.server_url

        return start

    raise_if_any_failed(at_once({client.server_url: starter(client, job) for client, job in pairs}))


async def start_engines_async(
    pairs: Iterable[tuple[AsyncSwarmClient, AgentJetJob]], force_restart: bool = False
) -> None:
    """:func:`start_engines` for :class:`AsyncSwarmClient`."""
    pairs = list(pairs)
    check_pairs(pairs)
    results = await asyncio.gather(
        *(client.auto_sync_train_config_and_start_engine(job, force_restart) for client, job in pairs),
        return_exceptions=True,
    )
    raise_if_any_failed({client.server_url: result for (client, _), result in zip(pairs, results, strict=True)})


def check_pairs(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Raises :class:`ConfigError` for what no server would take, before anything is sent."""
    if not pairs:
        raise ConfigError("There is no engine to start. Give a list of (client, job) pairs.")
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and hasattr(pair[0], "server_url")):
            raise ConfigError(f"Give a list of (client, job) pairs; {pair!r} is none.")
    refuse_shared_server({str(i): client for i, (client, _) in enumerate(pairs)}, "has two jobs here")
    for client, job in pairs:
        if job is None:  # the one that the client was made with
            continue
        try:
            check_config(getattr(job, "config", job))
        except ConfigError as err:
            raise ConfigError(f"The job for {client.server_url}: {err.message}", param=err.param) from err


def refuse_shared_server(clients: Mapping[str, Any], words: str) -> None:
    """Raises :class:`ConfigError` where two of ``clients`` talk to one server."""
    urls = [client.server_url for client in clients.values()]
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        raise ConfigError(
            f"{', '.join(twice)} {words}: a server holds one model. Start a second server for the second model, or "
            "let two roles share one model, each under its own tag (api.for_agent(name, tag))."
        )


def raise_if_any_failed(results: Mapping[str, Any]) -> None:
    """Raises :class:`EnginesNotStarted` where a server's result is an exception; its cause is the first of them."""
    failed = {url: result for url, result in results.items() if isinstance(result, BaseException)}
    if not failed:
        return
    for error in failed.values():
        if not isinstance(error, Exception):  # Ctrl-C, a cancelled task: nothing to explain
            raise error
    serving = [url for url in results if url not in failed]
    lines = [f"  {url}: {_words(error)}" for url, error in failed.items()]
    left = (
        f"Left serving: {', '.join(serving)}. Mend the cause and call this again: engines that serve are joined."
        if serving
        else "Mend the cause and call this again."
    )
    raise EnginesNotStarted(
        "\n".join([f"{len(failed)} of {len(results)} engines were not started:", *lines, left]),
        details={"failed": {url: _words(error) for url, error in failed.items()}, "serving": serving},
    ) from next(iter(failed.values()))


def at_once(work: Mapping[str, Callable[[], T]]) -> dict[str, T | BaseException]:
    """Run each of ``work`` in a thread of its own and wait for all. Returns results, or what was raised instead.

    The threads inherit the context (so they know whose run this is) and are daemons: Ctrl-C leaves without them.
    """
    done: queue.SimpleQueue[tuple[str, T | BaseException]] = queue.SimpleQueue()

    def run(name: str, call: Callable[[], T]) -> None:
        try:
            done.put((name, call()))
        except BaseException as err:  # the thread's boundary: handed to who waits
            done.put((name, err))

    for name, call in work.items():
        context = copy_context()
        threading.Thread(target=context.run, args=(run, name, call), name=f"ajet-{name}", daemon=True).start()
    found = dict(done.get() for _ in work)
    return {name: found[name] for name in work}


def _words(error: BaseException) -> str:
    return error.message if isinstance(error, AjetError) else f"{type(error).__name__}: {error}"
