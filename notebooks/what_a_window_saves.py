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
# # What a window saves
#
# ## Question
#
# **My model has windows of 1,024 keys (Gemma 3), or of 128 with sinks (GPT-OSS): what does this save, what does it cost in errors, and why is it not $S$ / window?**
# {cite:t}`flashattention698` asks why a window of a quarter of the context made training steps only about a fifth shorter, and saved no memory.
#
# :::{admonition} Answer
# :class: important
#
# A prefill of 8,192 tokens is {glue:text}`gain_1024` times as fast with a window of 1,024, {glue:text}`gain_128` times with 128. A causal row sees half of $S$ on average, and a tile goes over all its rows' keys in whole steps.
# A decode of 57 requests is {glue:text}`decode_gain_1024` and {glue:text}`decode_gain` times as fast, from {glue:text}`decode_1024` and {glue:text}`decode_128` times fewer bytes: short windows leave SMs idle.
# Relative errors stay; absolute ones grow as outputs do. A sink shrinks both.
# How sure: one H200 (CUDA {glue:text}`cuda`); no model was run.
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
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from labkernels import Bench, Decode, Prefill, plots
from labkernels.chapters import exercises, live
from labkernels.chapters import what_a_window_saves as chapter
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.prefill.inputs import prefill_inputs

# %% tags=["hide-input"]
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import real_inputs
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import curves, in_panels
from labkernels.records import recorded, store
from labkernels.variant import FULL, AttentionVariant

HERE = "computed on this machine"
WINDOWS, HEADS = (4096, 1024, 128), (32, 8, 128)
prefills = store.read("prefill_variants")
recording = [row for row in prefills if (row["q_heads"], row["kv_len"]) == (32, 8192)]
origin = recorded.origins(recording)
times = chapter.times(recording)
best = chapter.fastest(times)
ours = best[best.ours]

# %% tags=["hide-input"]
full_us = ours.us[ours.variant == chapter.PLAIN].iloc[0]
decodes = store.read("decode_variants")
decoded = chapter.against_peers(decodes, "time_graph")
decoded.columns = ["decode", "ours, µs", "kernel", "peer, µs", "peer", "peer / ours"]
decode_us = decoded.set_index("decode")["ours, µs"]

# %% tags=["hide-input"]
lines, columns = [], ["panel", "kind", "dashed", "x", "y"]
panels = "prefill of 32,768 tokens", "decode, 57 requests"
measured = "measured, 8,192 keys"
lines += [(panels[0], measured, False, r.window, r.us) for r in ours[ours.window > 0].itertuples()]
long = [row for row in prefills if row["kv_len"] == 32768]
for row in chapter.fastest(chapter.times(long)).query("ours").itertuples():
    lines.append((panels[0], "measured, 32,768 keys", False, row.window, row.us))
for window in (None, *WINDOWS):
    us = decode_us[chapter.decode(8192, window, HEADS, 57).label]
    lines.append((panels[1], measured, False, window or 8192, us))

# %% tags=["hide-input"]
for length in (8192, 32768):
    kind = f"expected of {length:,} keys"
    for window in (*WINDOWS, length):
        works = [chapter.prefill(*of, HEADS) for of in ((8192, None), (length, window))]
        per_token = [chapter.scores(work) / work.q_lens[0] for work in works]
        value = full_us * per_token[1] / per_token[0]
        lines.append((panels[0], kind, True, window, value))
        value = chapter.least_us(chapter.decode(length, window, HEADS, 57))
        lines.append((panels[1], kind, True, window, value))

