"""Right answers to the assignments have the same bits on the GPU; primer 0's kernels run there."""

import importlib

import numpy as np
import pytest

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.chapters.primers import first_kernel, machine
from labkernels.chapters.primers.first_kernel import attention_row

pytestmark = pytest.mark.gpu

GRADERS = "labkernels.chapters.exercises.graders"
NAMES = [
    name
    for name in exercises.names()
    if hasattr(importlib.import_module(f"{GRADERS}.{exercises.get(name).grader}"), "ON_GPU")
]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_answer_has_the_same_bits(name):
    if not machine.has_gpu("sm_90"):
        pytest.skip("ex2.approx and the CPU machine's tensor core are those of sm_90")
    report = exercises.check(name, solution(name))
    assert report.passed
    assert report.lines[-1] == "On this machine's GPU all bits are the same."


def test_kernels_of_the_first_primer_are_launched():
    source = """__global__ void sums(const float* x, float* y, int n) {
  __shared__ float part[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < n ? x[i] : 0.f;
  __syncthreads();
  if (i < n) y[i] = part[threadIdx.x] + part[63 - threadIdx.x];
}"""
    x = np.arange(200, dtype=np.float32)
    there, here = np.full(200, np.nan, np.float32), np.full(200, np.nan, np.float32)
    call = "sums<<<(n + 63) / 64, 64>>>(x, y, n)"
    first_kernel.launch(source, call, x=x, y=here, n=200)
    with machine.on_gpu():
        first_kernel.launch(source, call, x=x, y=there, n=200)
        q, k = np.float32([1, 1]), np.float32([[1, 0], [1, -1], [2, 1], [0, 2]])
        v = np.float32([[3, 0], [1, 2], [1, 3], [0, 1]])
        row = attention_row.cuda(q, k, v)
    assert (there == here).all()
    assert row.tolist() == attention_row.triton(q, k, v).tolist() == [1, 2]
