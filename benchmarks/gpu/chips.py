"""What a chip can do at most, by its makers' data sheets: dense bfloat16 products, and memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """``flops``: dense bfloat16 floating-point operations a second. ``bandwidth``: bytes a second."""

    name: str
    flops: float
    bandwidth: float
    source: str


CHIPS = (
    Chip("B200", 2250e12, 8.0e12, "NVIDIA DGX B200 datasheet (18 PFLOPS dense FP8 and 64 TB/s for eight)"),
    Chip("H200", 989e12, 4.8e12, "NVIDIA H200 datasheet, SXM (1,979 TFLOPS with sparsity)"),
    Chip("H100 PCIe", 756e12, 2.0e12, "NVIDIA H100 datasheet, PCIe"),
    Chip("H100", 989e12, 3.35e12, "NVIDIA H100 datasheet, SXM (1,979 TFLOPS with sparsity)"),
    Chip("A100-PCIE-40GB", 312e12, 1.555e12, "NVIDIA A100 datasheet"),
    Chip("A100", 312e12, 1.935e12, "NVIDIA A100 80GB datasheet, PCIe (SXM: 2.039 TB/s)"),
    Chip("L40S", 362e12, 0.864e12, "NVIDIA L40S datasheet (733 TFLOPS with sparsity)"),
    Chip("RTX 4090", 165.2e12, 1.008e12, "NVIDIA Ada GPU architecture whitepaper, FP32 accumulation"),
)


def chip_of(name: str) -> Chip | None:
    """The first entry whose name the device's name contains; None for a device that is not in the table."""
    plain = name.lower()
    return next((chip for chip in CHIPS if chip.name.lower() in plain), None)
