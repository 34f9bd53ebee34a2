"""Data sheets of GPUs: memory, bandwidth and dense matrix rates, the ceilings of a prediction.

Sources are NVIDIA's public documents. RTX 3090 and A10: "NVIDIA Ampere GA102 GPU Architecture" (appendix A)
and the A10 data sheet; A100: "NVIDIA A100 Tensor Core GPU" data sheet; RTX 4090: "NVIDIA Ada GPU
Architecture" (appendix A); L4 and L40S: their data sheets; H100 and H200: theirs, SXM; RTX 5090: "NVIDIA RTX
Blackwell GPU Architecture" (appendix A). Rates are without sparsity, where a sheet states only those with it
half of them; in bfloat16 they accumulate in float32, in fp8 in float16 where that is faster, as a ceiling has
to. Memory is that of the sheet in GiB, of which driver and desktop take a part. Any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GPUSpec:
    """One data sheet.

    Attributes:
        device_name: pattern of the name that the driver reports.
        bandwidth: of device memory, bytes per second.
        fp32, bf16, fp8: floating-point operations per second of dense products, fp32 without tensor cores;
            fp8 is None below compute capability 8.9.
        sms: multiprocessors.
    """

    name: str
    device_name: str
    memory_gib: int
    bandwidth: float
    fp32: float
    bf16: float
    fp8: float | None
    sms: int
    capability: tuple[int, int]

    @property
    def memory_bytes(self) -> int:
        """Device memory."""
        return self.memory_gib * 2**30


def _spec(
    name: str,
    device_name: str,
    memory_gib: int,
    gbytes_per_s: float,
    tflops: tuple[float, float, float | None],
    sms: int,
    capability: tuple[int, int],
) -> GPUSpec:
    fp32, bf16, fp8 = tflops
    fp8_rate = None if fp8 is None else fp8 * 1e12
    return GPUSpec(
        name, device_name, memory_gib, gbytes_per_s * 1e9, fp32 * 1e12, bf16 * 1e12, fp8_rate, sms, capability
    )


GPU_SPECS = {
    "3090": _spec("RTX 3090", r"NVIDIA GeForce RTX 3090", 24, 936, (35.6, 71.0, None), 82, (8, 6)),
    "4090": _spec("RTX 4090", r"NVIDIA GeForce RTX 4090", 24, 1008, (82.6, 165.2, 660.6), 128, (8, 9)),
    "5090": _spec("RTX 5090", r"NVIDIA GeForce RTX 5090", 32, 1792, (104.8, 209.5, 838.0), 170, (12, 0)),
    "A10": _spec("A10", r"NVIDIA A10", 24, 600, (31.2, 125.0, None), 72, (8, 6)),
    "A100": _spec("A100 80GB", r"NVIDIA A100-SXM4-80GB", 80, 2039, (19.5, 312.0, None), 108, (8, 0)),
    "L4": _spec("L4", r"NVIDIA L4", 24, 300, (30.3, 121.0, 242.5), 58, (8, 9)),
    "L40S": _spec("L40S", r"NVIDIA L40S", 48, 864, (91.6, 362.0, 733.0), 142, (8, 9)),
    "H100": _spec("H100 SXM", r"NVIDIA H100 80GB HBM3", 80, 3350, (67.0, 989.5, 1979.0), 132, (9, 0)),
    "H200": _spec("H200 SXM", r"NVIDIA H200", 141, 4800, (67.0, 989.5, 1979.0), 132, (9, 0)),
}
"""By the names that the command line takes."""


def spec_of_device(device_name: str) -> GPUSpec | None:
    """The data sheet of a GPU by the name that the driver reports; None if it is not in the table."""
    for spec in GPU_SPECS.values():
        if re.fullmatch(spec.device_name, device_name):
            return spec
    return None
