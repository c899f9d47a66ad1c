"""Claims about deaths in awkward moments: what counts as progress, what a waiting call is told, what a pool keeps."""

from dataclasses import dataclass, replace

import pytest

from ajet.backbone.protocol import BackboneDied, TrainBatch
from ajet.pool import journal_read
from tests.fakes.backbone import FakeBackbone
from tests.integration.server.conftest import DEADLINE_S, QUICK, job


@dataclass
class Mortal(FakeBackbone):
    """Dies in its training step number ``dies_at``; 0: never."""

    dies_at: int = 0

    async def train_step(self, batch: TrainBatch):
        self.dies_at -= 1
        if self.dies_at == 0:
            raise BackboneDied("killed in an update")
        return await super().train_step(batch)


def test_steps_that_are_applied_again_are_no_progress(serve):
    """Deaths while step 1 is re-applied, and deaths in step 2, in turn: no step is ever finished in between."""
    lives = iter([2, *[1, 2] * 20])
    with serve(make=lambda: Mortal(dies_at=next(lives))) as swarm:
        swarm.start(job(trainer_common__save_freq=9, trainer_common__total_training_steps=9))
        swarm.play_batch()
        swarm.wait_step(1)
        swarm.play_batch()
        found = swarm.wait("FAILED")
        assert "killed in an update" in found["failure"]
        assert len(swarm.backbones) == QUICK.backbone_deaths


def test_a_step_that_is_finished_in_between_forgives_earlier_deaths(serve):
    lives = iter([*[1] * (QUICK.backbone_deaths - 1), 3, *[1] * (QUICK.backbone_deaths - 2), 0])
    with serve(make=lambda: Mortal(dies_at=next(lives))) as swarm:
        swarm.start(job(trainer_common__save_freq=1, trainer_common__total_training_steps=4))
        for step in range(1, 5):
            swarm.play_batch()
            assert swarm.wait_step(step)["state"] != "FAILED"
        swarm.wait("FINISHED")
        assert swarm.status()["last_error"].startswith("The backbone died")


def test_a_call_that_waits_too_long_for_a_restart_gets_a_503_that_says_when_to_ask_again(serve):
    lives = iter([None, *[BackboneDied("no memory")] * 3, None])
    limits = replace(QUICK, backoff_s=1.5, backoff_max_s=1.5, chat_wait_s=0.2)
    with serve(make=lambda: FakeBackbone(start_error=next(lives)), limits=limits) as swarm:
        swarm.start(job())
        begun = swarm.begin()
        swarm.loop.call_soon_threadsafe(swarm.backbone.die)
        swarm.call(lambda: swarm.app.engine.changed.wait_until(lambda: swarm.app.engine.backbone is None, DEADLINE_S))
        headers = {"authorization": f"Bearer {begun['api_key']}"}
        body = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}
        refused = swarm.http.post("/v1/chat/completions", json=body, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert float(refused.headers["retry-after"]) >= 0
        swarm.wait("ROLLING")
        assert swarm.http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        assert swarm.end(begun["episode_id"], "t").status_code == 200


@pytest.mark.parametrize("restarts", [(), (1,), (3,), (1, 2, 3, 5, 6, 7)])
def test_a_pool_in_mid_collection_comes_back_with_its_groups_and_their_order(serve, tmp_path, restarts):
    """The same results in the same order give the same batches, wherever the server was started again in between."""
    results = [("a", 0.0), ("b", 0.5), ("b", 1.0), ("c", 0.1), ("a", 1.0), ("c", 0.2), ("d", 0.3), ("d", 0.4)]
    played = []
    begun = 0
    while begun < len(results):
        until = min((n for n in restarts if n > begun), default=len(results))
        with serve() as swarm:
            if begun == 0:
                swarm.start(job(trainer_common__total_training_steps=9, swarm__max_policy_lag=9))
            swarm.wait("ROLLING")
            swarm.count = 1000 * begun  # request ids of its own: the former ones have their answers already
            for n, (task, reward) in enumerate(results[begun:until], begun):
                played.append(swarm.play(task, reward))
                if n + 1 in (5, 8):
                    swarm.wait_step((5, 8).index(n + 1) + 1)
            found = swarm.status()
            begun = until
    name = dict(zip(played, results, strict=True))
    batches = journal_read.batches_after(tmp_path / "exp" / "journal.sqlite", 0)
    trained = [[name[episode] for _, episode in batch.members] for batch in batches]
    assert trained == [
        [("b", 0.5), ("b", 1.0), ("a", 0.0), ("a", 1.0)],
        [("c", 0.1), ("c", 0.2), ("d", 0.3), ("d", 0.4)],
    ]
    assert found["drops"] == {}
    assert found["pool"]["episodes_finished"] == 0
