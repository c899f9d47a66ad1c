"""What an accelerator does to save memory, here on the CPU: the same numbers as without it."""

import numpy as np
import pytest
import torch

from ajet.backbone.embedded import net as net_module
from ajet.backbone.embedded.engine import Engine
from ajet.backbone.embedded.head import from_logits, in_chunks
from ajet.backbone.embedded.net import Qwen2Net, digest, load_net
from ajet.backbone.embedded.trainer import Trainer
from ajet.default_config.schema import AjetConfig, TrainerConfig
from tests.unit.backbone import tiny
from tests.unit.backbone.test_embedded_trainer import gradients, make_trainer

CPU = torch.device("cpu")


def frugal_trainer(directory, dtype=torch.float64, master=torch.float64, **config) -> Trainer:
    net = load_net(directory, CPU, dtype, master=master)
    assert isinstance(net, Qwen2Net)
    net.frugal = True
    frozen = net.clone_frozen()
    return Trainer(net, TrainerConfig(**config), lambda: frozen, CPU)


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("warm", [False, True])
def test_log_probs_entropies_and_gradients_in_chunks_are_those_over_all_logits(chunk, warm):
    torch.manual_seed(0)
    h = torch.randn(23, 16, dtype=torch.float64)
    head = torch.randn(61, 16, dtype=torch.float64)
    ids = torch.randint(0, 61, (23,))
    temperature = np.linspace(0.5, 2, 23).astype(np.float32) if warm else np.ones(23, np.float32)
    to_logprob, to_entropy = torch.randn(2, 23, dtype=torch.float64)

    def run(chunked):
        h_, head_ = h.clone().requires_grad_(), head.clone().requires_grad_()
        logprob, entropy = (
            in_chunks(h_, head_, ids, temperature, chunk) if chunked else from_logits(h_ @ head_.T, ids, temperature)
        )
        entropy = entropy()
        ((logprob * to_logprob).sum() + (entropy * to_entropy).sum()).backward()
        return logprob, entropy, h_.grad, head_.grad

    for a, b in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6 if warm else 1e-9, atol=1e-6 if warm else 1e-9)


@pytest.mark.parametrize("kind", ["qwen2_dir", "untied_dir"])
@pytest.mark.parametrize("extra", [{}, {"algorithm": {"entropy_coeff": 0.1}}, {"algorithm": {"policy_loss": "gspo"}}])
def test_a_steps_gradient_is_the_same(kind, extra, request, monkeypatch):
    """Over several passes, two-pass losses and mini-batches larger than a pass included."""
    monkeypatch.setattr("ajet.backbone.embedded.head.CHUNK_LOGITS", 61 * 7)
    config = {"kl_loss_coef": 0.1, "max_tokens_per_microbatch": 120, **extra}
    batch = tiny.make_batch(1, temperature=1.3)
    directory = request.getfixturevalue(kind)
    ours, metrics = gradients(frugal_trainer(directory, **config), batch)
    plain, expected = gradients(make_trainer(directory, **config), batch)
    assert ours.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-6, atol=1e-8)  # temperatures are float32
    for name in ("actor/entropy", "actor/loss", "sampler/logprob_diff_max"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-9)


def test_bfloat16_gradients_reach_float32_masters_without_a_copy_of_the_weights_a_pass(qwen2_dir):
    config = {"kl_loss_coef": 0.1, "max_tokens_per_microbatch": 120}
    batch = tiny.make_batch(1)
    trainer = frugal_trainer(qwen2_dir, torch.bfloat16, torch.float32, **config)
    ours, _ = gradients(trainer, batch)
    exact, _ = gradients(make_trainer(qwen2_dir, **config), batch)
    for name, gradient in exact.items():
        assert ours[name].dtype == torch.float32
        assert torch.cosine_similarity(ours[name].double().flatten(), gradient.flatten(), dim=0) > 0.97, name
    net = trainer.net
    leaves, served = net._leaves, net._served
    assert all(leaf.grad is None for leaf in leaves.values())
    assert all(leaf.data_ptr() == served[name].data_ptr() for name, leaf in leaves.items())


def test_bfloat16_steps_change_what_is_served_in_place_and_resume_exactly(qwen2_dir, tmp_path):
    config = AjetConfig(
        model={"path": str(qwen2_dir), "dtype": "bfloat16"}, rollout={"max_model_len": 100, "max_num_seqs": 4},
        trainer_common={"n_gpus_per_node": 0, "optim": {"lr": 1e-2}},
    )  # fmt: skip

    def engine() -> Engine:
        found = Engine(config)
        found.net.frugal = True  # type: ignore[attr-defined]
        return found

    one = engine()
    before = one.net._served["embed"]  # type: ignore[attr-defined]
    held = before.clone()
    one.train_step(tiny.make_batch(1))
    one.save(tmp_path)
    assert one.net._served["embed"] is before  # type: ignore[attr-defined]
    assert not torch.equal(before, held)
    torch.testing.assert_close(before, one.net.parameters()["embed"].to(torch.bfloat16), rtol=0, atol=0)
    two = engine()
    two.load(tmp_path)
    for step in (2, 3):
        assert one.train_step(tiny.make_batch(step)).digest == two.train_step(tiny.make_batch(step)).digest


def test_a_large_models_digest_goes_by_tensor_and_sees_every_bit(qwen2_dir, monkeypatch):
    net = load_net(qwen2_dir, CPU, torch.float32)
    small = digest(net)
    monkeypatch.setattr(net_module, "LARGE_MODEL", 0)
    large = digest(net)
    assert large != small
    assert large == digest(load_net(qwen2_dir, CPU, torch.float32))
    with torch.no_grad():
        net.parameters()["norm"][3] += 1e-6
    assert digest(net) != large


def test_transformers_models_recompute_only_where_nothing_is_dropped_out(llama_dir, gpt2_dir):
    from ajet.backbone.embedded.generic import _can_recompute

    llama, gpt2 = (load_net(d, CPU, torch.float64, torch.float64) for d in (llama_dir, gpt2_dir))
    assert not _can_recompute(gpt2.model)  # type: ignore[attr-defined]
    assert _can_recompute(llama.model)  # type: ignore[attr-defined]
    plain, _ = gradients(make_trainer(llama_dir), tiny.make_batch(1))
    trainer = make_trainer(llama_dir)
    _can_recompute(trainer.net.model)  # type: ignore[attr-defined]
    trainer.net._recomputes = True  # type: ignore[attr-defined]
    again, _ = gradients(trainer, tiny.make_batch(1))
    assert not trainer.net.model.training  # type: ignore[attr-defined]
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-9, atol=1e-12)
