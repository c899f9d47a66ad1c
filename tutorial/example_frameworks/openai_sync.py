"""The `openai` SDK, blocking: a tool loop, streamed.

ajet-swarm start                                            # in one shell
python tutorial/example_frameworks/openai_sync.py           # in another
"""

from openai import OpenAI

from ajet.envs.arithmetic import CALCULATOR, Problem
from ajet.envs.arithmetic.problems import use_calculator
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from tutorial.example_frameworks.loop import train


def solve(problem: Problem, api: OpenaiBaseUrlAndApiKey) -> float:
    messages: list = [{"role": "user", "content": problem.text}]
    # The SDK retries by itself what failed on the way; the server answers a retry with the answer on record.
    with OpenAI(base_url=api.base_url, api_key=api.api_key, max_retries=5) as model:
        for _ in range(3):
            with model.chat.completions.stream(model=api.model, messages=messages, tools=[CALCULATOR]) as stream:
                # Iterate over `stream` to watch the reply grow.
                reply = stream.get_final_completion().choices[0].message
            if not reply.tool_calls:
                return problem.reward(reply.content)
            # Say back exactly what was said: then the episode stays one timeline and costs only what is new.
            messages.append(reply.to_dict())
            for call in reply.tool_calls:
                result = use_calculator(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0


if __name__ == "__main__":
    train("openai-sync", solve)
