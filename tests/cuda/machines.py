"""Launches test kernels on either machine: the CPU build, or the GPU."""

from pathlib import Path

import pytest

from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.host import build

KERNELS = Path(__file__).parent / "host" / "kernels"
CPU = "cpu"


def gpu_of_sm90() -> str:
    """Return torch's name of the GPU; skip the test where it is not of sm_90."""
    from labkernels.cuda.gpu.device import planning_gpu

    arch = planning_gpu().arch
    if arch != "sm_90":
        pytest.skip(f"these words are of sm_90; this GPU is of {arch}")
    return "cuda"


def launch(
    machine,
    header,
    instance,
    params,
    tensors,
    *,
    grid,
    threads,
    smem_bytes,
    checks=True,
    written=(),
):
    """Run a kernel of tests/cuda/host/kernels, or of the lab; params is of the struct Params.

    tensors: those that params points to, by name; written: the names of those that it may write.
    """
    shape = {"grid": grid, "threads": threads, "smem_bytes": smem_bytes, "params": params}
    path = KERNELS / header
    if machine != CPU:
        import torch

        from labkernels.cuda.gpu.kernel import load

        compiled = nvrtc.compile_kernel(
            path if path.exists() else header, instance=instance, defines={}, arch="sm_90a"
        )
        stream = torch.cuda.current_stream().cuda_stream
        load(compiled).launch(**shape, stream=stream)
        torch.cuda.synchronize()
        return
    ranges = [
        build.GlobalRange(
            name, x.data_ptr(), x.untyped_storage().nbytes(), writable=name in written
        )
        for name, x in tensors.items()
    ]
    namespace = instance.partition("::")[0]
    name = f"{namespace}::{type(params).__name__}"
    kernel = build.build(
        header, instance=instance, params=name, include_dirs=[KERNELS], checks=checks
    )
    kernel.launch(**shape, ranges=ranges)
