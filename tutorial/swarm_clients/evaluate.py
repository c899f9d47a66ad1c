"""Evaluate the policy while it is trained, without taking training's place.

    ajet-swarm start
    python tutorial/swarm_clients/auto_train.py      # trains
    python tutorial/swarm_clients/evaluate.py        # joins the engine that runs, in another shell

Eval episodes are sampled greedily (`rollout.val_kwargs`), recorded, reported in the status and in the next step's metrics
as `eval/…`, and never trained. They have leases of their own, and are sampled where training leaves a place free.
"""

from ajet import SwarmClient
from tutorial.swarm_clients.agent import arguments, execute_agent, tasks


def main() -> None:
    args = arguments(episodes=8)
    client = SwarmClient(args.swarm_url)
    client.wait_until(["ROLLING", "UPDATING", "FINISHED"])
    rewards = []
    for task in tasks(args.episodes):
        task.task_id = f"held-out-{task.task_id}"
        with client.episode(task, episode_type="eval") as episode:
            episode.output = execute_agent(task, episode.api)
            rewards.append(episode.output.reward)
    print(f"policy {client.get_global_step()}: mean reward {sum(rewards) / len(rewards):.3f}", flush=True)
    print(f"reported: {client.get_status()['eval']}", flush=True)


if __name__ == "__main__":
    main()
