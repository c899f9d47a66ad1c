"""What the scripts beside this one share: two updates of the small model on arithmetic problems, agent by agent.

Each script writes one function, `solve(problem, api)`, in its framework. Everything that trains is here, and it is the same
for all of them: begin an episode, hand its address and key to the agent, end it with a reward, abort it on an exception.
"""

import argparse
from collections.abc import Callable

from ajet import AgentJetJob, PeriodicDrainThreadPoolExecutor, SwarmClient
from ajet.envs.arithmetic import Problem, math_problems
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.task import WorkflowOutput

Reward = float | dict[str, float]
"""One number for whoever spoke, or one for each agent by name."""


def train(name: str, solve: Callable[[Problem, OpenaiBaseUrlAndApiKey], Reward]) -> None:
    """Train with `solve`, which plays one episode against `api` and returns its reward."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--swarm-url", default="http://127.0.0.1:10086", help="the server; its key: AJET_SWARM_KEY")
    parser.add_argument("--steps", type=int, default=2, help="weight updates until it ends")
    args = parser.parse_args()
    job = AgentJetJob(
        experiment_name=f"frameworks-{name}", model="ajet-tiny-tools", n_gpu=0, batch_size=3, num_repeat=4,
        max_env_worker=6, max_model_len=512, max_prompt_length=256, max_response_length=256,
        max_response_length_in_one_turn=32, lr=1e-3, total_training_steps=args.steps,
    )  # fmt: skip
    job.config.rollout.temperature = 1.0
    client = SwarmClient(args.swarm_url)
    client.auto_sync_train_config_and_start_engine(job)

    def rollout(problem: Problem) -> None:
        task = problem.task()
        episode_uuid, api = client.begin_episode(discard_episode_timeout=120, task=task)
        try:
            reward = solve(problem, api)
        except BaseException as error:
            client.abort_episode(episode_uuid, reason=repr(error))  # a fault is never a reward
            raise
        client.end_episode(task, episode_uuid, WorkflowOutput(reward=reward))

    problems = math_problems("train")
    with PeriodicDrainThreadPoolExecutor(job.batch_size * job.num_repeat, job.max_env_worker) as executor:
        while not executor.finished:
            problem = next(problems)
            for _ in range(job.num_repeat):
                executor.submit(rollout, problem)
    print(f"{name}: trained {client.get_global_step()} steps")
