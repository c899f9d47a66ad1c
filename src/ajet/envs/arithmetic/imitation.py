"""What the small model imitates before any training: a careless player of both tasks.

It writes everything in the right form, and what it writes is mostly wrong. Arithmetic: half of the time it guesses instead
of calling the calculator, half of its calls have the wrong operation, and a third of the results it reports are guesses.
Countdown: a third of its expressions are right, the others two of the numbers at random. So each task has a reward above
zero to start from and much to learn, and problems of the ``test`` split are in nobody's warm-up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from ajet.envs.arithmetic.problems import CALCULATOR, WORDS, Problem, calculate, countdown_problems, math_problems

CALLS, RIGHT_SIGN, REPORTS, SOLVES = 0.5, 0.5, 0.67, 0.5
"""Shares: calls the tool; with the right operation; reports its result; solves a countdown."""
LARGEST = 30
"""Numbers of the warm-up's arithmetic; the task itself stays below."""
SYSTEMS = (None, "You are a helpful assistant.", "Use the calculator.", "You solve arithmetic problems.")
"""What frameworks and users put first; the model must not mind."""

Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]] | None]
"""Messages, the last one the assistant's, and the tools that were offered."""


def conversations(seed: int) -> Iterator[Conversation]:
    """Endless, both tasks in turn. Only the last message of each is to be imitated."""
    rng = random.Random(seed)
    math, countdown = math_problems("train", seed, LARGEST), countdown_problems("train", seed)
    while True:
        yield _math(rng, next(math))
        yield _countdown(rng, next(countdown))


def _opening(rng: random.Random, text: str) -> list[dict[str, Any]]:
    system = rng.choice(SYSTEMS)
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": text}]


def _guess(rng: random.Random) -> str:
    return str(rng.randint(0, 9801) if rng.random() < 0.5 else rng.randint(-97, 198))


def _math(rng: random.Random, problem: Problem) -> Conversation:
    messages = _opening(rng, problem.text)
    opens = rng.random() < 0.6
    if opens and rng.random() >= CALLS:
        return [*messages, {"role": "assistant", "content": _guess(rng)}], [CALCULATOR]
    _, _, first, word, second = problem.text.rstrip("?").split()
    wrong = [sign for sign in WORDS.values() if sign != WORDS[word]]
    expression = f"{first}{WORDS[word] if rng.random() < RIGHT_SIGN else rng.choice(wrong)}{second}"
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    messages.append({"role": "assistant", "tool_calls": [{"id": "call", "type": "function", "function": function}]})
    if opens:
        return messages, [CALCULATOR]
    result = calculate(expression)
    messages.append({"role": "tool", "tool_call_id": "call", "content": result})
    return [*messages, {"role": "assistant", "content": result if rng.random() < REPORTS else _guess(rng)}], [
        CALCULATOR
    ]


def _countdown(rng: random.Random, problem: Problem) -> Conversation:
    solution = problem.solution
    if rng.random() >= SOLVES:
        first, second = rng.sample(problem.numbers, 2)
        solution = f"{first}{rng.choice(list(WORDS.values()))}{second}"
    return [*_opening(rng, problem.text), {"role": "assistant", "content": solution}], None
