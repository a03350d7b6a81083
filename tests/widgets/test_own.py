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
    ("k", "1 2 3"): "K has 3 numbers, allowed: 1, 64 (a row) or 8,192 (64 keys x 2 heads x 64",
    ("v", ""): "V has 0 numbers, allowed: 1, 64",
    ("v", "1, two"): 'V has "two" as its number 2, allowed: finite numbers',
    ("q", "nan"): 'q has "nan" as its number 1, allowed: finite numbers',
    ("q", "1e5"): "q has 1e5 as its number 1, allowed in fp16: up to 65504",
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
