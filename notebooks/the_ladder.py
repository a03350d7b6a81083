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
# # A ladder from CUDA cores to wgmma
#
# ## Question
#
# **From a prefill kernel on CUDA cores to one that fills Hopper's tensor cores: which idea gains how much, and does any of them cost accuracy?**
#
# {doc}`half_idle_tensor_cores` asks, with {cite:t}`flashattention1205`, where the idle half of the tensor cores' time goes.
# This chapter starts at the slow end and climbs.
# Its rungs are kernels of this lab, each with one idea more than the rung below, measured in the same run.
# At the end you can say of each idea what it buys, and which of them every kernel should have before the next one is tried.
#
# ## You need
#
# {doc}`half_idle_tensor_cores` has the model of a step, and says what a counter counts.
# {doc}`/book/glossary` explains {term}`tensor core`, {term}`wgmma`, {term}`TMA`, {term}`fragment`, {term}`stage` and {term}`ledger`.
# You need no GPU: the kernels run here as CPU builds, and what only a profiler can say is recorded.

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

from labkernels import Bench, Decode, Prefill, hardware, ops, plots
from labkernels.bench.listing import Listing
from labkernels.budget import least_time
from labkernels.chapters import exercises, the_ladder
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import ladder
from labkernels.numerics import arrays
from labkernels.plots.primers import hopper
from labkernels.records import recorded, store

# %% [markdown]
# ## Model
#
# A block multiplies and exponentiates in turn.
# If nothing overlaps, a pass takes the time of its products and the time of its exponentials; if everything overlaps, it takes the longer of the two.
# The products run at the rate of the rung's instruction: FMAs on CUDA cores, `mma.sync` at the share of the peak that the profiler gives it, or `wgmma` at the peak.
# The model knows neither copies nor memory, so a rung that waits for them falls short of it.

# %% [markdown]
# ### Who does what
#
# In most kernels of the chapters before, the warps that multiply also copy the keys.
# The kernels for Hopper give copying and multiplying to different warps ({term}`warp specialisation`).
#
# - One warp is the *producer*. A thread of it asks the {term}`TMA` for a tile of $K$ or $V$, and the tile comes to shared memory by itself.
# - Two {term}`warpgroups <warpgroup>` are the *consumers*. Each has 64 query rows of the block's 128, multiplies by `wgmma`, and keeps its own softmax.
# - Between them lie a few {term}`stages <stage>` for $K$ and as many for $V$. Each stage has two {term}`mbarriers <mbarrier>`. Through one the consumers wait until the stage is full; through the other the producer waits until both warpgroups have read it, and it is empty.
#
# The figure is drawn from a trace: the kernel of the rung "wgmma", which the next sections measure, ran on the CPU machine with 128 query rows and four blocks of keys, from the last to the first, and noted the end of each wait and each release.

# %% mystnb={"figure": {"caption": "The producer fills a stage as soon as both warpgroups have read it. Pale: the stage is asked for or full; dark: it is read. Numbers are blocks of keys. This is a trace of the rung wgmma on the CPU machine.", "name": "ladder-roles"}, "image": {"alt": "Eight rows of bars in the order of a trace. Above, two stages of K and two of V, each in turn pale and dark for blocks 0 and 2, or 1 and 3. Below, two warpgroups, each with a row for S and a row for P V; in each the bars of S and P V take turns and never overlap.", "width": "100%"}} tags=["hide-input"]
events = pd.DataFrame(the_ladder.trace("wgmma", blocks=4))
hopper.producers_and_consumers(events[events.of != "Q"], 2, origin="a trace of the CPU machine")
plt.show()

# %% [markdown]
# A warpgroup of this rung asks for $S$, waits, computes its softmax, asks for $P V$ and waits again.
# On the rung "ping-pong" the scores of the next block are asked for before $P V$ of this one, so that a softmax runs beside products, and the two warpgroups take turns.

