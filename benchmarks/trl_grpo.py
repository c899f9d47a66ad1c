"""The whole loop against TRL's GRPOTrainer: same model, same single-turn task, same groups, lengths and optimizer steps.

    python -m benchmarks.trl_grpo --trl-python PATH [--seeds 0 1 2 3 4] [--steps 150] [--threads 1] [--json out.json]

The model is a random Qwen2 of the built-in one's size with the built-in tokenizer; a task asks for nothing and the reward is
the share of characters in the reply that are not ASCII (``benchmarks/task_reward.py``). A step is one group of 8 completions
of at most 64 tokens at temperature 1, GRPO's loss with the mean over each reply's tokens and then over replies, no KL term,
one AdamW step (same rate, betas, clipping; no weight decay), float32.

Ours is the whole loop as a user runs it: a server process with its journal on (every answer on disk before it is sent), its
backbone process, and this process as a client, by HTTP. ``strict``: a step's episodes begin when the step before is
trained, as TRL does it. ``overlapped``: as shipped, episodes of the next step begin meanwhile and may lag one policy version.
TRL is one process that calls its own functions, of the niceness of our backbone process; logging and saving are off there,
and gradient checkpointing.

Runs alternate; for each seed all run one after the other. Steps/s are of the steps after the first ten (libraries are still
being loaded during the first), and with start-up: all steps, from the start of the first process until all have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from ajet.backbone.embedded.worker import NICENESS
from ajet.backbone.models import model_dir
from ajet.client import SwarmClient
from ajet.copilot.job import AgentJetJob
from ajet.default_config.schema import BUILTIN_MODEL
from ajet.schema.errors import TrainingFinished
from ajet.schema.task import Task, WorkflowOutput
from benchmarks.task_reward import reward

GROUP, LENGTH, LR = 8, 64, 3e-3
WARM = 10
"""Steps left out of steps/s."""
LAST = 20
"""Steps whose mean reward is the final one."""


def save_model(directory: Path) -> None:
    """Random weights of the built-in model's shape, beside its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    source = model_dir(BUILTIN_MODEL)
    for file in source.iterdir():
        if file.suffix != ".safetensors" and file.name != "build.json":
            shutil.copyfile(file, directory / file.name)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).save_pretrained(directory)


