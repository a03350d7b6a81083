"""Heads of 32, 80 and 96 channels have the bits of copies that zeros widen."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

from labkernels import ops
from labkernels.compat import flash_attn
from labkernels.kernels.kernel import PADDED_DIMS, tile_width
from tests.compat.judged import close, normal
from tests.kernels.backward.cases import BACKWARDS, backward_case, varied_backward
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import LAYOUTS, bits, narrowed
from tests.kernels.prefill.cases import RAGGED_LAYOUTS
from tests.kernels.trials import CASES, tiles_of
from tests.kernels.variants.cases import varied

PADDED, IN_TRITON = (
    [n for n, spec in SPECS.items() if spec.padded_dims and spec.language == language]
    for language in ("cuda", "triton")
)
LENGTHS = {"decode": ((0, 1, 17, 150),), "prefill": ((0, 1, 17, 40), (5, 1, 0, 150))}
VARIANT = {"window_left": 37, "soft_cap": 3.0, "alibi": True, "sinks": True}


def layouts(kernel):
    """Yield the options of cases in which the rows of a kernel lie in different ways."""
    spec = SPECS[kernel]
    if "ragged" in spec.layouts:
        yield from ({"layout": layout} for layout in RAGGED_LAYOUTS)
    if "paged" in spec.layouts:
        yield from ({"layout": layout, "page_size": 16} for layout in LAYOUTS)
        yield {"layout": "padded", "page_size": 3}


def widened(case):
    """Return the case on copies that zeros widen to the channels of the kernels' tiles."""
    to = tile_width(case.q.shape[-1])
    q, k, v = (
        pad(x, (0, to - x.shape[-1])) for x in (case.q, case.kv.k.float(), case.kv.v.float())
    )
    k, v = k.to(case.kv.k.dtype), v.to(case.kv.v.dtype)
    return case.changed(q=q, **{case.kv_field: replace(case.kv, k=k, v=v)})


def check_same_bits(case, kernel, **options):
    """Assert that a kernel gives the bits of the widened case, whose last channels are zeros."""
    found, expected = (x.run(kernel, **options) for x in (case, widened(case)))
    channels = case.q.shape[-1]
    assert torch.equal(bits(found.out), bits(expected.out[..., :channels].contiguous()))
    assert not expected.out[..., channels:].any()
    assert torch.equal(bits(found.lse2), bits(expected.lse2))
    return found


def check_gradients(kernel, head_dim, device="cpu", layout="padded", tiles=2):
    """Assert that a kernel gives the bits of widened tensors, with an ordered dq."""
    spec, to = BACKWARDS[kernel], tile_width(head_dim)
    how = {"head_dim": head_dim, "layout": layout, "dtype": "bf16", "group": 3, "device": device}
    case = backward_case((1, 17, 40, 0), (30, 17, 131, 9), kv_heads=1, **how)
    ordered = [tile for tile in tiles_of(spec, head_dim=head_dim) if "ordered" in tile][:tiles]
    cases = [(case, {"tile": tile}) for tile in ordered]
    if spec.features:
        cases.append((varied_backward(case, kernel, **VARIANT), {"deterministic": True}))
    for each, options in cases:
        found, given = each.step(kernel, **options), each.arguments
        wide = [pad(x, (0, to - head_dim)) for x in given[:5]]
        of = each.forward
        how = {"scale": of.scale, "causal": of.causal, **of.variant, **options}
        expected = ops.backward_step(*wide, *given[5:], kernel=kernel, **how)
        for step in (found, expected):
            step.run()
        for left, right in zip(found.outputs(), expected.outputs(), strict=True):
            right = right[..., :head_dim] if right.dim() == 3 else right
            assert torch.equal(bits(left), bits(right.contiguous()))


def check_kernel(kernel, head_dim, device="cpu", tiles=1, dtypes=("bf16",)):
    """Check layouts, splits, tiles, a variant, and a cache of 8 bits, if the kernel takes one."""
    spec = SPECS[kernel]
    if spec.operation == "backward":
        for layout in RAGGED_LAYOUTS:
            check_gradients(kernel, head_dim, device, layout, tiles)
        return
    lengths = LENGTHS[spec.operation]
    how = {"head_dim": head_dim, "group": 3, "device": device}
    for turn, shape in enumerate(layouts(kernel)):
        case = CASES[spec.operation](*lengths, **shape, **how, dtype=dtypes[turn % len(dtypes)])
        layout = "paged" if "page_size" in shape else "ragged"
        every = tiles_of(spec, head_dim=head_dim, group=3, layout=layout)
        for tile in every[:tiles]:
            check_same_bits(case, kernel, tile=tile, keys_per_split=(64, 1000)[turn % 2])
    paged = {"page_size": 16} if "paged" in spec.layouts else {}
    case = CASES[spec.operation](*lengths, layout="padded", dtype="bf16", **paged, **how)
    check_same_bits(varied(case, kernel, **VARIANT), kernel, keys_per_split=64)
    for kind in filter(None, spec.kv_dtypes):
        check_same_bits(narrowed(case, kind), kernel, keys_per_split=64)


def check_kvcache(head_dim, device="cpu"):
    """Append a token of each request to a contiguous cache, and attend to it; then to all of it."""
    q, k, v = normal(2, 3, 4, head_dim), normal(2, 40, 2, head_dim), normal(2, 40, 2, head_dim) / 2
    new = [x[:, -1:].to(device) for x in (k, v)]
    caches = [pad(x[:, :-1], (0, 0, 0, 0, 0, 1)).to(device) for x in (k, v)]
    one = flash_attn.flash_attn_with_kvcache(q[:, :1].to(device), *caches, *new, cache_seqlens=39)
    three = flash_attn.flash_attn_with_kvcache(q.to(device), *caches, causal=True)
    assert torch.equal(caches[0].cpu(), k)
    for b in range(2):
        close(one[b].cpu(), q[b, :1], k[b], v[b])
        close(three[b].cpu(), q[b], k[b], v[b], causal=True)


@pytest.mark.parametrize("head_dim", PADDED_DIMS)
def test_a_cache_of_flash_attn_grows(head_dim):
    check_kvcache(head_dim)


@pytest.mark.parametrize("head_dim", PADDED_DIMS)
@pytest.mark.parametrize("kernel", PADDED)
def test_the_bits_of_widened_copies(kernel, head_dim):
    check_kernel(kernel, head_dim)


@pytest.mark.parametrize("head_dim", PADDED_DIMS)
@pytest.mark.parametrize("kernel", IN_TRITON)
@pytest.mark.usefixtures("interpreted")
def test_the_bits_of_widened_copies_in_triton(kernel, head_dim):
    operation = SPECS[kernel].operation
    if operation == "backward":
        check_gradients(kernel, head_dim, tiles=1)
        return
    paged = {"page_size": 3, "layout": "padded", "head_dim": head_dim}
    lengths = {"decode": ((0, 17, 40),), "prefill": ((0, 3, 20), (5, 0, 40))}[operation]
    check_same_bits(CASES[operation](*lengths, **paged), kernel, keys_per_split=24)