# %% mystnb={"figure": {"caption": "Time grows with the window, and not with the length of the requests: their curves lie together while the window is much shorter than the request. The fastest of our kernels; the prefill is of 4 requests of 8,192 tokens or one of 32,768. Dashed: the measured time of 8,192 keys without a window times the steps that tiles take, and for the decode the time in which an H200 can move the bytes. 32 query and 8 KV heads of 128, bf16.", "name": "window-times"}, "image": {"alt": "Two panels of time over the keys of the window, both axes logarithmic, prefill and decode. The curves of requests of 8192 and of 32768 keys lie together at windows of 128 and 1024; in the decode the dashed ones are one line. The measured points lie on the dashed curves, but above them at a window of 128, in the decode also at 1024.", "width": "100%"}} tags=["hide-input"]
told = f"{recorded.origins([*prefills, *decodes])}; dashed: computed"
lines, axes = pd.DataFrame(lines, columns=columns), ("keys of the window", "time, µs")
in_panels(lines, labels=axes, log="y", shared=False, origin=told)
plt.show()

# %% [markdown]
# The last point of each curve has no window. A window saves the more, the longer the requests are. But from 1,024 keys to 128 the measured prefill gains only {glue:text}`last_factor`.
#
# ## Prediction
#
# Query $i$ has its place $p$ among the keys; with a window $W$ it sees the keys from $p - W$ to $p$, which are $W + 1$. With the other terms of a variant, for head $h$:
#
# $$
# \begin{aligned}
# s_j &= c \tanh\!\left(\frac{\tau\, q \cdot k_j}{c}\right) + a_h (j - p), \\
# o &= \frac{\sum_{j = p - W}^{p} e^{s_j} v_j}{e^{z_h} + \sum_{j = p - W}^{p} e^{s_j}}
# \end{aligned}
# $$ (window-output)
#
# | symbol | meaning |
# |---|---|
# | $\tau$, $c$ | softmax scale; soft cap (Gemma 2), without which $s_j = \tau\, q \cdot k_j$ |
# | $a_h$ | slope of ALiBi, which some models have in place of positions |
# | $z_h$ | sink of the head: a learned logit that counts in the denominator alone (GPT-OSS) |
#
# FlashAttention's `window_size=(W, 0)`, FlashInfer's `window_left=W` and this lab's `window_left=W` all mean these $W + 1$ keys. A model's `sliding_window` may count the token itself: {cite:t}`transformers39408` reports a call that was one key off.
#
# ### How many keys a tile goes over
#
# A prefill kernel computes a tile of $R$ rows at once. With $g$ query heads per KV head these are $R / g$ tokens, and the tile goes over every key that one of them sees, in steps of $K$ keys:
#
# $$
# n = K \left\lceil \frac{W + R / g + (b \bmod K)}{K} \right\rceil
# $$ (window-steps)
#
# Here $b$ is the first key of the tile's first row: the tile begins at a multiple of $K$. Keys that a row does not see are masked, but they are computed.
# Without a window, a causal tile goes over half of the keys on average.

# %%
rows = []
for window in (None, *WINDOWS):
    work = chapter.prefill(8192, window, HEADS)
    taken = chapter.steps(work, 128, 128)
    seen = work.variant.seen(np.arange(8192), 8192, 8192)
    rows.append((window or "all", seen.mean(), 128 * taken.mean(), taken.max()))
columns = ["window", "keys that a row sees", "keys that its tile goes over", "steps at most"]
formats = dict.fromkeys(columns[1:3], "{:.0f}")
plots.table(pd.DataFrame(rows, columns=columns), "tile-keys", formats)

# %% [markdown]
# These are means over 8,192 tokens of a tile of 128 rows with steps of 128 keys, as our fastest kernel has it, at a group of 4. A window of 128 costs two steps, of which a row sees half. Heads of 256 take steps of 80 keys, but of 64 where a window is short: a tile of Gemma 3's goes over 1,088 keys, which are 17 steps of 64 and up to 15 of 80.
#
# A decode reads the keys of one token and waits for memory, so its least time is that of the bytes: $2 (W + 1) D$ numbers for each request and KV head.
#
# ### What a block takes
#
# Where a block begins and ends are two numbers of the block, and a sink is where the softmax begins: neither adds a register to the loop, and none adds shared memory. Slopes take two registers for each row of a thread; with them `prefill_wgmma` takes a smaller tile, whose sum is therefore less.

