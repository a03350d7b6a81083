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
# **A prefill kernel leaves CUDA cores and comes to fill Hopper's tensor cores: which idea gains how much, and does any cost accuracy?**
# {cite:t}`flashattention1205` asks about idle tensor cores; here one idea a rung makes them busy.
#
# :::{admonition} Answer
# :class: important
#
# Three ideas do most: `mma.sync` multiplies the rate by {glue:text}`mma_gain`, the {term}`TMA` by {glue:text}`tma_gain`, `wgmma` by {glue:text}`wgmma_gain`; if all warps copy, a kernel reaches {glue:text}`mma_rate` TFLOP/s without the TMA. Softmax beside products gains {glue:text}`within_gain` % here, {glue:text}`none_gain` % in the finished kernel.
# Accuracy is paid once, where $P$ becomes 16 bits: {glue:text}`p_price` times the rmse.
# How sure: one run on an H200 (CUDA {glue:text}`cuda`), one shape, except {glue:text}`mma_rate` and {glue:text}`none_gain` %; CPU builds gave the errors.
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
import itertools

import matplotlib.pyplot as plt
import pandas as pd
from myst_nb import glue

from labkernels import Bench, Decode, Prefill, hardware, plots
from labkernels.bench.listing import Listing
from labkernels.budget import least_time
from labkernels.chapters import exercises, live, the_ladder
from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure import ladder, real_inputs

# %% tags=["hide-input"]
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.primers import hopper
from labkernels.records import recorded, store

everything = store.read("counters")
everything = recorded.newest_of_each(everything, ("kernel", "tile", "head_dim"))
counted = plots.counter_table(pd.DataFrame(everything))
h200 = hardware.gpu("h200")
work = Prefill((4096,) * 4, (4096,) * 4, 16, 16, 128)
rungs = {rung.name: rung for rung in ladder.rungs("prefill")}

# %% tags=["hide-input"]
frame = pd.DataFrame([vars(rung) for rung in rungs.values()])
climbed = frame.merge(counted[counted.head_dim == work.head_dim], on=["kernel", "tile"])
climbed["tflops"] = work.flops / climbed.call_s / 1e12
climbed["words"] = [
    f"tensor pipe {row.tensor_pipe:.0f} %" if row.tensor_cores else f"FMA {row.fma:.0f} %"
    for row in climbed.itertuples()
]

# %% mystnb={"figure": {"caption": "Three rungs do most of the climb: the tensor cores, the TMA that feeds them, and wgmma. 4 requests of 4096 tokens, 16 heads of 128 channels, bf16, no mask. The profiler took the times, with empty caches, in one recording; the dashed line is the vendor's peak.", "name": "ladder"}, "image": {"alt": "Horizontal bars of TFLOP/s, one for each rung: a short one for CUDA cores at the top, two alike for mma.sync, a longer one with TMA, five of nearly the same length for wgmma, and the longest for prefill_wgmma. Beside each bar stands the share of time in which the tensor pipe was active. A dashed line marks the peak.", "width": "100%"}} tags=["hide-input"]
ceilings = {"peak": h200.tensor_fp16_flops / 1e12}
shown = climbed.rename(columns={"name": "rung"})[["rung", "kernel", "tflops", "words"]]
tiles = {(rung.kernel, rung.tile) for rung in rungs.values()}
of_rungs = [row for row in everything if (row["kernel"], row["tile"]) in tiles]
plots.ladder(shown, ceilings=ceilings, origin=recorded.origin(of_rungs))
plt.show()

# %% [markdown]
# ## Prediction
#
# A thread block multiplies and exponentiates in turn.
# If nothing overlaps, a pass takes the time of its products and the time of its exponentials; if everything overlaps, it takes the longer of the two.
# The products run at the rate of the rung's instruction: FMAs on CUDA cores, `mma.sync` at the share of the peak that the profiler gives it, or `wgmma` at the peak.
# The model knows neither copies nor memory, so a rung that waits for copies falls short of the model.

# %% [markdown]
# ### Who does what
#
# In most kernels of the chapters before, the warps that multiply also copy the keys.
# The kernels for Hopper give copying and multiplying to different warps ({term}`warp specialisation`).
#
# - One warp is the *producer*. A thread of it asks the {term}`TMA` for a tile of $K$ or $V$, and the tile comes to shared memory by itself.
# - Two {term}`warpgroups <warpgroup>` are the *consumers*. Each has 64 query rows of the block's 128, multiplies by `wgmma`, and keeps its own softmax.
# - Between them lie a few {term}`stages <stage>` for $K$ and as many for $V$. Each stage has two {term}`mbarriers <mbarrier>`. At the first the consumers wait until the stage is full; at the second the producer waits until both warpgroups have read the stage.
#
# The figure is drawn from a trace: the kernel of the rung "wgmma", which the next sections measure, ran on the CPU machine with 128 query rows and four KV tiles, from the last to the first, and noted the end of each wait and each release.