# %% mystnb={"figure": {"caption": "With turns, the products for S of the next block and those of P V overlap in each warpgroup. This is a trace of the rung ping-pong on the CPU machine.", "name": "ladder-turns"}, "image": {"alt": "The same eight rows. From block 1 on the bar of S of each warpgroup begins before the bar of P V of the block before, and both end at nearly the same place.", "width": "100%"}} tags=["hide-input"]
events = pd.DataFrame(the_ladder.trace("ping-pong", blocks=4))
hopper.producers_and_consumers(events[events.of != "Q"], 2, origin="a trace of the CPU machine")
plt.show()

# %% [markdown]
# A trace has an order and no times; the times are measured below.

# %% [markdown]
# ### What the top rung takes
#
# The cell shows the formulas of `prefill_wgmma`, the kernel at the top of the ladder, in symbols, in numbers, and beside the compiler's.

# %%
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
bench = Bench(prefill, decode, gpu="h200")

# %%
bench.equations("prefill_wgmma")

# %% [markdown]
# {numref}`ladder-budget` shows the ladder as a change of ledgers: a rung on `mma.sync` holds fragments of $K$ and $V$ in registers, and a rung on `wgmma` holds none.
# The decode kernels beside them are built of the same parts.

# %% mystnb={"figure": {"caption": "Climbing from prefill_fma to prefill_wgmma moves the operands out of the registers and into shared memory.", "name": "ladder-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "The top rungs fill an SM with one block of twelve warps, prefill_mma with two blocks of four; no kernel comes near the 64 warps that an SM could hold.", "name": "ladder-occupancy"}, "image": {"alt": "A panel for each GPU with a row for each kernel. Marks on a logarithmic axis give the blocks that registers, shared memory, warps and the block limit leave on an SM; a bar ends at the least of them.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200", "a100")
plt.show()

# %% [markdown]
# ## Prediction
#
# The table has the model's rate for each rung, in TFLOP/s, for 4 requests of 4096 tokens, 16 heads of 128 channels, without a mask, on an H200.
# From the rung "softmax beside products" on, the phases overlap.

# %%
h200 = hardware.gpu("h200")
work = Prefill((4096,) * 4, (4096,) * 4, 16, 16, 128)
rungs = {rung.name: rung for rung in ladder.rungs("prefill")}
floor = least_time(work, h200, tensor_cores=True)
products_s = dict.fromkeys(rungs, floor.math_s)
products_s |= dict.fromkeys(
    ("mma.sync", "2 stages", "TMA"), floor.math_s / h200.measured_mma_sync_share
)
products_s["CUDA cores"] = work.flops / h200.fp32_flops
first = list(rungs).index("softmax beside products")
apart = {name: products_s[name] + floor.exp_s for name in list(rungs)[:first]}
together = {name: max(products_s[name], floor.exp_s) for name in list(rungs)[first:]}
expected = {name: work.flops / time_s / 1e12 for name, time_s in (apart | together).items()}
shown = pd.DataFrame(expected.items(), columns=["rung", "expected, TFLOP/s"])
plots.table(shown, "expected", {"expected, TFLOP/s": "{:.0f}"})

# %% [markdown]
# ## Kernels
#
# Nine of the ten rungs are the kernel `prefill_wgmma_basic`, with the folder `prefill/rungs` beside it, compiled with one idea more each time; the tenth is `prefill_wgmma`, the kernel that a user gets.
# `labkernels ladder prefill --show NAME` prints what a rung changes in the code of the rung below.
# A block of the rung "persistent tiles" stays on its SM, computes tile after tile, and loads the next tile while this one ends; on the rungs below, each tile has a block of its own.
# The rung "P ahead" rounds the weights $P$ of the next block to 16 bits while the product of this block runs.
# The listings show these changes, from the files that ran. The rung "2 stages" changes no line but a number of the tile.
# A line after + is new in a rung, and a line after - is gone from the rung below.
# The first two listings open in a page and scroll in JupyterLab, since these rungs replace whole loops:


# %% tags=["hide-input"]
def change(name, operation="prefill"):
    rung = next(rung for rung in ladder.rungs(operation) if rung.name == name)
    difference = ladder.difference(rung)
    title = f"{name}: {difference.added} lines of code more, {difference.removed} fewer"
    return Listing(title, difference.text + "\n", "diff")


# %% tags=["hide-cell"]
change("mma.sync")

# %% tags=["hide-cell"]
change("TMA")

# %% tags=["hide-input"]
change("wgmma")

