"""Claims about the frames of ``ajet-swarm overwatch``: what they say, and that they fit."""

import unicodedata
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.monitor.overwatch.drawing import bar, clean, clock, count, curve, cut, duration, many, size, wrap
from ajet.monitor.overwatch.frame import frame, summary
from ajet.schema.status import Activity, CheckpointStatus, DiskStatus, LeaseStatus, PoolFill, ShareView
from ajet.schema.wire import EngineState
from tests.unit.monitor.views import NOW, RUN, client, idle, rolling, seen, steps, task

LONG = "a-very-long-name-" * 20
EVIL = "\x1b[31mred\x1b[0m\r\n\x07\u202eabc\u200b [bold]x[/bold]"


def text(view, width=80, height=23):
    lines = frame(view, width, height)
    assert all(line.cell_len <= width for line in lines), [line.plain for line in lines if line.cell_len > width]
    assert height is None or len(lines) <= height
    return "\n".join(line.plain for line in lines)


def summed_up(status, width=100, **changes):
    return "\n".join(line.plain for line in summary(seen(status, **changes), status, width))


def at(when):
    return clock(when, NOW)


def test_an_idle_server_says_that_nothing_runs():
    said = text(seen(idle(), steps=()))
    assert f"OFFLINE     since {at(NOW - 60)} (1 min)" in said
    for words in ("checkpoint  none yet", "disk        ok · 1.0 GB free", "pool        none yet", "no step yet"):
        assert words in said
    assert "episodes    none" in said
    assert "dropped     nothing" in said


def test_a_rolling_server_shows_all_that_matters_in_80_by_24():
    said = text(seen(rolling()))
    for words in (
        "127.0.0.1:10086 · werewolves", f"ROLLING     since {at(NOW - 310)} (5 min 10 s)", "17 of 45",
        "3 of 8 groups ready · 5 in progress · 29 episodes", "60 of 64 running · 2 eval · 4 waiting for a place · 2 clients",
        "laptop       4 open, 31 calls, idle 130 of 240 s", "deal-1", "6 of 8, 2 running", "1 group ready",
        "(not told yet)", "win rate werewolf", "reward seer", "aborted 40 · policy_lag 12 · silent 3",
        "sampler 1234 tokens/s · trainer 5000 tokens/s", "newest: step 15", "ok · 12.3 GB free · journal 120 MB",
        "steps 1 to 17",
    ):  # fmt: skip
        assert words in said, words


def test_an_update_says_how_long_the_last_one_took():
    said = text(seen(rolling(state=EngineState.UPDATING, since=NOW - 4)))
    assert f"UPDATING    since {at(NOW - 4)} (4.0 s) · the last update took 10 s" in said


@pytest.mark.parametrize(
    ("error", "word"),
    [
        ("database or disk is full", "FULL"),
        ("[Errno 28] No space left on device", "FULL"),
        ("attempt to write a readonly database", "READ-ONLY"),
        ("[Errno 30] Read-only file system", "READ-ONLY"),
        ("disk I/O error", "REFUSES WRITES"),
    ],
)
def test_a_disk_that_refuses_is_named_with_path_and_time(error, word):
    disk = DiskStatus(ok=False, error=error, path=RUN, since=NOW - 100, free_bytes=0)
    said = text(seen(rolling(disk=disk)))
    assert f"disk        {word} since {at(NOW - 100)} (1 min 40 s)" in said
    assert f"{RUN}: {error}" in " ".join(said.split())


def test_a_damaged_journal_is_not_called_a_full_disk():
    error = f"The journal {RUN}/journal.sqlite is damaged (malformed). Run `ajet-swarm doctor` on its folder."
    said = text(seen(rolling(disk=DiskStatus(ok=False, error=error, path=RUN))))
    assert "disk        JOURNAL DAMAGED\n" in said
    assert said.count(RUN) == 1
    assert "answers wait" not in said


