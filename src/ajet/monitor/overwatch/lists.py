"""The lists of a frame: tasks in the pool, clients with open episodes, curves. Pure."""

from __future__ import annotations

from rich.text import Text

from ajet.monitor.overwatch.curves import Curve, curves
from ajet.monitor.overwatch.drawing import bar, clean, count, curve, cut, duration, many
from ajet.monitor.overwatch.feed import View
from ajet.monitor.overwatch.layout import CARE, DIM, GOOD, LABEL, TROUBLE, Part, Section, column, labelled, parts, row
from ajet.schema.status import ClientActivity, ShareView, Status, TaskActivity

CURVE = 100
"""Longest curve, in cells."""


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
    names = column(["(not told yet)" if task.task_id is None else clean(task.task_id) for task in tasks], width)
    rows = [_task(task, name, width) for task, name in zip(tasks, names, strict=True)]
    hidden = activity.tasks_total - len(tasks) if activity else 0
    return Section(parts("pool", pieces, width, lines), rows, hidden, "more tasks")


def _task(task: TaskActivity, name: str, width: int) -> Text:
    room = min(task.needed, max(4, min(24, width // 8)))
    ready = f"{many(task.ready, 'group')} ready" if task.ready else ""
    if task.ready and not task.finished and not task.running:
        return row(width, name, " ", bar(1, 1, room), " ", (ready, GOOD))
    done = Text.assemble(" ", bar(task.finished, task.needed, room, task.running), f" {task.finished} of {task.needed}")
    running = f", {count(task.running)} running" if task.running else ""
    return row(width, name, done, running, Text(f", {ready}" if ready else "", GOOD))


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
    names = column([clean(client.client_id) for client in clients], width)
    rows = [_client(client, name, width) for client, name in zip(clients, names, strict=True)]
    hidden = activity.clients_total - len(clients) if activity else 0
    return Section(parts("episodes", pieces, width, lines), rows, hidden, "more clients")


def _client(client: ClientActivity, name: str, width: int) -> Text:
    share = client.idle_s / client.patience_s if client.patience_s > 0 else 0.0
    style = TROUBLE if share >= 0.8 else CARE if share >= 0.5 else ""
    return row(
        width,
        name,
        f" {client.episodes} open, {many(client.calls, 'call')}, ",
        (f"idle {client.idle_s:.0f} of {client.patience_s:.0f} s", style),
        further=[
            Text.assemble(" ", bar(client.idle_s, client.patience_s, 8, style=style or GOOD)),
            f", {client.in_flight} in flight" if client.in_flight else "",
            f", oldest {duration(client.oldest_s)}",
        ],
    )


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
    room = width - LABEL - Text(name).cell_len - len(last) - len(span)
    drawn = curve(one.values, max(8, min(room, CURVE)), low, high)
    return row(width, name, last, (drawn, "cyan"), (span, DIM))
