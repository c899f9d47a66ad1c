"""Checkpoints under kills, full disks and truncation (reported faults 10 and 16)."""

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.checkpoint import CheckpointStore
from ajet.checkpoint import store as store_module
from ajet.schema.errors import DiskRefused


def content(step: int):
    def write(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(bytes([step]) * 3000)
        (directory / "sub").mkdir()
        (directory / "sub" / "state.json").write_text(json.dumps({"step": step}))

    return write


def save(store: CheckpointStore, step: int, metric: float | None = None):
    return store.save_now(step, content(step), digest=f"d{step}", metric=metric)


def steps(store: CheckpointStore) -> list[int]:
    return [c.step for c in store.all()]


def names(path: Path) -> set[str]:
    return {p.name for p in path.iterdir()}


def test_a_saved_checkpoint_is_found_verified_and_complete(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.latest_valid() is None
    saved = save(store, 7, 0.5)
    found = store.latest_valid()
    assert found == saved
    assert found.path == tmp_path / "checkpoints" / "step_000007"
    assert (found.step, found.digest, found.metric) == (7, "d7", 0.5)
    manifest = json.loads((found.path / "manifest.json").read_text())
    assert set(manifest["files"]) == {"model.safetensors", "sub/state.json"}


def test_an_async_writer_gets_an_empty_directory(tmp_path):
    async def write(directory: str) -> None:
        assert os.listdir(directory) == []
        await asyncio.to_thread(Path(directory, "model.safetensors").write_bytes, b"x")

    assert asyncio.run(CheckpointStore(tmp_path).save(3, write, digest="d")).step == 3


def test_retention_keeps_the_last_and_the_best_across_restarts(tmp_path):
    metrics = {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.3, 5: None, 6: float("nan"), 7: 0.4}
    for step, metric in metrics.items():
        save(CheckpointStore(tmp_path, keep_last=2, keep_best=1), step, metric)
    store = CheckpointStore(tmp_path, keep_last=2, keep_best=1)
    assert steps(store) == [2, 6, 7]
    assert store.best().step == 2
    assert names(tmp_path) == {"step_000002", "step_000006", "step_000007"}


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest", "no manifest"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(tmp_path, damage, caplog):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    path = save(store, 2).path
    model = path / "model.safetensors"
    if damage == "truncate":
        os.truncate(model, 100)
    elif damage == "flip":
        model.write_bytes(b"\x07" + model.read_bytes()[1:])
    elif damage == "remove":
        model.unlink()
    elif damage == "manifest":
        os.truncate(path / "manifest.json", 20)
    else:
        (path / "manifest.json").unlink()
    assert store.latest_valid().step == 1
    assert "damaged" in caplog.text
    assert ".corrupt-step_000002" in names(tmp_path)
    save(store, 2)
    assert store.latest_valid().step == 2


def test_damage_never_makes_retention_delete_the_last_good_one(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=0)
    save(store, 1)
    with pytest.raises(RuntimeError):
        store.save_now(2, lambda d: (_ for _ in ()).throw(RuntimeError("the writer failed")), digest="d")
    assert store.latest_valid().step == 1
    assert names(tmp_path) == {"step_000001"}


class Disk:
    """Lets ``budget`` calls that touch the disk through, then fails or dies at every further one."""

    def __init__(self, monkeypatch, fail) -> None:
        self.calls, self.budget = 0, 10**9
        for owner, name in [
            (os, "fsync"),
            (os, "open"),
            (Path, "rename"),
            (Path, "mkdir"),
            (Path, "write_bytes"),
            (store_module.shutil, "rmtree"),
        ]:
            monkeypatch.setattr(owner, name, self._wrap(getattr(owner, name), fail))

    def _wrap(self, real, fail):
        def call(*args, **kwargs):
            self.calls += 1
            if self.calls > self.budget:
                fail(kwargs)
            return real(*args, **kwargs)

        return call


class Killed(BaseException):
    """A ``kill -9``: nothing runs after it."""


def enospc(kwargs):
    if not kwargs.get("ignore_errors"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_every_point_of_a_save_damages_nothing(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, enospc)
    for again in (False, True):  # a new step; the same step again
        for budget in range(60):
            root = tmp_path / f"{again}-{budget}"
            store = CheckpointStore(root, keep_last=1, keep_best=0)
            disk.budget = 10**9
            save(store, 1)
            disk.calls, disk.budget = 0, budget
            step = 1 if again else 2
            try:
                save(store, step)
                refused = False
            except DiskRefused:
                refused = True
            whole = disk.calls <= budget
            disk.budget = 10**9
            found = CheckpointStore(root, keep_last=1, keep_best=0).latest_valid()
            assert found is not None
            assert found.step in (1, step)
            assert save(store, step).step == step
            assert names(root) == {f"step_{step:06d}"}
            if whole:
                assert not refused
                break
        else:
            raise AssertionError("the save never got through")
        assert budget > 8


def test_a_kill_at_every_point_of_a_save_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    def die(_):
        raise Killed

    disk = Disk(monkeypatch, die)
    monkeypatch.setattr(CheckpointStore, "_abandon", lambda self, aside, error: None)
    for again in (False, True):
        for budget in range(80):
            root = tmp_path / f"{again}-{budget}"
            store = CheckpointStore(root, keep_last=1, keep_best=0)
            disk.budget = 10**9
            save(store, 1)
            disk.calls, disk.budget = 0, budget
            step = 1 if again else 2
            try:
                save(store, step)
                finished = True
            except Killed:
                finished = False
            disk.budget = 10**9
            after = CheckpointStore(root, keep_last=1, keep_best=0)
            assert after.latest_valid() is not None
            assert save(after, step).step == step
            assert names(root) == {f"step_{step:06d}"}
            if finished and disk.calls:
                break
        else:
            raise AssertionError("the save never got through")


def test_a_real_kill_in_mid_save_then_the_same_step_again(tmp_path):
    script = """
import os, signal, sys
from ajet.checkpoint import CheckpointStore
def write(d):
    (d / "model.safetensors").write_bytes(b"x" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)
store = CheckpointStore(sys.argv[1])
store.save_now(4, lambda d: (d / "model.safetensors").write_bytes(b"good"), digest="a")
store.save_now(5, write, digest="b")
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert any(n.startswith(".tmp-") for n in names(tmp_path))
    store = CheckpointStore(tmp_path)
    assert store.latest_valid().step == 4
    save(store, 5)
    assert store.latest_valid().step == 5
    assert names(tmp_path) == {"step_000004", "step_000005"}


def test_a_file_that_cannot_grow_is_a_refused_disk(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        with pytest.raises(DiskRefused, match="free some space"):
            save(store, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert store.latest_valid().step == 1
    save(store, 2)
    assert steps(store) == [1, 2]


def test_the_next_size_is_estimated_from_the_newest_or_the_parameters(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.estimate(parameters=1000) == 12_000
    saved = save(store, 1)
    assert saved.bytes <= store.estimate() <= saved.bytes * 1.1
    assert store.shortage() is None


def test_where_room_is_short_only_what_the_next_save_would_replace_goes_before_it(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep_last=3, keep_best=1)
    for step, metric in ((1, 0.9), (2, 0.1), (3, 0.2), (4, 0.3)):
        save(store, step, metric)
    assert steps(store) == [1, 2, 3, 4]
    each = store.estimate()
    room = {"free": store.wanted_bytes() - each // 2}
    monkeypatch.setattr(store, "_free", lambda: room["free"] + each * (4 - len(store.all())))
    assert store.shortage() is None, "step 2 made room: step 5 would have replaced it"
    assert steps(store) == [1, 3, 4]
    room["free"] = 0
    for _ in range(3):
        assert "MiB free" in (store.shortage() or "")
    assert steps(store) == [1, 3, 4], "the best and the newest stay however little room there is"
    for keep_last in (1, 2):
        CheckpointStore(tmp_path, keep_last, 0)._retain(keep_last)
        alone = CheckpointStore(tmp_path, keep_last, 0)
        monkeypatch.setattr(alone, "_free", lambda: 0)
        assert alone.shortage() is not None
        assert steps(alone)[-1:] == [4]


@pytest.mark.parametrize("files", [1, [], {"a": 1}, {"a": {"bytes": "1", "sha256": 2}}, None])
def test_a_manifest_of_any_shape_is_at_worst_a_damaged_checkpoint(tmp_path, files):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    path = save(store, 2).path / "manifest.json"
    path.write_text(json.dumps({"step": 2, "digest": "d", "metric": None, "created": 0, "files": files}))
    assert store.latest_valid().step == 1


def test_a_file_that_the_disk_cannot_read_any_more_is_damage(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    newest = save(store, 2)
    read = store_module._sha256

    def failing(path: Path) -> str:
        if newest.path in path.parents:
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(store_module, "_sha256", failing)
    assert store.latest_valid().step == 1


def test_a_process_short_of_files_takes_no_checkpoint_for_damaged(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    save(store, 1)

    def failing(path: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(store_module, "_sha256", failing)
        with pytest.raises(OSError, match="Too many"):
            store.latest_valid()
    assert store.latest_valid().step == 1
