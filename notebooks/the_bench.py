# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The bench
#
# `labkernels.Bench` puts a workload before every kernel of its operation: the lab's in CUDA and Triton, with tensor cores and without, and a reference.
# The bench derives their formulas, runs them on this machine, judges their outputs against float64, and draws four figures.
# Chapters use the bench for the few kernels that their question is about; this page shows all of it, once.
#
# On a GPU from `sm_80` on the bench runs the workloads as they are, and times them.
# Elsewhere it runs small ones, CUDA kernels as CPU builds with the bits of a GPU and Triton kernels under Triton's interpreter, and a time is that of a simulation.

# %% tags=["remove-cell"]
# Where the lab is not installed, as in Colab, this cell installs it, with its recorded data.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("labkernels") is None:
    lab = "labkernels[gpu,plots] @ git+https://github.com/labkernels/labkernels"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", lab, "myst-nb"], check=True)

# %%
import matplotlib.pyplot as plt

from labkernels import Bench, Decode, Prefill, plots

# %% [markdown]
# ## A bench
#
# A bench takes one workload of an operation, or one each of several.
# `kernels=` names some kernels, and `gpu=` the GPU that budgets are computed for.

# %%
decode = Decode.uniform(32, 4096, q_heads=32, kv_heads=8, dtype="bf16")
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
bench = Bench(decode, prefill, gpu="h200")
bench

# %% [markdown]
# ## Both formulas
#
# `bench.equations` takes a kernel's name, and shows each term of its shared memory and of its registers with the constants named, what the compiler says, and the blocks that follow.
# Where lines take turns in the same space, amounts in brackets do not count.

# %%
bench.equations("decode_fma")

# %% [markdown]
# ## Budgets
#
# A family of terms has one colour in all figures of the book.
# A diamond is the compiler's number, a circle what a thread has after the warps that load have handed registers over, and the dashed line what a thread can have at most.

# %% mystnb={"figure": {"caption": "What every CUDA kernel of decode and prefill takes, term by term, on an H200: predicted as bars, compiled as diamonds.", "name": "bench-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, with a line at 255, and shared memory per block below. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% [markdown]
# ## Occupancy
#
# A bar is the number of blocks on an SM, its colour what limits them, and the words below say what one block more would take.

# %% mystnb={"figure": {"caption": "Blocks on an SM of every CUDA kernel, and what one more would take. H200.", "name": "bench-occupancy"}, "image": {"alt": "A bar of blocks for each kernel in the colour of what limits them, with words below each bar.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200")
plt.show()

# %% [markdown]
# ## A run
#
# `bench.run` runs and judges every kernel. A kernel that fails stays in the table, with the reason as its note.

# %% tags=["nbval-ignore-output"]
ran = bench.run()
print("times:", ", ".join(ran.kind.unique()))
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# ## Times
#
# `bench.times` has the times of this run and the recorded ones of the same workload, all of one recording; `bench.floors` has the least possible times.

# %% mystnb={"figure": {"caption": "Recorded times of the prefill, all of one recording, and the least times (lines). Other libraries are named as they name themselves: fa3 is FlashInfer's backend for Hopper. Gluon is a kernel that the lab no longer has.", "name": "bench-timing"}, "image": {"alt": "A mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
Bench(prefill, gpu="h200").plot_timing()
plt.show()

# %% [markdown]
# ## Errors
#
# `bench.errors` has a row for each kernel, request and head; `bench.elements` a row for each element.
# Triton's interpreter multiplies bf16 in fp32, so that its $P$ is not rounded: such kernels have a box of their own.

# %% mystnb={"figure": {"caption": "Errors of every decode kernel against float64: maps of requests and heads, boxes by head, and the share of elements below each part of the proven bound.", "name": "bench-errors"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, boxes of the absolute error for each head, by how the kernel multiplied, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("decode")
plt.show()

# %% [markdown]
# ## The log
#
# The log says what ran and what was drawn. A notebook keeps it in its outputs, where {doc}`/book/evidence` and a test read it.

# %% tags=["nbval-ignore-output"]
bench.log
