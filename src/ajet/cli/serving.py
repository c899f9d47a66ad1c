"""Commands of servers: start, status, overwatch, passive, stop. Each imports what it needs when it runs, so ``--help`` is instant."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.app import DEFAULT_URL, Url, app
from ajet.schema.errors import AjetError


@app.command()
def start(
    swarm_port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 10086,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anything but loopback demands the admin key.")
    ] = "127.0.0.1",
    exp_dir: Annotated[Path, typer.Option(help="Folder of experiments: journals, checkpoints, metrics.")] = Path(
        "saved_experiments"
    ),
    config: Annotated[
        Path | None, typer.Option(help="Start the engine with this job at once.", exists=True, dir_okay=False)
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder of the server's log; default: beside what it tells of.", file_okay=False)
    ] = None,
) -> None:
    """Start a swarm server. A job that was running in --exp-dir is resumed by itself."""
    try:
        from ajet.server.main import serve
    except ImportError as err:
        raise AjetError(
            f"The server is not installed ({err.name} is missing). Run: pip install 'agentjet[server]'"
        ) from err
    serve(host=host, port=swarm_port, exp_dir=exp_dir, config=config, log_dir=log_dir)


@app.command()
def status(
    swarm_url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as it is.")] = False,
) -> None:
    """Show what a swarm server is doing, in a dozen lines; --json has it all."""
    from ajet.client import SwarmClient
    from ajet.monitor.overwatch.once import print_summary
    from ajet.schema.status import Status

    client = SwarmClient(swarm_url, verbose=False, retry_budget_s=0)
    state = client.get_status()
    if as_json:
        print(json.dumps(state, indent=1))
        return
    print_summary(client.server_url, Status.model_validate(state))


@app.command("top", hidden=True)
@app.command()
def overwatch(
    swarm_url: Url = DEFAULT_URL,
    refresh_interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2, max=3600.0)] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame as plain text; exit code 1 if no server answers.")
    ] = False,
) -> None:
    """Watch a swarm server in the terminal, before, while and after it runs (also: top). q quits."""
    from ajet.monitor.overwatch.command import overwatch as watch

    watch(swarm_url, refresh_interval, once)


@app.command()
def passive(
    judge: Annotated[
        str, typer.Option(help="file.py:function or package.module:function; see docs/passive-client.md.")
    ],
    swarm_url: Url = DEFAULT_URL,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anything but loopback demands AJET_PASSIVE_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 = any free one.", min=0, max=65535)] = 10087,
    config: Annotated[
        Path | None, typer.Option(help="Start the engine with this job.", exists=True, dir_okay=False)
    ] = None,
    fallback_url: Annotated[
        str | None,
        typer.Option(
            help="OpenAI-compatible endpoint that serves while the swarm server cannot. Key: AJET_FALLBACK_API_KEY."
        ),
    ] = None,
    fallback_model: Annotated[
        str | None, typer.Option(help="The model's name there; default: what was asked for.")
    ] = None,
    ignore: Annotated[
        str, typer.Option(help="Fields of requests to leave out, so that they can be trained: temperature,top_p,…")
    ] = "",
    max_requests: Annotated[
        int, typer.Option(help="Requests answered at once; each holds num_repeat episodes.", min=1)
    ] = 16,
) -> None:
    """Stand between an application and the model: its users' requests train the model, and get the best answer."""
    from ajet.passive import PassiveClient, PlainEndpoint
    from ajet.passive.command import serve
    from ajet.passive.judge import load_judge
    from ajet.passive.settings import FALLBACK_KEY_VARIABLE, Bounds

    job = None
    if config is not None:
        from ajet.copilot.job import AgentJetJob

        job = AgentJetJob(base_yaml_config=config)
    fallback = None
    if fallback_url is not None:
        fallback = PlainEndpoint(fallback_url, fallback_model, os.environ.get(FALLBACK_KEY_VARIABLE))
    client = PassiveClient(
        swarm_url, load_judge(judge), job=job, fallback=fallback, bounds=Bounds(max_requests=max_requests),
        ignore=[name.strip() for name in ignore.split(",") if name.strip()],
    )  # fmt: skip
    serve(client, host, port)


@app.command()
def stop(swarm_url: Url = DEFAULT_URL) -> None:
    """Stop the engine: the running update is finished and a checkpoint saved. The server stays up."""
    from ajet.client import SwarmClient

    client = SwarmClient(swarm_url, verbose=False, retry_budget_s=0)
    client.stop_engine()
    print(client.get_engine_status())
