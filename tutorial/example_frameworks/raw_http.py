"""No SDK at all: `httpx` and the OpenAI wire format. Any language can do this.

ajet-swarm start                                            # in one shell
python tutorial/example_frameworks/raw_http.py              # in another
"""

import uuid

import httpx

from ajet.envs.arithmetic import CALCULATOR, Problem
from ajet.envs.arithmetic.problems import use_calculator
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from tutorial.example_frameworks.loop import train

TRIES = 5


def ask(http: httpx.Client, body: dict) -> dict:
    """One chat call, asked again when the network failed. The same key on each try: the server samples it once."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    for tries_left in reversed(range(TRIES)):
        try:
            answer = http.post("/chat/completions", json=body, headers=headers)
        except httpx.TransportError:
            if not tries_left:
                raise
            continue
        if answer.status_code < 500 or not tries_left:
            answer.raise_for_status()
            return answer.json()["choices"][0]["message"]
    raise AssertionError("the last try returns or raises")


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    messages: list = [{"role": "user", "content": problem.text}]
    head = {"Authorization": f"Bearer {api.api_key}"}
    with httpx.Client(base_url=api.base_url, headers=head, timeout=600) as http:
        for _ in range(3):
            reply = ask(http, {"model": api.model, "messages": messages, "tools": [CALCULATOR]})
            if not reply.get("tool_calls"):
                return problem.reward(reply["content"])
            messages.append(reply)
            for call in reply["tool_calls"]:
                result = use_calculator(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return 0.0


if __name__ == "__main__":
    train("raw-http", solve)
