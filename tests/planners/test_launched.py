"""What kernels' names and grids tell, against the planners: recorded on a GPU, and by hand."""

import pytest

from labkernels.experiments.batch_invariance import ways
from labkernels.hardware import gpu
from labkernels.measure.peers.flashinfer import PAGE_SIZE
from labkernels.measure.profiling.launches import Launch, of_trace
from labkernels.planners import Batch, launched
from labkernels.planners.flashinfer import decode_cuda_cores, fa2
from labkernels.records import store

FA2 = (
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<"
    "(flashinfer::MaskMode)0, 16u, 1u, 2u, 8u, 8u, 1u, 4u, (flashinfer::PosEncodingMode)0"
)
CORES = (
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<"
    "(flashinfer::PosEncodingMode)0, 2u, 1u, 8u, 16u, 4u, 2u, flashinfer::DefaultAttention"
)


def recorded():
    return [row for row in store.read("launches") if row["device"] == "NVIDIA H200"]


@pytest.mark.parametrize("way", sorted({row["way"] for row in recorded()}))
def test_libraries_launched_what_their_planners_say(way):
    every = {(x, each.name): each for x in ("decode", "prefill") for each in ways.ways(x)}
    for row in (row for row in recorded() if row["way"] == way):
        of = every[row["operation"], way]
        heads = row["q_heads"] if of.repeats_kv else row["kv_heads"]
        batch = Batch(
            (row["kv_len"],) * row["batch"],
            row["q_heads"],
            heads,
            row["head_dim"],
            q_lens=(row["q_len"],) * row["batch"],
            page_size=PAGE_SIZE if of.paged else None,
            causal=row["operation"] == "prefill",
        )
        cut = of.cut(batch, gpu("h200"))
        blocks = tuple(map(int, row["grid"].split(" x ")))
        where = f"{row['operation']} {row['kv_len']} x {row['batch']}: {blocks}, {row['cut']}"
        assert launched.agrees(cut, batch, row["kernel"], blocks) == row["agrees"], where
        assert row["agrees"], where


@pytest.mark.parametrize(
    ("planner", "kernel", "blocks", "keys"),
    [(fa2, FA2, (32, 1, 8), "2u, 8u"), (decode_cuda_cores, CORES, (64, 8, 1), "1u, 8u")],
)
def test_a_tile_or_a_grid_of_another_plan_does_not_agree(planner, kernel, blocks, keys):
    batch = Batch((2048,) * 4, 32, 8, 128, page_size=16)
    cut = planner(batch, gpu("h200"))
    assert launched.is_attention(cut, kernel)
    assert launched.agrees(cut, batch, kernel, blocks)
    assert not launched.agrees(cut, batch, kernel, (blocks[0] // 2, *blocks[1:]))
    assert not launched.agrees(cut, batch, kernel.replace(keys, "4u, 8u"), blocks)
    assert not launched.is_attention(cut, "void flashinfer::MergeStatesKernel<16u>")


def test_a_merge_is_not_the_attention_and_an_unknown_name_is_refused():
    cut = fa2(Batch((512,), 32, 8, 128, page_size=16), gpu("h200"))
    with pytest.raises(ValueError, match="allowed: one of FlashInfer fa2"):
        launched.tile(cut, "void other_kernel<1>")


def test_launches_are_in_order_of_time_and_without_torchs_own():
    names = (("void at::native::fill", 1.0), ("second", 3.0), ("first", 2.0))
    events = [
        {"cat": "kernel", "name": name, "ts": ts, "args": {"grid": [1, 2, 3]}} for name, ts in names
    ]
    found = of_trace({"traceEvents": [{"cat": "cpu_op", "name": "x"}, *events]})
    assert found == tuple(Launch(name, (1, 2, 3)) for name in ("first", "second"))
    with pytest.raises(RuntimeError, match="saw no kernel"):
        of_trace({"traceEvents": []})
