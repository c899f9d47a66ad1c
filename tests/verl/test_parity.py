"""The same recorded batches through the embedded backbone and through verl's workers give the same weights.

Two FSDP ranks; losses, penalties, correction and mini-batches in turn on the same workers, each from the first weights.
Both optimizers use a larger epsilon here: Adam's first step is the sign of the gradient, and the sign of what is zero but for
rounding is not comparable.
"""

import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from ajet.backbone.embedded.engine import Engine as EmbeddedEngine
from ajet.backbone.verl import mapping
from ajet.backbone.verl.cluster import Cluster
from ajet.backbone.verl.engine import resolve_host
from ajet.backbone.verl.trainer import Trainer
from ajet.schema.errors import DiskRefused
from tests.faults import small_disk
from tests.verl.batches import recorded

LOSS, NORM, WEIGHTS = 2e-6, 1e-4, 2e-6
"""Float32: absolute (or 1e-5 of it), relative, absolute (a step moves a weight by up to 1e-3)."""

CASES = {
    "grpo vanilla": {},
    "grpo vanilla, kl": {"use_kl_loss": True, "kl_loss_coef": 0.5},
    "gspo": {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
    "gspo, kl": {
        "policy_loss": "gspo",
        "loss_agg_mode": "seq-mean-token-mean",
        "use_kl_loss": True,
        "kl_loss_coef": 0.5,
    },
    "cispo": {"policy_loss": "cispo"},
    "cispo, kl": {"policy_loss": "cispo", "use_kl_loss": True, "kl_loss_coef": 0.5},
    "geo_mean (whole batch)": {"policy_loss": "geo_mean"},
    "entropy bonus": {"entropy_coeff": 0.02},
    "token weighting, seq-mean-token-sum": {"role_weighting": "token", "loss_agg_mode": "seq-mean-token-sum"},
    "several temperatures": {"temperatures": (0.7, 1.0, 1.3)},
    "two mini-batches, two epochs": {"mini_batch_num": 2, "ppo_epochs": 2},
    "correction": {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 1.2}},
    "small micro-batches": {"max_tokens_per_microbatch": 64},
    "rloo": {"adv_estimator": "rloo"},
    "running baseline": {"running_baseline": 0.9, "flat": True},
}
OF_THE_BATCH = ("temperatures", "flat")
"""Keys of a case that are not the job's."""


def set_up(config, case):
    common = config.trainer_common
    common.use_kl_loss, common.optim.lr, common.optim.eps = False, 1e-3, 1e-3
    for key, value in case.items():
        if key in OF_THE_BATCH:
            continue
        if key == "rollout_correction":
            common.algorithm.rollout_correction = type(common.algorithm.rollout_correction)(**value)
        else:
            setattr(common.algorithm if hasattr(common.algorithm, key) else common, key, value)
    return config


@pytest.fixture(scope="module")
def cluster(job, ray_folder, tmp_path_factory):
    import ray

    config = set_up(job(), {"use_kl_loss": True})
    found = Cluster(config, resolve_host(config), 449)
    first = tmp_path_factory.mktemp("first")
    found.save(first / "verl")
    yield found, first
    ray.shutdown()


def exported(cluster, folder):
    cluster.save(folder / "verl")
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_a_batch_trains_the_same_in_one_process_and_on_two_ranks(name, cluster, job, tmp_path):
    ranks, first = cluster
    config = set_up(job(), CASES[name])
    compare(name, CASES[name], config, EmbeddedEngine(config), ranks, first, tmp_path)


