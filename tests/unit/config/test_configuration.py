"""Claims about configuration: what is honoured, what is refused, and how it is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.copilot.job import KEYWORDS, AgentJetJob, build_job_from_yaml
from ajet.default_config.load import (
    config_from_dict,
    job_diff,
    known_keys,
    load_yaml,
    loads_yaml,
    machine_problems,
    section_of,
)
from ajet.default_config.schema import AjetConfig, Node
from ajet.schema.errors import ConfigError

ROOT = Path(__file__).parents[3]

EXAMPLE = """\
ajet:
  model: {path: /path/to/Qwen2.5-7B-Instruct}
  rollout: {temperature: 0.7, num_repeat: 6, max_env_worker: 64, max_response_length_in_one_turn: 1024, max_model_len: 22000}
  data: {train_batch_size: 32, max_prompt_length: 4000, max_response_length: 18000}
  trainer_common: {save_freq: 5, total_training_steps: 25, n_gpus_per_node: 8}
  enable_swarm_mode: True
"""


def errors_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loads_yaml(text, "job.yaml")
    return caught.value.message


def below(text: str) -> str:
    return "ajet:\n" + "".join(f"  {line}\n" for line in text.splitlines())


def test_every_key_of_the_example_is_honoured() -> None:
    config = loads_yaml(EXAMPLE)
    assert config.model.path == "/path/to/Qwen2.5-7B-Instruct"
    assert config.rollout.model_dump(include={"temperature", "num_repeat", "max_env_worker"}) == {
        "temperature": 0.7,
        "num_repeat": 6,
        "max_env_worker": 64,
    }
    assert (config.rollout.max_response_length_in_one_turn, config.rollout.max_model_len) == (1024, 22000)
    assert (config.data.train_batch_size, config.data.max_prompt_length, config.data.max_response_length) == (
        32,
        4000,
        18000,
    )
    assert (config.trainer_common.save_freq, config.trainer_common.total_training_steps) == (5, 25)
    assert config.trainer_common.n_gpus_per_node == 8
    assert config.enable_swarm_mode is True


def test_the_defaults_are_a_valid_configuration() -> None:
    assert loads_yaml("") == loads_yaml("ajet:") == config_from_dict({}) == AjetConfig()


def test_shipped_configurations_load() -> None:
    shipped = [p for folder in ("src/ajet", "tutorial") for p in (ROOT / folder).rglob("*.yaml")]
    for path in shipped:
        load_yaml(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout: {num_repeet: 6}", "job.yaml:2: unknown key rollout.num_repeet. Did you mean rollout.num_repeat?"),
        ("num_repeat: 6", "job.yaml:2: unknown key num_repeat. Did you mean rollout.num_repeat?"),
        ("qqqq: 6", "job.yaml:2: unknown key qqqq."),
        ("rollout:\n  num_repeat: six", 'job.yaml:3: rollout.num_repeat: expected a whole number, found "six".'),
        ("rollout:\n  num_repeat: '6'", 'job.yaml:3: rollout.num_repeat: expected a whole number, found "6".'),
        ("rollout:\n  num_repeat: 6.0", "job.yaml:3: rollout.num_repeat: expected a whole number, found 6.0."),
        ("rollout:\n  num_repeat: yes", "job.yaml:3: rollout.num_repeat: expected a whole number, found true."),
        ("rollout:\n  num_repeat:", "job.yaml:3: rollout.num_repeat: expected a whole number, found nothing."),
        ("rollout:\n  num_repeat: 0", "job.yaml:3: rollout.num_repeat: expected at least 1, found 0."),
        ("rollout:\n  temperature: 0", "job.yaml:3: rollout.temperature: expected more than 0, found 0."),
        ("rollout: 3", "job.yaml:2: rollout: expected a section with keys below it, found 3."),
        ("enable_swarm_mode: 1", "job.yaml:2: enable_swarm_mode: expected true or false, found 1."),
        ("backbone: vrl", "job.yaml:2: backbone: expected one of 'embedded' or 'verl', found \"vrl\"."),
        (
            "trainer_common: {logger: 3}",
            "job.yaml:2: trainer_common.logger: expected one of 'console', 'tensorboard', 'wandb', 'swanlab', 'mlflow' or "
            "'trackio' or a list, found 3.",
        ),
        ("trainer_common:\n  optim:\n    betas:\n    - 0.9\n    - x", 'job.yaml:6: trainer_common.optim.betas.1: expected a number, found "x".'),
        ("trainer_common: {optim: {lr: .inf}}", "job.yaml:2: trainer_common.optim.lr is not a finite number; give one."),
        ("rollout:\n  top_p: 0.9", "job.yaml:3: rollout.top_p is 0.9, but the trainer cannot reproduce"),
        ("rollout: {max_model_len: 100}", "job.yaml:2: rollout.max_model_len is 100, less than data.max_prompt_length"),
        ("data: {max_response_length: 10}", "rollout.max_response_length_in_one_turn is 4096, more than"),
        ("trainer_common: {mini_batch_num: 129}", "trainer_common.mini_batch_num is 129, more than the 128 episodes"),
        ("rollout: {num_repeat: 1}", "rollout.num_repeat is 1, but grpo compares the episodes of a group"),
        ("experiment_name: ../up", 'experiment_name is "../up", but it names a folder'),
        ("task_reader: {jsonl_dataset_file: {training: {}}}", "job.yaml:2: task_reader.jsonl_dataset_file.training.file_path is missing."),
    ],
)  # fmt: skip
def test_an_error_says_where_what_and_why(text: str, message: str) -> None:
    assert message in errors_of(below(text))


def test_several_errors_are_reported_at_once() -> None:
    message = errors_of(below("rollout:\n  num_repeet: 6\n  temperature: hot\nbackbone: vrl"))
    assert [int(line) for line in re.findall(r"job\.yaml:(\d+)", message)] == [5, 4, 3] or len(
        message.splitlines()
    ) == 3


def test_a_key_set_twice_is_refused_with_both_lines() -> None:
    message = errors_of(below("rollout:\n  num_repeat: 6\n  num_repeat: 8\nrollout: {}"))
    assert "job.yaml:4: ajet.rollout.num_repeat is set twice (first at job.yaml:3)" in message
    assert "job.yaml:5: ajet.rollout is set twice" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout: {num_repeat: 6}", "indent it under that key"),
        ("ajet: 3", "holds the configuration's keys"),
        ("- ajet", "not a list"),
        ("ajet: {rollout: [", "is not YAML"),
        ("defaults: [x]\najet: {}", "job.yaml:1: unknown key defaults"),
        ("ajet: {project_name: !!python/object:os.system x}", "is not YAML"),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, message: str) -> None:
    assert message in errors_of(text)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_yaml("nowhere.yaml")


def test_small_numbers_are_numbers_and_dates_are_text() -> None:
    config = loads_yaml(below("trainer_common: {optim: {lr: 5e-7, eps: 1E-9}}\nexperiment_name: 2026-01-02"))
    assert (config.trainer_common.optim.lr, config.trainer_common.optim.eps) == (5e-7, 1e-9)
    assert config.experiment_name == "2026-01-02"


def test_an_empty_section_means_its_defaults_and_anchors_work() -> None:
    text = below("data:\nrollout: &r {num_repeat: 6}\n")
    assert loads_yaml(text).rollout.num_repeat == 6


@given(st.sampled_from(known_keys()), st.integers(0, 30), st.sampled_from("abcxyz_"))
def test_a_misspelt_key_is_never_accepted_silently(key: tuple[str | int, ...], at: int, letter: str) -> None:
    name = str(key[-1])
    wrong = name[: at % len(name)] + letter + name[at % len(name) :]
    if any(str(other[-1]) == wrong and other[:-1] == key[:-1] for other in known_keys()):
        return
    data: dict = {wrong: 1}
    for part in reversed(key[:-1]):
        data = {str(part): data}
    with pytest.raises(ConfigError, match="unknown key"):
        config_from_dict(data)


def test_job_diff_names_what_differs() -> None:
    one, other = AjetConfig(), AjetConfig()
    assert job_diff(one, other) == {}
    other.rollout.num_repeat = 9
    assert job_diff(one, other) == {"rollout.num_repeat": [4, 9]}
    assert job_diff(one.model_dump(mode="json"), other) == {"rollout.num_repeat": [4, 9]}


def test_what_this_machine_cannot_do_says_what_to_set() -> None:
    problems = machine_problems(loads_yaml(EXAMPLE), gpus=0)
    assert any(
        "n_gpus_per_node is 8, but this host has 0 GPU(s). Set trainer_common.n_gpus_per_node: 0" in p for p in problems
    )
    assert any("backbone: verl" in p for p in machine_problems(loads_yaml(EXAMPLE), gpus=8))
    assert machine_problems(AjetConfig(), gpus=0) == []


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_misspelt_keyword_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"no keyword 'batchsize'\. Did you mean batch_size\?"):
        AgentJetJob(batchsize=8)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"no keyword 'quux'\. Keys without"):
        AgentJetJob(quux=8)  # pyright: ignore[reportArgumentType]


def test_keywords_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(EXAMPLE)
    job = AgentJetJob(base_yaml_config=str(path), num_repeat=3, algorithm="rloo", n_gpu=0)
    assert (job.num_repeat, job.algorithm, job.n_gpu) == (3, "rloo", 0)
    assert (job.batch_size, job.max_env_worker, job.lr) == (32, 64, 1e-6)


@pytest.mark.parametrize("name", KEYWORDS)
def test_every_keyword_sets_its_key_and_reads_back(name: str) -> None:
    default = getattr(AgentJetJob(), name)
    values = {
        "backbone": "verl", "swarm_mode": False, "timeline_compare_level": "text", "gpu_memory_utilization": 0.5,
        "swarm_mode_sample_collection_method": "rollout_until_finish_enough_episodes", "lr": 2e-5,
        "max_model_len": 30000, "max_prompt_length": 200, "max_response_length": 9000, "n_gpu": 2,
        "max_response_length_in_one_turn": 300, "experiment_dir": "/somewhere",
        "logging": ["console", "wandb"],
    }  # fmt: skip
    value = values.get(name, "another" if isinstance(default, str) else 7)
    job = AgentJetJob(**{name: value})
    assert getattr(job, name) == value != default
    node = job.config
    for part in KEYWORDS[name].split("."):
        node = getattr(node, part)
    assert node == value


def test_a_wrong_keyword_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"AgentJetJob\(batch_size=…\): data\.train_batch_size: expected a whole number"
    ):
        AgentJetJob(batch_size="32")  # type: ignore[arg-type]


def test_a_dumped_job_builds_the_same_job(tmp_path: Path) -> None:
    job = AgentJetJob(num_repeat=3, lora_target_modules=["q_proj"], lr=3e-7, experiment_name="Wölfe")
    path = job.dump_job_as_yaml(tmp_path / "job.yaml")
    assert AgentJetJob.build_job_from_yaml(path).config == job.config == build_job_from_yaml(path).config


def test_jobs_do_not_share_their_trees() -> None:
    one, other = AgentJetJob(), AgentJetJob()
    one.config.trainer_common.seed = 5
    one.num_repeat = 8
    assert (other.config.trainer_common.seed, other.num_repeat) == (0, 4)
    assert AjetConfig().rollout.num_repeat == 4


def test_ensure_new_experiment_adds_a_timestamp() -> None:
    name = AgentJetJob(experiment_name="run", ensure_new_experiment=True).experiment_name
    assert re.fullmatch(r"run_\d{8}_\d{6}", name)


def test_to_dict_is_what_a_file_holds() -> None:
    assert AjetConfig.model_validate(AgentJetJob(num_repeat=3).config.to_dict()["ajet"]).rollout.num_repeat == 3


# ── the reference page ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_key_is_documented() -> None:
    def undocumented(node: type, prefix: str = "") -> list[str]:
        found = []
        for name, info in node.model_fields.items():
            section = section_of(info.annotation)
            if section is not None and issubclass(section, Node):
                found += undocumented(section, f"{prefix}{name}.")
            elif not info.description:
                found.append(prefix + name)
        return found

    assert undocumented(AjetConfig) == []
