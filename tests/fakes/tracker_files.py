"""What trackers wrote, read back: step → reward, in the order written, a step as often as it is there."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

KEY = "reward/mean"
Points = list[tuple[int, float]]


def tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            found += [(event.step, round(v.simple_value, 6)) for v in event.summary.value if v.tag == KEY]
    return found


def wandb(folder: Path) -> Points:
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(folder.rglob("*.wandb")):
        for data in _leveldb_log(path.read_bytes()[7:]):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                found.append((record.history.step.num, row[KEY]))
    return found


def _leveldb_log(data: bytes) -> Iterator[bytes]:
    """Records of LevelDB's log format, 32 KiB blocks; the file's own head of 7 bytes is cut off and counts."""
    at, whole = 0, b""
    while at + 7 <= len(data):
        left = 32768 - (at + 7) % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def mlflow(folder: Path) -> Points:
    return _rows(folder / "mlflow.db", "select step, value from metrics where key = ? order by timestamp, step", KEY)


def trackio(folder: Path) -> Points:
    (path,) = folder.glob("*.db")
    return [
        (step, json.loads(values)[KEY]) for step, values in _rows(path, "select step, metrics from metrics order by id")
    ]


def _rows(path: Path, query: str, *values: str) -> list:
    with closing(sqlite3.connect(path)) as base:
        return base.execute(query, values).fetchall()


READERS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow, "trackio": trackio}
