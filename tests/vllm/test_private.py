"""The contract with the pinned vLLM: each thing that is used beyond its documented interface (docs/vllm.md)."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest
import torch

from ajet.backbone.protocol import Chunk, Sampling
from ajet.backbone.vllm import private
from ajet.backbone.vllm.installed import TESTED, installed_version
from ajet.backbone.vllm.sampling import COLDEST
from ajet.schema.errors import ConfigError
from tests.vllm.models import VOCAB, logprob_gap, save_qwen2
from tests.vllm.test_updates import config_for

pytestmark = pytest.mark.timeout(240)
PROMPT = [random.Random(i).randrange(3, VOCAB) for i in range(140)]
HOW = Sampling(temperature=1.0, max_tokens=8, ignore_eos=True, seed=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return save_qwen2(folder / "a", tied=True, seed=1), save_qwen2(folder / "b", tied=True, seed=2)


@pytest.fixture(scope="module")
def engine(models: tuple[Path, Path]) -> object:
    """In this process, as in the sampler's own."""
    os.environ.update(private.ENVIRONMENT)
    from ajet.backbone.vllm.engine import VllmEngine

    return VllmEngine(config_for(models[0]), device="cpu", parameters=1, max_len=400)


def reply_of(engine, key: int = 1) -> Chunk:
    engine.submit(key, PROMPT, HOW, "policy", False)
    while True:
        for _, chunk in engine.tick():
            return chunk


def test_the_engine_and_its_model_are_in_this_process(engine):
    assert type(engine._engine.engine_core).__name__ == "InprocClient"
    assert isinstance(engine._engine.collective_rpc(lambda worker: worker.model_runner.get_model())[0], torch.nn.Module)
    assert installed_version().startswith(TESTED)


def test_a_tied_head_is_stale_after_vllms_own_reload_and_right_after_ours(engine, models, caplog):
    first, second = models
    assert logprob_gap(first, PROMPT, reply_of(engine), HOW) < 1e-4
    engine._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(second)})
    engine._engine.reset_prefix_cache()
    assert logprob_gap(second, PROMPT, reply_of(engine), HOW) > 0.1, (
        "vLLM mends it by itself: drop redispatch_tied_head"
    )
    reload_log = logging.getLogger(private.RELOAD_LOG)
    reload_log.addHandler(caplog.handler)
    try:
        engine.load_weights(1, second)
    finally:
        reload_log.removeHandler(caplog.handler)
    assert logprob_gap(second, PROMPT, reply_of(engine), HOW) < 1e-4
    assert not [r for r in caplog.records if "Failed to load" in r.getMessage()], "reports that are to be expected"
    assert engine._engine.collective_rpc(private.redispatch_tied_head) == [True]


def test_a_layer_that_should_have_loaded_is_reported_all_the_same(engine, models, caplog, tmp_path):
    """The filter lets through what is not expected: here a file without one layer's weights."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(models[1] / "model.safetensors")
    save_file(
        {n: t for n, t in tensors.items() if "layers.1.mlp.down_proj" not in n}, tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )  # fmt: skip
    reload_log = logging.getLogger(private.RELOAD_LOG)
    reload_log.addHandler(caplog.handler)
    try:
        engine.load_weights(2, tmp_path)
    finally:
        reload_log.removeHandler(caplog.handler)
    assert [r for r in caplog.records if "Failed to load" in r.getMessage()]
    engine.load_weights(3, models[1])
    assert logprob_gap(models[1], PROMPT, reply_of(engine), HOW) < 1e-4


def test_a_reset_with_requests_under_way_keeps_them(engine, models):
    for key in range(3):
        engine.submit(10 + key, PROMPT, Sampling(max_tokens=20, ignore_eos=True), "policy", False)
    for _ in range(5):
        assert engine.tick() == []
    assert engine._engine.reset_prefix_cache(reset_running_requests=True)
    found: dict[int, Chunk] = {}
    while engine.busy:
        found.update(engine.tick())
    assert sorted(found) == [10, 11, 12]
    for chunk in found.values():
        assert len(chunk.ids) == 20
        assert logprob_gap(models[1], PROMPT, chunk, HOW) < 1e-4


def test_what_vllm_changes_silently_is_what_we_refuse_or_map():
    from vllm import SamplingParams

    assert SamplingParams(temperature=COLDEST / 2).temperature == COLDEST
    assert SamplingParams(temperature=COLDEST).temperature == COLDEST
    assert SamplingParams(seed=-1).seed is None


def test_head_sizes_without_a_kernel_are_refused_before_the_boot(tmp_path):
    sizes = private.cpu_head_sizes()
    assert 32 in sizes
    assert 24 not in sizes
    from ajet.backbone.vllm.engine import VllmEngine
    from tests.unit.backbone import tiny

    source = tiny.save_qwen2(tmp_path)
    with pytest.raises(ConfigError, match=r"heads of 32, .* have 8\. Set rollout\.name: auto"):
        VllmEngine(config_for(source), device="cpu", parameters=1, max_len=100)
    with pytest.raises(ConfigError, match="cannot sleep on a CPU"):
        VllmEngine(config_for(source, sleep_while_training=True), device="cpu", parameters=1, max_len=100)
    with pytest.raises(ConfigError, match="built for the CPU"):
        VllmEngine(config_for(source), device="gpu", parameters=1, max_len=100)
