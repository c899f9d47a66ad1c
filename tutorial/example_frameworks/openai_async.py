"""The `openai` SDK, asyncio: two agents of one model that think at once, each with a reward of its own.

ajet-swarm start                                            # in one shell
python tutorial/example_frameworks/openai_async.py          # in another
"""

import asyncio

from openai import AsyncOpenAI

from ajet.envs.arithmetic import CALCULATOR, Problem
from ajet.envs.arithmetic.problems import use_calculator
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from tutorial.example_frameworks.loop import train


async def one(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    """One agent: it may call the calculator, then it answers."""
    messages: list = [{"role": "user", "content": problem.text}]
    async with AsyncOpenAI(base_url=api.base_url, api_key=api.api_key) as model:
        for _ in range(3):
            reply = await model.chat.completions.create(model=api.model, messages=messages, tools=[CALCULATOR])
            message = reply.choices[0].message
            if not message.tool_calls:
                return problem.reward(message.content)
            messages.append(message)
            for call in message.tool_calls:
                result = use_calculator(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0


async def both(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> dict[str, float]:
    """Ann and Bob answer the same question. `for_agent` says who speaks: name, and the role that shares a baseline."""
    ann, bob = await asyncio.gather(
        one(problem, api.for_agent("Ann", tag="solver")), one(problem, api.for_agent("Bob", tag="solver"))
    )
    return {"Ann": ann, "Bob": bob}


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> dict[str, float]:
    return asyncio.run(both(problem, api))


if __name__ == "__main__":
    train("openai-async", solve)
