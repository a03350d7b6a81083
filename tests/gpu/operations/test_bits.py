"""The CPU build and the GPU give the same bits, over random shapes, tiles and policies."""

import functools
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import pytest
import torch

from labkernels.cuda.gpu import device
from labkernels.cuda.host import build as host_build
from labkernels.measure import resources
from labkernels.variant import AttentionVariant
from tests.kernels.backward.cases import (
    CUDA_BACKWARDS,
    backward_case,
    varied_backward,
)
from tests.kernels.contract import CUDA, CUDA_MLAS, CUDA_PREFILLS
from tests.kernels.decode.cases import LAYOUTS, bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case
from tests.kernels.variants.cases import varied

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_sm90")]

LEAST_OUTPUTS = 200_000  # of decode per test; six tests make more than a million
BATCH, LONGEST = 9, 500
DEVICES = ("cuda", "cpu")
OF_BACKWARD = (
    {},
    {"window_left": 20},
    {"soft_cap": 3.0, "alibi": True},
    {"window_left": 20, "soft_cap": 3.0, "alibi": True, "sinks": True},
)
MAKERS = {"decode": decode_case, "prefill": prefill_case, "mla": mla_case}


def build_all(instances, arch):
    """Compile CPU builds side by side; the runs then find them in the cache."""
    build = functools.partial(host_build.build, params="lab::DecodeParams", arch=arch)

    def make(instance):
        made = CUDA[instance.kernel].specialization(instance)
        build(made.header, instance=made.instance, defines=made.defines)

    first, *others = dict.fromkeys(instances)
    make(first)  # and the runtime, once
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, others))


def compared(operation, kernel, lengths, shape, options):
    """Assert that both builds have the same bits; return how many outputs there are."""
    here, there = (MAKERS[operation](*lengths, **shape, device=name) for name in ("cpu", "cuda"))
    found = there.run(kernel, **options)
    expected = here.run(kernel, **options, target=device.planning_gpu(0).key)
    differing = bits(found.out.cpu()) != bits(expected.out)
    where = f"{lengths} {shape} {options}"
    assert not differing.any(), f"{differing.sum()} of {differing.numel()}: {where}"
    assert torch.equal(bits(found.lse2.cpu()), bits(expected.lse2)), f"lse2: {where}"
    return differing.numel()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("kernel", CUDA)
def test_every_bit_of_a_decode(kernel, dtype):
    """Every tile of every head_dim with several groups, and every policy at 64 channels."""
    gpu, spec, groups, todo = device.planning_gpu(0), CUDA[kernel], (4, 16, 8, 1, 7), []
    for head_dim in (*spec.head_dims, *spec.padded_dims):
        for group in groups[:2] if head_dim != 128 else groups:
            shape = spec.shape(dtype=dtype, head_dim=head_dim, group=group)
            tiles = spec.tiles(shape, spec.policies[0])
            todo += [(spec.instance(shape, tile=tile.label), group) for tile in tiles]
    shape = spec.shape(dtype=dtype, head_dim=64, group=8)
    todo += [(spec.instance(shape, policy), 8) for policy in spec.policies[1:]]
    todo = [(instance, group) for instance, group in todo if spec.fits(instance, gpu)]
    build_all([instance for instance, _ in todo], gpu.arch)
    draw, outputs = random.Random(f"{kernel} {dtype}"), 0
    for i, (instance, group) in enumerate(todo):
        lengths = tuple(draw.choice((0, 1, draw.randint(2, LONGEST))) for _ in range(BATCH))
        shape = {
            "group": group,
            "kv_heads": draw.choice((1, 3, 8)) if group < 8 else 2,
            "head_dim": instance.head_dim,
            "page_size": draw.choice((1, 3, 16, 64)),
            "layout": LAYOUTS[i % len(LAYOUTS)],
            "dtype": dtype,
            "seed": i,
        }
        cut = draw.choice((LONGEST + 12, 64, draw.randint(5, LONGEST)))
        options = {"tile": instance.tile.label, "policy": instance.policy, "keys_per_split": cut}
        outputs += compared("decode", kernel, (lengths,), shape, options)
    assert outputs >= LEAST_OUTPUTS


