"""Calls of an ended episode → rows: one row per agent, holding each of its sampled tokens in exactly one sample.

An agent's calls form a forest. Each leaf gives one sample (its root-to-leaf path); a token that several leaves share
is trained in the first of them only. What is not trained is counted under a reason, in tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from ajet.trajectory.batch import Row, Sample
from ajet.trajectory.calls import Call

PROMPT_TOO_LONG = "prompt_too_long"
"""The timeline's first prompt is longer than ``max_prompt_length``; nothing of it is trained."""
RESPONSE_TOO_LONG = "response_too_long"
"""Tokens beyond ``max_response_length`` after the first prompt, or beyond ``max_model_len`` in all."""
TOO_OLD = "policy_lag"
"""Tokens sampled by a policy older than ``max_policy_lag`` allows."""


def build_rows(
    episode: str,
    task: str,
    calls: Iterable[Call],
    reward: float | dict[str, float],
    *,
    limits: tuple[int, int, int],
    min_version: int = -(2**31),
) -> tuple[list[Row], Counter[str]]:
    """The rows of one episode.

    Args:
        calls: in the order they were recorded, so that a parent comes before its children.
        reward: one number, or a dict by agent name or tag (a name wins over a tag).
        limits: ``(max_prompt_length, max_response_length, max_model_len)`` in tokens.
        min_version: sampled tokens of an older policy version are context only.

    Returns:
        Rows in order of the agents' first calls (agents with nothing trained are left out), and how many sampled
        tokens were left out, by reason.

    Raises:
        KeyError: the reward dict covers neither an agent nor its tag.
    """
    dropped: Counter[str] = Counter()
    rows: list[Row] = []
    for agent, own in by_agent(calls).items():
        tag = own[0].tag
        value = reward if not isinstance(reward, dict) else reward[agent] if agent in reward else reward[tag]
        samples = _samples(own, limits, min_version, dropped)
        if samples:
            rows.append(Row(episode, agent, tag, task, float(value), samples))
    return rows, dropped


def by_agent(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """Each agent's calls in order, in the order of the agents' first calls."""
    found: dict[str, list[Call]] = {}
    for call in calls:
        found.setdefault(call.agent, []).append(call)
    return found


def timelines(calls: list[Call]) -> Iterator[list[Call]]:
    """The root-to-leaf paths of one agent's calls, in the order of their leaves."""
    known = {call.call_id: call for call in calls}
    parents = {call.parent for call in calls if call.parent is not None}
    for leaf in calls:
        if leaf.call_id in parents:
            continue
        path: list[Call] = []
        walk: Call | None = leaf
        while walk is not None:
            path.append(walk)
            walk = known[walk.parent] if walk.parent is not None else None
        path.reverse()
        yield path


def _samples(calls: list[Call], limits: tuple[int, int, int], min_version: int, dropped: Counter[str]) -> list[Sample]:
    assigned: set[str] = set()
    samples: list[Sample] = []
    for path in timelines(calls):
        sample, lost = path_sample(path, assigned, limits, min_version)
        dropped.update(lost)
        assigned.update(call.call_id for call in path)
        if sample is not None:
            samples.append(sample)
    return samples


def path_sample(
    path: list[Call], assigned: set[str], limits: tuple[int, int, int], min_version: int
) -> tuple[Sample | None, Counter[str]]:
    """One path as a sample, and how many of its sampled tokens are left out, by reason.

    Args:
        assigned: calls whose tokens another sample trains.
    """
    dropped: Counter[str] = Counter()
    max_prompt, max_response, max_model = limits
    length = sum(len(call.prompt_delta) + len(call.reply_ids) for call in path)
    ids_T = np.empty(length, np.int32)
    trained_T = np.zeros(length, bool)
    logprobs_T = np.zeros(length, np.float32)
    temperature_T = np.ones(length, np.float32)
    versions_T = np.full(length, -1, np.int32)
    at = 0
    for call in path:
        ids_T[at : at + len(call.prompt_delta)] = call.prompt_delta
        at += len(call.prompt_delta)
        end = at + len(call.reply_ids)
        ids_T[at:end] = call.reply_ids
        if call.call_id not in assigned:
            trained_T[at:end] = True
            logprobs_T[at:end] = call.logprobs
            temperature_T[at:end] = call.temperature
            versions_T[at:end] = call.versions
        at = end
    first_prompt = len(path[0].prompt_delta)
    if first_prompt > max_prompt:
        dropped[PROMPT_TOO_LONG] += int(trained_T.sum())
        return None, dropped
    room = min(length, first_prompt + max_response, max_model)
    if room < length:
        dropped[RESPONSE_TOO_LONG] += int(trained_T[room:].sum())
        ids_T, trained_T, logprobs_T = ids_T[:room], trained_T[:room], logprobs_T[:room]
        temperature_T, versions_T = temperature_T[:room], versions_T[:room]
    old_T = trained_T & (versions_T < min_version)
    if old_T.any():
        dropped[TOO_OLD] += int(old_T.sum())
        trained_T = trained_T & ~old_T
        logprobs_T = np.where(old_T, np.float32(0), logprobs_T)
        temperature_T = np.where(old_T, np.float32(1), temperature_T)
        versions_T = np.where(old_T, np.int32(-1), versions_T)
    if not trained_T.any():
        return None, dropped
    return Sample(ids_T, trained_T, logprobs_T, temperature_T, versions_T), dropped
