"""Train a two-player word game: two players say a word at the same time, until they say the same word.

ajet-swarm start                                        # in one shell
python tutorial/your_own_agent/mind_meld.py             # in another, on any machine
"""

import argparse
import re

import httpx
from openai import OpenAI

from ajet import AgentJetJob, SwarmClient, Task, WorkflowOutput
from ajet.client import PeriodicDrainThreadPoolExecutor

ROUNDS = 3
CONNECTIONS = httpx.Client(timeout=600)  # shared: making a client for each player costs more than a short reply


class Player:
    """Somebody who talks to an OpenAI endpoint and remembers the conversation. Nothing in it knows about training."""

    def __init__(self, base_url: str, api_key: str, model: str) -> None:
        self.llm = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
        self.model = model
        self.messages = [{"role": "system", "content": "Say one word."}]

    def say(self, prompt: str) -> str:
        self.messages.append({"role": "user", "content": prompt})
        reply = self.llm.chat.completions.create(model=self.model, messages=self.messages).choices[0].message
        self.messages.append({"role": "assistant", "content": reply.content or ""})
        return (re.findall(r"[a-z]+[0-9]*", (reply.content or "").lower()) or [""])[-1]  # its last word counts


def play(api) -> WorkflowOutput:
    """One game. Both players are agents of one episode; the tag says which role each trains."""
    ann, bob = (
        Player(a.base_url, a.api_key, a.model) for a in (api.for_agent("Ann", "first"), api.for_agent("Bob", "second"))
    )
    said, reward, turn, prompt_a, prompt_b = set(), 0.0, 0, "Begin.", "Begin."
    for turn in range(1, ROUNDS + 1):
        a, b = ann.say(prompt_a), bob.say(prompt_b)
        if a and a == b and a not in said:  # a word that was said before does not count
            reward = 1.0 - (turn - 1) / ROUNDS
            break
        said |= {a, b}
        prompt_a, prompt_b = f"Partner: {b}. Again.", f"Partner: {a}. Again."
    return WorkflowOutput(reward=reward, is_success=reward > 0, log_metrics={"rounds": turn})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swarm-url", default="http://127.0.0.1:10086", help="the server; its key: AJET_SWARM_KEY")
    parser.add_argument("--steps", type=int, default=20, help="weight updates until it ends")
    args = parser.parse_args()

    job = AgentJetJob(
        experiment_name="mind_meld", model="ajet-tiny-werewolves", n_gpu=0, batch_size=8, num_repeat=8,
        max_env_worker=32, max_prompt_length=128, max_response_length=384, max_model_len=512,
        max_response_length_in_one_turn=12, mini_batch_num=2, lr=5e-4, total_training_steps=args.steps,
    )  # fmt: skip
    job.config.rollout.val_kwargs.temperature = 1.0  # eval games are greedy by default, and would all be alike
    client = SwarmClient(args.swarm_url)
    client.auto_sync_train_config_and_start_engine(job)

    def rollout(task: Task) -> float:
        with client.episode(task) as episode:  # an exception in here aborts the episode: a fault is never a reward
            episode.output = play(episode.api)
        return float(episode.output.reward)

    with PeriodicDrainThreadPoolExecutor(workers=job.batch_size * job.num_repeat, max_parallel=16) as executor:
        number = 0
        while not executor.finished:
            number += 1
            for _ in range(job.num_repeat):  # the episodes of one task form a group and share a baseline
                executor.submit(rollout, Task(task_id=f"game-{number}"))
            client.print_new_steps()  # one line for each step since the last time
    client.print_new_steps()
    client.print_rollout_stat()


if __name__ == "__main__":
    main()
