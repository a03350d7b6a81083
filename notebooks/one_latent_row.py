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
# Multi-head latent attention {cite:p}`deepseek2024` caches one row of 576 channels per key for all heads, so that a step reads little and multiplies much.
# **A decode waits for memory: why, then, does a latent decode with 128 heads need the fastest tensor cores there are?**
#
# :::{admonition} Answer
# :class: important
#
# All heads share the cached row: more heads are more products per byte. By its peak rate `mma.sync` falls behind memory at {glue:text}`latent_mma` heads; measured, it takes {glue:text}`latent_gain_16`, {glue:text}`latent_gain_32` and {glue:text}`latent_gain_128` times as long as Hopper's `wgmma` at 16, 32 and 128 heads.
# The accumulator of 512 channels takes half of an SM's registers and leaves room for one block.
# How sure: one recording on an H200 (CUDA {glue:text}`latent_cuda`), bf16, 64 requests of 4096 keys.
# :::

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
import numpy as np
import pandas as pd
from myst_nb import glue

from labkernels import Bench, Decode, MlaDecode, Prefill, budget, hardware, plots, source
from labkernels.bench import elements
from labkernels.chapters import exercises
from labkernels.chapters.a_typo_that_looked_like_rounding import bytes_and_flops
from labkernels.kernels.registry import discover
from labkernels.plots import style
from labkernels.plots.curves import in_panels
from labkernels.records import recorded, store

h200 = hardware.gpu("h200")

# %% mystnb={"figure": {"caption": "mla_wgmma reaches {glue:text}`latent_roof` % of the roof or more at every number of heads, and FlashInfer's fa3, a kernel for Hopper, nearly so; mla_mma follows to 16 heads and then falls behind. The roof is the time that memory or products need, whichever is longer, at the rates of a copy and of a matrix product. 64 requests of 4096 keys, bf16.", "name": "latent-roof"}, "image": {"alt": "Percent of the roof over the number of heads, from 1 to 128, one line for each kernel. Two lines stay high; the lines of the kernels on mma.sync fall where heads are many, and those without tensor cores lie at the bottom.", "width": "100%"}} tags=["hide-input"]
wanted = {"metric": "time_graph", "statistic": "median", "dtype": "bf16", "page_size": 64}
rows = [row for row in store.read("mla") if wanted.items() <= row.items()]
rows = [row for row in rows if row["note"].startswith("64 x 4096,") and row["q_len"] == 1]
rows = [row for row in rows if " " not in row["kernel"]]  # not those of a tile that was asked for
sizes = {run: sum(row["started_utc"] == run for row in rows) for run in store.runs(rows)}
sweep = store.select(rows, {"started_utc": max(sizes, key=lambda run: (sizes[run], run))})
each = ("kernel", "tensor_cores", "q_heads", "q_len")
worked = pd.DataFrame([row | bytes_and_flops(row) for row in sweep]).drop_duplicates(list(each))
memory_s = worked.bytes / h200.measured_copy_bytes_per_s
roof_s = np.maximum(memory_s, worked.flops / h200.measured_bf16_matmul_flops)
names = list(map(style.name, worked.kernel, worked.tensor_cores))
worked = worked.assign(x=worked.q_heads, y=100 * roof_s / worked.value, kind=names, panel="")
worked = worked.assign(dashed=worked.tensor_cores == "off")
in_panels(worked, labels=("heads", "percent of the roof"), origin=recorded.origin(sweep))
plt.show()

# %% [markdown]
# ## Prediction
#
# A key is all 576 channels of its row, and its value is the first 512 of them.
# With $H$ heads, each key costs $2 H (576 + 512)$ FLOPs, and 1152 bytes in a 16-bit format.
# The bytes of the cache do not depend on $H$, but the products do. The time of a step is at least
#
# $$
# t \ge \max\!\left( \frac{\text{bytes}}{\beta},\; \frac{\text{FLOPs}}{R_{\text{GPU}}} \right),
# $$ (latent-floor)
#
# where $\beta$ is the rate of a copy and $R_{\text{GPU}}$ the FLOP/s of the tensor cores.
#
# A tile of 64 query rows, which are heads here, has an {term}`accumulator` of $64 \times 512$ fp32 numbers, half of the registers of an SM.
# Two {term}`warpgroups <warpgroup>` take 256 of its channels each, which is 128 registers per thread before anything else is counted.

# %% [markdown]
# ### The two formulas
#
# These are the registers and the shared memory of `mla_wgmma` for 64 requests of 4096 keys with 128 heads, beside the compiler's numbers, and the blocks that follow from them.

