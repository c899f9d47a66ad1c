"""LoRA in the embedded backbone: peft's own gradients and models, exact resumption, and what is refused."""

import json

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ajet.backbone.embedded.engine import Engine
from ajet.backbone.embedded.lora import LoraNet
from ajet.backbone.embedded.packing import lay_out, passes
from ajet.backbone.lora import FOLDER, target_modules
from ajet.default_config.schema import AjetConfig, LoraConfig
from ajet.schema.errors import ConfigError
from tests.unit.backbone import tiny
from tests.unit.backbone.test_embedded_trainer import assert_same_step, config_for, reply

CPU = torch.device("cpu")


def job(directory, rank=4, alpha=8, targets="all-linear", dtype="auto", **common) -> AjetConfig:
    config = config_for(directory, **common)
    config.lora = LoraConfig(rank=rank, alpha=alpha, target_modules=targets)
    config.model.dtype = dtype
    return config


def moved(engine: Engine) -> LoraNet:
    """The engine's net with adapters that do something."""
    net = engine.net
    assert isinstance(net, LoraNet)
    generator = torch.Generator().manual_seed(3)
    net.set_adapters({n: 0.2 * torch.randn(t.shape, generator=generator) for n, t in net.parameters().items()})
    return net


@pytest.mark.parametrize("kind", ["qwen2_dir", "untied_dir", "llama_dir"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "down_proj"]])
@pytest.mark.parametrize("frugal", [False, True])
def test_logits_and_gradients_are_those_of_peft(kind, targets, frugal, request, tmp_path):
    directory = request.getfixturevalue(kind)
    net = moved(Engine(job(directory, targets=targets)))
    if kind != "llama_dir":
        net.inner.frugal = frugal
    net.save_adapter(tmp_path / "a")
    peft = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32), tmp_path / "a", is_trainable=True
    ).eval()
    row = tiny.make_batch(1).rows[0]
    _, pieces = lay_out([row])
    random = torch.Generator().manual_seed(1)
    ours, theirs = 0.0, 0.0
    for part in passes(pieces, 10**6, 10**6, CPU):
        logits_N_V = net.logits_at(part)
        weight_N_V = torch.randn(logits_N_V.shape, generator=random)
        by_flat = dict(zip(part.flat_N.tolist(), range(len(logits_N_V)), strict=True))
        ours = ours + (logits_N_V * weight_N_V).sum()
        for piece in pieces:
            found = peft(torch.from_numpy(piece.ids_T.astype(np.int64))[None]).logits[0]
            order = [by_flat[int(flat)] for flat in piece.flat_N]
            torch.testing.assert_close(
                logits_N_V[order].detach(), found[piece.position_N].detach(), rtol=1e-4, atol=1e-4
            )
            theirs = theirs + (found[piece.position_N] * weight_N_V[order]).sum()
    ours.backward()
    theirs.backward()
    expected = {n.replace(".default.", "."): p.grad for n, p in peft.named_parameters() if p.requires_grad}
    assert expected.keys() == net.parameters().keys()
    for name, leaf in net.parameters().items():
        torch.testing.assert_close(leaf.grad, expected[name], rtol=1e-3, atol=1e-3)
    assert all(weight.grad is None for weight in net.inner.parameters().values()), "held until the step"


