"""Draws the learning curves of the pages from runs that were measured: the numbers are in ``curves.json``, as the runs wrote them."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from docs.generate.figures import STYLE, Say

DATA = json.loads(Path(__file__).with_name("curves.json").read_text(encoding="utf-8"))
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 330, 52, 46, 20, 44
COLOURS = ("#d9655b", "#4f74e3")
WINDOW = 5
"""Steps of the running mean that the thick line shows."""


def chart(title: str, x_name: str, y_name: str, series: dict[str, list[float]], smooth: bool) -> str:
    """Lines over steps 1 … n and 0 … 1; with ``smooth`` dots for the steps and a centred running mean."""
    steps = max(map(len, series.values()))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(step: float) -> float:
        return LEFT + (step - 1) / (steps - 1) * (right - LEFT)

    def y(value: float) -> float:
        return bottom - value * (bottom - TOP)

    out = [f'<text x="{LEFT}" y="22" class="t b">{escape(title)}</text>']
    for tick in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{right}" class="grid"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" class="t s">{tick:g}</text>')
    for tick in range(5, steps + 1, 5):
        out.append(f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle" class="t s">{tick}</text>')
    out.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle" class="t s">{escape(x_name)}</text>'
    )
    out.append(f'<text x="{LEFT}" y="{TOP - 8}" class="t s">{escape(y_name)}</text>')
    for n, (name, values) in enumerate(series.items()):
        colour = COLOURS[n]
        line = _mean(values) if smooth else values
        if smooth:
            out += [
                f'<circle cx="{x(i):.1f}" cy="{y(v):.1f}" r="2.4" fill="{colour}" opacity=".45"/>'
                for i, v in enumerate(values, 1)
            ]
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(line, 1))
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.6" stroke-linejoin="round"/>'
        )
        if len(series) > 1:
            at = right - 130 * (len(series) - n)
            out.append(f'<path d="M{at} 17h22" stroke="{colour}" stroke-width="3"/>')
            out.append(f'<text x="{at + 28}" y="22" class="t s">{escape(name)}</text>')
    style = STYLE.strip() + ".grid{stroke:#8a93a6;stroke-opacity:.3}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(title)}"><style>{style}</style>{"".join(out)}</svg>\n'
    )


def _mean(values: list[float]) -> list[float]:
    half = WINDOW // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def files() -> dict[str, str]:
    """File name below ``docs/`` → its text."""
    found = {}
    tellers: dict[str, Say] = {"": lambda english, _: english, "-zh": lambda _, chinese: chinese}
    for suffix, say in tellers.items():
        game, words = DATA["werewolves"], DATA["mind_meld"]
        found[f"assets/werewolves-curve{suffix}.svg"] = chart(
            say("Win rate in training, 192 games a step", "训练中的胜率，每步 192 局"),
            say("training step", "训练步"),
            say("dots: a step; lines: mean of five", "点：单步；线：五步均值"),
            {say("werewolves", "狼人"): game["werewolf"], say("seer's side", "预言家一方"): game["seer"]},
            smooth=True,
        )
        found[f"assets/mind-meld{suffix}.svg"] = chart(
            say("mind_meld.py: mean reward of each step, 64 games", "mind_meld.py：每步 64 局的平均奖励"),
            say("training step", "训练步"), say("reward", "奖励"), {"": words["reward"]}, smooth=False,
        )  # fmt: skip
    return found
