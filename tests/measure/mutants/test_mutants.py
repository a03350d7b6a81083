"""Each bug of the registry has a source, a line in each kernel, and a workload that shows it."""

import re

import pytest
import torch

from labkernels import ops
from labkernels.measure.mutants import decode
from labkernels.measure.mutants.decode import MUTANTS
from labkernels.measure.mutants.mutant import Edit, mutated
from tests.kernels.contract import CUDA

SOURCE = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")


@pytest.mark.parametrize("name", MUTANTS)
def test_each_bug_was_reported_and_each_edit_has_one_place_in_each_kernel(name):
    mutant = MUTANTS[name]
    assert mutant.name == name
    assert SOURCE.fullmatch(mutant.source)
    assert mutant.edits
    assert set(mutant.edits) <= set(CUDA)
    for kernel in mutant.edits:
        spec = mutant.spec(kernel)
        (changed,) = (path for path in spec.overlay.rglob("*") if path.is_file())
        assert spec.name == kernel
        assert changed.suffix == ".cuh"


def test_an_edit_without_its_place_is_refused():
    edit = Edit(decode.SOFTMAX, "no such line", "")
    with pytest.raises(
        ValueError, match="found 0 times in lab/attention/online_softmax.cuh, allowed: 1"
    ):
        mutated(CUDA["decode_mma"], edit)
    with pytest.raises(ValueError, match="allowed for 'P truncated': decode_mma, decode_mma_n8"):
        MUTANTS["P truncated"].spec("decode_fma")


@pytest.mark.parametrize("kernel", CUDA)
def test_a_right_kernel_gives_the_same_bits_high_in_a_pool(kernel):
    mutant = MUTANTS["page offset in 32 bits"]
    case = decode.exposing_case(mutant, 305, "fp16", seed=1, device="cpu")
    seen = []

    def run(cache):
        seen.append(cache)
        return ops.decode(case.q, cache, kernel=kernel, keys_per_split=256)

    low, high = run(case.cache).out, decode.high_in_a_pool(case.cache, run)
    assert torch.equal(low, high)
    first = seen[1].page_table[:, -1].long() * seen[1].k.stride(0)
    assert (first >= decode.WRAP).all()
