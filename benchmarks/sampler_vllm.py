"""The vLLM side of ``benchmarks/sampler.py``: a process of its own, in an environment of its own.

Private: started by ``sampler.py`` with the interpreter that has vLLM. Reads one JSON order a line, answers one JSON line.
An order ``{"play": [...], "concurrent": n, "logprobs": bool}`` replays conversations through vLLM's own ``LLMEngine``,
token ids in and out, without a tokenizer, and answers the seconds it took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM talks on standard output
    from vllm import EngineArgs, LLMEngine, SamplingParams, __version__

    engine = LLMEngine.from_engine_args(EngineArgs(**settings))

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    answer(ready=__version__)
    count = 0
    for line in sys.stdin:
        order = json.loads(line)
        engine.reset_prefix_cache()
        started = time.perf_counter()
        replies, count = play(engine, SamplingParams, order, count)
        answer(seconds=time.perf_counter() - started, replies=replies if order["logprobs"] else [])


def play(engine: Any, params: Any, order: dict[str, Any], count: int) -> tuple[list[list[Any]], int]:
    """Closed loop: a conversation's next call follows its last reply; another conversation follows its last call."""
    waiting = list(reversed(order["play"]))
    logprobs = 0 if order["logprobs"] else None
    live: dict[str, tuple[list[int], list[Any], int]] = {}
    replies: list[list[Any]] = []

    def ask(ids: list[int], conversation: list[Any], at: int) -> None:
        nonlocal count
        count += 1
        length = conversation[at][2]
        sampling = params(
            temperature=1.0, max_tokens=length, min_tokens=0, ignore_eos=True, logprobs=logprobs, detokenize=False
        )
        live[str(count)] = ids, conversation, at
        engine.add_request(str(count), {"prompt_token_ids": ids}, sampling)

    while waiting or live:
        while waiting and len(live) < order["concurrent"]:
            conversation = waiting.pop()
            ask(conversation[0][0], conversation, 0)
        for output in engine.step():
            if not output.finished:
                continue
            ids, conversation, at = live.pop(output.request_id)
            reply = output.outputs[0]
            new = list(reply.token_ids)
            if logprobs is not None:
                replies.append([ids, new, [place[i].logprob for i, place in zip(new, reply.logprobs, strict=True)]])
            if at + 1 < len(conversation):
                added, grows, _ = conversation[at + 1]
                ask([*ids, *new, *added] if grows else added, conversation, at + 1)
    return replies, count


if __name__ == "__main__":
    main()