# %%
KERNELS = ["decode_fma", "decode_mma_n8", "prefill_fma", "prefill_mma", "prefill_wgmma"]
VARIANTS = {
    "all keys": FULL,
    "window and sinks": AttentionVariant(window_left=128, sinks=True),
    "slopes": AttentionVariant(alibi=True),
}
sized = {}
for name, variant in VARIANTS.items():
    served = replace(chapter.decode(8192, None, HEADS, 57), variant=variant)
    chunk = chapter.prefill(8192, None, HEADS, 4)
    chunk = replace(chunk, variant=replace(variant, causal=True))
    sized[name] = Bench(served, chunk, kernels=KERNELS, gpu="h200")
sized["slopes"].equations("decode_fma")

# %% mystnb={"figure": {"caption": "Both budgets of a call with a window of 128 keys and sinks: each term is that of the plain call. A circle is what a thread has after the warps that load have handed registers over. Predicted, and compiled for an H200.", "name": "window-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas, with a diamond for the compiler's number.", "width": "100%"}} tags=["hide-input"]
sized["window and sinks"].plot_budget()
plt.show()

# %% tags=["hide-input"]
rows = []
for name, bench in sized.items():
    found = bench.occupancy("h200")
    terms = bench.budgets()
    terms = terms[terms.counts.astype(bool) & (terms.resource == "registers per thread")]
    predicted = terms.groupby("kernel").value.sum()
    for row in found.itertuples():
        rows.append((row.kernel, name, predicted[row.kernel], row.registers, row.smem_bytes))
columns = ["kernel", "variant", "registers, sum of terms", "compiled", "shared memory, bytes"]
table = pd.DataFrame(rows, columns=columns).sort_values("kernel", kind="stable")
plots.table(table, "variant-budgets", {columns[-1]: "{:,}"})

# %% mystnb={"figure": {"caption": "Since a block takes the same, an SM holds the same blocks: a window changes how much work the grid has, and not what fits.", "name": "window-occupancy"}, "image": {"alt": "A panel with a row for each kernel: the blocks that fit an SM of an H200, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
sized["window and sinks"].plot_occupancy("h200")
plt.show()

# %% [markdown]
# ## Code
#
# The schedule counts the keys of each tile before the launch; the kernel masks only the first and the last steps of a tile:
#
# ```{literalinclude} /labkernels/kernels/packed_gqa/schedule.py
# :language: python
# :start-at: "n, keys = lengths.q[request], lengths.kv[request]"
# :end-before: "def _best_splits("
# ```
#
# A sink is a key without a value, with which one of the lanes that share a row begins:
#
# ```{literalinclude} /labkernels/cuda/include/lab/attention/variant.cuh
# :language: cpp
# :start-at: "// Lets the softmax of row r begin with its head's sink"
# :end-before: "}  // namespace lab"
# ```
#
# ## Measurement
#
# ### From $S$ / window to the time
#
# Each column of the table takes one more thing into account; the prefill is 4 x 8,192 tokens:

# %%
told = chapter.chain(ours, WINDOWS, HEADS)
plots.table(told, "chain", dict.fromkeys(told.columns[1:-1], "{:.1f}") | {"time, µs": "{:.0f}"})

# %% [markdown]
# Half of $S / W$ goes because a causal row sees half of the keys even without a window.
# The steps of the tiles take the next part, and in a window of 128 it is again a half.
# What is left between *steps of tiles* and *measured* is what steps do not count. One part of it is known: a tile's queries are read and its outputs are written, whatever its keys are. Memory needs at least {glue:text}`short_memory` µs for Q, K, V and the output, which is {glue:text}`short_share` % of the time with a window of 128.
# That a window of 4,096 gains *more* than its steps is not explained.
#
# ### A decode, and a small batch
#
# A window takes work from a decode that has hardly enough: few keys can be cut into few splits. The figure has the blocks of the plan over the blocks that an H200 holds:

