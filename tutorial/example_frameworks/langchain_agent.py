"""LangChain (`langchain-openai`): a model with bound tools.

pip install 'agentjet[frameworks]'
ajet-swarm start                                            # in one shell
python tutorial/example_frameworks/langchain_agent.py       # in another
"""

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from ajet.envs.arithmetic import Problem, calculate
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from tutorial.example_frameworks.loop import train


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression of whole numbers, such as 12*7."""
    try:
        return calculate(expression)
    except ValueError as error:
        return f"error: {error}"


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    # Leave `temperature` and `top_p` out: they follow the job, and the trainer needs to know them.
    model = ChatOpenAI(base_url=api.base_url, api_key=api.api_key, model=api.model).bind_tools([calculator])
    messages: list[BaseMessage] = [HumanMessage(problem.text)]
    for _ in range(3):
        reply = model.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return problem.reward(reply.text)
        # A call with the wrong arguments is the model's mistake: `invoke` raises, and we tell the model instead.
        for call in reply.tool_calls:
            try:
                messages.append(calculator.invoke(call))
            except ValueError as error:
                messages.append(ToolMessage(f"error: {error}", tool_call_id=call["id"]))
    return 0.0


if __name__ == "__main__":
    train("langchain", solve)