# %% mystnb={"figure": {"caption": "The producer fills a stage as soon as both warpgroups have read it. Pale: the stage is asked for or full; dark: it is read. Numbers are those of KV tiles. This is a trace of the rung wgmma on the CPU machine.", "name": "ladder-roles"}, "image": {"alt": "Eight rows of bars in the order of a trace. Above, two stages of K and two of V, each in turn pale and dark for blocks 0 and 2, or 1 and 3. Below, two warpgroups, each with a row for S and a row for P V; in each the bars of S and P V take turns and never overlap.", "width": "100%"}} tags=["hide-input"]
events = pd.DataFrame(the_ladder.trace("wgmma", blocks=4))
hopper.producers_and_consumers(events[events.of != "Q"], 2, origin="a trace of the CPU machine")
plt.show()

# %% [markdown]
# A warpgroup of this rung asks for $S$, waits, computes its softmax, asks for $P V$ and waits again.
# On the rung "ping-pong" it asks for the scores of the next KV tile before $P V$ of this one, so that its softmax runs beside products, and the two warpgroups take turns.

# %% mystnb={"figure": {"caption": "With turns, the products for S of the next KV tile and those of P V overlap in each warpgroup. This is a trace of the rung ping-pong on the CPU machine.", "name": "ladder-turns"}, "image": {"alt": "The same eight rows. From block 1 on the bar of S of each warpgroup begins before the bar of P V of the block before, and both end at nearly the same place.", "width": "100%"}} tags=["hide-input"]
events = pd.DataFrame(the_ladder.trace("ping-pong", blocks=4))
hopper.producers_and_consumers(events[events.of != "Q"], 2, origin="a trace of the CPU machine")
plt.show()

# %% [markdown]
# A trace has an order and no times; the times are measured below.

# %% [markdown]
# ### What the top rung takes
#
# These are both formulas of `prefill_wgmma`, the kernel at the top of the ladder, beside the compiler's numbers.

# %% tags=["hide-output"]
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
kernels = ["prefill_fma", "prefill_mma", "prefill_wgmma_basic", "prefill_wgmma", "triton_prefill"]
kernels += ["decode_fma", "decode_mma", "triton_decode"]
bench = Bench(prefill, decode, kernels=kernels, gpu="h200")
finished = Bench(prefill, kernels=kernels[:5], gpu="h200")
bench.equations("prefill_wgmma")

# %% [markdown]
# A rung on `mma.sync` holds fragments of $K$ and $V$ in registers, and a rung on `wgmma` holds none ({numref}`ladder-budget`).

# %% mystnb={"figure": {"caption": "Climbing moves the operands out of the registers (the green part) and into shared memory. The circle is what a consumer has after the warps that load have handed registers over.", "name": "ladder-budget"}, "image": {"alt": "Two panels of stacked bars for kernels of prefill and decode: registers per thread above, with a line at 255, and shared memory per block below. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "The top rungs have one block of twelve warps on an SM, and neither registers nor shared memory leave room for a second: the warps of one block must hide each other's waiting.", "name": "ladder-occupancy"}, "image": {"alt": "A bar of blocks for each kernel, in the colour of what limits them, with the words of what one block more would take.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200")
plt.show()

# %% [markdown]
# ### The rate of each rung
#
# The table has the model's rate for each rung, in TFLOP/s, for 4 requests of 4096 tokens, 16 heads of 128 channels, without a mask, on an H200.
# From the rung "softmax beside products" on, the phases overlap.

# %% tags=["hide-input"]
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
# ## Code
#
# Nine of the ten rungs are the kernel `prefill_wgmma_basic`, with the folder `prefill/rungs` beside it, compiled with one idea more each time; the tenth is `prefill_wgmma`, the kernel that a user gets.
# `labkernels ladder prefill --show NAME` prints what a rung changes in the code of the rung below.
# A thread block of the rung "persistent tiles" stays on its SM, computes query tile after query tile, and loads the next while this one ends; on the rungs below, each query tile has a thread block of its own.
# The rung "P ahead" rounds the weights $P$ of the next KV tile to 16 bits while the product of this KV tile runs.
# The listings show these changes, from the files that ran. The rung "2 stages" changes no line but a number of the tile.
# A line after + is new in a rung, and a line after - is gone from the rung below.
# The listings open in a page, in the order of the rungs, and scroll in JupyterLab:


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

