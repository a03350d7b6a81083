"""Cases of every variant of attention, with NaN in the keys that lie before every row's window."""

from collections.abc import Iterator
from itertools import combinations
from math import nan

import torch

from labkernels.kernels.caches.mask import pack_mask
from labkernels.kernels.kernel import Kernel
from tests.kernels.decode.cases import LAYOUTS, copied
from tests.kernels.prefill.cases import RAGGED_LAYOUTS

# Windows that end inside a step, at its edge, beyond the keys, and to the left or right alone.
WINDOWS = (
    {"window_left": 37},
    {"window_left": 5, "window_right": 9},
    {"window_left": 64, "window_right": 0},
    {"window_right": 3},
    {"window_left": 0},
    {"window_left": 100},
    {"window_left": 1000, "window_right": 70},
)
OTHERS = {"soft_cap": 3.0, "alibi": True, "sinks": True, "mask": 0.5, "bias": True}
REACH = 20  # of biases: shorter and longer than the distances of a case
# Keys before the window that a kernel may read: its copies bring whole steps, or torch reads all.
READ_BEFORE = {"prefill_wgmma": 192, "triton_prefill": 128}
READ_BEFORE |= dict.fromkeys(("reference", "reference_prefill"), 2**30)
DECODE, PREFILL = ((0, 1, 50, 300, 129),), ((5, 100, 1, 0, 130, 70), (5, 200, 90, 9, 130, 20))
FEW_DECODE, FEW_PREFILL = ((0, 1, 90),), ((5, 20, 0, 3), (5, 90, 7, 1))
CUTS = ({}, {"keys_per_split": 64}, {"splits": 3}, {"keys_per_split": 37})


def varied(case, kernel: str = "", *, seed: int = 0, **variant):
    """Return a case of a variant, in which keys that a kernel must not read are NaN.

    alibi, sinks, bias: True for random slopes, sinks and biases of each query head. mask: how many
    of the keys a query sees. The truth is that of the numbers before they became NaN.
    """
    heads, generator = case.q.shape[1], torch.Generator().manual_seed(seed)
    made = {
        "alibi": 2.0 ** -(8 * torch.rand(heads, generator=generator)),
        "sinks": 2 * torch.randn(heads, generator=generator),
        "bias": 2 * torch.randn(heads, 2 * REACH + 1, generator=generator),
    }
    given = {name: made[name].to(case.q.device) for name in made if variant.get(name)}
    if "mask" in variant:
        given["mask"] = masked(case.lengths, variant["mask"], generator).to(case.q.device)
    shown = case.changed(variant={**variant, **given})
    hidden = _hidden(shown, variant.get("window_left"), READ_BEFORE.get(kernel, 0))
    hidden.known["problem"] = shown.problem()
    return hidden


def masked(lengths, share: float, generator: torch.Generator) -> torch.Tensor:
    """Return a mask of bits that shows a share of the keys, and hides all of the third query's."""
    shown = [
        torch.rand(n, keys, generator=generator) < share for n, keys in zip(*lengths, strict=True)
    ]
    for mask in shown:
        mask[2:3] = False
    return pack_mask(shown)


def _hidden(case, window_left: int | None, read_before: int):
    """Return a copy of a case with NaN in the keys before the window of a request's first row."""
    if window_left is None:
        return case
    kv, ends = case.kv, case.cu_seqlens_q
    (q, k, v), storage = copied([case.q, kv.k, kv.v], case.storage, case.q.device)
    paged = kv.layout == "paged"
    kv_lens = (kv.kv_len if paged else kv.cu_seqlens.diff()).tolist()
    q_lens = [1] * len(kv_lens) if ends is None else ends.diff().tolist()
    for i, (n, keys) in enumerate(zip(q_lens, kv_lens, strict=True)):
        before = torch.arange(max(0, keys - n - window_left - read_before), device=q.device)
        place = (before + (0 if paged else int(kv.cu_seqlens[i])),)
        if paged:
            place = kv.page_table[i, before // kv.page_size].long(), before % kv.page_size
        k[place] = v[place] = nan
    fields = {case.kv_field: kv.__class__(k, v, *[x for x in kv.tensors.values()][2:])}
    return case.changed(q=q, storage=storage, **fields)


def combined(features: tuple[str, ...]) -> list[dict]:
    """Return variants of each feature, of each pair of features, and of all features."""
    found = []
    for names in [*combinations(features, 1), *combinations(features, 2), features]:
        others = {name: OTHERS[name] for name in names if name != "window"}
        windows = WINDOWS if names == ("window",) else WINDOWS[len(found) % 7 :][:2]
        found += [{**window, **others} for window in windows] if "window" in names else [others]
    return found


def variants(spec: Kernel, *, interpreted: bool = False) -> Iterator[tuple]:
    """Yield the trials of a kernel's variants."""
    if not spec.features:
        return
    decodes, backward = spec.operation == "decode", spec.operation == "backward"
    long, few = (DECODE, FEW_DECODE) if decodes else (PREFILL, FEW_PREFILL)
    lengths = few if interpreted else long
    for turn, variant in enumerate(combined(spec.features)):
        cut = CUTS[turn % 2 if decodes else turn % 4]
        if backward:
            cut = {"deterministic": turn % 2 == 1}
        shape = {
            "group": (2, 4, 3)[turn % 3],
            "kv_heads": 1 + turn % 2,
            "layout": LAYOUTS[turn % 4],
        }
        if not decodes:
            shape["causal"] = turn % 3 > 0 and "window_right" not in variant
            if turn % 2 and not backward:
                shape["page_size"] = 16
            else:
                shape["layout"] = RAGGED_LAYOUTS[turn % 3]
        yield "variant", lengths, shape, (cut,), 1.0, None, variant