# %% tags=["hide-input"]
change("softmax beside products")

# %% tags=["hide-input"]
change("ping-pong")

# %% tags=["hide-input"]
change("persistent tiles")

# %% tags=["hide-input"]
change("P ahead")

# %% [markdown]
# The top rung, `prefill_wgmma`, adds what a production kernel needs beside these ideas: pages, a tile scheduler, blocks of keys that a warpgroup skips, and rows that leave as whole lines.
# These are {glue:text}`top_lines` lines, too many for one sitting. It is better to read its files one by one.

# %% [markdown]
# ## Measurement
#
# <!-- guess: prefill_gain -->
#
# ### The rungs, in one run
#
# `labkernels record counters` recorded the time as the profiler took it on an H200, with empty caches, and its counters.
# {numref}`ladder` draws the rates.
# The table below it has what each rung adds in lines of code, its bytes of shared memory, what the compiler made of its registers, and the counters.

# %% tags=["hide-input"]
everything = store.read("counters")
everything = recorded.newest_of_each(everything, ("kernel", "tile", "head_dim"))
counted = plots.counter_table(pd.DataFrame(everything))
gemm = counted[counted.kernel == "cublas"].iloc[0]
gemm_rate = 2 * 8192**3 / gemm.call_s / 1e12

# %% tags=["hide-input"]
frame = pd.DataFrame([vars(rung) for rung in rungs.values()])
climbed = frame.merge(counted[counted.head_dim == work.head_dim], on=["kernel", "tile"])
climbed["tflops"] = work.flops / climbed.call_s / 1e12
climbed["words"] = [
    f"tensor pipe {row.tensor_pipe:.0f} %" if row.tensor_cores else f"FMA {row.fma:.0f} %"
    for row in climbed.itertuples()
]

# %% mystnb={"figure": {"caption": "Three ideas do most of the climb: the tensor cores, the TMA that feeds them, and wgmma. The profiler took the times, with empty caches; the dashed lines are the vendor's peak and what cuBLAS reached under the same profiler.", "name": "ladder"}, "image": {"alt": "Horizontal bars of TFLOP/s, one for each rung: a short one for CUDA cores at the top, two alike for mma.sync, a longer one with TMA, five of nearly the same length for wgmma, and the longest for prefill_wgmma. Beside each bar stands the share of time in which the tensor pipe was active. Two dashed lines mark cuBLAS and the peak.", "width": "100%"}} tags=["hide-input"]
ceilings = {"cuBLAS": gemm_rate, "peak": h200.tensor_fp16_flops / 1e12}
shown = climbed.rename(columns={"name": "rung"})[["rung", "kernel", "tflops", "words"]]
tiles = {("cublas", ""), *((rung.kernel, rung.tile) for rung in rungs.values())}
of_rungs = [row for row in everything if (row["kernel"], row["tile"]) in tiles]
plots.ladder(shown, ceilings=ceilings, origin=recorded.origins(of_rungs))
plt.show()

# %% tags=["hide-input"]
steps = climbed[["name", "idea", "registers", "smem_bytes", "smem", "issue", "tflops"]].copy()
found = {name: ladder.difference(rung) for name, rung in rungs.items()}
changed = {name: f"+{d.added} −{d.removed}" if d else "–" for name, d in found.items()}
steps.insert(2, "lines", steps.name.map(changed))
steps["smem_bytes"] /= 1024
steps["gain"] = 100 * steps.tflops.pct_change(fill_method=None)
steps["measured / expected"] = steps.tflops / steps.name.map(expected)
steps = steps.rename(columns={"name": "rung", "smem_bytes": "KiB", "smem": "shared memory, %"})
steps = steps.rename(columns={"issue": "issue, %", "tflops": "TFLOP/s", "gain": "gain, %"})
digits = dict.fromkeys(["registers", "KiB", "shared memory, %", "issue, %", "TFLOP/s"], "{:.0f}")
plots.table(steps, "rungs", digits | {"gain, %": "{:+.1f}", "measured / expected": "{:.2f}"})

