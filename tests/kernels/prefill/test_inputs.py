import hashlib

import pytest

torch = pytest.importorskip("torch")

from labkernels import ops  # noqa: E402
from labkernels.kernels.prefill.inputs import prefill_inputs  # noqa: E402
from labkernels.kernels.prefill.workload import Prefill  # noqa: E402
from labkernels.kernels.random_inputs import ExactNormal, Normal  # noqa: E402

SHAPE = ((33, 0, 5), (40, 7, 5), 4, 2, 192)


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("draw", [Normal, ExactNormal])
def test_the_inputs_are_what_the_verb_takes(draw, page_size):
    work = Prefill(*SHAPE, head_dim_v=128, causal=True, page_size=page_size)
    case = prefill_inputs(work, draw(0, "cpu"))
    result = ops.prefill(case.q, case.kv, case.cu_seqlens_q, causal=True, scale=case.scale)
    assert result.out.shape == (38, 4, 128)
    assert torch.isfinite(result.out).all()
    assert case.kv.read_lengths().tolist() == [40, 7, 5]


def test_exact_inputs_are_the_same_everywhere():
    case = prefill_inputs(Prefill(*SHAPE, head_dim_v=128, causal=True), ExactNormal(1, "cpu"))
    k = case.kv.k.view(torch.int16).numpy()
    assert hashlib.sha256(k.tobytes()).hexdigest()[:16] == "68e97ffbc068d9f0"
