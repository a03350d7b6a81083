"""Right kernels have no defect, and their facts are what their sources say."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from labkernels import ops
from labkernels.defects import MASK, MEMORY
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.probing import probe, targets
from labkernels.variant import AttentionVariant
from tests.probing.attention import dense, paged, split

HEADS = (4, 2)
SINKS, SLOPES = torch.tensor([-0.5, 1.0, 2.0, 0.3]), torch.tensor([0.5, 0.25, 0.125, 0.0625])


def facts(sheet) -> dict[str, str]:
    """Return the facts' values, where the sheet has no defect."""
    assert sheet.verdict == "no defect", str(sheet)
    assert sheet.calls <= 200
    return {name: fact.value for name, fact in sheet.facts.items()}


@pytest.mark.parametrize(
    ("kernel", "p", "tile"),
    [
        pytest.param(
            "decode_fma", "fp32", "not read: P in fp32 leaves no trace", marks=pytest.mark.long
        ),
        ("decode_mma", "bf16", "16"),
    ],
)
def test_our_decode_kernels(kernel, p, tile):
    def fn(q, k, v, table, lens):
        return ops.decode(q, PagedKV(k, v, table, lens), kernel=kernel)

    found = facts(probe(fn, "paged_decode"))
    assert found["P"] == p
    assert found["tile of keys"] == tile
    assert found["deterministic"] == found["batch-invariant"] == "yes"
    assert found["LSE"].startswith("natural scores, base 2")
    assert found["empty request"] == "0, LSE -inf"


@pytest.mark.long  # its mask is found beside a sink below
def test_our_causal_prefill():
    def fn(q, k, v, cu_q, cu_k):
        return ops.prefill(q, RaggedKV(k, v, cu_k), cu_q, kernel="prefill_mma", causal=True)

    found = facts(probe(fn, "ragged", dtype="fp16"))
    assert (found["mask"], found["P"]) == ("causal, bottom right", "fp16")


@pytest.mark.parametrize(
    ("kernel", "variant", "said"),
    [
        ("decode_mma", {"window_left": 30, "soft_cap": 20.0}, {"window": "30 keys to the left"}),
        ("prefill_mma", {"causal": True, "sinks": True}, {"mask": "causal, bottom right"}),
        (
            "prefill_mma",
            {"causal": True, "alibi": True},
            {"slopes": "0.25, 0.0625, 0.0156, 0.0039"},
        ),
    ],
)
def test_our_variants_are_found_untold(kernel, variant, said):
    target = targets.find(kernel)
    fn = target.function(target.layouts[0], AttentionVariant(**variant))
    found = facts(probe(fn, target.layouts[0], heads=HEADS, quick=True))
    assert {name: found[name] for name in said} == said
    assert (found["sinks"] != "none") == ("sinks" in variant)


def test_a_kernel_of_ours_refuses_a_variant_that_it_does_not_compute():
    with pytest.raises(ValueError, match="window_left = 4, allowed: none by this kernel"):
        targets.find("mla_mma").function("mla", AttentionVariant(window_left=4))


def test_our_latent_decode():
    def fn(q_nope, q_pe, ckv, kpe, table, lens):
        return ops.mla_decode(q_nope, q_pe, LatentKV(ckv, kpe, table, lens), kernel="mla_mma")

    found = facts(probe(fn, "mla", quick=True))
    assert found["product with the latent"] == "as asked"
    assert found["scale"] == f"{192**-0.5:.6g}"


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_torch_with_gradients(layout):
    def fn(q, k, v):
        q, k, v = (x.transpose(1, 2) if layout == "bshd" else x for x in (q, k, v))
        with sdpa_kernel(SDPBackend.MATH):
            out = scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2) if layout == "bshd" else out

    found = facts(probe(fn, layout, "fp32", gradients=True, quick=True))
    assert found["dQ"] == found["dK"] == found["dV"] == "right"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"causal": True, "window": 32}, {"window": "32 keys to the left"}),
        ({"window": 20}, {"mask": "none", "window": "20 keys to the left"}),
        ({"cap": 30.0}, {"soft cap": "30"}),
        ({"causal": True, "sinks": SINKS}, {"sinks": "-0.5, 1, 2, 0.3"}),
        ({"causal": True, "slopes": SLOPES}, {"slopes": "0.5, 0.25, 0.125, 0.0625"}),
    ],
)
def test_variants_are_found_untold(how, said):
    found = facts(probe(dense(**how), heads=HEADS, quick=True))
    assert {name: found[name] for name in said} == said


def test_a_window_with_a_right_end_is_what_was_declared():
    declared = AttentionVariant(window_left=20, window_right=7)
    found = facts(probe(dense(window=20, right=7), variant=declared, quick=True))
    assert found["window"] == "20 keys to the left, 7 keys to the right"
    sheet = probe(dense(window=20, right=8), variant=declared, quick=True)
    assert sheet.defects[0].kind == MASK


def test_a_top_left_mask_is_found():
    stages = {
        "mask": lambda seen, place, key, n: seen & (key <= torch.arange(place.shape[1])[:, None])
    }
    assert facts(probe(dense(stages=stages), quick=True))["mask"] == "causal, top left"


def test_a_cubic_exponential_is_a_fact_and_no_defect():
    def cubic(p, i):
        return p * (1 + 8e-5 * torch.sin(40 * torch.log(p.clamp_min(1e-30))))

    found = facts(probe(dense(stages={"p of l": cubic, "p": cubic}), quick=True))
    assert found["exponential"].startswith("approximate")


def test_partial_outputs_and_splits_are_right():
    def joined(lse):
        w = torch.exp(lse - lse.max(0).values)
        return w, w.sum(0)

    assert facts(probe(split(joined), quick=True))["P"] == "fp32"


def test_ragged_lengths_in_pages_that_spoil():
    # The function multiplies masked weights, which are 0, by whatever lies there.
    cause = probe(paged(), "paged_decode", heads=HEADS).defects[0]
    assert cause.kind == MEMORY
    assert "NaN there spoils rows" in cause.sentence
