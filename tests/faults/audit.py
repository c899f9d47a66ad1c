"""What clients were told, against what the journal holds and what was trained."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from ajet.pool import journal_read
from ajet.pool.records import unpack_body, unpack_call
from ajet.schema.drops import DropReason

ENDED_UNTRAINED = {"no_calls", "training_finished"}


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All whole lines of all client logs; a killed client may have left half of one."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_bytes().split(b"\n")[:-1]:
            found.append(json.loads(text))
    return found


def audit(journal: Path, told: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare. Every list of the result must be empty; ``counts`` says how much was looked at."""
    with closing(journal_read.connect(journal)) as db:
        lease = {episode: n for n, episode in db.execute("SELECT n, episode FROM lease")}
        kinds = dict(db.execute("SELECT n, kind FROM lease"))
        done = {
            row[0]: {"how": row[1], "fate": row[2], "reason": row[3], **unpack_body(row[4])}
            for row in db.execute("SELECT n, how, fate, reason, body FROM done")
        }
        calls: dict[int, dict[str, str | None]] = {}
        for n, body in db.execute("SELECT n, body FROM call"):
            call = unpack_call(body)
            calls.setdefault(n, {})[call.call_id] = call.message.get("content")
        compacted = {n for (n,) in db.execute("SELECT n FROM compacted")}
        members = Counter(n for (n,) in db.execute("SELECT n FROM member"))
        step_of = dict(db.execute("SELECT n, step FROM member"))
        dropped = dict(db.execute("SELECT n, reason FROM dropped"))
        batches = [step for (step,) in db.execute("SELECT step FROM batch ORDER BY step")]
        tally = dict(db.execute("SELECT name, n FROM tally"))
        sound = db.execute("PRAGMA integrity_check").fetchone()[0]
    steps = journal_read.steps(journal)
    lost_calls, lost_ends, unexplained = [], [], []
    acknowledged: Counter[int] = Counter()
    for line in told:
        n = lease.get(line.get("episode", ""))
        if line["kind"] == "begin" and n is None:
            unexplained.append(f"{line['episode']}: granted, and not in the journal")
        if line["kind"] == "call":
            acknowledged[n or 0] += 1
            call_id = line["id"].removeprefix("chatcmpl-")
            if n is None or (n not in compacted and calls.get(n, {}).get(call_id, object()) != line["text"]):
                lost_calls.append(f"{line['episode']}: {line['id']}")
        if line["kind"] == "end":
            end = done.get(n or 0)
            if end is None or end["how"] != "end" or (end["reward"], end["task"]) != (line["reward"], line["task"]):
                lost_ends.append(f"{line['episode']}: {end}")
        if line["kind"] == "abort" and (done.get(n or 0) or {}).get("how") != "abort":
            lost_ends.append(f"{line['episode']}: its abort")
    for n, count in acknowledged.items():
        end = done.get(n)
        if n in compacted and end is not None and end["how"] == "end" and end["calls"] < count:
            lost_calls.append(f"lease {n}: {count} calls acknowledged, {end['calls']} counted at its end")
    done_steps = {step.step for step in steps}
    for n in compacted:
        untrained = n in dropped or (n in done and done[n]["fate"] != "pooled")
        if step_of.get(n) not in done_steps and not untrained:
            lost_calls.append(f"lease {n}: its calls were removed before it was trained or dropped")
    trained = Counter(episode for step in steps for episode in {_of(key) for key in step.advantages})
    twice = [e for e, times in trained.items() if times > 1] + [str(n) for n, times in members.items() if times > 1]
    twice += [f"lease {n} is in a batch and dropped" for n in members if n in dropped]
    twice += [
        f"step {step.step} trained {episode}, which is not of its batch"
        for step in steps
        for episode in {_of(key) for key in step.advantages}
        if step_of.get(lease.get(episode, 0)) != step.step
    ]
    twice += [f"{line['episode']}: {line['what']} was accepted" for line in told if line["kind"] == "accepted_late"]
    reasons: Counter[str] = Counter(dropped.values())
    known = {str(reason) for reason in DropReason} | ENDED_UNTRAINED
    for n, end in done.items():
        if kinds.get(n) == "train" and (end["how"] == "abort" or end["fate"] in ENDED_UNTRAINED):
            reasons[end["fate"]] += 1
        if not end["reason"] or (end["fate"] not in known | {"pooled", "eval"}):
            unexplained.append(f"lease {n}: {end['fate']!r} {end['reason']!r}")
        if n in members and end["fate"] != "pooled":
            twice.append(f"lease {n} was trained and is {end['fate']}")
    for reason in sorted({*reasons, *(k[5:] for k in tally if k.startswith("drop/"))} - {"nothing_to_train"}):
        if reasons[reason] != tally.get(f"drop/{reason}", 0):
            unexplained.append(f"{reason}: {reasons[reason]} rows, {tally.get(f'drop/{reason}', 0)} counted")
    gaps = [] if [s.step for s in steps] == list(range(1, len(steps) + 1)) else ["steps are not 1, 2, 3 …"]
    gaps += [f"step {s.step} has no batch" for s in steps if s.step not in batches]
    gaps += [] if sound == "ok" else [f"SQLite: {sound}"]
    return {
        "lost_calls": lost_calls, "lost_ends": lost_ends, "trained_twice": twice, "unexplained_drops": unexplained,
        "inconsistent": gaps,
        "counts": {
            "acknowledged_calls": sum(acknowledged.values()), "acknowledged_ends": sum(x["kind"] == "end" for x in told),
            "refusals": sum(x["kind"] == "refused" for x in told), "episodes": len(lease), "steps": len(steps),
            "open": len(lease) - len(done), "episodes_trained": len(members), "drops": dict(reasons),
        },
    }  # fmt: skip


def _of(key: str) -> str:
    """An advantage's key is ``episode/agent``; an episode counts once a step."""
    return key.partition("/")[0]
