"""A replay as lines of rich text: for the terminal view and for ``--once``. Pure.

Lines fit a width in cells (wide characters count twice) by wrapping, never by losing words. Everything a player or a
model wrote is cleaned of what a terminal would obey.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from ajet.envs.werewolves.replay import CallRecord, DecisionRecord, EventRecord, Replay, View, eyes
from ajet.envs.werewolves.wording import CAUSES, KINDS, RESULTS, ROLES, Language, narrate, seat_word
from ajet.monitor.inspect import LEGEND, SCALE, UNTRAINED
from ajet.monitor.overwatch.drawing import bar, clean, cut, wrap
from ajet.monitor.replay.story import Phase, fates, known_roles, lines, phases

STYLES = {
    "werewolf": "bold red", "wolf": "red", "seer": "bold yellow", "witch": "bold magenta", "hunter": "bold green", "guard": "bold blue", "idiot": "bold yellow",
    "villager": "bold cyan", "good": "cyan",
}  # fmt: skip
MANY = 10_000
"""Lines that one text is wrapped into at most."""

W: dict[Language, dict[str, str]] = {
    "en": {
        "night": "Night", "day": "Day", "public": "public", "wolves": "wolves", "god": "god", "you": "view",
        "alive": "alive", "exile": "exiled d", "shot": "shot d", "died": "night ", "wolf": "wolf", "good": "good",
        "private": "thinks", "prompt": "is asked", "reply": "replies", "unused": "could not be used", "joined": "policy",
        "advantage": "advantage", "reward": "reward", "toolong": "the prompt was too long for the model",
        "nothing": "Nothing that this view sees.", "votes": "Votes", "nights": "Nights", "suspicion": "Suspicion",
        "players": "Players", "unknown": "?",
    },
    "zh": {
        "night": "夜", "day": "天", "public": "公开", "wolves": "狼人", "god": "上帝", "you": "视角",
        "alive": "存活", "exile": "放逐·", "shot": "枪杀·", "died": "夜", "wolf": "狼人", "good": "好人",
        "private": "心想", "prompt": "被问到", "reply": "回复", "unused": "未能使用", "joined": "策略",
        "advantage": "优势", "reward": "奖励", "toolong": "提示超出模型长度",
        "nothing": "此视角什么也看不到。", "votes": "投票", "nights": "夜晚", "suspicion": "怀疑度",
        "players": "玩家", "unknown": "？",
    },
}  # fmt: skip


def phase_word(phase: Phase, language: Language) -> str:
    return _nth(phase.kind, phase.day, language)


def _nth(kind: str, day: int, language: Language) -> str:
    word = W[language][kind]
    return f"{word} {day}" if language == "en" else f"第{day}{word}"


def view_word(replay: Replay, view: View, language: Language) -> str:
    return seat_word(view, language) if isinstance(view, int) else W[language][view]


def role_word(role: str | None, language: Language) -> str:
    if role is None:
        return W[language]["unknown"]
    return W[language][role] if role in ("wolf", "good") else ROLES[language].get(role, clean(role))


def result(replay: Replay, language: Language) -> str:
    cause = CAUSES[language].get(replay.end_cause, clean(replay.end_cause))
    return (
        f"{RESULTS[language][replay.winner]}: {cause}"
        if language == "en"
        else f"{RESULTS[language][replay.winner]}：{cause}"
    )


def seat_lines(replay: Replay, view: View, events: int, language: Language, width: int) -> list[Text]:
    """One line a seat: number, role as the view knows it, what became of it, suspicion."""
    known, gone = known_roles(replay, view, events), fates(replay, view, events)
    shares = next((m.shares for m in reversed(replay.tables.suspicion) if m.event < events), (0.0,) * len(replay.seats))
    mine = eyes(replay, view) if view != "god" else frozenset()
    found = []
    for seat in replay.seats:
        role = known.get(seat.seat)
        out = gone.get(seat.seat)
        line = Text(no_wrap=True)
        line.append("▸" if seat.seat in mine else " ", "bold")
        line.append(f"{seat.seat + 1} ", "bold" if out is None else "dim")
        name = role_word(role, language)
        line.append(name, "dim strike" if out else STYLES.get(role or "", "dim"))
        line.append(" " * max(1, 9 - cell_len(name)))
        if out is not None:
            how, day = out
            line.append(f"† {W[language]['died' if how == 'night' else how]}{day}", "dim")
        else:
            share = shares[seat.seat]
            line.append_text(bar(share, 1.0, 5, style="yellow"))
            line.append(f"{round(share * 100):>4}%", "yellow" if share >= 0.5 else "dim")
        line.truncate(width, overflow="ellipsis")
        found.append(line)
    return found


def told(replay: Replay, phase: Phase, view: View, language: Language, width: int, *, private: bool) -> list[Text]:
    """What a view sees of a phase, wrapped to ``width``."""
    known = known_roles(replay, view, len(replay.events))
    found: list[Text] = []
    for line in lines(replay, phase, view, private=private):
        if line.decision is not None:
            found += _decision(replay, line.decision, language, width, known)
        elif line.event is not None:
            found += _event(line.event, language, width, known)
    return found or [Text(W[language]["nothing"], "dim")]


def _event(event: EventRecord, language: Language, width: int, known: dict[int, str]) -> Iterator[Text]:
    words = clean(narrate(event, language))
    style = ""
    if event.kind in ("deaths", "exile", "shot", "game_over"):
        style = "bold"
    elif event.kind in ("wolf_pick", "wolf_target"):
        style = "red"
    elif event.audience is not None:
        style = "yellow"
    for n, part in enumerate(wrap(words, max(10, width - 2), MANY)):
        text = Text("" if n == 0 else "  ", no_wrap=True)
        name = seat_word(event.actor, language) if event.kind in ("speech", "last_words") else ""
        if n == 0 and name and part.startswith(name):
            text.append(name, STYLES.get(known.get(event.actor or 0, ""), "bold")).append(part[len(name) :])
        else:
            text.append(part, style)
        yield text


def _decision(
    replay: Replay, decision: DecisionRecord, language: Language, width: int, known: dict[int, str]
) -> Iterator[Text]:
    w = W[language]
    name, kind = seat_word(decision.seat, language), KINDS[language].get(decision.kind, decision.kind)
    yield Text.assemble("┌ ", (name, STYLES.get(known.get(decision.seat, ""), "bold")), f" · {kind}", style="dim")
    for exchange in decision.exchanges:
        for message in exchange.messages:
            if str(message.get("role")) == "user":
                yield from _block(w["prompt"], str(message.get("content") or ""), "dim", width)
        if exchange.private:
            yield from _block(w["private"], exchange.private, "italic magenta", width)
        if exchange.reply is None:
            yield Text(f"│ {w['toolong']}", "dark_orange")
            continue
        if exchange.call is not None:
            yield from _tokens(exchange.call, replay.seats[decision.seat].advantage, language, width)
        else:
            yield from _block(w["reply"], str(exchange.reply.get("content") or ""), "", width)
        if not exchange.used:
            yield from _block(w["unused"], exchange.problem, "dark_orange", width)
    yield Text("└", "dim")


def _block(label: str, words: str, style: str, width: int) -> Iterator[Text]:
    yield Text.assemble(("│ ", "dim"), (f"{label}:", "dim bold"))
    for line in words.splitlines() or [""]:
        for part in wrap(clean(line), max(10, width - 4), MANY) or [""]:
            yield Text.assemble(("│   ", "dim"), (part, style))


def _tokens(call: CallRecord, advantage: float | None, language: Language, width: int) -> Iterator[Text]:
    w = W[language]
    low, high = (min(call.versions), max(call.versions)) if call.versions else (0, 0)
    head = f"{w['joined']} {low}" if low == high else f"{w['joined']} {low}–{high}"
    if advantage is not None:
        head += f" · {w['advantage']} {advantage:+.3f}"
    mean = math.exp(sum(call.logprobs) / len(call.logprobs)) if call.logprobs else 1.0
    for part in wrap(f"{w['reply']}: {head} · p {mean:.2f}", max(10, width - 2), MANY):
        yield Text(f"│ {part}", "dim")
    line, used = Text("│   ", "dim", no_wrap=True), 4
    for text, logprob, trained in zip(call.texts, call.logprobs, call.trained, strict=True):
        style = next(colour for above, colour in SCALE if logprob > above or above == float("-inf"))
        for k, piece in enumerate(text.split("\n")):
            if k:
                yield line
                line, used = Text("│   ", "dim", no_wrap=True), 4
            shown = ("" if piece == "" else " " * (piece != piece.lstrip()) + clean(piece)) + " " * (
                bool(piece.strip()) and piece != piece.rstrip()
            )
            if used + cell_len(shown) > width and used > 4:
                yield line
                line, used = Text("│   ", "dim", no_wrap=True), 4
            line.append(cut(shown, max(1, width - 4)), style if trained or advantage is None else UNTRAINED)
            used += cell_len(shown)
    yield line


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    widths = [max(cell_len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for k, row in enumerate(rows):
        cells = [cell + " " * (size - cell_len(cell)) for cell, size in zip(row, widths, strict=True)]
        yield Text("  ".join(cells).rstrip(), "dim" if k == 0 else "", no_wrap=True)


def summary(replay: Replay, view: View, language: Language) -> list[Text]:
    """Votes, nights (as the view knows them), suspicion and players, as tables."""
    w = W[language]
    found = [Text(w["votes"], "bold")]
    rows = [["", *(_nth("day", b.day, language) + "*" * b.revote for b in replay.tables.votes)]]
    for seat in replay.seats:
        cast = [dict(b.votes).get(seat.seat, "") for b in replay.tables.votes]
        rows.append([str(seat.seat + 1), *("–" if v is None else "" if v == "" else str(int(v) + 1) for v in cast)])
    found += _columns(rows)
    found += [Text(), Text(w["nights"], "bold")]
    for day, group in groupby((line for p in phases(replay) if p.kind == "night" for line in lines(replay, p, view)), key=lambda line: line.event.day if line.event else 0):  # fmt: skip
        told_ = [clean(narrate(line.event, language)) for line in group if line.event and line.event.kind not in ("role", "teammates")]  # fmt: skip
        if day and told_:
            found.append(Text(f"{day}  {' '.join(told_)}"))
    found += [Text(), Text(w["suspicion"], "bold")]
    ends = {moment.day: moment.shares for moment in replay.tables.suspicion}
    rows = [["", *(_nth("day", day, language) for day in ends)]]
    rows += [[str(s.seat + 1), *(f"{round(100 * ends[d][s.seat])}%" for d in ends)] for s in replay.seats]
    found += _columns(rows)
    found += [Text(), Text(w["players"], "bold")]
    known = known_roles(replay, view, len(replay.events))
    rows = [["", "", "", w["reward"], w["advantage"]]]
    for seat in replay.seats:
        by = seat.player + (f" ({clean(seat.model)})" if seat.model else "")
        reward = "–" if seat.reward is None else f"{seat.reward:.2f}"
        advantage = "–" if seat.advantage is None else f"{seat.advantage:+.3f}"
        rows.append([str(seat.seat + 1), role_word(known.get(seat.seat), language), by, reward, advantage])
    return [*found, *_columns(rows)]


def head(replay: Replay, language: Language, *, short: bool = False) -> Text:
    """What game it is, on one line. ``short``: without why the winner won."""
    parts = [clean(replay.seed)]
    if replay.episode.label:
        parts.append(clean(replay.episode.label))
    if replay.policy_version is not None:
        low, high = replay.policy_version
        parts.append(f"{W[language]['joined']} {low}" if low == high else f"{W[language]['joined']} {low}–{high}")
    if replay.episode.fate:
        parts.append(
            clean(replay.episode.fate) + (f" {replay.episode.step}" if replay.episode.step is not None else "")
        )
    return Text.assemble(
        (RESULTS[language][replay.winner] if short else result(replay, language), "bold"),
        (" · " + " · ".join(parts), "dim"),
    )


def whole(replay: Replay, view: View, language: Language, width: int, *, private: bool) -> Iterator[Text]:
    """The whole game as a view sees it, phase by phase, then the tables."""
    yield head(replay, language)
    if private and any(x.call for d in replay.decisions for x in d.exchanges):
        yield Text(LEGEND, "dim")
    for phase in phases(replay):
        yield Text()
        yield Text(f"── {phase_word(phase, language)} ──", "bold")
        yield from told(replay, phase, view, language, width, private=private)
    yield Text()
    yield from seat_lines(replay, view, len(replay.events), language, width)
    yield Text()
    yield from summary(replay, view, language)