# %% tags=["hide-input"]
rows = []
for batch in (1, 8, 57):
    for window in (128, 512, 1024, 4096, 8192):
        served = chapter.decode(8192, window, HEADS, batch)
        (found,) = Bench(served, kernels="decode_mma_n8", gpu="h200").occupancy("h200").itertuples()
        rows.append((f"batch of {batch}", window, found.waves))
places = pd.DataFrame(rows, columns=["kind", "x", "y"])
places = places.assign(panel="decode_mma_n8, H200", dashed=False)

# %% mystnb={"figure": {"caption": "With a window of 128 keys, eight requests fill {glue:text}`places_few` % of the GPU's places for blocks. Blocks of decode_mma_n8's grid over the blocks that an H200 holds at once; predicted.", "name": "window-places"}, "image": {"alt": "Three curves over windows of 128 to 8192 keys, for 1, 8 and 57 requests of 8192 keys. That of 57 requests lies near one everywhere; those of 8 requests and of one request fall towards short windows.", "width": "100%"}} tags=["hide-input"]
in_panels(places, labels=("keys of the window", "blocks over places"), log="y", origin=HERE)
plt.show()

# %% [markdown]
# The decodes of {numref}`window-times` and others, in bf16 and pages of 16 keys, were timed beside FlashInfer's kernels and torch's attention, each row in one recording:

# %% tags=["hide-input"]
timed = {"ours, µs": "{:.1f}", "peer, µs": "{:.1f}", "peer / ours": "{:.2f}"}
BARE = r" on \d+ x \d+|, causal|, page 16|, bf16"  # what all labels of a table have
shown = decoded.assign(decode=decoded.decode.str.replace(BARE, "", regex=True))
plots.table(shown, "variant-decodes", timed)

# %% tags=["evidence"]
for name, call in {"decode_gain": (8192, 57), "decode_gain_few": (32768, 8)}.items():
    us = [decode_us[chapter.decode(call[0], w, HEADS, call[1]).label] for w in (None, 1024, 128)]
    glue(name, f"{us[0] / us[2]:.0f}", display=False)
    glue(f"{name}_1024", f"{us[0] / us[1]:.0f}", display=False)
glue("cuda", decodes[0]["cuda"], display=False)

# %% [markdown]
# The time shrinks with the window until the empty places of the figure count: 64 times fewer keys take {glue:text}`decode_gain` times less time for 57 requests, and {glue:text}`decode_gain_few` times less for 8 requests of 32,768 keys, which is 256 times fewer keys.
# FlashInfer's kernel without tensor cores takes as long with a window as without, so the peer is its kernel on tensor cores.
#
# ### With tensor cores and without, in CUDA and Triton

# %% tags=["hide-input"]
NAMES = {"prefill_fma": "CUDA, off", "prefill_mma": "CUDA mma, on"}
NAMES |= {"prefill_wgmma": "CUDA wgmma, on", "triton_prefill": "Triton, on"}
NAMES |= {"flash_attention_4": "FlashAttention-4"}
every = times[times.kernel.isin(NAMES) & (times.window > 0)]
every = every.assign(kind=every.kernel.map(NAMES), x=every.window, y=every.us)
every = every.assign(panel="4 x 8,192 tokens", dashed=every.tensor_cores == "off")

# %% mystnb={"figure": {"caption": "The window helps every kernel, and from 4,096 keys to 128 the one without tensor cores the most. A prefill over the window, 32 query and 8 KV heads of 128, bf16; the kernel without tensor cores was timed with windows alone.", "name": "window-kernels"}, "image": {"alt": "Time over windows of 128 to 8192 keys for CUDA kernels with tensor cores on and off, Triton, and FlashAttention-4. All curves rise with the window; that without tensor cores lies more than ten times above the lowest, which are those of wgmma and FlashAttention-4.", "width": "100%"}} tags=["hide-input"]
in_panels(every, labels=("keys of the window", "time, µs"), log="y", origin=origin)
sized["window and sinks"].log.drew("timing", "prefill")
plt.show()