# %% [markdown]
# Tensor cores multiply the rate by {glue:text}`mma_gain`, and then nothing moves: a second stage changes the rate by {glue:text}`stages_gain` %, with the tensor pipe active for {glue:text}`mma_active` % of the time.
# One warp copies for two warpgroups, with 16 bytes per thread and instruction, and all warps wait for its copies: the TMA, which leaves the products as they are, multiplies the rate by {glue:text}`tma_gain`.
# The step to `wgmma` multiplies it by {glue:text}`wgmma_gain`; no thread holds a fragment of $K$ or $V$ any more, and shared memory falls from {glue:text}`tma_smem` to {glue:text}`wgmma_smem` % of what it can do.
#
# Overlap gains far less than the model says.
# Exponentials beside the products of the same warpgroup gain {glue:text}`within_gain` %, and turns between warpgroups change the rate by {glue:text}`between_gain` % on top of that.
# Blocks that stay for tile after tile change it by {glue:text}`persistent_gain` %: with this shape the SMs have nothing to wait for at the end, and the work to find the next tile shows in the ALU, which is busy for {glue:text}`persistent_alu` % of the time instead of {glue:text}`pingpong_alu`.
# Rounding $P$ ahead brings {glue:text}`ahead_gain` % back.
# What `prefill_wgmma` adds, tiles taken as blocks become free and a steady state without tests, is worth {glue:text}`top_gain` %.

# %% [markdown]
# ### Tensor cores on and off
#
# Did any rung pay with accuracy?
# The CPU builds of all rungs give the bits of the H200. The cell runs them on six requests of 33 to 512 tokens, and takes the error against float64 for each sample and head.

# %% tags=["hide-input"]
lengths = (512, 384, 256, 128, 64, 33)
shape = Prefill(lengths, lengths, 8, 8, 128, causal=True)
case = prefill_inputs(shape, Normal(0, "cpu"))
given, errors = (case.q, case.kv, case.cu_seqlens_q), {}
exact = {"causal": True, "kernel": "reference_prefill", "scale": case.scale}
truths = arrays.as_float64(ops.prefill(*given, **exact).out)
for rung in rungs.values():
    options = {"causal": True, "kernel": rung.spec, "scale": case.scale, "splits": 1}
    out = ops.prefill(*given, **options).out
    errors[rung.name] = arrays.as_float64(out) - truths

# %% mystnb={"figure": {"caption": "Speed costs no accuracy: the rungs have the same error for each sample and head. The samples, in bf16, have from 512 tokens (sample 0) to 33 (sample 5).", "name": "ladder-errors"}, "image": {"alt": "Heat maps of 6 samples and 8 heads, one for each of four rungs. Rows grow lighter from long to short requests; no head stands out; the maps look alike.", "width": "100%"}} tags=["hide-input"]
sample = np.repeat(np.arange(len(lengths)), lengths)
frames = []
for rung in (rungs[name] for name in ("CUDA cores", "mma.sync", "wgmma", "prefill_wgmma")):
    square = pd.DataFrame((errors[rung.name] ** 2).mean(-1)).groupby(sample).mean() ** 0.5
    cells = square.melt(ignore_index=False, var_name="head", value_name="rmse")
    cells = cells.rename_axis("sample").reset_index()
    used = "on" if rung.tensor_cores else "off"
    frames.append(cells.assign(kernel=rung.name, tensor_cores=used))
plots.error_maps(pd.concat(frames), origin="computed on this machine", label="rmse")
plt.show()

# %% tags=["hide-input"]
named = {n: {"rmse, 1e-4": 1e4 * (e**2).mean() ** 0.5} for n, e in errors.items()}
for name, error in errors.items():
    heads = 1e4 * (error**2).mean((0, 2)) ** 0.5
    named[name] |= {"best head": heads.min(), "worst head": heads.max()}
    named[name] |= {"bits like the rung below": "–"}
for below, name in zip(list(errors)[:-1], list(errors)[1:], strict=True):
    same = 100 * (errors[below] == errors[name]).mean()
    named[name]["bits like the rung below"] = f"{same:.1f} %"
by_rung = pd.DataFrame(named).T.rename_axis("rung").reset_index()
plots.table(by_rung, "rung-errors", dict.fromkeys(by_rung.columns[1:4], "{:.2f}"))

