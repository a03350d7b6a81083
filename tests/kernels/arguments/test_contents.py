"""A GPU's small tensors are read once, and again after each change."""

import numpy as np
import pytest
import torch

from labkernels import ops
from labkernels.kept import Kept
from labkernels.kernels import checks
from labkernels.kernels.caches.paged import PagedKV
from tests.kernels.append.cases import GROWTHS, append_case
from tests.kernels.decode.cases import decode_case


class OnGpu:
    """A tensor that says it lies on a GPU."""

    is_cuda = True

    def __init__(self, tensor, *, inference=False):
        self.tensor, self.inference = tensor, inference

    def is_inference(self):
        return self.inference

    def __getattr__(self, name):
        return getattr(self.tensor, name)


@pytest.fixture
def readings(monkeypatch):
    monkeypatch.setattr(checks, "_KEPT", Kept(8))
    found = []

    def read(tensor, **how):
        found.append(tensor.tolist())
        return found[-1]

    return found, read


def test_a_reading_is_kept_until_the_tensor_changes(readings):
    found, read = readings
    tensor = OnGpu(torch.tensor([0, 3]))
    for _ in range(3):
        assert checks.once_per_content(read, tensor, total=3) == [0, 3]
    assert len(found) == 1
    tensor.add_(1)
    assert checks.once_per_content(read, tensor, total=3) == [1, 4]
    checks.changed(tensor.tensor)
    checks.once_per_content(read, tensor, total=3)
    checks.once_per_content(read, tensor, total=4)  # other arguments
    assert len(found) == 4


def test_few_readings_are_kept_and_none_of_inference_tensors(readings):
    found, read = readings
    several = [OnGpu(torch.tensor([i])) for i in range(checks._KEPT.most + 1)]
    for tensor in several:
        checks.once_per_content(read, tensor)
    assert len(checks._KEPT) == checks._KEPT.most
    address = several[-1].data_ptr()  # what was read keeps its memory to itself
    del several, tensor
    others = [OnGpu(torch.tensor([i])) for i in range(100)]
    assert all(other.data_ptr() != address for other in others)
    unseen = OnGpu(torch.tensor([7]), inference=True)
    before = len(found)
    for _ in range(2):
        checks.once_per_content(read, unseen)
    assert len(found) == before + 2


def test_lengths_that_the_host_knows_are_checked_and_not_read():
    case = decode_case((40, 3))
    assert case.cache.read_lengths((40, 3)).tolist() == [40, 3]
    for known, words in (
        ((40,), r"len\(kv_lens\) = 1, allowed: 2, one per request"),
        ((40, -1), r"kv_lens\[1\] = -1, allowed: 0 to"),
        ((40, 1000), r"kv_lens\[1\] = 1000, allowed: 0 to 64"),
    ):
        with pytest.raises(ValueError, match=words):
            case.cache.read_lengths(known)
    sums = torch.tensor([0, 2, 5], dtype=torch.int32)
    assert np.array_equal(checks.read_lengths("sums", sums, 5, (2, 3)), [2, 3])
    with pytest.raises(ValueError, match=r"sum\(q_lens\) = 4, allowed: 5"):
        checks.read_lengths("sums", sums, 5, (2, 2))


def test_an_append_tells_torch_that_it_has_written():
    case = append_case(*GROWTHS)
    before = [x._version for x in (case.cache.kv_len, case.cache.k, case.cache.v)]
    ops.append(*case.arguments)
    after = [x._version for x in (case.cache.kv_len, case.cache.k, case.cache.v)]
    assert all(new > old for old, new in zip(before, after, strict=True))


def test_pages_that_changed_in_place_are_checked_again():
    case = decode_case((40, 3))
    cache = PagedKV(case.cache.k, case.cache.v, case.cache.page_table.clone(), case.cache.kv_len)
    ops.decode(case.q, cache)
    cache.page_table[0, 0] = 10_000
    with pytest.raises(ValueError, match=r"page_table\[0, 0\] = 10000, allowed"):
        ops.decode(case.q, cache)
