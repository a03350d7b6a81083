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
# **Which tile is the fastest, without trying them all, and why does the backward pass reach less of the machine than the forward?**
# Both questions follow from {cite:t}`flashattention1205`, whose author saw tensor cores half idle.
#
# :::{admonition} Answer
# :class: important
#
# Counting registers and shared memory rejects most tiles without a run. A model orders the rest: {glue:text}`most_runs` runs in its order reach 98 % of the best of up to {glue:text}`most_tiles` tiles.
# In the backward pass shared memory is at least as busy as the tensor cores: for each exponential it has five products where the forward has two, and more operands.
# How sure: every tile that compiles was measured on one H200 (CUDA {glue:text}`cuda`, bf16); counters say what is busy.
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
import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from myst_nb import glue

from labkernels import Backward, Bench, Decode, Prefill, hardware, plots, source
from labkernels.budget import ranking
from labkernels.chapters import exercises, live

# %% tags=["hide-input"]
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure import real_inputs
from labkernels.measure.tuning import recorded as tuning_recorded
from labkernels.measure.tuning import search as tuning_search
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import in_panels
from labkernels.records import recorded, store

# %% tags=["hide-input"]
h200 = hardware.gpu("h200")
COUNTED = {d: Prefill((4096,) * 4, (4096,) * 4, 2048 // d, 2048 // d, d) for d in (64, 128, 256)}

# %% tags=["hide-input"]
searched = store.read("tuning")
searched = recorded.newest_of_each(searched, ("kernel", "head_dim", "causal"))
searched.sort(key=lambda row: (row["kernel"], row["head_dim"], row["causal"]))

# %% tags=["hide-input"]
tiles = tuning_recorded.recorded(searched, gpu=h200)
search = pd.DataFrame([vars(one) | {"expected_ms": 1e3 * one.expected.time_s} for one in tiles])
search["measured_ms"] = 1e3 * search.measured_s

# %% tags=["hide-input"]
search["search"] = [
    f"{one.kernel}, {one.head_dim}, {'causal' if one.causal else 'full'}" for one in tiles
]
found = {}
for name, group in search.groupby("search", sort=False):
    pair = (group.expected_ms.tolist(), group.measured_ms.tolist())
    runs = ranking.runs_to_reach(0.98, *pair)
    found[name] = (ranking.rank_correlation(*pair), len(group), runs, ranking.best_so_far(*pair))
search["correlation"] = [found[name][0] for name in search.search]

# %% mystnb={"figure": {"caption": "A few runs in the model's order find a tile within 2 % of the best (dashed). Of tiles that the model expects alike, the slowest is taken to run first.", "name": "tuner-runs"}, "image": {"alt": "A panel for each kernel, and in it a step curve for each search of the best speed found so far in percent of the best there is, over the number of runs on a logarithmic axis. It passes 98 % after a few runs.", "width": "100%"}} tags=["hide-input"]
curves = [
    {"search": name, "kernel": name.split(",")[0], "run": run, "share": share}
    for name, (_, _, _, shares) in found.items()
    for run, share in enumerate(shares, 1)
]
plots.best_by_runs(pd.DataFrame(curves), goal=0.98, origin=recorded.origins(searched))
plt.show()

# %% [markdown]
# ## Prediction
#
# A tile must fit, and the ledgers say whether it does.
# The model of a step, {eq}`half-idle-step`, gives an expected time for each tile that fits.
#
# The backward pass recomputes $P$ and then needs $dV = P^T dO$, $dP = dO\, V^T$, $dS = P \circ (dP - \delta)$ with {term}`delta` of each row, $dQ = dS\, K$ and $dK = dS^T Q$. With $S = Q K^T$ these are five products for one exponential, where the forward has two.
# Here $dX$ is the gradient of the loss with respect to $X$, and $\circ$ multiplies element by element; the constant factors of the scale are left out.
# A thread block takes some keys through all query rows, so all blocks add to the same $dQ$.
# With {eq}`half-idle-ratio`,
#
# $$
# \rho_{\text{backward}} = \frac{10\, D\, E}{R_{\text{GPU}}} = \frac{5}{2} \, \rho_{\text{forward}},
# $$ (tuner-backward-ratio)
#
# where $\rho$ is the time of the products over that of the exponentials, $D$ the head_dim, $E$ the exponentials per second of the GPU and $R_{\text{GPU}}$ the FLOP/s of its tensor cores.
# Exponentials therefore limit the backward pass far less than the forward pass.

# %% [markdown]
# ### What five products take
#
# These are the formulas of `backward_wgmma`.
# A thread block holds the gradients $dK$ and $dV$ of its keys in registers all the time, beside $S$ and $dP$ of the step.

# %% tags=["hide-output"]
backward = Backward((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
kernels = ["backward_mma", "backward_wgmma", "prefill_fma", "prefill_mma", "prefill_wgmma"]
kernels += ["triton_prefill", "decode_fma", "decode_mma", "triton_decode"]
bench = Bench(prefill, decode, kernels=kernels[2:], gpu="h200")
both_passes = Bench(backward, prefill, kernels=[*kernels[:2], "prefill_wgmma"], gpu="h200")
both_passes.equations("backward_wgmma")

# %% mystnb={"figure": {"caption": "The backward kernels keep two accumulators where the forward keeps one (blue), and their tiles of Q and dO fill shared memory. A circle is what a thread has after the warps that load have handed registers over. H200.", "name": "tuner-budget"}, "image": {"alt": "Two panels of stacked bars for two backward kernels, each without and with an order of dQ, and one of the forward pass: registers per thread above, with a line at 255, and shared memory per block below. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
both_passes.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "One block of backward_wgmma fills an SM. Registers and shared memory both stand in the way of a second.", "name": "tuner-occupancy"}, "image": {"alt": "A bar of blocks for each of two backward kernels, without and with an order of dQ, and one of the forward pass, in the colour of what limits them, with the words of what one block more would take.", "width": "100%"}} tags=["hide-input"]
both_passes.plot_occupancy("h200")
plt.show()

# %% [markdown]
# ### Which tiles fit
#
# The two prefill kernels can be compiled for many tiles at 128 channels. The ledger alone says which of them fit an H200, and which line breaks the others:

# %% tags=["hide-input"]
for kernel in ("prefill_mma", "prefill_wgmma"):
    whole = tuning_search.space(tuning_search.tunable(kernel), COUNTED[128])
    fitting, rejected = tuning_search.by_ledger(whole, h200)
    causes = pd.Series([item.cause for item in rejected]).value_counts()
    print(f"{kernel}: {len(whole)} tiles, {len(fitting)} fit; what broke the others:")
    print(causes.to_string())
    example = f"for example {rejected[0].instance.tile.label}: {rejected[0].reason}"
    print(textwrap.fill(example, 90), end="\n\n")

# %% [markdown]
# For the tiles that fit the prediction is an order: {eq}`half-idle-step` ranks them, and a few runs in that order should find a tile within 2 % of the best.
#
# For the backward pass {eq}`tuner-backward-ratio` predicts that the special-function unit is less busy than in the forward pass, on every kernel.
#
# ## Code
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
# The ledger rejects what cannot fit; the compiler rejects tiles that {term}`spill`, and tiles whose products would wait for each other; the model puts the rest in order; and a GPU measures the first few.
# All but the last step need no GPU.
# The compiler's part takes a few minutes, and was recorded:

# %% tags=["hide-input"]
refusals = pd.DataFrame(searched).query("metric == 'rejected' and not causal")
said_why = refusals.note.str.extract(r"(?P<by>\w+): (?P<cause>[^;]+); (?P<reason>.*)")
refusals = refusals.assign(**said_why, tiles=refusals.value.astype(int)).query("by == 'compiler'")
shown = refusals[["kernel", "head_dim", "cause", "tiles", "tile", "reason"]]
plots.table(shown.rename(columns={"tile": "for example", "reason": "it says"}), "refusals")

# %% [markdown]
# How good is the model's order?
# For {numref}`tuner-order` every tile that fits and compiles was measured, in the {glue:text}`searched` searches of the experiment `tuning`.
# The one latency in the model was set by times of `prefill_mma`, so for that kernel only the order is tested. Of `prefill_wgmma` the model knew nothing.

# %% mystnb={"figure": {"caption": "The model's order is right on the whole and wrong among neighbours, which is enough to leave out runs. Every tile that fits and compiles; filled marks are in the kernel's own list.", "name": "tuner-order"}, "image": {"alt": "A scatter plot for each search of measured over expected milliseconds, with a line where both are equal. Points rise with the line and scatter around it; the panel's title has its rank correlation.", "width": "100%"}} tags=["hide-input"]
plots.expected_and_measured(search, origin=recorded.origins(searched))
bench.log.drew("timing", "prefill")
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
# The times of `prefill_wgmma` are {glue:text}`wgmma_late` times the expected ones, in the median of its tiles: the model knows neither the lower clock under load nor that its two phases hide each other less than perfectly.
# Both slow all tiles about equally and leave the order, whose rank correlation is {glue:text}`worst_rank` at worst.
# A kernel's own list is good enough in practice: its best tile loses at most {glue:text}`listed_loss` % to the best of all tiles.

# %% [markdown]
# ### Where backward loses
#
# The figure has Nsight Compute's counters of the backward kernels on an H200, for 4 requests of 4096 tokens, heads × head_dim = 2048, bf16, and no mask. They were recorded before the changes of the next section.

# %% tags=["hide-input"]
everything = store.read("counters")
everything = recorded.newest_of_each(everything, ("kernel", "tile", "head_dim"))
in_figure = [r for r in everything if not r["tile"] and "backward" in r["kernel"]]
origin = recorded.origins(in_figure)
counted = plots.counter_table(pd.DataFrame(everything))
by_default = counted[counted.tile == ""].sort_values(["head_dim", "kernel"])
is_backward = by_default.kernel.str.contains("backward")
forward, backward = by_default[~is_backward], by_default[is_backward]

# %% mystnb={"figure": {"caption": "Shared memory is as busy as the tensor pipe or busier in every row, and exponentials (exp2) are far from a limit. Numbers are percent of what each part can do.", "name": "busy-backward"}, "image": {"alt": "A grid for each head_dim of backward kernels and parts of an SM with percentages. exp2 is low everywhere; shared memory is the busiest part beside the tensor pipe.", "width": "100%"}} tags=["hide-input"]
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
# The five products of the backward pass have ten operands, $P$ and $dS$ must be transposed between two products, and $dQ$ is summed over blocks.
# All of this goes through registers, which hold $dK$ and $dV$ of a tile all the time, and through shared memory, which is as busy as the tensor pipe or busier in {glue:text}`smem_busier` of the {glue:text}`backward_kernels` rows of the figure.
# In FlashAttention-2 the special-function unit is busy for {glue:text}`front_mufu` % of the forward pass and {glue:text}`back_mufu` % of the backward at head_dim 128: less, as {eq}`tuner-backward-ratio` predicts. Shared memory is busy for {glue:text}`back_smem` % of the backward.

# %% [markdown]
# ### What an order of dQ costs
#
# A thread block adds its part of $dQ$ to memory. With an order, the thread that adds waits for its turn at a counter, sends the addition, waits until the addition is in memory, and lets the next block go.
# Two threads take the steps in turn, so that each has the time of two steps for this chain.
# The kernel's way to this is told in decisions {doc}`6 </book/decisions/0006-an-ordered-dq>`, {doc}`16 </book/decisions/0016-blocks-of-the-backward-pass-leave>` and {doc}`25 </book/decisions/0025-launches-of-a-backward-pass-overlap>`.

# %% tags=["hide-input"]
timed = store.select(store.read("backward"), {"metric": "time", "statistic": "median"})
timed = pd.DataFrame(timed).query("kv_len >= 2048")
ours = ["backward_wgmma", "backward_wgmma ordered"]
peers = ["torch_cudnn", "flash_attention_4", "flash_attention_4_ordered"]
timed = timed[timed.kernel.isin([*ours, *peers])]
now = timed[timed.started_utc.isin(timed.groupby("head_dim").started_utc.max())].copy()
place = ["head_dim", "causal", "kv_len"]
wide = now.pivot_table(index=place, columns="kernel", values="value")

# %% mystnb={"figure": {"caption": "The price of determinism, by head_dim and mask: the sum of dQ in one order (dashed) beside the same kernel without one. At head_dim 64 and 128 it costs at most {glue:text}`price_128` %, at 256 up to {glue:text}`price` %. FlashAttention-4 pays more at 128 and 256; at 64 neither pays much, and FlashAttention-4 is ahead at 2048 tokens under the causal mask.", "name": "tuner-price"}, "image": {"alt": "Six panels, head_dim 64, 128 and 256 without and with the causal mask: TFLOP/s over tokens per request for backward_wgmma, FlashAttention-4 and cuDNN; the first two with ordered sums as dashed lines.", "width": "100%"}} tags=["hide-input"]
now["panel"] = [f"{r.head_dim}, {'causal' if r.causal else 'full'}" for r in now.itertuples()]
now = now.sort_values(["causal", "head_dim"]).assign(kind=now.kernel.map(plots.style.name))
now = now.assign(x=now.kv_len, dashed=now.kernel.str.contains("ordered"))
now["y"] = [
    Backward((r.kv_len,) * r.batch, (r.kv_len,) * r.batch, r.q_heads, r.q_heads, r.head_dim,
             causal=r.causal).flops / r.value / 1e12 for r in now.itertuples()
]  # fmt: skip
origin = recorded.origins(now.to_dict("records"))
in_panels(now, labels=("tokens per request", "TFLOP/s"), origin=origin)
plt.show()

# %% [markdown]
# The order costs at most {glue:text}`price_128` % of the rate at head_dim 64 and 128, and up to {glue:text}`price` % at 256.
# In the newest recording `backward_wgmma` is {glue:text}`ahead` % faster than cuDNN in the median of these shapes.
#
# ### Does the tile change the error?
#
# The tuner compares times alone, which is right only if tiles do not trade accuracy for speed.
# The cell runs the recorded best tile of `prefill_mma`, the smallest tile of its space, and `prefill_fma` on small requests of random inputs, and on four KV heads of SmolLM2, a trained model, with three query heads each.

# %% tags=["hide-input"]
mma = tuning_search.tunable("prefill_mma")
space = tuning_search.space(mma, COUNTED[64])
fitting = [one.tile for one in tuning_search.by_ledger(space, h200)[0]]
smallest = min(fitting, key=lambda tile: (tile.q_rows, tile.keys, tile.stages))
best_label = searches.set_index("search")["best tile"]["prefill_mma, 64, full"]
best = next(tile for tile in fitting if tile.label == best_label)
ways = {f"tile {best.label.removesuffix('-backward')}": mma.with_tile(best)}
ways["tensor cores off"] = "prefill_fma"
ways[f"tile {smallest.label.removesuffix('-backward')}"] = mma.with_tile(smallest)


def of_tiles(operation, given):
    return {name: live.output(operation, given, kernel) for name, kernel in ways.items()}


# %% tags=["hide-input"]
lengths, NAMES = (192, 96, 33), ("diffuse", "peaky", "first key", "large values")
drawn = prefill_inputs(Prefill(lengths, lengths, 4, 4, 64), ExactNormal(0, "cpu"))
of_model = real_inputs.prefill_of((200, 228, 256), NAMES, queries=8)
groups = {"random": {"prefill": drawn}, "SmolLM2": {"prefill": of_model}}
spread = live.beside(groups, of_tiles)

# %% mystnb={"figure": {"caption": "Two tiles, one error, in random inputs and in a trained model's: the tile changes the order of sums, and no head or request shows a difference. Relative L2 error against float64, bf16, 64 channels. SmolLM2's query heads come in threes: diffuse, peaky, first key, large values.", "name": "tuner-errors"}, "image": {"alt": "Two panels of dots over query heads and over requests, random inputs beside those of SmolLM2. The dots of the two tiles lie beside each other in every head and request; those of tensor cores off are lower, with random inputs more than with SmolLM2's. One of SmolLM2's heads has nearly no error.", "width": "100%"}} tags=["hide-input"]
by_place(spread, label="relative L2 error", origin="computed on this machine", log=False)
bench.log.drew("errors", "prefill")
plt.show()

# %% [markdown]
# Rounding P to bf16 adds less to the errors of the model's heads than to those of random ones: often one key has most of a row's weight, and the largest weight is 1, which nothing rounds. What is left is the rounding of the output, and of head 8 not even that: its output is the value of the first key.

# %% [markdown] tags=["evidence"]
# Both operations of the forward pass on small shapes, and the backward pass beside them:

# %% tags=["nbval-ignore-output", "evidence"]
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
runs = pd.concat([bench.run(), both_passes.run().query("operation == 'backward'")])
plots.table(runs[columns], "ran", {"time_ms": "{:.3g}"})

# %% tags=["nbval-ignore-output", "evidence"]
bench.log + both_passes.log

# %% tags=["evidence"]
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

# %% tags=["evidence"]
price = 1 - wide.backward_wgmma / wide["backward_wgmma ordered"]
numbers["cuda"] = searched[0]["cuda"]
numbers["price"] = f"{100 * price.max():.0f}"
numbers["price_128"] = f"{100 * price.drop(256, level='head_dim').max():.0f}"
numbers["ahead"] = f"{100 * ((wide.torch_cudnn / wide.backward_wgmma).median() - 1):.0f}"
for name, text in numbers.items():
    glue(name, text, display=False)

# %% [markdown]
# ## What would change the answer
#
# - **A model with a term for shared memory.** The model of a step, {eq}`half-idle-step`, has none. A product of two tiles in shared memory takes all that shared memory delivers, so that a load beside it waits.
# - **Tiles that are nearly alike.** The model cannot order them, and only a run can.
# - **Another GPU.** Ledgers, spills and times differ there, and `labkernels tune` searches again.
# - **head_dim 256**, where an order costs most, and where the searches have the fewest tiles to choose from.
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
