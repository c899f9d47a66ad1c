"""The same recorded batches train the same adapters in one process and on two FSDP ranks."""

import pytest
from safetensors.torch import load_file

from ajet.backbone.embedded.engine import Engine as EmbeddedEngine
from ajet.backbone.lora import FOLDER
from ajet.backbone.verl.cluster import Cluster
from ajet.backbone.verl.engine import resolve_host
from tests.verl.test_parity import compare, set_up

CASES = {
    "grpo vanilla, LoRA": {},
    "grpo vanilla, kl, LoRA": {"use_kl_loss": True, "kl_loss_coef": 0.5},
    "gspo, LoRA": {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
    "cispo, kl, LoRA": {"policy_loss": "cispo", "use_kl_loss": True, "kl_loss_coef": 0.5},
}


def adapted(job, case):
    config = set_up(job(lora__rank=4, lora__alpha=8), case)
    config.trainer_common.optim.lr = 1e-2  # of a product of two small factors
    return config


@pytest.fixture(scope="module")
def cluster(job, ray_folder, tmp_path_factory):
    import ray

    config = adapted(job, {"use_kl_loss": True})
    found = Cluster(config, resolve_host(config), 449)
    first = tmp_path_factory.mktemp("first")
    found.save(first / "verl")
    yield found, first
    ray.shutdown()


@pytest.mark.parametrize("name", CASES)
def test_adapters_train_the_same_in_one_process_and_on_two_ranks(name, cluster, job, tmp_path):
    ranks, first = cluster
    config = adapted(job, CASES[name])
    embedded = EmbeddedEngine(config)
    begun = load_file(first / FOLDER / "adapter_model.safetensors")
    assert begun.keys() == embedded.net.parameters().keys()
    embedded.net.set_adapters(begun)
    # verl draws other first adapters in every run, and steps are larger: a penalty sees more of float32's rounding.
    compare(name, CASES[name], config, embedded, ranks, first, tmp_path, loss_rel=5e-5)
    found = load_file(tmp_path / FOLDER / "adapter_model.safetensors")
    difference = max(float((found[n] - w.detach()).abs().max()) for n, w in embedded.net.parameters().items())
    print(f"{name}: adapters differ by up to {difference:.2e}")
    assert difference < 1e-5
