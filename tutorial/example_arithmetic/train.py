"""Train one agent on arithmetic with a calculator tool, or on countdown, and measure it on problems it never trained on.

    ajet-swarm start                                                       # in one shell
    python tutorial/example_arithmetic/train.py --task math                # in another; or --task countdown

On a laptop's CPU this takes a few minutes with the small model that ships inside AgentJet. `--config` with
`math_qwen.yaml` or `countdown_qwen.yaml` trains a real one.
"""

import argparse
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import DefaultHttpxClient, OpenAI

from ajet import AgentJetJob, PeriodicDrainThreadPoolExecutor, SwarmClient
from ajet.envs.arithmetic import CALCULATOR, Problem
from ajet.envs.arithmetic.problems import INSTRUCTIONS, PROBLEMS, use_calculator
from ajet.evaluation.intervals import difference, wilson
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.task import WorkflowOutput

HERE = Path(__file__).parent
TURNS = 3
CONNECTIONS = DefaultHttpxClient()  # one pool for all episodes: a pool of its own costs an episode more than its calls


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey, instructions: str | None = None) -> str | None:
    """The agent: asks the model, serves its calls of the calculator, and returns what it says in the end."""
    tools = {"tools": [CALCULATOR]} if problem.kind == "math" else {}
    messages: list = [{"role": "system", "content": instructions}] if instructions else []
    messages.append({"role": "user", "content": problem.text})
    model = OpenAI(base_url=api.base_url, api_key=api.api_key, http_client=CONNECTIONS)
    for _ in range(TURNS):
        reply = model.chat.completions.create(model=api.model, messages=messages, **tools).choices[0].message
        if not reply.tool_calls:
            return reply.content
        messages.append(reply)
        for call in reply.tool_calls:
            result = use_calculator(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return None  # still calling tools: no answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=sorted(PROBLEMS), default="math", help="what the agent is to solve")
    parser.add_argument("--swarm-url", default="http://127.0.0.1:10086", help="the server; its key: AJET_SWARM_KEY")
    parser.add_argument("--config", help="default: TASK.yaml beside this script")
    parser.add_argument("--steps", type=int, help="default: what the configuration says")
    parser.add_argument("--seed", type=int, default=0, help="of the trainer and of the problems' order")
    parser.add_argument("--instructions", action="store_true", help="tell the model the task; real models need it")
    parser.add_argument("--eval-problems", type=int, default=200, help="held-out ones, before and after training")
    args = parser.parse_args()
    job = AgentJetJob(args.config or HERE / f"{args.task}.yaml", total_training_steps=args.steps)
    job.experiment_name += f"-seed{args.seed}"
    job.config.trainer_common.seed = args.seed
    instructions = INSTRUCTIONS[args.task] if args.instructions else None
    client = SwarmClient(args.swarm_url)
    client.auto_sync_train_config_and_start_engine(job)

    def rollout(problem: Problem, kind: str = "train") -> float:
        with client.episode(problem.task(), episode_type=kind) as episode:  # an exception aborts it
            reward = problem.reward(solve(problem, episode.api, instructions))
            episode.end(WorkflowOutput(reward=reward, is_success=reward == 1.0))
        return reward

    def measure(name: str) -> list[float]:
        problems = itertools.islice(PROBLEMS[args.task]("test", 0), args.eval_problems)
        with ThreadPoolExecutor(job.max_env_worker) as pool:
            rewards = list(pool.map(lambda problem: rollout(problem, "eval"), problems))
        low, high = wilson(sum(rewards) / len(rewards), len(rewards), 1.96)
        print(f"{name}: {sum(rewards) / len(rewards):.3f} of held-out problems solved (95%: {low:.3f} to {high:.3f})")
        return rewards

    before = measure("before training")
    problems = PROBLEMS[args.task]("train", 1 + args.seed)
    with PeriodicDrainThreadPoolExecutor(job.batch_size * job.num_repeat, job.max_env_worker) as executor:
        while not executor.finished:
            problem = next(problems)
            for _ in range(job.num_repeat):
                executor.submit(rollout, problem)
    client.wait_until("FINISHED")
    after = measure("after training")
    gained = difference([(r, 1) for r in before], [(r, 1) for r in after])
    assert gained is not None
    print(f"gained, problem by problem: {gained.value:+.3f} (95%: {gained.low:+.3f} to {gained.high:+.3f})")
    print(json.dumps({"before": sum(before) / len(before), "after": sum(after) / len(after)}))


if __name__ == "__main__":
    main()
