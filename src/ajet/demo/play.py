"""``ajet-swarm play werewolves``: a person takes a seat, against scripted players or a trained policy.

Without a policy nothing but the client's packages is needed. With one, a loopback server serves the checkpoint for as
long as the game lasts (or a running server is asked), and the game is an eval episode there: never trained.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ajet.demo.lines import Lines
from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.endpoint import POLICY_TIMEOUT_S, Endpoint
from ajet.envs.werewolves.engine import Game
from ajet.envs.werewolves.full import Conversation, Language
from ajet.envs.werewolves.person import Person, PersonLeft, Tone
from ajet.envs.werewolves.play import Player, play_game
from ajet.envs.werewolves.players import Compact, ModelPlayer, Scripted
from ajet.envs.werewolves.recording import SUFFIX, GameRecorder
from ajet.envs.werewolves.replay import EpisodeRef, Replay, save
from ajet.envs.werewolves.rules import BoardOptions, side_of
from ajet.envs.werewolves.strengths import Strength, scripted_player
from ajet.envs.werewolves.workflow import COMPACT_MODELS
from ajet.monitor.overwatch.drawing import clean
from ajet.monitor.replay.join import join
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, ConfigError
from ajet.schema.task import Task, WorkflowOutput

POLICY_ROLES = ("werewolf", "seer")
POLICY_BUDGET_S = 900.0
LABEL = "played by a person"
_STYLES: dict[Tone, str] = {
    "news": "", "public": "bold", "ask": "bold cyan", "wrong": "yellow", "help": "dim", "title": "bold magenta",
}  # fmt: skip
_W: dict[Language, dict[str, str]] = {
    "en": {
        "left": "You left the table; the game is not kept.", "won": "You won.", "lost": "You lost.", "drawn": "Nobody won.",
        "god": "— What really happened —", "kept": "replay  {path}\nwatch   ajet-swarm replay {path}",
        "not_kept": "The replay could not be written to {path}: {why}.",
        "booting": "starting the policy …",
    },
    "zh": {
        "left": "你离开了牌桌，本局不保留。", "won": "你赢了。", "lost": "你输了。", "drawn": "平局。",
        "god": "— 真相 —", "kept": "回放  {path}\n观看  ajet-swarm replay {path}",
        "not_kept": "回放无法写入 {path}：{why}。",
        "booting": "正在启动策略……",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """What was asked for on the command line.

    Attributes:
        role: of the person; ``any`` takes what the deal gives.
        policy: a checkpoint or model directory, a model's name, or None. swarm_url: a running server to ask instead.
        policy_roles: who of the others is played by the policy.
        config: the job to serve a policy with, where the shipped one does not fit it.
        replay: where the replay goes; None makes a name in this folder.
    """

    role: str = "any"
    language: Language = "en"
    seed: int | None = None
    policy: str | None = None
    swarm_url: str | None = None
    policy_roles: tuple[str, ...] = POLICY_ROLES
    opponents: Strength = "normal"
    config: Path | None = None
    replay: Path | None = None


def run(table: Table, console: Console | None = None) -> int:
    """Play. Returns the exit code: 0 when the game was played to its end, 130 when the person left.

    Raises:
        ConfigError: a role, language or policy that does not exist.
        AjetError: the policy could not be served.
    """
    _check(table)
    console = console or Console(highlight=False, emoji=False, markup=False, soft_wrap=not sys.stdout.isatty())
    try:
        with ExitStack() as stack:
            if table.policy is None and table.swarm_url is None:
                seed = _seed(table)
                replay = asyncio.run(_play(table, console, seed, EpisodeRef(kind="play", label=LABEL), None))
                _keep(table, console, replay, seed)
                return 0
            console.print(_W[table.language]["booting"], style="dim")
            url = table.swarm_url or stack.enter_context(_served(table))
            return _play_with_policy(table, console, url)
    except (KeyboardInterrupt, PersonLeft):
        console.print()
        console.print(_W[table.language]["left"], style="yellow")
        return 130


def _check(table: Table) -> None:
    roles = sorted({role.value for role in BoardOptions().roles})
    if table.role not in (*roles, "any"):
        raise ConfigError(f"--role is any, {', '.join(roles)}; not {table.role!r}.")
    unknown = sorted(set(table.policy_roles) - set(roles))
    if unknown:
        raise ConfigError(f"--policy-roles takes roles out of {', '.join(roles)}; not {', '.join(unknown)}.")
    for option, value, allowed in (
        ("--language", table.language, ("en", "zh")),
        ("--opponents", table.opponents, ("easy", "normal", "hard")),
    ):
        if value not in allowed:
            raise ConfigError(f"{option} is one of {', '.join(allowed)}; not {value!r}.")
    if table.policy is not None and table.swarm_url is not None:
        raise ConfigError("--policy serves a checkpoint, --swarm-url asks a running server. Give one of them.")


def _play_with_policy(table: Table, console: Console, url: str) -> int:
    from ajet.client import SwarmClient

    client = SwarmClient(url, verbose=False)
    try:
        seed = _seed(table)
        task = Task(task_id=f"play-{seed}-{os.getpid()}-{time.time_ns()}", metadata={"split": "eval"})
        with client.episode(task, episode_type="eval") as episode:  # aborts by itself where the person leaves
            where = EpisodeRef(episode_id=episode.episode_uuid, task_id=task.task_id, kind="play", label=LABEL)
            replay = asyncio.run(_play(table, console, seed, where, episode.api))
            episode.end(WorkflowOutput(reward={s.name: s.reward for s in replay.seats if s.reward is not None}))
        try:
            replay = join(replay, client.get_episode(replay.episode.episode_id, tokens=True)).replay
        except AjetError as err:  # the game is played; only its log-probs are missing
            console.print(err.message, style="yellow")
    finally:
        client.close()
    _keep(table, console, replay, seed)
    return 0


def _seed(table: Table) -> int:
    return random.SystemRandom().randrange(10**6) if table.seed is None else table.seed


async def _play(
    table: Table, console: Console, seed: int, where: EpisodeRef, api: OpenaiBaseUrlAndApiKey | None
) -> Replay:
    """Play to the end; with ``api`` the policy behind it plays its roles."""
    game = Game(f"play-{seed}")
    rng = random.Random(f"table-{seed}")
    board = Board(game)
    seat = rng.choice([i for i, role in enumerate(game.roles) if table.role in ("any", role.value)])
    recorder = GameRecorder(game, table.language)
    person = _person(table, console, game, seat, recorder)
    async with AsyncExitStack() as stack:
        endpoint = None
        if api is not None:
            endpoint = await stack.enter_async_context(
                Endpoint(api.base_url, api.model, POLICY_BUDGET_S, POLICY_TIMEOUT_S, rng=random.Random(rng.random()))
            )
        players: dict[int, Player] = {seat: person}
        models: dict[int, ModelPlayer] = {}
        one_call: set[int] = set()
        for other, role in enumerate(game.roles):
            own = random.Random(rng.random())
            if other == seat:
                continue
            if endpoint is None or api is None or role.value not in table.policy_roles:
                players[other] = Scripted(scripted_player(game, board, other, own, table.opponents))
                continue
            compact = api.model.startswith(COMPACT_MODELS)
            if compact:
                one_call.add(other)
            style = Compact(game, board) if compact else Conversation(game, other, table.language)
            models[other] = ModelPlayer(
                style, endpoint, api.for_agent(f"Player{other + 1}", role.value).api_key, rng=own
            )
            models[other].record = recorder.exchange
            players[other] = models[other]
            recorder.sits(other, "policy", api.model)
        game.one_call = frozenset(one_call)
        person.greet()
        await play_game(game, players, recorder.watch)
    person.catch_up()
    won = game.winner == side_of(game.roles[seat])
    console.print()
    console.print(_W[table.language]["drawn" if game.winner == "draw" else "won" if won else "lost"], style="bold")
    rewards = {
        f"Player{i + 1}": 0.5 if game.winner == "draw" else float(game.winner == side_of(game.roles[i]))
        for i, player in models.items()
        if player.calls
    }
    return recorder.replay(where, str(game.seed), rewards)


def _person(table: Table, console: Console, game: Game, seat: int, recorder: GameRecorder) -> Person:
    lines = Lines()
    echoed = not sys.stdin.isatty()  # what a script answers is shown, as a person's typing is

    def tell(words: str, tone: Tone) -> None:
        console.print(clean_lines(words), style=_STYLES[tone])

    async def ask(question: str) -> str:
        console.print(f"{clean_lines(question)} ", style=_STYLES["ask"], end="")
        line = await lines.next()
        if echoed:
            console.print(clean(line))
        return line

    recorder.sits(seat, "person")
    return Person(game, seat, table.language, tell, ask, recorder.exchange)


def clean_lines(words: str) -> str:
    """Nothing in it that a terminal would obey, line by line."""
    return "\n".join(map(clean, words.split("\n")))


def _keep(table: Table, console: Console, replay: Replay, seed: int) -> None:
    """God's view, and where the replay is."""
    from ajet.monitor.replay.text import whole

    words = _W[table.language]
    console.print(words["god"], style="bold magenta")
    for line in whole(replay, "god", table.language, console.width, private=False):
        console.print(line)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(replay.created))
    path = table.replay or Path(f"werewolves-{seed}-{stamp}{SUFFIX}")
    try:
        save(replay, path)
    except OSError as err:
        console.print(words["not_kept"].format(path=path, why=err.strerror), style="yellow")
        return
    console.print()
    console.print(words["kept"].format(path=path), soft_wrap=True)


