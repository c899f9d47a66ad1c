"""From YAML and keywords to the typed tree, with errors that say where, what, why and what was probably meant.

Promise: a key is either honoured or refused; all errors of a file are reported at once; each names the file and
line (or the keyword), the key, the reason, and the nearest known key. What a file leaves out takes the default of
:mod:`ajet.default_config.schema`. Nothing is read from the environment.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ajet.default_config.schema import AjetConfig
from ajet.default_config.yaml_source import KeyPath, Layer, dotted, parse_layer, read_layer
from ajet.schema.errors import ConfigError

__all__ = [
    "Layer",
    "build_config",
    "check_config",
    "config_from_dict",
    "job_diff",
    "load_yaml",
    "loads_yaml",
    "machine_problems",
]

ROOT = "ajet"
_FILE_HINTS = {
    "hydra": "there is no hydra composition here; remove it",
    "defaults": "defaults come from AgentJet itself; remove it",
}


def load_yaml(path: str | Path) -> AjetConfig:
    """The configuration of one YAML file on top of the defaults.

    Raises:
        ConfigError: with one line per problem, each naming file, line, key and reason.
    """
    return build_config([layer_under_root(read_layer(path), str(path))])


def loads_yaml(text: str, name: str = "<yaml>") -> AjetConfig:
    """As :func:`load_yaml`, from a string."""
    return build_config([layer_under_root(parse_layer(text, name), name)])


def config_from_dict(data: Mapping[str, Any], origin: str = "the job") -> AjetConfig:
    """The configuration of plain data (the tree below ``ajet:``), for example of ``PUT /job``."""
    return build_config([Layer(dict(data), {(key,): origin for key in data})])


def layer_under_root(layer: Layer, name: str) -> Layer:
    """The part of a file's layer below ``ajet:``."""
    problems = []
    for key in layer.data:
        if key == ROOT:
            continue
        reason = _FILE_HINTS.get(key)
        if reason is None and key in AjetConfig.model_fields:
            reason = f"everything stands below '{ROOT}:'; indent it under that key"
        reason = reason or f"the only key at the top of a configuration is '{ROOT}:'"
        problems.append(f"{layer.origins[(key,)]}: unknown key {key}: {reason}.")
    tree = layer.data.get(ROOT)
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        problems.append(f"{layer.origins[(ROOT,)]}: '{ROOT}:' holds the configuration's keys, found {_show(tree)}.")
    if problems:
        raise ConfigError("\n".join(problems), details={"errors": problems})
    origins = {path[1:]: where for path, where in layer.origins.items() if path[:1] == (ROOT,) and len(path) > 1}
    return Layer(tree, origins)


def build_config(layers: Iterable[Layer]) -> AjetConfig:
    """Merge ``layers`` (later ones win, key by key) onto the defaults, validate, and check across keys."""
    merged = Layer({})
    for layer in layers:
        _merge(merged.data, layer.data)
        merged.origins.update(layer.origins)
    _drop_empty_sections(merged.data, AjetConfig)
    problems = [_describe(merged, path, "is not a finite number; give one") for path in _non_finite(merged.data, ())]
    config: AjetConfig | None = None
    try:
        config = AjetConfig.model_validate_json(json.dumps(merged.data, default=str), strict=True)
    except ValidationError as err:
        problems += _validation_problems(merged, err)
    if config is not None and not problems:
        problems = [_describe(merged, path, reason) for path, reason in _cross_field_problems(config)]
    if config is None or problems:
        raise ConfigError("\n".join(problems), details={"errors": problems})
    return config


def check_config(config: AjetConfig) -> None:
    """Check a tree that was changed by assignment across its keys. Raises :class:`ConfigError`."""
    build_config([Layer(config.model_dump(mode="json"))])