# %% [markdown]
# ### The ladders of decode and backward
#
# The same run recorded the same ideas on the other operations: 64 requests of 4096 keys for decode, and the shape of the prefill above for the backward pass.

# %% tags=["hide-input"]
others = [rung for name in ("decode", "backward") for rung in ladder.rungs(name)]
frame = pd.DataFrame([vars(rung) | {"operation": rung.operation} for rung in others])
frame = frame.merge(counted[counted.head_dim == work.head_dim], on=["kernel", "tile"])
frame["time_ms"] = 1e3 * frame.call_s
kept = {"operation": "operation", "name": "rung", "idea": "idea", "time_ms": "time, ms"}
kept |= {"tensor_pipe": "tensor pipe, %", "dram": "memory, %", "issue": "issue, %"}
digits = dict.fromkeys(("tensor pipe, %", "memory, %", "issue, %"), "{:.0f}")
plots.table(frame[list(kept)].rename(columns=kept), "others", digits | {"time, ms": "{:.3f}"})

# %% [markdown]
# The next listings show what the rungs of decode and of the backward pass change.
# Between `backward_mma` and `backward_wgmma`, the kernel that a user gets, stand three rungs of one tile: `wgmma` on tiles that all threads copy, the TMA, and $S$ computed transposed, so that $P$ and $dS$ stay in registers.
# `backward_wgmma` itself adds {glue:text}`backward_lines` lines to the last of them: other head_dims, an ordered $dQ$, and warps that add $dQ$.

# %% tags=["hide-cell"]
change("mma.sync", "decode")

# %% tags=["hide-cell"]
change("8 query columns", "decode")

# %% tags=["hide-cell"]
change("wgmma", "backward")

# %% tags=["hide-cell"]
change("TMA", "backward")

# %% tags=["hide-cell"]
change("P in registers", "backward")

# %% [markdown]
# With tensor cores a decode keeps memory busy, and faster arithmetic has nothing to gain; without them its FMAs take longer than the bytes do at this size of group.
# The backward pass has five products where the forward pass has two, and each rung from `wgmma` on makes it faster.

# %% [markdown]
# ### Prefill and decode, live
#
# Do the findings carry over to the kernels that a user gets, on the machine at hand?
# This cell runs all kernels of both operations, in CUDA and in Triton, with tensor cores on and off.

# %% tags=["nbval-ignore-output"]
print(*(workload.label for workload in bench.here), sep="\n")
ran = bench.run()
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# The decode kernels stop at `mma.sync`, because with it they reach what memory allows.

# %% mystnb={"figure": {"caption": "The prefill kernels are an order of magnitude apart, and the CUDA decode kernels stand near the least time that memory allows. The workloads have their full size.", "name": "ladder-timing"}, "image": {"alt": "A panel for each workload: a mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_timing()
plt.show()

# %% mystnb={"figure": {"caption": "The error does not change from rung to rung on tensor cores. This is a prefill in bf16; Triton's interpreter does not round P.", "name": "ladder-errors-prefill"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("prefill")
plt.show()

# %% mystnb={"figure": {"caption": "In a decode in bf16 the error, too, changes only from tensor cores off to on.", "name": "ladder-errors-decode"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("decode")
plt.show()

# %% [markdown]
# This is what ran here:

# %% tags=["nbval-ignore-output"]
bench.log

# %% [markdown]
# ## What we learned
#
# The numbers below are computed from the tables above, in the cells folded here.

# %% tags=["hide-cell"]
rung = climbed.set_index("name")
rate, gains = rung.tflops, steps.set_index("rung")["gain, %"]
rmse_of = {name: float((error**2).mean() ** 0.5) for name, error in errors.items()}
on_tensor_cores = steps.set_index("rung")["measured / expected"].drop("CUDA cores")
numbers = {
    "best_rate": f"{rate.max():.0f}", "fma_rate": f"{rate.min():.0f}", "gemm_rate": f"{gemm_rate:.0f}",
    "mma_gain": f"{rate['mma.sync'] / rate['CUDA cores']:.1f}",
    "stages_gain": f"{gains['2 stages']:+.1f}", "mma_active": f"{rung.tensor_pipe['2 stages']:.0f}",
    "tma_gain": f"{rate['TMA'] / rate['2 stages']:.2f}",
    "wgmma_gain": f"{rate['wgmma'] / rate['TMA']:.2f}",
    "tma_smem": f"{rung.smem['TMA']:.0f}", "wgmma_smem": f"{rung.smem['wgmma']:.0f}",
    "backward_lines": f"{ladder.difference(ladder.rungs('backward')[-1]).added}",
}  # fmt: skip

