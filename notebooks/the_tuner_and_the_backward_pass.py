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
# # The tuner and the backward pass
#
# ## Question
#
# **Which tile is the fastest, without trying them all? And why does the backward pass reach less of the machine than the forward?**
#
# Both questions follow from {cite:t}`flashattention1205`, whose author saw tensor cores half idle and asked what a better kernel would do.
# A tile is the first thing that one can change, and hundreds of tiles can be compiled.
# The backward pass does five products where the forward does two, so that one would expect the same limits, only more work.
#
# Step by step, you will
#
# 1. reject most tiles by arithmetic, before anything runs;
# 2. say how far a model's order of tiles can be trusted;
# 3. say what the backward pass waits for.
#
# ## You need
#
# {doc}`half_idle_tensor_cores` has the model of a step, {eq}`half-idle-step`, and {doc}`the_ladder` has the kernels.
# {doc}`/book/glossary` explains {term}`ledger`, {term}`tile` and {term}`occupancy`.
# You need no GPU: searches and counters are recorded, and the kernels run as CPU builds.

# %% tags=["remove-cell"]
# Where the lab is not installed, as in Colab, this cell installs it, with its recorded data.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("labkernels") is None:
    lab = "labkernels[gpu,plots] @ git+https://github.com/labkernels/labkernels"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", lab, "myst-nb"], check=True)

# %% tags=["hide-input"]
import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from myst_nb import glue

from labkernels import Backward, Bench, Decode, Prefill, hardware, plots, source
from labkernels.budget import ranking
from labkernels.chapters import exercises
from labkernels.measure.tuning import recorded as tuning_recorded
from labkernels.measure.tuning import search as tuning_search
from labkernels.records import recorded, store

