"""An application as it was before: it asks a model whom to vote for, through the `openai` SDK, and knows of no training.

    python tutorial/passive_client/application.py --base-url http://127.0.0.1:10087/v1 --requests 160

It prints how often, in each run of 32 requests, the answer was one that its users like.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

SITUATION = (
    "Day 2. You are Player1, villager.\nClaims: none\nAccused: none\nOthers: Player2 Player3 Player5 Player7\nVote."
)
MESSAGES = [{"role": "system", "content": "Play werewolf."}, {"role": "user", "content": SITUATION}]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", default="http://127.0.0.1:10087/v1", help="who stands in for the model")
    parser.add_argument("--requests", type=int, default=160, help="questions to ask")
    args = parser.parse_args()

    with OpenAI(base_url=args.base_url, api_key=os.environ.get("AJET_PASSIVE_KEY", "any"), max_retries=5) as client:

        def ask(_: int) -> str:
            answer = client.chat.completions.create(model="gpt-x", messages=MESSAGES)
            return answer.choices[0].message.content or ""

        with ThreadPoolExecutor(8) as pool:
            for begun in range(0, args.requests, 32):
                answers = list(pool.map(ask, range(min(32, args.requests - begun))))
                liked = sum("Player3" in answer for answer in answers) / len(answers)
                print(f"requests {begun + len(answers)}: {liked:.2f} liked, for example {answers[-1]!r}", flush=True)


if __name__ == "__main__":
    main()
