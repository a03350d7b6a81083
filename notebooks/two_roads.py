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
# # Two roads to one attention
#
# ## Question
#
# The last token of a sequence, computed by FlashAttention in a full pass and again over the KV cache, has equal bits in most samples, and in the others only some heads differ {cite:p}`flashattention1569`.
# **Why do only some heads differ, and is one of the two outputs wrong?**
#
# :::{admonition} Answer
# :class: important
#
# Neither is wrong. A weight is rounded relative to the largest score *so far*, so tiles and splits decide which heads differ. Our equation says which, rightly for {glue:text}`right_there` of {glue:text}`all_there` heads of FlashAttention's package. Equal cuts give equal bits, at {glue:text}`fixed_price` to {glue:text}`aligned_price` times the time.
# How sure: one H200, {glue:text}`package`. Its bits agree in {glue:text}`equal_samples` of {glue:text}`samples` random samples, in {glue:text}`led_samples` if recent keys lead and nothing is split, as most do in the report.
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

from labkernels import Bench, Decode, Prefill, ops, plots
from labkernels.chapters import exercises, live, two_roads
from labkernels.chapters.two_roads import ALIGNED, CHOSEN, KVCACHE, KVCACHE_FIXED, SPLIT, VARLEN
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.measure import real_inputs
from labkernels.numerics import rounding
from labkernels.numerics.arrays import as_float64

# %% tags=["hide-input"]
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import bars, curves
from labkernels.records import recorded, store

HERE = "computed on this machine"
given = two_roads.samples()
rule = two_roads.max_is_first(given, VARLEN)
stored = {path.name: two_roads.predicted(given, path) for path in (VARLEN, KVCACHE, SPLIT)}
predicted = two_roads.differing(stored["kvcache"], stored["varlen"])
full = two_roads.varlen(given)
cached = two_roads.kvcache(given)
found = two_roads.differing(cached.out, full)

# %% mystnb={"figure": {"caption": "Predicted and found: in our kernels the equation names every head that differs, and nearly the number of its channels. Numbers are channels that differ, of 64; = marks equal bits; framed heads have their largest score in the KV tile that is taken first. Computed on this machine.", "name": "road-maps"}, "image": {"alt": "Two grids of 16 samples and 4 heads, side by side, predicted and found. Both show the same pattern of equal heads and of counts between 1 and about 20. All framed heads are equal in both; the shortest sample is equal in all heads.", "width": "100%"}} tags=["hide-input"]
sample, head = np.indices(found.shape)
cells = {"head": head, "kv_len": np.array(given.lengths)[sample], "marked": rule}
cells = pd.DataFrame({name: values.ravel() for name, values in cells.items()})
kinds = {"predicted": predicted, "found": found}
cells = pd.concat([cells.assign(kind=k, different=v.ravel()) for k, v in kinds.items()])
plots.road_maps(cells, origin=HERE)
plt.show()

