"""The tensor core of the CPU build, called by itself."""

import ctypes

import numpy as np

from labkernels.cuda.compiler.cache import cache_dir
from labkernels.cuda.host import build
from labkernels.cuda.host.compiler import common_flags

INPUTS = ("fp16", "bf16", "tf32", "e4m3", "e5m2")  # lab::host::Input


def matmul(a_bits, b_bits, c, *, arch: str, fmt: str, out: str = "fp32") -> np.ndarray:
    """Return c + a b; with 8-bit inputs, sm_89 computes as mma.sync does, and sm_90 as wgmma does.

    Shapes: unsigned encodings [n, M, K] and [n, K, N], c [n, M, N] float32, or float16 for
    out="fp16" -> as c.
    """
    d = np.array(c, np.float32, order="C")
    n, rows, columns = d.shape
    k = a_bits.shape[-1]
    assert (a_bits.shape, b_bits.shape) == ((n, rows, k), (n, k, columns))
    core = build.TENSOR_CORES[arch]
    flags = common_flags(tensor_core=core, checks=False)
    runtime = build._load_runtime(build._runtime(tuple(flags), cache_dir()))
    by_tile = fmt in ("fp16", "bf16") and out == "fp32" and (rows, k, columns) == (16, 16, 8)
    a, b = (np.ascontiguousarray(x, np.uint16 if by_tile else np.uint32) for x in (a_bits, b_bits))
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, d)]
    if by_tile:  # kernels that use mma.sync run this vectorised code
        runtime.lab_tensor_core(*pointers, n, int(fmt == "bf16"))
    else:
        shape = (ctypes.c_int * 4)(n, rows, columns, k)
        runtime.lab_dot(*pointers, shape, INPUTS.index(fmt), int(out == "fp16"))
    if out == "fp32":
        return d
    half = d.astype(np.float16)
    half.view(np.uint16)[np.isnan(half)] = 0x7FFF  # the NaN that the hardware writes
    return half
