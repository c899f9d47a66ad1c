"""Nine-player Werewolves with a real server, real clients, and vLLM as the sampler; killed in the middle.

The model is the built-in one with wider heads (:func:`tests.vllm.models.save_werewolves`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from ajet.default_config.schema import BUILTIN_MODEL
from ajet.pool import journal_read
from tests.faults import kills
from tests.faults.processes import Server, children, kill, python, until
from tests.vllm.models import save_werewolves

pytestmark = pytest.mark.timeout(900)
STEPS = 4


@contextlib.contextmanager
def playing(folder: Path) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    """A server that has booted and a client that plays until training is finished."""
    job = kills.job_file(folder, STEPS, groups=3, repeat=2, seed=0)
    tree = yaml.safe_load(job.read_text())
    tree["ajet"]["model"].update(path=str(save_werewolves(folder / "model")), served_name=BUILTIN_MODEL)
    tree["ajet"]["rollout"].update(name="vllm", max_env_worker=12)
    tree["ajet"]["trainer_common"].update(save_freq=1, mini_batch_num=1)
    tree["ajet"]["trainer_common"]["optim"]["lr_warmup_steps"] = 0
    tree["ajet"]["checkpoint"] = {"keep_last": STEPS + 1}
    job.write_text(yaml.safe_dump(tree))
    server = Server(folder / "server", folder / "server.log")
    server.start()
    client = python(
        ["-m", "ajet.demo.player", "--swarm-url", server.url, "--job", str(job), "--folder", str(folder / "client"),
         "--trainable", "werewolf,seer", "--live", "alternate", "--seed", "0", "--eval-games", "0"],
        folder / "client.log",
    )  # fmt: skip
    try:
        yield server, client
    except BaseException:
        for log in (folder / "server.log", folder / "client.log"):
            print(f"── {log.name}\n{log.read_text()[-6000:]}")
        raise
    finally:
        kill(client)
        server.stop()


def sampler_pid(server: Server) -> int | None:
    assert server.process is not None
    for pid in children(server.process.pid):
        with contextlib.suppress(OSError):
            if b"ajet.backbone.vllm.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def step_of(server: Server) -> int:
    return (server.status() or {}).get("step") or 0


def rolling_at(server: Server, step: int) -> bool:
    return server.state() in ("ROLLING", "FINISHED") and step_of(server) >= step


def test_a_run_survives_its_servers_and_its_samplers_death_and_every_token_is_of_the_version_it_names(tmp_path):
    with playing(tmp_path) as (server, client):
        until(lambda: rolling_at(server, 1), 240, "step 1")
        server.kill()
        began = time.monotonic()
        server.start()
        until(lambda: rolling_at(server, 1), 240, "the server's recovery")
        print(f"server killed: ROLLING again after {time.monotonic() - began:.1f} s")

        until(lambda: rolling_at(server, 2) and sampler_pid(server), 240, "step 2")
        victim = sampler_pid(server)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        until(lambda: (server.status() or {}).get("last_error"), 60, "the report of the death")
        assert "vLLM process ended with code -9" in server.status()["last_error"]
        until(
            lambda: rolling_at(server, 2) and sampler_pid(server) not in (None, victim), 240, "the sampler's recovery"
        )
        print(f"sampler killed: ROLLING again after {time.monotonic() - began:.1f} s")

        found = kills.finish(tmp_path, server, client)
    print(found)
    assert found["ok"], found
    assert found["steps"] == STEPS
    check_versions(server.exp_dir / kills.NAME)
    assert not list(Path("/dev/shm").glob(f"ajet-weights-{server.process.pid}-*"))


@torch.no_grad()
def check_versions(experiment: Path) -> None:
    """Each journaled token's log-prob is the one that the checkpoint of the version it names gives it."""
    folders = {int(re.sub(r"\D", "", f.name)): f for f in (experiment / "checkpoints").glob("step_*")}
    torch.set_num_threads(1)
    job = yaml.safe_load((experiment / "job.yaml").read_text())["ajet"]
    folders[0] = Path(job["model"]["path"])
    models = {v: AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32).eval() for v, f in folders.items()}
    journal = experiment / "journal.sqlite"
    seen: Counter[int] = Counter()
    worst = 0.0
    other_fits = 0
    for batch in journal_read.batches_after(journal, 0):
        for episode in journal_read.batch_episodes(journal, batch):
            ids_of: dict[str, list[int]] = {}
            for call in episode.calls:
                prompt = [*(ids_of[call.parent] if call.parent else []), *call.prompt_delta]
                ids_of[call.call_id] = [*prompt, *call.reply_ids]
                seen.update(call.versions)
                for version in {*call.versions}:
                    assert version < batch.step
                    if version not in models:  # the server was killed between that step and its checkpoint
                        continue
                    gaps = gap_under(models[version], prompt, call, version)
                    worst = max(worst, gaps)
                    if version + 1 in models:
                        other_fits += gap_under(models[version + 1], prompt, call, version) < 1e-3
    print(f"tokens by version: {dict(sorted(seen.items()))}; largest gap to the named version's forward {worst:.1e}")
    assert sorted(seen) == list(range(STEPS)), "each step trained what the policy before it sampled"
    assert len(models.keys() & seen.keys()) >= STEPS - 1, "at most one version lost its checkpoint to the kill"
    assert worst < 1e-4
    assert other_fits < 0.05 * seen.total(), "the check tells versions apart"


def gap_under(model, prompt: list[int], call, version: int) -> float:
    """Over the tokens of ``call`` that name ``version``."""
    logits = model(torch.tensor([[*prompt, *call.reply_ids]])).logits[0, len(prompt) - 1 : -1] / call.temperature
    own = logits.log_softmax(-1).gather(1, torch.tensor(call.reply_ids)[:, None])[:, 0]
    return max(abs(float(p) - q) for p, q, v in zip(own, call.logprobs, call.versions, strict=True) if v == version)
