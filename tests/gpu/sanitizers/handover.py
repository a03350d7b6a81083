"""Runs handovers between warps, for racecheck: python tests/gpu/sanitizers/handover.py WHO.

After a read of a stage that the TMA filled, the stage is released by one lane behind a sync_warp
(WHO is "lane") or by every lane ("warp"). The writer of a line and its reader wait for each other
at a named barrier (WHO is "waits"), or only arrive there ("arrives").
"""

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.gpu.kernel import load

SOURCE = Path(__file__).parents[2] / "cuda" / "kernels_for_tests" / "handover.cuh"
SMEM_BYTES = 640  # of handover::Smem


class Params(ctypes.Structure):
    _fields_ = (("in_", ctypes.c_void_p), ("out", ctypes.c_void_p))


# WHO: (the kernel, its threads)
KERNELS = {
    "lane": ("handover<false>", 64),
    "warp": ("handover<true>", 64),
    "waits": ("exchange<true>", 96),
    "arrives": ("exchange<false>", 96),
}


def compiled(who: str) -> nvrtc.CompiledKernel:
    instance = f"handover::{KERNELS[who][0]}"
    return nvrtc.compile_kernel(SOURCE, instance=instance, defines={}, arch="sm_90a")


def main(who: str) -> None:
    given = torch.arange(128, dtype=torch.float32, device="cuda")
    out = torch.zeros(32, device="cuda")
    load(compiled(who)).launch(
        grid=(1, 1, 1),
        threads=KERNELS[who][1],
        smem_bytes=SMEM_BYTES,
        params=Params(given.data_ptr(), out.data_ptr()),
        stream=torch.cuda.current_stream().cuda_stream,
    )
    assert out.tolist() == [sum(range(lane, 128, 32)) for lane in range(32)]
    print(f"{who}: done")


if __name__ == "__main__":
    main(sys.argv[1])
