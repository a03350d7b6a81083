"""The models of the tensor core give every output that an H200 gave."""

import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.emulation import tensor_core
from labkernels.records import store
from tests.cuda import cpu_tensor_core

K = {"fp16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}
INSTRUCTIONS = [
    f"{of}k{K[fmt]}.{out}.{fmt}"
    for of in ("mma.sync.m16n8", "wgmma.m64n64")
    for fmt, out in [*((fmt, "fp32") for fmt in K), ("fp16", "fp16")]
]
each_instruction = pytest.mark.parametrize("instruction", INSTRUCTIONS)


def bits(x):
    return x.view(f"u{x.itemsize}")


@pytest.fixture(scope="module")
def recorded():
    """Return the bits of a, b, c and d of each instruction: [families * tiles, rows, columns]."""
    with np.load(store.path_of("tensor_core_sm90.npz")) as file:
        return {name: x.reshape(-1, *x.shape[2:]) for name, x in file.items()}


@each_instruction
def test_both_models_give_the_outputs_of_the_gpu(recorded, instruction):
    *_, out, fmt = instruction.split(".")
    a, b, c, d = (recorded[f"{instruction} {operand}"] for operand in "abcd")
    c, widened = c.view(f"f{c.itemsize}"), "mma.sync" in instruction and fmt in ("e4m3", "e5m2")
    assert d.size > 4000
    values = [rounding.from_bits(x, fmt) for x in (a, b)]
    if widened:
        found = tensor_core.widened_matmul(*values, c, fmt=fmt)
    else:
        found = tensor_core.matmul(*values, c, arch="sm_90", fmt=fmt, out=out)
    assert (bits(found) == d).all()
    if fmt in cpu_tensor_core.INPUTS and out == "fp32" and not widened:
        assert (bits(cpu_tensor_core.matmul(a, b, c, arch="sm_90", fmt=fmt)) == d).all()
