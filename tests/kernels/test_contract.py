"""Every kernel keeps its contract on the CPU build, and every Triton kernel when interpreted.

Some cases vary the shape on a few compiled instances, others the instance on a few shapes.
Expectations come from numerics alone: see contract.py. With checks, the CPU build also finds
every race and every read of memory that nothing wrote.
"""

import math
from dataclasses import fields

import pytest
import torch

from labkernels import ops
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import assert_same
from tests.kernels.test_invariance import BATCHES, PAGED
from tests.kernels.trials import CASES, trials


@pytest.mark.parametrize(("kind", "trial"), trials("cpu", ("cuda",)))
def test_every_case(kind, trial):
    trial.check()


@pytest.mark.parametrize(("kind", "trial"), trials("cpu", ("triton",)))
@pytest.mark.usefixtures("interpreted")
def test_every_case_of_triton(kind, trial):
    trial.check()


@pytest.mark.parametrize("operation", ["decode", "prefill", "mla"])
def test_a_call_without_a_scale_has_that_of_its_head_dim(operation):
    """For MLA, this is the scale of the heads before absorption, 1 / sqrt(192)."""
    case = BATCHES[operation]()
    given = getattr(ops, case.verb)(*case.arguments, **{**case.how, "scale": None})
    assert_same(given, case.run())


@pytest.mark.parametrize("kernel", PAGED)
def test_pools_and_a_table_without_a_page_serve_requests_without_keys(kernel):
    none = {"decode": ((0, 0),), "prefill": ((3, 4), (0, 0)), "mla": ((1, 2), (0, 0))}
    operation = SPECS[kernel].operation
    paged = {"page_size": 16, "layout": "nhd"}
    case = CASES[operation](*none[operation], **paged)
    pools = {field.name: getattr(case.kv, field.name)[:0] for field in fields(case.kv)[:2]}
    empty = case.with_kv(**pools, page_table=torch.empty(2, 0, dtype=torch.int32)).run(kernel)
    assert not empty.out.any()
    assert (empty.lse2 == -math.inf).all()
