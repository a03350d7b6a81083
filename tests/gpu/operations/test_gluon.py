"""On a real GPU, the Gluon prefill agrees with float64 for every group and length."""

import pytest

torch = pytest.importorskip("torch")

from labkernels.kernels.prefill.gluon import launch  # noqa: E402
from labkernels.kernels.prefill.inputs import PrefillInputs  # noqa: E402
from labkernels.kernels.prefill.workload import Prefill  # noqa: E402
from labkernels.measure.peers import gluon  # noqa: E402
from tests.kernels.contract import check  # noqa: E402
from tests.kernels.prefill.cases import RAGGED_LAYOUTS, prefill_case  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(gluon.missing() is not None, reason=str(gluon.missing())),
]
Q_LENS = (0, 1, 15, 16, 17, 150, 129, 300)
KV_LENS = (5, 1, 0, 16, 150, 700, 129, 300)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("group", "head_dim", "dtype"),
    [(1, 64, "fp16"), (1, 128, "bf16"), (3, 128, "fp16"), (7, 64, "bf16"), (8, 128, "bf16")],
)
def test_it_gives_the_attention_of_float64(group, head_dim, dtype, causal):
    layout = RAGGED_LAYOUTS[group % len(RAGGED_LAYOUTS)]
    case = prefill_case(
        Q_LENS,
        KV_LENS,
        causal=causal,
        group=group,
        head_dim=head_dim,
        layout=layout,
        dtype=dtype,
        device="cuda",
    )
    kv_heads = case.kv.k.shape[1]
    workload = Prefill(
        Q_LENS, KV_LENS, kv_heads * group, kv_heads, head_dim, causal=causal, dtype=dtype
    )
    step = launch.prepare(PrefillInputs(workload, case.q, case.kv, case.cu_seqlens_q, case.scale))
    for _ in range(2):  # the second run must find its barriers as new
        step.run()
        check(case, step.out, step.lse2, gluon.PEERS[0].policy.of(dtype))
