"""``ajet-swarm``: start, demo, eval, status, overwatch, passive, stop, doctor, replay-journal, inspect, replay, play, skill. Each command imports what it needs when it runs, so ``--help`` is instant."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ajet.schema.errors import AjetError

app = typer.Typer(
    name="ajet-swarm",
    help="Serve and train one language model for agents that run anywhere.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
demo_app = typer.Typer(help="Train an example on this machine, with progress and a report.", no_args_is_help=True)
app.add_typer(demo_app, name="demo")
eval_app = typer.Typer(help="Measure checkpoints on fixed deals, with intervals.", no_args_is_help=True)
app.add_typer(eval_app, name="eval")
play_app = typer.Typer(help="Play a game yourself.", no_args_is_help=True)
app.add_typer(play_app, name="play")

Url = Annotated[
    str,
    typer.Option("--swarm-url", envvar="AJET_SWARM_URL", help="The swarm server. The key comes from AJET_SWARM_KEY."),
]
DEFAULT_URL = "http://127.0.0.1:10086"


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


@demo_app.command("werewolves")
def demo_werewolves(
    trainable: Annotated[
        str, typer.Option(help="Trainable roles of the board, comma-separated: werewolf, seer, witch, …")
    ] = "werewolf,seer",
    steps: Annotated[int | None, typer.Option(help="Training steps; default: the configuration's.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the deals' order and of the trainer.")] = 0,
    exp_dir: Annotated[Path, typer.Option(help="Folder of experiments.")] = Path("saved_experiments"),
    swarm_port: Annotated[int, typer.Option(help="Port of the server; 0 = any free one.", min=0, max=65535)] = 0,
    config: Annotated[Path | None, typer.Option(help="Another job configuration.", exists=True, dir_okay=False)] = None,
    eval_games: Annotated[int, typer.Option(help="Held-out deals to play before and after; 0 = none.", min=0)] = 600,
    live: Annotated[
        str,
        typer.Option(
            help="With opposed roles: 'alternate' trains one side a deal against scripted players, 'both' plays them against each other."
        ),
    ] = "alternate",
    board: Annotated[
        str | None,
        typer.Option(
            help="Another board: a preset (classic-9, starter-6, guard-8, idiot-10, guard-12, idiot-12) or counts, such as werewolf=4,villager=4,seer=1,witch=1,hunter=1,guard=1."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run even where an unfinished one could be continued.")
    ] = False,
) -> None:
    """Werewolves, nine players or another board: a server and a client on this machine, and a curve that rises."""
    from ajet.demo import werewolves

    code = werewolves.run(
        trainable=trainable, steps=steps, seed=seed, exp_dir=exp_dir, port=swarm_port, config=config,
        eval_games=eval_games, live=live, board=board, fresh=fresh,
    )  # fmt: skip
    raise typer.Exit(code)


@eval_app.command("werewolves")
def eval_werewolves(
    policy: Annotated[
        str | None, typer.Option(help="The checkpoint to measure; a run's folder means its newest one.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="A second checkpoint, on the same deals: the difference is paired.")
    ] = None,
    opponents: Annotated[
        str, typer.Option(help="Who plays the other roles: scripted, frozen:CHECKPOINT, or an OpenAI-compatible URL.")
    ] = "scripted",
    games: Annotated[
        int,
        typer.Option(help="Games a role (with --elo: a pairing). Multiples of 9 seat every role everywhere.", min=1),
    ] = 90,
    roles: Annotated[
        str, typer.Option(help="Roles that the policy plays, one at a time, comma-separated; default: all.")
    ] = "",
    elo: Annotated[
        str | None, typer.Option(metavar="RUN_DIR", help="Rate all checkpoints of a run against each other instead.")
    ] = None,
    checkpoints: Annotated[
        int, typer.Option(help="With --elo: checkpoints at most, spread over the run.", min=2, max=12)
    ] = 6,
    opponent_model: Annotated[
        str | None, typer.Option(help="With a URL: the model's name there. Key: AJET_OPPONENT_API_KEY.")
    ] = None,
    strength: Annotated[str, typer.Option(help="Of scripted players: easy, normal, hard.")] = "normal",
    temperature: Annotated[
        float | None, typer.Option(help="Default: what the run was trained at, else 1.", min=0, max=10)
    ] = None,
    prompt_style: Annotated[str, typer.Option(help="auto, compact or full.")] = "auto",
    language: Annotated[str, typer.Option(help="Of full prompts: en or zh.")] = "en",
    first_deal: Annotated[int, typer.Option(help="First of the held-out deals.", min=0)] = 0,
    max_parallel: Annotated[int, typer.Option(help="Games at once.", min=1, max=200)] = 24,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file as well.")] = None,
) -> None:
    """Play held-out Werewolves deals with a checkpoint in every role and report metrics by role; or rate a run's Elo."""
    from ajet.evaluation import command

    options = command.Options(
        games=games, roles=roles, strength=strength, opponent_model=opponent_model, temperature=temperature,
        prompt_style=prompt_style, language=language, first_deal=first_deal, parallel=max_parallel, json_path=json_file,
    )  # fmt: skip
    if (policy is None) == (elo is None):
        raise AjetError("Say what to measure: --policy CHECKPOINT, or --elo RUN_DIR.")
    if elo is not None:
        command.rate_run(elo, options, checkpoints)
    elif policy is not None:
        command.evaluate(policy, against, opponents, options)


