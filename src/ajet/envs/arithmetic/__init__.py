"""Two single-agent tasks that a small model learns on a CPU: arithmetic with a calculator tool, and countdown.

``problems``: the problems, their prompts and rewards, and the calculator. ``tiny/``: the small model that speaks these
tasks, the script that makes it from what ``imitation`` shows it. Everything but ``tiny.build`` needs no torch. The
agent and its training loop are the user's: ``tutorial/example_arithmetic``.
"""

from ajet.envs.arithmetic.problems import (
    CALCULATOR,
    Problem,
    calculate,
    countdown_problems,
    math_problems,
    problem_of,
)

__all__ = ["CALCULATOR", "Problem", "calculate", "countdown_problems", "math_problems", "problem_of"]
