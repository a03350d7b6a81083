import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.variant import CAUSAL, FULL, AttentionVariant

CASE_000 = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
LENGTHS = st.lists(st.integers(0, 5000), min_size=1, max_size=6)


def test_case_000_moves_1_91_gb_and_computes_7_65_gflop():
    assert CASE_000.kv_bytes == 1_912_602_624
    assert CASE_000.flops == 7_650_410_496
    assert (CASE_000.batch, CASE_000.group, CASE_000.max_kv_len) == (57, 4, 8192)
    assert hash(CASE_000) == hash(dataclasses.replace(CASE_000, kv_lens=[8192] * 57))
    rows = 57 * 32
    assert CASE_000.bytes == CASE_000.kv_bytes + rows * (128 * 2 + 128 * 2 + 4)
    assert CASE_000.exps == 57 * 8192 * 32
    assert CASE_000.label == "57 x 8192, 32/8, d128, page 16, bf16"


@given(LENGTHS, st.integers(1, 8), st.integers(1, 16))
def test_a_ragged_batch_costs_what_its_requests_cost(lengths, kv_heads, group):
    heads = {"q_heads": kv_heads * group, "kv_heads": kv_heads, "head_dim": 64}
    whole = Decode(tuple(lengths), **heads)
    parts = [Decode((n,), **heads) for n in lengths]
    for field in ("kv_bytes", "bytes", "flops", "exps"):  # of a request of no keys, only bytes
        assert getattr(whole, field) == sum(getattr(part, field) for part in parts)


def test_prefill_counts_as_benchmarks_do():
    full = Prefill((4096,) * 4, (4096,) * 4, 16, 16, 128)
    causal = dataclasses.replace(full, causal=True)
    assert full.flops == 4 * 4 * 16 * 4096**2 * 128
    assert causal.flops * 2 == full.flops
    assert full.bytes == 4 * 4 * 4096 * 16 * 128 * 2 + 4 * 4096 * 16 * 4
    # for 3 queries on 5 keys, benchmarks count (2 + 5) / 2 = 3.5 keys per query
    assert Prefill((3,), (5,), 1, 1, 2, causal=True).flops == 4 * 2 * 3.5 * 3


def test_prefill_may_have_other_channels_of_v_and_pages():
    wide = Prefill((10, 20), (30, 40), 4, 2, 192, head_dim_v=128, page_size=16)
    pairs = 10 * 30 + 20 * 40
    assert wide.flops == 2 * pairs * 4 * (192 + 128)
    assert wide.bytes == (30 * 4 + 70 * 2) * (192 + 128) * 2 + 30 * 4 * 4
    assert wide.label == "ragged 2 x <=20 on ragged 2 x <=40, 4/2, d192/128, page 16, full, bf16"
    assert (wide.batch, wide.group) == (2, 2)
    even = Prefill([2048] * 4, [2048] * 4, 16, 16, 128, causal=True)
    assert even.label == "4 x 2048 on 4 x 2048, 16/16, d128, causal, bf16"
    assert Prefill((1,), (1,), 1, 1, 64).head_dim_v == 64


def test_backward_is_five_products_where_forward_is_two():
    shape = ((512, 100), (512, 333), 8, 2, 64)
    for causal in (False, True):
        assert Backward(*shape, causal=causal).flops * 2 == Prefill(*shape, causal=causal).flops * 5
    tensors = 4 * 612 * 8 * 64 * 2 + 4 * 845 * 2 * 64 * 2
    assert Backward(*shape).bytes == tensors + 612 * 8 * 4
    wide = Backward((10, 20), (30, 40), 4, 2, 192, head_dim_v=128)
    assert wide.flops == 2 * (10 * 30 + 20 * 40) * 4 * (3 * 192 + 2 * 128)
    assert wide.bytes == (2 * 30 * 4 + 2 * 70 * 2) * (192 + 128) * 2 + 30 * 4 * 4
    assert "d192/128" in wide.label


def test_mla_reads_one_latent_row_a_key():
    mla = MlaDecode((8192,) * 128, 16)
    assert mla.batch == 128
    assert mla.kv_bytes == 128 * 8192 * 576 * 2
    assert mla.flops == 2 * 128 * 16 * 8192 * (576 + 512)
    assert mla.bytes == mla.kv_bytes + 128 * 16 * ((576 + 512) * 2 + 4)
    assert (mla.group, mla.exps) == (16, 128 * 16 * 8192)
    causal, full = (MlaDecode((10, 2, 0), 3, q_len=4, causal=c) for c in (True, False))
    assert causal.exps == 3 * (10 + 9 + 8 + 7 + 2 + 1)  # a draft sees one key less a token
    assert full.exps == 3 * 4 * 12
    assert causal.flops == 2 * causal.exps * (576 + 512)
    assert causal.label == "ragged 3 x <=10, 3 heads x 4 tokens, d512+64, page 64, bf16"


