"""The contract and the verdict find each mistake that is seeded in a variant of attention."""

import pytest
import torch

from labkernels.audit.verdict import verdict
from labkernels.kernels.caches.mask import unpacked
from labkernels.kernels.kernel import Kernel
from labkernels.measure.mutants.mutant import Edit, mutated
from labkernels.numerics.verdict.verdict import decide
from labkernels.policy import NumericPolicy
from tests.kernels.contract import SPECS, run_checked
from tests.kernels.decode.cases import decode_case
from tests.kernels.prefill.cases import prefill_case
from tests.kernels.variants.cases import varied

VARIANT, DECODE, ROWS = "lab/attention/variant.cuh", "decode/problem.cuh", "packed_gqa/rows.cuh"
FOUND = "(out|lse2) is .* off where|NaN or infinity in"
LEFT, BEHIND, CAP = {"window_left": 37}, {"window_right": 9}, {"soft_cap": 3.0}
BITS, MMA = {"mask": 0.5}, "prefill/mma/kernel.cuh"
CAP_FIRST = Edit(
    VARIANT,
    r"p\.variant\.exponent_of_cap\);(.*?cap = p\.variant\.soft_cap_log2);",
    r"(-2.f * log2_e * log2_e / p.variant.soft_cap_log2));\1 * (p.scale_log2 / log2_e);",
)
SINK_APART = Edit(VARIANT, r"ex2_approx\(sink - softmax\.m\[r\]\)", "ex2_approx(sink)")
OF_BOTH = {
    "the cap before the scale": (CAP_FIRST, CAP),
    "no cap": (Edit(VARIANT, r"s = capped\(s, p\)", "s = s * p.scale_log2"), CAP),
    "the sink outside the maximum": (SINK_APART, {"sinks": True}),
    "the sink of the head beside": (
        Edit(VARIANT, r"p\.variant\.sinks \+ head", "p.variant.sinks + (head ^ 1)"),
        {"sinks": True},
    ),
    "the slope of the head beside": (
        Edit(VARIANT, r"p\.variant\.alibi \+ head", "p.variant.alibi + (head ^ 1)"),
        {"alibi": True},
    ),
    "the biases of the head beside": (
        Edit(VARIANT, r"found\.bias = head", "found.bias = (head ^ 1)"),
        {"bias": True},
    ),
    "the bias of the key behind": (
        Edit(VARIANT, r"key - slope\.place", "key + 1 - slope.place"),
        {"bias": True},
    ),
    "a slope of the other sign": (
        Edit(VARIANT, r"fma_rn\(slope\.log2,", "fma_rn(-slope.log2,"),
        {"alibi": True},
    ),
}
LEFT_OF_DECODE, LEFT_OF_ROW = (
    r"kv_len - 1(?= - p\.variant)",
    r"(?<= - p\.variant\.window_left)(?=, 0)",
)
WRONG = {
    "decode_mma": {
        "a key before the window": (Edit(DECODE, LEFT_OF_DECODE, "kv_len - 2"), LEFT),
        "the window's first key left out": (Edit(DECODE, LEFT_OF_DECODE, "kv_len"), LEFT),
        "the sink in every split": (
            Edit(DECODE, r"w\.split == 0 && thread_x", "thread_x"), {"sinks": True},
        ),
        **OF_BOTH,
    },
    "prefill_mma": {
        "a key before the window": (Edit(ROWS, LEFT_OF_ROW, " - 1"), LEFT),
        "the window's first key left out": (Edit(ROWS, LEFT_OF_ROW, " + 1"), LEFT),
        "a key behind the window": (Edit(ROWS, r"1(?= \+ p\.variant\.window_right)", "2"), BEHIND),
        "the window's last key left out": (
            Edit(ROWS, r"1(?= \+ p\.variant\.window_right)", "0"), BEHIND,
        ),
        "the bits of the query behind": (
            Edit(ROWS, r"(token_of\(p, b\.first_row \+ row\))}( \* b\.kv_len)", r"\1 + 1}\2"), BITS,
        ),
        "the bits of the key behind": (
            Edit(ROWS, r"b\.kv_len \+ key;", "b.kv_len + key + 1;"), BITS,
        ),
        "the bits of the first request": (
            Edit(ROWS, r"mask_begins \+ b\.request", "mask_begins"), BITS,
        ),
        "bits in the other order": (
            Edit(MMA, r"(?<=j % 4 \* 8 )\+ i", "+ 7 - i"), BITS,
        ),
        **OF_BOTH,
    },
}  # fmt: skip
CASES = [
    pytest.param(kernel, *mutant, id=f"{kernel}: {name}")
    for kernel, mutants in WRONG.items()
    for name, mutant in mutants.items()
]


def case_of(kernel: str, variant: dict):
    """Return a case with several splits, windows' edges in every request, and different heads."""
    if kernel.startswith("decode"):
        return varied(decode_case((200, 90, 300), seed=5), **variant)
    return varied(prefill_case((70, 20), (200, 90), causal=False, group=4, seed=5), **variant)


def judged(case, kernel: str | Kernel):
    """Return the public verdict on a kernel's output, which is told the variant."""
    found, how = case.run(kernel, keys_per_split=128), dict(case.variant)
    if "mask" in how:
        how["mask"] = unpacked(how["mask"], *case.lengths)
    if "bias" in how:  # the public verdict takes biases of each pair
        out, lse2 = (x.double().numpy() for x in (found.out, found.lse2))
        policy = NumericPolicy("fp16", None, out="fp16")
        return decide(case.problem(), out, policy=policy, lse2=lse2, named=False)
    keys = {"cache": case.kv}
    if case.verb == "prefill":
        ends = {"cu_seqlens": case.kv.cu_seqlens, "cu_seqlens_q": case.cu_seqlens_q}
        keys = {"k": case.kv.k, "v": case.kv.v, **ends}
    return verdict(found.out, case.q, **keys, lse2=found.lse2, scale=case.scale, **how)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("kernel", "edit", "variant"), CASES)
def test_a_wrong_variant_is_found(kernel, edit, variant):
    case, wrong = case_of(kernel, variant), mutated(SPECS[kernel], edit)
    with pytest.raises(AssertionError, match=FOUND):
        run_checked(case, wrong, keys_per_split=128)
    assert judged(case, wrong).answer == "BUG"


def test_rows_without_keys_have_their_sinks_lse_or_none():
    """A library may give -inf there; any other log-sum-exp is a bug."""
    case = varied(decode_case((0, 90)), sinks=True)
    step = case.run("decode_mma")
    answers = []
    for lse2 in (step.lse2[0].clone(), torch.full((8,), -torch.inf), step.lse2[0] + 1e-3):
        both = torch.stack([lse2, step.lse2[1]])
        how = {"cache": case.kv, "scale": case.scale, "sinks": case.variant["sinks"]}
        answers.append(verdict(step.out, case.q, lse2=both, **how).answer)
    assert answers == ["ROUNDING", "ROUNDING", "BUG"]