def compare(name, case, config, embedded, ranks, first, tmp_path, loss_rel=1e-5):
    """Two steps of both, from the weights in ``first``."""
    ranks.load(first / "verl")
    ranks.config = config
    trainer = Trainer(ranks, config.trainer_common)
    of_batch = {key: case[key] for key in OF_THE_BATCH if key in case}
    norm = loss = 0.0
    for step in (1, 2):
        batch = recorded(embedded.net, step, **of_batch)
        ours, theirs = embedded.train_step(batch), trainer.train_step(batch)
        assert theirs.advantages == ours.advantages
        for metric in ("actor/loss", "actor/pg_loss", "actor/kl_loss"):
            if metric in ours.metrics:
                assert theirs.metrics[metric] == pytest.approx(ours.metrics[metric], rel=loss_rel, abs=LOSS), metric
                loss = max(loss, abs(theirs.metrics[metric] - ours.metrics[metric]))
        assert ours.metrics["actor/grad_norm"] > 1e-3
        assert theirs.metrics["actor/grad_norm"] == pytest.approx(ours.metrics["actor/grad_norm"], rel=NORM)
        norm = max(norm, abs(theirs.metrics["actor/grad_norm"] / ours.metrics["actor/grad_norm"] - 1))
        for metric in (
            "actor/entropy",
            "actor/pg_clipfrac",
            "sampler/logprob_diff_mean",
            "tokens/rejected",
            "actor/lr",
        ):
            # With several mini-batches one process compares the first with the sampler, the driver all of them.
            if metric in ours.metrics and not (metric.startswith("sampler/") and "mini_batch_num" in case):
                assert theirs.metrics[metric] == pytest.approx(ours.metrics[metric], rel=1e-3, abs=1e-6), metric
    if "flat" in case:
        shares = [v for k, v in theirs.metrics.items() if k.endswith("/running_baseline_share")]
        assert max(shares) > 0, "no group was compared with the running mean"
    found, wanted = exported(ranks, tmp_path), embedded.net.state_dict()
    initial = load_file(first / "model.safetensors")
    difference = max(float((found[n] - w.detach()).abs().max()) for n, w in wanted.items())
    moved = max(float((initial[n] - w.detach()).abs().max()) for n, w in wanted.items())
    print(
        f"{name} | loss differs by {loss:.1e} | norm by {norm:.1e} of it | weights moved by {moved:.2e} | "
        f"and differ by {difference:.2e}"
    )
    assert moved > 1e-4
    assert difference < WEIGHTS
    assert math.isfinite(difference)


def test_which_rank_gets_which_sample_changes_nothing_but_rounding(cluster, job, monkeypatch):
    ranks, first = cluster
    config = set_up(job(), {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"})
    ranks.config = config
    batch = recorded(EmbeddedEngine(config).net, 1)
    norms = []
    for reorder in (lambda entries: entries, lambda entries: list(reversed(entries))):
        ranks.load(first / "verl")
        from ajet.backbone.verl import cluster as module

        dealt = module.dealt
        with monkeypatch.context() as patch:
            patch.setattr(module, "dealt", lambda e, n, reorder=reorder, dealt=dealt: reorder(dealt(e, n)))
            norms.append(Trainer(ranks, config.trainer_common).train_step(batch).metrics["actor/grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_the_mapping_holds_for_the_ranks(cluster):
    ranks, _ = cluster
    assert isinstance(resolve_host(ranks.config), mapping.Host)
    assert ranks.world == 2
    assert len({pid for _, pid in ranks.where()}) == 2
    assert torch.isfinite(torch.tensor(ranks.parameters()))


@pytest.mark.parametrize("kib", [400, 1100, 1700, 2300])
def test_a_disk_that_fills_in_the_middle_of_a_save_is_an_answer_and_training_goes_on(kib, cluster, job, tmp_path):
    """Wherever it fills: in one rank's shards, in the other's, in the exported model."""
    ranks, first = cluster
    with small_disk.mounted(tmp_path / "disk", kib / 1024) as mounted:
        if not mounted:
            pytest.fail("no tmpfs can be mounted: run as root, or in a container that may")
        ranks.load(first / "verl")
        before = ranks.digest()
        room = tmp_path / "disk" / "a"
        room.mkdir()
        with pytest.raises(DiskRefused, match="No space left"):
            ranks.save(room / "verl")
        shutil.rmtree(room)
    ranks.save(tmp_path / "verl")
    assert ranks.digest() == before
    config = set_up(job(), {})
    ranks.config = config
    result = Trainer(ranks, config.trainer_common).train_step(recorded(EmbeddedEngine(config).net, 1))
    assert result.digest != before