def run_trl(python: Path, model: Path, seed: int, steps: int, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "model": str(model), "folder": folder, "seed": seed, "steps": steps, "group": GROUP, "length": LENGTH,
            "lr": LR, "threads": threads,
        }  # fmt: skip
        environment = {
            **os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        environment.pop("PYTHONPATH", None)
        started = time.time()
        done = subprocess.run(
            [str(python), str(Path(__file__).with_name("trl_peer.py")), json.dumps(job)],
            capture_output=True, text=True, env=environment, preexec_fn=lambda: os.nice(NICENESS),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"TRL ended with {done.returncode}:\n{done.stderr[-2000:]}")
        result = json.loads(done.stdout.splitlines()[-1])
        ends = result.pop("ends")
        return {
            **result, "steps_per_s": (len(ends) - WARM) / (ends[-1] - ends[WARM - 1]), "whole_s": time.time() - started,
        }  # fmt: skip


def job_for(model: Path, seed: int, steps: int, threads: int, lag: int) -> AgentJetJob:
    job = AgentJetJob(experiment_name=f"seed{seed}-lag{lag}", model=str(model), total_training_steps=steps)
    config = job.config
    config.rollout.temperature, config.rollout.num_repeat = 1.0, GROUP
    config.rollout.max_response_length_in_one_turn, config.rollout.max_model_len = LENGTH, 256
    config.rollout.max_env_worker = GROUP * (1 + lag)
    config.data.train_batch_size, config.data.max_prompt_length, config.data.max_response_length = 1, 128, LENGTH
    common = config.trainer_common
    common.seed, common.cpu_threads, common.n_gpus_per_node, common.use_kl_loss = seed, threads, 0, False
    common.save_freq = 10**6
    common.optim.lr, common.optim.weight_decay = LR, 0.0
    common.algorithm.loss_agg_mode = "seq-mean-token-mean"
    config.swarm.max_policy_lag = lag
    return job


def run_ours(model: Path, seed: int, steps: int, threads: int, lag: int) -> dict[str, Any]:
    started = time.time()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        log = open(Path(folder) / "server.log", "w")  # noqa: SIM115
        server = subprocess.Popen(
            [sys.executable, "-m", "ajet.cli", "start", "--swarm-port", str(port), "--exp-dir", folder],
            stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
        try:
            result = play(f"http://127.0.0.1:{port}", job_for(model, seed, steps, threads, lag), steps, lag)
            lines = next(Path(folder).rglob("metrics.jsonl")).read_text().splitlines()
            ends = [json.loads(line)["time"] for line in lines]
            result["steps_per_s"] = (len(ends) - WARM) / (ends[-1] - ends[WARM - 1])
        except BaseException:
            print((Path(folder) / "server.log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
            log.close()
    return {**result, "whole_s": time.time() - started}


def play(url: str, job: AgentJetJob, steps: int, lag: int) -> dict[str, Any]:
    """The client's side: as many workers as episodes may be open."""
    client = SwarmClient(url, verbose=False)
    client.auto_sync_train_config_and_start_engine(job)
    chat = httpx.Client(timeout=600, limits=httpx.Limits(max_keepalive_connections=64))
    by_step: dict[int, list[float]] = {}
    lengths: list[int] = []
    lock = threading.Lock()

    def episode(step: int) -> None:
        task = Task(task_id=f"task-{step}")
        uuid, api = client.begin_episode(task=task)
        answer = chat.post(
            f"{api.base_url}/chat/completions", headers={"Authorization": f"Bearer {api.api_key}"},
            json={"model": api.model, "messages": [{"role": "user", "content": f"Task {step}."}]},
        )  # fmt: skip
        body = answer.raise_for_status().json()
        value = reward(body["choices"][0]["message"]["content"] or "")
        client.end_episode(task, uuid, WorkflowOutput(reward=value))
        with lock:
            by_step.setdefault(step, []).append(value)
            lengths.append(body["usage"]["completion_tokens"])

    with ThreadPoolExecutor(GROUP * (1 + lag)) as pool:
        if lag == 0:
            for step in range(steps):
                list(pool.map(episode, [step] * GROUP))
                client.get_status(wait_step=step + 1, wait_s=300)
        else:
            step = 0
            running: list[Any] = []
            while step < steps + 1:
                running += [pool.submit(episode, step) for _ in range(GROUP)]
                step += 1
                if step >= 2:
                    client.get_status(wait_step=step - 1, wait_s=300)
            for one in running:
                with contextlib.suppress(TrainingFinished):
                    one.result()
    status = client.get_status(wait_step=steps, wait_s=300)
    assert status["step"] == steps, status
    rewards = [statistics.fmean(by_step[s]) for s in sorted(by_step) if s < steps]
    client.close()
    chat.close()
    return {
        "rewards": rewards, "mean_length": statistics.fmean(lengths),
        "drops": status.get("drops"),
    }  # fmt: skip


def final(run: dict[str, Any]) -> float:
    return statistics.fmean(run["rewards"][-LAST:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl-python", type=Path, help="interpreter of an environment with trl==1.16.0")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", nargs="+", choices=["strict", "overlapped"], default=["strict", "overlapped"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--more", action="store_true", help="add to what --json holds from earlier seeds")
    args = parser.parse_args()
    python = args.trl_python if args.trl_python and args.trl_python.exists() else None
    runs: dict[str, list[dict[str, Any]]] = {f"ajet {mode}": [] for mode in args.modes}
    if python:
        runs["TRL"] = []
    if args.more:
        runs.update(json.loads(args.json.read_text())["runs"])
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        save_model(model)
        for seed in args.seeds:
            for name in runs if seed % 2 == 0 else list(runs)[::-1]:
                if name == "TRL":
                    assert python is not None
                    run = run_trl(python, model, seed, args.steps, args.threads)
                else:
                    run = run_ours(model, seed, args.steps, args.threads, int(name == "ajet overlapped"))
                runs[name].append(run)
                print(
                    f"seed {seed} {name:<16} {run['steps_per_s']:6.2f} steps/s, {args.steps / run['whole_s']:6.2f} with "
                    f"start-up; reward {run['rewards'][0]:.3f} → {final(run):.3f}", flush=True,
                )  # fmt: skip
    out: dict[str, Any] = {
        "steps": args.steps, "threads": args.threads, "group": GROUP, "length": LENGTH, "lr": LR, "runs": runs,
        "load_before": load, "load_after": os.getloadavg(), "torch": version("torch"),
    }  # fmt: skip
    if python is None:
        out["not_measured"] = "TRL: --trl-python names no interpreter"
        print("\nNOT MEASURED: TRL. Give --trl-python the interpreter of an environment with trl==1.16.0.")
    else:
        out["compared"] = {}
        for mode in args.modes:
            pairs = list(zip(runs[f"ajet {mode}"], runs["TRL"], strict=True))
            row = {
                "steps_ratio": [a["steps_per_s"] / b["steps_per_s"] for a, b in pairs],
                "steps_ratio_with_start_up": [b["whole_s"] / a["whole_s"] for a, b in pairs],
                "reward_difference": [final(a) - final(b) for a, b in pairs],
            }
            out["compared"][mode] = row
            print(f"\n{mode}: ours to TRL, over {len(pairs)} seeds    median     mean   min – max")
            for name, values in row.items():
                middle = f"{statistics.median(values):+8.3f} {statistics.fmean(values):+8.3f}"
                print(f"  {name:<32} {middle}   {min(values):+.3f} – {max(values):+.3f}")
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
