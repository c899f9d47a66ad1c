"""Tasks from a Hugging Face dataset: a repository on the hub, a local file or folder, or a ``save_to_disk`` folder.

Rows become tasks when they are asked for: ``main_query`` is the first text column of :data:`QUERY_COLUMNS`,
``metadata`` is the whole row, ``task_id`` is the row's own or ``<split>-<index>``. Never runs code from a repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from ajet.schema.errors import ConfigError
from ajet.schema.task import Task

QUERY_COLUMNS = ("main_query", "question", "query", "problem", "prompt", "instruction")
_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow", ".txt": "text"}


class HuggingfaceSource:
    """One dataset and its two splits; each is loaded when first asked for."""

    def __init__(self, path: str | None, name: str | None, training_split: str, validation_split: str) -> None:
        if not path:
            raise ConfigError(
                "huggingface_dat_repo needs a repository or a local path. Set task_reader.dataset_path.",
                param="task_reader.dataset_path",
            )
        self._path, self._name = path, name
        self._training_split, self._validation_split = training_split, validation_split

    @cached_property
    def _training(self) -> DatasetTasks:
        return DatasetTasks(_load(self._path, self._name, self._training_split), self._training_split)

    @cached_property
    def _validation(self) -> DatasetTasks:
        return DatasetTasks(_load(self._path, self._name, self._validation_split), self._validation_split)

    def training(self) -> Sequence[Task]:
        return self._training

    def validation(self) -> Sequence[Task]:
        return self._validation


class DatasetTasks(Sequence[Task]):
    """A split as a sequence of tasks. Own ids are checked to be unique when the split is opened."""

    def __init__(self, rows: Any, split: str) -> None:
        self._rows = rows
        self._split = split.split("[")[0]
        if not len(rows):
            raise ConfigError(f"The split {split!r} holds no row.")
        if "task_id" in rows.column_names:
            seen: dict[str, int] = {}
            for index, own in enumerate(rows["task_id"]):
                if own in (None, ""):
                    raise ConfigError(
                        f"Row {index} of split {split!r} has an empty task_id. Fill it or drop the column."
                    )
                if str(own) in seen:
                    raise ConfigError(
                        f"Rows {seen[str(own)]} and {index} of split {split!r} share the task_id {own!r}."
                    )
                seen[str(own)] = index

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return row_to_task(self._rows[index], f"{self._split}-{index}")


def row_to_task(row: dict[str, Any], default_id: str) -> Task:
    """The task of one row."""
    query = next((row[name] for name in QUERY_COLUMNS if isinstance(row.get(name), str)), "")
    messages = row.get("init_messages") or []
    return Task(
        task_id=str(row.get("task_id") or default_id),
        main_query=query,
        init_messages=[{k: v for k, v in message.items() if v is not None} for message in messages],
        metadata=row,
    )


def _load(path: str, name: str | None, split: str) -> Any:
    try:
        import datasets
    except ImportError as err:
        raise ConfigError(
            "Reading a dataset needs the 'datasets' package. Run: pip install 'agentjet[datasets]'"
        ) from err
    local = Path(path).expanduser()
    try:
        if (local / "state.json").is_file() or (local / "dataset_dict.json").is_file():
            return _saved_split(datasets.load_from_disk(str(local)), path, split)
        if local.is_file():
            builder = _BUILDERS.get(local.suffix.lower())
            if builder is None:
                raise ConfigError(
                    f"{path} is none of {', '.join(_BUILDERS)}. Convert it, or give a folder of such files."
                )
            return datasets.load_dataset(builder, data_files={split.split("[")[0]: str(local)}, split=split)
        if local.exists():
            return datasets.load_dataset(str(local), name, split=split)
        if local.is_absolute() or path.startswith((".", "~")):
            raise ConfigError(f"There is no dataset at {path}. Check task_reader.dataset_path.")
        return datasets.load_dataset(path, name, split=split)
    except ConfigError:
        raise
    except Exception as err:  # the loader's errors are of many kinds; each is about this dataset
        reason = str(err).strip().split("\n")[0] or type(err).__name__
        raise ConfigError(f"Cannot load split {split!r} of the dataset {path}: {reason}") from err


def _saved_split(saved: Any, path: str, split: str) -> Any:
    if not isinstance(saved, dict):
        return saved
    if split not in saved:
        raise ConfigError(f"The dataset {path} has no split {split!r}; it has {', '.join(map(str, saved))}.")
    return saved[split]
