"""Heads of 32, 80 and 96 channels have the bits of heads that zeros widen in the caller's memory."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

from labkernels.kernels.kernel import PADDED_DIMS, tile_width
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import LAYOUTS, bits, narrowed
from tests.kernels.prefill.cases import RAGGED_LAYOUTS
from tests.kernels.trials import CASES, tiles_of
from tests.kernels.variants.cases import varied

PADDED = [name for name, spec in SPECS.items() if spec.padded_dims and spec.language == "cuda"]
IN_TRITON = [name for name, spec in SPECS.items() if spec.padded_dims and spec.language == "triton"]
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
    q, k, v = (pad(x, (0, to - x.shape[-1])) for x in (case.q, case.kv.k.float(), case.kv.v.float()))
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


def check_kernel(kernel, head_dim, device="cpu", tiles=1, dtypes=("bf16",)):
    """Check layouts, splits, tiles, a variant, and a cache of 8 bits, if the kernel takes one."""
    spec = SPECS[kernel]
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


@pytest.mark.parametrize("head_dim", PADDED_DIMS)
@pytest.mark.parametrize("kernel", PADDED)
def test_the_bits_of_widened_copies(kernel, head_dim):
    check_kernel(kernel, head_dim)


@pytest.mark.parametrize("head_dim", PADDED_DIMS)
@pytest.mark.parametrize("kernel", IN_TRITON)
@pytest.mark.usefixtures("interpreted")
def test_the_bits_of_widened_copies_in_triton(kernel, head_dim):
    operation = SPECS[kernel].operation
    paged = {"page_size": 3, "layout": "padded", "head_dim": head_dim}
    lengths = {"decode": ((0, 17, 40),), "prefill": ((0, 3, 20), (5, 0, 40))}[operation]
    check_same_bits(CASES[operation](*lengths, **paged), kernel, keys_per_split=24)
