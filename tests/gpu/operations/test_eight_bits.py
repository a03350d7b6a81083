"""On a real GPU, a cache of 8 bits gives the bits of 16 bits, and the bits of the CPU build."""

import pytest
import torch

from labkernels import ops
from tests.kernels.append.test_append import SCALES, check_quantized
from tests.kernels.arguments.test_scales import WRONG, narrow
from tests.kernels.decode import test_eight_bits as small
from tests.kernels.decode.cases import bits
from tests.kernels.prefill import test_fp8 as forward

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_sm90")]

SHAPES = [(64, 16), (128, 1), (128, 4), (128, 8), (256, 4)]


@pytest.mark.parametrize(("kernel", "dtype", "kind"), small.EVERY)
def test_every_code(kernel, dtype, kind):
    small.check_codes(kernel, dtype, kind, "cuda")


@pytest.mark.parametrize(("kernel", "dtype", "kind"), small.EVERY)
def test_the_bits_of_16_bits_and_of_the_cpu(kernel, dtype, kind):
    for head_dim, group in SHAPES:
        shape = {"head_dim": head_dim, "group": group, "page_size": 3}
        small.check_bits(kernel, dtype, kind, "cuda", **shape)
        q, narrow, _ = small.pair(kernel, dtype, kind, scales=small.SCALES, **shape)
        here = ops.decode(q, narrow, kernel=kernel, keys_per_split=128)
        q, narrow, _ = small.pair(kernel, dtype, kind, scales=small.SCALES, device="cuda", **shape)
        there = ops.decode(q, narrow, kernel=kernel, keys_per_split=128)
        assert torch.equal(bits(there.out.cpu()), bits(here.out))
        assert torch.equal(bits(there.lse2.cpu()), bits(here.lse2))


def test_a_caller_names_the_steps_of_16_bits():
    small.check_named("cuda")


@pytest.mark.parametrize(("kernel", "dtype", "kind"), small.EVERY)
def test_scales_of_each_head(kernel, dtype, kind):
    small.check_scaled(kernel, dtype, kind, "cuda", head_dim=128)


@pytest.mark.parametrize("kernel", small.KERNELS)
def test_variants(kernel):
    sinks = torch.linspace(-1, 2, 8, device="cuda")
    variant = {**small.VARIANT, "sinks": sinks, "alibi": sinks / 8}
    small.check_bits(kernel, "bf16", "e4m3", "cuda", variant=variant)


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_a_wrong_scale_is_named_by_the_next_run(name):
    q, cache = narrow("decode_mma", torch.ones(2), "cuda")
    step = ops.decode_step(q, cache, checks=True)
    for wrong in WRONG:
        getattr(cache, name)[1] = wrong
        step.run()
        torch.cuda.synchronize()
        with pytest.raises(
            ValueError, match=rf"{name}\[1\] = {wrong}, allowed: positive and finite"
        ):
            step.run()
        getattr(cache, name)[1] = 1
    step.run()
    torch.cuda.synchronize()
    step.check()


@pytest.mark.parametrize("kind", small.KV_DTYPES.values(), ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of", SCALES)
def test_an_append_of_every_number_of_16_bits(dtype, kind, of):
    check_quantized(dtype, kind, of, "cuda")


@pytest.mark.parametrize("blocks", small.BLOCKS)
@pytest.mark.parametrize(("kernel", "dtype", "kind"), small.OF_BLOCKS)
def test_scales_of_blocks_of_keys(kernel, dtype, kind, blocks):
    for head_dim, group in SHAPES:
        shape = {"head_dim": head_dim, "group": group}
        there = small.check_blocks(kernel, dtype, kind, blocks, "cuda", **shape)
        here = small.check_blocks(kernel, dtype, kind, blocks, **shape)
        for x, y in zip(here.outputs(), there.outputs(), strict=True):
            assert torch.equal(bits(x), bits(y.cpu()))


@pytest.mark.parametrize("policy", forward.KERNEL.policies[:3], ids=lambda p: p.label)
def test_a_forward_in_8_bits_has_the_bits_of_the_cpu(policy):
    shape = ((1, 300, 0, 70), (130, 500, 20, 0))
    for causal, keys in ((True, None), (False, 128)):
        how = {"causal": causal, "policy": policy, "keys_per_split": keys}
        there = forward.check_bounds(*forward.drawn(*shape, device="cuda"), **how)
        here = forward.check_bounds(*forward.drawn(*shape), **how)
        for x, y in zip(here.outputs(), there.outputs(), strict=True):
            assert torch.equal(bits(x), bits(y.cpu()))