# %% tags=["hide-cell"]
change("wgmma")

# %% tags=["hide-cell"]
change("softmax beside products")

# %% tags=["hide-cell"]
change("ping-pong")

# %% tags=["hide-cell"]
change("persistent tiles")

# %% tags=["hide-cell"]
change("P ahead")

# %% [markdown]
# The top rung, `prefill_wgmma`, adds what a production kernel needs beside these ideas: pages, a scheduler of query tiles, KV tiles that a warpgroup skips, and rows that leave as whole lines.
# The rung adds {glue:text}`top_lines` lines, too many for one sitting. Read the files of `prefill_wgmma` one by one.

# %% [markdown]
# ## Measurement
#
# <!-- guess: prefill_gain -->
#
# ### The rungs, in one run
#
# `labkernels record counters` recorded the time as the profiler took it on an H200, with empty caches, and its counters.
# {numref}`ladder` draws the rates.
# The table has the lines of code that each rung adds, its registers and shared memory, and the counters.

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
# Tensor cores multiply the rate by {glue:text}`mma_gain`. A second stage then changes the rate by {glue:text}`stages_gain` %, and the tensor pipe is active for {glue:text}`mma_active` % of the time: one warp copies for two warpgroups, with 16 bytes per thread and instruction, and all warps wait for its copies.
# The TMA, which leaves the products as they are, multiplies the rate by {glue:text}`tma_gain`.
# The step to `wgmma` multiplies the rate by {glue:text}`wgmma_gain`: no thread holds a fragment of $K$ or $V$ any more, and shared memory falls from {glue:text}`tma_smem` to {glue:text}`wgmma_smem` % of what it can do.
#
# One comparison is fairer to `mma.sync`: `prefill_mma`, in which every warp copies for itself and a thread has 255 registers, reaches {glue:text}`mma_rate` TFLOP/s in another recording of the same shape, more than the rung "TMA".
# The rung's factor is thus what the TMA gives to a thread block whose other warps do not copy.
#
# Overlap gains far less here than the model says.
# Exponentials beside the products of the same warpgroup gain {glue:text}`within_gain` %, and turns between warpgroups change the rate by {glue:text}`between_gain` % on top of that.
# Thread blocks that stay for tile after tile change the rate by {glue:text}`persistent_gain` %: with this shape the SMs have nothing to wait for at the end, and the work to find the next tile shows in the ALU, which is busy for {glue:text}`persistent_alu` % of the time instead of {glue:text}`pingpong_alu`.
# Rounding $P$ ahead brings {glue:text}`ahead_gain` % back.
# What `prefill_wgmma` adds, in {glue:text}`top_lines` lines of code, is worth {glue:text}`top_gain` %, and no single one of its ideas was measured alone.
#
# A ladder's order decides what an idea seems to be worth.
# In the finished kernel, with tiles compiled without overlap and with it and measured in one recording of their own, overlap gains {glue:text}`none_gain` %.
# FlashAttention-3's authors took one idea at a time out of theirs, on an H100 with 8448 tokens: {glue:text}`paper_whole` TFLOP/s fell to {glue:text}`paper_overlap` without products beside the softmax, and to {glue:text}`paper_roles` without warp specialisation {cite:p}`shah2024`.
# As gains these are {glue:text}`paper_overlap_gain` and {glue:text}`paper_roles_gain` %: more than overlap gains on our rung, and less than in our finished kernel.

# %% [markdown]
# ### What a rung costs in accuracy
#
# Every rung rounds $P$ to 16 bits, the rung on CUDA cores too, so that rungs can be compared bit by bit. That their errors are equal is therefore built in.
# The price of tensor cores shows against `prefill_fma`, which keeps $P$ in fp32.
# The cell runs the rungs as CPU builds on six random requests, and on three prompts of SmolLM2 ({doc}`does_it_matter`). Its query heads 0 to 2 are *peaky*, 3 to 5 have an *outlier channel*, and 6 to 8 look at the *first key*.

