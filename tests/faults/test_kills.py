"""A killed run is the run it would have been: small rounds of :mod:`tests.faults.kills`."""

import asyncio
import os
import signal

import pytest

from tests.faults import kills
from tests.faults.processes import until

FROZEN_S = 3.0
IMPATIENT = [
    "-c",
    "import sys; from ajet.server.main import serve; from ajet.server.settings import Limits; serve(port=int(sys.argv[1]), "
    f"exp_dir=sys.argv[2], limits=Limits(backbone_frozen_s={FROZEN_S}, backoff_s=0.1))",
    "{port}",
]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_killed_three_times_equals_its_journal_trained_in_one_go():
    found = kills.run(seed=1, kills=3, steps=6, groups=6, repeat=4, gap_s=(0.0, 1.0))
    assert found["ok"], found
    assert found["steps"] == found["replayed_steps"] == 6


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_backbone_that_is_killed_in_sampling_and_in_updates_or_hangs_leaves_the_run_what_it_is(tmp_path):
    command = [*IMPATIENT, str(tmp_path / "server")]
    with kills.playing(tmp_path, steps=8, groups=6, repeat=4, seed=2, command=command) as (server, client):
        victims = []
        for moment, blow in [
            ("ROLLING", signal.SIGKILL), ("UPDATING", signal.SIGKILL), ("ROLLING", signal.SIGSTOP),
            ("UPDATING", signal.SIGSTOP),
        ]:  # fmt: skip
            until(lambda moment=moment: server.state() == moment, what=moment, every_s=0.0)
            victims.append(server.backbone())
            os.kill(victims[-1], blow)
            until(lambda: server.backbone() not in (None, victims[-1]), what="another backbone")
        found = kills.finish(tmp_path, server, client)
    assert found["ok"], found
    assert found["steps"] == 8
    assert len(set(victims)) == 4
    log = (tmp_path / "server" / kills.NAME / "server.log").read_text()
    assert log.count("the backbone died") == 4
    assert log.count("no sign of life for") >= 2


@pytest.mark.slow
async def test_a_backbone_killed_in_mid_save_leaves_the_checkpoint_before_it(tmp_path):
    """The save is held, by a pipe in the place of its last file, until the kill."""
    from ajet.backbone import create_backbone
    from ajet.backbone.protocol import BackboneDied
    from ajet.checkpoint import CheckpointStore
    from ajet.default_config.schema import AjetConfig

    config = AjetConfig.model_validate({"trainer_common": {"n_gpus_per_node": 0}, "rollout": {"max_model_len": 256}})
    backbone = create_backbone(config)
    store = CheckpointStore(tmp_path)
    try:
        first = await backbone.start(config.model_dump(mode="json"))
        before = await store.save(1, backbone.save, digest=first.digest)

        async def held(directory: str) -> None:
            os.mkfifo(os.path.join(directory, "trainer_state.json"))
            saving = asyncio.ensure_future(backbone.save(directory))
            await asyncio.to_thread(
                until,
                lambda: os.path.exists(os.path.join(directory, "trainer_state.safetensors")),
                30,
                "most of a save",
            )
            os.kill(backbone.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            await saving

        with pytest.raises(BackboneDied, match="code -9"):
            await store.save(2, held, digest=first.digest)
        assert store.latest_valid() == before
        assert os.listdir(tmp_path) == [before.path.name]
    finally:
        await backbone.close()
    again = create_backbone(config)
    try:
        await again.start(config.model_dump(mode="json"))
        assert (await again.load(str(before.path))).digest == first.digest
    finally:
        await again.close()
