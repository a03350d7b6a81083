"""Every kernel under the race and uninitialised-read checker, at small ragged shapes.

The preferred tile of each kernel and head_dim with the most rows; at head_dim 64 with each number
of rows, and over each layout of K and V.
"""

import pytest

from tests.kernels.backward_cases import CUDA_BACKWARDS, backward_case
from tests.kernels.backward_cases import run_checked as run_backward
from tests.kernels.cases import decode_case
from tests.kernels.contract import CUDA, CUDA_PREFILLS, run_checked
from tests.kernels.prefill_cases import prefill_case

KV_LENS = (0, 1, 17, 200)


def shapes():
    for name, spec in CUDA.items():
        groups = {spec.rows(group): group for group in (1, 2, 3, 7, 16)}
        for head_dim in spec.head_dims:
            chosen = groups if head_dim == 64 else [max(groups)]
            yield from (pytest.param(name, head_dim, groups[rows]) for rows in chosen)


@pytest.mark.parametrize(("kernel", "head_dim", "group"), list(shapes()))
def test_no_race_and_nothing_read_before_it_is_written(kernel, head_dim, group):
    case = decode_case(KV_LENS, group=group, head_dim=head_dim, page_size=3, layout="padded")
    for keys_per_split in (None, 64):
        run_checked(case, kernel, keys_per_split=keys_per_split, checks=True)


def prefill_shapes():
    for name, spec in CUDA_PREFILLS.items():
        for head_dim in spec.head_dims:
            for page_size in (None, 3) if head_dim == 64 else (3,):
                yield pytest.param(name, head_dim, page_size)


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


@pytest.mark.parametrize(("kernel", "head_dim", "deterministic"), list(backward_shapes()))
def test_no_race_in_a_backward_pass(kernel, head_dim, deterministic):
    case = backward_case(
        (0, 1, 17, 70), (5, 17, 0, 90), kv_heads=1, head_dim=head_dim, layout="padded"
    )
    run_backward(case, kernel, deterministic=deterministic, checks=True)
