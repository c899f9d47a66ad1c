"""Train a model on what an application's users ask, without touching the application.

    ajet-swarm start                                              # one shell: the model
    python tutorial/passive_client/stand_in.py                    # another: stands in for the model
    python tutorial/passive_client/application.py                 # a third: the application, with another base_url

Each request is answered several times; `judge` compares the answers; the best goes back. Put your own `judge` here: a
rule, a test run, a vote of your users, another model. The same from the shell, with the judge of this file:

    ajet-swarm passive --judge tutorial/passive_client/stand_in.py --config job.yaml
"""

import argparse

from ajet import AgentJetJob
from ajet.passive import Answer, Asked, PassiveClient
from ajet.passive.command import serve


def judge(asked: Asked, answers: list[Answer]) -> list[float]:
    """Users of this application like to hear Player3 accused, in few words. Only differences count."""
    return [("Player3" in answer.text) - 0.02 * len(answer.text.split()) for answer in answers]


def make_job(steps: int) -> AgentJetJob:
    """The built-in model: 8 answers a request, 8 requests a step."""
    job = AgentJetJob(
        experiment_name="passive", model="ajet-tiny-werewolves", n_gpu=0, num_repeat=8, batch_size=8, max_env_worker=64,
        max_model_len=256, max_prompt_length=192, max_response_length=64, max_response_length_in_one_turn=16,
        lr=2e-3, mini_batch_num=2, total_training_steps=steps,
    )  # fmt: skip
    job.config.rollout.temperature = 1.0
    return job


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--swarm-url", default="http://127.0.0.1:10086", help="the server; its key: AJET_SWARM_KEY")
    parser.add_argument("--port", type=int, default=10087, help="where the application finds it")
    parser.add_argument("--steps", type=int, default=1000, help="weight updates; then it serves on, untrained")
    args = parser.parse_args()
    # Requests that arrive while the engine boots wait; once training is finished, the model is served on, untrained.
    serve(PassiveClient(args.swarm_url, judge, job=make_job(args.steps)), port=args.port)


if __name__ == "__main__":
    main()
