"""The fake model behind every gateway: answers at once, in vLLM's shapes, with 100 tokens, their ids and log-probs.

``python -m benchmarks.gateways.upstream PORT WORKLOAD``. ``/v1/chat/completions`` takes messages, as the other gateways send
them; ``/v1/completions`` takes token ids. Both echo the prompt's ids, as ``return_token_ids`` asks of vLLM.
"""

from __future__ import annotations

import asyncio
import sys

import orjson
import uvloop

from benchmarks.gateways.wire import Server
from benchmarks.gateways.workload import Workload


class Answers:
    """Ready-made answers."""

    def __init__(self, workload: Workload) -> None:
        self._chat = [_chat(workload, prompt) for prompt in workload.prompts]
        self._before, self._after = _completion(workload)

    def __call__(self, path: bytes, body: bytes) -> bytes:
        if path == b"/v1/chat/completions":
            # system, then user and assistant in turn: the last one asks.
            return self._chat[(body.count(b'"role"') - 2) // 2]
        if path == b"/v1/completions":
            start = body.index(b'"prompt":[') + 9
            return self._before + body[start : body.index(b"]", start) + 1] + self._after
        if path == b"/v1/models":
            return b'{"object":"list","data":[{"id":"policy","object":"model","created":1,"owned_by":"fake"}]}'
        return b'{"status":"ok"}'


def _usage(prompt: int, reply: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


def _chat(workload: Workload, prompt: list[int]) -> bytes:
    content = [
        {"token": piece, "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, logprob in zip(workload.pieces, workload.reply_logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": workload.reply_text},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": workload.reply_ids,
    }
    return orjson.dumps(
        {
            "id": "chatcmpl-0123456789abcdef",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "policy",
            "choices": [choice],
            "usage": _usage(len(prompt), len(workload.reply_ids)),
            "prompt_token_ids": prompt,
        }
    )


def _completion(workload: Workload) -> tuple[bytes, bytes]:
    """Before and after the prompt's ids."""
    pairs = list(zip(workload.pieces, workload.reply_logprobs, strict=True))
    choice = {
        "index": 0,
        "text": workload.reply_text,
        "logprobs": {
            "text_offset": [sum(map(len, workload.pieces[:i])) for i in range(len(pairs))],
            "token_logprobs": workload.reply_logprobs,
            "tokens": workload.pieces,
            "top_logprobs": [{piece: logprob} for piece, logprob in pairs],
        },
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": workload.reply_ids,
        "prompt_token_ids": "HERE",
    }
    whole = orjson.dumps(
        {
            "id": "cmpl-0123456789abcdef",
            "object": "text_completion",
            "created": 1_700_000_000,
            "model": "policy",
            "choices": [choice],
            "usage": _usage(1000, len(workload.reply_ids)),
        }
    )
    before, _, after = whole.partition(b'"HERE"')
    return before, after


async def serve(port: int, workload: Workload) -> None:
    answers = Answers(workload)
    server = await asyncio.get_running_loop().create_server(lambda: Server(answers), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Workload.load(sys.argv[2])))
