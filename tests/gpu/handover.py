"""A stage that the TMA fills and a warp releases, for racecheck: python tests/gpu/handover.py WHO.

WHO arrives for the warp: "lane", one lane behind a sync_warp, or "warp", every lane.
"""

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from labkernels.cuda import compile as nvrtc
from labkernels.cuda.launch import load

SOURCE = Path(__file__).parents[1] / "cuda" / "kernels_for_tests" / "handover.cuh"
SMEM_BYTES = 384  # of handover::Smem


class Params(ctypes.Structure):
    _fields_ = (("in_", ctypes.c_void_p), ("out", ctypes.c_void_p))


def compiled(who: str) -> nvrtc.CompiledKernel:
    every = {"lane": "false", "warp": "true"}[who]
    return nvrtc.compile_kernel(
        SOURCE, instance=f"handover::handover<{every}>", defines={}, arch="sm_90a"
    )


def main(who: str) -> None:
    given = torch.arange(128, dtype=torch.float32, device="cuda")
    out = torch.zeros(32, device="cuda")
    load(compiled(who)).launch(
        grid=(1, 1, 1),
        threads=64,
        smem_bytes=SMEM_BYTES,
        params=Params(given.data_ptr(), out.data_ptr()),
        stream=torch.cuda.current_stream().cuda_stream,
    )
    assert out.tolist() == [sum(range(lane, 128, 32)) for lane in range(32)]
    print(f"{who}: done")


if __name__ == "__main__":
    main(sys.argv[1])