def test_a_write_that_does_not_come_back_is_shown():
    said = text(seen(rolling(disk=DiskStatus(ok=True, stalled_s=42.0))))
    assert "a write has not come back for 42 s" in said


def test_a_refused_checkpoint_says_why_and_which_is_the_newest():
    point = CheckpointStatus(step=15, path="/x", error="step 16: No space left on device", refused=3, since=NOW - 9)
    said = text(seen(rolling(checkpoint=point)))
    assert "newest: step 15" in said
    assert f"refused 3 times since {at(NOW - 9)}: step 16: No space left on device" in said


def test_a_failure_and_the_last_error_are_shown_once_each():
    cause = "The backbone died 5 times without a step in between."
    said = text(seen(rolling(state=EngineState.FAILED, failure=cause, last_error=cause)))
    assert said.count(cause) == 1
    assert "FAILED " in said
    said = text(seen(rolling(state=EngineState.FAILED, failure=cause, last_error="Checkpoint: no")))
    assert "failure     The backbone died" in said
    assert "last error  Checkpoint: no" in said


def trouble():
    """Everything at once."""
    return rolling(
        state=EngineState.FAILED, failure=f"{LONG} {LONG}", last_error=LONG, warnings=[LONG] * 3,
        checkpoint=CheckpointStatus(step=15, path=LONG, error=LONG, refused=3, since=NOW - 9, wanted_bytes=10**9),
        disk=DiskStatus(ok=False, error=LONG, path=LONG, since=NOW - 100, free_bytes=0, journal_bytes=10**9),
        drops={f"reason_number_{n}": n for n in range(40)}, dropped_tokens={"x": 5},
        activity=Activity(
            clients=[client(LONG)] * 9, clients_total=9, tasks=[task(LONG, ready=10**6)] * 9, tasks_total=9
        ),
    )  # fmt: skip


@pytest.mark.parametrize("height", [16, 20, 23])
def test_with_every_trouble_at_once_no_line_that_matters_is_missing(height):
    said = text(seen(trouble(), lost=NOW - 7, why="Connection refused", answered=NOW - 9), height=height)
    for label in (
        "lost the server", "FAILED", "failure", "last error", "warning +2", "step", "checkpoint", "refused 3 times",
        "disk ", "speed", "dropped", "pool", "episodes", "learning",
    ):  # fmt: skip
        assert label in said, label


def test_without_a_bound_everything_is_told_whole():
    said = text(seen(trouble()), width=100, height=None)
    assert said.count("a-very-long-name-") > 60
    assert "reason_number_39" in said
    assert "reason_number_0 0" in said


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 23), (100, 60), (118, 30), (119, 30), (250, 80)])
def test_frames_fit_whatever_the_names_are(width, height):
    for name in (LONG, "狼人杀" * 40, EVIL, ""):
        status = rolling(
            experiment=name, model=name, last_error=name, drops={name: 1},
            activity=Activity(clients=[client(name)] * 3, clients_total=3, tasks=[task(name)] * 3, tasks_total=3),
        )  # fmt: skip
        view = seen(status, steps=({"step": 1, f"env/win/{name}": 0.5},), steps_error=name)
        lines = frame(view, width, height)
        assert all(line.cell_len <= width for line in lines)
        assert all(unicodedata.category(c)[0] != "C" for line in lines for c in line.plain)


def test_a_task_that_only_waits_for_its_batch_is_shown_full():
    waits = Activity(tasks=[task("t", finished=0, running=0, ready=2)], tasks_total=1)
    assert "████████ 2 groups ready" in text(seen(rolling(activity=waits)))


