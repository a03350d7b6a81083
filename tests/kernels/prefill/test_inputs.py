import hashlib

import torch

from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import ExactNormal

SHAPE = ((33, 0, 5), (40, 7, 5), 4, 2, 192)


def test_exact_inputs_are_the_same_everywhere():
    case = prefill_inputs(Prefill(*SHAPE, head_dim_v=128, causal=True), ExactNormal(1, "cpu"))
    k = case.kv.k.view(torch.int16).numpy()
    assert hashlib.sha256(k.tobytes()).hexdigest()[:16] == "68e97ffbc068d9f0"
