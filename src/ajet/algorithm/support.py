"""Which of verl's algorithms are offered, and why the others are not. No torch, no verl.

An episode has one outcome reward per (episode, tag). An estimator is offered where that is all it needs; a policy loss
where rows of sampled log-probs are all it needs. Names are verl 0.9.1's (``verl.trainer.ppo.core_algos``).
"""

from __future__ import annotations

from typing import Any

from ajet.default_config.schema import AlgorithmConfig, TrainerConfig
from ajet.schema.errors import ConfigError

GROUP_ESTIMATORS = frozenset(
    {"grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg", "reinforce_plus_plus_baseline"}
)
"""Compare an episode with the others of its group; a group whose members are all equal trains nothing."""
BATCH_ESTIMATORS = frozenset({"reinforce_plus_plus"})
"""Compare an episode with all of its tag in the batch."""
REFUSED_ESTIMATORS = {
    "gae": "it needs a value for every token from a critic, and there is no critic here",
    "remax": "it needs the reward of an extra greedy episode per task as its baseline",
    "gdpo": "it needs several named reward components per reply; an episode reports one reward per role",
    "optimal_token_baseline": "it needs sums of squared probabilities over the whole vocabulary for each sampled token",
    "tir_optimal_token_baseline": "it needs sums of squared probabilities over the vocabulary for each sampled token",
}
RUNNING_BASELINE_ESTIMATORS = frozenset({"grpo", "grpo_vectorized", "rloo", "rloo_vectorized"})
"""Their advantage is a reward less a baseline, perhaps over a deviation: one against a running mean has the same scale."""
_DIVIDES_BY_STD = frozenset({"grpo", "grpo_vectorized", "grpo_passk"})

