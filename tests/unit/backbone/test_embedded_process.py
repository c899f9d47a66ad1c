"""The worker process through the protocol: concurrency, streaming, cancelling, dying."""

import asyncio
import os
import signal
import sys
import time

import pytest

from ajet.backbone import create_backbone, model_dir
from ajet.backbone.embedded.process import EmbeddedBackbone
from ajet.backbone.protocol import BackboneDied, Patience, Sampling
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError, ContextLengthExceeded, DiskRefused, EngineStateConflict
from ajet.trajectory.batch import TrainBatch
from tests.unit.backbone import tiny
from tests.unit.backbone.tiny import prompt

STUCK_S = 2.5


def config_for(directory, **overrides) -> AjetConfig:
    return AjetConfig(
        model={"path": str(directory)}, rollout={"max_model_len": 200, "max_num_seqs": 8},
        trainer_common={"n_gpus_per_node": 0, "optim": {"lr": 1e-2}, **overrides},
    )  # fmt: skip


@pytest.fixture
async def backbone(qwen2_dir):
    backbone = EmbeddedBackbone()
    await backbone.start(config_for(qwen2_dir).model_dump())
    yield backbone
    await backbone.close()


async def collect(backbone, ids, stream=False, model="policy", **sampling):
    chunks = [c async for c in backbone.generate(ids, Sampling(**sampling), session="e/a", model=model, stream=stream)]
    return chunks if stream else chunks[0]


async def test_a_life_generate_train_save_load(backbone, qwen2_dir, tmp_path):
    replies = await asyncio.gather(
        *(collect(backbone, prompt(i, 5 + i % 40), max_tokens=1 + i % 13, seed=i, ignore_eos=True) for i in range(80))
    )
    assert [len(r.ids) for r in replies] == [1 + i % 13 for i in range(80)]
    streamed = await collect(
        backbone, prompt(7, 12), stream=True, max_tokens=8, seed=7, ignore_eos=True, top_logprobs=2
    )
    assert [t for c in streamed for t in c.ids] == replies[7].ids
    assert len(streamed) > 1
    assert all(isinstance(i, int) and isinstance(p, float) for c in streamed for alt in c.top_logprobs for i, p in alt)

    long = asyncio.create_task(collect(backbone, prompt(1, 10), max_tokens=180, ignore_eos=True))
    first = await backbone.train_step(tiny.make_batch(1))
    assert first.policy_version == 1
    assert set((await long).versions) <= {0, 1}
    after = await collect(backbone, prompt(7, 12), max_tokens=8, seed=7, ignore_eos=True)
    assert after.versions == [1] * 8
    frozen = await collect(backbone, prompt(7, 12), model="frozen", max_tokens=8, seed=7, ignore_eos=True)
    assert frozen.ids == replies[7].ids
    assert frozen.versions == [0] * 8
    await backbone.load_weights(1)
    with pytest.raises(EngineStateConflict):
        await backbone.load_weights(3)
    with pytest.raises(EngineStateConflict):
        await backbone.train_step(tiny.make_batch(5))

    await backbone.save(str(tmp_path))
    second = await backbone.train_step(tiny.make_batch(2))
    info = await backbone.load(str(tmp_path))
    assert (info.policy_version, info.digest) == (1, first.digest)
    assert (await backbone.train_step(tiny.make_batch(2))).digest == second.digest
    stats = await backbone.stats()
    assert stats["active"] == stats["waiting"] == 0
    assert stats["sampled_tokens"] > 500
    with pytest.raises(ContextLengthExceeded):
        await collect(backbone, prompt(0, 250))


async def test_closing_the_iterator_or_cancelling_its_consumer_cancels(backbone):
    iterator = backbone.generate(prompt(1, 5), Sampling(max_tokens=190, ignore_eos=True), session="a", stream=True)
    await anext(iterator)
    await iterator.aclose()
    task = asyncio.create_task(collect(backbone, prompt(1, 5), max_tokens=190, ignore_eos=True))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await collect(backbone, [5], max_tokens=1)
    assert (await backbone.stats())["active"] == 0


