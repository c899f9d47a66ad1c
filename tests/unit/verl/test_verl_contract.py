"""What this version of verl has to have. Imports verl in a process of its own: it takes seconds and looks at the environment."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ajet.backbone.verl.contract import PRIVATE, RELIED_ON, VERL

LOOK = """
import importlib, inspect, json, sys
out = {}
for where in json.loads(sys.argv[1]):
    module, _, path = where.partition(":")
    try:
        node = importlib.import_module(module)
        for part in path.split("."):
            node = getattr(node, part)
        out[where] = str(inspect.signature(node)) if callable(node) else type(node).__name__
    except Exception as error:
        out[where] = f"MISSING {type(error).__name__}: {error}"
print("\\n" + json.dumps(out))
"""
SIGNATURES = {
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY": "dict",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module": "(self, module)",
    "verl.workers.rollout.llm_server:LLMServerClient._vllm_request_id": "(self, request_id: str) -> str",
}


def test_the_tested_version_is_the_installed_one():
    assert version("verl") == VERL, f"verl moved: run tests/verl, read contract.py, then set VERL to {version('verl')}"


@pytest.mark.timeout(200)
def test_all_that_is_touched_is_there():
    places = [touch.where for touch in (*PRIVATE, *RELIED_ON)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOOK, json.dumps(places)], capture_output=True, text=True,
        env={**os.environ, "VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "ajet.backbone.verl.platform",
             "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3] / "src"), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    found = json.loads(done.stdout.strip().splitlines()[-1])
    missing = {where: words for where, words in found.items() if words.startswith("MISSING")}
    assert not missing, missing
    assert {where: found[where] for where in SIGNATURES} == SIGNATURES
