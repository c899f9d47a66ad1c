"""Claims about the arithmetic tasks: who sees which problem, what is right, and that nothing is evaluated as code."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.envs.arithmetic import calculate, countdown_problems, math_problems, problem_of
from ajet.envs.arithmetic.imitation import conversations
from ajet.envs.arithmetic.problems import PROBLEMS, Problem, use_calculator
from ajet.schema.task import Task


def first(problems, n: int = 300) -> list[Problem]:
    return list(itertools.islice(problems, n))


@pytest.mark.parametrize("kind", PROBLEMS)
def test_no_held_out_problem_is_ever_trained(kind):
    def identity(p: Problem) -> object:
        return p.text if kind == "math" else (tuple(sorted(p.numbers)), p.answer)

    test = {identity(p) for p in first(PROBLEMS[kind]("test", 0))}
    train = {identity(p) for seed in range(4) for p in first(PROBLEMS[kind]("train", seed))}
    assert test
    assert not test & train


def test_no_held_out_problem_is_in_the_warm_up():
    asked = {
        m["content"] for messages, _ in itertools.islice(conversations(0), 600) for m in messages if m["role"] == "user"
    }
    held_out = {p.text for kind in PROBLEMS for p in first(PROBLEMS[kind]("test", 0))}
    assert not asked & held_out


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_solution_is_right_and_a_task_survives_the_wire(kind):
    for problem in first(PROBLEMS[kind]("train", 0), 60):
        right = str(problem.answer) if kind == "math" else problem.solution
        assert problem.reward(right) == 1.0
        wrong = str(problem.answer + 1) if kind == "math" else problem.solution + "+1-1-1"
        assert problem.reward(wrong) == 0.0
        assert problem_of(Task.model_validate_json(problem.task().model_dump_json())) == problem


def test_a_countdown_may_use_each_number_once_and_no_other():
    problem = Problem("countdown", "Make 10 from 5 2 7.", 10, "5*2", (5, 2, 7))
    assert [problem.reward(r) for r in ("5*2", "2*5", "thinking…\n5*2")] == [1.0, 1.0, 1.0]
    assert [problem.reward(r) for r in ("5+5", "10", "8+2", "", None, "5**2", "5*2=10")] == [0.0] * 7


@given(st.text(max_size=80))
def test_nothing_a_model_writes_gets_out_of_the_calculator(text):
    for reply in (text, json.dumps({"expression": text}), json.dumps([text])):
        assert isinstance(use_calculator(reply), str)
    for problem in (next(math_problems("train")), next(countdown_problems("train"))):
        assert problem.reward(text) in (0.0, 1.0)


def test_only_four_operations_are_calculated():
    assert [calculate(e) for e in ("12*7", "3-10", "-2*(3+4)")] == ["84", "-7", "-14"]
    for bad in ("2**9", "1/2", "__import__('os')", "1.5+1", "True+1", "9" * 100, "(" * 60, ""):
        with pytest.raises(ValueError):  # noqa: PT011  the calculator's own words differ
            calculate(bad)
