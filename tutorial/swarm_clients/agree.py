"""The clients say when the weights are updated, and not the size of a batch.

    ajet-swarm start
    python tutorial/swarm_clients/agree.py --rule all      # start it twice: the update waits for both
    python tutorial/swarm_clients/agree.py --rule any      # whoever agrees first

An update takes every complete group there is then, and never less than one. A client that died is not waited for.
"""

from ajet import SwarmClient
from ajet.schema.errors import TrainingFinished
from tutorial.swarm_clients.agent import arguments, execute_agent, small_job, tasks

RULES = {
    "any": "rollout_until_any_client_agree_sync_weight",
    "all": "rollout_until_all_clients_agree_sync_weight",
}


def main() -> None:
    args = arguments(rule="all", steps=3, groups=4)
    job = small_job(f"agree_{args.rule}", args.steps, swarm_mode_sample_collection_method=RULES[args.rule])
    client = SwarmClient(args.swarm_url)
    client.auto_sync_train_config_and_start_engine(job)
    try:
        for round_number in range(args.steps):
            for task in tasks(args.groups):
                task.task_id = f"{client.client_id}-{round_number}-{task.task_id}"  # this client's own groups
                for _ in range(job.num_repeat):
                    episode, api = client.begin_episode(task=task)
                    client.end_episode(task, episode, execute_agent(task, api))
            answer = client.agree_sync_weight()
            print(answer["message"], "agreed:", len(answer["agreed"]), flush=True)
            client.get_status(wait_step=answer["step"], wait_s=60)  # the answer comes as soon as the update is done
    except TrainingFinished:
        pass  # the other client was faster
    print(f"{client.get_global_step()} updates", flush=True)


if __name__ == "__main__":
    main()