@app.command()
def status(
    swarm_url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as it is.")] = False,
) -> None:
    """Show what a swarm server is doing."""
    from ajet.client import SwarmClient

    client = SwarmClient(swarm_url, verbose=False, retry_budget_s=0)
    state = client.get_status()
    if as_json:
        print(json.dumps(state, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in _flat(state):
        table.add_row(key, str(value))
    Console().print(table)


def _flat(tree: dict, prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{key}.")
        elif value not in (None, {}, []):
            rows.append((prefix + key, f"{value:.4g}" if isinstance(value, float) else value))
    return rows


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


@app.command()
def doctor(
    path: Annotated[Path, typer.Argument(help="An experiment's folder, or a folder of experiments.")] = Path(
        "saved_experiments"
    ),
    backbone: Annotated[
        str | None, typer.Option(help="Look at this backbone instead (embedded, verl): boot it, sample, train a step.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what an experiment holds and whether it is sound: journal, checkpoints, disk, machine."""
    from ajet.server.doctor import examine, examine_machine, experiments

    if backbone in ("embedded", "verl"):
        import asyncio

        from ajet.server.backbone_check import examine_backbone

        reports = [asyncio.run(examine_backbone(backbone)), examine_machine()]
    elif backbone is not None:
        raise typer.BadParameter("embedded or verl", param_hint="--backbone")
    else:
        reports = [*(examine(folder) for folder in experiments(path)), examine_machine()]
    sound = all(report.sound for report in reports)
    if as_json:
        print(json.dumps({"sound": sound, "reports": [report.to_dict() for report in reports]}, indent=1))
        raise typer.Exit(0 if sound else 1)
    from rich.console import Console

    console = Console(highlight=False)
    marks = {"ok": "[green]✓[/]", "note": "[yellow]![/]", "bad": "[red]✗[/]"}
    for report in reports:
        console.print(f"[bold]{report.name}[/]")
        for key, value in _flat(report.facts):
            console.print(f"    {key:26} {value}", markup=False)
        for found in report.findings:
            console.print(f"  {marks[found.level]} {found.about} {found.words}")
    raise typer.Exit(0 if sound else 1)


@app.command("replay-journal")
def replay_journal(
    experiment: Annotated[Path, typer.Argument(help="The experiment's folder, or its journal.sqlite.", exists=True)],
    out: Annotated[
        Path | None, typer.Option(help="Save the final model and trainer state into this new folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a run again from its journal alone, in one go, and compare every step's weights with the record."""
    import asyncio

    from rich.console import Console
    from rich.progress import Progress

    from ajet.server.replaying import replay_journal as replay

    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise AjetError(f"--out: {out} exists already. Name a new or empty folder.")
        out.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), disable=as_json or not sys.stderr.isatty()) as bar:
        task = bar.add_task("re-applying steps", total=None)

        def progress(step: int, last: int, same: bool) -> None:
            bar.update(task, completed=step, total=last)
            if not same:
                bar.print(f"step {step}: the weights are not those on record")

        result = asyncio.run(replay(experiment, out=out, progress=progress))
    for note in result.notes:
        print(f"note: {note} Sums may differ in their last bits, and digests with them.", file=sys.stderr)
    if as_json:
        print(json.dumps({**vars(result), "ok": not result.diverged}))
    else:
        begun = f"the checkpoint of step {result.start}" if result.start else "the initial model"
        agree = "every digest agrees" if not result.diverged else f"{len(result.diverged)} digests differ"
        print(f"{result.steps} steps re-applied from {begun}: {agree}. Weights: {result.digest[:16] or 'unchanged'}")
        if result.diverged:
            print(f"first difference at step {result.diverged[0]}", file=sys.stderr)
    raise typer.Exit(1 if result.diverged else 0)


@app.command()
def inspect(
    episode: Annotated[str, typer.Argument(help="An episode's id, or 'last' for the newest one with calls.")] = "last",
    swarm_url: Url = DEFAULT_URL,
    exp_dir: Annotated[
        Path | None, typer.Option(help="Read an experiment's folder instead of asking a server.", exists=True)
    ] = None,
    detect: Annotated[
        bool, typer.Option("--detect", help="Say why agents fork: which message differs, and what to do.")
    ] = False,
    episodes: Annotated[
        int,
        typer.Option(
            help="With --detect and --exp-dir: look at so many of the newest episodes; 0 = at EPISODE.", min=0
        ),
    ] = 0,
    tokens: Annotated[bool, typer.Option("--tokens", help="One line a token.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the episode as JSON.")] = False,
) -> None:
    """Show an episode's tokens as training reads them: owner, mask, log-prob, advantage; or why its agents fork."""
    from rich.console import Console

    from ajet.monitor.inspect import show_episode, show_forks

    console = Console(highlight=False, soft_wrap=True)
    if exp_dir is not None:
        from ajet.server.inspecting import LAST, branched_calls, detail_of_folder
        from ajet.server.jobs import journal_of

        if detect and episodes:
            if episode != LAST:
                raise AjetError("--episodes looks at the newest ones. Leave EPISODE out, or leave --episodes out.")
            causes, branched = branched_calls(journal_of(exp_dir)[0], episodes)
            show_forks(console, causes, ((name, call.to_wire()) for name, call in branched))
            return
        found = detail_of_folder(exp_dir, episode, tokens=not detect)
    else:
        from ajet.client import SwarmClient

        if episodes:
            raise AjetError("--episodes reads a journal. Name the experiment's folder with --exp-dir.")
        client = SwarmClient(swarm_url, verbose=False, retry_budget_s=0)
        found = client.get_episode(episode, tokens=not detect)
    if as_json:
        print(json.dumps(found))
    elif detect:
        branched = ((found["episode_id"], c) for c in found["calls"] if c["branch"] not in ("first", "continues"))
        show_forks(console, found["branches"], branched)
    else:
        show_episode(console, found, table=tokens)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A recorded game of Werewolves (*.replay.json).")],
    once: Annotated[bool, typer.Option("--once", help="Print the game as plain text.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one page that works offline.", dir_okay=False)] = None,
    view: Annotated[str, typer.Option(help="god, public, wolves, or a player's number.")] = "god",
    language: Annotated[str | None, typer.Option(help="en or zh; default: the game's.")] = None,
    replies: Annotated[
        bool, typer.Option("--replies", help="With --once: prompts, private words and replies.")
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Add log-probs and advantages from this swarm server to FILE."),
    ] = None,
    exp_dir: Annotated[
        Path | None, typer.Option(help="Add them from an experiment's folder instead.", exists=True)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the joined replay here, not into FILE.", dir_okay=False)
    ] = None,
) -> None:
    """Play a recorded game in the terminal, by day and night, through anybody's eyes; or make a page of it."""
    from ajet.monitor.replay.command import replay as show

    show(
        file, once=once, html=html, view=view, language=language, private=replies, join_url=join, exp_dir=exp_dir,
        out=out,
    )  # fmt: skip


@play_app.command("werewolves")
def play_werewolves(
    role: Annotated[str, typer.Option(help="werewolf, seer, witch, hunter, villager, or any.")] = "any",
    language: Annotated[str, typer.Option(help="en or zh.")] = "en",
    policy: Annotated[
        str | None, typer.Option(help="A checkpoint to play against; without it everybody else is scripted.")
    ] = None,
    swarm_url: Annotated[
        str | None, typer.Option(help="Play against the policy of a running server instead of a checkpoint.")
    ] = None,
    policy_roles: Annotated[str, typer.Option(help="Whom the policy plays, comma-separated.")] = "werewolf,seer",
    opponents: Annotated[str, typer.Option(help="Scripted players: easy, normal or hard.")] = "normal",
    seed: Annotated[int | None, typer.Option(help="The deal; default: any.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Job to serve --policy with, if not the shipped one.", exists=True, dir_okay=False),
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Where the replay goes; default: this folder.")] = None,
) -> None:
    """Nine-player Werewolves: take a seat. Reads lines from a terminal or a pipe; Ctrl-C leaves."""
    from ajet.demo.play import Table, run

    table = Table(
        role=role, language=language, seed=seed, policy=policy, swarm_url=swarm_url, opponents=opponents,  # type: ignore[arg-type]
        policy_roles=tuple(r.strip() for r in policy_roles.split(",") if r.strip()), config=config, replay=replay,
    )  # fmt: skip
    raise typer.Exit(run(table))


@app.command()
def skill(
    into: Annotated[
        Path | None, typer.Option(help="Write INTO/ajet/SKILL.md, the folder of your assistant's skills, instead.")
    ] = None,
) -> None:
    """Print what a coding assistant needs to train an agent with AgentJet, as a skill file."""
    from ajet.copilot.skill import install, skill_text

    print(skill_text() if into is None else install(into), end="\n" if into else "")


def main() -> None:
    """Entry point: errors made on purpose are one line, not a traceback."""
    try:
        app()
    except AjetError as err:
        print(f"ajet-swarm: {err.message}", file=sys.stderr)
        if os.environ.get("AJET_DEBUG"):
            raise
        sys.exit(1)
    except ModuleNotFoundError as err:
        if os.environ.get("AJET_DEBUG") or (err.name or "ajet").split(".")[0] == "ajet":
            raise
        print(
            f"ajet-swarm: this command needs {err.name}, which is not installed. Run: pip install 'agentjet[server]'",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
