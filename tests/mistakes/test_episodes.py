"""Mistakes in episodes, rewards and calls: each a user's script, all against one server."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.faults.processes import Server
from tests.mistakes.scripts import CHAT, CLIENT, POST, START
from tests.mistakes.world import Starter, python, running, script

BEGIN = "episode, api = client.begin_episode()\n"
TASK = 'task = Task(task_id="t")\n'
END = "client.end_episode(task, episode, WorkflowOutput(reward=1.0))\n"
AGENT = 'chat(api.for_agent("P1", tag="werewolf"))\n'

REFUSED = {
    "empty task id": BEGIN + "chat(api)\nclient.end_episode(Task(), episode, WorkflowOutput(reward=1.0))",
    "blank task id": BEGIN + "chat(api)\nclient.end_episode(Task(task_id='  '), episode, WorkflowOutput(reward=1.0))",
    "another task": "episode, api = client.begin_episode(task=Task(task_id='a'))\nchat(api)\n"
    "client.end_episode(Task(task_id='b'), episode, WorkflowOutput(reward=1.0))",
    "no reward": BEGIN + TASK + "chat(api)\nclient.end_episode(task, episode, WorkflowOutput())",
    "unknown tags": BEGIN + TASK + AGENT + "client.end_episode(task, episode, WorkflowOutput(reward={'wolf': 1.0}))",
    "ended twice": BEGIN + TASK + "chat(api)\n" + END + END,
    "aborted": BEGIN + TASK + "client.abort_episode(episode, 'gave up')\n" + END,
    "unknown episode": BEGIN + TASK + END.replace("episode,", "'ep-nonsense',"),
}
RAISED = {
    "reward nan": BEGIN + "WorkflowOutput(reward=float('nan'))",
    "reward text": BEGIN + "WorkflowOutput(reward='good')",
}
CALLED = {
    "prompt too long": "chat(api, 'x' * 300)",
    "logit_bias": "chat(api, logit_bias={'5': 1})",
    "response_format": "chat(api, response_format={'type': 'json_object'})",
    "greedy": "chat(api, temperature=0)",
    "control key": "chat(replace(api, api_key='the-control-key'))",
    "key of another server": "chat(replace(api, api_key=api.api_key[:-4] + '0000'))",
    "key of an ended episode": "chat(api)\n" + TASK + END + "chat(api)",
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_refused_is_one_message(key: str, server: Server, user: Starter, tmp_path: Path) -> None:
    user.runs(script(tmp_path, CLIENT + POST + REFUSED[key]), server.url).shows(key)


@pytest.mark.parametrize("key", RAISED)
def test_a_value_that_is_no_reward_is_named_at_its_line(
    key: str, server: Server, user: Starter, tmp_path: Path
) -> None:
    user.runs(script(tmp_path, CLIENT + RAISED[key]), server.url).shows(key, tracebacks=1)


@pytest.mark.parametrize("key", CALLED)
def test_an_openai_client_shows_our_words(key: str, server: Server, user: Starter, tmp_path: Path) -> None:
    body = CLIENT + CHAT + "from dataclasses import replace\n" + BEGIN + CALLED[key]
    user.runs(script(tmp_path, body), server.url).shows(key, tracebacks=1)


def test_an_episode_without_calls_is_said_to_train_nothing(server: Server, user: Starter, tmp_path: Path) -> None:
    seen = user.runs(script(tmp_path, CLIENT + TASK + (BEGIN + END) * 3 + "sys.exit(3)"), server.url)
    seen.shows("no calls")
    assert seen.code == 3, "it is no error"
    assert seen.output.count("never called") == 1


def test_an_exception_of_the_users_workflow_is_shown_once(server: Server, user: Starter, tmp_path: Path) -> None:
    body = """
    from ajet import PeriodicDrainThreadPoolExecutor

    def rollout(task):
        episode, api = client.begin_episode(task=task)
        return {}["answer"]

    with PeriodicDrainThreadPoolExecutor(workers=8, max_parallel=4) as executor:
        while not executor.finished:
            executor.submit_with_periodic_drain(fn=rollout, task=Task(task_id="t"))
    """
    seen = user.runs(script(tmp_path, CLIENT + textwrap.dedent(body)), server.url)
    seen.shows("error in the workflow", tracebacks=1)
    assert "KeyError: 'answer'" in seen.output
    assert "8 rollouts failed by KeyError" in seen.output


def test_another_job_than_the_running_one_is_a_difference(server: Server, user: Starter, tmp_path: Path) -> None:
    body = (
        CLIENT + "SwarmClient(url).auto_sync_train_config_and_start_engine(AgentJetJob(**{**SMALL, 'num_repeat': 3}))"
    )
    user.runs(script(tmp_path, body), server.url).shows("two jobs")


def test_an_async_client_in_blocking_code_is_pythons_own_word(server: Server, user: Starter, tmp_path: Path) -> None:
    body = (
        START
        + "from ajet import AsyncSwarmClient\nclient = AsyncSwarmClient(url)\nepisode, api = client.begin_episode()"
    )
    user.runs(script(tmp_path, body), server.url).shows("not awaited", tracebacks=1)


def test_an_async_client_in_two_event_loops_is_refused(server: Server, user: Starter, tmp_path: Path) -> None:
    body = START + (
        "import asyncio\nfrom ajet import AsyncSwarmClient\nclient = AsyncSwarmClient(url)\n"
        "asyncio.run(client.get_status())\nasyncio.run(client.get_status())"
    )
    user.runs(script(tmp_path, body), server.url).shows("two event loops")


CTRL_C = {
    "begin": "for n in range(5): print('begun', n); client.begin_episode()",
    "playing": BEGIN + "print('begun 4')\nimport time\ntime.sleep(600)",
}


@pytest.mark.parametrize("where", CTRL_C)
def test_ctrl_c_in_a_script_gives_its_episodes_back(where: str, server: Server, tmp_path: Path) -> None:
    with running(python(script(tmp_path, CLIENT + CTRL_C[where]), server.url), tmp_path) as child:
        child.wait_for("begun 4")
        child.interrupt().shows("ctrl-c in a script")
    status = server.status()
    assert status is not None
    assert status["leases"]["open_train"] == 0
