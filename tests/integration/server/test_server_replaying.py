"""Claims about ``ajet-swarm replay-journal``: where it starts, what it finds, and when it refuses."""

import sqlite3
from dataclasses import dataclass

import pytest

from ajet.backbone.protocol import TrainBatch
from ajet.checkpoint.store import CheckpointStore
from ajet.pool import journal_read
from ajet.schema.errors import ConfigError, EngineFailed, JournalDamaged
from ajet.server.replaying import replay_journal
from tests.fakes.backbone import FakeBackbone
from tests.integration.server.conftest import job

STEPS = 4


@dataclass
class Counting(FakeBackbone):
    """Says how many threads compute: as many as the job sets, else three."""

    device: str = "cpu"

    def info(self):
        chosen = (self.started_with or {}).get("trainer_common", {}).get("cpu_threads", 0)
        found = super().info()
        return type(found)(**{**vars(found), "device": self.device, "threads": chosen or 3})


@pytest.fixture
def trained(serve, tmp_path):
    """``trained(changes)``: the folder of a run of four steps."""

    def run(make=FakeBackbone, **changes):
        with serve(make=make) as swarm:
            swarm.start(job(trainer_common__total_training_steps=STEPS, **changes))
            for step in range(1, STEPS + 1):
                swarm.play_batch()
                swarm.wait_step(step)
            swarm.wait("FINISHED")
        return tmp_path / "exp"

    return run


def digests(folder):
    return [step.digest for step in journal_read.steps(folder / "journal.sqlite")]


async def test_every_step_is_applied_again_from_the_initial_model(trained, tmp_path):
    folder = trained(journal__keep="all")
    (tmp_path / "out").mkdir()
    seen = []
    found = await replay_journal(
        folder, out=tmp_path / "out", progress=lambda *told: seen.append(told), make_backbone=lambda _: FakeBackbone()
    )
    assert (found.start, found.steps, found.diverged, found.notes) == (0, STEPS, [], [])
    assert found.digest == digests(folder)[-1]
    assert seen == [(step, STEPS, True) for step in range(1, STEPS + 1)]
    [newest] = CheckpointStore(folder / "checkpoints").directories()[-1:]
    assert (tmp_path / "out" / "state.json").read_text() == (newest / "state.json").read_text()


async def test_the_first_step_that_differs_is_named(trained):
    folder = trained(journal__keep="all")

    @dataclass
    class Other(FakeBackbone):
        async def train_step(self, batch: TrainBatch):
            found = await super().train_step(batch)
            if batch.step == 2:
                self.digest = "f" * 64
            return type(found)(**{**vars(found), "digest": self.digest})

    found = await replay_journal(folder, make_backbone=lambda _: Other())
    assert found.diverged == [2, 3, 4]


async def test_a_compacted_run_is_applied_from_the_oldest_checkpoint_that_suffices(trained):
    folder = trained(checkpoint__keep_last=3, checkpoint__keep_best=0)
    journal = folder / "journal.sqlite"
    kept = [
        b.step for b in journal_read.batches_after(journal, 0) if not journal_read.compacted_calls_missing(journal, b)
    ]
    found = await replay_journal(folder, make_backbone=lambda _: FakeBackbone())
    assert 0 < found.start == kept[0] - 1
    assert (found.steps, found.diverged) == (len(kept), [])


async def test_a_damaged_checkpoint_is_passed_over_and_without_a_whole_one_it_refuses(trained):
    folder = trained(checkpoint__keep_last=3, checkpoint__keep_best=0)
    store = CheckpointStore(folder / "checkpoints")
    begun = []
    for checkpoint in store.directories():
        begun.append((await replay_journal(folder, make_backbone=lambda _: FakeBackbone())).start)
        (checkpoint / "state.json").write_text("{}")
    assert begun == [STEPS - 2, STEPS - 1, STEPS], "the journal leads on from each that is kept"
    with pytest.raises(EngineFailed, match="keep: all"):
        await replay_journal(folder, make_backbone=lambda _: FakeBackbone())
    assert len(store.directories()) == 3, "it sets nothing aside"