def test_a_larger_terminal_shows_more():
    crowd = Activity(
        clients=[client(f"c{n}") for n in range(30)], clients_total=30,
        tasks=[task(f"t{n}") for n in range(30)], tasks_total=30,
    )  # fmt: skip
    view = seen(rolling(activity=crowd))
    rows = [sum(line.plain.count(" of 8, 2 running") for line in frame(view, 80, height)) for height in (23, 40, 90)]
    assert rows[0] < rows[1] < rows[2] == 30
    assert "│" in text(view, 160, 40)
    assert len(text(view, 160, 40)) > len(text(view, 80, 40))


def test_what_a_list_leaves_out_is_counted():
    crowd = Activity(
        clients=[client(f"c{n}") for n in range(50)], clients_total=312,
        tasks=[task(f"t{n}") for n in range(50)], tasks_total=2000,
    )  # fmt: skip
    leases = LeaseStatus(open_train=10_000, capacity=10_000, clients=312)
    said = text(seen(rolling(activity=crowd, leases=leases)))
    assert "10000 of 10000 running · 312 clients" in said
    shown = sum(" of 8, 2 running" in line for line in said.splitlines())
    assert f"… {2000 - shown} more tasks" in said
    assert "more clients" in said
    assert "… 1950 more tasks" in text(seen(rolling(activity=crowd)), height=None)


def test_a_server_that_was_never_there_is_waited_for_with_the_reason():
    said = text(seen(None, lost=NOW - 3, why="Connection refused", tries=4))
    assert "waiting for http://127.0.0.1:10086: Connection refused" in said
    assert f"4 tries since {at(NOW - 3)}; trying again" in said
    assert "asking http://127.0.0.1:10086" in text(seen(None))


def test_a_lost_server_is_said_with_the_time_and_what_was_known_stays():
    said = text(seen(rolling(), at=NOW + 30, answered=NOW, lost=NOW + 2, why="Connection refused"))
    assert f"lost the server at {at(NOW + 2)}, trying again (Connection refused)" in said
    assert f"What follows is of {at(NOW)}." in said
    assert "17 of 45" in said
    assert "(5 min 10 s)" in said


def test_times_hold_whatever_the_servers_clock_says():
    fast = rolling(since=NOW + 7200 - 310, started=NOW + 7200 - 4000, now=NOW + 7200)
    assert text(seen(fast)) == text(seen(rolling()))


def test_a_server_that_tells_no_activity_is_shown_without_it():
    said = text(seen(rolling(activity=None, now=0.0)))
    assert "3 of 8 groups ready" in said
    assert "(5 min 10 s)" in said


def test_groups_with_equal_rewards_are_told_where_there_is_room():
    fill = PoolFill(rule="r", groups_complete=3, groups_needed=8, groups_non_dummy=1, num_repeat=8)
    assert "2 with equal rewards" in text(seen(rolling(pool=fill)), 100)


def shared(**changes):
    """Two clients with shares of 40 and 60, and one with none of its own."""
    views = [
        ShareView(share="", weight=20, seats=1, ready=0, live=True),
        ShareView(share="math", weight=40, seats=3, ready=3, live=True, owed=0.33),
        ShareView(share="games", weight=40, seats=4, ready=1, live=False, owed=-0.33),
    ]
    return rolling(shares=views, held={"share": 12}, **changes)


@pytest.mark.parametrize("said", [text(seen(shared()), 100, None), text(seen(shared()), 160, 40), summed_up(shared())])
def test_shares_are_shown_where_several_play_for_a_batch(said):
    for words in (
        "shares      (others)", "0 of 1 groups, 20%", "3 of 3 groups, 40%", "1 of 4 groups, nobody plays, 40%",
        "12 requests held back so far",
    ):  # fmt: skip
        assert words in said, words


def test_a_single_share_is_no_news_and_shares_never_crowd_out_what_matters():
    alone = rolling(shares=[ShareView(share="math", weight=1, seats=8, ready=3, live=True)])
    assert text(seen(alone)) == text(seen(rolling()))
    tight = shared(**{k: v for k, v in trouble().model_dump().items() if k not in ("shares", "held")})
    said = text(seen(tight, lost=NOW - 7, why="Connection refused", answered=NOW - 9), height=16)
    for label in ("pool", "episodes", "learning"):
        assert f"\n{label}" in said
    assert "shares      (others)" in text(seen(shared()))


