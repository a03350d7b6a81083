"""The rest of the batch, pages, layouts and repetition change no bit of a forward kernel.

All comparisons are at fixed splits and tiles, which a plan otherwise chooses from the shapes.
"""

from functools import partial

import pytest
import torch

from tests.kernels.contract import CUDA, CUDA_PREFILLS, RAGGED, SPECS
from tests.kernels.decode.cases import assert_same, bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

BATCHES = {
    "decode": partial(decode_case, RAGGED),
    "prefill": partial(prefill_case, (0, 1, 17, 70, 20), (5, 100, 17, 150, 7)),
    "mla": partial(mla_case, (0, 1, 2, 4, 1), (5, 0, 64, 150, 17), heads=17),
}
OF_ONE_LENGTH = {
    "decode": partial(decode_case, (40, 40)),
    "prefill": partial(prefill_case, (33, 20), (40, 40)),
    "mla": partial(mla_case, (1, 2), (40, 40)),
}
KERNELS = [
    pytest.param(spec.name, layout, id=f"{spec.name}-{layout}")
    for spec in SPECS.values()
    for layout in spec.layouts
    if spec.operation in BATCHES and spec.language == "cuda"
]
every_kernel = pytest.mark.parametrize(("kernel", "layout"), KERNELS)
PAGED = [param.values[0] for param in KERNELS if param.values[1] == "paged"]
every_paged_kernel = pytest.mark.parametrize("kernel", PAGED)


def batch(kernel, kind="paged", batches=BATCHES, **how):
    """Return a batch of the kernel's operation, in pages or ragged."""
    if SPECS[kernel].operation == "prefill":
        paged = {"page_size": 16, "layout": "nhd"} if kind == "paged" else {}
        how = {**paged, **how}
    return batches[SPECS[kernel].operation](**how)


def fixed(kernel):
    """Return options that make the plan independent of the batch."""
    spec, options = SPECS[kernel], {"kernel": kernel, "keys_per_split": 96}
    if spec.operation != "decode":
        shape = spec.shape(head_dim=spec.head_dims[0])
        options["tile"] = spec.tiles(shape, spec.policies[0])[0].label
    return options


@every_kernel
def test_the_rest_of_the_batch_changes_nothing(kernel, layout):
    case = batch(kernel, layout)
    together = case.run(**fixed(kernel))
    assert together.plan.batch_invariant
    n = len(case.kv.read_lengths())
    for requests in (*([i] for i in range(n)), [3, 0, 4, 2, 1]):
        found = case.chosen(requests).run(**fixed(kernel))
        assert_same(found, together, case.rows(requests))


@every_kernel
def test_again_and_in_a_longer_split_the_bits_are_the_same(kernel, layout):
    case = batch(kernel, layout)
    first = case.run(**fixed(kernel))
    for _ in range(3):
        assert_same(case.run(**fixed(kernel)), first)
    few = [i for i, n in enumerate(case.kv.read_lengths()) if n <= 96]
    once = case.chosen(few).run(**{**fixed(kernel), "keys_per_split": 10_000})
    assert_same(once, first, case.rows(few))


@every_paged_kernel
def test_a_step_runs_again_with_other_pages(kernel):
    case = batch(kernel, batches=OF_ONE_LENGTH)
    moving = case.with_kv()
    step = moving.step(**fixed(kernel))
    for order in ([0, 1], [1, 0], [0, 0]):
        moving.kv.page_table.copy_(case.kv.page_table[order])
        step.out.fill_(torch.nan)
        step.run()
        assert_same(step, moving.run(**fixed(kernel)))


@pytest.mark.parametrize("kernel", CUDA)
def test_a_step_of_decode_runs_again_with_other_lengths(kernel):
    case = batch(kernel, batches=OF_ONE_LENGTH)
    moving, how = case.with_kv(), {"kernel": kernel, "keys_per_split": 16}
    step = moving.step(**how)
    for lengths in ((40, 40), (3, 0), (17, 33)):
        moving.kv.kv_len.copy_(torch.tensor(lengths))
        step.out.fill_(torch.nan)
        step.run()
        assert_same(step, moving.run(**how))


@pytest.mark.parametrize("kernel", CUDA)
def test_the_order_of_query_heads_changes_their_order_alone(kernel):
    case = batch(kernel, group=8)
    first = case.run(**fixed(kernel))
    order = torch.tensor([3, 0, 7, 1, 2, 6, 5, 4, 15, 8, 9, 14, 11, 10, 12, 13])
    turned = case.changed(q=case.q[:, order].contiguous()).run(**fixed(kernel))
    assert torch.equal(bits(turned.out), bits(first.out[:, order]))
    assert torch.equal(bits(turned.lse2), bits(first.lse2[:, order]))


@pytest.mark.parametrize("kernel", CUDA)
def test_values_times_a_power_of_two(kernel):
    """No rounding depends on the exponent of V, so that the factor passes through exactly.

    The factors exceed 1, since a V that becomes subnormal loses bits before the kernel sees it.
    """
    wide = next(policy for policy in CUDA[kernel].policies if policy.out == "fp32")
    case, how = batch(kernel, group=8), {**fixed(kernel), "policy": wide}
    first = case.run(**how)
    for power in (1, 8):
        again = case.with_kv(v=case.kv.v * 2.0**power).run(**how)
        assert torch.equal(bits(again.out), bits(first.out * 2.0**power))
        assert torch.equal(bits(again.lse2), bits(first.lse2))


@pytest.mark.parametrize("kernel", CUDA_PREFILLS)
def test_the_heads_that_share_a_tile_change_nothing(kernel):
    """The heads of a group share a tile; heads with K and V of their own do not."""
    case = batch(kernel, "ragged", group=3)
    apart = {name: getattr(case.kv, name).repeat_interleave(3, dim=1) for name in "kv"}
    options = {"kernel": kernel, "tile": fixed(kernel)["tile"], "splits": 1}
    assert_same(case.run(**options), case.with_kv(**apart).run(**options))
