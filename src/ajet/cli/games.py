"""Commands of the games that ship: demo, eval, replay, play."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.app import app
from ajet.schema.errors import AjetError

demo_app = typer.Typer(help="Train an example on this machine, with progress and a report.", no_args_is_help=True)
app.add_typer(demo_app, name="demo")
eval_app = typer.Typer(help="Measure checkpoints on fixed deals, with intervals.", no_args_is_help=True)
app.add_typer(eval_app, name="eval")
play_app = typer.Typer(help="Play a game yourself.", no_args_is_help=True)
app.add_typer(play_app, name="play")


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
    further: Annotated[
        bool, typer.Option("--continue", help="Train the last run of these roles and seed further, to --steps in all.")
    ] = False,
) -> None:
    """Werewolves, nine players or another board: a server and a client on this machine, and a curve that rises."""
    from ajet.demo import werewolves

    code = werewolves.run(
        trainable=trainable, steps=steps, seed=seed, exp_dir=exp_dir, port=swarm_port, config=config,
        eval_games=eval_games, live=live, board=board, fresh=fresh, further=further,
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