@pytest.mark.parametrize("kind", ["qwen2_dir", "llama_dir"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_adapters_are_trained_and_a_restart_goes_on_exactly(kind, dtype, request, tmp_path):
    directory = request.getfixturevalue(kind)
    straight = Engine(job(directory, dtype=dtype))
    for step in range(1, 5):
        whole = straight.train_step(tiny.make_batch(step))
    first = Engine(job(directory, dtype=dtype))
    initial = {n: t.clone() for n, t in first.net.state_dict().items()}
    for step in (1, 2):
        trained = first.train_step(tiny.make_batch(step))
    changed = {n for n, t in first.net.state_dict().items() if not torch.equal(t, initial[n])}
    adapted = {f"{module}.weight" for module in target_modules(directory, first.config.lora)}
    assert (
        changed == adapted if dtype == "float32" else set() < changed <= adapted
    )  # some steps are below its resolution
    first.save(tmp_path)
    again = Engine(job(directory, dtype=dtype))
    info = again.load(tmp_path)
    assert (info.policy_version, info.digest) == (2, trained.digest)
    for name, tensor in first.net.state_dict().items():
        assert torch.equal(again.net.state_dict()[name], tensor), name
    for step in (3, 4):
        resumed = again.train_step(tiny.make_batch(step))
    assert_same_step(resumed, whole)


@pytest.mark.parametrize("kind", ["qwen2_dir", "llama_dir"])
def test_a_checkpoint_has_the_model_with_its_adapters_folded_in_and_beside_it_the_adapters_for_peft(
    kind, request, tmp_path
):
    directory = request.getfixturevalue(kind)
    engine = Engine(job(directory))
    moved(engine)
    prompt = tiny.prompt(1, 40)
    chunk = reply(engine, prompt, max_tokens=8, ignore_eos=True)
    engine.save(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    models = {
        "folded in": AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval(),
        "adapters": PeftModel.from_pretrained(base, tmp_path / FOLDER).eval(),
    }
    for name, model in models.items():
        scored = model(torch.tensor([prompt + chunk.ids])).logits[0, 39:-1].log_softmax(-1).detach()
        found = scored.gather(1, torch.tensor(chunk.ids)[:, None])[:, 0].numpy()
        np.testing.assert_allclose(chunk.logprobs, found, atol=1e-4, err_msg=name)
    described = json.loads((tmp_path / FOLDER / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"]) == (4, 8)
    assert len(load_file(tmp_path / FOLDER / "adapter_model.safetensors")) == len(engine.net.parameters())


def test_the_frozen_model_and_the_kl_term_are_without_adapters(qwen2_dir):
    engine = Engine(job(qwen2_dir, kl_loss_coef=0.5))
    before = reply(engine, tiny.prompt(2, 30), max_tokens=6, seed=5, ignore_eos=True)
    first = engine.train_step(tiny.make_batch(1))
    second = engine.train_step(tiny.make_batch(2))
    assert second.metrics["actor/kl_loss"] > first.metrics["actor/kl_loss"] >= 0
    frozen = reply(engine, tiny.prompt(2, 30), "frozen", max_tokens=6, seed=5, ignore_eos=True)
    assert (frozen.ids, frozen.logprobs) == (before.ids, before.logprobs)
    policy = reply(engine, tiny.prompt(2, 30), max_tokens=6, seed=5, ignore_eos=True)
    assert policy.logprobs != before.logprobs


def test_adapters_are_for_their_own_base_and_shape(qwen2_dir, tmp_path):
    engine = Engine(job(qwen2_dir))
    engine.train_step(tiny.make_batch(1))
    (tmp_path / "ck").mkdir()
    engine.save(tmp_path / "ck")
    with pytest.raises(ConfigError, match="was saved with lora"):
        Engine(job(qwen2_dir, rank=8)).load(tmp_path / "ck")
    with pytest.raises(ConfigError, match="was saved with lora"):
        Engine(config_for(qwen2_dir)).load(tmp_path / "ck")
    (tmp_path / "other").mkdir()
    other = tiny.save_qwen2(tmp_path / "other", seed=4)
    with pytest.raises(ConfigError, match="other weights than the adapters"):
        Engine(job(other)).load(tmp_path / "ck")


@pytest.mark.parametrize(
    ("kind", "targets", "says"),
    [
        ("qwen2_dir", ["nothing_like_it"], "target_modules"),
        ("gpt2_dir", "all-linear", "is a Conv1D"),
        ("qwen2_dir", ["embed_tokens"], "is a Embedding"),
        ("untied_dir", ["lm_head"], "lm_head cannot be given an adapter"),
    ],
)
def test_what_cannot_have_an_adapter_is_named(kind, targets, says, request):
    with pytest.raises(ConfigError, match=says):
        Engine(job(request.getfixturevalue(kind), targets=targets))
