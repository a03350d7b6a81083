"""The explorer of formats has Python's numbers, bit for bit: roundings, fields and sums."""

import itertools
import math
from pathlib import Path

import node
import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.emulation import tensor_core
from labkernels.widgets import bits

SEED, N_NUMBERS, N_SUMS = 5, 400, 12
CASES = [(arch, fmt) for arch, of in tensor_core.UNITS.items() for fmt in of]
TERMS = 40  # more than a chunk


def numbers():
    draw = np.random.default_rng(SEED)
    wide = draw.standard_normal(N_NUMBERS) * 2.0 ** draw.integers(-150, 130, N_NUMBERS)
    near = draw.standard_normal(N_NUMBERS) * 2.0 ** draw.integers(-12, 12, N_NUMBERS)
    return [*wide.tolist(), *near.tolist(), 0.0, 65520.0, 65519.0, 448.0, 464.0, 1e-8, 2.0**-24]


def sums():
    draw = np.random.default_rng(SEED)
    for (arch, fmt), _ in itertools.product(CASES, range(N_SUMS)):
        terms = draw.standard_normal(TERMS) * 2.0 ** draw.integers(-8, 8, TERMS)
        yield {"arch": arch, "fmt": fmt, "terms": rounding.round_to(terms, fmt).tolist()}


def products():
    draw = np.random.default_rng(SEED + 1)
    for (arch, fmt), _ in itertools.product(CASES, range(N_SUMS)):
        row, column = draw.standard_normal((2, TERMS)) * 2.0 ** draw.integers(-9, 6, (2, TERMS))
        row[::7] = 0
        yield {
            "arch": arch,
            "fmt": fmt,
            "row": rounding.round_to(row, fmt).tolist(),
            "column": rounding.round_to(column, fmt).tolist(),
            "start": float(np.float32(draw.standard_normal() * 2.0 ** draw.integers(-20, 20))),
        }


@pytest.fixture(scope="module")
def given():
    return {
        "data": bits.data(),
        "numbers": numbers(),
        "sums": list(sums()),
        "products": list(products()),
    }


@pytest.fixture(scope="module")
def found(needs_node, given):
    return node.run(Path(__file__).parent / "scripts" / "bits_of_numbers.mjs", given=given)


def test_a_page_rounds_as_python_does(found, given):
    for name, page, _, turned_back in found["rounded"]:
        assert turned_back == page, name  # a press of a bit begins and ends at such bits
        right = rounding.round_to(np.array(given["numbers"]), name)
        wanted = [x if math.isfinite(x) else ("Infinity" if x > 0 else "-Infinity") for x in right]
        assert page == wanted, name


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_page_shows_the_bits_of_the_encoding(found, given, name):
    page = {row[0]: row[2] for row in found["rounded"]}[name]
    right = rounding.to_bits(np.array(given["numbers"]), name)
    assert page == [f"{int(word):016b}" for word in right]


def test_a_page_adds_as_the_tensor_cores_do(found, given):
    for case, (page, _) in zip(given["sums"], found["summed"], strict=True):
        terms = np.array([case["terms"]])
        how = {"arch": case["arch"], "fmt": case["fmt"]}
        right = tensor_core.matmul(terms, np.ones((TERMS, 1)), **how)
        assert page == right.item(), how


def test_a_page_multiplies_as_the_tensor_cores_do(found, given):
    for case, (page, in_order) in zip(given["products"], found["multiplied"], strict=True):
        row, column = (np.array(case[name]) for name in ("row", "column"))
        start, how = np.array([[case["start"]]]), {"arch": case["arch"], "fmt": case["fmt"]}
        right = tensor_core.matmul(row[None], column[:, None], start, **how)
        assert page == right.item(), how
        total = np.float32(case["start"])
        for x, y in zip(row.astype(np.float32), column.astype(np.float32), strict=True):
            total += x * y
        assert in_order == total, how
