"""The attention of a training pass against the same written out."""

import pytest
import torch

from ajet.backbone.embedded.attention import at_positions, causal


def plain(q, k, v, position_S):
    """Queries at ``position_S`` of the keys."""
    share = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    later = torch.arange(k.shape[2]) > position_S[..., None]
    return score.masked_fill(later, float("-inf")).softmax(-1) @ v


def tensors(B, heads, kv, S, T, D, dtype=torch.float64):
    g = torch.Generator().manual_seed(S * T)
    made = [torch.randn(B, h, n, D, generator=g, dtype=dtype) for h, n in ((heads, S), (kv, T), (kv, T))]
    return [x.requires_grad_() for x in made]


def same(found, expected, inputs, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    ours = torch.autograd.grad((found * weight).sum(), inputs)
    theirs = torch.autograd.grad((expected * weight).sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("heads", "kv"), [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize(("S", "T"), [(7, 7), (7, 8), (1, 40), (30, 70), (300, 900)])
def test_the_ends_of_samples_attend_to_all_before_them(heads, kv, S, T):
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        q, k, v = tensors(2, heads, kv, S, T, 24, dtype)
        same(causal(q, k, v), plain(q, k, v, torch.arange(T - S, T)), (q, k, v), tolerance)


def test_heads_that_are_views_of_one_tensor_are_taken_as_they_are():
    x = torch.randn(2, 40, 8, 16, dtype=torch.float64, requires_grad=True)
    q, k, v = x.transpose(1, 2).split([4, 2, 2], 1)
    same(causal(q[:, :, 15:], k, v), plain(q[:, :, 15:], k, v, torch.arange(15, 40)), (x,), 1e-11)


def test_single_positions_attend_to_all_up_to_them():
    q, k, v = tensors(2, 4, 2, 5, 50, 16)
    position = torch.tensor([[3, 9, 20, 49, 0], [0, 1, 2, 0, 0]])
    same(at_positions(q, k, v, position), plain(q, k, v, position[:, None]), (q, k, v), 1e-11)
