"""With checks, a run over a scale that is not positive and finite names it, on every kernel."""

import re
from dataclasses import replace

import pytest
import torch

from labkernels import ops
from tests.kernels.decode import test_eight_bits as small

WRONG = (0.0, -0.5, torch.inf, torch.nan)
BLOCKS = (3, 2)  # of a page of 6 keys, and heads
KERNELS = [*small.KERNELS, "triton_decode"]


def narrow(kernel, scale, device="cpu"):
    """Return q and a cache whose scales are copies of one tensor."""
    q, cache, _ = small.pair(kernel, "bf16", "e4m3", page_size=6, head_dim=64, device=device)
    return q, replace(cache, k_scale=scale.to(device).clone(), v_scale=scale.to(device).clone())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize(
    ("shape", "place", "where"),
    [
        ((), (), ""),
        ((2,), (1,), "[1]"),
        (BLOCKS, (-1, 1), "[{page}, 2, 1]"),
        ((3, 1), (0, 0), "[{page}, 0, 0]"),
    ],
)
def test_a_wrong_scale_is_named_and_a_repaired_one_served(kernel, name, shape, place, where):
    pages = len(narrow(kernel, torch.ones(()))[1].k)
    q, cache = narrow(kernel, torch.ones(pages, *shape) if len(shape) == 2 else torch.ones(shape))
    page = int(cache.page_table[-1, 1])  # full of keys, as the last page is not
    place = (page, *place) if len(shape) == 2 else place
    step = ops.decode_step(q, cache, kernel=kernel, checks=True)
    step.run()
    right = step.out.clone()
    for wrong in WRONG:
        getattr(cache, name)[place] = wrong
        words = f"{name}{where.format(page=page)} = {wrong}, allowed: positive and finite numbers"
        with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
            step.run()
    getattr(cache, name)[place] = 1
    step.run()
    assert torch.equal(step.out, right)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scales_that_no_key_has_may_be_anything(kernel):
    pages = len(narrow(kernel, torch.ones(()))[1].k)
    q, cache = narrow(kernel, torch.full((pages, *BLOCKS), torch.nan))
    for request, keys in enumerate(cache.kv_len.tolist()):
        for key in range(keys):
            page, block = int(cache.page_table[request, key // 6]), key % 6 // 2
            cache.k_scale[page, block] = cache.v_scale[page, block] = 2.0**-149
    assert cache.k_scale.isnan().any()
    ops.decode(q, cache, kernel=kernel, checks=True)


def test_an_append_checks_the_scales_of_the_blocks_that_it_writes():
    _, cache = narrow("decode_mma", torch.ones(()))
    pages = len(cache.k)
    scale = torch.ones(pages, 6, 2)
    cache = replace(cache, k_scale=scale, v_scale=scale.clone())
    request, keys = 1, 1  # its second key is new
    ends = torch.zeros(len(cache.kv_len) + 1, dtype=torch.int32)
    ends[request + 1 :] = 1
    page = int(cache.page_table[request, 0])
    cache.v_scale[page, keys + 1, 0] = 0
    new = torch.ones(1, 2, 64, dtype=torch.bfloat16)
    ops.append(cache, new, new, ends, checks=True)
    with pytest.raises(ValueError, match=rf"v_scale\[{page}, 2, 0\] = 0.0, allowed: positive"):
        ops.append(cache, new, new, ends, checks=True)
