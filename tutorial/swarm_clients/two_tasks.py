"""Two clients with different tasks train one model, 40:60 ("cocktail training").

    ajet-swarm start
    python tutorial/swarm_clients/two_tasks.py --task digits     # 40% of each batch
    python tutorial/swarm_clients/two_tasks.py --task words      # 60%, in another shell or on another machine

Kill one: the other goes on with whole batches. Start it again: it has its share again.
"""

from ajet import PeriodicDrainThreadPoolExecutor, SwarmClient, SwarmThrottlePolicy, Task
from tutorial.swarm_clients.agent import arguments, execute_agent, small_job, tasks

PART = {"digits": 2, "words": 3}
"""Tasks of each batch of 5. Or leave them to the job: ``job.config.swarm.shares = {"digits": 40, "words": 60}``."""


def main() -> None:
    args = arguments(task="digits", steps=30, silence_s=90.0)
    job = small_job("two_tasks", args.steps)
    job.config.swarm.client_silence_s = args.silence_s

    # The share's name is what several clients with the same task have in common.
    client = SwarmClient(args.swarm_url, share=args.task)
    client.auto_sync_train_config_and_start_engine(job)

    def rollout(task: Task) -> float:
        policy = SwarmThrottlePolicy(
            ratio=1.5,  # play so far ahead of the next batch, and wait then
            expected_batch_size=PART[args.task],
            expected_num_repeat=job.num_repeat,
            current_task_id=task.task_id,
        )
        episode, api = client.begin_episode(throttle_policy=policy)
        output = execute_agent(task, api)
        client.end_episode(task, episode, output)
        return output.reward

    with PeriodicDrainThreadPoolExecutor(max_parallel=8) as executor:
        while not executor.finished:
            for task in tasks(digit=args.task == "digits"):
                for _ in range(job.num_repeat):
                    executor.submit(rollout, task)
                client.print_new_steps()  # the reward of the whole batch, and that of this client's share


if __name__ == "__main__":
    main()
