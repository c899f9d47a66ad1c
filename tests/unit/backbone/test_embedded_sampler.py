"""The sampler against a full transformers forward, and what it promises about replies."""

import random
import sys
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ajet.backbone.embedded import native
from ajet.backbone.embedded.compiled import kernel
from ajet.backbone.embedded.net import Qwen2Net, load_net
from ajet.backbone.embedded.one_pass import OnePassSampler
from ajet.backbone.embedded.paged import BLOCK, PagedKV
from ajet.backbone.embedded.sampler import Sampler
from ajet.backbone.models import model_dir
from ajet.backbone.protocol import Chunk, Sampling
from ajet.default_config.schema import BUILTIN_MODEL
from ajet.schema.errors import ContextLengthExceeded, InvalidRequest
from tests.unit.backbone import tiny
from tests.unit.backbone.tiny import prompt

CPU = torch.device("cpu")
PACKED = False
"""Whether samplers here get the cache that a GPU gets."""


@pytest.fixture(autouse=True, params=["native", "torch", "packed"])
def _every_way(request, monkeypatch):
    """Every claim holds with the compiled loops, without, and over a packed cache."""
    monkeypatch.setattr(sys.modules[__name__], "PACKED", request.param == "packed")
    monkeypatch.setenv("AJET_NATIVE", "1" if request.param == "native" else "0")
    kernel.cache_clear()
    if request.param == "native" and kernel() is None:
        pytest.skip("no C compiler")
    yield
    kernel.cache_clear()


def make_sampler(directory, blocks=400, max_seqs=16, max_len=300, seed=0):
    net = load_net(directory, CPU, torch.float32)
    forward = net.native()
    kv = PagedKV(
        net.kv_layers,
        blocks,
        CPU,
        torch.float32,
        tiled=forward is not None,
        packed=PACKED and isinstance(net, Qwen2Net),
    )
    make = Sampler if forward is None else partial(OnePassSampler, forward)
    sampler = make(
        net.extend,
        kv,
        vocab=tiny.VOCAB,
        max_seqs=max_seqs,
        max_len=max_len,
        eos=frozenset({tiny.EOS}),
        seed=seed,
        version=0,
    )
    return sampler, net, kv


def drain(sampler, until=None) -> dict[int, list[Chunk]]:
    chunks: dict[int, list[Chunk]] = {}
    for _ in range(5000):
        if not sampler.busy or (until and until(chunks)):
            return chunks
        for key, chunk in sampler.tick():
            chunks.setdefault(key, []).append(chunk)
    raise AssertionError("the sampler did not come to an end")


def one(sampler, ids, **kwargs) -> Chunk:
    sampler.submit(0, ids, Sampling(**kwargs))
    return drain(sampler)[0][-1]


