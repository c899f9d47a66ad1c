"""Two models learn against each other in one game: the wolves' on one server, the seer's on another.

    ajet-swarm start --swarm-port 10086 --exp-dir runs/wolves     # one shell (or one machine) a model
    ajet-swarm start --swarm-port 10087 --exp-dir runs/seer
    python tutorial/two_models/werewolves.py

Each game is one episode on each server. They begin together, and end or are aborted together; each server keeps and
trains only what its own model said. With other models and GPUs only the two jobs change.
"""

import argparse
from pathlib import Path

from ajet import (
    AgentJetJob,
    AjetTaskReader,
    PeriodicDrainThreadPoolExecutor,
    RouterTaskReader,
    SwarmClient,
    Task,
    WorkflowTask,
    begin_episodes,
)
from tutorial.example_werewolves.start import ExampleWerewolves

CONFIG = Path(__file__).parents[1] / "example_werewolves_swarm" / "werewolves.yaml"
ROLES = ("werewolf", "seer")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wolves-url", default="http://127.0.0.1:10086", help="server of the wolves' model")
    parser.add_argument("--seer-url", default="http://127.0.0.1:10087", help="server of the seer's model")
    parser.add_argument("--config", default=str(CONFIG), help="job of both, where nothing else is said below")
    parser.add_argument("--steps", type=int, help="default: the configuration's")
    args = parser.parse_args()

    clients = {"werewolf": SwarmClient(args.wolves_url), "seer": SwarmClient(args.seer_url)}
    jobs = {
        role: AgentJetJob(
            base_yaml_config=args.config, project_name="two-models", experiment_name=role,
            total_training_steps=args.steps,
        )
        for role in ROLES
    }  # fmt: skip
    # Both engines boot at the same time. If one fails, the error names it, and the other is left serving.
    SwarmClient.async_and_start_multi_engine([(clients[role], jobs[role]) for role in ROLES])

    # Both sides are live in every game, each on its own model; everybody else is scripted.
    game = ExampleWerewolves(trainable_targets=ROLES, live="both")

    def rollout(task: Task) -> None:
        # One episode on each server, or none. An exception aborts both: a fault is never a reward.
        with begin_episodes(clients, task) as episodes:
            output = game.play(WorkflowTask(task=task), episodes.apis)
            # The reward is a dict by player; each server takes those of the players who spoke through it.
            episodes.end(output)

    # Groups form by task on each server, so both must agree on how many games a deal gets.
    repeat, parallel = jobs["seer"].num_repeat, min(job.max_env_worker for job in jobs.values())
    tasks = RouterTaskReader("random_dummy", AjetTaskReader(type="random_dummy"))
    with PeriodicDrainThreadPoolExecutor(workers=parallel, max_parallel=parallel) as executor:
        while not executor.finished:  # both models are finished; until then a finished one plays on, untrained
            for task in tasks.generate_training_tasks():
                for _ in range(repeat):
                    executor.submit(rollout, task)
    for role, client in clients.items():
        print(f"{role}: {client.get_engine_status()}, step {client.get_global_step()}")


if __name__ == "__main__":
    main()
