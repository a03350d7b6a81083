"""What the stepper of a page shows is what the kernel holds: memory, fragments and the softmax."""

import functools
import json
from pathlib import Path

import node
import numpy as np
import pytest

from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.truth.oracle import attention
from labkernels.widgets.steps import broken, smem_map
from labkernels.widgets.steps.stepped import OTHERS

HERE = Path(__file__).parent
GROUP, KEYS_OF_A_STEP = 4, 16
UNWRITTEN, WRITTEN, IN_FLIGHT, WRITTEN_BY_TMA = range(4)


@pytest.fixture(scope="module")
def inputs():
    return operations()["decode"].inputs(broken.case().workload, ExactNormal(0))


@pytest.fixture(scope="module")
def trace(broken_asset):
    return node.run(HERE / "scripts" / "trace_of_step.mjs", broken_asset, "0")


def as_fp16(patterns):
    return np.array(patterns, np.uint16).view(np.float16)


def keys_of(cache, first):
    """Return K of KV head 0 for the page of request 0 that holds key `first`."""
    pages = cache.page_table[0, first // 16]
    return cache.k[pages, :, 0].numpy()


def lse2_of(softmax):
    return [row["m"] + np.log2(row["l"]) for row in softmax]


def test_maps_have_every_byte_of_the_ledger():
    instance = broken.case().instance
    ledger = broken.case().asked["kernel"].smem(instance)
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
    lse2 = lse2_of(trace["softmax"])
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
    found = node.run(HERE / "scripts" / "trace_of_step.mjs", broken_asset, "1")
    assert "which no thread wrote" in found["error"]
    assert found["words"][-1][0] == "end"
    assert all(word[0] != "sync_block" for word in found["words"])


@pytest.fixture(scope="module")
def shown(needs_node, needs_zig, tmp_path_factory):
    """Return a function of a kernel without switches: what the stepper shows of it."""
    folder = tmp_path_factory.mktemp("steps")

    @functools.cache
    def show(name):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(OTHERS[name].whole_asset()))
        return node.run(HERE / "scripts" / "trace_of_step.mjs", path)

    return show


@pytest.mark.parametrize("name", OTHERS)
def test_buffers_lie_where_the_ledger_says(name):
    instance = OTHERS[name].case().instance
    tiles = smem_map.maps(instance)[0]["tiles"]
    ends = [tile["byte"] + tile["rows"] * tile["chunks"] * 16 for tile in tiles]
    assert [tile["byte"] for tile in tiles] == [0, *ends[:-1]]
    small = ("work tiles", "is_last_split", "padding", "States: o", "States: m and l")
    lines = OTHERS[name].case().asked["kernel"].smem(instance).lines
    assert ends[-1] == sum(line.amount for line in lines if line.name not in small)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OTHERS)
def test_every_kernel_tells_the_softmax_of_its_rows(shown, name):
    """The rows come in order: the first rows of the first block are those of KV head 0."""
    found, stepped = shown(name), OTHERS[name]
    assert found["error"] is None
    operation = operations()[name.partition("_")[0]]
    right, lse2 = attention(operation.inputs(stepped.workload, ExactNormal(0)).problem())
    n_tokens = len(found["softmax"]) // GROUP
    # float32 sums and an approximated exp2; P has 11 bits
    wanted = np.reshape(lse2[:n_tokens, :GROUP], -1)
    np.testing.assert_allclose(lse2_of(found["softmax"]), wanted, atol=1e-4)
    out = np.array([row["o"] for row in found["softmax"]])
    if out.size:
        wanted = right[:n_tokens, :GROUP, :2].reshape(-1, 2)
        np.testing.assert_allclose(out, wanted, rtol=2**-9, atol=1e-3)


def test_a_box_is_in_flight_until_a_consumer_has_waited_for_it(shown):
    moments = shown("prefill_wgmma")["moments"]
    waited = {m["by"] for m in moments} - {""}
    assert waited <= set(smem_map.barriers(OTHERS["prefill_wgmma"].case().instance))
    assert {"Q 0 full", "K 0 full", "V 0 full", "V 0 empty"} <= waited
    asked = next(m for m in moments if m["word"] == "tma_load" and m["from"]["K0"] != [UNWRITTEN])
    assert asked["from"]["K0"] == [IN_FLIGHT]
    come = next(m for m in moments if m["by"] == "K 0 full")
    assert come["warp"] >= 4  # the first four produce
    assert come["from"]["K0"] == [WRITTEN_BY_TMA]
    stepped = OTHERS["prefill_wgmma"]
    inputs = operations()["prefill"].inputs(stepped.workload, ExactNormal(0))
    last = 256  # 300 keys in blocks of 128: the last block comes first
    held = np.array(come["k0"], np.uint8).view(np.float16).reshape(128, 8, 8)
    straight = np.stack([held[row][np.arange(8) ^ (row & 7)] for row in range(128)])
    np.testing.assert_array_equal(straight.reshape(128, 64)[:44], inputs.kv.k[last:300, 0])
