"""A :class:`View` as lines of text that fit a terminal. Pure: no terminal, no clock, no network.

What matters most stands first: whether the server is there, the engine's state, failures, the disk. Lists (tasks,
clients, curves) share the lines that are left, and say how much of them is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ajet.monitor.overwatch import lists
from ajet.monitor.overwatch.curves import curves
from ajet.monitor.overwatch.drawing import bar, clean, clock, count, cut, duration, flow, many, size, wrap
from ajet.monitor.overwatch.feed import View
from ajet.monitor.overwatch.layout import (
    CARE,
    DIM,
    GOOD,
    LABEL,
    TROUBLE,
    Part,
    Room,
    beside,
    fit,
    labelled,
    message,
    parts,
)
from ajet.schema.drops import drops_text
from ajet.schema.status import DiskStatus, Status
from ajet.schema.wire import EngineState

NARROWEST = 40
WIDE = 119
"""From this width on the lists stand in two columns: a terminal of 120 columns, one of which is the scroll bar's."""
ALL = Room(message=20, line=3, drops=10)
ROOMS = (
    Room(message=3, line=2, drops=2, lists=16),
    Room(message=3, line=1, drops=2, lists=6),
    Room(message=2, line=1, drops=1, lists=6),
    Room(message=1, line=1, drops=1),
)
"""From roomy to tight: the first that leaves its share for the lists is taken."""
FAILED_ROOM = Room(message=10, line=1, drops=1, lists=6)
"""Tried first where the engine has failed: what to do stands at the end of the reason."""
STALLED_S = 3.0
"""A write that has not come back for so long is worth a word."""
STATE_STYLE = {
    EngineState.ROLLING: "bold green",
    EngineState.FINISHED: "bold green",
    EngineState.UPDATING: "bold cyan",
    EngineState.BOOTING: "bold yellow",
    EngineState.STOPPING: "bold yellow",
    EngineState.OFFLINE: "bold",
    EngineState.FAILED: TROUBLE,
}


def frame(view: View, width: int, height: int | None = None) -> list[Text]:
    """Lines of at most ``width`` cells.

    Args:
        width: at least 40.
        height: lines to fit into; from 16 on everything but rows of lists and ends of messages has its place. None: all
            that is known, in one column.
    """
    width = max(width, NARROWEST)
    status = view.status
    if status is None:
        return _waiting(view, width)
    if height is None:
        return _frame(view, status, width, None, ALL)
    tried = (FAILED_ROOM, *ROOMS) if status.failure else ROOMS
    rooms = (room for room in tried if len(_top(view, status, width, room)) <= height - room.lists)
    return _frame(view, status, width, height, next(rooms, ROOMS[-1]))


def summary(view: View, status: Status, width: int) -> list[Text]:
    """What a server does in a dozen lines: a frame without who plays what and without curves, messages and paths whole, and
    why episodes are not trained in words."""
    width = max(width, NARROWEST)
    path = status.checkpoint.path
    return [
        _title(view, width),
        *_state(view, status, width, ALL),
        *_last_step(status, width),
        *lists.pool(status, width, ALL.line).head,
        *lists.shares(status, width).rows,
        *lists.episodes(status, width, ALL.line).head,
        *_speed(status, width, ALL),
        *_checkpoint(status, width, ALL, path=False),
        *labelled("", [Text(clean(path), DIM)] if path else []),
        *_refused_checkpoint(view, status, width, ALL),
        *_disk(view, status, width, ALL),
        *labelled("dropped", _why_dropped(status, width) or [Text("nothing", DIM)]),
        *_trackers(status, width, ALL),
    ]


def _frame(view: View, status: Status, width: int, height: int | None, room: Room) -> list[Text]:
    top = _top(view, status, width, room)
    left = None if height is None else height - len(top)
    if height is None or width < WIDE:
        pool, episodes = lists.pool(status, width, room.line), lists.episodes(status, width, room.line)
        return top + fit([pool, lists.shares(status, width), episodes, lists.learning(view, width)], left)
    narrow = (width - 3) * 9 // 20  # rows of clients and curves are longer than those of tasks
    wide = width - 3 - narrow
    of_batch = [lists.pool(status, narrow, room.line), lists.shares(status, narrow)]
    of_play = [lists.learning(view, wide), lists.episodes(status, wide, room.line)]
    return top + beside(fit(of_batch, left), fit(of_play, left), narrow)