# %% [markdown]
# ## What each source says
#
# The thread compares `flash_attn_varlen_qkvpacked_func` with `flash_attn_with_kvcache` after new tokens were appended, under bf16 autocast, for 16 samples with 4 heads of 64 channels. Most samples have no difference, and in some the difference is specific to heads.
# A maintainer answers, "That's expected. Floating point math is not exact.", and shows a "similar magnitude of difference" on the author's tensor: `(ref_result_last + 0.3 - 0.3 - ref_result_last).abs()` has the mean 0.0003 and the maximum 0.1250.
# The author accepted that. GPU, versions and the author's own differences are not in the part that is public to us.
#
# An article that retells the thread, 《Flash Attention项目中浮点运算精度差异的技术分析》 (in Chinese, on a developers' site, 2025-05-13), adds lengths up to 8192, differences near 1e-5 on average and of 0.125 at most, and an explanation: bf16's 7 bits pile up error over the length, in another order of operations.
# We test the explanation below. The lengths of our samples are our own.
#
# ## Prediction
#
# A kernel takes its keys one KV tile at a time, and computes each weight relative to the largest score so far {cite:p}`milakov2018`.
# For the second product the weight is rounded to 16 bits:
#
# $$
# o = \frac{1}{l} \sum_j \mathrm{r}_{16}\!\left(2^{s_j - m_j}\right) 2^{m_j - M} \, v_j .
# $$ (roads-output)
#
# | symbol | meaning |
# |---|---|
# | $s_j$ | score of key $j$, in log2 units |
# | $m_j$ | running maximum when key $j$ is taken |
# | $M$ | the largest of all scores |
# | $l$ | sum of the weights $2^{s_j - M}$ |
# | $\mathrm{r}_{16}$ | rounding to the 16-bit format |
#
# Without the rounding, $m_j$ would cancel. With it, another $m_j$ gives the weight another rounding error, unless $m_j$ moves by a whole number, which only scales the weight by a power of two.
# So two paths round every weight of a row alike if $m_j$ is the same for every key. Then only the order of sums in fp32 can differ, which rarely moves an output across a rounding boundary.
#
# FlashAttention takes the keys from the last KV tile to the first.
# For 64 channels its full pass has KV tiles of 128 keys; its split kernel, which `with_kvcache` must take when there are new keys, has KV tiles of 256 {cite:p}`flashattention2680`.
# If a row's largest score lies in the KV tile that is taken first, all $m_j$ equal $M$ at once on either path, and the smaller KV tile decides.
# That is the rule of thumb; {numref}`road-maps` frames the heads that it names.
#
# How many splits would FlashAttention take?
# Its heuristic does not split the keys if the thread blocks fill four fifths of twice the SMs, or if the cache has room for one KV tile alone. The report's 16 samples with 4 heads make 64 thread blocks, and an A100, an H100 and an RTX 4090 have more than 100 SMs each.
# There the keys would have been split if the cache had room for more than 256 of them. Our path *kvcache* has no splits, as with `num_splits=1`, and shows what the tiles do alone.
#
# `prefill_mma` can have both tiles. A *compute path* is a tile, an order of keys and a number of splits:

# %%
for path in (VARLEN, KVCACHE, SPLIT):
    print(f"{path.name:18} KV tiles of {path.keys} keys, last to first, {path.splits} split(s)")
print(f"rule of thumb: {rule.sum()} of {rule.size} heads must be equal")
print(f"equation: {(predicted == 0).sum()} heads equal, {predicted.sum()} channels differ")

# %% [markdown]
# Up to 128 keys either path has one KV tile. The token at position 128, counted from 0, is the first that sees a second KV tile of 128 keys, and it still sees a single KV tile of 256: **the paths can differ from position 128 on**.
#
# ### What the tiles take
#
# Why does a library change the tile between its kernels, and with it the bits? A tile is chosen by the registers and the shared memory that it takes.
# These are the formulas of `prefill_mma` for the report's heads:

# %% tags=["hide-output"]
decode = Decode.uniform(16, 8192, q_heads=4, kv_heads=4, head_dim=64)
prefill = Prefill((8192,) * 16, (8192,) * 16, 4, 4, 64, causal=True)
sized = Bench(decode, prefill, kernels=live.EVERY, gpu="h200")
sized.equations("prefill_mma")

