# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One latent row for 128 heads
#
# ## Question
#
# **A decode waits for memory. Why, then, does a latent decode with 128 heads need the fastest tensor cores there are?**
#
# Multi-head latent attention {cite:p}`deepseek2024` caches one row of 576 channels per key for all heads, where grouped-query attention caches a key and a value for each KV head.
# The cache is small, so that a decode step reads little.
# {doc}`a_typo_that_looked_like_rounding` met such a kernel by its bug; this chapter asks what the kernel needs and how fast it can be.
#
# Step by step, you will
#
# 1. predict at how many heads a latent decode stops waiting for memory;
# 2. derive why its tile leaves one block on an SM, whatever the GPU;
# 3. say what `wgmma` gains over `mma.sync` here, and what it does not change.
#
# ## You need
#
# {doc}`tensor_cores_on_and_off` has the formulas of a decode, and {eq}`mla-intensity` is the intensity of a latent one.
# {doc}`/book/glossary` explains {term}`MLA`, {term}`wgmma` and {term}`ledger`.
# You need no GPU: the kernels run here as CPU builds, and times are recorded.

# %% tags=["remove-cell"]
# Where the lab is not installed, as in Colab, this cell installs it, with its recorded data.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("labkernels") is None:
    lab = "labkernels[gpu,plots] @ git+https://github.com/labkernels/labkernels"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", lab, "myst-nb"], check=True)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd

from labkernels import Bench, Decode, MlaDecode, Prefill, budget, hardware, plots, source
from labkernels.chapters import exercises
from labkernels.chapters.a_typo_that_looked_like_rounding import bytes_and_flops
from labkernels.kernels.registry import discover
from labkernels.records import recorded, store

h200 = hardware.gpu("h200")

# %% [markdown]
# ## Model
#
# A key is all 576 channels of its row, and its value is the first 512 of them.
# With $H$ heads, each key costs $2 H (576 + 512)$ FLOPs, and 1152 bytes in a 16-bit format.
# The bytes of the cache do not depend on $H$ and products do, so that the time of a step is at least
#
# $$
# t \;\ge\; \max\!\left( \frac{\text{bytes}}{\beta},\; \frac{\text{FLOPs}}{R_{\text{GPU}}} \right),
# $$ (latent-floor)
#
# where $\beta$ is the rate of a copy and $R_{\text{GPU}}$ that of the tensor cores.
#
# A tile of 64 query rows has an accumulator of $64 \times 512$ fp32 numbers, half of the registers of an SM.
# Two warpgroups share its channels, 256 each, which is 128 registers per thread before anything else is counted.

# %% [markdown]
# ### The two formulas
#
# The cell shows them for `mla_wgmma` and 64 requests of 4096 keys with 128 heads: shared memory and registers in symbols, in numbers, and beside the compiler's, and the blocks that follow from both.

# %%
mla = MlaDecode((4096,) * 64, q_heads=128)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
bench = Bench(mla, decode, prefill, gpu="h200")

# %%
bench.equations("mla_wgmma")

# %% [markdown]
# The formula of shared memory ends just below what a block may have, and one more stage would not fit.
# The warps that load hand their registers to the warpgroups that multiply, and a circle in {numref}`latent-budget` marks what these then have.

# %% mystnb={"figure": {"caption": "A latent decode takes as many registers as a prefill and more shared memory than the kernels of decode and prefill. A circle marks the registers after the warps that load have handed theirs on.", "name": "latent-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "One block of a latent decode is all that an SM holds, on every GPU that can run it.", "name": "latent-occupancy"}, "image": {"alt": "A panel for each GPU with a row for each kernel. Marks on a logarithmic axis give the blocks that registers, shared memory, warps and the block limit leave on an SM; a bar ends at the least of them.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200", "a100", "rtx4090")
plt.show()

# %% [markdown]
# ## Prediction
#
# The table evaluates {eq}`latent-floor` for 64 requests of 4096 keys on an H200, with the vendor's peaks for the products and the measured copy rate:

