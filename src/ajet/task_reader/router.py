"""RouterTaskReader: one reader over all sources, with seeded order and a position to resume from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ajet.default_config.load import config_from_dict
from ajet.default_config.schema import TaskReaderNode
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task
from ajet.task_reader.huggingface import HuggingfaceSource
from ajet.task_reader.jsonl import JsonlSource
from ajet.task_reader.random_dummy import RandomDummySource
from ajet.task_reader.source import TaskSource

READER_TYPES = ("random_dummy", "jsonl_dataset_file", "huggingface_dat_repo")


class RouterTaskReader:
    """Reads tasks of one source.

    Args:
        reader_type: ``random_dummy`` (numbered tasks without content, for games that deal from a seed),
            ``jsonl_dataset_file`` (one JSON task a line) or ``huggingface_dat_repo`` (a dataset on the hub, or a local
            file or folder). Default: the configuration's ``type``.
        reader_config: the ``task_reader`` section, as a node, a mapping, or None for the defaults.

    One training iterator is in use at a time; the newest one owns the position.

    Raises:
        ConfigError: an unknown type or a setting that the type needs and lacks.
    """

    def __init__(
        self, reader_type: str | None = None, reader_config: TaskReaderNode | Mapping[str, Any] | None = None
    ) -> None:
        if isinstance(reader_config, TaskReaderNode):
            node = reader_config
        else:
            tree = {"task_reader": dict(reader_config or {})}
            node = config_from_dict(tree, origin="reader_config").task_reader
        self.reader_type = reader_type or node.type
        self.config = node
        self._source = _source_of(self.reader_type, node)
        self._seed = node.seed
        self._pass = 0
        self._index = 0
        self._resuming = False

    @property
    def position(self) -> int:
        """Training tasks handed out so far, over all passes (an abandoned pass counts as whole)."""
        return self._pass * len(self._source.training()) + self._index

    def generate_training_tasks(self) -> Iterator[Task]:
        """One pass over the training tasks. Each call is a new pass, in a new order where there is a seed; the first
        one after :meth:`load_state_dict` is the rest of the pass that was interrupted."""
        tasks = self._source.training()
        if self._resuming:
            self._resuming = False
        elif self._index:
            self._pass, self._index = self._pass + 1, 0
        return self._walk(tasks, self._pass)

    def _walk(self, tasks: Sequence[Task], number: int) -> Iterator[Task]:
        order = _order(len(tasks), self._seed, number)
        while self._pass == number and self._index < len(order):
            task = tasks[order[self._index]]
            self._index += 1
            yield task

    def generate_validation_tasks(self) -> Iterator[Task]:
        """The validation tasks, always in the source's own order."""
        return iter(self._source.validation())

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON-able data."""
        return {
            "reader_type": self.reader_type,
            "seed": self._seed,
            "num_tasks": len(self._source.training()),
            "pass": self._pass,
            "index": self._index,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the reader of ``state`` was.

        Raises:
            ConfigError: ``state`` is of another source, seed or number of tasks, so its position means nothing here.
        """
        mine = self.state_dict()
        for key in ("reader_type", "seed", "num_tasks"):
            if state.get(key) != mine[key]:
                raise ConfigError(
                    f"Cannot resume the task reader: its {key} was {state.get(key)!r} and is {mine[key]!r} now. "
                    "Restore the old setting, or start the reader from the beginning."
                )
        number, index = int(state["pass"]), int(state["index"])
        if number < 0 or not 0 <= index <= mine["num_tasks"]:
            raise ConfigError(f"Cannot resume the task reader: position {number}/{index} does not exist.")
        self._pass, self._index = number, index
        if index == mine["num_tasks"]:
            self._pass, self._index = number + 1, 0
        self._resuming = True

    def __len__(self) -> int:
        """Training tasks of one pass."""
        return len(self._source.training())


def _order(count: int, seed: int | None, number: int) -> Sequence[int]:
    if seed is None:
        return range(count)
    order = list(range(count))
    random.Random(f"{seed}/{number}").shuffle(order)
    return order


def _source_of(reader_type: str, node: TaskReaderNode) -> TaskSource:
    if reader_type == "random_dummy":
        return RandomDummySource(node.num_tasks)
    if reader_type == "jsonl_dataset_file":
        nested = node.jsonl_dataset_file
        training, validation = node.dataset_path, node.validation_path
        if nested is not None:
            training = nested.training.file_path if nested.training else None
            validation = nested.validation.file_path if nested.validation else None
        return JsonlSource(training, validation)
    if reader_type == "huggingface_dat_repo":
        repo = node.huggingface_dat_repo
        if repo is not None:
            return HuggingfaceSource(repo.dataset_path, repo.dataset_name, repo.training_split, repo.validation_split)
        return HuggingfaceSource(node.dataset_path, node.dataset_name, node.training_split, node.validation_split)
    raise ConfigError(f"There is no task reader {reader_type!r}. Choose one of {', '.join(READER_TYPES)}.")