# %% tags=["hide-input"]
lengths = (512, 384, 256, 128, 64, 33)
shape = Prefill(lengths, lengths, 8, 8, 128, causal=True)
real = real_inputs.of_both(("peaky", "outlier channel", "first key"))
given = {
    "random": operations()["prefill"].inputs(shape, ExactNormal(0)),
    "SmolLM2": real["prefill"],
}
ways = {name: rung.spec for name, rung in rungs.items()} | {"P in fp32": "prefill_fma"}
truths = {group: live.truth(drawn) for group, drawn in given.items()}
outs = {
    group: {name: live.output("prefill", drawn, way, splits=1) for name, way in ways.items()}
    for group, drawn in given.items()
}
errors = {name: out - truths["random"] for name, out in outs["random"].items()}

# %% mystnb={"figure": {"caption": "Rungs have the same error in every head and request, random or real, because all of them round P; P in fp32, on CUDA cores, leaves only the error of the 16-bit output. Relative L2 error; random requests from 512 tokens (0) to 33 (5), bf16, causal.", "name": "ladder-errors"}, "image": {"alt": "Two panels, over query heads and over requests, each with random inputs on the left and SmolLM2 on the right. The dots of the three rungs stand at one height, those of P in fp32 lower; with SmolLM2 the distance is small, and in head 8 some dots come near zero.", "width": "100%"}} tags=["hide-input"]
SHOWN, cells = ("CUDA cores", "mma.sync", "wgmma", "P in fp32"), []
for group, drawn in given.items():
    shown = {name: outs[group][name] for name in SHOWN}
    part = live.cells("prefill", shown, truths[group], drawn.workload.q_lens)
    cells.append(part.assign(inputs=group, kind=part.way))
cells = pd.concat(cells)
by_place(cells, label="relative L2 error", origin="computed on this machine", log=False)
bench.log.drew("errors", "prefill")
plt.show()

# %% tags=["hide-input"]
named = {n: {"rmse, 1e-4": 1e4 * (e**2).mean() ** 0.5} for n, e in errors.items()}
for name, error in errors.items():
    heads = 1e4 * (error**2).mean((0, 2)) ** 0.5
    named[name] |= {"best head": heads.min(), "worst head": heads.max()}
    named[name] |= {"bits like the rung below": "–", "with SmolLM2": "–"}
for below, name in itertools.pairwise(rungs):
    columns = {"random": "bits like the rung below", "SmolLM2": "with SmolLM2"}
    for group, column in columns.items():
        same = 100 * (outs[group][below] == outs[group][name]).mean()
        named[name][column] = f"{same:.2f} %"
by_rung = pd.DataFrame(named).T.rename_axis("rung").reset_index()
plots.table(by_rung, "rung-errors", dict.fromkeys(by_rung.columns[1:4], "{:.2f}"))

# %% [markdown]
# On the model's heads a rounded $P$ costs less, {glue:text}`real_least` to {glue:text}`real_most` times the rmse: the key with the largest score has $P = 1$, which 16 bits hold, and it often has most of the weight.
#
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
# Three rungs of one tile stand between `backward_mma` and `backward_wgmma`, the kernel that a user gets: `wgmma` on tiles that all threads copy, the TMA, and $S$ computed transposed, so that $P$ and $dS$ stay in registers.
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
# ### The finished kernels beside others
#
# {numref}`ladder-timing` has all times of another prefill, of one recording.
# FlashAttention-3 is there as FlashInfer's backend of that name, which has its own code for Hopper; the package itself was not run.

# %% mystnb={"figure": {"caption": "The finished kernels beside other libraries on an H200: kernels on wgmma lead, those on mma.sync follow, and the one on CUDA cores is far behind, whoever wrote them. One recording; lines are least times; Gluon is a kernel that the lab no longer has.", "name": "ladder-timing"}, "image": {"alt": "A mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
finished.plot_timing()
plt.show()

# %% [markdown] tags=["evidence"]
# The same kernels on small shapes, in CUDA and in Triton:

# %% tags=["nbval-ignore-output", "evidence"]
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(bench.run()[columns], "ran", {"time_ms": "{:.3g}"})

# %% tags=["nbval-ignore-output", "evidence"]
bench.log + finished.log

# %% tags=["evidence"]
rung = climbed.set_index("name")
rate, gains = rung.tflops, steps.set_index("rung")["gain, %"]
rmse_of = {name: float((error**2).mean() ** 0.5) for name, error in errors.items()}
on_tensor_cores = steps.set_index("rung")["measured / expected"].drop("CUDA cores")
numbers = {
    "best_rate": f"{rate.max():.0f}", "fma_rate": f"{rate.min():.0f}",
    "mma_gain": f"{rate['mma.sync'] / rate['CUDA cores']:.1f}",
    "stages_gain": f"{gains['2 stages']:+.1f}", "mma_active": f"{rung.tensor_pipe['2 stages']:.0f}",
    "tma_gain": f"{rate['TMA'] / rate['2 stages']:.2f}",
    "wgmma_gain": f"{rate['wgmma'] / rate['TMA']:.2f}",
    "tma_smem": f"{rung.smem['TMA']:.0f}", "wgmma_smem": f"{rung.smem['wgmma']:.0f}",
    "backward_lines": f"{ladder.difference(ladder.rungs('backward')[-1]).added}",
}  # fmt: skip

