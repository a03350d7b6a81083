"""A first kernel in standard CUDA runs as written, is counted, and its mistakes are named."""

import re

import jupytext
import numpy as np
import pytest

from labkernels.chapters.primers import first_kernel
from labkernels.chapters.primers.first_kernel import attention_row, steps
from labkernels.cuda.host.build import HostKernelError
from tests.repo.files import ROOT

ADD = """__global__ void add(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}"""


def attempts():
    """Yield each step with an attempt of the notebook, and whether it is the one that passes."""
    for cell in jupytext.read(ROOT / "notebooks" / "your_first_kernel.py").cells:
        for name, text in re.findall(r'^(\w+) = """(__global__.*?)"""', cell.source, re.M | re.S):
            if name in steps.STEPS:
                yield name, text, "assert found.passed" in cell.source


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("index", "no thread wrote y[64]"),
        ("guard", "thread 8: a load of 4 bytes at line 3 is out of bounds: x[200], but x has 200"),
        ("two_dimensions", "no thread wrote b[8]"),
        ("shared_memory", "which no thread wrote"),
        ("barrier", "race: reads number 0 of shared memory at line 6"),
        ("reduction", "race: writes number 32 of shared memory at line 7"),
        ("coalescing", "memory moves 32 sectors of 32 bytes, which are 1024 bytes"),
        ("divergence", "line 4 loads for 16 of 32 lanes"),
    ],
)
def test_a_step_names_the_mistake_and_passes_without_it(name, says):
    tried = [(text, right) for step, text, right in attempts() if step == name]
    assert [right for _, right in tried] == [False] * (len(tried) - 1) + [True]
    wrong, right = tried[0][0], tried[-1][0]
    assert says in first_kernel.check(name, wrong).words
    assert not first_kernel.check(name, wrong).passed
    assert first_kernel.check(name, right).passed


def test_a_step_refuses_what_is_right_by_another_way():
    cheat = """__global__ void add_up(const float* x, float* y) {
      if (threadIdx.x > 0) return;
      float sum = 0;
      for (int i = 0; i < 128; ++i) sum += x[i];
      y[0] = sum;  // no word of a comment: __syncthreads();
    }"""
    assert "is to use __syncthreads" in first_kernel.check("reduction", cheat).words
    broken = "__global__ void fill(int* y) {\n  y[i] = 0;\n}"
    assert "line 2 does not compile: 'i'" in first_kernel.check("index", broken).words


def test_arrays_hold_what_was_written_and_others_stay():
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    first_kernel.launch(ADD, "add<<<dim3(4), 25 + 7>>>(x, y, n)", x=x, y=y, n=100)
    assert (y == 1 + np.arange(100)).all()
    assert (x == np.arange(100)).all()
    with pytest.raises(HostKernelError, match=r"y, which has 400 bytes|x, which has 400 bytes"):
        first_kernel.launch(ADD, "add<<<4, 32>>>(x, y, 128)", x=x, y=y)


def test_sectors_are_those_of_the_addresses():
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    counts = first_kernel.counted(ADD, "add<<<1, 64>>>(x, y, 48)", x=x, y=y)
    assert counts.what.tolist() == ["loads", "stores"]
    loads = counts.iloc[0]  # two arrays by two warps, the second of which has 16 lanes
    assert (loads.warps, loads.lanes, loads.bytes, loads.sectors) == (4, 24, 96, 3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("add(x, y, 1)", "is no launch"),
        ("add<<<1>>>(x, y, 1)", ": 1 sizes"),
        ("add<<<1 1>>>(x, y, 1)", "no list of expressions"),
        ("sum<<<1, 1>>>(x, y, 1)", "the launch names sum"),
        ("add<<<1, 1>>>(x, y)", "3 parameters, the launch 2"),
        ("add<<<1, 1>>>(x, y, m)", "'m' is unknown"),
        ("add<<<1, 1>>>(x, 1, 1)", "y is no array of float"),
    ],
)
def test_a_launch_that_does_not_fit_is_refused(call, says):
    x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=says):
        first_kernel.launch(ADD, call, x=x, y=y)


def test_a_row_of_attention_is_the_same_in_cuda_and_triton():
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2,), (6, 2), (6, 2)))
    weights = 2.0 ** (k @ q).astype(np.float64)
    truth = weights @ v / weights.sum()
    for run in (attention_row.cuda, attention_row.triton):
        assert np.allclose(run(q, k, v), truth, rtol=0, atol=1e-5)  # some 20 fp32 roundings below 3


def test_a_kernel_prints(capsys):
    source = """__global__ void tell(int* y) {
  if (threadIdx.x == 2) printf("thread %d of block %d\\n", threadIdx.x, blockIdx.x);
  y[threadIdx.x] = 0;
}"""
    first_kernel.launch(source, "tell<<<2, 4>>>(y)", y=np.zeros(4, np.int32))
    assert capsys.readouterr().out == "thread 2 of block 0\nthread 2 of block 1\n"
