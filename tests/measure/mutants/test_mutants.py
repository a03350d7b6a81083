"""Each bug of the registry has a source, a line in each kernel, and a workload that shows it."""

import re

import pytest
import torch

from labkernels import ops
from labkernels.kernels.decode.inputs import DISTRIBUTIONS, distributed_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure.mutants import decode
from labkernels.measure.mutants.decode import LENGTHS, MUTANTS
from labkernels.measure.mutants.mutant import Edit, mutated
from tests.kernels.contract import CUDA

SOURCE = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")


def test_there_are_bugs_enough_and_each_was_reported():
    assert len(MUTANTS) >= 14
    for name, mutant in MUTANTS.items():
        assert mutant.name == name
        assert SOURCE.fullmatch(mutant.source)
        assert mutant.bug.endswith(".")
        assert set(mutant.edits) <= set(CUDA)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_edit_has_one_place_in_each_kernel(name):
    mutant = MUTANTS[name]
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


def test_lengths_show_padding_and_leave_no_split_empty():
    for kv_len, shape in LENGTHS.items():
        assert kv_len % 16 == 1
        assert (kv_len - 1) % shape.keys_per_split
        assert kv_len > shape.keys_per_split
    with pytest.raises(ValueError, match="kv_len = 300, allowed: 305, 1009, 2033, 8177"):
        decode.exposing_case(MUTANTS["extra key"], 300, "bf16", seed=0, device="cpu")


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


@pytest.mark.parametrize("family", DISTRIBUTIONS)
def test_a_family_differs_from_the_others_as_it_says(family):
    workload = Decode((40, 0, 33), 8, 2, 64, 16, "bf16")
    case = distributed_inputs(family, workload, ExactNormal(3))
    plain = distributed_inputs("normal", workload, ExactNormal(3))
    same = [
        torch.equal(a, b)
        for a, b in (
            (case.q, plain.q),
            (case.cache.k, plain.cache.k),
            (case.cache.v, plain.cache.v),
        )
    ]
    assert (
        same
        == {
            "normal": [True, True, True],
            "peaky": [False, True, True],
            "sink": [True, False, False],
            "outlier": [True, True, False],
            "mean-shifted": [True, True, False],
        }[family]
    )
    assert case.cache.v.isfinite().all()


def test_a_family_that_is_none_is_named():
    with pytest.raises(ValueError, match="distribution = .odd., allowed: normal, peaky"):
        distributed_inputs("odd", Decode((1,), 8, 2, 64, 16, "bf16"), ExactNormal(0))
