"""The job's keys in verl's configuration. The composed tree needs verl, not Ray."""

from pathlib import Path

import pytest

from ajet.backbone.verl.mapping import TABLE, Host, compose, verl_tree
from ajet.default_config.load import machine_problems
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError

GPUS = Host(cpu=False, per_node=8, model_dir="/models/m")
CPUS = Host(cpu=True, per_node=2, model_dir="/models/m")
A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
PAGE = Path(__file__).parents[3] / "docs" / "verl.md"


def job(**verl):
    config = AjetConfig(backbone="verl")
    for key, value in verl.items():
        setattr(config.verl, key, value)
    return config


def test_the_keys_of_a_job_arrive_where_verl_reads_them():
    config = job(param_offload=True, optimizer_offload=True)
    config.trainer_common.nnodes, config.trainer_common.ulysses_sequence_parallel_size = 2, 4
    config.rollout.tensor_model_parallel_size, config.rollout.gpu_memory_utilization = 2, 0.6
    config.lora.rank, config.lora.alpha, config.lora.target_modules = 8, 32, ["q_proj"]
    config.trainer_common.optim.lr, config.trainer_common.optim.grad_clip = 3e-6, 0.5
    flat = verl_tree(config, GPUS)
    wanted = {
        f"{M}.path": "/models/m", f"{M}.lora_rank": 8, f"{M}.lora_alpha": 32, f"{M}.target_modules": ["q_proj"],
        f"{M}.enable_gradient_checkpointing": True, f"{A}.fsdp_config.param_offload": True,
        f"{A}.fsdp_config.optimizer_offload": True, f"{A}.ulysses_sequence_parallel_size": 4,
        f"{A}.optim.lr": 3e-6, f"{A}.optim.clip_grad": 0.5, f"{R}.name": "vllm", f"{R}.tensor_model_parallel_size": 2,
        f"{R}.gpu_memory_utilization": 0.6, f"{R}.checkpoint_engine.backend": "naive", f"{R}.free_cache_engine": True,
        "trainer.nnodes": 2, "trainer.n_gpus_per_node": 8,
    }  # fmt: skip
    assert {key: flat[key] for key in wanted} == wanted


def test_cpus_take_our_replica_and_what_needs_no_gpu():
    flat = verl_tree(job(placement="separate"), CPUS)
    assert flat[f"{R}.name"] == "ajet_torch"
    assert flat[f"{R}.checkpoint_engine.backend"] == "ajet_gloo"
    assert flat[f"{M}.override_config"] == {"attn_implementation": "sdpa"}
    assert flat[f"{M}.use_remove_padding"] is False
    assert flat[f"{A}.fsdp_config.dtype"] == "float32"


def test_every_key_that_the_table_names_is_one_of_verl():
    for host in (GPUS, CPUS):
        tree = compose(verl_tree(job(), host))
        assert tree.actor_rollout_ref.actor.strategy == "fsdp2"
        assert tree.actor_rollout_ref.rollout.max_model_len == AjetConfig().rollout.max_model_len


def test_an_override_wins_nested_or_dotted_and_may_add_what_an_engine_knows():
    nested = {"actor_rollout_ref": {"rollout": {"engine_kwargs": {"vllm": {"kv_cache_dtype": "fp8"}}}}}
    dotted = {f"{R}.enforce_eager": True, f"{R}.gpu_memory_utilization": 0.4, f"+{R}.brand_new": 1}
    tree = compose(verl_tree(job(overrides={**nested, **dotted}), GPUS)).actor_rollout_ref.rollout
    assert (tree.enforce_eager, tree.gpu_memory_utilization, tree.brand_new) == (True, 0.4, 1)
    assert tree.engine_kwargs.vllm.kv_cache_dtype == "fp8"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (f"{A}.policy_loss.loss_mode", "trainer_common.algorithm.policy_loss"),
        (f"{A}.optim.lr", "trainer_common.optim.lr"),
        (f"{A}.clip_ratio_high", "trainer_common.algorithm.clip_ratio"),
        ("algorithm.adv_estimator", "trainer_common.algorithm"),
        ("critic.strategy", "is not read here"),
    ],
)
def test_an_override_that_would_not_be_read_is_refused_with_what_to_set(key, words):
    with pytest.raises(ConfigError, match=words):
        verl_tree(job(overrides={key: 1}), GPUS)


def test_a_misspelt_override_names_the_nearest_key():
    with pytest.raises(ConfigError, match=r"Did you mean actor_rollout_ref\.rollout\.enforce_eager"):
        compose(verl_tree(job(overrides={f"{R}.enforce_eagre": True}), GPUS))


def test_a_host_without_gpus_says_how_to_try_it():
    assert any("n_gpus_per_node: 0" in problem for problem in machine_problems(job(), 0))
    tried = job()
    tried.trainer_common.n_gpus_per_node = 0
    assert machine_problems(tried, 0) == []
    elsewhere = job(ray_address="10.0.0.1:6379")
    elsewhere.trainer_common.n_gpus_per_node = 8
    assert machine_problems(elsewhere, 0) == []


def test_the_page_lists_every_rule():
    page = PAGE.read_text()
    missing = [
        key
        for rule in TABLE
        for key in rule.verl
        if f"`{key.removeprefix('+').removeprefix('actor_rollout_ref.')}`" not in page
    ]
    assert not missing, missing
