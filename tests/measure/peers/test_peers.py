import numpy as np
import pytest

from labkernels.measure.peers import flashinfer, peer, torch_sdpa
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem

torch = pytest.importorskip("torch")

from labkernels.kernels.backward.inputs import backward_inputs  # noqa: E402
from labkernels.kernels.backward.workload import Backward  # noqa: E402
from labkernels.kernels.caches.paged import PagedKV  # noqa: E402
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs  # noqa: E402
from labkernels.kernels.decode.workload import Decode  # noqa: E402
from labkernels.kernels.random_inputs import Normal  # noqa: E402
from labkernels.measure.implementation import implementations  # noqa: E402
from labkernels.measure.judge.gradients import GradientJudge  # noqa: E402


def scattered_cache(kv_lens, *, kv_heads=2, head_dim=64, page_size=16, dtype=torch.float16):
    generator = torch.Generator().manual_seed(5)
    pages = [-(-length // page_size) for length in kv_lens]
    numbers = torch.randperm(sum(pages) + 3, generator=generator)
    table = torch.zeros(len(kv_lens), max(pages), dtype=torch.int32)
    taken = 0
    for b, count in enumerate(pages):
        table[b, :count] = numbers[taken : taken + count]
        taken += count
    shape = (sum(pages) + 3, page_size, kv_heads, head_dim)
    k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    lengths = torch.tensor(kv_lens, dtype=torch.int32)
    return PagedKV(k, v, table, lengths)


def test_page_lists_name_each_page_in_order():
    cache = scattered_cache([1, 16, 17, 40])
    indptr, indices, last_page_len = flashinfer.page_lists(cache)
    assert indptr.tolist() == [0, 1, 2, 4, 7]
    assert last_page_len.tolist() == [1, 16, 1, 8]
    expected = [cache.page_table[b, :n] for b, n in enumerate([1, 1, 2, 3])]
    assert torch.equal(indices, torch.cat(expected))
    assert {t.dtype for t in (indptr, indices, last_page_len)} == {torch.int32}


def test_an_empty_request_is_refused_in_words():
    with pytest.raises(peer.Refused, match="no last page"):
        flashinfer.page_lists(scattered_cache([16, 0]))


def test_sdpa_agrees_with_the_oracle():
    cache = scattered_cache([33, 33, 33])
    q = torch.randn(3, 6, 64, generator=torch.Generator().manual_seed(1)).half()
    workload = Decode.uniform(3, 33, q_heads=6, kv_heads=2, head_dim=64, dtype="fp16")
    step = peer.peers()["torch_sdpa"].steps["decode"](DecodeInputs(workload, q, cache, 0.125))
    out = step.outputs().out
    out.fill_(float("nan"))
    step.run()
    arrays = [t.numpy() for t in (q, cache.k, cache.v, cache.page_table, cache.kv_len)]
    expected, _ = oracle.attention(Problem(*arrays, scale=0.125))
    error = np.abs(out.numpy().astype(np.float64) - expected)
    assert error.max() <= 2e-3
    assert step.version == f"torch {torch.__version__}"


def test_sdpa_refuses_ragged_batches():
    inputs = decode_inputs(Decode((16, 17), 2, 2, 64, 16, "fp16"), Normal(0, "cpu"))
    with pytest.raises(peer.Refused, match="differs between requests"):
        peer.peers()["torch_sdpa"].steps["decode"](inputs)


def test_gradients_of_sdpa_pass():
    """The judge of our gradients accepts SDPA's, from any backend that a CPU has."""
    work = Backward((64, 64), (64, 64), 2, 2, 64)
    inputs = backward_inputs(work, Normal(0, "cpu"))
    found = peer.peers()["torch_fa2"]
    try:
        step = found.steps["backward"](inputs)
    except peer.Refused as refused:
        pytest.skip(str(refused))
    step.run()
    errors = GradientJudge(inputs)(step.outputs(), found.policy, step.forward)
    assert set(errors) == {"dq", "dk", "dv"}
    assert all(error.max_abs < 0.1 for error in errors.values())


def test_a_peer_that_takes_dense_tensors_refuses_ragged_ones():
    workload = Backward((96, 0, 130), (96, 7, 130), 2, 2, 64, causal=True)
    inputs = backward_inputs(workload, Normal(0, "cpu"))
    with pytest.raises(peer.Refused, match="lengths differ"):
        peer.peers()["torch_fa2"].steps["backward"](inputs)


def test_a_peer_is_not_taken_for_a_kernel_of_ours():
    for operation in ("decode", "prefill", "mla", "backward", "append"):
        for name, found in implementations(operation).items():
            assert found.is_ours == (found.spec is not None), name


def test_every_peer_says_whether_it_can_run():
    assert torch_sdpa.missing() is None
    if not torch.cuda.is_available():
        reason = flashinfer.missing()
        assert "not installed" in reason or "no CUDA GPU" in reason
        assert peer.build("decode", [("fp16", 128)]) == {"flashinfer": reason}


def test_a_decoder_refuses_a_prefill_and_pages_hold_the_keys():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 33, heads, 64, generator=generator) for heads in (4, 2, 2))
    given = peer.Tensors(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.125, True)
    with pytest.raises(peer.Refused, match="one query token per request"):
        peer.backends()["flashinfer_fa2"].run(given)
    cache = flashinfer.pages(given)
    keys = cache.k[cache.page_table[0].long()].flatten(0, 1)
    assert torch.equal(keys[:33], given.k[0])
    assert not keys[33:].any()
    assert cache.kv_len.tolist() == [33]


def test_a_long_error_becomes_one_telling_line():
    error = RuntimeError("Error in kernel\n  frame 1\nUnsupported group_size: 16\n")
    assert peer.one_line(error) == "Unsupported group_size: 16"
    placed = RuntimeError("Error in function 'f' at /a/b/batch_decode.cu:70: Unsupported size: 5")
    assert peer.one_line(placed) == "Unsupported size: 5"
    assert peer.one_line(OSError("cannot open /usr/lib/x/libcuda.so.1")) == (
        "cannot open libcuda.so.1"
    )
    assert peer.one_line(RuntimeError("")) == "RuntimeError"
    assert len(peer.one_line(RuntimeError("x" * 999))) == 200
