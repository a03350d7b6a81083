from dataclasses import replace

import numpy as np
import pytest

from labkernels.kernels.spec import CUDA_CORES, TENSOR_CORES
from labkernels.measure import accuracy, expected
from labkernels.measure.cases import decode_case
from labkernels.numerics import metrics, rounding
from labkernels.workload import Decode


@pytest.fixture(params=["fp16", "bf16"])
def case(request):
    workload = Decode((300, 0, 64), 8, 2, 64, 16, request.param)
    return decode_case(workload, seed=0, device="cpu")


def test_without_tensor_cores_only_the_store_rounds(case):
    truth = accuracy.decode_reference(case.q, case.cache, scale=case.scale).o
    dtype = case.workload.dtype
    stored = metrics.rms(metrics.difference(rounding.round_to(truth, dtype), truth), by="all")
    sigma = metrics.rms(expected.decode_sigma(case, policy=CUDA_CORES), by="all")
    assert sigma == pytest.approx(stored, rel=0.1)


def test_tensor_cores_add_a_variance_and_an_fp32_store_removes_one(case):
    off, on = (expected.decode_sigma(case, policy=p) for p in (CUDA_CORES, TENSOR_CORES))
    unstored = expected.decode_sigma(case, policy=replace(TENSOR_CORES, out="fp32"))
    kept = np.array([0, 2])
    assert (on[kept] > off[kept]).all()
    assert np.allclose(on[kept] ** 2, off[kept] ** 2 + unstored[kept] ** 2, rtol=1e-3)


def test_a_request_without_keys_expects_no_error(case):
    assert not expected.decode_sigma(case, policy=TENSOR_CORES)[1].any()