ADDITIVE_LOSSES = frozenset({"vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "dro", "cispo"})
"""A mini-batch's loss is the sum over its rows, so rows may be worked through in any number of portions."""
WHOLE_BATCH_LOSSES = frozenset({"clip_cov", "kl_cov", "geo_mean"})
"""Look at all rows of a mini-batch at once; the trainer hands them the whole mini-batch, whatever fits in memory."""
REFUSED_LOSSES = {
    "bypass_mode": "it chooses among other losses by verl's rollout_correction settings; name the loss you want, old "
    "log-probs are those of the sampler already",
}
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
REJECTIONS = (
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
)
KL_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
POLICY_LOSS_KWARGS = frozenset(
    {"clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta"}
)
"""Fields of verl's ``PolicyLossConfig`` that may be set."""
ACTOR_KWARGS = frozenset({"tau_pos", "tau_neg", "loss_scale_factor"})
"""Fields of verl's ``ActorConfig`` that ``policy_loss_kwargs`` may set as well (sapo, seq-mean-token-sum-norm)."""


def check_algorithm(config: TrainerConfig) -> None:
    """Raise :class:`ConfigError` where ``config`` names an algorithm that would not be right here."""
    algorithm = config.algorithm
    _check_estimator(algorithm)
    _check_loss(algorithm)
    _check_correction(algorithm)
    if config.use_kl_loss:
        kl = config.kl_loss_type
        if (kl[:-1] if kl.endswith("+") else kl) not in KL_TYPES:
            _refuse(
                "trainer_common.kl_loss_type", kl, "is not one of verl's", [*KL_TYPES, "(and each with a trailing +)"]
            )


def _check_estimator(algorithm: AlgorithmConfig) -> None:
    name, key = algorithm.adv_estimator, "trainer_common.algorithm.adv_estimator"
    offered = sorted(GROUP_ESTIMATORS | BATCH_ESTIMATORS)
    if name in REFUSED_ESTIMATORS:
        _refuse(key, name, f"is not offered: {REFUSED_ESTIMATORS[name]}", offered)
    if name not in offered:
        _refuse(key, name, "is not one of verl's advantage estimators", offered)
    if algorithm.running_baseline is not None and name not in RUNNING_BASELINE_ESTIMATORS:
        raise ConfigError(
            f"trainer_common.algorithm.running_baseline stands in for a group's own mean, and {name!r} weighs groups in "
            f"another way. Leave it out, or use one of: {', '.join(sorted(RUNNING_BASELINE_ESTIMATORS))}.",
            param="trainer_common.algorithm.running_baseline",
        )
    if algorithm.gamma != 1.0 and name == "reinforce_plus_plus":
        _refuse(
            "trainer_common.algorithm.gamma", algorithm.gamma,
            "cannot be used: the tokens of several agents of one role have no single order to discount along", [1.0],
        )  # fmt: skip


def _check_loss(algorithm: AlgorithmConfig) -> None:
    name, key = algorithm.policy_loss, "trainer_common.algorithm.policy_loss"
    offered = sorted(ADDITIVE_LOSSES | WHOLE_BATCH_LOSSES)
    if name in REFUSED_LOSSES:
        _refuse(key, name, f"is not offered: {REFUSED_LOSSES[name]}", offered)
    if name not in offered:
        _refuse(key, name, "is not one of verl's policy losses", offered)
    if algorithm.loss_agg_mode not in LOSS_AGG_MODES:
        _refuse(
            "trainer_common.algorithm.loss_agg_mode", algorithm.loss_agg_mode, "is not one of verl's", LOSS_AGG_MODES
        )
    kwargs, key = algorithm.policy_loss_kwargs, "trainer_common.algorithm.policy_loss_kwargs"
    unknown = sorted(set(kwargs) - POLICY_LOSS_KWARGS - ACTOR_KWARGS)
    if unknown:
        _refuse(
            key,
            unknown,
            "has names that verl's PolicyLossConfig does not know",
            sorted(POLICY_LOSS_KWARGS | ACTOR_KWARGS),
        )
    wrong = sorted(k for k, v in kwargs.items() if isinstance(v, bool) or not isinstance(v, int | float))
    if wrong:
        raise ConfigError(f"{key}: {', '.join(wrong)} must be a number.", param=key)
    if name == "dro" and not kwargs.get("dro_beta", 0) > 0:
        raise ConfigError(
            f"policy_loss 'dro' needs its penalty: set {key}: {{dro_beta: 0.1}} (any positive number).", param=key
        )


def _check_correction(algorithm: AlgorithmConfig) -> None:
    """What verl would refuse only in the first update (``rollout_corr_helper``'s ``_parse_…`` functions)."""
    config, key = algorithm.rollout_correction, "trainer_common.algorithm.rollout_correction"
    if config.rollout_is is not None and not _is_bound(str(config.rollout_is_threshold), both=True):
        _refuse(f"{key}.rollout_is_threshold", config.rollout_is_threshold, "is no bound", ["2.0", "0.5_5.0"])
    if config.rollout_rs is None:
        return
    names = [name.strip() for name in config.rollout_rs.split(",")]
    unknown = sorted(set(names) - set(REJECTIONS))
    if unknown:
        _refuse(f"{key}.rollout_rs", ", ".join(unknown), "is not one of verl's", REJECTIONS)
    bounds = [part.strip() for part in str(config.rollout_rs_threshold or "").split(",")]
    if len(bounds) == 1:
        bounds *= len(names)
    if len(bounds) != len(names) or not all(map(_is_rejection_bound, names, bounds)):
        raise ConfigError(
            f"{key}.rollout_rs_threshold: {config.rollout_rs_threshold!r} does not fit rollout_rs {config.rollout_rs!r}. "
            "Give one bound, or one for each name: 'lower_upper' for k1 kinds ('0.5_2.0'; a single number of at least 1 stands "
            "for itself and its reciprocal), a positive number else.",
            param=f"{key}.rollout_rs_threshold",
        )


def _is_rejection_bound(name: str, text: str) -> bool:
    """A single bound of a k1 kind stands for itself and its reciprocal, the lower one."""
    both = name.endswith("k1")
    return _is_bound(text, both=both) and not (both and "_" not in text and float(text) < 1)


def _is_bound(text: str, *, both: bool) -> bool:
    """Whether ``text`` is an upper bound, or with ``both`` perhaps ``lower_upper``."""
    parts = text.split("_", 1) if both else [text]
    try:
        values = [float(part) for part in parts]
    except ValueError:
        return False
    return "_" not in parts[-1] and values[0] > 0 and values == sorted(values)


def needs_group(name: str) -> bool:
    return name in GROUP_ESTIMATORS


def divides_by_std(name: str) -> bool:
    """Whether ``norm_adv_by_std_in_grpo`` means anything to this estimator."""
    return name in _DIVIDES_BY_STD


def _refuse(key: str, value: Any, why: str, offered: Any) -> None:
    raise ConfigError(f"{key}: {value!r} {why}. Use one of: {', '.join(str(o) for o in offered)}.", param=key)
