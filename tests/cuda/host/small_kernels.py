"""Builds the small kernels of this folder on the CPU and runs them on NumPy arrays."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from labkernels.cuda.host import build as host_build

KERNELS = Path(__file__).parent / "kernels"


class Params(ctypes.Structure):
    """The parameters of every kernel here: two arrays and a number."""

    _fields_ = (("input", ctypes.c_void_p), ("output", ctypes.c_void_p), ("number", ctypes.c_int))


def build(instance, **options):
    """Build `instance`, namespace::kernel<...>, whose namespace is the header's name."""
    name = instance.partition("::")[0]
    return host_build.build(
        f"{name}.cuh",
        instance=instance,
        params=f"{name}::Params",
        include_dirs=[KERNELS],
        **options,
    )


def run(kernel, inputs, outputs, number=0, *, grid=(1, 1, 1), threads=32, smem=0, host_threads=1):
    """Run a kernel whose first tensor is read-only and whose second is written."""
    params = Params(inputs.ctypes.data, outputs.ctypes.data, number)
    ranges = [
        host_build.GlobalRange("input", inputs.ctypes.data, inputs.nbytes, writable=False),
        host_build.GlobalRange("output", outputs.ctypes.data, outputs.nbytes, writable=True),
    ]
    kernel.launch(
        grid=grid,
        threads=threads,
        smem_bytes=smem,
        params=params,
        ranges=ranges,
        host_threads=host_threads,
    )
    return outputs


def place(header, marker):
    """Return the place of the comment `// here: marker` in a header, as a message names it."""
    lines = (KERNELS / header).read_text().splitlines()
    numbers = [i for i, line in enumerate(lines, 1) if line.endswith(f"// here: {marker}")]
    assert len(numbers) == 1, f"{marker}: {numbers}"
    return f"kernels/{header}:{numbers[0]}"


def message(kernel, inputs, outputs, number=0, **launch):
    """Return the error message of a launch, which must fail."""
    with pytest.raises(host_build.HostKernelError) as caught:
        run(kernel, inputs, outputs, number, **launch)
    return str(caught.value)


def aligned(values, dtype):
    """Return a copy that begins at a multiple of 64 bytes, with room around it."""
    values = np.asarray(values, dtype)
    room = np.zeros(values.nbytes + 192, np.uint8)
    start = 64 - room.ctypes.data % 64 + 64
    copy = room[start : start + values.nbytes].view(dtype).reshape(values.shape)
    copy[...] = values
    return copy
