"""Claims about task readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.default_config.ajet_config_schema import AjetTaskReader, HuggingfaceDatRepo, JsonlDatasetFile, JsonlTrainingFp
from ajet.schema.errors import ConfigError
from ajet.task_reader import RouterTaskReader


def ids(tasks: Any) -> list[str]:
    return [task.task_id for task in tasks]


def dummy(num_tasks: int, seed: int | None) -> RouterTaskReader:
    return RouterTaskReader("random_dummy", AjetTaskReader(type="random_dummy", num_tasks=num_tasks, seed=seed))


# ── order and position ───────────────────────────────────────────────────────────────────────────────────────────────


def test_random_dummy_is_a_thousand_numbered_tasks_in_fixed_order() -> None:
    reader = RouterTaskReader("random_dummy", AjetTaskReader(type="random_dummy"))
    for _ in range(2):
        tasks = list(reader.generate_training_tasks())
        assert [(task.task_id, task.metadata["random_number"]) for task in tasks] == [(str(n), n) for n in range(1000)]
    assert not set(ids(reader.generate_validation_tasks())) & set(ids(tasks))
    assert len(reader) == 1000


@pytest.mark.parametrize("config", [None, {}, {"type": "random_dummy"}, AjetTaskReader()])
def test_the_configuration_may_be_given_in_any_form(config: Any) -> None:
    assert len(RouterTaskReader(reader_config=config)) == 1000


@given(st.integers(1, 30), st.integers(0, 5))
def test_each_pass_is_a_permutation_that_depends_on_seed_and_pass_only(count: int, seed: int) -> None:
    one, other = dummy(count, seed), dummy(count, seed)
    passes = [ids(one.generate_training_tasks()) for _ in range(3)]
    assert passes == [ids(other.generate_training_tasks()) for _ in range(3)]
    assert all(sorted(p, key=int) == [str(n) for n in range(count)] for p in passes)
    if count > 12:
        assert len({tuple(p) for p in passes}) > 1
        assert passes[0] != ids(dummy(count, seed + 100).generate_training_tasks())


@given(st.integers(1, 12), st.sampled_from([None, 0, 7]), st.integers(0, 40), st.integers(1, 30))
def test_a_resumed_reader_hands_out_exactly_what_the_other_would_have(
    count: int, seed: int | None, before: int, after: int
) -> None:
    def stream(reader: RouterTaskReader):
        while True:
            yield from reader.generate_training_tasks()

    first = dummy(count, seed)
    endless = stream(first)
    for _ in range(before):
        next(endless)
    assert first.position == before
    state = json.loads(json.dumps(first.state_dict()))
    resumed = dummy(count, seed)
    resumed.load_state_dict(state)
    assert resumed.position == before
    again = stream(resumed)
    assert [next(again) for _ in range(after)] == [next(endless) for _ in range(after)]


def test_a_new_pass_starts_anew_and_retires_the_old_iterator() -> None:
    reader = dummy(5, None)
    old = reader.generate_training_tasks()
    assert next(old).task_id == "0"
    assert ids(reader.generate_training_tasks()) == ["0", "1", "2", "3", "4"]
    assert list(old) == []


def test_a_position_of_another_reader_is_refused() -> None:
    state = dummy(5, None).state_dict()
    with pytest.raises(ConfigError, match="num_tasks was 5 and is 6"):
        dummy(6, None).load_state_dict(state)
    with pytest.raises(ConfigError, match="seed"):
        dummy(5, 1).load_state_dict(state)
    with pytest.raises(ConfigError, match="does not exist"):
        dummy(5, None).load_state_dict({**state, "index": 99})


def test_an_unknown_reader_or_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="huggingface_dat_repo"):
        RouterTaskReader("hugging_face")
    with pytest.raises(ConfigError, match=r"Did you mean task_reader\.seed"):
        RouterTaskReader("random_dummy", {"sed": 1})


# ── jsonl ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def jsonl(path: Path, *lines: Any) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


def test_jsonl_rows_become_tasks(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "t.jsonl", {"task_id": "a", "main_query": "q", "metadata": {"x": 1}}, "", {"main_query": "狼"}
    )
    reader = RouterTaskReader("jsonl_dataset_file", {"dataset_path": path, "validation_path": path})
    first, second = reader.generate_training_tasks()
    assert (first.task_id, first.main_query, first.metadata) == ("a", "q", {"x": 1})
    assert (second.task_id, second.main_query) == ("3", "狼")
    assert ids(reader.generate_validation_tasks()) == ["a", "3"]


def test_the_nested_form_of_the_paths_works(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", {"task_id": "a"})
    config = AjetTaskReader(
        type="jsonl_dataset_file", jsonl_dataset_file=JsonlDatasetFile(training=JsonlTrainingFp(file_path=path))
    )
    reader = RouterTaskReader("jsonl_dataset_file", config)
    assert ids(reader.generate_training_tasks()) == ["a"]
    with pytest.raises(ConfigError, match="validation"):
        reader.generate_validation_tasks()


def test_bad_rows_are_all_named_with_file_and_line(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "t.jsonl",
        {"task_id": "a"},
        "{broken",
        "[1]",
        {"init_messages": "hello"},
        {"task_id": "a"},
        {"task_id": 5},
    )
    with pytest.raises(ConfigError) as caught:
        list(RouterTaskReader("jsonl_dataset_file", {"dataset_path": path}).generate_training_tasks())
    lines = caught.value.message.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{path}:{n}" for n in (2, 3, 4, 5, 6)]
    assert "not JSON" in lines[0]
    assert "init_messages" in lines[2]
    assert "already that of line 1" in lines[3]


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    for path, message in ((str(tmp_path / "no.jsonl"), "no.jsonl"), (jsonl(tmp_path / "e.jsonl", ""), "holds no task")):
        with pytest.raises(ConfigError, match=message):
            list(RouterTaskReader("jsonl_dataset_file", {"dataset_path": path}).generate_training_tasks())
    with pytest.raises(ConfigError, match="dataset_path"):
        RouterTaskReader("jsonl_dataset_file")


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=5))
def test_jsonl_metadata_survives(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, int]]) -> None:
    if not rows:
        return
    path = jsonl(tmp_path_factory.mktemp("j") / "t.jsonl", *({"metadata": row} for row in rows))
    reader = RouterTaskReader("jsonl_dataset_file", {"dataset_path": path})
    assert [task.metadata for task in reader.generate_training_tasks()] == rows


# ── Hugging Face ─────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    module.disable_progress_bars()
    return module


def test_a_local_folder_of_files_is_a_dataset(datasets: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    folder.mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(folder / "train.parquet")
    datasets.Dataset.from_list(ROWS[:1]).to_parquet(folder / "test.parquet")
    reader = RouterTaskReader("huggingface_dat_repo", {"dataset_path": str(folder)})
    tasks = list(reader.generate_training_tasks())
    assert [(task.task_id, task.main_query, task.metadata) for task in tasks] == [
        ("train-0", "1+1?", ROWS[0]),
        ("train-1", "2+2?", ROWS[1]),
    ]
    assert ids(reader.generate_validation_tasks()) == ["test-0"]


def test_a_local_file_is_a_dataset_and_its_order_is_seeded(datasets: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps([{"question": str(n), "task_id": f"q{n}"} for n in range(40)]))
    config = AjetTaskReader(seed=1, huggingface_dat_repo=HuggingfaceDatRepo(dataset_path=str(path)))
    order = ids(RouterTaskReader("huggingface_dat_repo", config).generate_training_tasks())
    assert sorted(order) == sorted(f"q{n}" for n in range(40))
    assert order == ids(RouterTaskReader("huggingface_dat_repo", config).generate_training_tasks())
    assert order != [f"q{n}" for n in range(40)]


def test_a_saved_dataset_is_a_dataset(datasets: Any, tmp_path: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "saved"))
    reader = RouterTaskReader("huggingface_dat_repo", {"dataset_path": str(tmp_path / "saved")})
    assert len(list(reader.generate_training_tasks())) == 2
    with pytest.raises(ConfigError, match="it has train"):
        reader.generate_validation_tasks()


def test_a_dataset_that_cannot_be_loaded_says_why(datasets: Any, tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    folder.mkdir()
    (folder / "train.json").write_text(
        json.dumps([{"question": "x", "task_id": "a"}, {"question": "y", "task_id": "a"}])
    )
    reader = RouterTaskReader("huggingface_dat_repo", {"dataset_path": str(folder)})
    with pytest.raises(ConfigError, match="share the task_id 'a'"):
        reader.generate_training_tasks()
    with pytest.raises(ConfigError, match="split 'test'"):
        reader.generate_validation_tasks()
    with pytest.raises(ConfigError, match="no dataset at"):
        RouterTaskReader("huggingface_dat_repo", {"dataset_path": str(tmp_path / "no")}).generate_training_tasks()
