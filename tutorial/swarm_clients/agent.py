"""What the scripts of this folder have in common: a job for the model that ships with AgentJet, and a one-line agent."""

import argparse
from typing import Any

from openai import OpenAI

from ajet import AgentJetJob, OpenaiBaseUrlAndApiKey, Task, WorkflowOutput


def small_job(name: str, steps: int, **options: Any) -> AgentJetJob:
    """The built-in model on a CPU, short replies: a step takes a moment."""
    job = AgentJetJob(
        experiment_name=name, num_repeat=2, max_env_worker=32, n_gpu=0, total_training_steps=steps, lr=1e-4,
        **{"batch_size": 5, **options},
    )  # fmt: skip
    job.config.rollout.max_model_len, job.config.rollout.max_response_length_in_one_turn = 512, 8
    job.config.data.max_prompt_length, job.config.data.max_response_length = 256, 256
    return job


OPTIONS = {
    "steps": "weight updates until it ends",
    "episodes": "games to play",
    "groups": "tasks to play between two updates",
    "rule": "any: the first client that agrees begins an update; all: the last",
    "task": "what this client plays, and so its share: digits or words",
    "silence_s": "seconds without a sign of life after which a client's share is lent to the others",
}


def arguments(**defaults: Any) -> argparse.Namespace:
    """``--swarm-url``, and an option of :data:`OPTIONS` for each default."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--swarm-url", default="http://127.0.0.1:10086", help="the server; its key: AJET_SWARM_KEY")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=OPTIONS[name])
    return parser.parse_args()


def execute_agent(task: Task, api: OpenaiBaseUrlAndApiKey) -> WorkflowOutput:
    """One question, one answer. The reward is 1 where the answer holds what the task asks for, here a digit or none."""
    client = OpenAI(base_url=api.base_url, api_key=api.api_key)
    said = client.chat.completions.create(model=api.model, messages=[{"role": "user", "content": task.main_query}])
    text = said.choices[0].message.content or ""
    solved = any(letter.isdigit() for letter in text) == task.metadata.get("digit", True)
    return WorkflowOutput(reward=float(solved) - 0.01 * len(text), is_success=solved)


def tasks(count: int = 100, digit: bool = True) -> list[Task]:
    """``count`` tasks of one kind."""
    wish = "Name a player's number." if digit else "Say something without a number."
    return [Task(task_id=str(n), main_query=f"{n}. {wish}", metadata={"digit": digit}) for n in range(count)]