# %%
mla = MlaDecode((4096,) * 64, q_heads=128)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
kernels = ["mla_fma", "mla_mma", "mla_wgmma", "triton_mla"]
latent = Bench(mla, kernels=kernels, gpu="h200")
kernels = ["decode_fma", "decode_mma", "triton_decode"]
bench = Bench(decode, prefill, kernels=[*kernels, "prefill_fma", "prefill_mma", "triton_prefill"])
latent.equations("mla_wgmma")

# %% [markdown]
# The sum of shared memory is just below what a block may have, and one more stage would not fit.
# The warps that load hand registers to the warpgroups that multiply, and a circle in {numref}`latent-budget` marks what a thread of these then has.

# %% mystnb={"figure": {"caption": "The accumulator of 512 channels (dark blue) is half or more of a latent decode's registers. On tensor cores the stages of latent rows (green) are most of its shared memory. A circle marks the registers after the warps that load have handed theirs on.", "name": "latent-budget"}, "image": {"alt": "Two panels of stacked bars for three kernels of latent decode: registers per thread above, with a line at 255, and shared memory per block below. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
latent.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "One block of a latent decode is all that an SM holds, on each of three GPUs that can run the kernel.", "name": "latent-occupancy"}, "image": {"alt": "Three panels, one for each GPU, with a bar of one block for each kernel that can run there and the words of what one block more would take.", "width": "100%"}} tags=["hide-input"]
latent.plot_occupancy("h200", "a100", "rtx4090")
plt.show()

# %% [markdown]
# ### Memory or products
#
# The table evaluates {eq}`latent-floor` for 64 requests of 4096 keys on an H200, with the vendor's peak for the products and the measured rate of a copy:

# %% tags=["hide-input"]
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
# The memory's time hardly changes, and the products reach it at {glue:text}`latent_peak` heads by the vendor's peak.
# At the rate of a large matrix product they reach it at {glue:text}`latent_measured` heads, and at that of `mma.sync`, {glue:text}`latent_share` % of the peak ({doc}`half_idle_tensor_cores`), at {glue:text}`latent_mma`: `mla_mma` must fall behind before 128 heads.


# %% tags=["evidence"]
def crossing(flops_per_s):
    """The least number of heads whose products take as long as memory, at this rate."""
    works = {heads: MlaDecode((4096,) * 64, q_heads=heads) for heads in range(1, 257)}
    copy = h200.measured_copy_bytes_per_s
    return next(n for n, w in works.items() if w.flops / flops_per_s >= w.bytes / copy)


rates = {"peak": h200.tensor_fp16_flops, "measured": h200.measured_bf16_matmul_flops}
rates["mma"] = h200.tensor_fp16_flops * h200.measured_mma_sync_share
numbers = {name: f"{crossing(rate)}" for name, rate in rates.items()}
numbers["share"] = f"{100 * h200.measured_mma_sync_share:.0f}"
numbers["cuda"] = sweep[0]["cuda"]

# %% [markdown]
# ## Code
#
# This is how `mla_mma` computes the scores. Its warps share the keys of a step:

# %% tags=["hide-input"]
source("mla_mma", "scores")

# %% [markdown]
# ## Measurement
#
# ### Over the number of heads
#
# `labkernels record mla` recorded the time of each kernel on an H200, which {numref}`latent-roof` draws.
# The table has the times of both kernels on tensor cores, how many times as long `mla_mma` takes, and how much of its instruction's peak it reaches:

# %% tags=["hide-input"]
times = worked.pivot_table(index="q_heads", columns="kernel", values="value") * 1e6
gain = times.loc[list(HEADS), ["mla_mma", "mla_wgmma"]]
gain["mma.sync / wgmma"] = gain.mla_mma / gain.mla_wgmma
flops = worked.drop_duplicates("q_heads").set_index("q_heads").flops
peak = h200.tensor_fp16_flops * h200.measured_mma_sync_share
gain["mla_mma, % of mma.sync's peak"] = 100 * flops / (1e-6 * gain.mla_mma) / peak
gain = gain.rename(columns={name: f"{name}, µs" for name in ("mla_mma", "mla_wgmma")})
digits = dict.fromkeys(gain.columns[:3], "{:.2f}") | {gain.columns[3]: "{:.0f}"}
for heads in (16, 32, 128):
    numbers[f"gain_{heads}"] = f"{gain['mma.sync / wgmma'][heads]:.1f}"
    numbers[f"part_{heads}"] = f"{gain.iloc[:, 3][heads]:.0f}"