h200 = hardware.gpu("h200")
COUNTED = {d: Prefill((4096,) * 4, (4096,) * 4, 2048 // d, 2048 // d, d) for d in (64, 128, 256)}

# %% [markdown]
# ## Model
#
# A tile must fit, and the ledgers say whether it does.
# {eq}`half-idle-step` gives an expected time for each tile that fits.
#
# The backward pass recomputes $P$ and then needs $dV = P^T dO$, $dP = dO\, V^T$, $dS = P \circ (dP - \delta)$ with {term}`delta` of each row, $dQ = dS\, K$ and $dK = dS^T Q$: with $S = Q K^T$ these are five products for one exponential, where the forward has two.
# Here $dX$ is the gradient of the loss with respect to $X$, and $\circ$ multiplies element by element; the constant factors of the scale are left out.
# A block takes some keys through all query rows, so that every block adds to the same $dQ$.
# With {eq}`half-idle-ratio`,
#
# $$
# \left.\frac{t_{\text{products}}}{t_{\exp}}\right|_{\text{backward}} \;=\; \frac{10\, D\, E}{R} \;=\; \frac{5}{2} \left.\frac{t_{\text{products}}}{t_{\exp}}\right|_{\text{forward}} .
# $$ (tuner-backward-ratio)
#
# Exponentials therefore cannot be what limits the backward pass.

# %% [markdown]
# ### What five products take
#
# The cell shows the formulas of `backward_wgmma`.
# A block holds the gradients $dK$ and $dV$ of its keys in registers all the time, beside $S$ and $dP$ of the step.

# %%
backward = Backward((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
bench = Bench(backward, prefill, decode, gpu="h200")

# %%
bench.equations("backward_wgmma")

# %% [markdown]
# {numref}`tuner-budget` shows the backward kernels beside the forward pass: they hold two accumulators instead of one.

# %% mystnb={"figure": {"caption": "The backward kernels keep two accumulators where the forward keeps one, and their tiles of Q and dO fill shared memory.", "name": "tuner-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "Of the backward kernels an H200 holds one or two blocks per SM, an A100 one; backward_wgmma needs Hopper.", "name": "tuner-occupancy"}, "image": {"alt": "A panel for each GPU with a row for each kernel. Marks on a logarithmic axis give the blocks that registers, shared memory, warps and the block limit leave on an SM; a bar ends at the least of them.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200", "a100")
plt.show()

# %% [markdown]
# ## Prediction
#
# Of all tiles that the two prefill kernels can be compiled for at 128 channels, the ledger alone says which fit an H200, and with which line the others break:

# %%
for kernel in ("prefill_mma", "prefill_wgmma"):
    whole = tuning_search.space(tuning_search.tunable(kernel), COUNTED[128])
    fitting, rejected = tuning_search.by_ledger(whole, h200)
    causes = pd.Series([item.cause for item in rejected]).value_counts()
    print(f"{kernel}: {len(whole)} tiles, {len(fitting)} fit; what broke the others:")
    print(causes.to_string())
    example = f"for example {rejected[0].instance.tile.label}: {rejected[0].reason}"
    print(textwrap.fill(example, 90), end="\n\n")

# %% [markdown]
# The prediction about the rest is an order: {eq}`half-idle-step` ranks them, and a few runs in that order should find a tile within 2 % of the best.
#
# For the backward pass {eq}`tuner-backward-ratio` predicts that the special-function unit is less busy than in the forward pass, on every kernel.
#
# ## Kernel
#
# The listing has the gradients of the scores in `backward_mma`, from the file that ran:

# %% tags=["hide-input"]
source("backward_mma", "gradients of the scores")

# %% [markdown]
# ## Measurement
#
# ### The tuner
#
# `labkernels tune prefill_wgmma --head-dim 128` goes through every tile that a kernel's source can be compiled for.
# The ledger rejects what cannot fit; the compiler rejects tiles that {term}`spill`, and tiles whose products it makes wait for each other; the model puts the rest in order; and a GPU measures the first few.
# All but the last step need no GPU.
# The compiler's part takes a few minutes, and was recorded:

# %% tags=["hide-input"]
searched = store.read("tuning")
searched = recorded.newest_of_each(searched, ("kernel", "head_dim", "causal"))
searched.sort(key=lambda row: (row["kernel"], row["head_dim"], row["causal"]))
refusals = pd.DataFrame(searched).query("metric == 'rejected' and not causal")
said_why = refusals.note.str.extract(r"(?P<by>\w+): (?P<cause>[^;]+); (?P<reason>.*)")
refusals = refusals.assign(**said_why, tiles=refusals.value.astype(int)).query("by == 'compiler'")
shown = refusals[["kernel", "head_dim", "cause", "tiles", "tile", "reason"]]
plots.table(shown.rename(columns={"tile": "for example", "reason": "it says"}), "refusals")

# %% [markdown]
# How good is the model's order?
# For {numref}`tuner-order` every tile was measured that fits and compiles, in the {glue:text}`searched` searches of the experiment `tuning`.
# The model's one latency was set by looking at `prefill_mma`, so that there its order, and not its times, is tested; of `prefill_wgmma` it knew nothing.

# %% tags=["hide-input"]
tiles = tuning_recorded.recorded(searched, gpu=h200)
search = pd.DataFrame([vars(one) | {"expected_ms": 1e3 * one.expected.time_s} for one in tiles])
search["measured_ms"] = 1e3 * search.measured_s

# %% mystnb={"figure": {"caption": "The model's order is right on the whole and wrong among neighbours, which is enough to leave out runs. Every tile that fits and compiles; filled marks are in the kernel's own list.", "name": "tuner-order"}, "image": {"alt": "A scatter plot for each search of measured over expected milliseconds, with a line where both are equal. Points rise with the line and scatter around it; the panel's title has its rank correlation.", "width": "100%"}} tags=["hide-input"]
search["search"] = [
    f"{one.kernel}, {one.head_dim}, {'causal' if one.causal else 'full'}" for one in tiles
]
found = {}
for name, group in search.groupby("search", sort=False):
    pair = (group.expected_ms.tolist(), group.measured_ms.tolist())
    runs = ranking.runs_to_reach(0.98, *pair)
    found[name] = (ranking.rank_correlation(*pair), len(group), runs, ranking.best_so_far(*pair))
search["correlation"] = [found[name][0] for name in search.search]
plots.expected_and_measured(search, origin=recorded.origins(searched))
plt.show()

# %% mystnb={"figure": {"caption": "A few runs in the model's order find a tile within 2 % of the best (dashed). Of tiles that the model expects alike, the slowest is taken to run first.", "name": "tuner-runs"}, "image": {"alt": "A panel for each kernel, and in it a step curve for each search of the best speed found so far in percent of the best there is, over the number of runs on a logarithmic axis. It passes 98 percent after a few runs.", "width": "100%"}} tags=["hide-input"]
curves = [
    {"search": name, "kernel": name.split(",")[0], "run": run, "share": share}
    for name, (_, _, _, shares) in found.items()
    for run, share in enumerate(shares, 1)
]
plots.best_by_runs(pd.DataFrame(curves), goal=0.98, origin=recorded.origins(searched))
plt.show()

# %% tags=["hide-input"]
rows = []
for name, group in search.groupby("search", sort=False):
    correlation, count, runs, _ = found[name]
    best = group.loc[group.measured_ms.idxmin()]
    listed = group[group.listed].measured_ms.min()
    rows.append((name, count, correlation, runs, best.tile, best.measured_ms, listed))
columns = ["search", "tiles", "rank correlation", "runs to 98 %", "best tile", "ms", "listed, ms"]
searches = pd.DataFrame(rows, columns=columns)
digits = {"rank correlation": "{:.2f}", "ms": "{:.3f}", "listed, ms": "{:.3f}"}
plots.table(searches, "searches", digits)

# %% [markdown]
# The times of `prefill_wgmma` are {glue:text}`wgmma_late` times the expected ones, in the median of its tiles: the model knows neither the clock that power leaves nor that its two phases hide each other less than perfectly.
# The order of the tiles needs neither, because they slow all tiles equally.
# A kernel's own list is good enough in practice: its best tile loses at most {glue:text}`listed_loss` % to the best of all tiles.

# %% [markdown]
# ### Where backward loses
#
# The figure has Nsight Compute's counters of the backward kernels, recorded on an H200 with 4 requests of 4096 tokens, heads × head_dim = 2048, bf16, and no mask.

# %% tags=["hide-input"]
everything = store.read("counters")
everything = recorded.newest_of_each(everything, ("kernel", "tile", "head_dim"))
in_figure = [r for r in everything if not r["tile"] and "backward" in r["kernel"]]
origin = recorded.origins(in_figure)
counted = plots.counter_table(pd.DataFrame(everything))
by_default = counted[counted.tile == ""].sort_values(["head_dim", "kernel"])
is_backward = by_default.kernel.str.contains("backward")
forward, backward = by_default[~is_backward], by_default[is_backward]

# %% mystnb={"figure": {"caption": "The backward pass has fewer exponentials per product than the forward and no busier tensor cores: shared memory is busy. Numbers are percent of what each part can do.", "name": "busy-backward"}, "image": {"alt": "A grid for each head_dim of backward kernels and parts of an SM with percentages. exp2 is low everywhere; shared memory is the busiest part beside the tensor pipe.", "width": "100%"}} tags=["hide-input"]
busy = plots.busy(backward)
busy["panel"] = "backward, head_dim " + busy.head_dim.astype(str)
plots.busy_parts(busy, origin=origin)
plt.show()

# %% tags=["hide-input"]
both = backward.assign(work=[2.5 * COUNTED[d].flops for d in backward.head_dim])
both["TFLOP/s"] = both.work / both.call_s / 1e12
both["in the longest kernel, %"] = 100 * both.time / both.call_s
both["registers per block"] = both.registers * both.threads
both["bank conflicts per clock"] = both.bank_conflicts / (both.time * both.sm_clock * h200.sm_count)
columns = ["kernel", "head_dim", "TFLOP/s", "in the longest kernel, %", "registers per block"]
columns += ["smem_bytes", "bank conflicts per clock"]
digits = {"TFLOP/s": "{:.0f}", "in the longest kernel, %": "{:.0f}", "smem_bytes": "{:,.0f}"}
digits |= {"registers per block": "{:,.0f}", "bank conflicts per clock": "{:.2f}"}
plots.table(both[columns], "backward", digits)

# %% [markdown]
# The five products of the backward pass, however, have ten operands, $P$ and $dS$ must be transposed between two products, and $dQ$ is summed over blocks.
# All of that goes through shared memory, which is as busy as the tensor pipe or busier in {glue:text}`smem_busier` of the {glue:text}`backward_kernels` rows of the figure, and through registers, which hold $dK$ and $dV$ of a tile all the time.

# %% [markdown]
# ### What a profile changed
#
# The counters above are those of `backward_wgmma` as it was first written.
# A step of it asked for $S$ and $dP$, computed $P$ and $dS$, handed $dS$ over, and then asked for $dV$, $dQ$ and $dK$.
# The prediction was that a tensor core with nothing to do waits for the next product: a kernel that asks for the next $S$ before $dK$ is done, and for $dV$ as soon as $P$ is there, should leave no gap.
#
# We tried that kernel, and it was not faster. Those runs are not recorded, nor is the profile by instruction that showed the reason: the warps waited longest for two accesses to shared memory that come while products run, the loads of `lse2` before the exponentials, and the fence after $dQ$ is written, an instruction that makes the threads' stores visible to the TMA.
# Where both operands of a product lie in shared memory, 64 × 64 × 16 of it read 4 KiB and take 32 clocks of the tensor cores, in which shared memory delivers 4 KiB: nothing is left for other accesses.
# Three changes follow, which keep every bit of the gradients of keys and values:
#
# - $dV$ is asked for as soon as $P$ is there, because its left operand is in registers, and $dS$ is written to shared memory meanwhile;
# - `lse2` of the next step is read while $dK$ runs, for the same reason;
# - a warp that does nothing else adds $dQ$, and makes the fence.
#
# The last one helps most where the order matters: the waits for other blocks leave the path of those that compute.
# The next $S$ is not asked for ahead: it takes registers that $dK$'s operand needs.
#
# An order still cost a third at head_dim 128, and arithmetic says why.
# A step of 64 rows takes {glue:text}`step_us` µs there without an order, and took {glue:text}`waiting_us` µs with one.
# The thread that adds $dQ$ in order waits for its turn at a counter in memory, sends the addition, waits until the addition is in memory, and lets the next block go.
# These are three ways to memory and back, one after the other: we estimated 2.5 to 3 µs, which is longer than a step.
# No single part of this chain can be left out, but two threads can take the steps in turn, so that each has two steps of time.
# The prediction was 4.3 ms for 8192 tokens without a mask, instead of {glue:text}`one_adds_ms` ms. The recorded time is {glue:text}`turns_ms` ms.
#
# ### Two warpgroups that do not meet
#
# $dQ = dS\,K$ sums over the keys of a block, and each warpgroup has half of them.
# Both warpgroups therefore met at a barrier in every step, after they had written $dS$.
# From there on they did the same at the same time: both computed $P$ and $dS$ while the tensor cores waited, and both waited while the tensor cores computed.
# Now a warpgroup computes $dQ$ a step later.
# When it needs the other one's $dS$, that has long been written, and one barrier in shared memory counts who has written it, without a place at which both must be.
# One warpgroup can then be half a step ahead, so that its products run while the other one computes $P$ and $dS$.
# At head_dim 64 a thread also has 16 registers for $V$: $dP = V\,dO^\top$ then reads one tile of shared memory instead of two.
#
# The prediction was 5 to 10 % less time at head_dim 64, and 3 to 5 % at 128.
# The recorded gain, beside cuDNN of the same run, is {glue:text}`later_64` % at head_dim 64 and {glue:text}`later_128` % at 128, with the same bits.
# Where the order is kept, 2048 tokens at head_dim 128 take slightly longer, because a block's last $dQ$ leaves after its last step.
# At head_dim 256 the warpgroups share the keys and meet as before. In the recorded run they met in the new barrier, a change of {glue:text}`later_256` %, and this was taken back.
# At 128 the prediction missed, for the reason above: the products alone keep shared memory busy there.
# Three more changes were tried at head_dim 64, and none was faster; these runs are not recorded: $K$ in registers too, the next $S$ asked for ahead, and a third place for $dS$.
#
# ### Launches that overlap
#
# A backward pass is three launches: one computes `delta` of each row and clears the sums of $dQ$, one goes through the keys, and one rounds $dQ$.
# The first and the last only move memory, while the tensor cores stand still.
# Could the blocks of keys do this work for other heads, whose turn comes later or is over?
#
# The prediction was 8 to 12 % less time at 2048 tokens, if a warp of each block that has nothing else to do takes all of these rows.
# It has 24 registers, and shared memory is busy with the products, so that each piece of its work took longer than the block's keys: the pass became slower.
# What remained is less: this warp only stores the zeros, for which it needs no registers, and the last launch waits for one head after the other instead of for the whole launch before it.
# It takes the multiprocessors that have no block of keys left, which without a mask is up to a whole block's time.
#
# Between the last two recordings of the table below, beside cuDNN of the same runs, the pass became {glue:text}`overlap_64` % faster at head_dim 64, {glue:text}`overlap_128` % at 128 and {glue:text}`overlap_256` % at 256 in the medians, and {glue:text}`overlap_2048` % at 2048 tokens.
# Not all of this is the overlap's: meanwhile fewer heads run side by side under a causal mask, and at head_dim 256 the additions of $dQ$ have another place in a step.
# Alone it brought 2 to 5 % at 2048 tokens and head_dim 128 and 256 on an H100, and nothing at head_dim 64 under a causal mask; decision {doc}`25 </book/decisions/0025-launches-of-a-backward-pass-overlap>` has these runs, which are not in `data/`.

# %% tags=["hide-input"]
timed = store.select(store.read("backward"), {"metric": "time", "statistic": "median"})
timed = pd.DataFrame(timed).query("kv_len >= 2048")
ours = ["backward_wgmma", "backward_wgmma ordered"]
peers = ["torch_cudnn", "flash_attention_4", "flash_attention_4_ordered"]
timed = timed[timed.kernel.isin([*ours, *peers])]
place = ["head_dim", "causal", "kv_len"]
timed = timed.sort_values("started_utc").drop_duplicates([*place, "kernel", "commit"])
timed["run"] = timed.groupby(place).started_utc.rank(method="dense").map(
    dict(enumerate(("before", "one adds", "two add", "a step later", "now"), 1))
)  # fmt: skip
assert timed.run.notna().all(), "each recording has a name"
wide = timed.pivot_table(index=["run", *place], columns="kernel", values="value")
ratio = wide.rdiv(wide.torch_cudnn, axis=0)[ours].unstack("run")
ratio = ratio.reindex(columns=timed.run.unique(), level="run")

# %% tags=["hide-input"]
gains = ratio.xs("now", axis=1, level="run") / ratio.xs("before", axis=1, level="run")
ratio.columns = [f"{kernel.removeprefix('backward_')}, {run}" for kernel, run in ratio.columns]
shown = ratio.reset_index().replace({"causal": {True: "causal", False: "full"}})
shown = shown.rename(columns={"causal": "mask", "kv_len": "tokens"})
plots.table(shown, "changed", dict.fromkeys(ratio.columns, "{:.2f}"))

# %% [markdown]
# The table has cuDNN's time over ours: before the changes, with one thread that adds, with two threads, with $dQ$ a step later, and now, each beside cuDNN of its own run.
# From the first to the last, the kernel is {glue:text}`gain_128` % faster at head_dim 128, {glue:text}`gain_64` % at 64 and {glue:text}`gain_256` % at 256, and {glue:text}`gain_ordered` % where the order is kept, in the medians.
# The second thread alone brings {glue:text}`turns_64`, {glue:text}`turns_128` and {glue:text}`turns_256` % at head_dim 64, 128 and 256 where the order is kept.
# {numref}`tuner-price` shows what an order costs now, here and in FlashAttention-4.

# %% mystnb={"figure": {"caption": "The price of determinism, by head_dim and mask: the sum of dQ in one order (dashed) beside the same kernel without one. At head_dim 64 and 128 it costs less than a tenth, at 256 a fifth; FlashAttention-4 pays more at 128 and 256, and next to nothing at 64, where it is ahead at 2048 tokens.", "name": "tuner-price"}, "image": {"alt": "Six panels, head_dim 64, 128 and 256 without and with the causal mask: TFLOP/s over tokens per request for backward_wgmma, FlashAttention-4 and cuDNN; the first two with ordered sums as dashed lines.", "width": "100%"}} tags=["hide-input"]
now = timed[timed.run == "now"].copy()
now["panel"] = [f"{r.head_dim}, {'causal' if r.causal else 'full'}" for r in now.itertuples()]
now = now.sort_values(["causal", "head_dim"]).assign(series=now.kernel.map(plots.style.name))
now = now.assign(tokens=now.kv_len, dashed=now.kernel.str.contains("ordered"))
now["rate"] = [
    Backward((r.kv_len,) * r.batch, (r.kv_len,) * r.batch, r.q_heads, r.q_heads, r.head_dim,
             causal=r.causal).flops / r.value for r in now.itertuples()
]  # fmt: skip
plots.rates_by_length(now, origin=recorded.origins(now.to_dict("records")))
plt.show()

# %% [markdown]
# ### Backward, forward and decode, live
#
# This cell runs all kernels of the three operations, in CUDA and in Triton, with tensor cores on and off.
# The backward kernels have two ways to add up $dQ$ over the blocks: fp32 additions in whatever order blocks arrive, and, as *ordered*, always in the same order.

# %% tags=["nbval-ignore-output"]
print(*(workload.label for workload in bench.here), sep="\n")
ran = bench.run()
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# The ordered sum of $dQ$ gives the same bits in every run, and costs time: compare the two marks of each kernel in {numref}`tuner-timing`.

# %% mystnb={"figure": {"caption": "A backward pass takes about three times as long as its forward pass, for two and a half times the products. The workloads have their full size.", "name": "tuner-timing"}, "image": {"alt": "A panel for each workload: a mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_timing()
plt.show()

# %% mystnb={"figure": {"caption": "Gradients of query, key and value: no head and no request stands apart. The dtype is bf16.", "name": "tuner-errors-backward"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("backward")
plt.show()

# %% mystnb={"figure": {"caption": "The errors are those of the forward pass to which the gradients belong. The dtype is bf16; Triton's interpreter does not round P.", "name": "tuner-errors-prefill"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("prefill")
plt.show()

# %% mystnb={"figure": {"caption": "In a decode the kernels that round P have the larger errors, as in the forward pass. The dtype is bf16; Triton's interpreter does not round P.", "name": "tuner-errors-decode"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
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
fore, back = (frame.set_index(["kernel", "head_dim"]) for frame in (forward, backward))
of_wgmma = search[search.kernel == "prefill_wgmma"]
numbers = {
    "searched": f"{len(searches)}", "most_runs": f"{searches['runs to 98 %'].max()}",
    "most_tiles": f"{searches.tiles.max()}", "worst_rank": f"{searches['rank correlation'].min():.2f}",
    "wgmma_late": f"{(of_wgmma.measured_ms / of_wgmma.expected_ms).median():.2f}",
    "listed_loss": f"{100 * (searches['listed, ms'] / searches['ms'] - 1).max():.1f}",
    "smem_busier": f"{(backward.smem > backward.tensor_pipe - 1).sum()}",
    "backward_kernels": f"{len(backward)}",
    "back_mufu": f"{back.mufu['torch_fa2 backward', 128]:.0f}",
    "front_mufu": f"{fore.mufu['torch_fa2', 128]:.0f}",
    "back_smem": f"{back.smem['torch_fa2 backward', 128]:.0f}",
}  # fmt: skip

# %% tags=["hide-cell"]
price = wide.loc["now"].backward_wgmma / wide.loc["now", "backward_wgmma ordered"]
gained = gains.backward_wgmma.groupby(level="head_dim").median()
faster = {f"gain_{head_dim}": gain - 1 for head_dim, gain in gained.items()}
faster |= {"gain_ordered": gains["backward_wgmma ordered"].median() - 1, "price": 1 - price.min()}
turns = wide["backward_wgmma ordered"] / wide.torch_cudnn
turns = (turns.loc["one adds"] / turns.loc["two add"]).groupby(level="head_dim").median()
faster |= {f"turns_{head_dim}": gain - 1 for head_dim, gain in turns.items()}
later = wide.backward_wgmma / wide.torch_cudnn
overlap = later.loc["a step later"] / later.loc["now"]
later = (later.loc["two add"] / later.loc["a step later"]).groupby(level="head_dim").median()
faster |= {f"later_{head_dim}": gain - 1 for head_dim, gain in later.items()}
overlap_of = overlap.groupby(level="head_dim").median()
faster |= {f"overlap_{head_dim}": gain - 1 for head_dim, gain in overlap_of.items()}
faster["overlap_2048"] = overlap.xs(2048, level="kv_len").median() - 1
numbers |= {name: f"{100 * share:.0f}" for name, share in faster.items()}

# %% tags=["hide-cell"]
at = wide.xs((128, False, 8192), level=place)
one_adds_s, ordered_s = (at.loc[run, "backward_wgmma ordered"] for run in ("one adds", "two add"))
# 2 requests of 16 heads: a block takes 128 keys through all blocks of 64 rows
steps = 2 * 16 * (8192 // 128) * (8192 // 64) / h200.sm_count
numbers |= {"turns_ms": f"{1e3 * ordered_s:.1f}", "one_adds_ms": f"{1e3 * one_adds_s:.1f}"}
numbers["step_us"] = f"{1e6 * at.loc['one adds', 'backward_wgmma'] / steps:.1f}"
numbers["waiting_us"] = f"{1e6 * one_adds_s / steps:.1f}"
of_64, of_128, of_256 = (price.xs(d, level="head_dim").min() for d in (64, 128, 256))
assert min(of_64, of_128) > 0.9, "the caption names the price"
assert 0.75 < of_256 < 0.85, "the caption names the price"
for name, text in numbers.items():
    glue(name, text, display=False)
listed = pd.DataFrame(numbers.items(), columns=["name", "number"])
plots.table(listed.assign(name=listed.name.str.replace("_", " ")), "numbers")

# %% [markdown]
# 1. **Arithmetic rejects most tiles**, and names the line that broke each.
# 2. **A model's order is worth a few runs.** Its rank correlation with the measured order is {glue:text}`worst_rank` at worst, and {glue:text}`most_runs` runs reach 98 % of the best of {glue:text}`most_tiles` tiles, in every one of the {glue:text}`searched` searches.
# 3. **Backward loses by shared memory and registers, not by exponentials.** In FlashAttention-2 the special-function unit goes from {glue:text}`front_mufu` to {glue:text}`back_mufu` % at head_dim 128, as {eq}`tuner-backward-ratio` says it must, and shared memory is at {glue:text}`back_smem` %.
# 4. **What shared memory delivers is a budget too.** A product of two tiles takes all of it, and a load beside it waits for the product. To put loads beside products that read one tile was worth more than to keep the tensor core's queue full.
# 5. **One order for $dQ$ costs up to {glue:text}`price` % at head_dim 256, and less than a tenth below it**: the blocks wait for each other in two threads that compute nothing, and that take the steps in turn.
#
# Where did the model fail?
# The first change that it suggested gained nothing, because {eq}`half-idle-step` has no term for the bandwidth of shared memory.
# The model's times are too short for `prefill_wgmma`, by a factor of {glue:text}`wgmma_late` in the median, and the model cannot order tiles that are nearly alike.
#
# ## Exercises
#
# ```{exercise}
# :label: tuner-breaks
#
# Let the tuner's ledger say which tiles of `prefill_mma` at head_dim 256 an A10 rejects that an H200 takes, and with which line they break.
# Check your answer with `exercises.check("tuner-breaks", line)`: "registers", "shared memory" or "threads".
# ```
#
# ```{solution-start} tuner-breaks
# :class: dropdown
# ```
#
# All of them break with shared memory: some with the stages of $K$ and $V$, others with $Q$ already.

# %%
whole = tuning_search.space(tuning_search.tunable("prefill_mma"), COUNTED[256])
taken = set(tuning_search.by_ledger(whole, h200)[0])
refused = [
    item
    for item in tuning_search.by_ledger(whole, hardware.gpu("a10"))[1]
    if item.instance in taken
]
assert refused
assert exercises.check("tuner-breaks", {item.cause.rpartition(" of ")[2] for item in refused})

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case is {cite:t}`flashattention1205`.
# The order of the five products is that of {cite:t}`dao2024`; the model of a step is ours.