WINDOW = AttentionVariant(window_left=99, soft_cap=50.0, sinks=True, alibi=True)


def test_a_window_counts_the_keys_in_it():
    plain, window = (
        Decode((1000, 40), 8, 2, 64, variant=v) for v in (FULL, AttentionVariant(window_left=99))
    )
    assert (plain.exps, window.exps) == (8 * 1040, 8 * 140)
    assert window.flops * 1040 == plain.flops * 140
    assert window.kv_bytes * 1040 == plain.kv_bytes * 140
    given = dataclasses.replace(window, variant=WINDOW)
    assert given.exps == 2 * window.exps  # each tanh takes an exponential
    assert given.flops == window.flops
    assert given.bytes == window.bytes + 2 * 4 * 8
    assert given.label == "ragged 2 x <=1000, 8/2, d64, page 16, bf16, window 99, soft cap 50, " + (
        "slopes, sinks"
    )


@given(st.integers(0, 9), st.integers(0, 9), st.booleans(), *[st.none() | st.integers(0, 4)] * 2)
def test_a_prefill_with_a_window_counts_the_pairs_of_a_mask(m, n, causal, left, right):
    variant = AttentionVariant(causal, left, right)
    work = Prefill((m,), (n,), 2, 1, 8, variant=variant)
    seen = [
        [key for key in range(n) if variant.begin(i, m, n) <= key < variant.end(i, m, n)]
        for i in range(m)
    ]
    if "window" in variant.features:
        assert work.exps == 2 * sum(map(len, seen))
        assert work.flops == 4 * 8 * work.exps
    keys = {key for row in seen for key in row}
    if m and n >= m:
        assert work.bytes == 2 * m * 2 * 8 * 2 + 2 * len(keys) * 8 * 2 + 4 * 2 * m


def test_causal_is_the_variants_unless_it_is_given():
    shape = ((8,), (8,), 1, 1, 64)
    assert Prefill(*shape).variant == FULL
    assert Prefill(*shape, causal=True).variant == CAUSAL
    by_variant = Prefill(*shape, variant=CAUSAL)
    assert by_variant == Prefill(*shape, causal=True)
    full = dataclasses.replace(by_variant, causal=False)
    assert (full.causal, full.variant) == (False, FULL)
    assert by_variant.label.endswith("d64, causal, bf16")
    assert MlaDecode((8,), 16).variant == CAUSAL


GOOD = {
    Decode: {"kv_lens": (1, 2), "q_heads": 8, "kv_heads": 4, "head_dim": 64},
    Prefill: {"q_lens": (1,), "kv_lens": (1,), "q_heads": 1, "kv_heads": 1, "head_dim": 64},
    Backward: {"q_lens": (1,), "kv_lens": (1,), "q_heads": 1, "kv_heads": 1, "head_dim": 64},
    MlaDecode: {"kv_lens": (1,), "q_heads": 16},
}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Decode, {"kv_lens": ()}, r"kv_lens = \(\), allowed: at least one length"),
        (Decode, {"kv_lens": 8}, r"kv_lens = 8, allowed: a sequence"),
        (Decode, {"kv_lens": "12"}, r"kv_lens = '12', allowed: a sequence"),
        (Decode, {"kv_lens": (1, -1)}, r"kv_lens\[1\] = -1, allowed: an integer >= 0"),
        (Decode, {"kv_lens": (1.0,)}, r"kv_lens\[0\] = 1\.0, allowed: an integer"),
        (Decode, {"q_heads": 6}, r"q_heads = 6, allowed: a multiple of kv_heads = 4"),
        (Decode, {"kv_heads": 0}, r"kv_heads = 0, allowed: an integer >= 1"),
        (Decode, {"head_dim": True}, r"head_dim = True, allowed: an integer >= 1"),
        (Decode, {"page_size": 0}, r"page_size = 0, allowed: an integer >= 1"),
        (Decode, {"dtype": "int8"}, r"dtype = 'int8', allowed: fp16, bf16, fp32, fp64"),
        (Prefill, {"q_lens": (1, 2)}, r"kv_lens has 1 lengths, allowed: as many as q_lens, 2"),
        (Prefill, {"head_dim_v": 0}, r"head_dim_v = 0, allowed: an integer >= 1"),
        (Prefill, {"page_size": 0}, r"page_size = 0, allowed: an integer >= 1"),
        (Backward, {"causal": 1}, r"causal = 1, allowed: True, False"),
        (MlaDecode, {"rope_dim": -1}, r"rope_dim = -1, allowed: an integer >= 0"),
    ],
)
def test_bad_sizes_are_refused(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind(**(GOOD[kind] | change))
    with pytest.raises(ValueError, match=r"batch = 0, allowed: an integer >= 1"):
        Decode.uniform(0, 8, q_heads=1, kv_heads=1)
