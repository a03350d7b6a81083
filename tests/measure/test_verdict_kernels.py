"""The verdict on real kernels: no false alarm on right ones, the right name for wrong ones."""

import pytest
import torch

from labkernels import ops
from labkernels.cuda.host import HostKernelError
from tests.kernels.contract import CUDA
from tests.kernels.mutants import use_mutant
from tests.kernels.test_mutants import KERNEL, PAGES, STATE
from tests.measure.verdict_cases import FAMILIES, SHAPES, family_case, judged


@pytest.mark.parametrize("kernel", CUDA)
@pytest.mark.parametrize("out", ["input", "fp32"])
def test_no_right_kernel_is_called_a_bug(kernel, out):
    spec = CUDA[kernel]
    policy = next(p for p in spec.policies if (p.out, p.exp2) == (out, "mufu"))
    answers = []
    for dtype in ("fp16", "bf16"):
        for family in FAMILIES:
            for seed, (kv_lens, group, keys) in enumerate(SHAPES):
                case = family_case(family, kv_lens, group=group, dtype=dtype, seed=seed)
                done = ops.decode(
                    case.q,
                    case.cache,
                    kernel=kernel,
                    policy=policy,
                    scale=case.scale,
                    keys_per_split=keys,
                )
                found = judged(case, done.out, spec, policy, lse2=done.lse2)
                assert found.answer != "BUG", f"{dtype} {family} {kv_lens}\n{found.summary()}"
                answers.append(found.answer)
    assert answers.count("ROUNDING") >= len(answers) - 1


# kernel, file, pattern, what it becomes, the name that must be given
MUTANTS = {
    "the last key forgotten": (
        "decode_mma_n8",
        PAGES,
        r"end < kv_len \? end : kv_len",
        "end < kv_len ? end : kv_len - 1",
        "key left out",
    ),
    "the page after": (
        "decode_fma",
        PAGES,
        r"pages \+ slot\)",
        "pages + (slot == 3 ? 4 : slot))",
        "wrong page",
    ),
    "K of a KV head beside": (
        "decode_mma_n8",
        PAGES,
        r"(?<=p.k_pool\) \+ )w\.kv_head",
        "(w.kv_head ^ 1)",
        "K of another head",
    ),
    "a split left out": (
        "decode_mma",
        STATE,
        r"first \+ lane < work\.live_splits",
        "first + lane < work.live_splits - 1",
        "split left out",
    ),
    "P truncated": (
        "decode_mma",
        KERNEL,
        r"state\.l\[r\] = state\.l\[r\] \+ s\[j\]\[i\];",
        "state.l[r] = state.l[r] + s[j][i]; "
        "{ union { float f; u32 u; } x; x.f = s[j][i]; x.u &= 0xffff0000u; s[j][i] = x.f; }",
        "P truncated",
    ),
    "wrong scale": ("decode_mma", KERNEL, r"p\.scale_log2\)", "p.scale_log2 * 1.02f)", "scale"),
    "o not rescaled": ("decode_mma", KERNEL, r"if \(warp_any\(", "if (false && warp_any(", None),
    "merge in base e": (
        "decode_mma",
        STATE,
        r"weight = rescale_of<P>\(part_m, top\)",
        "weight = rescale_of<P>(1.442695f * part_m, 1.442695f * top)",
        "mixed log base",
    ),
}


@pytest.mark.parametrize(("kernel", "file", "pattern", "by", "name"), MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_kernel_is_a_bug_with_its_name(
    kernel, file, pattern, by, name, tmp_path, monkeypatch
):
    use_mutant(monkeypatch, tmp_path, kernel, file, pattern, by)
    spec, seen = CUDA[kernel], []
    for seed in range(3):
        case = family_case("normal", (600, 1000), group=4, dtype="bf16", seed=seed)
        case.cache.k.nan_to_num_(), case.cache.v.nan_to_num_()
        try:
            out = ops.decode(
                case.q, case.cache, kernel=kernel, scale=case.scale, keys_per_split=256
            ).out
        except HostKernelError:
            pytest.fail("the checker should not be on here")
        assert not torch.isnan(out).any()
        found = judged(case, out, spec, spec.policies[0])
        assert found.answer == "BUG", found.summary()
        seen.append([match.name for match in found.matches])
    if name:
        assert all(names and names[0].startswith(name) for names in seen), seen