# %%
HEADS = (1, 8, 16, 32, 64, 128)
rows = []
for heads in HEADS:
    work = MlaDecode((4096,) * 64, q_heads=heads)
    copy = h200.measured_copy_bytes_per_s
    least = budget.least_time(work, h200, tensor_cores=True, bytes_per_s=copy)
    rows.append((heads, 1e6 * least.memory_s, 1e6 * least.math_s, least.bound))
floors = pd.DataFrame(rows, columns=["heads", "memory, µs", "products, µs", "set by"])
plots.table(floors, "floors", dict.fromkeys(floors.columns[1:3], "{:.1f}"))

# %% [markdown]
# The memory's time hardly changes, and the products reach it at about 128 heads.
# `mla_mma` cannot follow: the instruction `mma.sync` reaches two thirds of the peak at best ({doc}`half_idle_tensor_cores`), so that it must fall behind before 128 heads.
#
# ## Kernel
#
# The listing has the scores in `mla_mma`, whose warps share the keys of a step:

# %% tags=["hide-input"]
source("mla_mma", "scores")

# %% [markdown]
# ## Measurement
#
# ### Over the number of heads
#
# `labkernels record mla` recorded the time of each kernel on an H200.
# {numref}`latent-roof` has the larger of both floors, at the rates that a copy and a matrix product reach, in percent of this time.

# %% mystnb={"figure": {"caption": "mla_wgmma stays near the roof at every number of heads, as FlashInfer's fa3 does; mla_mma follows to 16 heads and then falls behind. The batch has 64 requests of 4096 keys in bf16.", "name": "latent-roof"}, "image": {"alt": "Percent of the roof over the number of heads, from 1 to 128, one line for each kernel. Two lines stay high; the lines of the kernels on mma.sync fall from 32 heads on, and those without tensor cores lie at the bottom.", "width": "100%"}} tags=["hide-input"]
wanted = {"metric": "time_graph", "statistic": "median", "dtype": "bf16", "page_size": 64}
rows = [row for row in store.read("mla") if wanted.items() <= row.items()]
rows = [row for row in rows if row["note"].startswith("64 x 4096,") and row["q_len"] == 1]
rows = [row for row in rows if " " not in row["kernel"]]  # not those of a tile that was asked for
each = ("kernel", "tensor_cores", "q_heads", "q_len")
sweep = recorded.newest_of_each(rows, each)
worked = pd.DataFrame([row | bytes_and_flops(row) for row in sweep]).drop_duplicates(list(each))
plots.roof_by_heads(worked, h200, origin=recorded.origins(sweep))
plt.show()

# %% tags=["hide-input"]
times = worked.pivot_table(index="q_heads", columns="kernel", values="value") * 1e6
gain = times.loc[list(HEADS), ["mla_mma", "mla_wgmma"]]
gain["mma.sync / wgmma"] = gain.mla_mma / gain.mla_wgmma
flops = worked.drop_duplicates("q_heads").set_index("q_heads").flops
peak = h200.tensor_fp16_flops * h200.measured_mma_sync_share
gain["mla_mma, % of mma.sync's peak"] = 100 * flops / (1e-6 * gain.mla_mma) / peak
gain = gain.rename(columns={name: f"{name}, µs" for name in ("mla_mma", "mla_wgmma")})
digits = dict.fromkeys(gain.columns[:3], "{:.2f}") | {gain.columns[3]: "{:.0f}"}
plots.table(gain.rename_axis(columns=None).reset_index(), "gain", digits)

# %% [markdown]
# The table has the times of both kernels on tensor cores, how many times as long `mla_mma` takes, and how much it does of what its instruction can.
# At the peak of `mma.sync` the products of `mla_mma` would reach memory's time at about 80 heads.
# It falls behind at 32 already, where it does a quarter of that peak, and at 128 it does less than half.
#
# ### Latent decode, decode and prefill, live
#
# This cell runs all kernels of the three operations, in CUDA and in Triton, with tensor cores on and off.

# %% tags=["nbval-ignore-output"]
print(*(workload.label for workload in bench.here), sep="\n")
ran = bench.run()
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# A latent decode stands between the two others: like a decode it reads each key once, and like a prefill it multiplies it with many rows.

