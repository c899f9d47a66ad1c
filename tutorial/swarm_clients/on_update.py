"""Do something each time the weights are about to change: here, count what was played in between.

    ajet-swarm start
    python tutorial/swarm_clients/on_update.py

The callback is called once for each update, also when the server was restarted in between; what it raises is shown and
ends nothing.
"""

import threading

from ajet import SwarmClient, auto_train_with_dataset
from tutorial.swarm_clients.agent import arguments, execute_agent, small_job, tasks


def main() -> None:
    args = arguments(steps=3)
    client = SwarmClient(args.swarm_url)
    client.auto_sync_train_config_and_start_engine(small_job("on_update", args.steps))

    lock, played, told = threading.Lock(), [0], threading.Semaphore(0)

    def entering_weight_sync(step: int) -> None:  # or without an argument
        with lock:
            count, played[0] = played[0], 0
        print(f"update {step} begins; {count} games since the last one", flush=True)
        told.release()
        if step == 1:
            raise RuntimeError("a bug in a callback is shown, and training goes on")

    client.add_entering_weight_sync_callback(entering_weight_sync)

    def agent(task, api):
        output = execute_agent(task, api)
        with lock:
            played[0] += 1
        return output

    auto_train_with_dataset(tasks(), client, agent, local_grpo_n=2, remote_batch_size=5)
    for _ in range(args.steps):
        told.acquire(timeout=60)  # the last one may come a moment after the last game


if __name__ == "__main__":
    main()
