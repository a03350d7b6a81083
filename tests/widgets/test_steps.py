"""What the stepper of a page shows is what the kernel holds: memory, fragments and the softmax."""

from pathlib import Path

import numpy as np
import pytest

from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.widgets import broken, node, smem_map

HERE = Path(__file__).parent
GROUP, KEYS_OF_A_STEP = 4, 16
UNWRITTEN, WRITTEN, IN_FLIGHT = 0, 1, 2


@pytest.fixture(scope="module")
def inputs():
    return operations()["decode"].inputs(broken.case().workload, ExactNormal(0))


@pytest.fixture(scope="module")
def trace(broken_asset):
    return node.run(HERE / "trace_of_broken.mjs", broken_asset, "0")


def as_fp16(patterns):
    return np.array(patterns, np.uint16).view(np.float16)


def keys_of(cache, first):
    """K of KV head 0, some keys of request 0, from the pages."""
    pages = cache.page_table[0, first // 16]
    return cache.k[pages, :, 0].numpy()


def test_maps_have_every_byte_of_the_ledger():
    instance = broken.case().instance
    ledger = broken.broken_kernel().smem(instance)
    while_loop, merge = (made["tiles"] for made in smem_map.maps(instance))
    ends = [tile["byte"] + tile["rows"] * tile["chunks"] * 16 for tile in while_loop]
    assert [tile["byte"] for tile in while_loop] == [0, *ends[:-1]]
    assert ends[-1] == ledger.total
    amounts = {line.name: line.amount for line in ledger.lines}
    last = merge[-1]
    states = last["byte"] + last["rows"] * last["chunks"] * 16 - amounts["Q"]
    assert states == amounts["States: o"] + amounts["States: m and l"]


def test_q_has_come_at_the_first_barrier_and_k_is_in_flight(trace, inputs):
    q, *stages = smem_map.maps(broken.case().instance)[0]["tiles"]
    states = {
        tile["name"]: {
            code >> 16
            for code in trace["seen"][tile["byte"] // 16 :][: tile["rows"] * tile["chunks"]]
        }
        for tile in (q, *stages)
    }
    assert states["Q"] == {WRITTEN}
    assert states["K0 of warp 0"] == {IN_FLIGHT}
    assert states["K2 of warp 0"] == {UNWRITTEN}
    held = np.array(trace["bytes"][:2048], np.uint8).view(np.float16).reshape(16, 8, 8)
    straight = np.stack([held[row][np.arange(8) ^ (row & 7)] for row in range(16)])
    np.testing.assert_array_equal(straight.reshape(16, 64)[:GROUP], inputs.q[0, :GROUP])
    assert not straight[GROUP:].any()


def test_first_product_multiplies_q_by_keys(trace, inputs):
    a, b = as_fp16(trace["a"]), as_fp16(trace["b"])
    np.testing.assert_array_equal(a[:GROUP], inputs.q[0, :GROUP, :16])
    keys = keys_of(inputs.cache, trace["warp"] * KEYS_OF_A_STEP)
    np.testing.assert_array_equal(b.T, keys[:8, :16])
    right = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(trace["d"], right, atol=1e-5)


def test_merged_softmax_is_what_the_kernel_returns(trace, inputs):
    step = operations()["decode"].step(inputs, kernel=broken.KERNEL, target="h200")
    step.run()
    lse2 = [row["m"] + np.log2(row["l"]) for row in trace["softmax"]]
    # float32 sums of 200 keys, in an order of their own
    np.testing.assert_allclose(lse2, step.lse2[0, :GROUP], atol=1e-5)
    out = [row["o"] for row in trace["softmax"]]
    np.testing.assert_allclose(out, step.out[0, :GROUP, :2].double(), rtol=2**-10, atol=1e-6)


def test_barriers_are_told_with_their_lines(trace):
    syncs = [word for word in trace["words"] if word[0] == "sync_block"]
    assert len(syncs) == 3
    sources = broken.asset()["sources"]
    for _, file, line, warp in syncs:
        assert "sync_block();" in sources[file][line - 1]
        assert warp == -1


def test_trace_of_a_broken_run_ends_where_the_checks_stopped_it(broken_asset):
    found = node.run(HERE / "trace_of_broken.mjs", broken_asset, "1")
    assert "which no thread wrote" in found["error"]
    assert found["words"][-1][0] == "end"
    assert all(word[0] != "sync_block" for word in found["words"])