# %% [markdown]
# Without tensor cores the products set the time, and they shrink as the steps do.
# The table has our fastest time of each variant, and that of FlashAttention-4, which has no slopes, over ours:

# %% tags=["hide-input"]
pairs = [best[best.ours], best[~best.ours].set_index("variant")]
mine, other = pairs[0].sort_values("us"), pairs[1].us
peers = mine[["variant", "us", "gain", "kernel", "rmse"]].assign(
    quotient=mine.variant.map(other) / mine.us
)
peers.columns = ["variant", "ours, µs", "gain", "kernel", "rmse", "FlashAttention-4 / ours"]
formats = {"ours, µs": "{:.0f}", "gain": "{:.2f}", "rmse": "{:.2e}"}
formats |= {"FlashAttention-4 / ours": "{:.2f}"}
plots.table(peers, "variant-peers", formats)

# %% [markdown]
# *Gain* is our time with all keys over this time. Sinks cost a few percent, and a soft cap costs a factor: each score takes a hyperbolic tangent.
# Longer requests and the heads of GPT-OSS (64 channels) and of Gemma 3 (256), each row in one recording with FlashAttention-4 and torch's FlexAttention:

# %% tags=["hide-input"]
beside = chapter.against_peers([row for row in prefills if row not in recording])
beside.columns = ["prefill", *decoded.columns[1:]]
beside["prefill"] = beside.prefill.str.replace(BARE, "", regex=True)
plots.table(beside, "variant-prefills", timed | dict.fromkeys(list(timed)[:2], "{:,.0f}"))

# %% [markdown]
# ### Of a whole model
#
# Gemma 3 has five layers with a window for each layer without one {cite:p}`gemma2025`, GPT-OSS one for one {cite:p}`gptoss2025`. The layers without a window soon take all the time. This is expected from steps and bytes, for each model's heads:

# %%
models = chapter.of_models((8192, 131072))
formats = {"keys": "{:,}"} | dict.fromkeys(models.columns[3:5], "{:.1f}")
plots.table(models, "model-layers", formats)

# %% [markdown]
# The columns say how many times less a layer, or all layers, should take; *at most* is what windows without any cost would give. Only attention is counted; the matrix products of a layer have no window.
# Nor does a window alone save memory: the kernels read no key before it, but whether the cache still holds such keys is the caller's choice.
#
# ### The gradients of a training step
#
# The report at the top is about training. The backward pass has tiles, too: a block keeps a tile of keys and goes over the rows that see it. The table has our fastest gradients of 4 x 8,192 tokens with 16 heads of 128:

# %%
learned = chapter.gradients(store.read("backward_variants"), "16/16")
learned.columns = ["variant", "time, µs", "gain", "kernel"]
plots.table(learned, "variant-gradients", {"time, µs": "{:.0f}", "gain": "{:.2f}"})

# %% [markdown]
# The table has the peers of the prefills; 64 channels are GPT-OSS's, 256 Gemma 3's:

# %% tags=["hide-input"]
trained = chapter.against_peers(store.read("backward_variants"))
trained.columns = ["gradients", *decoded.columns[1:]]
trained["gradients"] = trained.gradients.str.replace(BARE, "", regex=True)
plots.table(trained, "gradients-beside", timed)

# %% [markdown]
# A window of 4,096, half of the context, gains a factor of {glue:text}`gradients_4096` and not of two: a causal row sees half of the keys anyway.
# FlexAttention has no row with sinks: they scale its output in 16 bits, and so take dq of the first rows beyond its bound.
#
# ### Errors: a window head beside a sink head
#
# By {eq}`window-output` an output is a mean of $W + 1$ values instead of up to $S$. With $\delta_j$, the relative rounding error of a weight $p_j$, and values of mean 0 and size $\sigma$:
#
# $$
# |o| \approx \sigma \sqrt{\textstyle\sum_j p_j^2}, \qquad
# |\Delta o| \approx \sigma \sqrt{\textstyle\sum_j p_j^2 \delta_j^2}
# $$ (window-error)
#
# Both grow as $1 / \sqrt{W}$ when the window shrinks, so that their quotient stays. A sink takes a share of the weights, which makes both smaller by the same factor.
# Every kernel now runs on three requests of up to 1,024 keys, in fp16; in one call the even heads have a window, and the odd ones a window and a sink of 4. Beside them are three KV heads of SmolLM2, a trained model, with three query heads each, where a sink has the mean score of its head's first key:

