"""Draws the pictures of the concepts page, in both languages: ``python -m docs.generate`` writes them to ``docs/assets``.

An SVG follows the page's theme by ``prefers-color-scheme`` (a browser hands the page's ``color-scheme`` to its images), so
one file serves both. Text is measured by rule (a CJK character is one em, others about half), which is all that
placing labels needs.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

STYLE = """
.t{font:14px system-ui,-apple-system,"Segoe UI","Noto Sans","Noto Sans CJK SC","PingFang SC","Microsoft YaHei",sans-serif;fill:#1f2430}
.s{font-size:12px;fill:#5a6272}.b{font-weight:600}.m{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:12px}
.box{fill:#fff;stroke:#b7bfd0;stroke-width:1.3}.area{fill:#f4f6fb;stroke:#d3d9e6;stroke-width:1.2}
.blue{fill:#dfe6ff;stroke:#6c82e8}.green{fill:#d9f3e3;stroke:#3fa56c}.amber{fill:#ffeccc;stroke:#d79a2b}.red{fill:#ffdfdc;stroke:#d9655b}
.gray{fill:#e8ebf2;stroke:#a7afc0}.line{stroke:#667085;stroke-width:1.6;fill:none}.head{fill:#667085}
@media (prefers-color-scheme:dark){.t{fill:#e8eaf2}.s{fill:#aab2c5}.box{fill:#262a36;stroke:#56607a}.area{fill:#1d212b;stroke:#3b4357}
.blue{fill:#2b3668;stroke:#8397f2}.green{fill:#1f4a34;stroke:#58c08a}.amber{fill:#553f16;stroke:#e0ab4a}.red{fill:#5a2b29;stroke:#e68078}
.gray{fill:#353b49;stroke:#77809a}.line{stroke:#98a2b8}.head{fill:#98a2b8}}
"""


class Canvas:
    """Collects shapes. Coordinates are pixels; ``title`` is what a screen reader says."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, kind: str = "box") -> None:
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="8" class="box {kind}"/>')

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        where = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self._parts.append(f'<text {where} class="t {kind}">{escape(words)}</text>')

    def labelled(self, x: float, y: float, w: float, h: float, lines: list[str], kind: str = "box") -> None:
        """A box with its first line strong and the others small, centred."""
        self.box(x, y, w, h, kind)
        top = y + h / 2 - 9 * (len(lines) - 1) + 5
        for n, words in enumerate(lines):
            self.text(x + w / 2, top + 18 * n, words, "b" if n == 0 else "s")

    def arrow(self, x1: float, y1: float, x2: float, y2: float, words: str = "", above: bool = True) -> None:
        self.path(f"M{x1:g} {y1:g}L{x2:g} {y2:g}")
        if words:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 + (-7 if above else 16), words, "s")

    def path(self, d: str) -> None:
        self._parts.append(f'<path d="{d}" class="line" marker-end="url(#head)"/>')

    def svg(self) -> str:
        w, h = self._size
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L8 4L0 8Z" class="head"/></marker>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
            f'aria-label="{escape(self._title)}"><title>{escape(self._title)}</title>'
            f"<style>{STYLE.strip()}</style><defs>{head}</defs>{''.join(self._parts)}</svg>\n"
        )


Say = Callable[[str, str], str]
"""(English, Chinese) → the one of the language being drawn."""


def loop(say: Say) -> str:
    """Client, server, and what goes between them."""
    c = Canvas(820, 330, say("Swarm clients and the swarm server", "蜂群客户端与蜂群服务器"))
    c.box(10, 10, 250, 310, "area")
    c.text(135, 36, say("anywhere, no GPU", "任意机器，无需 GPU"), "s")
    c.labelled(30, 52, 210, 44, [say("swarm client", "蜂群客户端")], "blue")
    c.box(30, 110, 210, 192)
    c.text(135, 134, say("your agents", "你的智能体"), "b")
    for n, words in enumerate(
        [say("any framework that", "任何能调用"), say("speaks OpenAI's API", "OpenAI 接口的框架")]
    ):
        c.text(135, 156 + 18 * n, words, "s")
    c.labelled(48, 196, 80, 40, [say("Ann", "甲")], "gray")
    c.labelled(142, 196, 80, 40, [say("Bob", "乙")], "gray")
    c.text(135, 262, say("the game, the tools, the", "环境、工具与评分"), "s")
    c.text(135, 280, say("judge: all of it is yours", "全部由你编写"), "s")
    c.box(480, 10, 330, 310, "area")
    c.text(645, 36, say("one machine with the model", "放模型的一台机器"), "s")
    c.labelled(500, 52, 290, 40, [say("leases and keys", "租约与密钥")], "blue")
    c.labelled(500, 100, 290, 40, [say("journal: on disk before any answer", "日志：先落盘，后应答")], "green")
    c.labelled(500, 148, 290, 40, [say("trajectories: ids and log-probs", "轨迹：token 与对数概率")])
    c.labelled(500, 196, 290, 40, [say("pool: groups, batches, drops", "样本池：分组、成批、丢弃计数")])
    c.labelled(500, 252, 110, 54, [say("sampler", "采样器")], "amber")
    c.labelled(680, 252, 110, 54, [say("trainer", "训练器")], "amber")
    c.arrow(678, 279, 612, 279, say("weights", "权重"))
    c.arrow(262, 70, 478, 70, "begin_episode")
    c.arrow(478, 100, 262, 100, say("address + episode key", "地址 + 本局密钥"), above=False)
    c.arrow(262, 205, 478, 205, say("chat completions", "chat completions"))
    c.arrow(478, 228, 262, 228, say("replies", "回复"), above=False)
    c.arrow(262, 290, 478, 290, "end_episode(reward)")
    return c.svg()


def episode(say: Say) -> str:
    """One episode from its beginning to a weight update."""
    c = Canvas(820, 190, say("From an episode to a weight update", "从一局到一次权重更新"))
    steps = [
        ([say("begin", "开始"), say("a lease", "得到租约")], "blue"),
        ([say("calls", "调用"), say("journaled", "逐条落盘")], "box"),
        ([say("end", "结束"), say("its reward", "上报奖励")], "blue"),
        ([say("group", "分组"), "num_repeat"], "green"),
        ([say("batch", "一批"), "train_batch_size"], "green"),
        ([say("step", "更新"), say("new weights", "新权重")], "amber"),
    ]
    for n, (lines, kind) in enumerate(steps):
        x = 8 + 136 * n
        c.labelled(x, 30, 122 if n < 5 else 116, 64, lines, kind)
        if n:
            c.arrow(x - 14, 62, x, 62)
    c.path("M205 94L205 140")
    c.labelled(110, 142, 190, 40, [say("an exception, silence", "异常、沉默")], "red")
    c.arrow(302, 162, 340, 162)
    c.text(
        346, 167, say("aborted under a counted reason; never a reward", "按原因计数并中止；绝不变成奖励"), "s", "start"
    )
    return c.svg()


def groups(say: Say) -> str:
    """Rewards of a group, and the advantages they become."""
    c = Canvas(820, 250, say("Groups and advantages", "分组与优势"))
    c.text(20, 28, say("the same task, num_repeat = 4 times", "同一个 task，num_repeat = 4 局"), "b", "start")
    rows = [("werewolf", [1, 0, 0, 1]), ("seer", [0, 1, 1, 0])]
    for n, (tag, rewards) in enumerate(rows):
        y = 48 + 92 * n
        c.text(20, y + 42, tag, "b", "start")
        for k, reward in enumerate(rewards):
            c.labelled(
                120 + 92 * k, y + 10, 80, 54,
                [f"{reward}.0", say(f"episode {k + 1}", f"第 {k + 1} 局")], "green" if reward else "gray",
            )  # fmt: skip
        c.arrow(486, y + 37, 580, y + 37, say("− mean, ÷ std", "减均值、除标准差"))
        for k, reward in enumerate(rewards):
            c.labelled(588 + 58 * k, y + 16, 53, 42, ["+0.87" if reward else "−0.87"], "green" if reward else "red")
    c.text(
        20, 238, say("One baseline per (task, role): opposed roles never share one.", "每个（task，角色）一条基线：对立的角色绝不共用。"),
        "s", "start",
    )  # fmt: skip
    return c.svg()


def timeline(say: Say) -> str:
    """Three calls that extend each other are one timeline; a rewritten history is a branch."""
    c = Canvas(820, 262, say("Calls become a timeline", "调用合并为时间线"))
    names = {
        "P": (say("prompt", "提示"), "gray", 96),
        "S": (say("sampled", "采样"), "amber", 86),
        "N": (say("new", "新增"), "gray", 66),
    }
    calls = ["PS", "PSNS", "PSNSNS"]
    for n, kinds in enumerate(calls):
        y, x = 12 + 44 * n, 130
        c.text(16, y + 24, say(f"call {n + 1}", f"第 {n + 1} 次调用"), "", "start")
        for k, kind in enumerate(kinds):
            words, style, w = names[kind]
            old = k < len(kinds) - 2
            c.box(x, y, w, 36, "" if old else style)
            c.text(x + w / 2, y + 23, words if not old else say("verbatim", "原样"), "s")
            x += w + 4
    c.text(16, 172, say("trained once:", "只训练一次："), "b", "start")
    x = 130
    for kind in "PSNSNS":
        words, style, w = names[kind]
        c.box(x, 150, w, 36, style)
        c.text(x + w / 2, 173, words, "s")
        x += w + 4
    c.path("M228 188L228 222L262 222")
    c.labelled(266, 204, 120, 36, [say("a branch", "分支")], "red")
    c.text(
        398,
        227,
        say(
            "a history that was edited starts a branch: right, but paid again",
            "历史被改写就另起分支：结果正确，但要重新计算",
        ),
        "s",
        "start",
    )
    return c.svg()


def states(say: Say) -> str:
    """The engine's life."""
    c = Canvas(820, 210, say("Engine states", "引擎状态"))
    row = [
        ("OFFLINE", say("no engine", "没有引擎"), "gray", 10),
        ("BOOTING", say("loads the model", "载入模型"), "blue", 180),
        ("ROLLING", say("serves, collects", "服务并收集"), "green", 350),
        ("UPDATING", say("trains; calls wait", "训练；调用等待"), "amber", 520),
        ("FINISHED", say("last step is done", "已到最后一步"), "blue", 690),
    ]
    for name, words, kind, x in row:
        c.labelled(x, 30, 124, 56, [name, words], kind)
    c.arrow(134, 58, 178, 58)
    c.arrow(304, 58, 348, 58)
    c.arrow(474, 50, 518, 50)
    c.arrow(518, 68, 476, 68)
    c.arrow(644, 58, 688, 58)
    c.labelled(250, 146, 140, 56, ["STOPPING", say("saves, then OFFLINE", "保存后 OFFLINE")], "gray")
    c.labelled(520, 146, 124, 56, ["FAILED", say("says why", "说明原因")], "red")
    c.path("M390 88L340 144")
    c.path("M248 174L72 174L72 90")
    c.path("M440 88L540 144")
    c.text(505, 112, say("after repeated deaths", "多次崩溃之后"), "s", "start")
    return c.svg()


FIGURES: dict[str, Callable[[Say], str]] = {
    "loop": loop,
    "episode": episode,
    "groups": groups,
    "timeline": timeline,
    "states": states,
}


def files() -> dict[str, str]:
    """File name below ``docs/`` → its text."""
    found = {}
    for name, draw in FIGURES.items():
        found[f"assets/{name}.svg"] = draw(lambda english, _: english)
        found[f"assets/{name}-zh.svg"] = draw(lambda _, chinese: chinese)
    return found