def _top(view: View, status: Status, width: int, room: Room) -> list[Text]:
    return [
        _title(view, width),
        *_lost(view, width, room),
        *_state(view, status, width, room),
        *_checkpoint(status, width, room, path=True),
        *_refused_checkpoint(view, status, width, room),
        *_disk(view, status, width, room),
        *_speed(status, width, room),
        *_dropped(status, width, room),
        *_trackers(status, width, room),
    ]


def _ago(view: View, status: Status, when: float) -> tuple[str, str]:
    """A moment on the server's clock as a time here, and how long ago it was."""
    gone = max(0.0, (status.now or view.answered) - when)
    return clock(view.answered - gone, view.at), duration(gone)


# ── is it there ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _title(view: View, width: int) -> Text:
    time = clock(view.at, view.at)
    experiment = view.status.experiment if view.status else None
    name = cut(f"AgentJet {clean(view.url)}" + (f" · {clean(experiment)}" if experiment else ""), width - len(time) - 2)
    line = Text(name, "bold", no_wrap=True)
    line.pad_right(width - line.cell_len - len(time))
    return line.append(time, DIM)


def _waiting(view: View, width: int) -> list[Text]:
    if view.lost is None:
        return [_title(view, width), Text(cut(f"asking {clean(view.url)}", width), CARE, no_wrap=True)]
    tries = f"{view.tries} {'try' if view.tries == 1 else 'tries'} since {clock(view.lost, view.at)}; trying again"
    return [
        _title(view, width),
        *(Text(line, CARE, no_wrap=True) for line in wrap(f"waiting for {clean(view.url)}: {view.why}", width, 4)),
        Text(cut(tries, width), DIM, no_wrap=True),
        Text(cut("If no server runs there, start one: ajet-swarm start", width), DIM, no_wrap=True),
    ]


def _lost(view: View, width: int, room: Room) -> list[Text]:
    if view.lost is None:
        return []
    told = f"lost the server at {clock(view.lost, view.at)}, trying again ({view.why})"
    lines = [Text(line, TROUBLE, no_wrap=True) for line in wrap(told, width, min(room.message, 2))]
    if room.message > 1:
        lines.append(Text(f"What follows is of {clock(view.answered, view.at)}.", DIM, no_wrap=True))
    return lines


# ── engine, checkpoint, disk, speed, drops ───────────────────────────────────────────────────────────────────────────


def _state(view: View, status: Status, width: int, room: Room) -> list[Text]:
    last = _update_s(status)
    device = status.backbone.get("device")
    model = clean(f"{status.model} on {device}" if device else status.model or "")
    pieces = [
        "since {} ({})".format(*_ago(view, status, status.since)),
        f"the last update took {duration(last)}" if status.state is EngineState.UPDATING and last else "",
        cut(model, 36),
        f"server up {_ago(view, status, status.started)[1]}" if status.started else "",
        f"version {clean(status.server_version)}" if status.server_version else "",
    ]
    lines = labelled(
        str(status.state), flow([Text(piece) for piece in pieces], width - LABEL, room.line), STATE_STYLE[status.state]
    )
    if status.failure:
        lines += message("failure", status.failure, width, room.message, TROUBLE)
    # A refused checkpoint is told under its own head.
    if status.last_error and status.last_error not in (status.failure, f"Checkpoint: {status.checkpoint.error}"):
        lines += message("last error", status.last_error, width, room.message, "red")
    shown = status.warnings if room is ALL else status.warnings[-1:]
    for n, warning in enumerate(shown):
        others = f" +{len(status.warnings) - len(shown)}" if len(status.warnings) > len(shown) else ""
        lines += message("" if n else f"warning{others}", warning, width, max(1, room.message - 1), CARE)
    total = status.total_steps
    if total or status.step:
        drawn = bar(status.step, total, max(10, min(width - LABEL - 26, 60)))
        lines += labelled("step", [Text.assemble(drawn, f" {status.step} of {total or '?'}")])
    return lines


def _last_step(status: Status, width: int) -> list[Text]:
    """What the last step's episodes came to."""
    found = [f"{clean(one.name)} {one.values[-1]:.2f}" for one in curves([status.metrics])]
    return parts("last step", found, width, ALL.line) if found else []


def _checkpoint(status: Status, width: int, room: Room, *, path: bool) -> list[Text]:
    point = status.checkpoint
    short = point.wanted_bytes is not None and status.disk.free_bytes is not None
    tight = short and point.wanted_bytes > status.disk.free_bytes  # type: ignore[operator]
    unread = status.step and status.state in (EngineState.BOOTING, EngineState.FAILED)
    none = "none known yet" if unread else "none yet"
    pieces = [
        Text(f"newest: step {point.step}" if point.step is not None else none),
        Text(f"the next takes about {size(point.wanted_bytes)}", CARE if tight else "")
        if point.wanted_bytes
        else Text(),
    ]
    return parts("checkpoint", [*pieces, _path(point.path, pieces, width)] if path else pieces, width, room.line)


