"""What vLLM samples and says of it is what the embedded sampler would: distributions, log-probs, stops, limits, refusals."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from ajet.backbone.protocol import Chunk, Sampling
from ajet.backbone.vllm.backbone import VllmBackbone
from ajet.schema.errors import ContextLengthExceeded, InvalidRequest
from tests.vllm.models import EOS, VOCAB, distribution, logprob_gap, save_qwen2
from tests.vllm.test_updates import ask, config_for, started

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
PROMPT = [(5 * i) % (VOCAB - 3) + 3 for i in range(20)]
HOWS = {
    "as the model says": Sampling(),
    "cold": Sampling(temperature=0.3),
    "hot": Sampling(temperature=1.7),
    "greedy": Sampling(temperature=0.0),
    "greedy ignores truncation": Sampling(temperature=0.0, top_k=3, top_p=0.5),
    "top_k": Sampling(top_k=5),
    "top_p": Sampling(top_p=0.7),
    "both, warm": Sampling(temperature=1.3, top_k=12, top_p=0.8),
    "top_k beyond the vocabulary": Sampling(top_k=VOCAB + 50),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_qwen2(tmp_path_factory.mktemp("model"), tied=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backbone(source: Path) -> AsyncIterator[VllmBackbone]:
    found = await started(config_for(source, max_num_seqs=64))
    yield found
    await found.close()


def with_(how: Sampling, **changes: object) -> Sampling:
    return Sampling(**{**how.__dict__, **changes})


async def test_log_probs_are_those_of_the_distribution_sampled_from_whatever_else_is_in_the_batch(backbone, source):
    hows = {name: with_(how, max_tokens=16, ignore_eos=True, seed=i) for i, (name, how) in enumerate(HOWS.items())}
    replies = await asyncio.gather(*(ask(backbone, PROMPT, how) for how in hows.values()))
    for (name, how), reply in zip(hows.items(), replies, strict=True):
        gap = logprob_gap(source, PROMPT, reply, how)
        assert gap < 1e-4, (name, gap)


async def test_what_is_sampled_follows_its_log_probs(backbone, source):
    """Chi-square over 1,500 first tokens, for a truncated and a whole distribution."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        logits_V = model(torch.tensor([PROMPT])).logits[0, -1]
    for how in (
        Sampling(max_tokens=1, ignore_eos=True),
        Sampling(temperature=1.3, top_k=12, max_tokens=1, ignore_eos=True),
    ):
        drawn: Counter[int] = Counter()
        for _ in range(15):
            replies = await asyncio.gather(*(ask(backbone, PROMPT, how) for _ in range(100)))
            drawn.update(reply.ids[0] for reply in replies)
        expected = distribution(logits_V, how).exp() * drawn.total()
        assert set(drawn) <= set(expected.nonzero()[:, 0].tolist())
        common = [i for i in range(VOCAB) if expected[i] >= 5]
        rest = (drawn.total() - sum(drawn[i] for i in common), drawn.total() - float(expected[common].sum()))
        cells = [(drawn[i], float(expected[i])) for i in common] + ([rest] if rest[1] >= 5 else [])
        chi2 = sum((seen - e) ** 2 / e for seen, e in cells)
        freedom = len(cells) - 1
        assert chi2 < freedom + 4.5 * math.sqrt(2 * freedom), (chi2, freedom)


async def test_a_reply_ends_with_its_stop_token_or_at_its_limit(backbone):
    free = await ask(backbone, PROMPT, Sampling(seed=3, max_tokens=30, ignore_eos=True))
    assert (len(free.ids), free.finish_reason) == (30, "length")
    stop = free.ids[7]
    stopped = await ask(backbone, PROMPT, Sampling(seed=3, max_tokens=30, ignore_eos=True, stop_token_ids=(stop,)))
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"
    replies = await asyncio.gather(
        *(ask(backbone, PROMPT, Sampling(temperature=2.0, seed=s, max_tokens=350)) for s in range(8))
    )
    ended = [reply for reply in replies if reply.finish_reason == "stop"]
    assert ended
    assert all(reply.ids[-1] == EOS and EOS not in reply.ids[:-1] for reply in ended)
    longest = await ask(backbone, PROMPT, Sampling(max_tokens=10_000, ignore_eos=True))
    assert (len(PROMPT) + len(longest.ids), longest.finish_reason) == (400, "length")


async def test_a_stream_is_the_whole_reply_in_pieces_with_alternatives(backbone):
    how = Sampling(seed=11, max_tokens=20, ignore_eos=True, top_logprobs=4)
    whole = await ask(backbone, PROMPT, how)
    pieces: list[Chunk] = [c async for c in backbone.generate(PROMPT, how, session="e/a", stream=True)]
    assert len(pieces) > 1
    assert [i for piece in pieces for i in piece.ids] == whole.ids
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    for token, logprob, top in zip(whole.ids, whole.logprobs, whole.top_logprobs, strict=True):
        assert len(top) == 4
        assert [p for _, p in top] == sorted((p for _, p in top), reverse=True)
        assert dict(top).get(token, logprob) == logprob
        assert top[0][1] >= logprob


async def test_a_seed_names_a_reply(backbone):
    one, same, other = [
        (await ask(backbone, PROMPT, Sampling(seed=seed, max_tokens=12, ignore_eos=True))).ids for seed in (-1, -1, -2)
    ]
    assert one == same != other


@pytest.mark.parametrize(
    ("prompt", "how", "error", "names"),
    [
        (PROMPT, Sampling(temperature=0.005), InvalidRequest, "raises it to 0.01"),
        (PROMPT, Sampling(temperature=2.5), InvalidRequest, "takes 2 at most"),
        (PROMPT, Sampling(top_logprobs=21), InvalidRequest, "top_logprobs"),
        (PROMPT, Sampling(max_tokens=0), InvalidRequest, "max_tokens"),
        ([], Sampling(), InvalidRequest, "no tokens"),
        ([VOCAB], Sampling(), InvalidRequest, "vocabulary"),
        ([5] * 400, Sampling(), ContextLengthExceeded, "max_model_len is 400"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name_and_serving_goes_on(backbone, prompt, how, error, names):
    with pytest.raises(error, match=names):
        await ask(backbone, prompt, how)
    assert (await ask(backbone, PROMPT, Sampling(max_tokens=1, ignore_eos=True))).finish_reason == "length"


async def test_closing_the_iterator_ends_the_generation(backbone):
    iterator = backbone.generate(PROMPT, Sampling(max_tokens=350, ignore_eos=True), session="a", stream=True)
    await anext(iterator)
    assert (await backbone.stats())["active"] == 1
    await iterator.aclose()
    assert (await backbone.stats())["active"] == 0