async def test_beside_a_running_server_it_refuses(serve, tmp_path):
    with serve() as swarm:
        swarm.start()
        with pytest.raises(ConfigError, match=r"server has the journal .* open"):
            await replay_journal(tmp_path / "exp", make_backbone=lambda _: FakeBackbone())


async def test_a_step_without_its_batch_is_damage_and_no_success(trained):
    folder = trained(journal__keep="all")
    with sqlite3.connect(folder / "journal.sqlite") as db:
        db.execute("DELETE FROM batch WHERE step = 4")
    with pytest.raises(JournalDamaged, match="a batch for each"):
        await replay_journal(folder, make_backbone=lambda _: FakeBackbone())


@pytest.mark.parametrize(("version", "words"), [(1, "Start its experiment once"), (99, "Upgrade")])
async def test_a_journal_of_another_version_is_named(trained, version, words):
    folder = trained()
    with sqlite3.connect(folder / "journal.sqlite") as db:
        db.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(ConfigError, match=words):
        await replay_journal(folder, make_backbone=lambda _: FakeBackbone())


async def test_each_step_is_applied_under_the_job_that_was_in_force(serve, tmp_path):
    tree = job(trainer_common__total_training_steps=9, journal__keep="all")
    seen = []

    def make(config):
        seen.append(config.trainer_common.seed)
        return FakeBackbone()

    for part, seed in ((0, 5), (1, 6)):
        with serve() as swarm:
            if part:
                swarm.wait("ROLLING")
                swarm.post("/engine/stop").raise_for_status()
                swarm.wait("OFFLINE")
            swarm.count = 1000 * part
            tree["trainer_common"]["seed"] = seed
            swarm.start(tree)
            for step in (1, 2):
                swarm.play_batch(f"part{part}")
                swarm.wait_step(2 * part + step)
    found = await replay_journal(tmp_path / "exp", make_backbone=make)
    assert (found.steps, found.diverged, seen) == (4, [], [5, 6])


# ── what computes ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_goes_on_and_is_replayed_with_the_threads_of_its_first_boot(serve, trained):
    folder = trained(make=Counting, journal__keep="all")
    started = []

    def elsewhere(_config=None):
        """A machine that would choose seven threads."""
        started.append(Counting())
        return started[-1]

    with serve(make=elsewhere) as swarm:
        swarm.wait("FINISHED")
        assert swarm.status()["warnings"] == []
    found = await replay_journal(folder, make_backbone=elsewhere)
    assert [b.started_with["trainer_common"]["cpu_threads"] for b in started] == [3, 3]
    assert found.notes == []


def test_other_threads_and_another_device_are_warned_about_by_name(serve, trained):
    trained(make=Counting, trainer_common__cpu_threads=2)
    with serve(make=lambda: Counting(device="NVIDIA H200")) as swarm:
        swarm.wait("FINISHED")
        assert any("trained on cpu, and NVIDIA H200 goes on with it" in w for w in swarm.status()["warnings"])
        swarm.post("/engine/stop").raise_for_status()
        swarm.wait("OFFLINE")
        swarm.start_again = swarm.http.put(
            "/swarm/v1/job",
            json={"job": job(trainer_common__total_training_steps=STEPS, trainer_common__cpu_threads=5)},
        ).raise_for_status()
        swarm.post("/engine/start").raise_for_status()
        swarm.wait("FINISHED")
        warned = " ".join(swarm.status()["warnings"])
    assert "with 2 CPU threads and goes on with 5" in warned


async def test_replaying_on_another_device_says_so(trained):
    folder = trained(make=Counting, journal__keep="all")
    found = await replay_journal(folder, make_backbone=lambda _: Counting(device="NVIDIA H200"))
    [note] = found.notes
    assert "trained on cpu; this is NVIDIA H200" in note
