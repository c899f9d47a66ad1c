"""The gateways that are compared: how each is started, and how an episode is begun, called and ended with it.

Every server is one process with one worker on 127.0.0.1. Where a peer's Python has uvloop and httptools, uvicorn uses them.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.gateways.wire import Client
from benchmarks.gateways.workload import REPLY_TOKENS


class Direct:
    """No gateway: the load speaks to the fake model. Each other system overrides what differs."""

    chat_path: ClassVar[str] = "/v1/chat/completions"

    async def prepare(self, client: Client, upstream: int) -> None:
        """Once, before any episode: registers models, starts the engine."""

    async def begin(self, client: Client, name: str, k: int) -> tuple[str, str | None, Any]:
        """Begin episode ``k`` of worker ``name``: the path to chat at, the key for it, and what names the episode."""
        return self.chat_path, None, None

    async def end(self, client: Client, episode: Any) -> None:
        """Its reward is told."""

    async def recorded(self, client: Client, episode: Any) -> int | None:
        """How many calls of an ended episode can be read back with 100 token ids and log-probs; None: keeps nothing."""
        return None


class Ours(Direct):
    """``begin_episode``, trainable calls, ``end_episode`` with a reward; groups of four episodes a task."""

    def __init__(self, sync: str, journal_dir: str | None) -> None:
        self._journal = {"sync": sync, **({"dir": journal_dir} if journal_dir else {})}

    async def prepare(self, client: Client, upstream: int) -> None:
        job = {
            "experiment_name": "gateways",
            "journal": self._journal,
            "rollout": {"max_env_worker": 4096, "max_model_len": 100_000, "num_repeat": 4},
            # No update in mid-measurement: finished episodes wait in the pool, as those of the peers wait in theirs.
            "data": {"train_batch_size": 1_000_000},
        }
        await client.ask("PUT", "/swarm/v1/job", {"job": job})
        await client.ask("POST", "/swarm/v1/engine/start", {})
        status = await client.ask("GET", "/swarm/v1/status?wait_state=ROLLING&wait_s=60")
        assert status["state"] == "ROLLING", status

    async def begin(self, client: Client, name: str, k: int) -> tuple[str, str | None, Any]:
        body = {"client_id": name, "request_id": str(k), "wait_s": 60, "task_id": f"{name}-{k // 4}"}
        begun = await client.ask("POST", "/swarm/v1/episodes", body)
        return self.chat_path, begun["api_key"], (begun["episode_id"], body["task_id"])

    async def end(self, client: Client, episode: Any) -> None:
        body = {"request_id": "end", "task": {"task_id": episode[1]}, "output": {"reward": 1.0}}
        ended = await client.ask("POST", f"/swarm/v1/episodes/{episode[0]}/end", body)
        assert ended["fate"] == "pooled", ended

    async def recorded(self, client: Client, episode: Any) -> int | None:
        found = await client.ask("GET", f"/swarm/v1/episodes/{episode[0]}")
        assert found["branches"] == {"first": 1, "continues": len(found["calls"]) - 1}, found["branches"]
        return sum(len(c["reply_ids"]) == len(c["logprobs"]) == REPLY_TOKENS for c in found["calls"])


class Rllm(Direct):
    """A session for each episode; it has no end."""

    async def begin(self, client: Client, name: str, k: int) -> tuple[str, str | None, Any]:
        session = await client.ask("POST", "/sessions", {"session_id": f"{name}-{k}"})
        return f"{session['url']}/chat/completions", None, session["session_id"]

    async def recorded(self, client: Client, episode: Any) -> int | None:
        traces = await client.ask("GET", f"/sessions/{episode}/traces")
        return sum(len(t["completion_token_ids"]) == len(t["logprobs"] or ()) == REPLY_TOKENS for t in traces)


class AgentLightning(Direct):
    """A rollout for each episode: created, run, rewarded, succeeded."""

    async def prepare(self, client: Client, upstream: int) -> None:
        models = [{"model": "policy", "endpoint": f"http://127.0.0.1:{upstream}/v1", "version": 0}]
        await client.ask("POST", "/api/models", models)

    async def begin(self, client: Client, name: str, k: int) -> tuple[str, str | None, Any]:
        rollout = f"{name}-{k}"
        await client.ask("POST", "/api/rollouts", [{"input": {"data_id": name}, "rollout_id": rollout}])
        await self._state(client, rollout, "running")
        return f"/proxy/rollout/{rollout}/attempt/0/mode/train/openai/v1/chat/completions", None, rollout

    async def end(self, client: Client, episode: Any) -> None:
        event = {"event_type": "reward", "data": {"value": 1.0}}
        await client.ask("POST", f"/api/rollouts/{episode}/attempt/0/events", event)
        await self._state(client, episode, "succeeded")

    async def _state(self, client: Client, rollout: str, state: str) -> None:
        await client.ask("PATCH", f"/api/rollouts/{rollout}", {"status": {"state": state}})

    async def recorded(self, client: Client, episode: Any) -> int | None:
        events = await client.ask("GET", f"/api/rollouts/{episode}/events?event_type=model_request&format=triplet")
        data = [event["data"] for event in events]
        return sum(len(d["response_token_ids"]) == len(d["response_log_probs"] or ()) == REPLY_TOKENS for d in data)


class Litellm(Direct):
    """No episodes: one key for every call."""

    def __init__(self) -> None:
        self.key = f"sk-{secrets.token_hex(32)}"

    async def begin(self, client: Client, name: str, k: int) -> tuple[str, str | None, Any]:
        return self.chat_path, self.key, None


@dataclass(frozen=True)
class System:
    """One row.

    Attributes:
        durable: what an answer promises about its record.
        command: (folder, port, upstream's port) → what to run.
        package: of the peer, for its version.
    """

    name: str
    durable: str
    speaks: Direct
    command: Callable[[Path, int, int], list[str]] | None
    python: str = sys.executable
    package: str | None = None
    ready: str = "/health"
    ours: bool = False
    hops: bool = True
    """The model is behind HTTP."""
    env: dict[str, str] = field(default_factory=dict)

    def version(self) -> str:
        """Of the peer's package; empty where it is not a peer."""
        if self.package is None:
            return ""
        ask = f"from importlib.metadata import version; print(version({self.package!r}))"
        return subprocess.run([self.python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def _ours(name: str, sync: str, durable: str, *, hops: bool = True, journal_dir: str | None = None) -> System:
    def command(folder: Path, port: int, upstream: int) -> list[str]:
        tail = [str(upstream)] if hops else []
        module = "benchmarks.gateways.ours"
        return [sys.executable, "-m", module, str(port), str(folder.parent / "workload.json"), str(folder), *tail]

    return System(name, durable, Ours(sync, journal_dir), command, ready="/healthz", ours=True, hops=hops)


def _rllm(python: str, name: str, durable: str, **config: Any) -> System:
    def command(folder: Path, port: int, upstream: int) -> list[str]:
        import yaml

        whole = {"workers": [{"url": f"http://127.0.0.1:{upstream}/v1"}], "log_level": "WARNING", **config}
        whole |= {"host": "127.0.0.1", "port": port, "db_path": str(folder / "traces.db")}
        (folder / "config.yaml").write_text(yaml.safe_dump(whole))
        return [python, "-m", "rllm_model_gateway", "--config", str(folder / "config.yaml")]

    return System(name, durable, Rllm(), command, python, "rllm-model-gateway")


def _agentlightning(python: str) -> System:
    def command(folder: Path, port: int, upstream: int) -> list[str]:
        options = ["host=127.0.0.1", f"port={port}", "default_proxy.model_name=policy", f"hydra.run.dir={folder}"]
        return [python, "-m", "agentlightning.server", *options]

    return System(
        "agentlightning", "memory only", AgentLightning(), command, python, "agentlightning", ready="/healthz"
    )


def _litellm(python: str) -> System:
    def command(folder: Path, port: int, upstream: int) -> list[str]:
        import yaml

        model = {"model": "openai/policy", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
        config = {"model_list": [{"model_name": "policy", "litellm_params": model}]}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        start = [str(Path(python).parent / "litellm"), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1"]
        return [*start, "--port", str(port), "--num_workers", "1", "--telemetry", "False"]

    speaks = Litellm()
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": speaks.key}
    return System(
        "litellm proxy", "keeps nothing", speaks, command, python, "litellm", ready="/health/liveliness", env=env
    )


DIRECT = System("direct", "–", Direct(), None)


def all_systems(pythons: dict[str, str | None], fast_dir: str | None) -> tuple[list[System], dict[str, str]]:
    """The systems that can be run here, and why others cannot.

    Args:
        pythons: of ``rllm``, ``agentlightning`` and ``litellm``. fast_dir: a folder in memory for one more journal.
    """
    full = "fsync before each answer"
    found = [
        DIRECT,
        _ours("ajet full", "full", full),
        _ours("ajet normal", "normal", "written before each answer, no fsync"),
        _ours("ajet full, in-process", "full", full, hops=False),
        _ours("ajet normal, in-process", "normal", "written before each answer, no fsync", hops=False),
    ]
    if fast_dir is not None:
        found.insert(3, _ours("ajet full, tmpfs", "full", "fsync to memory before each answer", journal_dir=fast_dir))
    missing: dict[str, str] = {}
    peers: dict[str, tuple[str, Callable[[str], list[System]]]] = {
        "rllm": (
            "rllm_model_gateway",
            lambda python: [
                _rllm(python, "rllm memory", "memory only", store_worker="memory"),
                _rllm(python, "rllm sqlite", "after the answer, synchronous=NORMAL", store_worker="sqlite"),
                _rllm(
                    python, "rllm sqlite sync", "before the answer, synchronous=NORMAL",
                    store_worker="sqlite", sync_traces=True,
                ),
            ],
        ),
        "agentlightning": ("agentlightning.server", lambda python: [_agentlightning(python)]),
        "litellm": ("litellm.proxy", lambda python: [_litellm(python)]),
    }  # fmt: skip
    for name, (module, make) in peers.items():
        python = pythons.get(name)
        why = f"no Python with it was given (--{name}-python)" if python is None else _lacks(python, module)
        if why is None and python is not None:
            found += make(python)
        else:
            missing[name] = why or ""
    return found, missing


def _lacks(python: str, module: str) -> str | None:
    ask = f"import importlib.util as u, sys; sys.exit(not u.find_spec({module!r}))"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    try:
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, env=env, check=False)
    except OSError as err:
        return f"{python}: {err.strerror}"
    return None if done.returncode == 0 else f"{python} cannot import {module}"
