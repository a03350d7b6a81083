import numpy as np
import pytest

from labkernels.measure import peers
from labkernels.numerics import oracle
from labkernels.numerics.problem import Problem

torch = pytest.importorskip("torch")

from labkernels.kernels.paged_kv import PagedKV  # noqa: E402


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
    indptr, indices, last_page_len = peers.page_lists(cache)
    assert indptr.tolist() == [0, 1, 2, 4, 7]
    assert last_page_len.tolist() == [1, 16, 1, 8]
    expected = [cache.page_table[b, :n] for b, n in enumerate([1, 1, 2, 3])]
    assert torch.equal(indices, torch.cat(expected))
    assert {t.dtype for t in (indptr, indices, last_page_len)} == {torch.int32}


def test_an_empty_request_is_refused_in_words():
    with pytest.raises(peers.Refused, match="no last page"):
        peers.page_lists(scattered_cache([16, 0]))


def test_sdpa_agrees_with_the_oracle():
    cache = scattered_cache([33, 33, 33])
    q = torch.randn(3, 6, 64, generator=torch.Generator().manual_seed(1)).half()
    step = peers.PEERS["torch_sdpa"].prepare(q, cache, scale=0.125)
    step.out.fill_(float("nan"))
    step.run()
    arrays = [t.numpy() for t in (q, cache.k, cache.v, cache.page_table, cache.kv_len)]
    expected, _ = oracle.attention(Problem(*arrays, scale=0.125))
    error = np.abs(step.out.numpy().astype(np.float64) - expected)
    assert error.max() <= 2e-3


def test_sdpa_refuses_ragged_batches():
    q = torch.zeros(2, 2, 64, dtype=torch.float16)
    with pytest.raises(peers.Refused, match="differs between requests"):
        peers.PEERS["torch_sdpa"].prepare(q, scattered_cache([16, 17]), scale=1.0)


def test_every_peer_says_whether_it_can_run():
    assert list(peers.PEERS) == [
        "flashinfer_cuda_cores",
        "flashinfer_fa2",
        "flashinfer_auto",
        "torch_sdpa",
    ]
    assert peers.PEERS["torch_sdpa"].available() is None
    if not torch.cuda.is_available():
        reason = peers.PEERS["flashinfer_fa2"].available()
        assert "not installed" in reason or "no CUDA GPU" in reason


def test_a_long_error_becomes_one_telling_line():
    error = RuntimeError("Error in kernel\n  frame 1\nUnsupported group_size: 16\n")
    assert peers.one_line(error) == "Unsupported group_size: 16"
    placed = RuntimeError("Error in function 'f' at /a/b/batch_decode.cu:70: Unsupported size: 5")
    assert peers.one_line(placed) == "Unsupported size: 5"
    assert peers.one_line(OSError("cannot open /usr/lib/x/libcuda.so.1")) == (
        "cannot open libcuda.so.1"
    )
    assert peers.one_line(RuntimeError("")) == "RuntimeError"
    assert len(peers.one_line(RuntimeError("x" * 999))) == 200
