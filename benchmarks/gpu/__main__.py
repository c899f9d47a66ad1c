"""Builds, checks and times the embedded sampler and trainer on one GPU within a few minutes, with random weights.

python -m benchmarks.gpu [--minutes 8] [--json gpu.jsonl] [--only 7b] [--tiny]

Each case runs in a process of its own, so that one that runs out of memory, or crashes, loses nothing but itself. Results
are appended to the JSON-lines file as they come. ``--tiny`` runs every case on the CPU with shapes of a moment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASE_S = 240.0
"""One case at most."""


def run_one(number: int, tiny: bool) -> None:
    import torch

    from benchmarks.gpu.cases import CASES
    from benchmarks.gpu.models import SIZES

    case = CASES[number]
    device = torch.device("cpu") if tiny else torch.device("cuda", 0)
    if tiny:
        torch.set_num_threads(1)
    else:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        result = case.run(SIZES["tiny" if tiny else case.size], device, tiny)
    except torch.OutOfMemoryError as error:
        result = {"error": "out of memory", "detail": str(error).splitlines()[0]}
    print(json.dumps(result))


def child(number: int, tiny: bool, seconds: float) -> dict[str, Any]:
    """The result of one case, or what became of it."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--case", str(number), *(["--tiny"] if tiny else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {seconds:.0f} s"}
    if done.returncode != 0:
        return {"error": f"exit code {done.returncode}", "detail": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all cases together")
    parser.add_argument("--json", type=Path, help="JSON lines are appended to this file")
    parser.add_argument("--only", default="", help="cases whose 'name size' contains this")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with shapes of a moment")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        run_one(args.case, args.tiny)
        return 0
    from benchmarks.gpu.cases import CASES

    if not args.tiny:
        import torch

        if not torch.cuda.is_available():
            print("This machine has no usable GPU. --tiny runs every case on the CPU.", file=sys.stderr)
            return 2
    end = time.monotonic() + 60 * args.minutes
    failed = 0
    for number, case in enumerate(CASES):
        if args.only not in f"{case.name} {case.size}":
            continue
        left = end - time.monotonic()
        began = time.monotonic()
        result = child(number, args.tiny, min(CASE_S, left)) if left > 5 else {"error": "no time left"}
        line = {
            "case": case.name,
            "size": "tiny" if args.tiny else case.size,
            "wall_s": time.monotonic() - began,
            **result,
        }
        failed += "error" in result or result.get("ok") is False
        print(json.dumps(line), flush=True)
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(line) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
