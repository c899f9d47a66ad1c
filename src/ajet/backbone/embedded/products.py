"""``x @ w.T + b`` and its gradients when a model is trained on one CPU thread: by the faster of two libraries.

torch's is MKL, which keeps to AVX2 on processors of other makers than Intel. numpy's is OpenBLAS, which has kernels for
AVX-512 there: about twice as fast. The backbone decides when it starts, and says it in the name of its device, which the run
keeps: another library gives other last bits.

Letters: N tokens, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from threadpoolctl import ThreadpoolController

AVX512 = ("SkylakeX", "Cooperlake", "SapphireRapids")
"""OpenBLAS's names for its kernels that use it."""
SOUND = (0, 3, 30)
"""OpenBLAS from here on; older ones had wrong kernels for newer processors."""


@cache
def by_numpy(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether numpy's products are the faster ones here. If so it also sees to it that they take one thread each."""
    try:
        vendor = cpuinfo.read_text().partition("vendor_id")[2].partition("\n")[0]
    except OSError:
        return False
    if "AMD" not in vendor or not torch.backends.mkl.is_available():
        return False
    own = ThreadpoolController().select(filepath=_numpys())
    if not own.lib_controllers or not all(_fits(each) for each in own.lib_controllers):
        return False
    own.limit(limits=1)  # side by side is what the trainer's lanes are for
    return True


def _numpys() -> list[str]:
    """The libraries that numpy's wheel brings; what others have loaded is nothing to it."""
    beside = Path(np.__file__).resolve().parent.parent / "numpy.libs"
    return [str(each) for each in beside.glob("*openblas*")]


def _fits(library: Any) -> bool:
    numbers = str(library.version).split(".")[:3]
    sound = all(part.isdigit() for part in numbers) and tuple(map(int, numbers)) >= SOUND
    return sound and library.architecture in AVX512 and library.threading_layer == "pthreads"


def taken(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :func:`linear` multiplies such tensors by numpy's."""
    wide = dtype in (torch.float32, torch.float64)
    return wide and device.type == "cpu" and torch.get_num_threads() == 1 and by_numpy()


def linear(x_N_I: torch.Tensor, w_O_I: torch.Tensor, b_O: torch.Tensor | None = None) -> torch.Tensor:
    """``[N, O]``."""
    if taken(x_N_I.device, x_N_I.dtype):
        return _Linear.apply(x_N_I, w_O_I, b_O)
    return F.linear(x_N_I, w_O_I, b_O)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_N_I: torch.Tensor, w_O_I: torch.Tensor, b_O: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x_N_I, w_O_I)
        out = _product(x_N_I, w_O_I.t())
        return out if b_O is None else out.add_(b_O)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        x_N_I, w_O_I = ctx.saved_tensors
        to_x = _product(grad, w_O_I) if ctx.needs_input_grad[0] else None
        to_w = _product(grad.t(), x_N_I) if ctx.needs_input_grad[1] else None
        return to_x, to_w, grad.sum(0) if ctx.needs_input_grad[2] else None


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    with np.errstate(all="ignore"):  # the trainer looks for what is not finite
        np.matmul(a.detach().numpy(), b.detach().numpy(), out=out.numpy())
    return out
