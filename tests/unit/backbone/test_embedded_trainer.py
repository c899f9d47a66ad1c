"""The training step against naive references, its determinism, and exact resumption."""

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ajet.algorithm.advantages import compute_advantages
from ajet.algorithm.baseline import RunningBaseline
from ajet.backbone.embedded.engine import Engine
from ajet.backbone.embedded.net import digest, load_net
from ajet.backbone.embedded.optimizer import Optimizer
from ajet.backbone.embedded.trainer import Trainer
from ajet.backbone.protocol import Sampling, StepResult
from ajet.default_config.schema import AjetConfig, AlgorithmConfig, OptimConfig, TrainerConfig
from ajet.schema.errors import ConfigError, EngineStateConflict, InvalidRequest
from ajet.trajectory.batch import Row, TrainBatch
from tests.unit.backbone import tiny

CPU = torch.device("cpu")
F64 = torch.float64


def make_trainer(directory, dtype=F64, **config) -> Trainer:
    net = load_net(directory, CPU, dtype, master=dtype)
    frozen = net.clone_frozen()
    return Trainer(net, TrainerConfig(**config), lambda: frozen, CPU)


def gradients(trainer: Trainer, batch: TrainBatch) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Of the one optimizer step that ``trainer`` is set to take."""
    seen: dict[str, torch.Tensor] = {}

    def step():
        seen.update({n: p.grad.clone() for n, p in trainer.net.parameters().items() if p.grad is not None})
        return 1.0, True

    trainer.optimizer.step = step
    result = trainer.train_step(batch)
    return seen, result.metrics


def naive_gradients(directory, batch: TrainBatch, config: TrainerConfig, mode: str, equal: bool):
    """One sample at a time through transformers, PPO and low_var_kl written out, one row at a time."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=F64).eval()
    ref = AutoModelForCausalLM.from_pretrained(directory, dtype=F64).eval()
    found = compute_advantages(batch.rows, config.algorithm)
    units = {
        u: [i for i in range(len(batch.rows)) if found.unit_of_row[i] == u] for u in set(found.unit_of_row.tolist())
    }
    tokens = [r.trained_tokens for r in batch.rows]
    total = 0.0
    for i, row in enumerate(batch.rows):
        token_losses = []
        for s in row.samples:
            ids = torch.tensor(np.array(s.ids_T)).long()[None]
            temperature = torch.tensor(s.temperature_T[1:]).double()[:, None]
            logp = (model(ids).logits[0, :-1] / temperature).log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            with torch.no_grad():
                ref_logp = (ref(ids).logits[0, :-1] / temperature).log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            keep = torch.tensor(s.trained_T[1:])
            ratio = (logp - torch.tensor(s.logprobs_T[1:]).double()).exp()
            a = float(found.per_row[i])
            pg = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.2))
            if a < 0:
                pg = pg.clamp(max=-a * 3.0)
            d = ref_logp - logp
            token_losses.append((pg + config.kl_loss_coef * (d.exp() - d - 1))[keep])
        losses = torch.cat(token_losses)
        mates = units[int(found.unit_of_row[i])]
        if mode == "token-mean":
            weight = sum(tokens) / (len(units) * sum(tokens[m] for m in mates)) if equal else 1.0
            total = total + weight * losses.sum() / sum(tokens)
        else:
            weight = len(batch.rows) / (len(units) * len(mates)) if equal else 1.0
            total = total + weight * losses.mean() / len(batch.rows)
    total.backward()
    return {n: p.grad for n, p in model.named_parameters()}, float(total.detach())


