"""AgentScope 2.

pip install 'agentjet[frameworks]'
ajet-swarm start                                            # in one shell
python tutorial/example_frameworks/agentscope_agent.py      # in another
"""

from agentscope.agent import Agent, InjectionConfig, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit

from ajet.envs.arithmetic import Problem, calculate
from ajet.envs.loop import run_shared
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from tutorial.example_frameworks.loop import train

ALLOW = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="a calculator harms nobody")


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression of whole numbers, such as 12*7.

    Args:
        expression: The expression, such as 12*7.
    """
    try:
        return calculate(expression)
    except ValueError as error:
        return f"error: {error}"


async def play(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    model = OpenAIChatModel(
        OpenAICredential(api_key=api.api_key, base_url=api.base_url),
        model=api.model,
        # AgentScope's own retries look like new questions, and each would be sampled and trained. The SDK's below say
        # that they are retries, so the server repeats the answer on record.
        max_retries=0,
        client_kwargs={"max_retries": 5},
    )
    agent = Agent(
        name="solver",
        system_prompt="Use the calculator.",
        model=model,
        toolkit=Toolkit([FunctionTool(calculator, permission=ALLOW)]),
        react_config=ReActConfig(max_iters=3),
        # By default the time of day goes into the conversation; no two episodes of a group would have one prompt.
        injection_config=InjectionConfig(inject_runtime_state=False),
    )
    reply = await agent.reply(UserMsg("user", problem.text))
    return problem.reward(reply.get_text_content())


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    return run_shared(play(problem, api))  # one event loop for all: AgentScope leaves its connections to it


if __name__ == "__main__":
    train("agentscope", solve)
