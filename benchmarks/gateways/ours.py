"""Our server as the benchmark runs it: everything real but the model, which is called over HTTP or is in the process.

``python -m benchmarks.gateways.ours PORT WORKLOAD EXP_DIR [UPSTREAM_PORT]``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import orjson

from ajet.backbone.protocol import BackboneDied, Chunk, ModelName, Sampling
from ajet.server.main import serve
from ajet.trajectory import ChatRenderer
from benchmarks.gateways.wire import Client, head
from benchmarks.gateways.workload import Workload
from tests.fakes.backbone import FakeBackbone


class HttpSampler(FakeBackbone):
    """A sampler that asks an inference server over kept connections: prompt ids out, reply ids and log-probs in."""

    def __init__(self, port: int) -> None:
        super().__init__(keep=False)
        self._port = port
        self._free: list[Client] = []

    async def generate(
        self, ids: list[int], sampling: Sampling, *, session: str, model: ModelName = "policy", stream: bool = False
    ) -> AsyncIterator[Chunk]:
        body = orjson.dumps(
            {
                "model": model,
                "prompt": ids,
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": sampling.seed,
                "stop_token_ids": sampling.stop_token_ids,
                "logprobs": 0,
                "return_token_ids": True,
            }
        )
        client = self._free.pop() if self._free else await Client.connect(self._port)
        try:
            status, answer = await client.send(head("POST", "/v1/completions", len(body)) + body)
        except BaseException:
            client.close()
            raise
        self._free.append(client)
        if status != 200:
            raise BackboneDied(f"the inference server answered {status}")
        choice: dict[str, Any] = orjson.loads(answer)["choices"][0]
        sampled = choice["token_ids"]
        yield Chunk(
            sampled, choice["logprobs"]["token_logprobs"], [self.version] * len(sampled), [], choice["finish_reason"]
        )


def main() -> None:
    port, workload, exp_dir, *upstream = sys.argv[1:]
    played = Workload.load(workload)
    renderer = ChatRenderer(played.model_dir)
    reply = played.reply_ids

    def backbone(_config: Any) -> FakeBackbone:
        if upstream:
            return HttpSampler(int(upstream[0]))
        return FakeBackbone(keep=False, script=lambda _ids, _sampling, _session: reply)

    serve(port=int(port), exp_dir=exp_dir, backbone_factory=backbone, renderer_factory=lambda _config: renderer)


if __name__ == "__main__":
    main()
