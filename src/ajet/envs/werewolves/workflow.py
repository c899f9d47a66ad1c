"""Nine-player Werewolves as an episode: who plays which seat, and what each gets for it.

Reward, per player: 1 if the player's side won, 0 if it lost, 0.5 for a draw, minus ``format_penalty`` times the share
of that player's own replies that could not be used. It is keyed by agent name; each agent's tag is its role, so that
groups are formed by (deal, role) and opposed sides never share a baseline.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

from ajet.envs.loop import run_shared
from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.breaker import breaker_for
from ajet.envs.werewolves.endpoint import POLICY_TIMEOUT_S, STATIC_TIMEOUT_S, Endpoint
from ajet.envs.werewolves.engine import Game
from ajet.envs.werewolves.full import Conversation, Language
from ajet.envs.werewolves.limits import gate_for, limiter_for
from ajet.envs.werewolves.metrics import measure, shares
from ajet.envs.werewolves.play import Player, play_game
from ajet.envs.werewolves.players import Compact, ModelPlayer, Scripted, Style
from ajet.envs.werewolves.presets import BoardConfig, board_options
from ajet.envs.werewolves.recording import GameRecorder, ReplayFolder
from ajet.envs.werewolves.replay import EpisodeRef
from ajet.envs.werewolves.rules import Role, side_of
from ajet.envs.werewolves.strengths import STRENGTHS, Strength, scripted_player
from ajet.envs.werewolves.usage import Prices
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task, Workflow, WorkflowOutput, WorkflowTask

COMPACT_MODELS = "ajet-tiny"
"""Models whose name begins so were taught the compact prompts."""
WOLF_TURNS = 3
"""Alternating sides: the wolves have one turn in this many. Three wolves speak in each of their games, one seer in hers."""
Apis = OpenaiBaseUrlAndApiKey | Mapping[str, OpenaiBaseUrlAndApiKey]
KEY_VARIABLES = ("AJET_OPPONENT_API_KEY", "OPENAI_API_KEY")


class ExampleWerewolves(Workflow):
    """Plays one game.

    Args:
        trainable_targets: roles that speak through the model in training.
        big_external_opponent_llm_name, big_external_opponent_llm_url: a static model for the other roles, on any
            OpenAI-compatible endpoint. Without a URL they are scripted players.
        big_external_opponent_llm_api_key: its key; else ``AJET_OPPONENT_API_KEY`` or ``OPENAI_API_KEY``.
        options: the board: a preset's name, counts of roles, or options with either under ``board``; see
            :func:`~ajet.envs.werewolves.presets.board_options`. A job file keeps them under ``env.werewolves``.
        prompt_style: ``compact`` for models that were taught it, ``full`` for real ones; ``auto`` goes by the name.
        compact_models: beginnings of names of models that ``auto`` asks by compact prompts.
        live: with targets on both sides: ``alternate`` lets the wolves be live in every third deal and the good targets
            in the others, the other side scripted (a group always the same); ``both`` plays them against each other, each
            credited for its own result. ``alternate`` is the default: it is the one that was measured (docs/werewolves.md).
        group_draws: what the episodes of a group share beside the deal. ``common``: all that is drawn (ties, speech
            order, the scripted players' hunches), so that rewards within a group differ by what the policy did and by
            little else; ``own``: each episode draws anew.
        temperature: of the policy's calls; left out, the job's.
        opponents: strength of scripted players.
        format_penalty: largest loss of reward for replies that could not be used.
        external_budget_s: how long a failing static endpoint is retried before the game is void.
        external_concurrency: calls to the static endpoint at once, over the whole process.
        external_requests_per_min, external_tokens_per_min: bounds on them in any minute, over the whole process.
        external_breaker_failures: so many failures in a row make the process leave the static endpoint alone for a while.
        external_prices: per million tokens, such as ``{"input": 0.15, "output": 0.6}``: adds ``static/cost``.
        frozen_opponents: models that the swarm server serves beside the policy and never trains: ``frozen`` (the initial
            weights), ``frozen:<name>`` (one of ``model.frozen``, or a checkpoint of the same run as ``step_000010``).
            One name for all roles that are not live, or a dict by role; roles it leaves out are scripted.
        record: where replays of some games are kept; a disk that refuses them never touches a game.

    Raises:
        ConfigError: an unknown role, or an option that does not exist.
    """

    def __init__(
        self,
        trainable_targets: Sequence[str] | None = ("werewolf", "seer"),
        big_external_opponent_llm_name: str | None = None,
        big_external_opponent_llm_url: str | None = None,
        big_external_opponent_llm_api_key: str | None = None,
        *,
        options: BoardConfig = None,
        prompt_style: Literal["auto", "compact", "full"] = "auto",
        language: Language = "en",
        live: Literal["alternate", "both"] = "alternate",
        group_draws: Literal["common", "own"] = "common",
        temperature: float | None = None,
        opponents: Strength = "normal",
        format_penalty: float = 0.5,
        external_budget_s: float = 600.0,
        external_timeout_s: float = STATIC_TIMEOUT_S,
        external_concurrency: int = 64,
        external_requests_per_min: int | None = None,
        external_tokens_per_min: int | None = None,
        external_breaker_failures: int = 10,
        external_prices: Prices | Mapping[str, float] | None = None,
        policy_budget_s: float = 900.0,
        frozen_opponents: str | Mapping[str, str] | None = None,
        compact_models: tuple[str, ...] = (COMPACT_MODELS,),
        record: ReplayFolder | None = None,
    ) -> None:
        self.options = board_options(options)
        if isinstance(trainable_targets, str):
            trainable_targets = [trainable_targets]
        trainable_targets = trainable_targets or ()
        known = sorted({role.value for role in self.options.roles})
        unknown = sorted(set(trainable_targets) - set(known))
        if unknown or not trainable_targets:
            raise ConfigError(
                f"trainable_targets may name {', '.join(known)}; not {', '.join(unknown) or 'nobody'}.",
                param="trainable_targets",
            )
        for name, value, allowed in (
            ("prompt_style", prompt_style, ("auto", "compact", "full")),
            ("live", live, ("alternate", "both")),
            ("group_draws", group_draws, ("common", "own")),
            ("language", language, ("en", "zh")),
            ("opponents", opponents, tuple(STRENGTHS)),
        ):
            if value not in allowed:
                raise ConfigError(f"{name} is one of {', '.join(allowed)}; not {value!r}.", param=name)
        if bool(big_external_opponent_llm_url) != bool(big_external_opponent_llm_name):
            raise ConfigError(
                "A static model needs both big_external_opponent_llm_name and big_external_opponent_llm_url.",
                param="big_external_opponent_llm_url"
                if big_external_opponent_llm_name
                else "big_external_opponent_llm_name",
            )
        self.frozen_opponents = _by_role(frozen_opponents, known)
        if self.frozen_opponents and big_external_opponent_llm_url:
            raise ConfigError(
                "Give the other roles either frozen_opponents or a static model (big_external_opponent_llm_url), not both.",
                param="frozen_opponents",
            )
        for name, bound in (
            ("external_concurrency", external_concurrency),
            ("external_requests_per_min", external_requests_per_min),
            ("external_tokens_per_min", external_tokens_per_min),
            ("external_breaker_failures", external_breaker_failures),
        ):
            if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
                raise ConfigError(f"{name} is a whole number of at least 1; not {bound!r}.", param=name)
        self.targets = tuple(Role(t) for t in dict.fromkeys(trainable_targets))
        self.external_name, self.external_url = big_external_opponent_llm_name, big_external_opponent_llm_url
        self._external_key = big_external_opponent_llm_api_key or next(
            (os.environ[v] for v in KEY_VARIABLES if os.environ.get(v)), "none"
        )
        self.compact_models = compact_models
        self.prompt_style, self.live, self.group_draws = prompt_style, live, group_draws
        self.language: Language = language
        self.opponents: Strength = opponents
        self.temperature, self.format_penalty = temperature, format_penalty
        self.external_budget_s, self.external_timeout_s = external_budget_s, external_timeout_s
        self.external_concurrency, self.policy_budget_s = external_concurrency, policy_budget_s
        self.external_requests_per_min = external_requests_per_min
        self.external_tokens_per_min = external_tokens_per_min
        self.external_breaker_failures = external_breaker_failures
        self.external_prices = Prices.of(external_prices)
        self.record = record

    # ── what a task decides ──────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def deal_number(task: Task) -> int:
        """The deal of a task: its ``random_number``, else a hash of its id that is the same everywhere."""
        number = task.metadata.get("random_number")
        if isinstance(number, int) and not isinstance(number, bool):
            return number
        return int.from_bytes(hashlib.sha256(task.task_id.encode()).digest()[:6], "big")

    @classmethod
    def deal_seed(cls, task: Task) -> str:
        """Held-out deals have a name space of their own."""
        return f"{'eval' if task.metadata.get('split') == 'eval' else 'train'}-{cls.deal_number(task)}"

    def live_roles(self, task: Task) -> tuple[Role, ...]:
        """The targets that speak through the model in this task's games."""
        sides = {side_of(role) for role in self.targets}
        if len(sides) < 2 or self.live == "both":
            return self.targets
        wolves_turn = self.deal_number(task) % WOLF_TURNS == 0
        return tuple(r for r in self.targets if (r is Role.WEREWOLF) == wolves_turn)

    def _apis(self, api: Apis) -> dict[Role, OpenaiBaseUrlAndApiKey]:
        """Target → the endpoint that it speaks through."""
        if not isinstance(api, Mapping):
            return dict.fromkeys(self.targets, api)
        wrong = sorted(set(api) ^ {role.value for role in self.targets})
        if wrong:
            raise ConfigError(
                f"Several models need an endpoint for each of {', '.join(r.value for r in self.targets)} and for nobody "
                f"else; missing or unknown: {', '.join(wrong)}.", param="api",
            )  # fmt: skip
        return {role: api[role.value] for role in self.targets}

    def _compact(self, model: str) -> bool:
        """Whether a model is asked by compact prompts."""
        return self.prompt_style == "compact" or (self.prompt_style == "auto" and model.startswith(self.compact_models))

    def _static(self, rng: random.Random) -> Endpoint:
        """The static endpoint as one game uses it; what protects it is the whole process's."""
        url, model = self.external_url or "", self.external_name or ""
        return Endpoint(
            url, model, self.external_budget_s, self.external_timeout_s, rng=rng, name="static",
            gate=gate_for(url, self.external_concurrency),
            limiter=limiter_for(url, model, self.external_requests_per_min, self.external_tokens_per_min),
            breaker=breaker_for(url, model, self.external_breaker_failures), prices=self.external_prices,
        )  # fmt: skip

    # ── playing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def play(self, workflow_task: WorkflowTask, api: Apis) -> WorkflowOutput:
        """:meth:`execute` for threads: blocks until the game is over. All games of the process share one event loop."""
        return run_shared(self.execute(workflow_task, api))

    async def execute(self, workflow_task: WorkflowTask, api: Apis) -> WorkflowOutput:
        """Play one game against the endpoint ``api``, or against several models: a dict of target role → endpoint.

        Raises:
            InfrastructureFault: an endpoint failed for good; the game is void and must not be rewarded.
            ConfigError: a dict that does not name each of the targets and nobody else.
        """
        apis = self._apis(api)
        api = next(iter(apis.values()))
        task = workflow_task.task
        seed = self.deal_seed(task)
        draws = seed
        if self.group_draws == "own" and not task.metadata.get("paired"):
            draws = f"{seed}-{workflow_task.episode_uuid or api.episode_uuid}"
        rotation = int(task.metadata.get("rotation", 0))
        if rotation:
            draws = f"{draws}-rotated-{rotation}"
        game = Game(seed, self.options, play_seed=draws, rotation=rotation)
        board = Board(game)
        rng = random.Random(f"players-{draws}")
        live_roles = self.live_roles(task)
        live = frozenset(i for i, role in enumerate(game.roles) if role in live_roles)
        # What endpoints draw must not move what the scripted players draw: a deal is the same whoever else plays.
        jitter = random.Random(rng.random())
        async with AsyncExitStack() as stack:
            policies: dict[OpenaiBaseUrlAndApiKey, Endpoint] = {}
            for its in dict.fromkeys(apis.values()):
                policies[its] = await stack.enter_async_context(
                    Endpoint(its.base_url, its.model, self.policy_budget_s, POLICY_TIMEOUT_S, rng=jitter)
                )
            external: Endpoint | None = None
            if self.external_url:
                external = await stack.enter_async_context(self._static(jitter))
            frozen: dict[str, Endpoint] = {}
            for name in sorted(set(self.frozen_opponents.values())):
                frozen[name] = await stack.enter_async_context(
                    Endpoint(api.base_url, name, self.policy_budget_s, POLICY_TIMEOUT_S, rng=jitter, name=name)
                )
            players: dict[int, Player] = {}
            models: dict[int, ModelPlayer] = {}
            one_call: set[int] = set()

            def style(seat: int, model: str) -> Style:
                if not self._compact(model):
                    return Conversation(game, seat, self.language)
                one_call.add(seat)
                return Compact(game, board)

            for seat, role in enumerate(game.roles):
                own = random.Random(rng.random())
                if seat in live:
                    its = apis[role]
                    key = its.for_agent(f"Player{seat + 1}", role.value).api_key
                    asked = style(seat, its.model)
                    models[seat] = ModelPlayer(asked, policies[its], key, temperature=self.temperature, rng=own)
                    players[seat] = models[seat]
                elif role.value in self.frozen_opponents:
                    key = api.for_agent(f"Player{seat + 1}", role.value).api_key
                    endpoint = frozen[self.frozen_opponents[role.value]]
                    players[seat] = ModelPlayer(
                        style(seat, api.model), endpoint, key, temperature=self.temperature, rng=own
                    )
                elif external is not None:
                    asked = style(seat, external.model)
                    players[seat] = ModelPlayer(asked, external, self._external_key, rng=own)
                else:
                    players[seat] = Scripted(scripted_player(game, board, seat, own, self.opponents))
            game.one_call = frozenset(one_call)
            recorder = self._recorder(task, game, players, live)
            await play_game(game, players, recorder.watch if recorder is not None else None)
        output = self._output(game, models, list(policies.values()), external, players)
        if task.metadata.get("split") == "eval":
            output.metadata["measures"] = measure(game, live, models)
        if recorder is not None and self.record is not None:
            episode = EpisodeRef(
                episode_id=workflow_task.episode_uuid or api.episode_uuid, task_id=task.task_id, label=self.record.label,
                kind="eval" if task.metadata.get("split") == "eval" else "train",
            )  # fmt: skip
            await self.record.keep_replay(lambda: recorder.replay(episode, draws, output.reward))
        return output

    def _recorder(
        self, task: Task, game: Game, players: dict[int, Player], live: frozenset[int]
    ) -> GameRecorder | None:
        """The recorder of this game, if one is wanted; the models' players tell it what they were asked."""
        if self.record is None or not self.record.wants(task, self.deal_number(task)):
            return None
        recorder = GameRecorder(game, self.language)
        for seat, player in players.items():
            if isinstance(player, ModelPlayer):
                recorder.sits(seat, "policy" if seat in live else "static", player.endpoint.model)
                player.record = recorder.exchange
        return recorder

    def _output(
        self,
        game: Game,
        models: dict[int, ModelPlayer],
        policies: list[Endpoint],
        external: Endpoint | None,
        players: dict[int, Player],
    ) -> WorkflowOutput:
        reward: dict[str, float] = {}
        outcomes: Counter[str] = Counter()
        wins: dict[str, float] = {}
        for seat, player in models.items():
            role = game.roles[seat]
            won = game.winner == side_of(role)
            wins[role.value] = float(won)
            outcomes.update(player.outcomes)
            if player.calls:
                bad = player.outcomes["fallback"] / sum(player.outcomes.values())
                base = 0.5 if game.winner == "draw" else float(won)
                reward[f"Player{seat + 1}"] = base - self.format_penalty * bad
        measured = shares(measure(game, models, models))
        metrics: dict[str, float] = {f"win/{role}": value for role, value in wins.items()}
        metrics |= {k: v for k, v in measured.items() if not k.endswith(("/win", "/draw")) or k.startswith("game/")}
        for outcome in ("valid", "repaired", "fallback"):
            metrics[f"reply/{outcome}"] = outcomes[outcome] / max(1, sum(outcomes.values()))
        metrics["policy/retries"] = float(sum(policy.retries for policy in policies))
        if external is not None:
            metrics |= _static_metrics(external, players)
        first = next(iter(wins), None)
        success = wins.get("werewolf", wins.get(first or "", 0.0)) == 1.0
        metadata: dict[str, Any] = {
            "seed": str(game.seed),
            "roles": [role.value for role in game.roles],
            "winner": game.winner,
            "end_cause": game.end_cause,
            "days": game.day,
        }
        return WorkflowOutput(reward=reward, is_success=success, metadata=metadata, log_metrics=metrics)


def _by_role(frozen: str | Mapping[str, str] | None, roles: Sequence[str]) -> dict[str, str]:
    """Role → model name. Raises ConfigError for what is neither."""
    found = dict.fromkeys(roles, frozen) if isinstance(frozen, str) else dict(frozen or {})
    wrong = sorted({*(r for r in found if r not in roles), *(n for n in found.values() if n.split(":")[0] != "frozen")})
    if wrong:
        raise ConfigError(
            f"frozen_opponents takes 'frozen' or 'frozen:<name>', or a dict of these by role ({', '.join(roles)}); not "
            f"{', '.join(map(repr, wrong))}.", param="frozen_opponents",
        )  # fmt: skip
    return found


def _static_metrics(external: Endpoint, players: Mapping[int, Player]) -> dict[str, float]:
    """How the static model answered in one game."""
    static = [p for p in players.values() if isinstance(p, ModelPlayer) and p.endpoint is external]
    total = sum((p.outcomes for p in static), Counter[str]())
    seconds, calls = external.traffic.seconds, max(1, len(external.traffic.seconds))
    return {
        **external.metrics(),
        "static/rate_limited": float(external.traffic.rate_limited),
        "static/fallback": total["fallback"] / max(1, sum(total.values())),
        "static/truncated": external.traffic.truncated / calls,
        "static/latency_s": sum(seconds) / calls,
        "static/latency_max_s": max(seconds, default=0.0),
    }