# %% mystnb={"figure": {"caption": "Latent decode with 128 heads: memory and products set nearly the same least time. Memory sets the least time of the plain decode below it, and products that of the prefill. Numbers after a kernel's name are those of a tile that was asked for. The workloads have their full size.", "name": "latent-timing"}, "image": {"alt": "A panel for each workload: a mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_timing()
plt.show()

# %% mystnb={"figure": {"caption": "No head and no request of the latent decode stands apart. The dtype is bf16.", "name": "latent-errors-mla"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("mla")
plt.show()

# %% mystnb={"figure": {"caption": "These are the errors of the plain decode, in bf16.", "name": "latent-errors-decode"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("decode")
plt.show()

# %% mystnb={"figure": {"caption": "This is a prefill in bf16; Triton's interpreter does not round P.", "name": "latent-errors-prefill"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("prefill")
plt.show()

# %% [markdown]
# This is what ran here:

# %% tags=["nbval-ignore-output"]
bench.log


# %% [markdown]
# ## What we learned
#
# - **The cache is small and the arithmetic is not.** One latent row serves all heads, so that products catch up with memory at about 128 heads on an H200.
# - **The accumulator decides the tile.** 512 channels of 64 rows are half of an SM's registers, and one block is all that fits.
# - **`wgmma` gains nothing at 16 heads and nearly twice the speed at 128.** At few heads both kernels wait for memory. At 128 the peaks of the two instructions explain one and a half of this; the rest is that `mla_mma` stays further below its own peak.
#
# Where did the model fail?
# At a few heads both kernels take an eighth more than the copy's rate allows: a step of one request's keys is short, and its beginning and end are not hidden.
# From 32 heads on, {eq}`latent-floor` expects too much of `mla_mma`: it has no term for shared memory, from which `mma.sync` must have every fragment fetched, nor for phases that nothing overlaps.
#
# ## Exercises
#
# In assignments 19 and 20 of {doc}`/book/assignments` you write a phase of `mla_wgmma`: the mask, and the hand-over of $P$ between warpgroups.
#
# ```{exercise}
# :label: latent-tokens
#
# A speculative decode has several query tokens per request, which share the latent rows of their keys.
# At how many tokens do products reach the time of memory with 16 heads, without a mask, by {eq}`latent-floor` and the vendor's peak?
# Check your answer with `exercises.check("latent-tokens", tokens)`.
# ```
#
# ```{solution-start} latent-tokens
# :class: dropdown
# ```
#
# What counts is the number of rows, heads times tokens. Products reach memory at about 128 rows, which are 8 tokens of 16 heads.


# %%
def ratio(tokens):
    """The products' time over that of memory."""
    work = MlaDecode((4096,) * 64, q_heads=16, q_len=tokens, causal=False)
    copy = h200.measured_copy_bytes_per_s
    least = budget.least_time(work, h200, tensor_cores=True, bytes_per_s=copy)
    return least.math_s / least.memory_s


first = next(tokens for tokens in range(1, 20) if ratio(tokens) >= 1)
assert exercises.check("latent-tokens", first)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: latent-stages
#
# How many bytes of shared memory would a block of `mla_mma`'s largest tile need with a third stage of keys, and how many GPUs of {doc}`hardware` could hold it?
# Check your answer with `exercises.check("latent-stages", (n_bytes, n_gpus))`.
# ```
#
# ```{solution-start} latent-stages
# :class: dropdown
# ```
#
# A stage is half of the line of the keys in the ledger. With a third one the block needs more than any GPU gives it.

# %%
spec = discover()["mla_mma"]
instance = spec.instance(spec.shape(head_dim=576, group=128), gpu=h200)
ledger = spec.smem(instance)
keys = next(line for line in ledger.lines if "K stages" in line.name)
needed = ledger.total + keys.amount // instance.tile.stages
fitting = sum(needed <= gpu.smem_per_block_max_bytes for gpu in hardware.GPUS.values())
assert exercises.check("latent-stages", (needed, fitting))

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# Latent attention and its dimensions are from {cite:t}`deepseek2024`.
# The sources of FlashMLA and FlashInfer show that warpgroups of Hopper share a wide accumulator by its channels {cite:p}`ye2025`; the kernels and the recorded times are ours.
