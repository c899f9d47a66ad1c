"""The whole training loop in one call.

    ajet-swarm start
    python tutorial/swarm_clients/auto_train.py

``execute_agent`` is all that is yours: it plays one task against an OpenAI endpoint and returns its reward. The dataset is
a task reader, or a list of tasks. Episodes are begun, ended, aborted when the agent fails, and run again when the network
did; the call returns when training is finished.
"""

from ajet import AjetTaskReader, RouterTaskReader, SwarmClient, Task, auto_train_with_dataset
from tutorial.swarm_clients.agent import arguments, execute_agent, small_job


def agent(task: Task, api):
    """Tasks of the reader "random_dummy" are numbers only; what they mean is up to the agent."""
    task.main_query = f"{task.metadata['random_number']}. Name a player's number."
    return execute_agent(task, api)


def main() -> None:
    args = arguments(steps=3)
    client = SwarmClient(args.swarm_url)
    client.auto_sync_train_config_and_start_engine(small_job("auto_train", args.steps))
    dataset = RouterTaskReader("random_dummy", AjetTaskReader(type="random_dummy"))
    stats = auto_train_with_dataset(dataset, client, agent, local_grpo_n=2, remote_batch_size=5)
    print(f"{client.get_global_step()} steps; runs: {stats}", flush=True)


if __name__ == "__main__":
    main()