@pytest.mark.parametrize("kind", ["qwen2_dir", "untied_dir", "gpt2_dir"])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("weighting", ["equal", "token"])
def test_gradients_equal_a_naive_reference_one_row_at_a_time(kind, mode, weighting, request):
    directory = request.getfixturevalue(kind)
    batch = tiny.make_batch(temperature=0.7)
    algorithm = AlgorithmConfig(loss_agg_mode=mode, role_weighting=weighting)
    config = {"algorithm": algorithm, "kl_loss_coef": 0.3, "max_tokens_per_microbatch": 120}
    trainer = make_trainer(directory, **config)
    found, metrics = gradients(trainer, batch)
    expected, loss = naive_gradients(directory, batch, TrainerConfig(**config), mode, weighting == "equal")
    assert metrics["actor/loss"] == pytest.approx(loss, rel=1e-7)
    if kind != "gpt2_dir":
        from ajet.backbone.embedded import qwen2

        expected = qwen2.fuse(expected, trainer.net.shape)
    assert found.keys() == expected.keys()
    rtol, atol = (1e-7, 1e-10) if kind == "gpt2_dir" else (1e-4, 1e-6)  # transformers' Qwen2 norms in float32
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("loss", ["vanilla", "gspo", "sapo", "clip_cov", "kl_cov", "geo_mean", "cispo"])
def test_loss_and_gradient_do_not_depend_on_the_micro_batches(qwen2_dir, loss):
    batch = tiny.make_batch(games=9)
    kwargs: dict[str, dict[str, float]] = {
        "clip_cov": {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.0},
        "kl_cov": {
            "kl_cov_ratio": 1.0
        },  # many tokens are certain, and equal but for the last bit: no choice among them
    }
    algorithm = AlgorithmConfig(policy_loss=loss, entropy_coeff=0.01, policy_loss_kwargs=kwargs.get(loss, {}))
    runs = [
        gradients(make_trainer(qwen2_dir, algorithm=algorithm, max_tokens_per_microbatch=size), batch)
        for size in (10**6, 150, 25)  # all at once; some rows at a time; single rows larger than the limit
    ]
    for grads, metrics in runs[1:]:
        assert metrics["actor/loss"] == pytest.approx(runs[0][1]["actor/loss"], rel=1e-9, abs=1e-12)
        assert metrics["actor/entropy"] == pytest.approx(runs[0][1]["actor/entropy"], rel=1e-9)
        for name, grad in runs[0][0].items():
            torch.testing.assert_close(grads[name], grad, rtol=1e-9, atol=1e-11)


def test_how_calls_were_merged_changes_nothing(qwen2_dir):
    """Invariant 4: one sample with two replies, or two samples with one each, are the same row."""
    from ajet.trajectory.batch import Sample

    batch = tiny.make_batch()

    def split(sample: Sample) -> list[Sample]:
        where = np.flatnonzero(sample.trained_T)
        out = []
        for part in (where[:2], where[2:]):
            keep = np.zeros(len(sample.ids_T), bool)
            keep[part] = True
            cut = part[-1] + 1
            out.append(
                Sample(sample.ids_T[:cut], keep[:cut], np.where(keep, sample.logprobs_T, 0)[:cut],
                       np.where(keep, sample.temperature_T, 1)[:cut], np.where(keep, sample.versions_T, -1)[:cut])
            )  # fmt: skip
        return out

    apart = [
        Row(r.episode, r.agent, r.tag, r.task, r.reward, [p for s in r.samples for p in split(s)]) for r in batch.rows
    ]
    for loss, mode in [("vanilla", "token-mean"), ("gspo", "seq-mean-token-mean"), ("geo_mean", "token-mean")]:
        algorithm = AlgorithmConfig(policy_loss=loss, loss_agg_mode=mode)
        merged, m1 = gradients(make_trainer(qwen2_dir, algorithm=algorithm), batch)
        unmerged, m2 = gradients(make_trainer(qwen2_dir, algorithm=algorithm), TrainBatch(1, apart))
        assert m1["actor/loss"] == pytest.approx(m2["actor/loss"], rel=1e-9)
        for name, grad in merged.items():
            torch.testing.assert_close(unmerged[name], grad, rtol=1e-8, atol=1e-11)


