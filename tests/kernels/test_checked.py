"""The checker finds no race and no uninitialised read in any kernel, at small ragged shapes.

Each kernel and head_dim runs in the preferred tile with the most rows; at head_dim 64 with each
number of rows, and over each layout of K and V.
"""

import pytest

from tests.kernels.backward.cases import CUDA_BACKWARDS, backward_case
from tests.kernels.backward.cases import run_checked as run_backward
from tests.kernels.contract import CUDA, CUDA_MLAS, CUDA_PREFILLS, run_checked
from tests.kernels.decode.cases import decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

KV_LENS = (0, 1, 17, 200)


def shapes():
    for name, spec in CUDA.items():
        groups = {spec.rows(group): group for group in (1, 2, 3, 7, 16)}
        for head_dim in spec.head_dims:
            chosen = groups if head_dim == 64 else [max(groups)]
            yield from (pytest.param(name, head_dim, groups[rows]) for rows in chosen)


@pytest.mark.few_of_each("kernel", 3)
@pytest.mark.parametrize(("kernel", "head_dim", "group"), list(shapes()))
def test_no_race_and_nothing_read_before_it_is_written(kernel, head_dim, group):
    case = decode_case(KV_LENS, group=group, head_dim=head_dim, page_size=3, layout="padded")
    for keys_per_split in (None, 64):
        run_checked(case, kernel, keys_per_split=keys_per_split, checks=True)


def prefill_shapes():
    """Yield shapes over pages where the kernel takes them; at head_dim 64 also ragged ones."""
    for name, spec in CUDA_PREFILLS.items():
        for head_dim in spec.head_dims:
            for page_size in (None, 3) if head_dim == 64 else (3,):
                if page_size is None or "paged" in spec.layouts:
                    yield pytest.param(name, head_dim, page_size)
                elif head_dim != 64:
                    yield pytest.param(name, head_dim, None)


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize(("kernel", "head_dim", "page_size"), list(prefill_shapes()))
def test_no_race_in_a_prefill(kernel, head_dim, page_size):
    case = prefill_case(
        (0, 1, 17, 70),
        (5, 17, 0, 90),
        kv_heads=1,
        head_dim=head_dim,
        page_size=page_size,
        layout="padded",
    )
    for keys_per_split in (None, 64):
        run_checked(case, kernel, keys_per_split=keys_per_split, checks=True)


def backward_shapes():
    for name, spec in CUDA_BACKWARDS.items():
        for head_dim in spec.head_dims:
            for deterministic in (False, True):
                yield pytest.param(name, head_dim, deterministic)


@pytest.mark.few_of_each("kernel", 3)
@pytest.mark.parametrize(("kernel", "head_dim", "deterministic"), list(backward_shapes()))
def test_no_race_in_a_backward_pass(kernel, head_dim, deterministic):
    case = backward_case(
        (0, 1, 17, 70), (5, 17, 0, 90), kv_heads=1, head_dim=head_dim, layout="padded"
    )
    run_backward(case, kernel, deterministic=deterministic, checks=True)


ODD_GROUPS = (3, 5, 6, 7)  # query heads per KV head that do not fill a tile's rows


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize("group", ODD_GROUPS)
@pytest.mark.parametrize("kernel", CUDA)
def test_a_group_that_leaves_rows_of_a_decode_empty(kernel, group):
    case = decode_case((0, 17, 200), group=group, kv_heads=1, page_size=16)
    run_checked(case, kernel, keys_per_split=64, checks=True)


def prefills_by_layout():
    for name, spec in CUDA_PREFILLS.items():
        for layout, page_size in (("ragged", None), ("paged", 16)):
            if layout in spec.layouts:
                yield pytest.param(name, page_size, id=f"{name}-{layout}")


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize("group", ODD_GROUPS)
@pytest.mark.parametrize(("kernel", "page_size"), list(prefills_by_layout()))
def test_a_group_that_leaves_rows_of_a_prefill_empty(kernel, page_size, group):
    case = prefill_case((1, 70, 20), (5, 90, 150), group=group, kv_heads=1, page_size=page_size)
    run_checked(case, kernel, keys_per_split=64, checks=True)


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize("heads", ODD_GROUPS)
@pytest.mark.parametrize("kernel", CUDA_MLAS)
def test_heads_that_leave_rows_of_an_mla_decode_empty(kernel, heads):
    case = mla_case((1, 4), (70, 150), heads=heads)
    run_checked(case, kernel, keys_per_split=64, checks=True)


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("group", ODD_GROUPS)
@pytest.mark.parametrize("kernel", CUDA_BACKWARDS)
def test_an_odd_group_in_a_backward_pass(kernel, group, deterministic):
    case = backward_case((1, 70), (5, 90), group=group, kv_heads=1)
    run_backward(case, kernel, deterministic=deterministic, checks=True)