@pytest.mark.parametrize("kernel", [*CUDA_PREFILLS, *CUDA_MLAS])
def test_every_bit_of_packed_rows(kernel):
    spec, draw, outputs = resources.find(kernel), random.Random(kernel), 0
    is_mla = spec.operation == "mla"
    for head_dim, layout in product((*spec.head_dims, *spec.padded_dims), spec.layouts):
        tiles = spec.tiles(spec.shape(head_dim=head_dim, layout=layout), spec.policies[0])
        for turn, tile in enumerate(tiles):
            most = (4, 300) if is_mla else (90, 200)
            lengths = [tuple(draw.randint(0, n) for _ in range(5)) for n in most]
            shape = {
                "causal": draw.random() < 0.7,
                "page_size": draw.choice((1, 3, 16, 64)) if layout == "paged" else None,
                "layout": "padded",
                "dtype": ("fp16", "bf16")[turn % 2],
            }
            if is_mla:
                shape["heads"] = draw.choice((3, 16, 50))
            else:
                shape |= {"group": draw.choice((1, 3, 8)), "head_dim": head_dim}
            options = {"tile": tile.label, "keys_per_split": draw.choice((64, 100, 1000))}
            outputs += compared(spec.operation, kernel, lengths, shape, options)
    assert is_mla or outputs >= LEAST_OUTPUTS * len(spec.head_dims) * len(spec.layouts)


@pytest.mark.parametrize("kernel", CUDA_BACKWARDS)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("variant", OF_BACKWARD, ids=str)
def test_every_bit_of_an_ordered_backward_pass(kernel, head_dim, variant):
    shape = {"head_dim": head_dim, "dtype": "bf16", "group": 3, "kv_heads": 1}
    lengths = (1, 17, 150, 0), (30, 17, 130, 9)
    on_cpu = varied_backward(backward_case(*lengths, **shape), **variant)
    # the GPU's float64 may round out and lse2 the other way
    same = {"out": on_cpu.out.cuda(), "lse2": on_cpu.lse2.cuda()}
    on_gpu = varied_backward(backward_case(*lengths, device="cuda", **shape), **variant)
    on_gpu = on_gpu.changed(**same)
    steps = [case.step(kernel, deterministic=True) for case in (on_gpu, on_cpu)]
    for step in steps:
        step.run()
    for left, right in zip(*(step.outputs() for step in steps), strict=True):
        assert torch.equal(bits(left.cpu()), bits(right))


@pytest.mark.parametrize("kernel", ["prefill_mma", "prefill_wgmma", "prefill_fma"])
@pytest.mark.parametrize("more", [{}, {"window_left": 37, "sinks": True, "bias": True}], ids=str)
@pytest.mark.parametrize("page_size", [None, 16])
def test_every_bit_of_a_prefill_with_a_mask(kernel, page_size, more):
    """A mask's words are read alike at every offset of a row within its first word."""
    spec, variant = resources.find(kernel), {"mask": 0.5, **more}
    for head_dim in (32, 64, 80, 96, 128, 192, 256):
        shape = {"head_dim": head_dim, "dtype": "bf16", "group": 3, "kv_heads": 1}
        shape |= {"page_size": page_size, "layout": "padded", "causal": head_dim == 64}
        lengths = (1, 17, 150, 0, 3), (30, 17, 131, 9, 200)
        cases = [varied(prefill_case(*lengths, device=x, **shape), **variant) for x in DEVICES]
        where = {"layout": "paged" if page_size else "ragged"}
        of = spec.shape(head_dim=head_dim, variant=AttentionVariant(mask=True), **where)
        of = replace(of, page_size=page_size or 0)
        for tile in spec.tiles(of, spec.policies[0]):
            steps = [case.run(kernel, tile=tile.label, keys_per_split=100) for case in cases]
            for left, right in zip(*(step.outputs() for step in steps), strict=True):
                assert torch.equal(bits(left.cpu()), bits(right)), tile.label
