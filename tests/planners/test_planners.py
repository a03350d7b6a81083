"""Cuts of the libraries against what their kernels were seen to do, and numbers from reports."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from labkernels.hardware import gpu
from labkernels.planners import (
    Batch,
    NotKnown,
    changed,
    flash_attention,
    flash_mla,
    flashinfer,
    serving,
    torch_sdpa,
)
from labkernels.planners.cut import even, even_blocks
from labkernels.planners.prediction import changed_heads
from labkernels.records import store

H200, A100 = gpu("h200"), gpu("a100")
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)


def decode(size, kv_len, *, kv_heads=8, page_size=16):
    return Batch((kv_len,) * size, 32, kv_heads, 128, page_size=page_size)


def first_that_differs(cut, kv_len, **shape):
    """Return the first batch in which a request is cut otherwise than alone."""
    alone = cut(decode(1, kv_len, **shape), H200)
    cuts = ((n, cut(decode(n, kv_len, **shape), H200)) for n in BATCHES)
    return next((n for n, other in cuts if changed(alone, other)), None)


def fixed(batch, gpu):
    return flashinfer.fa2(batch, gpu, fixed_split_size=64)


def unsplit(batch, gpu):
    return flashinfer.fa2(batch, gpu, disable_split_kv=True)


PLANNED = {
    "FlashInfer CUDA cores": flashinfer.decode_cuda_cores,
    "FlashInfer fa2": flashinfer.fa2,
    "FlashInfer fa2, fixed_split_size": fixed,
    "FlashInfer fa2, disable_split_kv": unsplit,
    "torch flash": torch_sdpa.flash,
    "torch efficient": torch_sdpa.efficient,
    "FlashAttention-2": flash_attention.flash_attention_2,
    "FlashAttention-2, num_splits=1": partial(flash_attention.flash_attention_2, num_splits=1),
}


@pytest.mark.parametrize("way", PLANNED)
def test_libraries_launched_what_their_planners_say(way):
    """The tile and the grid of each recorded launch are those of the cut that stands beside it."""
    rows = store.select(store.read("launches"), {"way": way})
    assert rows
    for row in rows:
        heads = row["q_heads"] if "torch" in way else row["kv_heads"]
        batch = Batch(
            (row["kv_len"],) * row["batch"],
            row["q_heads"],
            heads,
            row["head_dim"],
            q_lens=(row["q_len"],) * row["batch"],
            page_size=16 if "FlashInfer" in way and row["q_len"] == 1 else None,
            causal=row["operation"] == "prefill",
        )
        assert PLANNED[way](batch, H200).label() == row["cut"]
        assert row["agrees"]


# The first batch of 2, 4, 8, ... in which heads of a decode of 512, 2048 and 8192 keys had other
# bits than alone on an H200: FlashInfer 0.7.2.post1 and torch 2.11, bf16, 32/8 heads of 128.
SEEN = {
    "FlashInfer CUDA cores": (flashinfer.decode_cuda_cores, {}, (64, 16, 4)),
    "FlashInfer fa2": (flashinfer.fa2, {}, (16, 4, 2)),
    "FlashInfer fa2 fixed": (fixed, {}, (None, None, None)),
    "FlashInfer fa2 unsplit": (unsplit, {}, (None, None, None)),
    "torch flash": (torch_sdpa.flash, {"kv_heads": 32, "page_size": None}, (4, 2, 2)),
    "torch efficient": (torch_sdpa.efficient, {"kv_heads": 32, "page_size": None}, (None,) * 3),
}


@pytest.mark.parametrize("name", SEEN)
def test_bits_were_seen_to_change_where_the_cut_changes(name):
    cut, shape, expected = SEEN[name]
    found = tuple(first_that_differs(cut, kv_len, **shape) for kv_len in (512, 2048, 8192))
    assert found == expected


def test_flash_attention_3_looks_at_the_batch_and_4_does_not():
    for cut in (flash_attention.flash_attention_3, serving.vllm_flash_attention):
        assert first_that_differs(cut, 8192) == 2
    assert first_that_differs(flash_attention.flash_attention_4, 8192, page_size=None) is None


@pytest.mark.parametrize(
    ("head_dim", "tile_q", "key", "keys"),
    [
        (64, 16, "h200", 256),
        (64, 64, "h200", 128),
        (64, 128, "h200", 64),
        (128, 16, "h200", 128),
        (128, 64, "h200", 128),
        (128, 128, "h200", 64),
        (256, 16, "h200", 64),
        (256, 64, "h200", 64),
        (256, 64, "a100", 32),
        (64, 16, "l4", 128),
        (128, 16, "l4", 64),
        (128, 64, "l4", 64),
        (128, 128, "l4", 32),
    ],
)
def test_tiles_of_fa2(head_dim, tile_q, key, keys):
    rows = {16: 16, 64: 64, 128: 65}[tile_q]
    cut = flashinfer.fa2(Batch((1000,), 1, 1, head_dim, (rows,)), gpu(key))
    assert (cut.tile_q, cut.tile_keys) == (tile_q, keys)


def test_the_case_of_57_requests_is_split_on_cuda_cores_by_132_sms_and_not_by_108():
    """An older kernel with 66 registers, so that 7 blocks fit an SM."""
    older = {"registers": 66}
    batch = decode(57, 8192)
    assert flashinfer.decode_cuda_cores(batch, A100, **older).label() == "4 x 8, no split"
    assert flashinfer.decode_cuda_cores(batch, H200, **older).splits[0] == even(8192, 4096)
    assert flashinfer.fa2(batch, A100).label() == flashinfer.fa2(batch, H200).label()


def test_a_graph_splits_what_a_call_does_not_and_a_short_request_has_one_chunk():
    mixed = Batch((100, 9000), 32, 8, 128, page_size=16)
    assert [len(x) for x in flashinfer.fa2(mixed, H200).splits] == [1, 32]
    short = decode(2, 100)
    for cut in (flashinfer.fa2, flashinfer.decode_cuda_cores):
        assert cut(short, H200, cuda_graph=True).splits == cut(short, H200).splits
    assert flashinfer.fa2(Batch((0, 5), 32, 8, 128, page_size=16), H200).splits[0] == ((0, 0),)


def test_prefill_by_fa2_chooses_its_tile_by_the_average_of_the_batch():
    alone = flashinfer.fa2(Batch((64,), 1, 1, 128, (64,), causal=True), H200)
    beside = flashinfer.fa2(Batch((64, 900), 1, 1, 128, (64, 900), causal=True), H200)
    assert (alone.tile_q, beside.tile_q) == (64, 128)
    assert changed(alone, beside) == (0,)
    fa3 = [flashinfer.fa3(Batch((n,) * 3, 8, 8, 128, (n,) * 3), H200) for n in (64, 900)]
    assert [cut.label() for cut in fa3] == ["128 x 192, no split"] * 2


def test_chunks_of_mla_follow_the_sum_of_all_lengths():
    lengths = {n: flashinfer.mla(Batch((4096,) * n, 128, 1, 576), H200) for n in (1, 64)}
    assert lengths[1].splits[0] == even(4096, 192)  # 4096 keys on 66 clusters: 63 each
    assert lengths[64].splits[0] == even(4096)
    few = flashinfer.mla(Batch((4096,), 16, 1, 576), H200)  # 16 rows: a block alone, 132 of them
    assert few.splits[0] == even(4096, 128)
    with pytest.raises(ValueError, match="backend = 'cutlass', allowed: fa2, fa3"):
        flashinfer.mla(Batch((1,), 16, 1, 576), H200, backend="cutlass")


def test_flash_attention_4_has_a_tile_for_each_generation_and_splits_on_blackwell_alone():
    """Its own comment: 512 keys of 128 channels are never split."""
    wide, narrow = (Batch((8192,), 32, 8, head_dim) for head_dim in (128, 64))
    cut = flash_attention.flash_attention_4
    labels = {
        key: [cut(batch, gpu(key)).label() for batch in (narrow, wide)]
        for key in ("a100", "h200", "b200", "rtx5090")
    }
    assert labels == {
        "a100": ["128 x 64, no split"] * 2,
        "h200": ["192 x 128, no split", "128 x 128, no split"],
        "b200": ["128 x 128, no split"] * 2,
        "rtx5090": ["128 x 128, no split", "128 x 64, no split"],
    }
    b200 = gpu("b200")
    # 148 SMs for 8 blocks: 18 splits of 4 tiles, of which 16 have keys
    assert cut(wide, b200, num_splits=0).splits[0] == even(8192, 512)
    assert cut(replace(wide, kv_lens=(512,)), b200, num_splits=0).splits[0] == even(512)
    with pytest.raises(ValueError, match="page_size = 16, allowed on sm_120: None"):
        cut(replace(wide, page_size=16), gpu("rtx5090"))


def test_torch_takes_cudnn_first_where_it_prefers_it_and_never_for_one_key():
    batch = Batch((512,) * 4, 32, 32, 128)
    choose = torch_sdpa.backend
    assert [choose(batch, gpu(key)) for key in ("rtx4090", "h100", "b200", "rtx5090")] == [
        "flash",
        "cudnn",
        "cudnn",
        "flash",
    ]
    assert choose(batch, H200, prefers_cudnn=False) == "flash"
    assert choose(batch, H200, deterministic=True) == "flash"
    assert choose(replace(batch, kv_lens=(1,) * 4), H200) == "flash"
    assert choose(replace(batch, causal=True), A100) == "efficient"  # one query of 512 keys
    assert choose(replace(batch, head_dim=320), H200) == "efficient"
    assert choose(replace(batch, head_dim=100), H200) == "flash"
    assert choose(replace(batch, head_dim=300), A100) == "math"
    assert torch_sdpa.sdpa(batch, A100) == torch_sdpa.flash(batch, A100)
    with pytest.raises(NotKnown, match="cuDNN's version decides"):
        choose(replace(batch, head_dim=256), H200)


def test_requests_before_one_move_its_splits_in_flash_mla():
    """66 parts of an H200 for 128 heads; a piece of a request counts five blocks more.

    Alone, 64 blocks and 5 are 2 for a part. Eight requests have 552, of which a part takes 9: the
    first part leaves off in the first request, and the second request begins within a part.
    """
    alone, eight = (flash_mla.flash_mla(Batch((4096,) * n, 128, 1, 576), H200) for n in (1, 8))
    assert alone.splits[0] == even(4096, 128)
    assert eight.splits[0] == even(4096, 9 * 64)
    assert eight.splits[1][:2] == ((0, 3 * 64), (3 * 64, 12 * 64))
    assert all(splits[-1][1] == 4096 for splits in eight.splits)
    assert changed(alone, eight) == (0,)
    assert changed(eight, eight, (1,) * 8) == (0, 2, 4, 6)  # all are cut as 0 or as 1
    empty = flash_mla.flash_mla(Batch((0, 64), 128, 1, 576), H200)
    assert empty.splits == (((0, 0),), ((0, 64),))
    with pytest.raises(NotKnown, match="how FlashMLA rounds P"):
        changed_heads(np.zeros((1, 4096)), np.zeros((4096, 8)), alone, eight, dtype="bf16")


def test_fewer_splits_of_flash_attention_2_are_taken_where_nearly_as_full():
    """Its own example: 48 units on 108 places take 2 splits, which fill 0.89, and not 3."""
    assert flash_attention.splits_2(48, 108, 1000) == 2
    assert flash_attention.splits_2(87, 108, 1000) == 1  # four fifths of the places are enough
    assert flash_attention.splits_2(1, 264, 3) == 3
    # 85 of 132 places are not quite 85 % of 100 in float64, and are in fp32
    assert flash_attention.splits_3(1, Batch((1,), 1, 1, 64), 132, 100, 1, 1) == 86
    assert even_blocks(8192, 128, 7) == even(8192, 1280)


def test_the_cache_calls_tile_depends_on_a_split_that_was_chosen():
    """Heads of 64: 128 x 128 without splits; a cache takes 64 x 256, and since June 2026 64 x 128
    where it is not split.
    """
    batch = Batch((1000,) * 64, 4, 4, 64, page_size=16)
    how = {"split_kernel": True, "num_splits": 1}
    assert flash_attention.flash_attention_2(batch, H200, **how).label() == "64 x 128, no split"
    old = flash_attention.flash_attention_2(batch, H200, aligned=False, **how)
    assert old.label() == "64 x 256, no split"
    dense = flash_attention.flash_attention_2(batch, H200)
    assert dense.label() == "128 x 128, no split"
    how = {"split_kernel": True, "allocated": 131_072}
    room = flash_attention.flash_attention_2(batch.alone(), H200, **how)
    assert [
        len(room.splits[0]),
        len(flash_attention.flash_attention_2(batch.alone(), H200).splits[0]),
    ] == [1, 4]


def test_a_neighbour_changes_the_splits_of_flash_attention_3():
    alone = flash_attention.flash_attention_3(Batch((4096,), 32, 8, 128, page_size=64), H200)
    beside = Batch((4096, 100_000), 32, 8, 128, page_size=64)
    cut = flash_attention.flash_attention_3(beside, H200)
    assert changed(alone, cut, others=(0,)) == (0,)
    assert len(cut.splits[0]) < len(alone.splits[0])
    one = flash_attention.flash_attention_3(beside, H200, num_splits=1)
    assert [len(x) for x in one.splits] == [1, 1]


def test_a_long_prefill_beside_a_decode_changes_the_tile_of_vllms_fork_even_with_its_promise():
    alone = Batch((300,), 32, 8, 128, (1,))
    beside = Batch((300, 300), 32, 8, 128, (1, 300))
    cuts = [
        serving.vllm_flash_attention(batch, H200, batch_invariant=True) for batch in (alone, beside)
    ]
    assert [cut.label() for cut in cuts] == ["64 x 176, no split", "128 x 160, no split"]
    assert changed(*cuts) == (0,)
    paged = [replace(batch, page_size=16, causal=True) for batch in (alone, beside)]
    cuts = [serving.vllm_flash_attention(batch, H200, batch_invariant=True) for batch in paged]
    assert [cut.tile_keys for cut in cuts] == [128, 128]
    assert changed(*cuts) == (0,)  # vllm-project/vllm issue 51902 saw it from 129 keys on


def test_promises_of_the_servers_keep_a_decode_whatever_the_batch():
    promises = {
        "vLLM, FlashInfer": lambda b, g: serving.vllm_flashinfer(b, g, batch_invariant=True),
        "vLLM": lambda b, g: serving.vllm_flash_attention(b, g, batch_invariant=True),
        "SGLang": lambda b, g: serving.sglang_flashinfer(b, g, deterministic=True),
        "SGLang, FA3": lambda b, g: serving.sglang_flash_attention(b, g, deterministic=True),
    }
    for name, cut in promises.items():
        assert {first_that_differs(cut, n) for n in (512, 8192)} == {None}, name
    eager, graph = (
        serving.sglang_flashinfer(decode(1, 8192), H200, deterministic=True, cuda_graph=captured)
        for captured in (False, True)
    )
    assert (eager.splits[0], graph.splits[0]) == (even(8192, 2048), even(8192))
    prefill = Batch((8192,) * 3, 32, 8, 128, (512,) * 3, causal=True)
    chunk = serving.sglang_flashinfer(prefill, H200, deterministic=True)
    assert chunk.splits[0] == even(8192, 4096)
    with pytest.raises(NotKnown, match="SGLang's prefill merges"):
        serving.sglang_flashinfer(prefill, H200)


def test_what_no_source_tells_is_refused_by_name():
    batch = decode(2, 512)
    refused = {
        "cuDNN chooses": lambda: torch_sdpa.sdpa(batch, H200),
        "cuBLAS chooses": lambda: torch_sdpa.math(batch, H200),
        "registers of the kernel": lambda: flashinfer.decode_cuda_cores(batch, A100),
        "head_dim = 512": lambda: flashinfer.fa2(Batch((5,), 1, 1, 512), H200),
        "FlashAttention-3's tiles on sm_80": lambda: flash_attention.flash_attention_3(batch, A100),
        "kv_lens": lambda: torch_sdpa.flash(Batch((5, 6), 1, 1, 64), H200),
    }
    for words, ask in refused.items():
        with pytest.raises(NotKnown, match=words):
            ask()
    with pytest.raises(ValueError, match="allowed on sm_90: 1"):
        flash_attention.flash_attention_4(batch, H200, num_splits=4)
    with pytest.raises(ValueError, match="group = 5, allowed: 1, 2, 3, 4, 6, 8"):
        flashinfer.decode_cuda_cores(Batch((5,), 5, 1, 128), H200)
    with pytest.raises(ValueError, match="q_heads = 3, allowed: multiples of 2"):
        Batch((5,), 3, 2, 128)