def job_diff(
    running: AjetConfig | Mapping[str, Any], requested: AjetConfig | Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Where two configurations differ: dotted key → ``[running, requested]``."""
    left, right = (dict(_flat(_plain(tree), ())) for tree in (running, requested))
    keys = sorted(left.keys() | right.keys())
    return {key: [left.get(key), right.get(key)] for key in keys if left.get(key) != right.get(key)}


def machine_problems(config: AjetConfig, gpus: int) -> list[str]:
    """What ``config`` asks for and a host with ``gpus`` GPUs cannot give; each entry says what to set."""
    trainer, rollout, found = config.trainer_common, config.rollout, []
    wanted = trainer.n_gpus_per_node
    elsewhere = config.backbone == "verl" and config.verl.ray_address is not None
    if wanted is not None and wanted > gpus and not elsewhere:
        settings = f"trainer_common.n_gpus_per_node: {gpus}" + (" (0 = the CPU)" if gpus == 0 else "")
        found.append(f"trainer_common.n_gpus_per_node is {wanted}, but this host has {gpus} GPU(s). Set {settings}.")
    if config.backbone == "embedded":
        for key, value in (
            ("trainer_common.n_gpus_per_node", wanted or 1),
            ("trainer_common.nnodes", trainer.nnodes),
            ("rollout.tensor_model_parallel_size", rollout.tensor_model_parallel_size),
            ("trainer_common.ulysses_sequence_parallel_size", trainer.ulysses_sequence_parallel_size),
        ):
            if value > 1 and not (found and key == "trainer_common.n_gpus_per_node"):
                found.append(
                    f"{key} is {value}, but backbone embedded uses one device. Set {key}: 1, or backbone: verl."
                )
        if rollout.name not in ("auto", "embedded", "vllm"):
            found.append(
                f"rollout.name is {rollout.name}, which needs backbone: verl; backbone embedded samples by itself or by vllm. "
                "Set rollout.name: auto, or backbone: verl."
            )
        if rollout.sleep_while_training and rollout.name != "vllm":
            found.append(
                f"rollout.sleep_while_training needs rollout.name: vllm, and it is {rollout.name}. Set it to false."
            )
    elif gpus == 0 and wanted is None and not elsewhere:
        found.append(
            "backbone verl needs GPUs, and this host has none. Set backbone: embedded, verl.ray_address where the GPUs are, "
            "or trainer_common.n_gpus_per_node: 0 to try verl on CPUs."
        )
    return found


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

GROUP_BASELINES = ("grpo", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "gpg", "opo")
"""Estimators whose baseline is the rest of the group."""


def _cross_field_problems(config: AjetConfig) -> list[tuple[KeyPath, str]]:
    rollout, data, trainer = config.rollout, config.data, config.trainer_common
    found: list[tuple[KeyPath, str]] = []
    if data.max_prompt_length + data.max_response_length > rollout.max_model_len:
        found.append(
            (
                ("rollout", "max_model_len"),
                f"is {rollout.max_model_len}, less than data.max_prompt_length + data.max_response_length = "
                f"{data.max_prompt_length} + {data.max_response_length}; raise it or lower those",
            )
        )
    if rollout.max_response_length_in_one_turn > data.max_response_length:
        found.append(
            (
                ("rollout", "max_response_length_in_one_turn"),
                f"is {rollout.max_response_length_in_one_turn}, more than data.max_response_length = "
                f"{data.max_response_length}; a turn is part of the response, so lower it",
            )
        )
    if rollout.top_p != 1.0:
        found.append(
            (
                ("rollout", "top_p"),
                f"is {rollout.top_p}, but the trainer cannot reproduce a truncated distribution; set 1.0",
            )
        )
    episodes = data.train_batch_size * rollout.num_repeat
    if trainer.mini_batch_num > episodes:
        found.append(
            (
                ("trainer_common", "mini_batch_num"),
                f"is {trainer.mini_batch_num}, more than the {episodes} episodes of a batch "
                "(data.train_batch_size × rollout.num_repeat); lower it",
            )
        )
    if rollout.num_repeat < 2 and trainer.algorithm.adv_estimator in GROUP_BASELINES:
        found.append(
            (
                ("rollout", "num_repeat"),
                f"is {rollout.num_repeat}, but {trainer.algorithm.adv_estimator} compares the episodes of a group; set at least 2",
            )
        )
    if not re.fullmatch(r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,127}", config.experiment_name):
        found.append(
            (
                ("experiment_name",),
                f"is {_show(config.experiment_name)}, but it names a folder: 1 to 128 characters, no slash, no leading dot",
            )
        )
    if not config.model.path.strip():
        found.append((("model", "path"), "is empty; give a directory or the name of the built-in model"))
    return found


def _validation_problems(layer: Layer, err: ValidationError) -> list[str]:
    wrong: dict[KeyPath, tuple[list[str], Any]] = {}
    problems: list[str] = []
    for error in err.errors(include_url=False):
        path = tuple(error["loc"])
        if error["type"] == "extra_forbidden":
            hint = _nearest(path)
            reason = f"unknown key {dotted(path)}." + (f" Did you mean {hint}?" if hint else "")
            where = layer.origin(path)
            problems.append(f"{where}: {reason}" if where else reason)
            continue
        while len(path) > 1 and not _exists(layer.data, path) and error["type"] != "missing":
            path = path[:-1]  # pydantic appends the name of the union's member
        reasons = wrong.setdefault(path, ([], error["input"]))[0]
        if (reason := _reason(error)) not in reasons:
            reasons.append(reason)
    for path, (reasons, found) in wrong.items():
        text = " or ".join([reasons[0], *(reason.removeprefix("expected ") for reason in reasons[1:])])
        problems.append(_describe(layer, path, text if text == "is missing" else f"{text}, found {_show(found)}"))
    return problems


_EXPECTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "text", "list": "a list",
    "dict": "a mapping", "model": "a section with keys below it", "tuple": "a list",
}  # fmt: skip


def _reason(error: Mapping[str, Any]) -> str:
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind == "literal_error":
        return f"expected one of {context['expected']}"
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        bound = context.get("ge", context.get("gt", context.get("le", context.get("lt"))))
        word = {"greater_than_equal": "at least", "greater_than": "more than"}.get(
            kind, "at most" if kind == "less_than_equal" else "less than"
        )
        return f"expected {word} {bound:g}"
    if kind == "missing":
        return "is missing"
    stem = kind.rsplit("_", 1)[0]
    if kind in ("model_type", "model_attributes_type"):
        stem = "model"
    if stem == "int_from":
        stem = "int"
    return f"expected {_EXPECTED[stem]}" if stem in _EXPECTED else str(error["msg"])


def _describe(layer: Layer, path: KeyPath, reason: str) -> str:
    where = layer.origin(path)
    text = f"{dotted(path)} {reason}" if reason.startswith("is ") else f"{dotted(path)}: {reason}"
    return f"{where}: {text}." if where else f"{text}."


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _nearest(path: KeyPath) -> str | None:
    """The known key that ``path`` was probably meant to be: one of the same section, else of any."""
    known = known_keys()
    wanted, section = str(path[-1]), path[:-1]
    siblings = {str(key[-1]): key for key in known if key[:-1] == section}
    close = difflib.get_close_matches(wanted, siblings, n=1, cutoff=0.6)
    if close:
        return dotted(siblings[close[0]])
    anywhere: dict[str, KeyPath] = {}
    for key in known:
        anywhere.setdefault(str(key[-1]), key)
    close = difflib.get_close_matches(wanted, anywhere, n=1, cutoff=0.8)
    return dotted(anywhere[close[0]]) if close else None


def known_keys(node: type[BaseModel] = AjetConfig, prefix: KeyPath = ()) -> list[KeyPath]:
    """Every key path of the tree, sections included, in the order of the schema."""
    found: list[KeyPath] = []
    for name, info in node.model_fields.items():
        found.append((*prefix, name))
        section = section_of(info.annotation)
        if section is not None:
            found += known_keys(section, (*prefix, name))
    return found


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The node class behind an annotation, or None for a leaf."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


# ── plain data ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            below = into.get(key)
            into[key] = below if isinstance(below, dict) else {}
            _merge(into[key], value)
        else:
            into[key] = value


def _drop_empty_sections(data: dict[str, Any], node: type[BaseModel]) -> None:
    """``data:`` with everything below it commented out means the section's defaults."""
    for key in list(data):
        section = section_of(node.model_fields[key].annotation) if key in node.model_fields else None
        if section is None:
            continue
        if data[key] is None:
            del data[key]
        elif isinstance(data[key], dict):
            _drop_empty_sections(data[key], section)


def _non_finite(value: Any, path: KeyPath) -> Iterable[KeyPath]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _non_finite(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _non_finite(item, (*path, index))


def _exists(data: Any, path: KeyPath) -> bool:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _plain(tree: AjetConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    return tree.model_dump(mode="json") if isinstance(tree, AjetConfig) else tree


def _flat(tree: Mapping[str, Any], path: KeyPath) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*path, key))
        else:
            yield dotted((*path, key)), value