# %% tags=["nbval-ignore-output"]
gpt_oss = AttentionVariant(window_left=128, sinks=True)
few = dict(q_heads=4, kv_heads=4, head_dim=64, dtype="fp16")
bench = Bench(
    Decode((300, 200, 77), **few, variant=gpt_oss),
    Prefill((4,) * 3, (300, 200, 77), **few, variant=replace(gpt_oss, causal=True)),
    kernels=live.EVERY,
)
ran = bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")

# %% tags=["hide-input"]
LENGTHS, few = (1024, 700, 400), few | {"q_heads": 8}
drawn = {
    "decode": decode_inputs(Decode(LENGTHS, **few), Normal(0, "cpu")),
    "prefill": prefill_inputs(Prefill((4,) * 3, LENGTHS, **few, causal=True), Normal(0, "cpu")),
}
NAMES = ("own key", "first key", "diffuse")
real = real_inputs.of_both(NAMES, "fp16", queries=4)
sinks = {"random": torch.full((8,), 4.0), "SmolLM2": chapter.score_of_first(real["prefill"])}

# %% tags=["hide-input"]
groups = {}
for name, given in {"random": drawn, "SmolLM2": real}.items():
    odd = torch.where(torch.arange(len(sinks[name])) % 2 == 1, sinks[name], -torch.inf)
    how = {"window_left": 128, "sinks": odd}
    groups[name] = {operation: replace(x, options=how) for operation, x in given.items()}
errors = live.beside(groups)

# %% mystnb={"figure": {"caption": "A sink head errs as a window head beside it does, relative to its own outputs, unless its sink leaves so little of them that fp16 has no digits for it: even heads have a window of 128 keys, odd ones also a sink. Relative L2 error against float64, fp16, three requests, CUDA and Triton, tensor cores on and off. SmolLM2's query heads come in threes: own key, first key, diffuse.", "name": "window-errors"}, "image": {"alt": "Four panels, decode above and prefill below, over query heads on the left and three requests on the right, each with random inputs beside those of SmolLM2, the axis logarithmic; random heads err alike, even and odd. So do most of SmolLM2's; the second odd head of the first key has errors up to the size of its outputs, and the first one errs a little more with tensor cores than without.", "width": "100%"}} tags=["hide-input"]
by_place(errors, label="relative L2 error", origin=HERE)
bench.log.drew("errors", "decode", "prefill")
plt.show()

# %% tags=["hide-input"]
KINDS = {"window": [0, 2, 4, 6], "window and sink": [1, 3, 5, 7]}
rows = []
for operation, plain in drawn.items():
    kernel = live.KERNELS[operation][1]
    for given, heads in ((plain, {"all keys": range(8)}), (groups["random"][operation], KINDS)):
        out = {kernel: live.output(operation, given, kernel)}
        rows.append(chapter.beside(out, live.truth(given), heads))
rows = pd.concat(rows).rename(columns={"way": "kernel"})
formats = {"output": "{:.3f}", "error": "{:.2e}", "relative": "{:.2e}"}
plots.table(rows, "window-and-sink", formats)

# %% tags=["evidence"]
text = real_inputs.prefill_of((256,), NAMES)
options = {"all": {}, "window": {"window_left": 128}}
options["sink"] = options["window"] | {"sinks": chapter.score_of_first(text)}
seen = {name: live.truth(replace(text, options=how))[:, 3:6] for name, how in options.items()}
parts = (*seen.values(), seen["window"] - seen["all"], seen["sink"] - seen["all"])
whole, cut, kept, off, left = (np.sqrt((x**2).mean()) for x in parts)

