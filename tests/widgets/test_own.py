"""Numbers that a reader types reach the kernel, in their places, or are refused in words."""

from pathlib import Path

import node
import pytest

from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal

HERE = Path(__file__).parent
KEYS = "64"
SAID = {
    ("q", "1"): "taken: 512",
    ("k", " ".join(["1"] * 64)): "taken: 8192",
    (
        "k",
        "1 2 3",
    ): "3 numbers are given; this field takes 1, 64 (a row) or 8,192 (64 keys x 2 heads",
    ("v", ""): "Nothing is given; this field takes 1, 64",
    ("v", "1, two"): '"two" is given as number 2; this field takes',
    ("q", "nan"): '"nan" is given; this field takes',
    ("q", "0x10"): '"0x10" is given; this field takes',
    ("q", "1e5"): "numbers from -65,504 to 65,504.",
}


@pytest.fixture(scope="module")
def found(needs_node, offer, assets, tmp_path_factory):
    """Return results of a run with typed numbers, which equal drawn ones, on reordered pages."""
    path = tmp_path_factory.mktemp("own") / "asset.json"
    path.write_text(assets[offer.name])
    workload = dict(offer.cases())[KEYS].workload
    inputs = operations()["decode"].inputs(workload, ExactNormal(0))
    pages = inputs.cache.page_table[0]
    logical = {"q": inputs.q, "k": inputs.cache.k[pages], "v": inputs.cache.v[pages]}
    texts = {
        role: " ".join(map(repr, tensor.double().reshape(-1).tolist()))
        for role, tensor in logical.items()
    }
    given = {"keys": KEYS, "texts": texts, "wrong": list(SAID)}
    return node.run(HERE / "scripts" / "own_of_texts.mjs", path, given=given)


def test_typed_numbers_give_the_bits_of_the_same_numbers_drawn(found):
    assert found["typed"] == found["drawn"] != ""
    assert found["in_place"]


@pytest.mark.parametrize("number", range(len(SAID)))
def test_wrong_numbers_are_named(found, number):
    assert list(SAID.values())[number] in found["said"][number]