# %% tags=["evidence"]
# one recording has prefill_mma, and prefill_wgmma with and without overlap, of the same shape
asked = [r for r in store.read("counters") if "backward" in r["tile"] and r["head_dim"] == 128]
(run,) = {r["started_utc"] for r in asked if r["tile"].endswith("-none")}
aside = plots.counter_table(pd.DataFrame([r for r in asked if r["started_utc"] == run]))
aside = (work.flops / aside.set_index(["kernel", "tile"]).call_s / 1e12).sort_index()
of_tiles = aside["prefill_wgmma"]
overlap = of_tiles.filter(like="within").iloc[0] / of_tiles.filter(like="none").iloc[0]
numbers |= {"mma_rate": f"{aside['prefill_mma'].max():.0f}"}
numbers |= {"none_gain": f"{100 * (overlap - 1):.0f}"}

# %% tags=["evidence"]
numbers |= {
    "within_gain": f"{gains['softmax beside products']:.1f}",
    "between_gain": f"{round(gains['ping-pong'], 1) + 0:.1f}",
    "persistent_gain": f"{gains['persistent tiles']:+.1f}",
    "persistent_alu": f"{rung.alu['persistent tiles']:.0f}",
    "pingpong_alu": f"{rung.alu['ping-pong']:.0f}",
    "ahead_gain": f"{gains['P ahead']:.1f}", "top_gain": f"{gains['prefill_wgmma']:.0f}",
    "p_price": f"{rmse_of['wgmma'] / rmse_of['P in fp32']:.2f}",
    "least_ratio": f"{on_tensor_cores.min():.2f}", "most_ratio": f"{on_tensor_cores.max():.2f}",
    "top_lines": f"{found['prefill_wgmma'].added}", "cuda": of_rungs[0]["cuda"],
}  # fmt: skip

# %% tags=["evidence"]
squares = cells.assign(value=cells.value**2).groupby(["inputs", "kind", "head"]).value.mean()
of_heads = squares["SmolLM2"].unstack("kind") ** 0.5
price = of_heads["wgmma"] / of_heads["P in fp32"]
numbers |= {"real_least": f"{price.min():.2f}", "real_most": f"{price.max():.2f}"}

# %% tags=["evidence"]
# TFLOP/s from FlashAttention-3's table of ablations: whole, without the overlap, without roles
paper = {"whole": 661, "overlap": 582, "roles": 570}
numbers |= {f"paper_{name}": f"{rate}" for name, rate in paper.items()}
for name in ("overlap", "roles"):
    numbers[f"paper_{name}_gain"] = f"{100 * (paper['whole'] / paper[name] - 1):.0f}"
for name, text in numbers.items():
    glue(name, text, display=False)

# %% [markdown]
# The ladder leads from {glue:text}`fma_rate` to {glue:text}`best_rate` TFLOP/s.
#
# ## What would change the answer
#
# - **Another order of the rungs.** An idea gains what its neighbours leave it, as the two numbers for overlap show.
# - **Another shape.** Persistent blocks cost time here, where all tiles take equally long; a causal mask or mixed lengths would give them something to balance.
# - **Another GPU.** On an A100 the ladder ends at the second stage, because the TMA and `wgmma` need Hopper; a B200 has a TMA, and other instructions in place of `wgmma`.
# - **Accuracy with another output.** With outputs in 16 bits, as here, the store hides part of what $P$ costs; {doc}`where_the_error_comes_from` has both apart.
#
# On tensor cores the measured rates are {glue:text}`least_ratio` to {glue:text}`most_ratio` of the expected ones: the model has no copies, and it lets products and exponentials overlap completely.
#
# ## Exercises
#
# In assignments 21 and 22 of {doc}`/book/assignments` you write a phase of `prefill_wgmma`: the warp that asks the TMA for keys, and the softmax beside a product.
#
# ```{exercise}
# :label: ladder-stages
#
# The rung "2 stages" has twice the stages of the rung below.
# Which lines of its ledger of shared memory grow, and by how much?
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
# The rates of FlashAttention-3 without one idea each are those of its paper, and were not measured here. The kernels and the counters are ours.
