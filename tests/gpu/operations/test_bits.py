"""The CPU build and the GPU give the same bits, over random shapes, tiles and policies."""

import functools
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from labkernels import ops  # noqa: E402
from labkernels.cuda.gpu import device  # noqa: E402
from labkernels.cuda.host import build as host_build  # noqa: E402
from labkernels.kernels.caches.paged import PagedKV  # noqa: E402
from labkernels.kernels.kernel import Instance  # noqa: E402
from tests.kernels.contract import CUDA  # noqa: E402
from tests.kernels.decode.cases import (  # noqa: E402
    LAYOUTS,
    bits,
    decode_case,
)

pytestmark = pytest.mark.gpu

LEAST_OUTPUTS = 200_000  # per test; six tests make more than a million
BATCH, LONGEST = 9, 500


@dataclass(frozen=True)
class Trial:
    """One instance, and the group that it serves."""

    instance: Instance
    group: int


def trials(kernel, dtype):
    """Yield every tile of every head_dim with several groups, and every policy at 64 channels."""
    spec, groups = CUDA[kernel], (4, 16, 8, 1, 7)
    for head_dim in spec.head_dims:
        for group in groups[:2] if head_dim != 128 else groups:
            for tile in spec.tiles(spec.shape(head_dim=head_dim, group=group), spec.policies[0]):
                yield Trial(
                    spec.instance(
                        spec.shape(dtype=dtype, head_dim=head_dim, group=group), tile=tile.label
                    ),
                    group,
                )
    for policy in spec.policies[1:]:
        yield Trial(spec.instance(spec.shape(dtype=dtype, head_dim=64, group=8), policy), 8)


def build_all(instances, arch):
    """Compile CPU builds side by side; the runs then find them in the cache."""
    build = functools.partial(host_build.build, params="lab::DecodeParams", arch=arch)

    def make(instance):
        spec = CUDA[instance.kernel]
        made = spec.specialization(instance)
        build(made.header, instance=made.instance, defines=made.defines)

    first, *others = instances
    make(first)  # and the runtime, once
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, others))


def on_cpu(case):
    """Return the same problem in the CPU's memory."""
    cache = case.cache
    tensors = (cache.k, cache.v, cache.page_table, cache.kv_len)
    return case.q.cpu(), PagedKV(*(x.cpu() for x in tensors))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("kernel", CUDA)
def test_every_bit(kernel, dtype):
    gpu = device.planning_gpu(0)
    if gpu.arch != "sm_90":
        pytest.skip(f"the tables of ex2 are of sm_90, this GPU is {gpu.arch}")
    todo = [trial for trial in trials(kernel, dtype) if CUDA[kernel].fits(trial.instance, gpu)]
    build_all(list(dict.fromkeys(trial.instance for trial in todo)), gpu.arch)
    draw, outputs = random.Random(f"{kernel} {dtype}"), 0
    for i, trial in enumerate(todo):
        lengths = tuple(draw.choice((0, 1, draw.randint(2, LONGEST))) for _ in range(BATCH))
        case = decode_case(
            lengths,
            group=trial.group,
            kv_heads=draw.choice((1, 3, 8)) if trial.group < 8 else 2,
            head_dim=trial.instance.head_dim,
            page_size=draw.choice((1, 3, 16, 64)),
            layout=LAYOUTS[i % len(LAYOUTS)],
            dtype=dtype,
            seed=i,
            device="cuda",
        )
        options = {
            "kernel": kernel,
            "tile": trial.instance.tile.label,
            "policy": trial.instance.policy,
            "keys_per_split": draw.choice((LONGEST + 12, 64, draw.randint(5, LONGEST))),
        }
        found = ops.decode(case.q, case.cache, **options)
        expected = ops.decode(*on_cpu(case), target=gpu.key, **options)
        differing = bits(found.out.cpu()) != bits(expected.out)
        assert not differing.any(), f"{differing.sum()} of {differing.numel()}: {trial} {options}"
        assert torch.equal(bits(found.lse2.cpu()), bits(expected.lse2)), f"lse2: {trial} {options}"
        outputs += differing.numel()
    assert outputs >= LEAST_OUTPUTS