def test_lanes_give_the_same_weights_whichever_thread_is_ahead(qwen2_dir, monkeypatch):
    batch = tiny.make_batch(games=9)
    config = {"algorithm": AlgorithmConfig(entropy_coeff=0.01), "max_tokens_per_microbatch": 200}
    found = set()
    for late in range(4):
        net = load_net(qwen2_dir, CPU, torch.float32, master=torch.float32)
        frozen = net.clone_frozen()
        trainer = Trainer(net, TrainerConfig(**config), lambda frozen=frozen: frozen, CPU, lanes=3)
        log_probs = trainer.log_probs

        def slow(net, part, table, log_probs=log_probs, late=late):
            if int(part.flat_N[0]) % 4 == late:
                time.sleep(0.01)
            return log_probs(net, part, table)

        monkeypatch.setattr(trainer, "log_probs", slow)
        result = trainer.train_step(batch)
        found.add((result.digest, tuple(sorted((k, v) for k, v in result.metrics.items() if "timing" not in k))))
    assert len(found) == 1
    one, three = ({}, {})
    for into, lanes in ((one, 1), (three, 3)):
        net = load_net(qwen2_dir, CPU, F64, master=F64)
        frozen = net.clone_frozen()
        trainer = Trainer(net, TrainerConfig(**config), lambda frozen=frozen: frozen, CPU, lanes=lanes)
        gradient, metrics = gradients(trainer, batch)
        into.update(gradient)
        into["metrics"] = {k: v for k, v in metrics.items() if "timing" not in k and "share" not in k}
    assert three.pop("metrics") == pytest.approx(one.pop("metrics"), rel=1e-9)
    for name, gradient in one.items():
        torch.testing.assert_close(three[name], gradient, rtol=1e-9, atol=1e-11)


def test_rows_without_advantage_are_left_out_only_where_nothing_else_trains_them(qwen2_dir):
    batch = tiny.make_batch()
    equal = [Row(f"x{i}", "p1", "werewolf", "equal", 1.0, batch.rows[i].samples) for i in range(4)]
    batch = TrainBatch(1, [*batch.rows, *equal])
    without, m1 = gradients(make_trainer(qwen2_dir, use_kl_loss=False), batch)
    with_kl, m2 = gradients(make_trainer(qwen2_dir, kl_loss_coef=1e-30), batch)
    assert m1["tokens/forward"] < m2["tokens/forward"]
    for name, grad in without.items():
        torch.testing.assert_close(with_kl[name], grad, rtol=1e-6, atol=1e-10)


def reply(engine: Engine, ids: list[int], model="policy", **sampling):
    engine.submit(1, ids, Sampling(**sampling), model, False)
    while engine.busy:
        for _, chunk in engine.tick():
            return chunk


def assert_same_step(found: StepResult, wanted: StepResult) -> None:
    """Bit by bit, but for what a clock says."""
    assert found.digest == wanted.digest
    for name, value in wanted.metrics.items():
        if not name.startswith("timing/"):
            assert found.metrics[name] == value, name


def config_for(directory, **common) -> AjetConfig:
    return AjetConfig(
        model={"path": str(directory)},
        rollout={"max_model_len": 256, "max_num_seqs": 4},
        trainer_common={
            "mini_batch_num": 3, "ppo_epochs": 2, "n_gpus_per_node": 0, "kl_loss_coef": 0.05, "total_training_steps": 4,
            "optim": {"lr": 1e-3, "lr_warmup_steps": 4, "lr_scheduler": "cosine"}, **common,
        },
    )  # fmt: skip


