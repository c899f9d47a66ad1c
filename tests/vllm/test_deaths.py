"""Either process may die: every call learns it, with the cause, and nothing is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ajet.backbone.protocol import BackboneDied, Sampling
from tests.faults.processes import until
from tests.unit.backbone import tiny
from tests.vllm.models import save_qwen2
from tests.vllm.test_updates import ask, config_for, started

pytestmark = pytest.mark.timeout(300)
LONG = Sampling(max_tokens=350, ignore_eos=True)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("victim", ["sampler", "trainer"])
async def test_when_a_process_is_killed_the_backbone_is_dead_with_the_cause_at_once(tmp_path, victim):
    backbone = await started(config_for(save_qwen2(tmp_path / "model", tied=True)))
    pids = {"sampler": backbone.sampler.pid, "trainer": backbone.trainer.pid}
    try:
        died = asyncio.create_task(backbone.wait_died())
        calls = [asyncio.create_task(ask(backbone, [5 + i], LONG)) for i in range(4)]
        await backbone.stats()
        began = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        cause = str(await asyncio.wait_for(died, 30))
        print(f"{victim} killed: known after {time.monotonic() - began:.3f} s")
        assert cause.startswith(f"The {'vLLM' if victim == 'sampler' else 'trainer'} process ended with code -9"), cause
        if victim == "sampler":
            for found in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(found, BackboneDied) or found.finish_reason == "length"
            with pytest.raises(BackboneDied, match="code -9"):
                await ask(backbone, [5], LONG)
            assert (await backbone.train_step(tiny.make_batch(1))).policy_version == 1, "the trainer is not concerned"
            with pytest.raises(BackboneDied, match="vLLM"):
                await backbone.load_weights(1)
        else:
            with pytest.raises(BackboneDied, match="trainer"):
                await backbone.train_step(tiny.make_batch(1))
    finally:
        await backbone.close()
    assert all(gone(pid) for pid in pids.values())


async def test_both_processes_end_when_the_server_does(tmp_path):
    source = save_qwen2(tmp_path / "model", tied=True)
    script = f"""
import asyncio, os, signal
from pathlib import Path
from tests.vllm.test_updates import config_for, started
async def main():
    backbone = await started(config_for(Path({str(source)!r})))
    print(backbone.sampler.pid, backbone.trainer.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    pids = [int(pid) for pid in (await server.communicate())[0].split()]
    assert len(pids) == 2
    until(lambda: all(gone(pid) for pid in pids), 30, "the end of both processes")
