"""A damaged newest checkpoint, file by file, with the real server: resume always succeeds and says which and why."""

import json
import shutil
from pathlib import Path

import openai
import pytest

from ajet import SwarmClient, Task, WorkflowOutput
from ajet.checkpoint import CheckpointStore
from ajet.pool import journal_read
from tests.faults.processes import serving, small_job, until

NAME, STEPS = "exp", 3


def play(client: SwarmClient, step: int, best: bool = False) -> None:
    for member in range(2):
        episode, api = client.begin_episode()
        with openai.OpenAI(base_url=api.base_url, api_key=api.api_key) as sdk:
            sdk.chat.completions.create(model="policy", messages=[{"role": "user", "content": f"say {step}"}])
        client.end_episode(Task(task_id=f"t{step}", main_query=""), episode, WorkflowOutput(reward=member + 5.0 * best))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of experiments whose server was killed after three saved steps."""
    folder = tmp_path_factory.mktemp("trained")
    job = small_job(NAME, groups=1, repeat=2, steps=99, save_freq=1)
    with serving(folder / "server", folder / "log") as server:
        with SwarmClient(server.url, verbose=False) as client:
            client.auto_sync_train_config_and_start_engine(job)
            for step in range(1, STEPS + 1):
                play(client, step)
                assert client.get_status(wait_step=step, wait_s=60)["step"] == step
            until(lambda: (server.status() or {})["checkpoint"]["step"] == STEPS, what="the last save")
        server.kill()
    return folder / "server"


def files() -> list[str]:
    """What a checkpoint holds (fixed here, so that a new file is a new case)."""
    return [
        "build.json", "chat_template.jinja", "config.json", "generation_config.json", "manifest.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json", "trainer_state.json", "trainer_state.safetensors",
    ]  # fmt: skip


def test_every_file_of_a_checkpoint_is_a_case(trained):
    newest = trained / NAME / "checkpoints" / f"step_{STEPS:06d}"
    assert sorted(p.relative_to(newest).as_posix() for p in newest.rglob("*") if p.is_file()) == files()


@pytest.mark.parametrize("name", files())
@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_file_is_noticed_named_and_the_one_before_is_used(trained, tmp_path, name, damage):
    directory = tmp_path / "checkpoints"
    shutil.copytree(trained / NAME / "checkpoints", directory)
    _damage(directory / f"step_{STEPS:06d}" / name, damage)
    found = CheckpointStore(directory).latest_valid()
    assert found is not None
    assert found.step == STEPS - 1
    assert (directory / f".corrupt-step_{STEPS:06d}").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_server_resumes_from_a_whole_checkpoint_whichever_file_of_the_newest_is_truncated(trained, tmp_path):
    wanted = journal_read.steps(trained / NAME / "journal.sqlite")[-1].digest
    for name in files():
        folder = tmp_path / name
        shutil.copytree(trained, folder)
        _damage(folder / NAME / "checkpoints" / f"step_{STEPS:06d}" / name, "truncated")
        mark = json.loads((folder / ".server" / "current.json").read_text())
        assert mark["running"]
        log = tmp_path / f"{name}.log"
        with serving(folder, log) as server:
            until(lambda server=server: server.state() == "ROLLING", what=f"resuming with a damaged {name}")
            now = server.status() or {}
            assert now["step"] == STEPS, name
            assert now["warnings"] == [], now["warnings"]
            said = log.read_text()
            assert "is damaged" in said, said
            assert name in said, said
            assert f"re-applying the batch of step {STEPS}" in said, said
            assert journal_read.step_digest(folder / NAME / "journal.sqlite", STEPS) == wanted
            server.kill()
        shutil.rmtree(folder)


@pytest.mark.slow
def test_with_the_two_newest_damaged_the_third_leads_on_exactly(trained, tmp_path):
    wanted = journal_read.steps(trained / NAME / "journal.sqlite")[-1].digest
    folder = tmp_path / "two"
    shutil.copytree(trained, folder)
    for step in (STEPS, STEPS - 1):
        _damage(folder / NAME / "checkpoints" / f"step_{step:06d}" / "model.safetensors", "flipped")
    log = tmp_path / "log"
    with serving(folder, log) as server:
        until(lambda: server.state() == "ROLLING", what="resuming from the third")
        now = server.status() or {}
        assert (now["step"], now["warnings"]) == (STEPS, [])
        server.kill()
    said = log.read_text()
    assert said.count("is damaged") == 2, said
    assert [f"re-applying the batch of step {step}" in said for step in (1, 2, 3)] == [False, True, True], said
    assert journal_read.step_digest(folder / NAME / "journal.sqlite", STEPS) == wanted


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_retention_holds_across_five_resumes_of_a_killed_server(tmp_path):
    job = small_job(NAME, groups=1, repeat=2, steps=99, save_freq=1)
    job.config.checkpoint.keep_last, job.config.checkpoint.keep_best = 2, 1
    store = CheckpointStore(tmp_path / "server" / NAME / "checkpoints", 2, 1)
    metrics: dict[int, float] = {}
    for resumed in range(6):
        with serving(tmp_path / "server", tmp_path / "log") as server:
            with SwarmClient(server.url, verbose=False) as client:
                client.auto_sync_train_config_and_start_engine(job)
                for step in (2 * resumed + 1, 2 * resumed + 2):
                    play(client, step, best=step == 3)
                    until(lambda step=step: (server.status() or {})["checkpoint"]["step"] == step, what="its save")
                    metrics[step] = (server.status() or {})["metrics"]["reward/mean"]
            server.kill()
        kept = [c.step for c in store.all()]
        newest = 2 * resumed + 2
        best = max(metrics, key=lambda step: (metrics[step], step))
        assert kept == sorted({newest - 1, newest, best}), (kept, metrics)
    assert best == 3


def test_a_run_whose_every_checkpoint_is_damaged_says_what_is_missing_and_invents_nothing(trained, tmp_path):
    folder = tmp_path / "all"
    shutil.copytree(trained, folder)
    for checkpoint in (folder / NAME / "checkpoints").glob("step_*"):
        _damage(checkpoint / "model.safetensors", "truncated")
    with serving(folder, tmp_path / "log") as server:
        until(lambda: server.state() not in ("OFFLINE", "BOOTING"), what="a verdict")
        now = server.status() or {}
    assert now["state"] == "FAILED", now
    assert "no longer holds the batch" in now["failure"]
    assert "Restore a later checkpoint" in now["failure"]


def _damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "truncated":
        del raw[len(raw) // 2 :]
    else:
        raw[len(raw) // 2] ^= 0x10
    path.write_bytes(raw)
