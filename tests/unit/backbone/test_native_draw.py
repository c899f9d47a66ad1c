"""Claims about the compiled drawing of tokens: it is torch's, by the same numbers, and several at a time are what one at a time
would have been."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ajet.backbone.embedded import one_pass
from ajet.backbone.embedded.compiled import kernel
from ajet.backbone.embedded.draw import draw
from ajet.backbone.embedded.net import load_net
from ajet.backbone.protocol import Sampling
from tests.unit.backbone.test_embedded_sampler import drain, make_sampler
from tests.unit.backbone.tiny import prompt

pytestmark = pytest.mark.skipif(kernel() is None, reason="no C compiler: torch draws")
ALMOST_ONE = math.nextafter(1.0, 0.0)


@pytest.fixture
def native(qwen2_dir):
    found = load_net(qwen2_dir, torch.device("cpu"), torch.float32).native()
    assert found is not None
    return found


@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 2, 15, 16, 17, 449, 1000]),
    spread=st.sampled_from([0.0, 0.1, 3.0, 50.0]),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 1.7]), min_size=1, max_size=5),
)
def test_it_draws_what_torch_draws(qwen2_dir, seed, vocab, spread, temperatures):
    native = load_net(qwen2_dir, torch.device("cpu"), torch.float32).native()
    assert native is not None
    generator = np.random.default_rng(seed)
    B = len(temperatures)
    logits = torch.from_numpy(generator.normal(0, spread, (B, vocab)).astype(np.float32))
    uniforms = np.array([generator.choice([0.0, generator.random(), ALMOST_ONE]) for _ in range(B)])
    ids, logprobs = native.draw(logits, np.array(temperatures, np.float32), uniforms)
    expected = draw(logits, [Sampling(temperature=t) for t in temperatures], uniforms.tolist())
    for b, temperature in enumerate(temperatures):
        row = (logits[b].double() / (temperature or 1.0)).log_softmax(-1)
        assert abs(logprobs[b] - float(row[ids[b]])) < 1e-5 * max(1.0, spread)
        if ids[b] == expected.ids[b]:
            continue
        # Only where the number falls on the border between the two, as far as float32 can tell.
        assert temperature > 0
        below = row.exp().cumsum(-1)
        low, high = sorted((ids[b], expected.ids[b]))
        assert float(below[high - 1] - below[low]) < 1e-5
        assert abs(float(below[low]) - uniforms[b]) < 1e-5


def test_what_is_impossible_is_never_drawn(native):
    logits = torch.full((3, 40), -300.0)
    logits[:, 17] = 0.0
    for uniform in (0.0, 0.5, ALMOST_ONE):
        ids, logprobs = native.draw(logits, np.ones(3, np.float32), np.full(3, uniform))
        assert ids == [17] * 3
        assert logprobs == [0.0] * 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 38])
def test_logits_that_are_not_finite_are_refused(native, bad, place):
    logits = torch.zeros(2, 39)
    logits[1, place] = bad
    with pytest.raises(FloatingPointError, match="diverged"):
        native.draw(logits, np.ones(2, np.float32), np.zeros(2))


def replies(directory, others, stop=()):
    """Of six plain requests, with ``others`` beside them; and how many calls that took."""
    sampler, _, _ = make_sampler(directory, max_seqs=8)
    for key in range(6):
        asked = Sampling(max_tokens=30 + 5 * key, seed=key, temperature=0.4 * key, stop_token_ids=tuple(stop))
        sampler.submit(key, prompt(key, 3 + 17 * key % 40), asked)
    for key, (sampling, stream) in enumerate(others, 100):
        sampler.submit(key, prompt(key, 12), sampling, stream)
    ticks = 0

    def count(_):
        nonlocal ticks
        ticks += 1
        return False

    found = drain(sampler, count)
    return {key: (c[-1].ids, c[-1].logprobs, c[-1].finish_reason) for key, c in found.items() if key < 100}, ticks


@pytest.mark.parametrize("stop", [(), (5, 9, 13), tuple(range(3, 15))], ids=["no stops", "three", "more than fit"])
@pytest.mark.parametrize(
    "others",
    [
        [(Sampling(max_tokens=60, seed=1), True)],
        [(Sampling(max_tokens=60, seed=1, top_p=0.5), False)],
        [(Sampling(max_tokens=60, seed=1, top_logprobs=3), False)],
        [(Sampling(max_tokens=4, seed=n), n == 2) for n in range(7)],
    ],
    ids=["a reader", "top_p", "top_logprobs", "more than fit"],
)
def test_several_tokens_at_a_time_are_what_one_at_a_time_would_have_been(qwen2_dir, others, stop):
    alone, ticks = replies(qwen2_dir, [], stop)
    beside, more_ticks = replies(qwen2_dir, others, stop)
    assert alone == beside
    assert all(len(ids) == len(logprobs) for ids, logprobs, _ in alone.values())
    if not stop:
        assert ticks < more_ticks / 2
    for ids, _, finish in alone.values():
        assert not set(ids[:-1]) & set(stop)
        assert (ids[-1] in (*stop, 2)) == (finish == "stop")


@pytest.mark.parametrize("tokens", [1, 60, 200])
def test_replies_are_the_same_when_only_some_are_decoded_at_a_time(qwen2_dir, monkeypatch, tokens):
    together, _ = replies(qwen2_dir, [])
    sampler, _, _ = make_sampler(qwen2_dir)
    monkeypatch.setattr(one_pass, "_FRONT_BYTES", tokens * sampler._token_bytes)
    apart, _ = replies(qwen2_dir, [])
    mixed, _ = replies(qwen2_dir, [(Sampling(max_tokens=40, seed=1), True), (Sampling(max_tokens=40, top_k=3), False)])
    assert together == apart == mixed


def test_a_long_reply_lets_others_go_first_after_its_turn(qwen2_dir, monkeypatch):
    sampler, _, _ = make_sampler(qwen2_dir)
    monkeypatch.setattr(one_pass, "_FRONT_BYTES", sampler._token_bytes)
    monkeypatch.setattr(one_pass, "_TURN", 32)
    for key in range(3):
        sampler.submit(key, prompt(key, 20), Sampling(max_tokens=250 if key == 0 else 30, seed=key, ignore_eos=True))
    done: list[int] = []
    while sampler.busy:
        done += [key for key, _ in sampler.tick()]
    assert done == [1, 2, 0]


@pytest.mark.parametrize("common", [(63,), (64, 64, 64, 200, 64, 65, 130, 200), (200, 120, 0, 100, 70, 200, 200, 90)])
def test_who_shares_a_beginning_is_sampled_as_alone_to_the_last_bit(qwen2_dir, common):
    """Its keys are fetched once for all; the tokens, and their log-probs, are the same floats."""
    beginning = prompt(99, 200)
    prompts = [beginning[:n] + prompt(key, 5 + 3 * key) for key, n in enumerate(common)]

    def ask(keys):
        sampler, _, _ = make_sampler(qwen2_dir, max_seqs=8)
        for key in keys:
            sampler.submit(key, prompts[key], Sampling(max_tokens=30, seed=key, ignore_eos=True))
        return {key: (chunks[-1].ids, chunks[-1].logprobs) for key, chunks in drain(sampler).items()}

    alone = {key: found for key in range(len(prompts)) for key, found in ask([key]).items()}
    assert ask(range(len(prompts))) == alone
