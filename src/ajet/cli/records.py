"""Commands about what a run left behind, and the skill file: doctor, replay-journal, inspect, skill."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.app import DEFAULT_URL, Url, app, flat
from ajet.schema.errors import AjetError


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
        for key, value in flat(report.facts):
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
def skill(
    into: Annotated[
        Path | None, typer.Option(help="Write INTO/ajet/SKILL.md, the folder of your assistant's skills, instead.")
    ] = None,
) -> None:
    """Print what a coding assistant needs to train an agent with AgentJet, as a skill file."""
    from ajet.copilot.skill import install, skill_text

    print(skill_text() if into is None else install(into), end="\n" if into else "")
