"""Tasks from a file of JSON objects, one a line, with the fields of :class:`ajet.schema.task.Task`.

A row without ``task_id`` gets its line number as one. Bad rows are refused with file and line, several at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from ajet.schema.errors import ConfigError
from ajet.schema.task import Task

MAX_REPORTED = 10


class JsonlSource:
    def __init__(self, training_path: str | None, validation_path: str | None) -> None:
        if not training_path:
            raise ConfigError(
                "jsonl_dataset_file needs the file of training tasks. Set task_reader.dataset_path.",
                param="task_reader.dataset_path",
            )
        self._training_path = training_path
        self._validation_path = validation_path

    @cached_property
    def _training(self) -> list[Task]:
        return read_tasks(self._training_path)

    @cached_property
    def _validation(self) -> list[Task]:
        if not self._validation_path:
            raise ConfigError(
                "There are no validation tasks. Set task_reader.validation_path.", param="task_reader.validation_path"
            )
        return read_tasks(self._validation_path)

    def training(self) -> Sequence[Task]:
        return self._training

    def validation(self) -> Sequence[Task]:
        return self._validation


def read_tasks(path: str | Path) -> list[Task]:
    """All tasks of one file.

    Raises:
        ConfigError: the file cannot be read, has no task, or has bad rows; each with file, line and reason.
    """
    tasks: list[Task] = []
    first_line: dict[str, int] = {}
    problems: list[str] = []
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.strip():
                    continue
                try:
                    task = _task(raw, number)
                except ValueError as err:
                    problems.append(f"{path}:{number}: {err}")
                    continue
                if task.task_id in first_line:
                    problems.append(
                        f"{path}:{number}: task_id {task.task_id!r} is already that of line {first_line[task.task_id]}; "
                        "two tasks with one id would be trained as one group."
                    )
                    continue
                first_line[task.task_id] = number
                tasks.append(task)
    except OSError as err:
        raise ConfigError(f"Cannot read the tasks {path}: {err}. Check the path.") from err
    if problems:
        more = [f"… and {len(problems) - MAX_REPORTED} more."] if len(problems) > MAX_REPORTED else []
        raise ConfigError("\n".join(problems[:MAX_REPORTED] + more), details={"errors": problems[:MAX_REPORTED]})
    if not tasks:
        raise ConfigError(f"{path} holds no task. Write one JSON object a line.")
    return tasks


def _task(raw: bytes, number: int) -> Task:
    try:
        row = json.loads(raw)
    except UnicodeDecodeError as err:
        raise ValueError(f"not UTF-8 ({err.reason}).") from err
    except json.JSONDecodeError as err:
        raise ValueError(f"not JSON ({err.msg}, column {err.colno}).") from err
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, found {json.dumps(row)[:60]}.")
    try:
        return Task.model_validate({**row, "task_id": row.get("task_id") or str(number)})
    except ValidationError as err:
        reasons = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in err.errors(include_url=False)]
        raise ValueError("; ".join(reasons) + ".") from err