async def test_a_killed_worker_fails_every_call_with_the_cause(backbone):
    calls = [asyncio.create_task(collect(backbone, prompt(i, 5), max_tokens=190, ignore_eos=True)) for i in range(4)]
    await backbone.stats()
    os.kill(backbone.pid, signal.SIGKILL)
    died = await asyncio.wait_for(backbone.wait_died(), 60)
    assert "code -9" in str(died)
    for found in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(found, BackboneDied) or found.finish_reason == "length"
    with pytest.raises(BackboneDied, match="code -9"):
        await collect(backbone, [5])


async def test_a_worker_that_is_stopped_is_killed_with_the_cause(qwen2_dir):
    backbone = EmbeddedBackbone(Patience(frozen_s=3.0))
    await backbone.start(config_for(qwen2_dir).model_dump())
    try:
        assert backbone.pid is not None
        os.kill(backbone.pid, signal.SIGSTOP)
        calls = [asyncio.create_task(collect(backbone, prompt(i, 9), max_tokens=150)) for i in range(3)]
        died = await asyncio.wait_for(backbone.wait_died(), 30)
        assert "no sign of life" in str(died)
        for call in calls:
            with pytest.raises(BackboneDied, match="no sign of life"):
                await call
    finally:
        await backbone.close()


async def test_a_worker_that_is_silent_while_it_boots_is_given_more_time(qwen2_dir):
    """As one whose libraries come from a slow disk: here it stands still for twice the limit of later silence."""
    backbone = EmbeddedBackbone(Patience(frozen_s=1.0, boot_s=60.0))
    starting = asyncio.create_task(backbone.start(config_for(qwen2_dir).model_dump()))
    try:
        while backbone.pid is None:  # noqa: ASYNC110  (being spawned: there is no event)
            await asyncio.sleep(0)
        os.kill(backbone.pid, signal.SIGSTOP)
        done, _ = await asyncio.wait([starting], timeout=4.0)
        assert not done
        os.kill(backbone.pid, signal.SIGCONT)
        assert (await asyncio.wait_for(starting, 60)).policy_version == 0
    finally:
        await backbone.close()


async def test_work_that_comes_no_further_is_ended(qwen2_dir):
    backbone = EmbeddedBackbone(Patience(stuck_s=0.5))  # no model is loaded so fast
    with pytest.raises(BackboneDied, match="without coming any further"):
        await backbone.start(config_for(qwen2_dir).model_dump())


async def test_long_work_with_progress_is_no_hang_and_neither_is_idling(qwen2_dir):
    backbone = EmbeddedBackbone()
    await backbone.start(config_for(qwen2_dir).model_dump())
    try:
        await backbone.train_step(tiny.make_batch(1, games=30))  # takes in the libraries
        began = time.monotonic()
        await backbone.train_step(tiny.make_batch(2, games=30))
        games = int(30 * 6 * STUCK_S / (time.monotonic() - began))
        backbone.worker.patience = Patience(frozen_s=30.0, stuck_s=STUCK_S)
        began = time.monotonic()
        await backbone.train_step(tiny.make_batch(3, games=games))
        assert time.monotonic() - began > 1.5 * STUCK_S, "one piece of work, longer than what counts as stuck"
        idle = asyncio.create_task(backbone.wait_died())
        done, _ = await asyncio.wait([idle], timeout=1.5 * STUCK_S)
        assert not done
        idle.cancel()
    finally:
        await backbone.close()


async def test_a_pipe_that_breaks_under_a_call_is_a_death_and_no_bug(backbone, monkeypatch):
    def closed(_data):
        raise RuntimeError("unable to perform operation on a closed transport")  # as uvloop says it

    running = asyncio.create_task(collect(backbone, prompt(1, 10), max_tokens=150, ignore_eos=True))
    await asyncio.sleep(0)
    monkeypatch.setattr(backbone.worker._writer, "write", closed)
    with pytest.raises(BackboneDied, match="pipe"):
        await collect(backbone, prompt(1, 10), max_tokens=3)
    with pytest.raises(BackboneDied, match="pipe"):
        await backbone.stats()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_crash_carries_its_traceback(backbone):
    with pytest.raises(BackboneDied, match=r"(?s)Traceback.*TypeError"):
        await backbone.worker.ask("save", directory=3)


