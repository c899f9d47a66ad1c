"""Pydantic AI.

pip install 'agentjet[frameworks]'
ajet-swarm start                                            # in one shell
python tutorial/example_frameworks/pydantic_ai_agent.py     # in another
"""

import asyncio

from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelRetry, UsageLimitExceeded, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ajet.envs.arithmetic import Problem, calculate
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from tutorial.example_frameworks.loop import train


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression of whole numbers, such as 12*7."""
    try:
        return calculate(expression)
    except ValueError as error:
        raise ModelRetry(str(error)) from error  # tells the model, which may try again


async def play(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    # A client of its own for each episode: the framework's default one is shared between event loops.
    async with AsyncOpenAI(base_url=api.base_url, api_key=api.api_key) as client:
        model = OpenAIChatModel(api.model, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions="Use the calculator.", tools=[calculator])
        try:
            result = await agent.run(problem.text, usage_limits=UsageLimits(request_limit=3))
        except (UsageLimitExceeded, UnexpectedModelBehavior):
            return 0.0  # too many turns, or nothing that could be read: the policy's own doing, so it is a reward
    return problem.reward(result.output)


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    return asyncio.run(play(problem, api))


if __name__ == "__main__":
    train("pydantic-ai", solve)
