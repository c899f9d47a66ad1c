"""Claims about ``GET /status?top=…``: who plays what, over HTTP."""

import math
import time

from ajet.schema.status import Status
from tests.fakes.backbone import FakeBackbone


def test_activity_names_clients_and_tasks_of_open_and_pooled_episodes(swarm):
    swarm.start()
    swarm.play("deal-1")
    begun = swarm.begin(client_id="laptop", task_id="deal-1", discard_episode_timeout=60)
    swarm.say(begun)
    swarm.begin(client_id="cluster")
    found = swarm.status(top=5)
    activity = found["activity"]
    clients = {client["client_id"]: client for client in activity["clients"]}
    assert set(clients) == {"laptop", "cluster"}
    assert (clients["laptop"]["episodes"], clients["laptop"]["calls"]) == (1, 1)
    assert 0 <= clients["laptop"]["idle_s"] < clients["laptop"]["patience_s"] == 60
    tasks = {task["task_id"]: task for task in activity["tasks"]}
    assert tasks["deal-1"] == {"task_id": "deal-1", "ready": 0, "finished": 1, "needed": 2, "running": 1}
    assert tasks[None]["running"] == 1
    assert abs(found["now"] - time.time()) < 60


def test_activity_is_given_to_those_who_ask_and_bounded(swarm):
    swarm.start()
    for n in range(3):
        swarm.begin(client_id=f"c{n}", task_id=f"t{n}")
    assert swarm.status()["activity"] is None
    activity = swarm.status(top=1)["activity"]
    assert (len(activity["clients"]), activity["clients_total"]) == (1, 3)
    assert (len(activity["tasks"]), activity["tasks_total"]) == (1, 3)
    for wrong in ("101", "-1", "many", "1e1"):
        answer = swarm.get("/status", params={"top": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top")


def test_a_metric_that_is_no_number_leaves_the_status_readable(serve):
    with serve(make=lambda: FakeBackbone(metrics={"actor/loss": math.nan, "actor/norm": math.inf})) as swarm:
        swarm.start()
        swarm.play_batch()
        swarm.wait_step(1)
        found = Status.model_validate(swarm.status())
        assert found.metrics["reward/mean"] == 0.5
        assert "actor/loss" not in found.metrics
        assert swarm.get("/metrics/history").json()["steps"][0]["step"] == 1