@torch.no_grad()
def reference_logprobs(directory, ids, chunk, temperature=1.0, net=None):
    """By transformers, one full forward (with the weights of ``net`` where given)."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    if net is not None:
        model.load_state_dict(net.state_dict(), strict=False)
    logits = model(torch.tensor([ids + chunk.ids])).logits[0, len(ids) - 1 : -1] / temperature
    return logits.log_softmax(-1)


def assert_faithful(directory, ids, chunk, temperature=1.0, net=None):
    expected = reference_logprobs(directory, ids, chunk, temperature, net)
    found = expected.gather(1, torch.tensor(chunk.ids)[:, None])[:, 0]
    np.testing.assert_allclose(chunk.logprobs, found.numpy(), atol=1e-4)
    for step, alternatives in enumerate(chunk.top_logprobs):
        best = expected[step].topk(len(alternatives))
        assert [i for i, _ in alternatives] == best.indices.tolist()
        np.testing.assert_allclose([p for _, p in alternatives], best.values.numpy(), atol=1e-4)


ALL_KINDS = pytest.mark.parametrize("kind", ["qwen2_dir", "untied_dir", "llama_dir", "gpt2_dir"])


@ALL_KINDS
def test_logprobs_equal_a_transformers_forward_for_a_mix_of_lengths_and_temperatures(kind, request):
    directory = request.getfixturevalue(kind)
    sampler, _, _ = make_sampler(directory, max_seqs=5)
    asked = {}
    for key in range(12):
        asked[key] = (prompt(key, 3 + 11 * key % 70), 0.5 + 0.25 * (key % 4))
        sampler.submit(
            key,
            asked[key][0],
            Sampling(temperature=asked[key][1], max_tokens=5 + 3 * key, seed=key, top_logprobs=key % 3),
        )
    for key, chunks in drain(sampler).items():
        assert_faithful(directory, asked[key][0], chunks[0], asked[key][1])
        assert len(chunks[0].top_logprobs) == (len(chunks[0].ids) if key % 3 else 0)


@ALL_KINDS
def test_logprobs_stay_right_after_prefix_reuse(kind, request):
    directory = request.getfixturevalue(kind)
    sampler, _, _ = make_sampler(directory)
    ids = prompt(1, 70)
    first = one(sampler, ids, max_tokens=40, ignore_eos=True)
    longer = ids + first.ids + prompt(2, 9)
    second = one(sampler, longer, max_tokens=10, top_logprobs=2, ignore_eos=True)
    assert sampler.counters["reused_tokens"] == (len(ids) + 39) // BLOCK * BLOCK
    assert_faithful(directory, longer, second)
    branch = ids[:50] + prompt(3, 30)
    assert_faithful(directory, branch, one(sampler, branch, max_tokens=10))
    assert sampler.counters["reused_tokens"] == (len(ids) + 39) // BLOCK * BLOCK + 48


def test_logprobs_stay_right_after_eviction_and_preemption(qwen2_dir):
    sampler, _, kv = make_sampler(qwen2_dir, blocks=22, max_len=200)
    prompts = {key: prompt(key, 20 + key * 7) for key in range(9)}
    for turn in range(2):
        for key, ids in prompts.items():
            sampler.submit(key, ids, Sampling(max_tokens=60, seed=key, ignore_eos=True))
        for key, chunks in drain(sampler).items():
            assert_faithful(qwen2_dir, prompts[key], chunks[0])
            assert len(chunks[0].ids) == 60, turn
    assert sampler.counters["preempted"] > 0
    assert kv.available == kv.blocks - 1, "blocks leaked"


def test_a_weight_update_in_the_middle_of_a_reply_goes_on_under_the_new_version(qwen2_dir):
    sampler, net, _ = make_sampler(qwen2_dir)
    ids = prompt(5, 33)
    sampler.submit(1, ids, Sampling(max_tokens=20, ignore_eos=True, top_logprobs=1))
    for _ in range(8):
        assert sampler.tick() == []
    with torch.no_grad():
        for weight in net.parameters().values():
            weight.mul_(1.05)
    sampler.refresh(1)
    (chunk,) = drain(sampler)[1]
    assert chunk.versions == [0] * (20 - chunk.versions.count(1)) + [1] * chunk.versions.count(1)
    assert 0 < chunk.versions.count(1) < 20
    old, new = reference_logprobs(qwen2_dir, ids, chunk), reference_logprobs(qwen2_dir, ids, chunk, net=net)
    for t, (token, logprob, version) in enumerate(zip(chunk.ids, chunk.logprobs, chunk.versions, strict=True)):
        assert logprob == pytest.approx(float((new if version else old)[t, token]), abs=1e-4)


def test_nothing_stale_is_reused_after_a_weight_update(qwen2_dir):
    sampler, net, _ = make_sampler(qwen2_dir)
    ids = prompt(6, 64)
    one(sampler, ids, max_tokens=4)
    with torch.no_grad():
        net.parameters()["0.qkv"].mul_(-1)
    sampler.refresh(1)
    chunk = one(sampler, ids, max_tokens=4)
    assert chunk.versions == [1] * len(chunk.ids)
    assert sampler.counters["reused_tokens"] == 0
    assert_faithful(qwen2_dir, ids, chunk, net=net)


def test_a_long_prompt_is_computed_in_portions(qwen2_dir):
    sampler, _, _ = make_sampler(qwen2_dir)
    sampler._pass_tokens = 32
    ids = prompt(7, 150)
    assert_faithful(qwen2_dir, ids, one(sampler, ids, max_tokens=3))


def test_prompts_that_share_a_long_beginning_compute_it_once(qwen2_dir):
    sampler, _, _ = make_sampler(qwen2_dir)
    shared = prompt(8, 128)
    prompts = {key: shared + prompt(key, 10) for key in range(8)}
    for key, ids in prompts.items():
        sampler.submit(key, ids, Sampling(max_tokens=4, seed=key))
    for key, chunks in drain(sampler).items():
        assert_faithful(qwen2_dir, prompts[key], chunks[0])
    assert sampler.counters["prefill_tokens"] == 128 + 8 * 10


def test_prompts_of_one_pass_share_the_blocks_it_is_going_to_fill(qwen2_dir):
    sampler, net, _ = make_sampler(qwen2_dir)
    common = prompt(1, 2 * BLOCK)
    prompts = {key: common + prompt(key + 2, 5 + key) for key in range(6)}
    for key, ids in prompts.items():
        sampler.submit(key, ids, Sampling(max_tokens=4, ignore_eos=True, top_logprobs=2))
    chunks = drain(sampler)
    if net.native() is not None:  # torch computes a short common beginning more than once
        assert sampler.counters["reused_tokens"] == 5 * len(common)
    for key, ids in prompts.items():
        assert_faithful(qwen2_dir, ids, chunks[key][0])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_a_pass(qwen2_dir, monkeypatch, threads):
    monkeypatch.setattr(native, "_PARALLEL_WORK", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    sampler, _, _ = make_sampler(qwen2_dir)
    prompts = {key: prompt(key, 3 + 17 * key) for key in range(7)}
    for key, ids in prompts.items():
        sampler.submit(key, ids, Sampling(max_tokens=6 + key, ignore_eos=True))
    for key, chunks in drain(sampler).items():
        assert_faithful(qwen2_dir, prompts[key], chunks[0])


def test_heads_that_fill_no_whole_vector_are_sampled_right():
    directory = model_dir(BUILTIN_MODEL)
    sampler, _, _ = make_sampler(directory)
    ids = prompt(5, 60)
    assert_faithful(directory, ids, one(sampler, ids, max_tokens=30, ignore_eos=True))


def test_without_a_compiler_torch_samples(qwen2_dir, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    kernel.cache_clear()
    sampler, net, _ = make_sampler(qwen2_dir)
    assert net.native() is None
    ids = prompt(4, 30)
    assert_faithful(qwen2_dir, ids, one(sampler, ids, max_tokens=8))


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.3), Sampling(temperature=0.8, top_k=5), Sampling(top_p=0.7)]
)
def test_first_tokens_follow_the_softmax_by_chi_square(qwen2_dir, sampling):
    sampler, _, _ = make_sampler(qwen2_dir, max_seqs=64)
    ids, n = prompt(9, 10), 3000
    for key in range(n):
        sampler.submit(key, ids, Sampling(**{**sampling.__dict__, "max_tokens": 1}))
    chunks = drain(sampler)
    counts = Counter(c[0].ids[0] for c in chunks.values())
    logits = reference_logprobs(qwen2_dir, ids, Chunk([3], [0.0], [0]))[0] / sampling.temperature
    p = logits.softmax(-1).double().numpy()
    order = np.argsort(-p)
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    if sampling.top_p < 1:
        p[order[np.searchsorted(np.cumsum(p[order]), sampling.top_p) + 1 :]] = 0
    p /= p.sum()
    assert set(counts) <= set(np.flatnonzero(p))
    big = p * n >= 5
    observed = [counts[i] for i in np.flatnonzero(big)]
    expected = list(p[big] * n)
    if p[~big].sum() > 0:
        observed.append(n - sum(observed))
        expected.append(p[~big].sum() * n)
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(observed) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom), (statistic, freedom)
    for token in set(counts):
        logprob = next(c[0].logprobs[0] for c in chunks.values() if c[0].ids[0] == token)
        assert logprob == pytest.approx(np.log(p[token]), abs=1e-4)


def test_a_seed_gives_the_same_reply_whatever_else_is_sampled(qwen2_dir):
    ids = prompt(10, 21)
    alone = one(make_sampler(qwen2_dir)[0], ids, max_tokens=20, seed=77)
    sampler, _, _ = make_sampler(qwen2_dir, seed=123)
    for key in range(1, 10):
        sampler.submit(key, prompt(key, 5 * key), Sampling(max_tokens=3 * key))
    sampler.submit(0, ids, Sampling(max_tokens=20, seed=77))
    assert drain(sampler)[0][0].ids == alone.ids
    assert one(sampler, ids, max_tokens=20, seed=78).ids != alone.ids


def test_temperature_zero_takes_the_most_probable_token(qwen2_dir):
    sampler, _, _ = make_sampler(qwen2_dir)
    ids = prompt(11, 30)
    chunk = one(sampler, ids, temperature=0.0, max_tokens=12, ignore_eos=True)
    expected = reference_logprobs(qwen2_dir, ids, chunk)
    assert chunk.ids == expected.argmax(-1).tolist()
    assert_faithful(qwen2_dir, ids, chunk)


def test_a_reply_ends_with_its_stop_token_or_at_its_length(qwen2_dir):
    sampler, _, _ = make_sampler(qwen2_dir)
    ids = prompt(12, 10)
    free = one(sampler, ids, max_tokens=30, seed=3, ignore_eos=True)
    assert (len(free.ids), free.finish_reason) == (30, "length")
    stop = next(t for i, t in enumerate(free.ids) if i > 4 and t not in free.ids[:i])
    stopped = one(sampler, ids, max_tokens=30, seed=3, ignore_eos=True, stop_token_ids=(stop,))
    assert stopped.finish_reason == "stop"
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
    full = one(sampler, prompt(13, 295), max_tokens=50, ignore_eos=True)
    assert (len(full.ids), full.finish_reason) == (5, "length")


def test_streamed_chunks_join_to_the_reply(qwen2_dir):
    sampler, _, _ = make_sampler(qwen2_dir)
    ids = prompt(14, 10)
    whole = one(sampler, ids, max_tokens=9, seed=1, top_logprobs=2, ignore_eos=True)
    sampler.submit(5, ids, Sampling(max_tokens=9, seed=1, top_logprobs=2, ignore_eos=True), stream=True)
    chunks = drain(sampler)[5]
    assert [t for c in chunks for t in c.ids] == whole.ids
    np.testing.assert_allclose([p for c in chunks for p in c.logprobs], whole.logprobs, atol=1e-5)
    assert [c.finish_reason for c in chunks] == [None] * 8 + ["length"]
    assert all(len(c.top_logprobs) == 1 for c in chunks)


def test_cancelled_requests_leave_nothing_behind(qwen2_dir):
    sampler, _, kv = make_sampler(qwen2_dir, max_seqs=3)
    for key in range(6):
        sampler.submit(key, prompt(key, 40), Sampling(max_tokens=50, ignore_eos=True))
    sampler.tick()
    for key in (0, 4, 5, 99):
        sampler.cancel(key)
    assert set(drain(sampler)) == {1, 2, 3}
    assert kv.available == kv.blocks - 1
    assert not sampler._by_key


def test_a_random_mix_of_arrivals_cancels_and_updates_never_leaks(qwen2_dir):
    r = random.Random(4)
    sampler, _, kv = make_sampler(qwen2_dir, blocks=40, max_seqs=6)
    done, live, prompts = {}, set(), {}
    for key in range(120):
        base = prompts.get(r.randrange(key)) if key and r.random() < 0.5 else None
        prompts[key] = ((base or [])[: r.randrange(1, 60)] + prompt(key, r.randrange(1, 50)))[:110]
        sampler.submit(key, prompts[key], Sampling(max_tokens=r.randrange(1, 30), seed=key))
        live.add(key)
        for _ in range(r.randrange(4)):
            for k, chunk in sampler.tick():
                done[k] = chunk
                live.discard(k)
        if live and r.random() < 0.2:
            victim = r.choice(sorted(live))
            sampler.cancel(victim)
            live.discard(victim)
        if r.random() < 0.05:
            sampler.refresh(sampler.version + 1)
    done |= {k: c[0] for k, c in drain(sampler).items()}
    assert live <= done.keys()
    assert kv.available == kv.blocks - 1
    for key in sorted(done)[::9]:
        assert_faithful(qwen2_dir, prompts[key], done[key])


def test_impossible_requests_are_refused_with_what_to_do(qwen2_dir):
    sampler, _, _ = make_sampler(qwen2_dir)
    with pytest.raises(ContextLengthExceeded, match="max_model_len"):
        sampler.submit(0, prompt(0, 300), Sampling())
    with pytest.raises(InvalidRequest, match="no tokens"):
        sampler.submit(0, [], Sampling())
    with pytest.raises(InvalidRequest, match="max_tokens"):
        sampler.submit(0, [3], Sampling(max_tokens=0))
    with pytest.raises(InvalidRequest, match="token id 61"):
        sampler.submit(0, [3, 61, 2], Sampling())
    with pytest.raises(InvalidRequest, match="temperature"):
        sampler.submit(0, [3], Sampling(temperature=-1))
    with pytest.raises(InvalidRequest, match="top_p"):
        sampler.submit(0, [3], Sampling(top_p=0))
    assert not sampler.busy


def test_diverged_weights_are_named_as_the_cause(qwen2_dir):
    sampler, net, _ = make_sampler(qwen2_dir)
    with torch.no_grad():
        net.parameters()["norm"].fill_(float("nan"))
    sampler.submit(0, [5, 6], Sampling())
    with pytest.raises(FloatingPointError, match="diverged"):
        drain(sampler)