# %% [markdown]
# *Output* and *error* are root mean squares. The window makes both about twice as large, as {eq}`window-error` says of 129 keys instead of 400 to 1,024; the sink takes a share of both.
#
# SmolLM2 has no sinks, but in its heads 3 to 5 the first key has nearly all weight, and a small value. A window that leaves this key out is no matter of rounding: its weight goes to other keys, and over 64 queries the outputs become {glue:text}`cut_grows` times as large. They are off by {glue:text}`window_off` times their true size, and with a sink in the key's place by {glue:text}`sink_left` times. In head 5 this sink leaves an output below fp16's normal numbers.
#
# Is a larger sink worse? The softmax takes its weights relative to the largest score, and a sink is a score: then all weights of the keys are small, and fp16 has fewer digits below $2^{-14}$. Here head by head the sink grows:

# %%
grown = torch.arange(8) * 2.0
lines = []
for dtype in ("fp16", "bf16"):
    given = decode_inputs(Decode((512,) * 32, **few | {"dtype": dtype}), Normal(0, "cpu"))
    given = replace(given, options={"window_left": 128, "sinks": grown})
    for kernel in ("decode_fma", "decode_mma"):
        out = live.output("decode", given, kernel)
        parts = chapter.beside({kernel: out}, live.truth(given), {h: [h] for h in range(8)})
        way = f"{dtype}, {'off' if kernel == 'decode_fma' else 'on'}"
        lines += [(way, 2 * row.heads, row.relative) for row in parts.itertuples()]
lines = pd.DataFrame(lines, columns=["kind", "x", "y"])

# %% mystnb={"figure": {"caption": "A large sink costs digits in fp16 and not in bf16: weights and outputs fall below fp16's normal numbers. Relative error over the logit of the sink, decode_fma (off) and decode_mma (on), window 128, 32 requests.", "name": "window-sinks"}, "image": {"alt": "Four curves over sinks of 0 to 14: the two of bf16 are flat, those of fp16 start lower and rise steeply at the right.", "width": "100%"}} tags=["hide-input"]
curves(lines, labels=("logit of the sink", "relative error"), log="y", mark="o", origin=HERE)
plt.show()

# %% [markdown]
# ### What a soft cap costs
#
# An error $\Delta s$ of a score changes its weight by the factor $e^{\Delta s}$. The instruction `tanh.approx` has a relative error of up to $2^{-11}$ {cite:p}`ptx`, so that a capped score may be off by $2^{-11} |s|$; our kernels take a polynomial instead, within $6 \cdot 10^{-7} c$ for a cap of $c$:

# %%
CAP = 50
print(f"rounding P to bf16: up to {100 * 2.0**-9:.3f} %")
for score in (4, 20, 50):
    print(f"tanh.approx, a score of {score}: up to {100 * np.expm1(score * 2.0**-11):.3f} %")
print(f"the polynomial, any score: up to {100 * np.expm1(CAP * 6e-7):.3f} %")

# %% tags=["hide-input"]
keyed = times.set_index("kernel")
plain, capped = (keyed[keyed.variant == v] for v in (chapter.PLAIN, "soft cap 50"))
capped = capped[["us", "rmse"]].assign(times=capped.us / plain.us.reindex(capped.index))
capped = capped.assign(without=plain.rmse.reindex(capped.index)).reset_index()
capped = capped[["kernel", "us", "times", "rmse", "without"]]
capped.columns = ["kernel", "time, µs", "times", "rmse", "rmse without a cap"]
formats = dict(zip(capped.columns[1:], ("{:.0f}", "{:.2f}", "{:.2e}", "{:.2e}"), strict=True))
plots.table(capped, "soft-cap", formats)

