"""The lists of a frame: tasks in the pool, clients with open episodes, curves. Pure."""

from __future__ import annotations

from rich.text import Text

from ajet.monitor.overwatch.curves import Curve, curves
from ajet.monitor.overwatch.drawing import bar, clean, count, curve, cut, duration, many
from ajet.monitor.overwatch.feed import View
from ajet.monitor.overwatch.layout import CARE, DIM, GOOD, LABEL, TROUBLE, Part, Section, column, labelled, parts, row
from ajet.schema.status import ClientActivity, ShareView, Status, TaskActivity

CURVE, SHORT_CURVE = 100, 12
"""Longest curve, in cells, and the shortest beside which its span is told."""


def pool(status: Status, width: int, lines: int) -> Section:
    """How full the next batch is, by task."""
    fill, activity = status.pool, status.activity
    if fill is None:
        return Section(parts("pool", [Text("none yet", DIM)], width, 1))
    progress = Text.assemble(
        bar(fill.groups_complete, fill.groups_needed, max(8, min(24, (width - LABEL) // 6))),
        f" {fill.groups_complete} of {fill.groups_needed} groups ready",
    )
    pieces: list[Part] = [progress, f"{fill.groups_partial} in progress", many(fill.episodes_finished, "episode")]
    if fill.groups_non_dummy < fill.groups_complete:
        pieces.append(f"{fill.groups_complete - fill.groups_non_dummy} with equal rewards")
    tasks = activity.tasks if activity else []
    facts = [_task(task, width) for task in tasks]
    names = column(
        ["(not told yet)" if task.task_id is None else clean(task.task_id) for task in tasks],
        width,
        max((fact.cell_len for fact, _ in facts), default=0),
    )
    rows = [row(width, name, fact, further=[more]) for name, (fact, more) in zip(names, facts, strict=True)]
    hidden = activity.tasks_total - len(tasks) if activity else 0
    return Section(parts("pool", pieces, width, lines), rows, hidden, "more tasks")


def _task(task: TaskActivity, width: int) -> tuple[Text, Text]:
    """What is said of it, and what is added where there is room."""
    room = min(task.needed, max(4, min(24, width // 8)))
    ready = f"{many(task.ready, 'group')} ready" if task.ready else ""
    if task.ready and not task.finished and not task.running:
        return Text.assemble(" ", bar(1, 1, room), " ", (ready, GOOD)), Text()
    done = Text.assemble(" ", bar(task.finished, task.needed, room, task.running), f" {task.finished} of {task.needed}")
    running = f", {count(task.running)} running" if task.running else ""
    return done.append(running), Text(f", {ready}" if ready else "", GOOD)


def shares(status: Status, width: int) -> Section:
    """How the next batch is divided, where several play for it. All rows: where there is no room, the pool has to do."""
    if len(status.shares) < 2:
        return Section([])
    total = sum(share.weight for share in status.shares) or 1.0
    names = column([clean(share.share) or "(others)" for share in status.shares], width)
    rows = [_share(share, name, share.weight / total, width) for share, name in zip(status.shares, names, strict=True)]
    held = status.held.get("share", 0)
    if held:
        rows.append(row(width, Text(f"{many(held, 'request')} held back so far", DIM)))
    label = Text(f"{'shares':<{LABEL}}", "bold")
    return Section([], [label + rows[0][LABEL:], *rows[1:]], noun="more of shares")


def _share(share: ShareView, name: str, part: float, width: int) -> Text:
    gone = Text("" if share.live else ", nobody plays", CARE)
    return row(
        width, name, " ", bar(share.ready, share.seats, 8), f" {share.ready} of {share.seats} groups", gone,
        further=[f", {part:.0%}", f", {share.owed:+.2f} carried over" if share.owed else ""],
    )  # fmt: skip


def episodes(status: Status, width: int, lines: int) -> Section:
    """What runs, by client: its calls, and how long it has been silent of how long it may be."""
    leases, activity = status.leases, status.activity
    if not leases.capacity:
        return Section(parts("episodes", [Text("none", DIM)], width, 1))
    waiting = leases.waiting_train + leases.waiting_eval
    pieces: list[Part] = [
        f"{leases.open_train} of {leases.capacity} running",
        f"{leases.open_eval} eval" if leases.open_eval else "",
        f"{waiting} waiting for a place" if waiting else "",
        many(leases.clients, "client"),
    ]
    clients = activity.clients if activity else []
    facts = [_client(client) for client in clients]
    names = column([clean(one.client_id) for one in clients], width, max((fact.cell_len for fact in facts), default=0))
    rows = [
        row(width, name, fact, further=_more_of(client))
        for client, name, fact in zip(clients, names, facts, strict=True)
    ]
    hidden = activity.clients_total - len(clients) if activity else 0
    return Section(parts("episodes", pieces, width, lines), rows, hidden, "more clients")


def _client(client: ClientActivity) -> Text:
    calls = f" {client.episodes} open, {many(client.calls, 'call')}, "
    return Text.assemble(calls, (f"idle {client.idle_s:.0f} of {client.patience_s:.0f} s", _silence(client)))


def _more_of(client: ClientActivity) -> list[Part]:
    return [
        Text.assemble(" ", bar(client.idle_s, client.patience_s, 8, style=_silence(client) or GOOD)),
        f", {client.in_flight} in flight" if client.in_flight else "",
        f", oldest {duration(client.oldest_s)}",
    ]


def _silence(client: ClientActivity) -> str:
    """The style of how long it has been silent."""
    share = client.idle_s / client.patience_s if client.patience_s > 0 else 0.0
    return TROUBLE if share >= 0.8 else CARE if share >= 0.5 else ""


def learning(view: View, width: int) -> Section:
    """Win rates and rewards by role, over the newest steps."""
    found = curves(view.steps)
    if not found:
        words = f"no curves: {view.steps_error}" if view.steps_error else "no step yet"
        return Section(labelled("learning", [Text(cut(clean(words), width - LABEL), DIM)]))
    first, last = view.steps[0]["step"], view.steps[-1]["step"]
    told = f"step {last}" if first == last else f"steps {first} to {last}"
    if view.steps_error:
        told += f"; newer ones are missing: {view.steps_error}"
    names = column([clean(one.name) for one in found], width)
    rows = [_curve(one, name, width) for one, name in zip(found, names, strict=True)]
    return Section(labelled("learning", [Text(cut(clean(told), width - LABEL))]), rows, noun="more curves")


def _curve(one: Curve, name: str, width: int) -> Text:
    low, high = one.scale or (None, None)
    last, span = f" {one.values[-1]:>7.2f} ", f"  {min(one.values):.2f} to {max(one.values):.2f}"
    room = width - LABEL - Text(name).cell_len - len(last)
    if room - len(span) < SHORT_CURVE:
        span = ""
    drawn = curve(one.values, max(8, min(room - len(span), CURVE)), low, high)
    return row(width, name, last, (drawn, "cyan"), (span, DIM))