# %% mystnb={"figure": {"caption": "The two roads need different tiles: a prefill kernel spends its registers on scores and sums of many rows, a decode kernel has one row for each head here. 64 channels, bf16; predicted, and compiled for an H200.", "name": "roads-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
sized.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "An SM of an H200 holds more decode blocks than one of an RTX 4090. Computed from the ledgers.", "name": "roads-occupancy"}, "image": {"alt": "A panel for each of two GPUs with a row for each kernel: the blocks that fit an SM, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
sized.plot_occupancy("h200", "rtx4090")
plt.show()

# %% [markdown]
# ## Code
#
# This is where the running maximum moves: a KV tile's largest score comes first, and what was summed before is rescaled to it.
#
# ```{literalinclude} /labkernels/kernels/prefill/mma/kernel.cuh
# :language: cpp
# :start-after: "[lab: update]"
# :end-before: "[/lab: update]"
# ```
#
# ## Measurement
#
# <!-- guess: equal_heads -->
#
# ### Which heads
#
# The table counts what {numref}`road-maps` shows. A row's bits do not depend on the rows beside it, so that of the full pass only the last tile runs; for the shortest samples the whole pass runs, to check this.

# %% tags=["hide-input"]
short = two_roads.Samples(given.lengths[-6:], given.qkv[-sum(given.lengths[-6:]) :])
assert torch.equal(two_roads.varlen(short, whole=True), full[-6:])
right = (predicted == 0) == (found == 0)
table = pd.DataFrame({"head": ["equal", "different"]})
table["found"] = [(found == 0).sum(), (found > 0).sum()]
table["rule of thumb"] = [rule.sum(), (~rule).sum()]
table["… found so"] = [(rule & (found == 0)).sum(), (~rule & (found > 0)).sum()]
table["equation"] = [(predicted == 0).sum(), (predicted > 0).sum()]
table["… found so "] = [(right & (found == 0)).sum(), (right & (found > 0)).sum()]
plots.table(table, "confusion")

# %% [markdown]
# Where the rule of thumb promises equal bits, it is right. Most of the other equal heads have each new maximum in the half of a KV tile of 256 that is taken first, so that $m_j$ agrees; in one, of 129 keys, the roundings differ and move no output.
# A few channels are counted wrongly, where the order of fp32 sums moved an output across a rounding boundary.
# So in our kernels it is not chance that decides. FlashAttention's own package is asked the same further down.
#
# ### From which position

# %% tags=["hide-input"]
one = two_roads.samples((640,))
tokens, (q, k, v) = one.ends, one.qkv.unbind(1)
ways = [
    ops.prefill(q, RaggedKV(k, v, tokens), tokens, causal=True, **path.options).out
    for path in (VARLEN, KVCACHE)
]
apart = two_roads.differing(*ways)
parting = int(np.argmax((apart > 0).any(axis=1)))
before = int((apart[:128] > 0).sum())
print(f"first position that differs: {parting}; heads that differ before 128: {before}")

# %% mystnb={"figure": {"caption": "The paths part at position 128, where the path with the smaller KV tiles begins its second one, and nowhere before it. Dashed lines are multiples of 128.", "name": "position-sweep"}, "image": {"alt": "Dots over positions 0 to 639 for four heads. Up to 127 all lie at zero; from 128 on many lie between 1 and nearly 40 channels, and some at zero all the way.", "width": "100%"}} tags=["hide-input"]
position, head = np.indices(apart.shape)
sweep = {"position": position.ravel(), "head": head.ravel(), "different": apart.ravel()}
boundaries = range(128, 640, 128)
plots.position_sweep(pd.DataFrame(sweep), boundaries=boundaries, origin="computed on this machine")
plt.show()

# %% [markdown]
# ### On a trained model
#
# Random scores have their maximum anywhere. A trained model's heads look at what is near, which lies in the KV tile that is taken first, or at the first key of all, which is taken last. These are heads of SmolLM2 ({doc}`does_it_matter`), their last 64 rows, and rows 128 to 255 of random inputs, in percent:

# %% tags=["hide-input"]
shares = {"random": two_roads.equal_rows(apart[:256], q[:256], k[:256])}
for name, n in [*((name, 256) for name in real_inputs.HEADS), ("long", 8192)]:
    real = real_inputs.prefill_of((n,), (name,))
    roads = [
        ops.prefill(*real.arguments, causal=True, **path.options).out for path in (VARLEN, KVCACHE)
    ]
    of_k, kept = real.kv.k.expand(-1, real_inputs.GROUP, -1), f"{name}, {n:,} keys"
    shares[kept] = two_roads.equal_rows(two_roads.differing(*roads), real.q, of_k)
table = pd.DataFrame(shares).rename_axis("rows").reset_index()
plots.table(table, "real-roads", dict.fromkeys(shares, "{:.1f}"))

# %% [markdown]
# The rule holds: nearly all rows that it calls equal are. So a difference that is "specific to heads" is what a trained model should show: *peaky* and *own key*, which look near, have hardly any, and *large values* has one in nearly every row. Where the first key has nearly all weight, or keys are many, more rows are equal than the rule says, since what was rounded apart is lost in the output's own rounding.
#
# ### Splits
#
# A split has a running maximum of its own, and the maxima meet only when the splits are merged.
# Four splits are what FlashAttention's heuristic takes for these samples on an H200. The same equation, told where they lie, against the kernel:

# %%
split = two_roads.kvcache(given, SPLIT)
found_split = two_roads.differing(split.out, full)
predicted_split = two_roads.differing(stored[SPLIT.name], stored["varlen"])
same = (predicted_split == 0) == (found_split == 0)
print(f"{split.plan.splits} splits of {split.plan.keys_per_split} keys")
print(f"equal heads: predicted {(predicted_split == 0).sum()}, found {(found_split == 0).sum()}")
print(f"right for {same.sum()} of {same.size} heads")

# %% [markdown]
# A plan divides the keys by the thread blocks that a GPU holds ({numref}`roads-occupancy`), so that splits, and bits with them, differ by GPU.
#
# ### Every kernel of both roads
#
# Do other kernels part as well, and do they without tensor cores?
# Six short samples run here by every kernel, in CUDA and in Triton: over the cache by decode, and as the last row of a full pass by prefill.

# %% tags=["nbval-ignore-output"]
bench = Bench(
    Decode(given.lengths[-3:], 4, 4, 64, dtype="fp16"),
    Prefill((1,) * 3, given.lengths[-3:], 4, 4, 64, causal=True, dtype="fp16"),
    kernels=live.EVERY,
)
ran = bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")

# %% mystnb={"figure": {"caption": "Which bits differ between a decode and a prefill of one language: without tensor cores hardly any; with them every head parts in CUDA, and many in Triton. Channels that differ, of 64. fp16, since Triton's interpreter does not round P to bf16. Computed on this machine.", "name": "roads-every-kernel"}, "image": {"alt": "Four grids of six samples and four heads: CUDA and Triton, with tensor cores off and on, with the number of channels that differ in each cell.", "width": "100%"}} tags=["hide-input"]
half = replace(short, qkv=short.qkv.half())
outs = two_roads.on_every_kernel(half)
cells = []
for way in outs["decode"]:
    apart = two_roads.differing(outs["decode"][way], outs["prefill"][way])
    sample, head = np.indices(apart.shape)
    columns = {"head": head, "kv_len": np.array(short.lengths)[sample], "different": apart}
    part = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    cells.append(part.assign(kind=way, marked=False))
every = pd.concat(cells)
plots.road_maps(every, origin=HERE)
plt.show()

# %% tags=["hide-input"]
counted = every.groupby("kind", sort=False).different.agg(["sum", lambda d: (d == 0).sum()])
counted.columns = ["channels that differ, of 1536", "equal heads, of 24"]
plots.table(counted.rename_axis("kernels").reset_index(), "every-kernel")

# %% mystnb={"figure": {"caption": "Neither road is nearer to the truth: dots of either operation stand at the same heights, over every head and sample. Relative L2 error against float64 of each sample (here: request) and head, CUDA and Triton, fp16. Computed on this machine.", "name": "roads-places"}, "image": {"alt": "Four panels, decode above and prefill below, over query heads on the left and requests on the right. Dots with tensor cores on lie a little above those with tensor cores off, at the same height in both operations.", "width": "100%"}} tags=["hide-input"]
exact = two_roads.truth(half)
cells = [live.cells(operation, ways, exact, (1,) * len(exact)) for operation, ways in outs.items()]
cells = pd.concat(cells)
cells["kind"] = "tensor cores " + cells.way.str.split(", ").str[1]
cells = cells.sort_values("kind", ascending=False, kind="stable")
by_place(cells, label="relative L2 error", origin=HERE, log=False)
bench.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# Without tensor cores no weight is rounded to 16 bits, and only the order of fp32 sums is left.
# With them `decode_mma` parts even within one KV tile, because its warps divide the keys and each has a running maximum of its own.
#
# ### How much, and does it pile up?

# %% mystnb={"figure": {"caption": "From 300 keys on the difference of the two paths falls with length, because the outputs do. Neither path is nearer to the truth, and the rms of their difference is smaller than the rmse of either. The sample of 100 keys has no difference to draw.", "name": "gap-by-length"}, "image": {"alt": "Four falling lines over 100 to 8192 keys, both axes logarithmic. The rmse of the two paths against float64 coincide and fall from about 7e-4 to 7e-5. The rms of their difference runs below them. Their largest difference falls in steps from 1e-3 to 2.5e-4.", "width": "100%"}} tags=["hide-input"]
truth, outs = two_roads.truth(given), {"varlen": full, "kvcache": cached.out}
outs = {name: as_float64(out) for name, out in outs.items()}
apart_by = outs["kvcache"] - outs["varlen"]
pairs = {"largest |kvcache − varlen|": np.abs(apart_by).max((1, 2))}
pairs |= {f"rmse of {name}": np.sqrt(((x - truth) ** 2).mean((1, 2))) for name, x in outs.items()}
pairs["rms of kvcache − varlen"] = np.sqrt((apart_by**2).mean((1, 2)))
lines = [pd.DataFrame({"kind": n, "x": given.lengths, "y": v}) for n, v in pairs.items()]
labels, looks = ("keys of the sample", "output, absolute"), {"log": "xy", "mark": "o"}
lines = pd.concat(lines).query("y > 0")
curves(lines, labels=labels, origin="computed on this machine", **looks)
plt.show()

# %% [markdown]
# Weights are summed in fp32, and the errors of their roundings are independent. Their number grows with the length, but each key's share of the output shrinks faster, so that bf16's errors do not pile up.
#
# ### What 0.125 is
#
# Add 20 to every value, and the same two paths give outputs near 20:

# %% tags=["hide-input"]
qkv = given.qkv.clone()
qkv[:, 2] += 20
large = replace(given, qkv=qkv)
left, right_out = as_float64(two_roads.kvcache(large).out), as_float64(two_roads.varlen(large))
shifted = np.abs(left - right_out)
print(f"outputs from {right_out.min():.3g} to {right_out.max():.3g}")
print(f"largest difference {shifted.max()}, one ulp there {rounding.quantum(20.0, 'bf16')}")
assert shifted.max() == rounding.quantum(16.0, "bf16") == rounding.quantum(31.9, "bf16")

# %% [markdown]
# 0.125 is the distance between neighbouring numbers of bf16 from 16 to 32: one last bit, which says how large an output is.
# In the thread it is the control's number; only the article has it for the two paths. The control asks what bf16 does to $x + 0.3$, and not what attention does:

# %% tags=["hide-input"]
x = full.clone()
control = {"small outputs": ((x + 0.3) - 0.3 - x).abs().float(), "outputs near 20": None}
y = torch.from_numpy(right_out).bfloat16()
control["outputs near 20"] = ((y + 0.3) - 0.3 - y).abs().float()
rows = []
for (name, moved), between in zip(control.items(), (np.abs(apart_by), shifted), strict=True):
    rows.append((name, moved.mean().item(), moved.max().item(), between.mean(), between.max()))
columns = ["", "control, mean", "control, max", "two paths, mean", "two paths, max"]
control = pd.DataFrame(rows, columns=columns)
plots.table(control, "control", dict.fromkeys(columns[1:], "{:.3g}"))

# %% [markdown]
# For small outputs the control is {glue:text}`control_over` times the difference of the paths, because $x + 0.3$ is stored with the ulp of 0.3. Beside the control, an error that many times as large would still look normal.
# Near 20 the control finds nothing, while the paths do differ: bf16 stores $x + 0.3$ as $x + 0.25$ and comes back to $x$.
# So the maintainer's answer is right that the difference is expected, and the comparison with float64 is what shows it.
#
# ### Equal bits
#
# With one tile, one order of keys and no splits all $m_j$ agree, and so does the order of every sum. With splits the same holds if their *size* is fixed, in keys:

# %%
aligned = two_roads.kvcache(given, ALIGNED)
fixed = two_roads.kvcache(given, KVCACHE_FIXED)
assert torch.equal(aligned.out, full)
assert torch.equal(fixed.out, two_roads.varlen(given, two_roads.VARLEN_FIXED))
for result in (aligned, fixed):
    print(f"tile {result.plan.tile}, {result.plan.splits} split(s): every bit equal")

# %% [markdown]
# A kernel is {term}`batch-invariant` if a request has the same bits alone and among others. A plan that chooses the number of splits looks at the whole batch:

# %% tags=["hide-input"]
rows, batches = [], {KVCACHE: cached, ALIGNED: aligned, KVCACHE_FIXED: fixed}
for path, among in (batches | {CHOSEN: two_roads.kvcache(given, CHOSEN)}).items():
    alone = two_roads.kvcache(given.one(0), path)
    differ = int(two_roads.differing(among.out[:1], alone.out).sum())
    plan = among.plan
    rows.append((path.name, plan.splits, alone.plan.splits, plan.batch_invariant, differ))
columns = ["path", "splits, batch of 16", "splits, alone", "plan says invariant", "channels differ"]
invariance = pd.DataFrame(rows, columns=columns)
plots.table(invariance, "invariance")

# %% [markdown]
# ### On the H200
#
# Are the bits that an H200 recorded those of this machine?

# %% tags=["hide-input"]
everything = store.read("two_roads")
started = store.runs(everything)[0]
run = pd.DataFrame(store.select(everything, {"started_utc": started}))
heads = pd.DataFrame(store.read("two_roads_heads"))
assert set(heads.started_utc) == {started}
for path, mine in (("kvcache", found), (SPLIT.name, found_split)):
    equal = (two_roads.counts(heads, path) == mine).all()
    print(f"{path}: recorded and live counts equal: {equal}")

# %% [markdown]
# ### FlashAttention's own package
#
# Does the equation also hold for kernels that we did not write? `flash_attn_varlen_qkvpacked_func` and `flash_attn_with_kvcache` of the package ran on the same 16 samples, and on samples whose scores are raised by {glue:text}`lead` in log2 units for the last key, and half as much every 16 keys back.
# The cache has room for 8,192 keys. Its source says that its heuristic then takes four splits on an H200, and KV tiles of 256 keys with or without splits, as our paths:

# %% tags=["hide-input"]
package = next(x for x in heads.road if x.startswith("flash-attn")).partition(" kvcache")[0]
led = two_roads.with_recent_lead(given, two_roads.LEAD)
of_led = {path.name: two_roads.predicted(led, path) for path in (VARLEN, KVCACHE, SPLIT)}
rows, LED = [], f", lead {two_roads.LEAD}"
for inputs, of, words in (("random", stored, ""), ("recent lead", of_led, LED)):
    for knob, path in (("", SPLIT), (", num_splits=1", KVCACHE)):
        theirs = two_roads.counts(heads, f"{package} kvcache{knob}{words}")
        assert words or (theirs == two_roads.counts(heads, path.name)).all()
        equal = theirs == 0
        said = two_roads.differing(of[path.name], of[VARLEN.name]) == 0
        counted = (equal.sum(), said.sum(), (equal == said).sum(), equal.all(axis=1).sum())
        rows.append((inputs, f"kvcache{knob}", path.splits, *counted))
columns = ["inputs", "call", "splits", "equal heads, of 64", "predicted", "predicted rightly"]
in_package = pd.DataFrame(rows, columns=[*columns, "equal samples, of 16"])
plots.table(in_package, "in-package")

# %% [markdown]
# On the random samples the package's kernels, and ours with the same KV tiles, differ from their full passes in the same heads and in as many channels, which the cell asserts. What decides is the cut, not who wrote the kernel.
# In this version `num_splits=1` removes the splits, and still leaves KV tiles of another size than the full pass has; a later version aligns the two {cite:p}`flashattention2680`.
#
# ### Other libraries
#
# torch's flash backend descends from FlashAttention, but runs one kernel on both paths until it splits the keys.
# FlashInfer's decode divides the keys among its warps, and each warp has a running maximum of its own:

# %% mystnb={"figure": {"caption": "torch's flash backend parts in longer samples only, FlashInfer's decode from its own prefill nearly everywhere. Channels that differ, of 64; framed heads as before.", "name": "peer-maps"}, "image": {"alt": "Two grids of 16 samples and 4 heads. torch: all heads of the samples up to 1024 keys are equal, of the longer ones nearly none. FlashInfer: almost every head differs in many channels, framed ones too.", "width": "100%"}} tags=["hide-input"]
names = {"torch flash, last": "torch flash", "flashinfer decode, fa2": "FlashInfer fa2"}
shown = heads[heads.road.isin(names)].assign(kind=lambda rows: rows.road.map(names))
shown["marked"] = rule[shown["sample"], shown["head"]]
plots.road_maps(shown, origin=recorded.origin(run.to_dict("records")))
plt.show()

# %% tags=["hide-input"]
facts = run.set_index(["kernel", "metric", "statistic"]).value
names = [name for name in dict.fromkeys(heads.road) if package not in name]
rows = pd.DataFrame({"path": names})
rows["against"] = [heads[heads.road == name].against.iloc[0] for name in names]
rows["equal heads, of 64"] = [facts[name, "equal_heads", "total"] for name in names]
rows["channels that differ"] = [facts[name, "different_channels", "total"] for name in names]
rows["max difference"] = [facts[name, "difference", "max_abs"] for name in names]
alone = facts.xs(("different_alone", "total"), level=("metric", "statistic"))
rows["differ alone, of 256"] = [f"{alone[n]:.0f}" if n in alone else "" for n in names]
whole = {c: "{:.0f}" for c in ("equal heads, of 64", "channels that differ")}
plots.table(rows, "recorded", whole | {"max difference": "{:.2g}"})

# %% [markdown]
# The last column compares the longest sample alone with the same sample in the batch; with `fixed_split_size` or `disable_split_kv` FlashInfer keeps its bits.
#
# ### The price
#
# Equal bits cost time on the H200:

# %% mystnb={"figure": {"caption": "The price of equal bits: a step of one token for all 16 samples takes longest with one split and the tile of the full pass. The times include the append of the new keys; medians of one recording.", "name": "roads-price"}, "image": {"alt": "Five horizontal bars of microseconds: splits chosen is the shortest, then 4 splits, splits of 1024, one split of 256-key blocks, and one split with equal tiles.", "width": "100%"}} tags=["hide-input"]
order = [CHOSEN, SPLIT, KVCACHE_FIXED, KVCACHE, ALIGNED]
time_us = {path.name: 1e6 * facts[path.name, "time_graph", "median"] for path in order}
against = {ALIGNED.name: "bits of varlen", KVCACHE_FIXED.name: "bits of split varlen"}
price = pd.DataFrame({"name": list(time_us), "value": list(time_us.values())})
price["times"] = price.value / price.value.min()
words = [f"{t:.1f} ×  {against.get(n, '')}" for n, t in zip(price.name, price.times, strict=True)]
bars(price.assign(words=words), label="step, µs", origin=recorded.origin(run.to_dict("records")))
sized.log.drew("timing", "prefill")
plt.show()

# %% tags=["evidence"]
times_of = price.set_index("name").times
numbers = {
    "samples": len(given.lengths),
    "right_there": in_package["predicted rightly"].sum(), "all_there": 64 * len(in_package),
    "equal_samples": in_package.iloc[1, -1], "led_samples": in_package.iloc[3, -1],
    "package": package, "lead": two_roads.LEAD,
    "control_over": f"{control.iloc[0, 1] / control.iloc[0, 3]:.0f}",
    "aligned_price": f"{times_of[ALIGNED.name]:.1f}", "fixed_price": f"{times_of[KVCACHE_FIXED.name]:.1f}",
}  # fmt: skip
for name, number in numbers.items():
    glue(name, f"{number}", display=False)

# %% tags=["nbval-ignore-output", "evidence"]
sized.log + bench.log

# %% [markdown]
# ## What would change the answer
#
# - **The author's tensors.** On our random inputs no sample of more than 128 keys is free of differences, so that the report's must have been unlike ours. Scores that lead with the recent keys put the maximum into the KV tile that is taken first, and leave most samples equal where nothing is split; short samples would, too. That the author's scores had such a lead is a guess that fits, and no finding.
# - **The author's GPU and version**, which the thread does not name. The number of splits depends on the number of SMs and on the allocated length of the cache, and since June 2026 `num_splits=1` aligns the tiles of both kernels {cite:p}`flashattention2680`.
#
# What each library offers for equal bits:
#
# | | full pass and cache | alone and among others |
# |---|---|---|
# | FlashAttention 2 | `num_splits=1` aligns the tiles, since 2026-06 {cite:p}`flashattention2680` | `num_splits=1` |
# | FlashInfer | none found for its decode kernels | `fixed_split_size`, `disable_split_kv` of `plan` {cite:p}`ye2025` |
# | torch SDPA | none found | none found |
# | this lab | `tile=`, with `splits=1` or `keys_per_split=` | `splits=1` or `keys_per_split=`, and a `tile=` |
#
# ## Exercises
#
# ```{exercise}
# :label: roads-forward
#
# Let both paths take the keys in ascending order, from the first to the last, as our kernels do by default.
# Which KV tile must then hold the maximum, and how many heads does {eq}`roads-output` call equal?
# Check your answer with `exercises.check("roads-forward", (last_key_of_the_tile, heads))`. Keys are counted from 0.
# ```
#
# ```{solution-start} roads-forward
# :class: dropdown
# ```
#
# The KV tile of the first 128 keys must hold the maximum.
# A descending order begins with what is left over of the last KV tile, 64 keys on average. The ascending order begins with a whole KV tile, so that more heads are equal, and other heads.

# %%
equal = np.zeros_like(rule)
for i in range(len(given.lengths)):
    s, values_of = two_roads.scores_log2(given, i), two_roads.values(given, i)
    outs_of = [
        rounding.round_to(two_roads.attend(s, values_of, p_format="bf16", keys=keys), "bf16")
        for keys in (128, 256)
    ]
    equal[i] = (outs_of[0] == outs_of[1]).all(-1)
    assert equal[i][s.argmax(-1) < 128].all()
assert equal.sum() > (predicted == 0).sum()
assert (equal != (predicted == 0)).any()
assert exercises.check("roads-forward", (127, equal.sum()))

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: roads-chance
#
# Scores of random inputs are independent.
# How many of the 64 heads do you expect to have their maximum in the KV tile that *varlen* takes first?
# Check your answer with `exercises.check("roads-chance", heads)`.
# ```
#
# ```{solution-start} roads-chance
# :class: dropdown
# ```
#
# Each key is the largest with probability $1 / L$, and the KV tile holds the last $((L - 1) \bmod 128) + 1$ of them.

# %%
shares = np.array([((length - 1) % 128 + 1) / length for length in given.lengths])
expected = two_roads.HEADS * shares.sum()
spread = np.sqrt(two_roads.HEADS * (shares * (1 - shares)).sum())
assert abs(rule.sum() - expected) < 3 * spread
assert exercises.check("roads-chance", expected)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: roads-power
#
# Equation {eq}`roads-output` says that $m_j$ may move by a whole number.
# Raise the running maxima of one sample to whole numbers, and show that the two paths then round alike.
# Check your answer with `exercises.check("roads-power", difference)`: the largest difference of the two paths' outputs.
# ```
#
# ```{solution-start} roads-power
# :class: dropdown
# ```
#
# With whole scores each weight would be a power of two, which bf16 holds exactly. Whole *maxima* are enough: the two paths then differ by powers of two, which move no rounding.

# %%
s = two_roads.scores_log2(given, 0)
maxima = np.unique(two_roads.running_max(s, keys=128, order="descending"))
for m in maxima:
    s[s == m] = np.ceil(m)
how = {"p_format": "bf16", "order": "descending"}
pair = [two_roads.attend(s, two_roads.values(given, 0), keys=keys, **how) for keys in (128, 256)]
assert exercises.check("roads-power", np.abs(pair[0] - pair[1]).max())

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case and its control are from {cite:t}`flashattention1569`, as far as the thread is public to us; the article is named above without its author.
# FlashAttention's tiles, the case that forces its split kernel, and its heuristic were read in its sources {cite:p}`dao2023`; its package was built from the tag of {glue:text}`package`, forward kernels for bf16 and 64 and 128 channels alone, and ran in the recorded run. {cite:t}`flashattention2680` says that `num_splits=1` aligns the tiles since June 2026.
# FlashInfer's options were run in the recorded run {cite:p}`ye2025`.
# The online softmax is from {cite:t}`milakov2018`, and split-KV is from {cite:t}`dao2023`.
