"""On a real GPU, batch_invariant=True keeps a request's bits at a server's sizes, and in graphs."""

from functools import partial

import pytest

from labkernels.cuda.gpu.device import planning_gpu
from labkernels.measure import timing
from labkernels.probing import our_cuts, targets
from labkernels.probing.certificate import BATCHES, Sizes, certify
from labkernels.variant import AttentionVariant
from tests.kernels.contract import CUDA, CUDA_MLAS, PAGED_PREFILLS
from tests.kernels.decode.cases import assert_same, decode_case
from tests.ops import test_same_bits as small
from tests.probing.test_parted import dump, parted

pytestmark = pytest.mark.gpu

INVARIANT = {"batch_invariant": True}
LENGTHS, QUERIES = (512, 2048, 8192), 64
CASES = [
    *((name, "paged_decode", Sizes()) for name in CUDA),
    *((name, "ragged", Sizes(queries=QUERIES)) for name in PAGED_PREFILLS),
    *((name, "paged_prefill", Sizes(queries=QUERIES)) for name in PAGED_PREFILLS),
    *((name, "mla", Sizes(q_heads=16)) for name in CUDA_MLAS),
]


@pytest.mark.parametrize(("name", "layout", "sizes"), CASES)
def test_a_certificate_of_every_kernel(name, layout, sizes):
    check_certificate(name, layout, sizes, "cuda", lengths=LENGTHS, batches=BATCHES)


def check_certificate(name, layout, sizes, device, **how):
    causal = layout in ("ragged", "paged_prefill")
    function = targets.find(name).function(layout, AttentionVariant(causal=causal))
    how |= {"sizes": sizes, "device": device, "causal": causal}
    made = certify(function, layout, options=INVARIANT, **how)
    assert made.invariant, str(made)


@pytest.mark.parametrize("kernel", small.CUDA_BACKWARDS)
def test_gradients_alone_and_among_others(kernel):
    small.check_gradients(kernel, (300, 0, 1, 513, 70), (300, 5, 1, 513, 700), device="cuda")


def test_a_decode_in_a_graph_has_the_bits_of_the_request_alone():
    lengths = (8192, 2048, 512, 1, 0, 300)
    case = decode_case(lengths, group=4, kv_heads=8, head_dim=128, dtype="bf16", device="cuda")
    step = case.step(None, **INVARIANT)
    graph = timing.capture(step.run)
    graph.replay()
    for i in range(len(lengths)):
        assert_same(case.chosen([i]).run(None, **INVARIANT), step, case.rows([i]))


@pytest.mark.parametrize("kernel", ["decode_mma", "decode_mma_n8"])
def test_the_cuts_of_our_free_plan_foretell_which_heads_change(kernel, tmp_path):
    lengths = (8192, 2048, 640, *(20,) * 64)
    case = decode_case(lengths, group=4, kv_heads=8, dtype="bf16", layout="nhd", device="cuda")
    sets = ((0, 1, 2), range(len(lengths)))
    files = [dump(tmp_path, case, some, f"{len(some)}.pt", kernel=kernel) for some in sets]
    plan = partial(our_cuts.labkernels, gpu=planning_gpu(0), kernel=kernel)
    _, requests = parted(*files, plan)
    heads = [(r.differs == r.predicted).mean() for r in requests]
    assert any(r.differs.any() for r in requests)
    assert sum(heads) >= 0.99 * len(heads)