def test_the_same_batches_give_the_same_digests_in_any_row_order(qwen2_dir):
    digests = []
    for order in (1, -1):
        engine = Engine(config_for(qwen2_dir))
        for step in (1, 2):
            batch = tiny.make_batch(step)
            result = engine.train_step(TrainBatch(step, batch.rows[::order]))
        digests.append(result.digest)
        assert result.policy_version == 2
        assert set(result.advantages) == {f"{r.episode}/{r.agent}" for r in batch.rows}
    assert digests[0] == digests[1]
    other = Engine(config_for(qwen2_dir, seed=1))
    other.train_step(tiny.make_batch(1))
    assert other.train_step(tiny.make_batch(2)).digest != digests[0]


@pytest.mark.parametrize("kind", ["qwen2_dir", "llama_dir"])
def test_two_steps_a_restart_and_two_steps_equal_four_steps(kind, request, tmp_path):
    directory = request.getfixturevalue(kind)
    straight = Engine(config_for(directory))
    for step in range(1, 5):
        whole = straight.train_step(tiny.make_batch(step))
    first = Engine(config_for(directory))
    for step in (1, 2):
        first.train_step(tiny.make_batch(step))
    first.save(tmp_path)
    again = Engine(config_for(directory))
    info = again.load(tmp_path)
    assert info.policy_version == 2
    assert info.digest == digest(first.net)
    for step in (3, 4):
        resumed = again.train_step(tiny.make_batch(step))
    assert_same_step(resumed, whole)


@pytest.mark.parametrize("kind", ["qwen2_dir", "untied_dir", "gpt2_dir"])
def test_a_saved_model_loads_with_transformers_and_has_its_tokenizer(kind, request, tmp_path):
    directory = request.getfixturevalue(kind)
    engine = Engine(config_for(directory))
    engine.train_step(tiny.make_batch(1))
    engine.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert next(model.parameters()).dtype == torch.float32
    state = model.state_dict()
    for name, weight in engine.net.state_dict().items():
        torch.testing.assert_close(state[name], weight.detach(), rtol=0, atol=0)
    assert (tmp_path / "tokenizer.json").read_text() == (directory / "tokenizer.json").read_text()


