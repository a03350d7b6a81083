"""The primers' kernels agree with float64, and do what the primers say of them."""

import itertools

import numpy as np
import pytest

from labkernels.chapters.primers import (
    fragments,
    latency,
    pipeline,
    small_product,
    walk,
)
from labkernels.cuda.host.build import HostKernelError
from labkernels.variant import CAUSAL, FULL, AttentionVariant


@pytest.mark.parametrize("sums", [4, 24])
def test_small_product(sums):
    rng = np.random.default_rng(sums)
    x, w = rng.standard_normal((64, 128)), rng.standard_normal((64, sums))
    y = small_product.multiply(x, w, stages=2)
    x, w = (np.float32(values).astype(np.float64) for values in (x, w))
    allowed = len(x) * 2.0**-24 * (np.abs(x).T @ np.abs(w))  # each of 64 fp32 FMAs rounds once
    assert (np.abs(y - x.T @ w) <= allowed).all()
    with pytest.raises(HostKernelError, match="race"):
        small_product.multiply(x, w, stages=1)


def test_a_tile_comes_back_and_its_swizzle_is_free_of_conflicts():
    found = fragments.swizzled()
    assert (found["numbers"] == np.arange(16 * 64).reshape(16, 64)).all()
    assert (fragments.ways(found["reads"]) == 1).all()
    assert (fragments.ways(found["stores"]) == 1).all()
    lanes = np.arange(32)
    for places, turns in ((4 * lanes, 1), (128 * lanes, 32), (0 * lanes, 1)):  # 0: one word for all
        assert fragments.ways(places, 4).tolist() == [turns]
    assert fragments.ways(128 * lanes).tolist() == [8, 8, 8, 8]


def test_owners_are_the_instruction_s():
    owners = fragments.owners()
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i in range(4):
            assert owners["d"][g + 8 * (i // 2), 2 * t + i % 2].tolist() == [lane, i]
        for i in range(8):
            row, column = g + i // 2 % 2 * 8, 2 * t + i % 2 + i // 4 * 8
            assert owners["a"][row, column].tolist() == [lane, i]


def test_products_are_numpys():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 4, size).astype(float) for size in ((16, 16), (16, 8)))
    assert (fragments.product(a, b)["out"] == a @ b).all()
    assert (fragments.two_products(a, np.eye(16), b)["out"] == a @ b).all()


def test_a_pipeline_fetches_a_tile_ahead():
    sums, events = pipeline.run(3)
    assert (sums == pipeline.tiles(3).reshape(-1, pipeline.THREADS).sum(axis=0)).all()
    order = [("fetch", 0), ("fetch", 1), ("use", 0), ("fetch", 2), ("use", 1), ("use", 2)]
    assert events == order


@pytest.mark.parametrize(("n_warps", "share"), [(1, 2 / 14), (3, 6 / 14), (7, 1), (9, 1)])
def test_warps_hide_waiting(n_warps, share):
    rows = latency.schedule(n_warps, wait=12, work=2, rounds=400)
    works = [row for row in rows if row["what"] == "works"]
    busy = sum(row["end"] - row["start"] for row in works) / max(row["end"] for row in works)
    assert busy == pytest.approx(share, rel=0.01)
    assert all(a["end"] <= b["start"] for a, b in itertools.pairwise(works))


@pytest.mark.parametrize("variant", [FULL, CAUSAL, AttentionVariant(True, window_left=40)])
@pytest.mark.parametrize("lengths", [(96, 160), (50, 70), (1, 33)])
def test_every_pair_of_query_and_key_is_in_its_block(variant, lengths):
    q_len, kv_len = lengths
    query, key = np.indices(lengths)
    seen = (key >= variant.begin(query, *lengths)) & (key < variant.end(query, *lengths))
    found = walk.blocks(variant, *lengths, rows=32, keys=16)
    assert len(found) == -(-q_len // 32) * -(-kv_len // 16)
    for part in found:
        inside = (query // 32 == part["tile"]) & (key // 16 == part["block"])
        share = {"all": 1, "none": 0}.get(part["seen"])
        mean = seen[inside].mean()
        assert mean == share if share is not None else 0 < mean < 1
