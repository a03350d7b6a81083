"""The tensor core of the CPU build, called by itself."""

import ctypes

import numpy as np

from labkernels.cuda.compiler.cache import cache_dir
from labkernels.cuda.host import build
from labkernels.cuda.host.compiler import common_flags

INPUTS = ("fp16", "bf16", "e4m3")  # lab::host::Input


def matmul(a_bits, b_bits, c, *, arch: str, fmt: str) -> np.ndarray:
    """Return c + a b.

    Shapes: unsigned encodings [n, M, K] and [n, K, N], c [n, M, N] float32 -> as c.
    """
    d = np.array(c, np.float32, order="C")
    n, rows, columns = d.shape
    k = a_bits.shape[-1]
    assert (a_bits.shape, b_bits.shape) == ((n, rows, k), (n, k, columns))
    flags = common_flags(tensor_core=build.TENSOR_CORES[arch], checks=False)
    runtime = build._load_runtime(build._runtime(tuple(flags), cache_dir()))
    by_tile = fmt in ("fp16", "bf16") and (rows, k, columns) == (16, 16, 8)
    a, b = (np.ascontiguousarray(x, np.uint16 if by_tile else np.uint32) for x in (a_bits, b_bits))
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, d)]
    if by_tile:  # kernels that use mma.sync run this vectorised code
        runtime.lab_tensor_core(*pointers, n, int(fmt == "bf16"))
    else:
        runtime.lab_dot(*pointers, (ctypes.c_int * 4)(n, rows, columns, k), INPUTS.index(fmt))
    return d
