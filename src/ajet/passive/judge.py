"""What a judge sees and says, and how one is found and asked.

A judge is a function of the user's: ``judge(asked, answers)`` returns one number for each answer, or None where it
cannot tell. Only differences within a request count (GRPO compares the answers of one request), so ranks will do. It may
be ``async``; a plain one runs in a thread.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ajet.schema.errors import ConfigError

LARGEST = 1e6


@dataclass(frozen=True)
class Asked:
    """What the application asked.

    Attributes:
        messages: the conversation, as it came. tools: those offered. body: the whole request.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    body: dict[str, Any]

    @property
    def question(self) -> str:
        """Text of the last message of the user's."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return text_of(message)
        return ""


@dataclass(frozen=True)
class Answer:
    """One of the model's answers.

    Attributes:
        message: the assistant message. finish_reason: ``stop``, ``length`` or ``tool_calls``.
        completion: the chat completion it came in.
    """

    message: dict[str, Any]
    finish_reason: str
    completion: dict[str, Any]

    @property
    def text(self) -> str:
        return text_of(self.message)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls") or []


Rewards = Sequence[float] | None
Judge = Callable[[Asked, list[Answer]], Rewards | Awaitable[Rewards]]


class Unjudged(Exception):
    """There is no judgement; says why. The group is not trained."""


def text_of(message: dict[str, Any]) -> str:
    """A message's text; of parts, the text parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


async def ask(judge: Judge, asked: Asked, answers: list[Answer], timeout_s: float) -> list[float]:
    """The judge's rewards, checked.

    Raises:
        Unjudged: it raised, took too long, could not tell, or said something that is no list of finite numbers.
    """
    try:
        async with _timeout(timeout_s):
            if inspect.iscoroutinefunction(judge):
                said = await judge(asked, answers)
            else:
                said = await asyncio.to_thread(judge, asked, answers)
                if inspect.isawaitable(said):
                    said = await said
    except asyncio.TimeoutError:
        raise Unjudged(f"judge_timeout: no judgement within {timeout_s:g} s") from None
    except Exception as err:  # the boundary of the user's code
        raise Unjudged(f"judge_failed: {type(err).__name__}: {err}") from err
    if said is None:
        raise Unjudged("judge_undecided: the judge returned None")
    try:
        rewards = [float(value) for value in cast(Sequence[float], said)]
    except (TypeError, ValueError) as err:
        raise Unjudged(f"judge_wrong: a judge returns one number for each answer, not {said!r:.200}") from err
    if len(rewards) != len(answers):
        raise Unjudged(f"judge_wrong: {len(rewards)} rewards for {len(answers)} answers")
    if not all(math.isfinite(value) and abs(value) <= LARGEST for value in rewards):
        raise Unjudged(f"judge_wrong: rewards must be finite and within ±1e6, not {rewards!r:.200}")
    return rewards


class _timeout:
    """``asyncio.timeout`` for Python 3.10: TimeoutError where the block takes longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._fired = seconds, False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def fire() -> None:
            self._fired = True
            task.cancel()

        self._handle = asyncio.get_running_loop().call_later(self._seconds, fire)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._handle.cancel()
        if self._fired and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from error


def load_judge(where: str) -> Judge:
    """The judge named ``file.py:function`` or ``package.module:function``; the function is ``judge`` where left out.

    Raises:
        ConfigError: there is none.
    """
    place, _, name = where.partition(":") if not where.endswith(".py") else (where, "", "")
    name = name or "judge"
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location("ajet_passive_judge", Path(place).expanduser())
            if spec is None or spec.loader is None:
                raise ImportError(f"{place} is no Python file")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        judge = getattr(module, name)
    except (ImportError, OSError, AttributeError, SyntaxError) as err:
        raise ConfigError(
            f"There is no judge at {where!r} ({err}). Name it as file.py:function or package.module:function.",
            param="judge",
        ) from err
    if not callable(judge):
        raise ConfigError(f"{where!r} is no function.", param="judge")
    return cast(Judge, judge)