plots.table(gain.rename_axis(columns=None).reset_index(), "gain", digits)

# %% tags=["evidence"]
copy, ours = h200.measured_copy_bytes_per_s, worked[worked.kernel.isin(["mla_mma", "mla_wgmma"])]
roof_s = np.maximum(ours.bytes / copy, ours.flops / rates["measured"])
reached, one_head = 100 * roof_s / ours.value, ours.q_heads == 1
numbers["roof"] = f"{reached[ours.kernel == 'mla_wgmma'].min():.0f}"
numbers["more"] = f"{(1e4 / reached[one_head] - 100).min():.0f}"
for name, text in numbers.items():
    glue(f"latent_{name}", text, display=False)

# %% [markdown]
# At 32 heads `mla_mma` reaches {glue:text}`latent_part_32` % of that peak, and at 128 heads {glue:text}`latent_part_128` %: the instruction's peak is not what it waits for.

# %% mystnb={"figure": {"caption": "At 128 heads the least times of memory and of products are nearly equal, and only kernels for Hopper come near them. 64 requests of 4096 keys, bf16, one recording; numbers after a kernel's name are those of a tile that was asked for.", "name": "latent-timing"}, "image": {"alt": "A mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
latent.plot_timing()
plt.show()

# %% [markdown]
# ### Error over the number of heads
#
# A tile has up to 64 rows, so that few heads leave rows empty and many heads fill several tiles.
# If a row of the tile leaked into another, the error of a head would change with the number of heads.
# The cell runs four numbers of heads, with tensor cores on and off:

# %% tags=["hide-input"]
parts = []
for heads in (4, 16, 64, 128):
    work = MlaDecode((192, 96, 33), q_heads=heads)
    engines = ("fma", "mma", "wgmma") if heads >= 16 else ("fma", "mma")
    ways = {f"mla_{engine}": {"kernel": f"mla_{engine}"} for engine in engines}
    found = elements.errors("mla", work, ways).assign(square=lambda x: x.error**2)
    rmse = found.groupby(["way", "sample", "head"]).square.mean() ** 0.5
    parts.append(rmse.rename("rmse").reset_index().assign(q_heads=heads))
cells = pd.concat(parts).rename(columns={"way": "kernel"})
cells["tensor_cores"] = cells.kernel.map(lambda name: "off" if name == "mla_fma" else "on")

# %% mystnb={"figure": {"caption": "The errors of heads stay in one range, however many share a row; tensor cores add the rounding of P to that of the 16-bit output. Requests of 192, 96 and 33 keys, bf16, computed on this machine.", "name": "latent-errors"}, "image": {"alt": "Three panels, one for each request: points of rmse for each head at 4, 16, 64 and 128 heads, and nearly level lines of their means, one for each kernel. The line of tensor cores off lies a little below the others.", "width": "100%"}} tags=["hide-input"]
plots.errors_by_heads(cells, origin="computed on this machine")
latent.log.drew("errors", "mla")
plt.show()

# %% [markdown]
# The latent decode also runs here in Triton, and decode and prefill beside it:

# %% tags=["nbval-ignore-output"]
ran = latent.run(), bench.run()
print(f"{len((latent.log + bench.log).runs)} kernels ran, and their outputs were judged")

# %% tags=["nbval-ignore-output", "evidence"]
latent.log + bench.log


# %% [markdown]
# ## What would change the answer
#
# - **More tokens per request.** A speculative decode, which checks several tokens at once, multiplies the rows that share a latent row, as more heads do; the first exercise asks how many it takes.
# - **Another ratio of products to bytes.** An H100 has the same tensor cores and slower memory, so that products catch up at more heads; a GPU with faster memory or slower tensor cores needs `wgmma` earlier.
# - **An 8-bit cache** halves the bytes, and was not measured here.
# - **Shorter requests.** Already here both kernels on tensor cores take at least {glue:text}`latent_more` % more at one head than a copy's rate allows. A shorter step hides less of its beginning and its end.
#
# Where did the model fail?
# From 32 heads on {eq}`latent-floor` expects too much of `mla_mma`. It has no term for shared memory, from which every operand of `mma.sync` must first be fetched, and none for phases that nothing overlaps.
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
# What counts is the number of rows, heads times tokens. The {glue:text}`latent_peak` heads at which products reach memory by the vendor's peak, divided by 16 and rounded up, give the tokens.


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
