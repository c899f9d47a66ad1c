"""Claims about metrics, events, rewards and folders."""

import asyncio

import pytest

from ajet.default_config.load import job_diff
from ajet.default_config.schema import AjetConfig
from ajet.pool.records import StepDone
from ajet.schema.errors import ConfigError, InvalidRequest
from ajet.schema.task import Task, WorkflowOutput
from ajet.server.events import Events, Signal
from ajet.server.jobs import experiment_folder
from ajet.server.metrics import MetricsFile, ZeroAdvantageWatch
from ajet.server.openapi import document
from ajet.server.rewards import check_result, rewards_by_tag


def test_a_warning_comes_only_after_several_steps_without_any_advantage():
    watch = ZeroAdvantageWatch()
    key = "advantage/wolf/zero_group_share"
    assert [len(watch.see({key: share})) for share in (1.0, 1.0, 1.0, 0.9, 1.0)] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("mean", "std", "words"), [(0.0, 0.0, "reward, 0: all won, or all lost"), (0.5, 0.5, "differ between groups only")]
)
def test_the_warning_says_how_the_games_ended_and_what_helps(mean, std, words):
    watch = ZeroAdvantageWatch()
    metrics = {"advantage/wolf/zero_group_share": 1.0, "reward/wolf/mean": mean, "reward/wolf/std": std}
    metrics["advantage/zero_group_share"] = 1.0  # of all tags together: no tag of its own
    (warning,) = [watch.see(metrics) for _ in range(3)][-1]
    assert words in warning
    assert "running_baseline" in warning


SIDES = [["wolf"], ["seer", "witch"]]


def test_one_number_for_opposed_sides_is_refused_and_for_one_side_taken():
    task, shared = Task(task_id="t"), WorkflowOutput(reward=1.0)
    both = {"w1": "wolf", "s": "seer"}
    with pytest.raises(InvalidRequest, match="wolf against seer") as caught:
        check_result(task, shared, both, None, SIDES)
    assert caught.value.param == "output.reward"
    assert "'wolf': …, 'seer': …" in str(caught.value)
    check_result(task, shared, {"s": "seer", "i": "witch"}, None, SIDES)
    check_result(task, shared, both, None)
    check_result(task, WorkflowOutput(reward={"wolf": 1.0, "seer": 0.0}), both, None, SIDES)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "/etc", "x" * 200, "a\0b", "-flag"])
def test_names_that_are_no_plain_folders_are_refused(name, tmp_path):
    with pytest.raises(ConfigError):
        experiment_folder(AjetConfig(experiment_name=name), tmp_path)


def test_a_job_difference_names_the_leaves():
    assert job_diff({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == {"a.c": [2, 3]}


def test_a_name_wins_over_a_tag_in_a_reward():
    output = WorkflowOutput(reward={"w1": 1.0, "wolf": 0.0})
    assert rewards_by_tag(output, {"w1": "wolf", "w2": "wolf"}) == {"wolf": (0.0, 1.0)}
    assert rewards_by_tag(WorkflowOutput(reward=2.0), {"w1": "wolf", "s": "seer"}) == {"seer": (2.0,), "wolf": (2.0,)}


def test_metrics_missed_by_a_full_disk_are_made_up_for(tmp_path):
    steps = [StepDone(i, "d", {"x": float(i)}, {}, 0.0) for i in (1, 2)]
    file = MetricsFile(tmp_path / "folder" / "metrics.jsonl")
    with pytest.raises(OSError, match="No such file"):
        file.append(steps[0])
    assert file.dirty
    (tmp_path / "folder").mkdir()
    file.rewrite(steps)
    assert len(file.path.read_text().splitlines()) == 2
    assert not file.dirty


async def test_a_signal_wakes_all_who_wait_and_a_deadline_ends_the_rest():
    signal, state = Signal(), []
    waits = [asyncio.create_task(signal.wait_until(lambda: bool(state), 5)) for _ in range(3)]
    await asyncio.sleep(0)
    signal.fire()
    state.append(1)
    signal.fire()
    assert await asyncio.gather(*waits) == [True] * 3
    assert await signal.wait_until(lambda: False, 0.01) is False


async def test_a_slow_listener_loses_the_oldest_and_blocks_nobody():
    events = Events()
    queue = events.listen()
    for i in range(3000):
        events.emit("step", step=i)
    assert queue.qsize() <= 1024
    late = events.listen(after=2990)
    assert [late.get_nowait().data["step"] for _ in range(10)] == list(range(2990, 3000))


def test_the_openapi_document_names_every_route():
    from ajet.server.app import ROUTES

    paths = document(ROUTES, "1")["paths"]
    assert {route.path for route in ROUTES} <= set(paths)
