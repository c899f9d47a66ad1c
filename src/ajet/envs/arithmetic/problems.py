"""The problems: what is asked, what is right, and the calculator that an agent may call.

Promises: a problem is decided by its kind, split and number alone, on every machine. No ``test`` problem is ever a
``train`` problem: a problem's split follows from its text, so neither the warm-up of the small model nor training can have
seen what is measured. Nothing a model writes is evaluated as code: expressions are read by a parser of four operations.
"""

from __future__ import annotations

import ast
import json
import operator
import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ajet.schema.task import Task

Kind = Literal["math", "countdown"]
Split = Literal["train", "test"]

WORDS: dict[str, str] = {"plus": "+", "minus": "-", "times": "*"}
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression of whole numbers, such as 12*7.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "The expression, such as 12*7."}},
            "required": ["expression"],
        },
    },
}
INSTRUCTIONS: dict[Kind, str] = {
    "math": "Use the calculator tool. Then answer with the resulting number alone.",
    "countdown": "Reach the target with +, - and *, using each given number at most once. Think briefly, then write the "
    "expression alone on the last line, such as 3*4-2.",
}
"""What a model that was not made for these tasks must be told."""
LONGEST_EXPRESSION = 64
TEST_SHARE = 5
"""Every so manieth problem, by the checksum of its text, is kept for tests."""

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@dataclass(frozen=True)
class Problem:
    """One question.

    Attributes:
        text: what the user asks.
        answer: the number that is right (math), or to be reached (countdown).
        numbers: countdown: what may be used, each once.
        solution: an expression that is right.
    """

    kind: Kind
    text: str
    answer: int
    solution: str
    numbers: tuple[int, ...] = ()

    @property
    def split(self) -> Split:
        # The order of the numbers is no part of a countdown's identity.
        identity = self.text if self.kind == "math" else f"{sorted(self.numbers)} {self.answer}"
        return "test" if zlib.crc32(identity.encode()) % TEST_SHARE == 0 else "train"

    def reward(self, reply: str | None) -> float:
        """1 for a right reply, else 0. Math: its last number. Countdown: its last line, an expression of the
        given numbers."""
        if self.kind == "math":
            found = re.findall(r"-?\d+", (reply or "").replace(",", ""))
            return float(bool(found) and len(found[-1]) < 20 and int(found[-1]) == self.answer)
        try:
            expression = (reply or "").strip().rpartition("\n")[2]
            used = sorted(int(n) for n in re.findall(r"\d+", expression[:LONGEST_EXPRESSION]))
            left = list(self.numbers)
            for number in used:
                left.remove(number)
            return float(calculate(expression) == str(self.answer))
        except ValueError:
            return 0.0

    def task(self) -> Task:
        """As a task for ``begin_episode`` and ``end_episode``; its episodes form one group."""
        return Task(task_id=f"{self.kind}: {self.text}", main_query=self.text, metadata={"problem": asdict(self)})


def problem_of(task: Task) -> Problem:
    """The problem of a task that :meth:`Problem.task` made, also after a journey through JSON."""
    fields = dict(task.metadata["problem"])
    return Problem(**{**fields, "numbers": tuple(fields["numbers"])})


def calculate(expression: str) -> str:
    """The value of an expression of whole numbers with ``+``, ``-``, ``*`` and parentheses.

    Raises:
        ValueError: it is something else, or too long.
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"the expression is longer than {LONGEST_EXPRESSION} characters")
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, RecursionError, MemoryError) as err:
        raise ValueError(f"{expression!r} is not an expression") from err


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError("only whole numbers, +, -, * and parentheses can be calculated")


def use_calculator(arguments: str) -> str:
    """What the tool answers to a call's ``arguments`` (JSON); a call it cannot serve gets words, not an exception."""
    try:
        return calculate(str(json.loads(arguments)["expression"]))
    except (ValueError, KeyError, TypeError) as err:
        return f"error: {err}"


def math_problems(split: Split, seed: int = 0, largest: int = 20) -> Iterator[Problem]:
    """Endless: ``What is 17 times 5?`` with numbers up to ``largest``."""
    return _of_split(_math, split, seed, largest)


def countdown_problems(split: Split, seed: int = 0) -> Iterator[Problem]:
    """Endless: ``Make 35 from 5 2 7.``"""
    return _of_split(_countdown, split, seed)


PROBLEMS: dict[Kind, Callable[[Split, int], Iterator[Problem]]] = {
    "math": math_problems,
    "countdown": countdown_problems,
}


def _of_split(draw: Callable[..., Problem], split: Split, seed: int, *arguments: int) -> Iterator[Problem]:
    rng = random.Random(f"{draw.__name__}/{split}/{seed}")
    while True:
        problem = draw(rng, *arguments)
        if problem.split == split:
            yield problem


def _math(rng: random.Random, largest: int) -> Problem:
    word, sign = rng.choice(list(WORDS.items()))
    expression = f"{rng.randint(2, largest)}{sign}{rng.randint(2, largest)}"
    first, second = expression.split(sign)
    return Problem("math", f"What is {first} {word} {second}?", int(calculate(expression)), expression)


def _countdown(rng: random.Random) -> Problem:
    numbers = tuple(rng.sample(range(1, 10), 3))
    first, second = rng.sample(numbers, 2)
    sign = rng.choice(list(WORDS.values()))
    if sign == "-" and first < second:
        first, second = second, first
    expression = f"{first}{sign}{second}"
    target = int(calculate(expression))
    text = f"Make {target} from {' '.join(map(str, numbers))}."
    return Problem("countdown", text, target, expression, numbers)
