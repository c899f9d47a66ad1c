"""Train nine-player Werewolves with a swarm server. This file is the whole client: copy it and change the game.

    ajet-swarm start                                              # in one shell
    python tutorial/example_werewolves_swarm/agent_roll.py        # in another, on any machine

It runs on a laptop with the model that ships inside AgentJet. `--config` with the path of `werewolves_7b.yaml`, and a
server on eight GPUs, train a 7B model with the same script.
"""

import argparse
from pathlib import Path
from typing import Any

from ajet.copilot.job import AgentJetJob
from ajet.default_config.ajet_config_schema import AjetTaskReader
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_reader import RouterTaskReader
from ajet.tuner_lib.as_oai_baseurl_apikey import OpenaiBaseUrlAndApiKey
from ajet.tuner_lib.experimental.swarm_client import SwarmClient
from ajet.utils.thread_executors import PeriodicDrainThreadPoolExecutor
from tutorial.example_werewolves.start import ExampleWerewolves

HERE = Path(__file__).parent


def play(task: Task, episode_uuid: str, api: OpenaiBaseUrlAndApiKey, board: dict[str, Any]) -> WorkflowOutput:
    """One game, to its end. Wolves and seer speak through the model in training; the others are scripted.

    `board` stands in the configuration under `env.werewolves`; left out, the nine-player board is played.
    Give `big_external_opponent_llm_name` and `big_external_opponent_llm_url` to let a static model play the others.
    """
    game = ExampleWerewolves(trainable_targets=["werewolf", "seer"], options=board)
    return game.play(WorkflowTask(task=task, episode_uuid=episode_uuid), api)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swarm-url", default="http://127.0.0.1:10086", help="the server; its key: AJET_SWARM_KEY")
    parser.add_argument(
        "--config", default=str(HERE / "werewolves.yaml"), help="the job: model, algorithm, game, steps"
    )
    args = parser.parse_args()

    # What to train, and how. Keywords given here win over the file.
    job = AgentJetJob(base_yaml_config=args.config, algorithm="grpo")

    # The server holds the model; this process needs neither a GPU nor torch. An engine that runs this job is joined.
    client = SwarmClient(args.swarm_url)
    client.auto_sync_train_config_and_start_engine(job)

    def rollout(task: Task) -> float:
        episode_uuid, api = client.begin_episode(discard_episode_timeout=240, task=task)
        try:
            output = play(task, episode_uuid, api, job.config.env.werewolves)
        except BaseException as error:
            client.abort_episode(episode_uuid, reason=repr(error))  # a fault is never a reward
            raise
        client.end_episode(task, episode_uuid, output)
        return output.is_success

    # A task is one deal of the cards; its `num_repeat` episodes form a group that shares a baseline.
    tasks = RouterTaskReader("random_dummy", AjetTaskReader(type="random_dummy"))
    episodes = job.batch_size * job.num_repeat
    with PeriodicDrainThreadPoolExecutor(workers=episodes, max_parallel=job.max_env_worker) as executor:
        while not executor.finished:
            for task in tasks.generate_training_tasks():
                for _ in range(job.num_repeat):
                    executor.submit_with_periodic_drain(fn=rollout, task=task)
                client.print_new_steps()  # one line for each step since the last time
    client.print_new_steps()
    client.print_rollout_stat()


if __name__ == "__main__":
    main()