# %% [markdown]
# *Times* is the time over that of the same kernel without a cap; the errors are recorded against float64, in bf16. Scores of random inputs stay far below a cap of 50, where the instruction would do as well, so that these errors do not tell the two apart.
#
# ## What would change the answer
#
# - **Windows that are not multiples of a step.** By {eq}`window-steps` all windows of {glue:text}`same_first` to 128 keys cost the same here.
# - **Values with a mean.** {eq}`window-error` takes values of mean 0. With a mean of 1, outputs keep their size as the window shrinks, and the rounding errors of $P$ grow all the same; an output in 16 bits hides this below its own rounding.
# - **Quality.** What a model loses by a window is outside of this lab {cite:p}`beltagy2020,xiao2024`.

# %% tags=["evidence"]
gain, us = (ours[ours.window > 0].set_index("window")[name] for name in ("gain", "us"))
moved = chapter.least_us(chapter.prefill(8192, 128, HEADS, 4))
read = [chapter.decode(8192, window, HEADS).bytes for window in (None, 1024, 128)]
work = {w: chapter.scores(chapter.prefill(8192, w, HEADS)) for w in range(64, 129)}
few = places.query("kind == 'batch of 8' and x == 128")

# %% tags=["evidence"]
numbers = {
    "same_first": 1 + max(w for w in work if work[w] < 0.99 * work[128]),
    "gain_1024": f"{gain[1024]:.1f}", "gain_128": f"{gain[128]:.0f}",
    "decode_1024": f"{read[0] / read[1]:.0f}", "decode_128": f"{read[0] / read[2]:.0f}",
    "last_factor": f"{us[1024] / us[128]:.1f}", "short_memory": f"{moved:.0f}",
    "gradients_4096": f"{learned.set_index('variant').gain['window 4096']:.2f}",
    "short_share": f"{100 * moved / us[128]:.0f}",
    "cut_grows": f"{cut / whole:.1f}", "window_off": f"{off / whole:.1f}",
    "sink_left": f"{left / whole:.1f}",
    "places_few": f"{100 * few.y.item():.0f}",
}  # fmt: skip
for name, number in numbers.items():
    glue(name, f"{number}", display=False)

# %% tags=["nbval-ignore-output", "evidence"]
sized["window and sinks"].log + sized["slopes"].log + bench.log

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: window-keys
#
# A tile of 128 rows goes over keys in steps of 128. GPT-OSS has 8 query heads per KV head, and a window of 128, so that a token sees 129 keys. How many keys does a tile go over at most?
# Check your answer with `exercises.check("window-keys", keys)`.
# ```
#
# ```{solution-start} window-keys
# :class: dropdown
# ```
#
# The tile has 16 tokens. Its first key is a multiple of 16, so that up to 112 keys stand before it in its step: $128 + 16 + 112 = 256$, two steps.

# %%
work = chapter.prefill(8192, 128, (64, 8, 64))
assert exercises.check("window-keys", 128 * chapter.steps(work, 128, 128).max())

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: window-sink
#
# The sink of a head has a weight as large as those of all its keys together. By which factors do the output, its absolute error and its relative error change, compared with the head without a sink, while no number leaves the normal range of its format?
# Check your answer with `exercises.check("window-sink", (output, absolute, relative))`.
# ```
#
# ```{solution-start} window-sink
# :class: dropdown
# ```
#
# The denominator is twice as large. Output and error are divided by it, and their quotient stays.

# %%
assert exercises.check("window-sink", (0.5, 0.5, 1))

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# {cite:t}`flashattention698` reports the time of training steps; we did not run them. Windows in attention are from {cite:t}`beltagy2020`; {cite:t}`xiao2024` found that models use their first tokens as sinks of weight.
# Numbers of layers and windows are those of the reports of Gemma 3 {cite:p}`gemma2025` and GPT-OSS {cite:p}`gptoss2025`. The peer of the prefills is FlashAttention-4, a successor of {cite:t}`dao2024`; it has windows, soft caps and sinks, and FlashInfer's prefills were not asked for them.
