"""The CPU build gives the bits that the GPU recorded, for every operation."""

import math

import numpy as np
import pytest

from labkernels.experiments.accuracy import bits
from labkernels.kernels.decode.operation import OPERATION as DECODE
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.records import recorded, store

CASES = {operation.name: list(bits.cases(operation)) for operation in operations().values()}
WITH_BITS = [name for name, cases in CASES.items() if cases]


def rows_of(name):
    """Return the newest rows of each kernel; none of an operation that no GPU has run."""
    if not store.path_of(f"{name}_bits").exists():
        return []
    return recorded.newest_of_each(store.read(f"{name}_bits"), ["kernel"])


def pairs(name):
    """Yield an operation's cases of today with their newest recorded rows."""
    for kernel in dict.fromkeys(case.instance.kernel for case in CASES[name]):
        today = [case for case in CASES[name] if case.instance.kernel == kernel]
        rows = store.select(rows_of(name), {"kernel": kernel})
        # a new kernel, head_dim or cache has none until a GPU has run it: its test says so
        ran = {(row["head_dim"], " cache" in row["metric"]) for row in rows}
        known = [c for c in today if (c.instance.head_dim, bool(c.instance.kv_dtype)) in ran]
        yield from zip(known, rows, strict=True)


def groups(*, narrow=False):
    """Yield operation, kernel, dtype and head_dim of every case, for a test of each group.

    narrow: of caches of 8 bits. The two formats follow each other, and each head_dim begins with
    the other one.
    """
    for name in WITH_BITS:
        found = [c.instance for c in CASES[name] if bool(c.instance.kv_dtype) == narrow]
        shapes = dict.fromkeys((i.kernel, i.head_dim) for i in found)
        for number, (kernel, head_dim) in enumerate(shapes):
            dtypes = {i.dtype for i in found if (i.kernel, i.head_dim) == (kernel, head_dim)}
            for dtype in sorted(dtypes, reverse=number % 2 == 1):
                yield name, kernel, dtype, head_dim


def test_every_operation_that_rounds_has_its_checksums_of_more_than_a_million_outputs():
    assert WITH_BITS == ["backward", "decode", "mla", "prefill", "prefill_fp8"]
    assert {e.name for e in bits.EXPERIMENTS} == {f"{name}_bits" for name in WITH_BITS}
    for name in WITH_BITS:
        rows = rows_of(name)
        assert sum(row["value"] for row in rows) >= 1e6 or (name == "prefill_fp8" and not rows)


def test_a_run_of_other_bits_is_an_error(monkeypatch):
    case, how = CASES["decode"][-1], {"seed": 0, "device": "cpu"}
    text, outputs = bits.checksum(DECODE, case, runs=2, **how)
    assert len(text) == 64
    assert outputs > 0
    monkeypatch.setattr(bits, "_differs", lambda *_: True)
    with pytest.raises(ValueError, match="2 of 3 runs have other bits, allowed: 0"):
        bits.checksum(DECODE, case, runs=3, **how)


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize(("name", "kernel", "dtype", "head_dim"), list(groups()), ids=str)
def test_the_cpu_build_gives_the_gpus_bits(name, kernel, dtype, head_dim):
    check(name, kernel, dtype, head_dim)


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize(("name", "kernel", "dtype", "head_dim"), list(groups(narrow=True)))
def test_the_cpu_build_gives_the_gpus_bits_of_caches_of_8_bits(name, kernel, dtype, head_dim):
    check(name, kernel, dtype, head_dim, narrow=True)


def check(name, kernel, dtype, head_dim, *, narrow=False):
    """Compare the checksums of a group with those that a GPU recorded."""
    operation, different, asked = operations()[name], [], (kernel, dtype, head_dim, narrow)
    alike = []
    for case, row in pairs(name):
        i = case.instance
        if (i.kernel, i.dtype, i.head_dim, bool(i.kv_dtype)) == asked:
            alike.append((case, row))
    if not alike:
        words = f"{kernel} at {head_dim} channels{', 8 bits' if narrow else ''}"
        pytest.skip(f"no GPU has recorded {words} yet: labkernels record {name}_bits")
    for case, row in alike:
        found = bits.checksum(operation, case, seed=row["seed"], device="cpu")
        today = bits.row(operation, case, *found)
        if any(row[column] != value for column, value in today.items()):
            different.append(today)
    assert different == []


def test_exact_inputs_do_not_depend_on_the_library_that_draws_them():
    workload = Decode((3, 0, 20), 4, 2, 64, 4, "bf16")
    case = DECODE.inputs(workload, ExactNormal(7, "cpu"))
    words = np.random.PCG64(7).random_raw(1).view(np.uint16).astype(int)
    assert case.q[0, 0, 0].item() == pytest.approx((words.sum() - 2 * 0xFFFF) / 2**15, rel=2**-8)
    # The sum of four uniform words over 2^15 has variance 4/3 and kurtosis 2.7, which give the
    # deviation of a sample's spread; a right sample is within four of these 29999 times in 30000.
    deviation = math.sqrt((2.7 - 1) / (4 * case.q.numel()))
    assert case.q.double().std().item() == pytest.approx(math.sqrt(4 / 3), rel=4 * deviation)
    used = case.cache.page_table.numpy()[[0, 2, 2, 2, 2, 2], [0, 0, 1, 2, 3, 4]]
    assert sorted(used) == list(range(6))
