"""The models of the tensor core give every output that an H200 gave, and so do the CPU's probes."""

import numpy as np
import pandas as pd
import pytest

from labkernels.cuda.host import build
from labkernels.numerics import rounding
from labkernels.numerics.emulation import tensor_core
from labkernels.records import store
from tests.cuda import cpu_tensor_core
from tests.cuda.instructions import HEADER, INSTRUCTIONS, MmaParams

each_instruction = pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda each: each.name)


def bits(x):
    return x.view(f"u{x.itemsize}")


@pytest.fixture(scope="module")
def recorded():
    """Return the bits of a, b, c and d of each instruction: [families * tiles, rows, columns]."""
    with np.load(store.path_of("tensor_core_sm90.npz")) as file:
        return {name: x.reshape(-1, *x.shape[2:]) for name, x in file.items()}


def tiles(recorded, instruction):
    found = (recorded[f"{instruction.name} {operand}"] for operand in "abcd")
    a, b, c, d = found
    return a, b, c.view(f"f{c.itemsize}"), d


def in_numpy(instruction, a, b, c):
    """Return the bits of NumPy's model."""
    fmt, out = instruction.fmt, instruction.out
    a, b = (rounding.from_bits(x, fmt) for x in (a, b))
    if instruction.widened:
        return bits(tensor_core.widened_matmul(a, b, c, fmt=fmt))
    return bits(tensor_core.matmul(a, b, c, arch="sm_90", fmt=fmt, out=out))


@each_instruction
def test_both_models_give_the_outputs_of_the_gpu(recorded, instruction):
    a, b, c, d = tiles(recorded, instruction)
    assert d.size > 4000
    assert (in_numpy(instruction, a, b, c) == d).all()
    if not instruction.widened:
        fmt, out = instruction.fmt, instruction.out
        assert (bits(cpu_tensor_core.matmul(a, b, c, arch="sm_90", fmt=fmt, out=out)) == d).all()


@each_instruction
def test_a_probe_on_the_cpu_has_the_bits_of_the_model(recorded, instruction):
    """The recorded rows and columns fill whole tiles of the instruction."""
    a, b, c, _ = (x[:32] for x in tiles(recorded, instruction))
    m, n, k = instruction.m, instruction.n, instruction.k
    a = np.ascontiguousarray(a.reshape(-1, m, k)[: len(b) * b.shape[2] // n])
    columns = np.ascontiguousarray(b.transpose(0, 2, 1).reshape(-1, n, k)[: len(a)])
    c = np.resize(c, (len(a), m, n))
    got = on_the_cpu(instruction, a, columns, c)
    assert (got == in_numpy(instruction, a, columns.transpose(0, 2, 1), c)).all()


def on_the_cpu(instruction, a, columns, c):
    """Run the probe kernel, built for the CPU, and return the bits of d."""
    kernel = build.build(HEADER, instance=instruction.probe, params="lab::MmaParams")
    of = {"a": a, "b": columns, "c": c, "d": np.full_like(c, np.nan)}
    kernel.launch(
        grid=(len(a) // instruction.tiles_per_block, 1, 1),
        threads=instruction.threads,
        smem_bytes=instruction.smem_bytes,
        params=MmaParams(*(x.ctypes.data for x in of.values())),
        ranges=[
            build.GlobalRange(name, x.ctypes.data, x.nbytes, writable=name == "d")
            for name, x in of.items()
        ],
    )
    return bits(of["d"])


def test_the_recorded_counts_reject_every_model_but_the_right_one():
    rows = pd.DataFrame(store.newest(store.read("tensor_core_arithmetic")))
    rows[["kind", "family", "model"]] = rows.metric.str.split(", ", n=2, expand=True)
    wrong = rows[rows.kind == "mismatches"].groupby(["kernel", "model"]).value.sum().unstack()
    assert {*wrong.index} == {instruction.name for instruction in INSTRUCTIONS}
    assert (wrong.pop("the model") == 0).all()
    assert not (wrong == 0).any(axis=None)
    outputs = rows[rows.kind == "outputs"].groupby(["kernel", "family"]).value.sum().unstack()
    assert outputs.shape == (len(INSTRUCTIONS), 9)
    assert (outputs.sum(axis=1) > 6e7).all()


def test_tl_dot_has_the_bits_of_the_model():
    rows = pd.DataFrame(store.newest(store.read("triton_dot")))
    found = rows.groupby("metric").value.agg(["sum", "min"])
    assert found.loc["mismatches, the model", "sum"] == 0
    assert found.loc["mismatches, head_dim descending", "min"] > 0
    assert found.loc["outputs", "min"] == 1 << 22