def _path(path: str | None, others: Sequence[Text], width: int) -> Text:
    """A path in what the ``others`` leave of its line."""
    used = sum(piece.cell_len + len(" · ") for piece in others if piece.plain)
    return Text(cut(clean(path or ""), max(20, width - LABEL - used)), DIM)


def _refused_checkpoint(view: View, status: Status, width: int, room: Room) -> list[Text]:
    point = status.checkpoint
    if not point.error:
        return []
    times = f" {point.refused} times" if point.refused > 1 else ""
    since = f" since {_ago(view, status, point.since)[0]}" if point.since else ""
    return message("", f"refused{times}{since}: {point.error}", width, room.message, "red")


def _disk(view: View, status: Status, width: int, room: Room) -> list[Text]:
    disk = status.disk
    journal = f"journal {size(disk.journal_bytes)}" if disk.journal_bytes is not None else ""
    if disk.journal_free_bytes is not None and disk.journal_free_bytes != disk.free_bytes:
        journal += f", {size(disk.journal_free_bytes)} free there"
    free = f"{size(disk.free_bytes)} free" if disk.free_bytes is not None else ""
    if disk.ok:
        stalled = f"a write has not come back for {duration(disk.stalled_s)}" if disk.stalled_s > STALLED_S else ""
        pieces = [Text("ok", GOOD), Text(stalled, CARE), Text(free), Text(journal)]
        return parts("disk", [*pieces, _path(disk.path, pieces, width)], width, room.line)
    since = " since {} ({})".format(*_ago(view, status, disk.since)) if disk.since else ""
    lines = parts(
        "disk",
        [Text(_refusal(disk) + since, TROUBLE), "answers wait" if disk.since else "", free, journal],
        width,
        room.line,
    )
    error = disk.error or "no reason given"
    where = f"{disk.path}: " if disk.path and disk.path not in error else ""
    return lines + message("", where + error, width, room.message, "red")


def _refusal(disk: DiskStatus) -> str:
    low = (disk.error or "").lower()
    if " is damaged " in low:
        return "JOURNAL DAMAGED"
    if "read-only" in low or "readonly" in low:
        return "READ-ONLY"
    if "no space" in low or "is full" in low or "quota" in low:
        return "FULL"
    return "REFUSES WRITES"


def _update_s(status: Status) -> float:
    return status.metrics.get("timing/update_s") or status.metrics.get("time/update_s") or 0.0


def _speed(status: Status, width: int, room: Room) -> list[Text]:
    speeds, last = status.speeds, _update_s(status)
    pieces: list[Part] = [
        f"sampler {count(speeds.sampled_tokens_per_s)} tokens/s",
        f"trainer {count(status.metrics.get('tokens/trained', 0.0) / last)} tokens/s"
        if last
        else "trainer: no update yet",
        f"{count(speeds.calls_per_s)} calls/s",
        f"{many(speeds.in_flight, 'call')} in flight",
        f"last update {duration(last)}" if last else "",
    ]
    return parts("speed", pieces, width, room.line)


def _dropped(status: Status, width: int, room: Room) -> list[Text]:
    lost = sum(status.dropped_tokens.values())
    drops: list[Part] = [
        f"{clean(reason)} {n}" for reason, n in sorted(status.drops.items(), key=lambda drop: (-drop[1], drop[0]))
    ]
    if lost:
        drops.append(f"{count(lost)} tokens of trained episodes")
    return parts("dropped", drops or [Text("nothing", DIM)], width, room.drops, count_rest=True)


def _why_dropped(status: Status, width: int) -> list[Text]:
    """In words."""
    return [Text(line) for said in drops_text(status.drops) for line in wrap(clean(said), width - LABEL, 3)]


def _trackers(status: Status, width: int, room: Room) -> list[Text]:
    """How far each is. In the tightest room the warning about one that fails has to do."""
    if room.message <= 1:
        return []
    pieces: list[Part] = [
        Text(f"{tracker.name} fails ({tracker.failures}×), at step {tracker.step}", CARE)
        if tracker.error
        else f"{tracker.name} at step {tracker.step}"
        for tracker in status.trackers
    ]
    return parts("trackers", pieces, width, room.line) if pieces else []
