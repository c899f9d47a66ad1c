"""Try an agent against the model in training, and train nothing by it.

    ajet-swarm start
    python tutorial/swarm_clients/auto_train.py      # somebody trains
    python tutorial/swarm_clients/look.py            # and you look

A DebugSwarmClient does all that a SwarmClient does, but aborts every episode: the result is checked and shown. Nobody
waits for it: it has no share and no say in updates.
"""

from ajet import DebugSwarmClient
from tutorial.swarm_clients.agent import arguments, execute_agent, tasks


def main() -> None:
    args = arguments(episodes=2)
    client = DebugSwarmClient(args.swarm_url)
    client.wait_until(["ROLLING", "UPDATING"])
    for task in tasks(args.episodes):
        episode, api = client.begin_episode(task=task)
        output = execute_agent(task, api)
        calls = client.get_episode(episode)["calls"]
        print(f"said {calls[0]['message']['content']!r}, reward {output.reward:.2f}", flush=True)
        client.end_episode(task, episode, output)  # aborts
        print("fate:", client.get_episode(episode)["fate"], flush=True)


if __name__ == "__main__":
    main()