def test_curves_are_win_rates_and_rewards_by_role_and_skip_what_is_no_number():
    rows = [line for line in text(seen(rolling()), 100, 60).splitlines() if "▁" in line or " to " in line]
    names = [row.strip().split("  ")[0] for row in rows[1:]]
    assert names == ["win rate seer", "win rate werewolf", "reward seer", "reward werewolf", "reward of all"]
    only = text(seen(rolling(), steps=({"step": 1, "win_rate": 0.25, "reward/a/mean": 1.0, "reward/mean": 1.0},)))
    assert "win rate        0.25" in only
    assert "reward of all" not in only


@pytest.mark.parametrize("width", [79, 119, 139])
def test_names_are_cut_where_it_is_tight_and_what_is_said_of_them_is_not(width):
    busy = Activity(
        clients=[client(f"client-{'4d9714b5' * 4}", episodes=123, calls=12345, idle_s=130.0)], clients_total=1,
        tasks=[task(f"deal-{'7f' * 20}", needed=16, finished=12, running=4)], tasks_total=1,
    )  # fmt: skip
    said = text(seen(rolling(activity=busy), steps=steps(33)), width, 35)
    assert "123 open, 12.3k calls, idle 130 of 240 s" in said
    assert "12 of 16, 4 running" in said
    rows = [line.rstrip() for line in said.splitlines() if "win rate werewolf" in line or "reward seer" in line]
    assert [row[-12:] for row in rows] == ["0.32 to 0.96", "0.10 to 0.10"]


def test_a_curve_without_room_for_its_span_has_the_whole_width():
    name = "a-role-with-a-long-name"
    view = seen(rolling(), steps=tuple({"step": n, f"env/win/{name}": n / 33} for n in range(1, 34)))
    row = next(line for line in text(view, 60, 35).splitlines() if "win rate" in line)
    assert row.endswith("█")
    assert " to " not in row


def test_a_failure_is_told_to_its_end_where_lists_have_nothing_to_show():
    reason = (
        "The backbone died 5 times. " + "Cause: killed, most likely no memory was left. " * 7 + "Take a smaller model."
    )
    failed = rolling(state=EngineState.FAILED, failure=reason, activity=Activity(), drops={})
    said = text(seen(failed), 79, 23)
    assert "Take a smaller model." in " ".join(said.split())
    assert "learning    steps 1 to 17" in said


@pytest.mark.parametrize("state", [EngineState.BOOTING, EngineState.FAILED])
def test_a_run_that_comes_back_may_have_a_checkpoint_that_is_not_known_yet(state):
    booting = rolling(state=state, checkpoint=CheckpointStatus())
    assert "checkpoint  none known yet" in text(seen(booting))
    assert "checkpoint  none yet" in text(seen(booting.model_copy(update={"step": 0})))


def test_a_path_takes_what_is_left_of_its_line():
    point = rolling().checkpoint
    said = text(seen(rolling(checkpoint=point, disk=DiskStatus(ok=True, path=RUN))), 90)
    assert point.path
    assert f"newest: step 15 · {point.path}\n" in said
    assert f"ok · {RUN}\n" in said
    assert "step 15 · the next takes about 9.0 MB · /data" in text(
        seen(rolling(checkpoint=point.model_copy(update={"wanted_bytes": 9_000_000}))), 90
    )


def test_one_step_is_no_span():
    assert "learning    step 1\n" in text(seen(rolling(), steps=steps(1)))


def test_missing_curves_say_why():
    assert "no curves: the journal is damaged" in text(seen(rolling(), steps=(), steps_error="the journal is damaged"))
    assert "newer ones are missing: x" in text(seen(rolling(), steps=steps(3), steps_error="x"))