@contextmanager
def _served(table: Table) -> Iterator[str]:
    """A loopback server with the policy, for as long as the block runs; its folder goes with it."""
    from ajet.client import SwarmClient
    from ajet.copilot.job import AgentJetJob
    from ajet.demo.werewolves import child, config_path, free_port, terminated

    policy = Path(table.policy or "").expanduser()
    job = AgentJetJob(base_yaml_config=str(table.config or config_path()), experiment_name="play")
    if table.policy != job.config.model.path:
        if not (policy / "config.json").is_file():
            raise ConfigError(
                f"--policy: {policy} is no checkpoint (it has no config.json). Name a directory such as "
                f"saved_experiments/…/checkpoints/step_000045, or {job.config.model.path} for the model training starts from."
            )
        if table.config is None and not (policy / "build.json").is_file():
            raise ConfigError(
                f"{policy} is not a checkpoint of the built-in Werewolves model. Give --config a job that fits it (its "
                "lengths, its device); model.path is taken from --policy."
            )
        job.config.model.served_name = job.config.model.served_name or Path(job.config.model.path).name
        job.config.model.path = str(policy.resolve())
    job.check()
    signal.signal(signal.SIGTERM, terminated)  # so that the server is ended with this process
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ajet-play-")))
        job.config.experiment_dir = str(home)
        server = child(
            stack,
            [sys.executable, "-m", "ajet.cli", "start", "--swarm-port", str(port), "--exp-dir", str(home / "server")],
            home / "server.log",
        )
        client = SwarmClient(url, verbose=False)
        try:
            client.auto_sync_train_config_and_start_engine(job)
        except AjetError as err:
            if server.process.poll() is None:
                raise
            raise AjetError(
                f"The policy's server ended with code {server.process.returncode}:\n{server.tail()}"
            ) from err
        finally:
            client.close()
        yield url