async def test_the_worker_ends_when_the_server_does(qwen2_dir):
    script = f"""
import asyncio, os, signal
from ajet.backbone import create_backbone
from ajet.default_config.schema import AjetConfig
async def main():
    config = AjetConfig(model={{"path": {str(qwen2_dir)!r}}}, trainer_common={{"n_gpus_per_node": 0}})
    backbone = create_backbone(config)
    await backbone.start(config.model_dump())
    print(backbone.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    pid = int((await server.communicate())[0])
    await asyncio.wait_for(_ended(pid), 60)


async def _ended(pid: int) -> None:
    while _running(pid):  # noqa: ASYNC110  (another process: there is no event)
        await asyncio.sleep(0.02)


def _running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_a_save_on_a_refusing_disk_is_refused_and_the_worker_lives(backbone, tmp_path):
    import resource

    soft, hard = resource.prlimit(backbone.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(backbone.pid, resource.RLIMIT_FSIZE, (20_000, hard))
    with pytest.raises(DiskRefused, match="refuses a checkpoint"):
        await backbone.save(str(tmp_path))
    resource.prlimit(backbone.pid, resource.RLIMIT_FSIZE, (soft, hard))
    (tmp_path / "again").mkdir()
    await backbone.save(str(tmp_path / "again"))


async def test_impossible_configurations_are_refused_with_what_to_set(qwen2_dir, tmp_path):
    for config, words in [
        (config_for(tmp_path / "nowhere"), "Set it to a transformers model directory"),
        (config_for("somebody/some-model"), "local Hugging Face cache"),
        (config_for(tmp_path), "no config.json"),
        (config_for(qwen2_dir, n_gpus_per_node=64), "n_gpus_per_node: 0 for the CPU|n_gpus_per_node: 1"),
        (config_for(qwen2_dir, algorithm={"adv_estimator": "gae"}), "critic"),
    ]:
        backbone = create_backbone(config)
        with pytest.raises(ConfigError, match=words):
            await backbone.start(config.model_dump())
        await backbone.close()
    small = config_for(qwen2_dir)
    small.rollout.kv_cache_gib = 1e-6
    backbone = EmbeddedBackbone()
    with pytest.raises(ConfigError, match="kv_cache_gib"):
        await backbone.start(small.model_dump())


async def test_a_model_that_cannot_be_served_rightly_is_refused(tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    MistralForCausalLM(
        MistralConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                      intermediate_size=16, sliding_window=8)
    ).save_pretrained(tmp_path)  # fmt: skip
    backbone = EmbeddedBackbone()
    with pytest.raises(ConfigError, match="sliding window 8"):
        await backbone.start(config_for(tmp_path).model_dump())


def test_importing_the_backbone_imports_no_torch():
    import subprocess

    code = "import sys, ajet.backbone.embedded.process, ajet.checkpoint; assert not {'torch', 'verl', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_directory_is_found_by_path_and_in_the_cache(qwen2_dir, tmp_path, monkeypatch):
    assert model_dir(str(qwen2_dir)) == qwen2_dir.resolve()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    root = tmp_path / "models--a--b"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("abc")
    (root / "snapshots" / "abc").mkdir(parents=True)
    (root / "snapshots" / "abc" / "config.json").write_text("{}")
    assert model_dir("a/b") == root / "snapshots" / "abc"


def test_batches_survive_the_wire():
    from ajet.backbone.embedded import wire

    batch = tiny.make_batch()
    again = TrainBatch.from_wire(wire.decode(wire.encode(batch.to_wire())[4:]))
    for a, b in zip(batch.rows, again.rows, strict=True):
        assert (a.episode, a.agent, a.reward) == (b.episode, b.agent, b.reward)
        for s, t in zip(a.samples, b.samples, strict=True):
            assert (s.ids_T == t.ids_T).all()
            assert (s.trained_T == t.trained_T).all()
            assert (s.logprobs_T == t.logprobs_T).all()
