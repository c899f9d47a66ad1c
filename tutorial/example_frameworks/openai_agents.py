"""The OpenAI Agents SDK (`openai-agents`).

pip install 'agentjet[frameworks]'
ajet-swarm start                                            # in one shell
python tutorial/example_frameworks/openai_agents.py         # in another
"""

import asyncio

from agents import Agent, MaxTurnsExceeded, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from ajet.envs.arithmetic import Problem, calculate
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from tutorial.example_frameworks.loop import train

set_tracing_disabled(True)  # or every run is reported to api.openai.com


@function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression of whole numbers, such as 12*7."""
    return calculate(expression)  # what it raises becomes words for the model


async def play(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    async with AsyncOpenAI(base_url=api.base_url, api_key=api.api_key) as client:
        # Chat completions, not the SDK's default, the Responses API.
        model = OpenAIChatCompletionsModel(model=api.model, openai_client=client)
        agent = Agent(name="solver", instructions="Use the calculator.", model=model, tools=[calculator])
        try:
            result = await Runner.run(agent, problem.text, max_turns=3)
        except MaxTurnsExceeded:
            return 0.0  # the policy's own doing, so it is a reward
    return problem.reward(result.final_output)


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    return asyncio.run(play(problem, api))


if __name__ == "__main__":
    train("openai-agents", solve)