@pytest.mark.parametrize("kind", ["qwen2_dir", "llama_dir"])
def test_bfloat16_trains_float32_masters_and_resumes_exactly(kind, request, tmp_path):
    config = config_for(request.getfixturevalue(kind))
    config.model.dtype = "bfloat16"
    config.trainer_common.optim.lr = 1e-6  # far below bfloat16's resolution
    engine = Engine(config)
    before = digest(engine.net)
    assert engine.train_step(tiny.make_batch(1)).digest != before
    engine.save(tmp_path)
    again = Engine(config)
    again.load(tmp_path)
    straight, resumed = engine.train_step(tiny.make_batch(2)), again.train_step(tiny.make_batch(2))
    assert straight.digest == resumed.digest
    assert next(AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").parameters()).dtype == torch.bfloat16
    chunk = reply(again, tiny.prompt(1, 40), max_tokens=5, ignore_eos=True)
    model = AutoModelForCausalLM.from_pretrained(request.getfixturevalue(kind), dtype=torch.float32)
    expected = model(torch.tensor([tiny.prompt(1, 40) + chunk.ids])).logits[0, 39:-1].log_softmax(-1)
    found = expected.gather(1, torch.tensor(chunk.ids)[:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(chunk.logprobs, found, atol=0.3)


def test_a_large_vocabulary_splits_passes_and_changes_nothing(qwen2_dir, monkeypatch):
    from ajet.backbone.embedded import trainer as module

    batch = tiny.make_batch()
    whole, _ = gradients(make_trainer(qwen2_dir), batch)
    monkeypatch.setattr(module, "_PASS_LOGITS", 20 * tiny.VOCAB)
    split, _ = gradients(make_trainer(qwen2_dir), batch)
    for name, grad in whole.items():
        torch.testing.assert_close(split[name], grad, rtol=1e-9, atol=1e-11)


def test_shared_beginnings_are_computed_once_with_the_same_gradient(qwen2_dir):
    common = tiny.prompt(0, 30)
    rows = []
    for i in range(6):
        n = 40 + i
        ids = (common + tiny.prompt(i // 2, 5) + tiny.prompt(i + 10, 20))[:n]
        rows.append(Row(f"e{i}", "p", "seer", "t", float(i % 2), [tiny.make_sample(ids, [(36, n)], seed=i)]))
    batch = TrainBatch(1, rows)
    config = {"kl_loss_coef": 0.3}
    found, metrics = gradients(make_trainer(qwen2_dir, **config), batch)
    assert metrics["tokens/merged_share"] > 0.5
    expected, _ = naive_gradients(qwen2_dir, batch, TrainerConfig(**config), "token-mean", True)
    from ajet.backbone.embedded import qwen2

    expected = qwen2.fuse(expected, load_net(qwen2_dir, CPU, F64).shape)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6, msg=name)


def test_weights_in_the_older_format_load_to_the_same_model(qwen2_dir, tmp_path):
    from safetensors.torch import load_file

    shutil.copy(qwen2_dir / "config.json", tmp_path)
    torch.save(load_file(qwen2_dir / "model.safetensors"), tmp_path / "pytorch_model.bin")
    assert digest(load_net(tmp_path, CPU, torch.float32)) == digest(load_net(qwen2_dir, CPU, torch.float32))


def test_training_raises_the_reward_it_is_given(qwen2_dir):
    """Two opposed roles on one model: each learns to begin its reply with a token of its own half."""
    config = config_for(qwen2_dir, mini_batch_num=2, ppo_epochs=1, use_kl_loss=False)
    config.trainer_common.optim.lr = 3e-3
    config.rollout.max_num_seqs = 32
    config.trainer_common.optim.lr_scheduler = "constant"
    engine = Engine(config)
    prompts = {"low": tiny.prompt(1, 8), "high": tiny.prompt(2, 8)}
    means = []
    for step in range(1, 13):
        asked = {i: ("low", "high")[i % 2] for i in range(64)}
        for key, tag in asked.items():
            engine.submit(
                key, prompts[tag], Sampling(max_tokens=2, seed=key + 100 * step, ignore_eos=True), "policy", False
            )
        rows = []
        while engine.busy:
            for key, chunk in engine.tick():
                tag = asked[key]
                sample = tiny.make_sample(prompts[tag] + chunk.ids, [(8, 10)], version=step - 1)
                sample.logprobs_T[8:] = chunk.logprobs
                reward = float((chunk.ids[0] < tiny.VOCAB // 2) == (tag == "low"))
                rows.append(Row(f"e{key}", "p", tag, f"t{key // 16}", reward, [sample]))
        means.append(engine.train_step(TrainBatch(step, rows)).metrics)
    for tag in prompts:
        assert np.mean([m[f"reward/{tag}/mean"] for m in means[-3:]]) > 0.9
        assert means[0][f"reward/{tag}/mean"] < 0.8


def test_sampler_and_trainer_agree_and_the_share_is_reported(qwen2_dir):
    engine = Engine(config_for(qwen2_dir))
    rows = []
    for key in range(6):
        ids = tiny.prompt(key, 20)
        engine.submit(key, ids, Sampling(max_tokens=8, temperature=0.8), "policy", False)
        while engine.busy:
            for _, chunk in engine.tick():
                full = ids + chunk.ids
                sample = tiny.make_sample(full, [(20, len(full))], temperature=0.8)
                sample.logprobs_T[20:] = chunk.logprobs
                rows.append(Row(f"e{key}", "p", "seer", "t", float(key % 2), [sample]))
    metrics = engine.train_step(TrainBatch(1, rows)).metrics
    assert metrics["sampler/logprob_diff_max"] < 1e-4
    assert metrics["actor/optimizer_steps"] == 6
    assert 0 < metrics["actor/entropy"] < np.log(tiny.VOCAB)


def test_the_frozen_model_stays_the_initial_one(qwen2_dir, tmp_path):
    engine = Engine(config_for(qwen2_dir, use_kl_loss=False))

    def greedy(engine, model):
        return reply(engine, tiny.prompt(3, 12), model, temperature=0, max_tokens=6, ignore_eos=True)

    before = greedy(engine, "frozen")
    for step in (1, 2):
        engine.train_step(tiny.make_batch(step))
    assert greedy(engine, "frozen").logprobs == before.logprobs
    assert greedy(engine, "policy").logprobs != before.logprobs
    assert greedy(engine, "policy").versions == [2] * 6
    engine.save(tmp_path)
    resumed = Engine(config_for(qwen2_dir, use_kl_loss=False))
    resumed.load(tmp_path)
    assert greedy(resumed, "frozen").logprobs == before.logprobs
    assert greedy(resumed, "frozen").versions == [0] * 6


def test_checkpoints_are_served_frozen_beside_the_policy(qwen2_dir, tmp_path):
    engine = Engine(config_for(qwen2_dir, use_kl_loss=False))

    def greedy(model):
        return reply(engine, tiny.prompt(3, 12), model, temperature=0, max_tokens=6, ignore_eos=True)

    asked = {"frozen": greedy("policy").logprobs}
    for step in (1, 2):
        engine.train_step(tiny.make_batch(step))
        directory = tmp_path / f"c{step}"
        directory.mkdir()
        engine.save(directory)
        asked[f"frozen:{directory}"] = greedy("policy").logprobs
    engine.train_step(tiny.make_batch(3))
    assert len({tuple(logprobs) for logprobs in asked.values()}) == 3
    assert {name: greedy(name).logprobs for name in asked} == asked
    assert engine.stats()["frozen_sampled_tokens"] == 18
    untouched = Engine(config_for(qwen2_dir, use_kl_loss=False))
    for step in (1, 2, 3):
        last = untouched.train_step(tiny.make_batch(step))
    assert engine.info().digest == last.digest


def test_frozen_models_that_were_not_asked_for_lately_make_room(qwen2_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("ajet.backbone.embedded.beside.MOST", 2)
    engine = Engine(config_for(qwen2_dir))
    names = [f"frozen:{tiny.save_qwen2(tmp_path / str(seed), seed=seed)}" for seed in range(3)]
    answers = [reply(engine, tiny.prompt(3, 12), name, temperature=0, max_tokens=4).logprobs for name in names]
    assert len(engine._beside.all()) == 2
    assert [reply(engine, tiny.prompt(3, 12), n, temperature=0, max_tokens=4).logprobs for n in names] == answers


def test_a_frozen_model_that_is_none_or_another_one_is_named_and_stops_nothing(qwen2_dir, llama_dir, tmp_path):
    engine = Engine(config_for(qwen2_dir))
    (tmp_path / "broken").mkdir()
    shutil.copy(qwen2_dir / "config.json", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"not this")
    other = tiny.save_qwen2(tmp_path / "other")
    (other / "tokenizer.json").write_text('{"another": "tokenizer"}')
    for directory, words in (
        (tmp_path, "config.json"),
        (tmp_path / "broken", "cannot be loaded"),
        (other, "another tokenizer"),
    ):
        with pytest.raises(ConfigError, match=words):
            engine.submit(1, tiny.prompt(3, 12), Sampling(), f"frozen:{directory}", False)
    assert reply(engine, tiny.prompt(3, 12), "policy", max_tokens=4).logprobs


def test_a_running_baseline_is_part_of_what_is_resumed_exactly(qwen2_dir, tmp_path):
    """The batches' later groups are all won or all lost, so that only the baseline teaches there."""
    config = config_for(qwen2_dir, use_kl_loss=False)
    config.trainer_common.algorithm.running_baseline = 0.8

    def batch(step):
        rows = tiny.make_batch(step).rows
        return TrainBatch(step, [replace(r, reward=float(r.tag != "seer")) for r in rows] if step > 1 else rows)

    straight = Engine(config)
    for step in range(1, 4):
        whole = straight.train_step(batch(step))
        if step == 2:
            straight.save(tmp_path)
    assert whole.metrics["advantage/seer/running_baseline_share"] == 1
    assert whole.metrics["actor/grad_norm"] > 0
    again = Engine(config)
    again.load(tmp_path)
    assert again.train_step(batch(3)).digest == whole.digest
    forgetful = Engine(config)
    forgetful.load(tmp_path)
    forgetful.trainer.baseline = RunningBaseline()
    assert forgetful.train_step(batch(3)).digest != whole.digest


def test_a_damaged_checkpoint_and_a_changed_initial_model_are_named(qwen2_dir, tmp_path):
    from ajet.schema.errors import ConfigError

    source = tmp_path / "model"
    shutil.copytree(qwen2_dir, source)
    engine = Engine(config_for(source))
    engine.train_step(tiny.make_batch(1))
    (tmp_path / "c").mkdir()
    engine.save(tmp_path / "c")
    tiny.save_qwen2(source, seed=5)
    resumed = Engine(config_for(source))
    resumed.load(tmp_path / "c")
    with pytest.raises(ConfigError, match="other weights"):
        resumed.train_step(tiny.make_batch(2))
    data = bytearray((tmp_path / "c" / "model.safetensors").read_bytes())
    data[-3] ^= 1
    (tmp_path / "c" / "model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match="damaged"):
        Engine(config_for(source)).load(tmp_path / "c")


def test_a_step_that_does_not_follow_and_an_empty_batch_change_nothing(qwen2_dir):
    engine = Engine(config_for(qwen2_dir))
    before = digest(engine.net)
    with pytest.raises(EngineStateConflict, match="step 1"):
        engine.train_step(tiny.make_batch(2))
    with pytest.raises(InvalidRequest, match="no trained tokens"):
        engine.train_step(TrainBatch(1, []))
    rows = tiny.make_batch().rows
    with pytest.raises(InvalidRequest, match="reward"):
        engine.train_step(TrainBatch(1, [*rows[1:], replace(rows[0], reward=float("nan"))]))
    outside = Row("x", "p", "seer", "t", 1.0, [tiny.make_sample([3, 4, tiny.VOCAB], [(1, 3)])])
    with pytest.raises(InvalidRequest, match="token id"):
        engine.train_step(TrainBatch(1, [*rows, outside]))
    rows[2].samples[0].logprobs_T[:] = np.nan
    with pytest.raises(InvalidRequest, match="log-prob"):
        engine.train_step(TrainBatch(1, rows))
    assert digest(engine.net) == before


def test_a_gradient_that_is_not_finite_is_not_applied(qwen2_dir):
    trainer = make_trainer(qwen2_dir, torch.float32, algorithm=AlgorithmConfig(norm_adv_by_std_in_grpo=False))
    rows = [replace(r, reward=r.reward * 1e39) for r in tiny.make_batch().rows]  # beyond float32
    batch = TrainBatch(1, rows)
    before = digest(trainer.net)
    result = trainer.train_step(batch)
    assert result.metrics["actor/skipped_updates"] == 1
    assert result.digest == before


def test_learning_rate_warms_up_and_falls_to_its_floor():
    config = TrainerConfig(
        mini_batch_num=2, total_training_steps=10,
        optim=OptimConfig(lr=1.0, lr_warmup_steps=4, lr_scheduler="cosine", min_lr_ratio=0.1),
    )  # fmt: skip
    optimizer = Optimizer({"w": torch.zeros(1)}, config)
    rates = [optimizer.learning_rate(i) for i in range(21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates == sorted(rates[:4]) + sorted(rates[4:], reverse=True)
    assert rates[20] == pytest.approx(0.1)