# %% tags=["hide-cell"]
numbers |= {
    "within_gain": f"{gains['softmax beside products']:.1f}",
    "between_gain": f"{round(gains['ping-pong'], 1) + 0:.1f}",
    "persistent_gain": f"{gains['persistent tiles']:+.1f}",
    "persistent_alu": f"{rung.alu['persistent tiles']:.0f}",
    "pingpong_alu": f"{rung.alu['ping-pong']:.0f}",
    "ahead_gain": f"{gains['P ahead']:.1f}", "top_gain": f"{gains['prefill_wgmma']:.0f}",
    "error_gain": f"{rmse_of['wgmma'] / rmse_of['CUDA cores']:.2f}",
    "least_ratio": f"{on_tensor_cores.min():.2f}", "most_ratio": f"{on_tensor_cores.max():.2f}",
    "top_lines": f"{found['prefill_wgmma'].added}",
}  # fmt: skip
for name, text in numbers.items():
    glue(name, text, display=False)
listed = pd.DataFrame(numbers.items(), columns=["name", "number"])
plots.table(listed.assign(name=listed.name.str.replace("_", " ")), "numbers")

# %% [markdown]
# - **The instruction is the largest step.** From {glue:text}`fma_rate` TFLOP/s on CUDA cores the ladder leads to {glue:text}`best_rate`, where cuBLAS reaches {glue:text}`gemm_rate`. The first step onto tensor cores multiplies the rate by {glue:text}`mma_gain`, the step from `mma.sync` to `wgmma` by {glue:text}`wgmma_gain`.
# - **Tensor cores must be fed.** The TMA multiplies the rate by {glue:text}`tma_gain` and touches no product.
# - **Overlap gains a few per cent.** Within a warpgroup it gains {glue:text}`within_gain` %, turns between warpgroups change that by {glue:text}`between_gain` %, and persistent blocks alone cost time with this shape.
# - **Speed costs no accuracy.** All rungs round $P$ to 16 bits, and their errors are alike: those of `wgmma` are {glue:text}`error_gain` times those of CUDA cores.
#
# Where did the model fail?
# The measured rates are {glue:text}`least_ratio` to {glue:text}`most_ratio` of the expected ones on tensor cores.
# The model is too high wherever copies are the limit, since it has no copies, and where it lets products and exponentials overlap completely.
#
# ## Exercises
#
# In assignments 21 and 22 of {doc}`/book/assignments` you write a phase of `prefill_wgmma`: the warp that asks the TMA for keys, and the softmax beside a product.
#
# ```{exercise}
# :label: ladder-stages
#
# The rung "2 stages" has twice the stages of the rung below.
# Which lines of the ledger of shared memory grow, and by how much?
# Check your answer with `exercises.check("ladder-stages", (of_k_and_v, of_q))`: the factor of each line.
# ```
#
# ```{solution-start} ladder-stages
# :class: dropdown
# ```
#
# The tiles of $K$ and $V$ double, and each stage has its own barriers; $Q$ stays.

# %%
one, two = (
    {line.name: line.amount for line in rung.spec.smem(rung.instance).lines}
    for rung in (rungs["mma.sync"], rungs["2 stages"])
)
assert two["K and V stages"] == 2 * one["K and V stages"]
assert one["barriers"] < two["barriers"] < 2 * one["barriers"]
assert one["Q"] == two["Q"]
assert exercises.check("ladder-stages", [two[name] / one[name] for name in ("K and V stages", "Q")])

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case is {cite:t}`flashattention1205`.
# {cite:t}`shah2024` showed that warpgroups in turns and products behind the softmax help on Hopper; the order of work of `prefill_mma`, which the live cells run beside the top rung, is that of {cite:t}`dao2024`.
# The kernels and the counters are ours.