# ── ajet-swarm status ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_summary_of_a_run_is_short_and_says_since_when_and_why_nothing_is_lost():
    path = f"{RUN}/{'deep/' * 20}checkpoints/step_000015"
    status = rolling(checkpoint=CheckpointStatus(step=15, path=path), metrics=steps(17)[-1] | {"tokens/trained": 9.0})
    said = summed_up(status)
    for words in (
        f"ROLLING     since {at(NOW - 310)} (5 min 10 s)", "17 of 45", "last step   win rate seer 0.40 · win rate werewolf 0.64",
        "3 of 8 groups ready · 5 in progress · 29 episodes", "60 of 64 running · 2 eval · 4 waiting for a place · 2 clients",
        "sampler 1234 tokens/s", "newest: step 15", path, "ok · 12.3 GB free", "dropped     aborted 40: given back by its client",
        "silent 3: its client gave no sign of life",
    ):  # fmt: skip
        assert words in said, words
    assert "laptop" not in said
    assert "deal-1" not in said
    assert "▁" not in said
    assert len(said.splitlines()) <= 16


def test_the_summary_hides_no_trouble():
    said = " ".join(summed_up(trouble(), width=80).split())
    for label in (
        "FAILED",
        "failure",
        "last error",
        "warning",
        "refused 3 times",
        "REFUSES WRITES",
        "reason_number_39 39",
    ):
        assert label in said, label
    assert "OFFLINE" in summed_up(idle(), steps=())


# ── drawings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.text(), st.integers(0, 60), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_text_is_cut_and_wrapped_within_its_cells(raw, width, lines):
    from rich.cells import cell_len

    safe = clean(raw)
    assert not any(unicodedata.category(c).startswith("C") for c in safe)
    assert cell_len(cut(safe, width)) <= width
    if cell_len(safe) <= width:
        assert cut(safe, width) == safe
    if width >= 4:
        wrapped = wrap(safe, width, lines)
        assert len(wrapped) <= lines
        assert all(cell_len(line) <= width for line in wrapped)
        if wrapped and not wrapped[-1].endswith("…"):
            assert "".join(wrapped).replace(" ", "") == safe.replace(" ", "")


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e9), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_bars_are_as_wide_as_asked_and_full_only_when_done(done, total, coming, width):
    drawn = bar(done, total, width, coming).plain
    assert len(drawn) == width
    assert (drawn.count("█") == width) == (total > 0 and done >= total * (1 - 1e-9))


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_curves_rise_where_values_rise(values, width):
    assert len(curve(values, width)) == min(width, len(values))
    if values:
        assert all(a <= b for a, b in pairwise(curve(sorted(values), width)))


def test_numbers_read_well():
    assert [duration(s) for s in (0, 3.24, 12, 250, 7500, 100000, 3600)] == [
        "0.0 s", "3.2 s", "12 s", "4 min 10 s", "2 h 5 min", "1 d 3 h", "1 h",
    ]  # fmt: skip
    assert [count(n) for n in (0, 0.5, 9, 950, 1234.5, 12345, 4_100_000, 3e9)] == [
        "0", "0.5", "9", "950", "1234", "12.3k", "4.1M", "3.0G",
    ]  # fmt: skip
    assert [many(n, "call") for n in (0, 1, 2, 20_000)] == ["0 calls", "1 call", "2 calls", "20.0k calls"]
    assert [size(n) for n in (0, 999, 1500, 120e6, 12.3e9, 2e12)] == [
        "0 B", "999 B", "1.5 kB", "120 MB", "12.3 GB", "2.0 TB",
    ]  # fmt: skip
    assert clock(NOW - 200_000, NOW).startswith("20")
    assert clock(1e30, NOW) == "?"


def test_a_view_is_never_changed_by_drawing_it():
    view = seen(rolling())
    before = replace(view)
    assert text(view) == text(view)
    assert view == before
