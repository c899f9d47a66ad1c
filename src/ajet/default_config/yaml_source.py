"""YAML files as plain data with the line of every key, for error messages that a reader can act on.

Promise: duplicate keys and non-mappings are refused; numbers like ``5e-4`` are numbers (YAML 1.2), dates stay text;
nothing is taken from the environment and no Python object is ever built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ajet.schema.errors import ConfigError

KeyPath = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 floats and without timestamps."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass
class Layer:
    """Settings from one place. ``origins`` maps a key path to where it was written (``file.yaml:12``)."""

    data: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> str | None:
        """Where ``path``, or the nearest branch above it, was written."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return None


def read_layer(path: str | Path) -> Layer:
    """Read one YAML file.

    Raises:
        ConfigError: the file is missing, not YAML, not a mapping, or says a key twice; names file and line.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"Cannot read the configuration {source}: {err}. Check the path.") from err
    return parse_layer(text, str(source))


def parse_layer(text: str, name: str) -> Layer:
    """Parse YAML ``text``; ``name`` stands for the file in messages."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return Layer({})
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{name}:1: a configuration is a mapping that begins with 'ajet:', not a {_kind(root)}.")
        layer, problems = Layer({}), []
        layer.data = _mapping(loader, root, (), name, layer.origins, problems)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"{where}: this is not YAML: {getattr(err, 'problem', None) or err}.") from err
    finally:
        loader.dispose()
    if problems:
        raise ConfigError("\n".join(problems), details={"errors": problems})
    return layer


def _kind(node: yaml.Node) -> str:
    return "list" if isinstance(node, yaml.SequenceNode) else "single value"


def _mapping(
    loader: _Loader, node: yaml.MappingNode, path: KeyPath, name: str, origins: dict[KeyPath, str], problems: list[str]
) -> dict[str, Any]:
    loader.flatten_mapping(node)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        here = (*path, key)
        where = f"{name}:{key_node.start_mark.line + 1}"
        if key in result:
            problems.append(f"{where}: {dotted(here)} is set twice (first at {origins[here]}); keep one of them.")
            continue
        origins[here] = where
        result[key] = _value(loader, value_node, here, name, origins, problems)
    return result


def _value(
    loader: _Loader, node: yaml.Node, path: KeyPath, name: str, origins: dict[KeyPath, str], problems: list[str]
) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, path, name, origins, problems)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            origins[(*path, index)] = f"{name}:{item.start_mark.line + 1}"
        return [_value(loader, item, (*path, index), name, origins, problems) for index, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def dotted(path: KeyPath) -> str:
    """``('rollout', 'num_repeat')`` → ``rollout.num_repeat``."""
    return ".".join(str(part) for part in path)
