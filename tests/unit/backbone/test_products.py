"""Matrix products by numpy: the same numbers as torch's, the same bits each time, and only where they are faster and sound."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from threadpoolctl import ThreadpoolController, threadpool_limits

from ajet.backbone.embedded import products
from ajet.backbone.embedded.net import digest, load_net
from ajet.backbone.embedded.trainer import Trainer
from ajet.default_config.schema import AlgorithmConfig, TrainerConfig
from ajet.trajectory.batch import TrainBatch
from tests.unit.backbone.one_call_one_forward import conversations, merged
from tests.unit.backbone.test_embedded_trainer import CPU
from tests.unit.backbone.test_merging import compare


@pytest.fixture
def numpys(monkeypatch: pytest.MonkeyPatch):
    """Take numpy's, whatever the processor; how often is counted."""
    taken: list[int] = []
    plain = products._Linear.apply

    def counted(*args):
        taken.append(1)
        return plain(*args)

    monkeypatch.setattr(products, "by_numpy", lambda: True)
    monkeypatch.setattr(products._Linear, "apply", counted)
    with threadpool_limits(1, user_api="blas"):
        yield taken


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 5, 3), (130, 96, 449)])
def test_value_and_gradients_are_torchs(numpys, sizes, bias):
    n, i, o = sizes
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        torch.manual_seed(n)
        x = torch.randn(i, n, dtype=dtype).t().requires_grad_()  # not contiguous
        w = torch.randn(o, i, dtype=dtype, requires_grad=True)
        b = torch.randn(o, dtype=dtype, requires_grad=True) if bias else None
        leaves = [t for t in (x, w, b) if t is not None]
        grad = torch.randn(o, n, dtype=dtype).t()
        ours, torchs = products.linear(x, w, b), F.linear(x, w, b)
        pairs = [
            (ours, torchs),
            *zip(torch.autograd.grad(ours, leaves, grad), torch.autograd.grad(torchs, leaves, grad), strict=True),
        ]
        for a, e in pairs:
            assert a.dtype == e.dtype == dtype
            assert (a - e).norm() <= limit * (1 + e.norm())
    assert len(numpys) == 2


def test_a_gradient_that_nobody_wants_is_not_computed(numpys, monkeypatch):
    made: list[int] = []
    plain = products._product
    monkeypatch.setattr(products, "_product", lambda a, b: made.append(1) or plain(a, b))
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(2, 3)
    (to_x,) = torch.autograd.grad(products.linear(x, w).sum(), [x])
    assert torch.allclose(to_x, w.sum(0).expand(4, 3))
    assert len(made) == 2


@pytest.mark.parametrize("loss", ["vanilla", "gspo"])
def test_merged_loss_and_gradient_by_numpy_are_those_of_one_forward_per_call(qwen2_dir, numpys, loss):
    config = TrainerConfig(algorithm=AlgorithmConfig(policy_loss=loss, entropy_coeff=0.3), use_kl_loss=False)
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        for lanes in (1, 2):
            assert max(compare(qwen2_dir, dtype, config, lanes=lanes)) < limit
    assert numpys


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_step_by_numpy_is_the_same_to_the_bit(qwen2_dir, numpys, lanes):
    rows = merged(conversations(3), 3)
    found = set()
    for _ in range(5):
        net = load_net(qwen2_dir, CPU, torch.float32)
        trainer = Trainer(net, TrainerConfig(use_kl_loss=False), lambda net=net: net, CPU, lanes=lanes)
        for step in (1, 2):
            trainer.train_step(TrainBatch(step, rows))
        found.add(digest(net))
    assert len(found) == 1
    assert numpys


AMD, INTEL = "vendor_id\t: AuthenticAMD\nflags\t: avx512f\n", "vendor_id\t: GenuineIntel\nflags\t: avx512f\n"


@pytest.mark.parametrize(
    ("cpuinfo", "libraries", "expected"),
    [
        (AMD, [("SkylakeX", "0.3.31.188.0")], True),
        (AMD, [("SkylakeX", "0.3.30")], True),
        (AMD, [("SkylakeX", "0.3.27")], False),
        (AMD, [("SkylakeX", None)], False),
        (AMD, [("SkylakeX", "0.3.dev")], False),
        (AMD, [("SkylakeX", "0.3.31", "openmp")], False),
        (AMD, [("Haswell", "0.3.31")], False),
        (AMD, [("SkylakeX", "0.3.31"), ("Haswell", "0.3.31")], False),
        (AMD, [], False),
        (INTEL, [("SkylakeX", "0.3.31")], False),
        ("processor\t: 0\n", [("SkylakeX", "0.3.31")], False),
        (None, [("SkylakeX", "0.3.31")], False),
    ],
)
def test_numpys_are_taken_where_they_are_faster_and_sound(tmp_path, monkeypatch, cpuinfo, libraries, expected):
    limits = []
    selected = SimpleNamespace(
        lib_controllers=[
            SimpleNamespace(architecture=a, version=v, threading_layer=(*layer, "pthreads")[0])
            for a, v, *layer in libraries
        ],
        limit=lambda **given: limits.append(given),
    )
    monkeypatch.setattr(products, "ThreadpoolController", lambda: SimpleNamespace(select=lambda **_: selected))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    file = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        file.write_text(cpuinfo)
    assert products.by_numpy.__wrapped__(file) is expected
    assert limits == ([{"limits": 1}] if expected else [])


def test_the_library_that_is_asked_about_is_numpys_own():
    (own,) = ThreadpoolController().select(filepath=products._numpys()).info()
    assert own["internal_api"] == "openblas"


def test_what_is_not_finite_is_no_warning(numpys, recwarn):
    x = torch.tensor([[float("inf"), 1.0]], requires_grad=True)
    products.linear(x, torch.tensor([[0.0, 1.0]])).sum().backward()
    assert not recwarn.list
