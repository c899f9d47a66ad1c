"""Claims about collecting, updating, finishing and resuming, over real HTTP."""

import json

from tests.fakes.backbone import FakeBackbone


def test_three_steps_are_trained_and_then_training_is_finished(swarm, tmp_path):
    swarm.start()
    played = []
    for step in range(1, 4):
        played.append(swarm.play_batch())
        swarm.wait_step(step)
    swarm.wait("FINISHED")
    trained = [[row.episode for row in batch.rows] for batch in swarm.backbone.trained]
    assert trained == played
    refused = swarm.post("/episodes", {"client_id": "c", "request_id": "late", "wait_s": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "training_finished")
    lines = [json.loads(line) for line in (tmp_path / "exp" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["reward/mean"] == 0.5
    assert swarm.status()["checkpoint"]["step"] == 3


def test_tokens_that_the_backbone_rejects_are_counted_for_good(serve):
    with serve(make=lambda: FakeBackbone(metrics={"tokens/rejected": 7.0})) as swarm:
        swarm.start()
        swarm.play_batch()
        swarm.wait_step(1)
        assert swarm.status()["dropped_tokens"] == {"rejected_off_policy": 7}
    with serve() as swarm:
        swarm.wait("ROLLING")
        assert swarm.status()["dropped_tokens"] == {"rejected_off_policy": 7}
