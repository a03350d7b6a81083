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
# # Same bits, whatever the batch
#
# ## Question
#
# **Why did my request's bits change when only the batch changed?**
# {cite:t}`flashattention1897` asks whether FlashAttention is batch-invariant; {cite:t}`flashmla212` reports a decode kernel in which a row's output depends on the other rows of its batch.
#
# :::{admonition} Answer
# :class: important
#
# A planner saw the batch and cut your keys into other splits.
# {glue:text}`n_change` of {glue:text}`n_ways` ways to decode changed bits; the cuts name the heads rightly for {glue:text}`right` of {glue:text}`judged`.
# Splits by your own length keep them: `batch_invariant=True` takes {glue:text}`grid_mean` times as long (small batches: to {glue:text}`small_worst`, MLA: {glue:text}`mla_mean`).
# How sure: one H200 with {glue:text}`versions`; vLLM and SGLang were only read.
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
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from myst_nb import glue

from labkernels import Bench, Decode, Prefill, plots
from labkernels.chapters import exercises, live, same_bits, two_roads
from labkernels.hardware import gpu
from labkernels.kernels.decode.schedule import invariant_keys_per_split

# %% tags=["hide-input"]
from labkernels.measure import real_inputs
from labkernels.planners import Batch, changed, named
from labkernels.planners.flash_attention import flash_attention_2
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import bars, curves
from labkernels.probing import targets
from labkernels.probing.certificate import Sizes, certify
from labkernels.records import recorded, store
from labkernels.variant import CAUSAL, FULL

HERE = "computed on this machine"
bits = pd.DataFrame(store.read("batch_bits"))
decodes = bits[bits.operation == "decode"]

# %% mystnb={"figure": {"caption": "Whether a request keeps its bits is a property of the plan. A shade is the share of 32 heads that differ from the request alone: dark is every head, a number counts them, = is none. An empty light cell did not run; ! marks a call that gave other bits when it ran again. bf16, 32 query and 8 KV heads of 128.", "name": "batch-map"}, "image": {"alt": "Three grids for requests of 512, 2048 and 8192 keys; libraries down, batches of 2 to 256 across. FlashInfer's and FlashAttention-2's free plans, ours and torch's flash backend turn from equal to dark as the batch grows, the earlier the longer the request. Ways with fixed or no splits, FlashAttention-4 and torch's efficient backend stay equal everywhere.", "width": "100%"}} tags=["hide-input"]
counted = decodes.groupby("way").heads_differ.sum().sort_values(ascending=False, kind="stable")
ordered = pd.concat([decodes[decodes.way == way] for way in counted.index])
names = {"labkernels decode_fma": "ours, decode_fma", "FlashInfer CUDA cores": "FlashInfer cores"}
names |= {
    f"FlashInfer fa2, {how}": f"fa2, {how}" for how in ("disable_split_kv", "fixed_split_size")
}
shown = ordered.assign(way=ordered.way.replace(names).str.replace("labkernels", "ours"))
plots.batch_map(shown, origin=recorded.origins(store.read("batch_bits")))
plt.show()

# %% [markdown]
# Read a row from left to right: the request is always the same, and only its neighbours become more.
# Where the shade begins, the plan begins to cut the request otherwise. Of {glue:text}`prefill_ways` ways to prefill, at two lengths, only {glue:text}`prefill_change` changed bits, because a prefill has blocks enough without splits.
# Splits of a fixed *size* keep the bits, and so does one split: `fixed_split_size` or `disable_split_kv` in FlashInfer, `num_splits=1` in FlashAttention. So do splits that follow from the request's own length: `batch_invariant=True` here. What matters is not how many splits there are, but what their number depends on.
# Over a grid of decodes, `batch_invariant=True` takes at worst {glue:text}`grid_worst` times the free plan's time; a single split takes {glue:text}`unsplit` times as long for one request of 131,072 keys.
# In {glue:text}`unstable` of cuDNN's batches, marked !, the *same* call gave other bits the second time, which is another matter.
#
# ## Prediction
#
# A GPU holds a certain number of thread blocks at once. A decode has one thread block for each request and KV head, so that one request alone fills a few SMs; a planner then cuts its keys into splits, and a merge joins them {cite:p}`dao2023`.
# The number of splits, and with it the size of each, follows from all requests together.
#
# Within a split, each weight is taken relative to the largest score so far and rounded to 16 bits for the second product. With $s_j$ in log2 units:
#
# $$
# o = \frac{1}{l} \sum_j \mathrm{r}_{16}\!\left(2^{s_j - m_j}\right) 2^{m_j - M} \, v_j
# $$ (bits-output)
#
# | symbol | meaning |
# |---|---|
# | $m_j$ | largest score, when key $j$ is taken, of its split and, where warps divide the keys, of its warp |
# | $M$, $l$ | largest of all scores; sum of the weights $2^{s_j - M}$ |
# | $\mathrm{r}_{16}$ | rounding to the 16-bit format |
#
# {doc}`two_roads` derives this for two kernels. Here it is one kernel in two batches: another split begins with another $m_j$, and unless $m_j$ changes by a whole number, other weights are rounded up.
# So the prediction needs three things: how each batch is cut, the scores, and the equation. Cuts are pure functions of shapes and GPU, written down from the libraries' sources:

# %%
one = Batch((2048,), 32, 8, 128, page_size=16)
sizes = (1, 2, 8, 64)
rows = []
for name in ("FlashInfer fa2", "FlashAttention-2 kvcache", "FlashAttention-3", "torch flash"):
    found = named.cuts(name, one, gpu("h200"), sizes)
    rows.append([name, *(cut.label() + (" *" if other else "") for cut, other in found)])
plots.table(pd.DataFrame(rows, columns=["library", *map(str, sizes)]), "cuts-by-batch")

# %% [markdown]
# A cell has the rows and keys of a tile, then the splits, for batches of 1 to 64 requests of 2,048 keys on an H200; a star marks a cut unlike that of a request alone.
# A profiler saw {glue:text}`n_launches` launches of FlashInfer, FlashAttention-2 and torch in the batches of {numref}`batch-map` and in prefills: {glue:text}`n_planned` have the planner's tile, in the kernel's name, and its number of splits, in the grid.
#
# ### Eight requests, alone and among others
#
# Eight requests of 200 to 2,048 keys, with 4 heads of 64 channels, run twice: each alone, and all together with {glue:text}`neighbours` short neighbours.
# The plans exist before anything runs, and {eq}`bits-output` says what follows for each request and head:

# %%
given = same_bits.requests()
CASES = {"decode": "decode_mma", "prefill": "prefill_mma"}
apart, joined, rule = {}, {}, {}
for operation, kernel in CASES.items():
    apart[operation] = same_bits.alone(operation, given, kernel=kernel)
    joined[operation] = same_bits.together(operation, given, kernel=kernel)
    rule[operation] = same_bits.predicted(operation, given, apart[operation], joined[operation])
    plans = [f"{p.splits} x {p.keys_per_split}" for p in apart[operation].plans]
    print(f"{operation}, splits x keys alone: {', '.join(plans)}")
    print(f"  together: splits of {joined[operation].plans[0].keys_per_split}")
    print(f"  predicted: {(rule[operation] > 0).sum()} of {rule[operation].size} heads change")

# %% [markdown]
# The rule sees the plans and exact scores, and never an output. A prefill here is a chunk of 4 tokens at the end of each request.
#
# ### What a split costs, and what makes a planner want it
#
# A planner splits until the GPU has as many blocks as it holds. Both formulas say how many an SM holds; these are of `decode_mma` at the 64 channels of the eight requests, and {doc}`tensor_cores_on_and_off` has those of `decode_mma_n8`, which the recorded decodes ran:

# %%
served = Decode.uniform(1, 131072, q_heads=32, kv_heads=8, head_dim=128, page_size=16)
chunked = Prefill((64,), (32768,), 32, 8, 128, causal=True)
KERNELS = ["decode_fma", "decode_mma_n8", "prefill_fma", "prefill_mma", "triton_decode"]
sized = Bench(served, chunked, kernels=[*KERNELS, "triton_prefill"], gpu="h200")
eight = Bench(
    Decode.uniform(8, 2048, q_heads=4, kv_heads=4, head_dim=64), kernels=["decode_mma"], gpu="h200"
)
eight.equations("decode_mma")

# %% mystnb={"figure": {"caption": "A kernel with splits keeps one maximum, one sum and a row of outputs per head, whatever the number of splits: splits take no registers and no shared memory. 128 channels, bf16; predicted, and compiled for an H200.", "name": "bits-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas, with a diamond for the compiler's number.", "width": "100%"}} tags=["hide-input"]
sized.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "An SM of an H200 holds more blocks of decode_mma_n8 than one of an A100. A planner splits by the blocks that a GPU holds, so bits depend on the GPU as well.", "name": "bits-occupancy"}, "image": {"alt": "A panel for each of two GPUs with a row for each kernel: the blocks that fit an SM, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
sized.plot_occupancy("h200", "a100")
plt.show()

# %% [markdown]
# What a split costs is state in memory, which the merge reads: for each split, request and query head one maximum, one sum and $D$ channels in fp32,
#
# $$
# \mathrm{bytes} = 4 \, S \, B \, H_q \, (D + 2) .
# $$ (split-state)

# %%
splits = 131072 // invariant_keys_per_split(131072)
state = 4 * splits * served.batch * served.q_heads * (served.head_dim + 2)
print(f"{splits} splits: {state / 2**20:.1f} MiB, {100 * state / served.kv_bytes:.2f} % of K and V")

# %% [markdown]
# In a long request this state costs nearly nothing. Time is lost where splits are so short that merges take long, or so long that SMs stand idle.
#
# ## Code
#
# The merge takes the splits in their order, each with its weight, so the order of its sums never depends on which block arrives last:
#
# ```{literalinclude} /labkernels/cuda/include/lab/attention/split_kv.cuh
# :language: cpp
# :start-at: "// Merges the splits' States, always in split order."
# :end-before: "// Ends a kernel whose warps split the keys"
# ```
#
# ## Measurement
#
# <!-- guess: bits_in_a_batch -->
#
# ### Which heads
#
# The same requests run on this machine:

# %% mystnb={"figure": {"caption": "The rule names every head that changes, before it runs. A number counts the outputs of a request and head that differ between alone and together, of 64 in a decode and 256 in a prefill; = marks equal bits. decode_mma and prefill_mma, bf16.", "name": "bits-maps"}, "image": {"alt": "Four grids of 8 requests and 4 heads. In the decode all requests but the shortest change, in rule and run alike; in the prefill only the requests of 640 and 300 keys change, in rule and run alike.", "width": "100%"}} tags=["hide-input"]
cells, found = [], {}
request, head = np.indices((len(same_bits.LENGTHS), two_roads.HEADS))
for operation in CASES:
    found[operation] = same_bits.differing(apart[operation], joined[operation])
    for kind, counts in (("rule", rule[operation]), ("run", found[operation])):
        columns = {"head": head, "kv_len": np.array(same_bits.LENGTHS)[request]}
        columns |= {"different": counts}
        part = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
        cells.append(part.assign(kind=f"{operation}: {kind}", marked=False))
plots.road_maps(pd.concat(cells), origin=HERE)
plt.show()

# %%
for operation in CASES:
    right = (rule[operation] > 0) == (found[operation] > 0)
    print(f"{operation}: right for {right.sum()} of {right.size} heads")

# %% [markdown]
# Alone, a decode is cut into splits of 256 keys, and among others not at all, so only the request of 200 keys, which one split holds, keeps its bits.
# In the batch the prefill is cut into splits of 256 keys. Alone, most requests get the same splits; two get splits of 384 keys, and these two change.
#
# ### With tensor cores and without, in CUDA and Triton
#
# Every kernel now runs with its free plan and with `batch_invariant=True`, on three short requests in fp16, since Triton's interpreter is slow and does not round to bf16 (Triton without tensor cores runs in the bench below). The CUDA kernels also run on SmolLM2, a trained model: three requests of about 2,000 keys, of a diffuse head and of the three query heads of *long*, which look at the first key, at their own, and at many:

# %% tags=["hide-input"]
real_lengths, heads_of = (2048, 2020, 1990), [0, 3, 4, 5]
neighbours, parts = two_roads.samples(same_bits.NEIGHBOURS), []
for n in real_lengths:
    read = real_inputs.prefill_of((n,), ("diffuse", "long"), queries=4)
    q = torch.cat([torch.zeros(n - 4, *read.q.shape[1:], dtype=read.q.dtype), read.q])
    k, v = (x.repeat_interleave(real_inputs.GROUP, 1) for x in (read.kv.k, read.kv.v))
    parts.append(torch.stack([q, k, v], 1)[:, :, heads_of])
qkv = torch.cat([*parts, neighbours.qkv]).half()
groups = {"random": same_bits.requests("fp16", same_bits.SHORT)}
groups["SmolLM2"] = two_roads.Samples(real_lengths + neighbours.lengths, qkv)

# %%
PLANS = {"free": {}, "invariant": {"batch_invariant": True}}
kernels = [(operation, kernel) for operation, names in live.KERNELS.items() for kernel in names]
changed_bits, outs = {}, {}
for operation, kernel in kernels:
    for policy, (inputs, given) in product(same_bits.policies(operation, kernel), groups.items()):
        if kernel.startswith("triton") and inputs == "SmolLM2":
            continue
        on = "on" if policy.tensor_cores else "off"
        for plan, how in PLANS.items():
            how = {"kernel": kernel, "policy": policy} | how
            pair = [f(operation, given, **how) for f in (same_bits.alone, same_bits.together)]
            counts = changed_bits.setdefault((operation, kernel, on), {})
            counts[f"{plan}, {inputs}"] = same_bits.differing(*pair)
            outs.setdefault((inputs, operation), {})[f"{kernel}, {on}, {plan}"] = pair[0].out

# %% tags=["hide-input"]
rows = []
for place, counts in changed_bits.items():
    heads = {name: (differ > 0).sum() for name, differ in counts.items()}
    invariant = sum(n for name, n in heads.items() if name.startswith("invariant"))
    rows.append((*place, heads["free, random"], heads.get("free, SmolLM2", ""), invariant))
columns = ["operation", "kernel", "tensor cores", "heads that change, of 12", "SmolLM2, of 12"]
columns += ["batch_invariant, both"]
plots.table(pd.DataFrame(rows, columns=columns), "heads-that-change")

# %% [markdown]
# Without tensor cores a weight is not rounded to 16 bits, and only the order of fp32 sums is left, which rarely moves an output across a rounding boundary.
# Of the prefills of random requests, only Triton's changes at these lengths.
# SmolLM2's requests change as well, in {glue:text}`real_outputs` of a head's 64 outputs of `decode_mma` in the mean, where random ones change {glue:text}`random_outputs`: the rounding of P is small there beside that of the output, as the next figure shows, so that fewer outputs cross a boundary.
# This is a warning for tests: a kernel on CUDA cores passes most comparisons of bits, and is no more invariant than the others.
#
# Is the invariant plan less accurate? Each request and head is held against float64:

# %% mystnb={"figure": {"caption": "Equal bits are bought with time and hardly with accuracy: over heads and requests the errors of the invariant plan lie near those of the free plan, with tensor cores a little higher in the mean of random inputs. Tensor cores off and on, each request alone; relative L2 error against float64, fp16, CUDA and Triton, on SmolLM2 CUDA alone.", "name": "bits-errors"}, "image": {"alt": "Four panels, decode above and prefill below, over query heads on the left and requests on the right, random inputs beside those of SmolLM2; dots with tensor cores on lie a little above those with tensor cores off, and those of the free and of the invariant plan lie beside each other.", "width": "100%"}} tags=["hide-input"]
cells = []
for (inputs, operation), ways in outs.items():
    exact = same_bits.truth(operation, groups[inputs])
    tokens = (same_bits.TOKENS[operation],) * len(exact)
    flat = {way: out.reshape(-1, *exact.shape[2:]) for way, out in ways.items()}
    part = live.cells(operation, flat, exact.reshape(-1, *exact.shape[2:]), tokens)
    cells.append(part.assign(inputs=inputs))
cells = pd.concat(cells)
cells["kind"] = cells.way.str.partition(", ")[2]
by_place(cells, label="relative L2 error", origin=HERE, log=False)
sized.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# ### A certificate
#
# To ask a kernel of your own, call it in many ways and compare the bits of one request; `labkernels certify FILE.py:FUNCTION` does that. Here are two kernels, with the free and with the invariant plan:

# %%
CERTIFIED = {
    "decode_mma": ("paged_decode", FULL, 512, Sizes(8, 8, 64)),
    "prefill_mma": ("ragged", CAUSAL, 640, Sizes(4, 4, 64, queries=4)),
}
for kernel, (layout, variant, keys, sizes_of) in CERTIFIED.items():
    function = targets.find(kernel).function(layout, variant)
    for options in ({}, {"batch_invariant": True}):
        how = {"lengths": (keys,), "batches": (2, 40), "sizes": sizes_of, "options": options}
        made = certify(function, layout, causal=variant.causal, name=kernel, **how)
        print(f"{kernel}, {options or 'free plan'}: {str(made).splitlines()[-1]}")

# %% [markdown]
# On an H200 the same ran at full size, with 512, 2,048 and 8,192 keys in up to 64 requests of 32 heads:

# %% tags=["hide-input"]
plots.table(same_bits.certified(store.read("certificates")), "certified")

# %% tags=["nbval-ignore-output"]
bench = Bench(
    Decode((300, 200, 77), 4, 4, 64, dtype="fp16"),
    Prefill((4,) * 3, (300, 200, 77), 4, 4, 64, causal=True, dtype="fp16"),
    kernels=live.EVERY,
)
ran = bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")

# %% [markdown]
# ### The price
#
# On an H200 each workload ran with the free plan, with `batch_invariant=True`, and with other sizes of split, in turns in one process:

# %% tags=["hide-input"]
price = same_bits.prices(store.read("batch_invariance"))
origin = recorded.origin(store.read("batch_invariance"))
SHOWN = ("1 x 1024", "1 x 8192", "57 x 8192", "1 x 131072")
work = price[(price.operation == "decode") & (price.dtype == "bf16") & (price.q_heads == 32)]
work = work[(work.head_dim == 128) & (work.page_size == 16) & work.keys_per_split.between(1, 8192)]
work = work.assign(kind=work.batch.astype(str) + " x " + work.kv_len.astype(str))
work = work[work.kind.isin(SHOWN)].sort_values(["kv_len", "batch", "keys_per_split"])

# %% mystnb={"figure": {"caption": "Long splits leave SMs idle in small batches, short splits make the merge of a long request costly; no one size is right for both. Time over that of the free plan, requests x keys.", "name": "bits-price"}, "image": {"alt": "Curves of relative time over 256 to 4096 keys per split, one for each of four workloads. That of the large batch lies near one, that of one very long request falls to one, and those of one short request rise to the right, up to about four.", "width": "100%"}} tags=["hide-input"]
curves(
    work.assign(x=work.keys_per_split / 1024, y=work.times),
    labels=("keys per split, in units of 1,024", "time over the free plan"),
    log="x",
    mark="o",
    origin=origin,
)
sized.log.drew("timing", "decode")
plt.show()

# %% mystnb={"figure": {"caption": "Over whole grids the invariant plan costs hardly anything in prefill, little in decode, more in small batches, and most in MLA. Geometric mean of the time over the free plan's, and the worst.", "name": "bits-price-grids"}, "image": {"alt": "Four horizontal bars of relative time: prefill, decode, small batches of decode and MLA, with the worst workload of each in words.", "width": "100%"}} tags=["hide-input"]
grids = price[price["plan"] == "invariant"].groupby(["operation", "why"]).times
grids = grids.agg(value=lambda t: float(np.exp(np.log(t).mean())), worst="max", n="size")
grids = grids.reset_index()
grids["name"] = grids.operation + ", " + grids.why
grids["words"] = [f"{r.value:.3f}, worst {r.worst:.2f}" for r in grids.itertuples()]
bars(grids, label="time over the free plan", origin=origin)
sized.log.drew("timing", "prefill")
plt.show()

# %% [markdown]
# With 1,024 keys for every request, small batches would take up to {glue:text}`small_1024` times the free plan's time, and with 256 keys the grid up to {glue:text}`grid_256` times.
# `batch_invariant=True` therefore takes 256 keys in requests of up to 2,048, 512 up to 16,384, 1,024 up to 65,536, 2,048 up to 262,144, and 4,096 beyond. Each step of a decode has one token, whose bits may follow from its own length; no neighbour changes that.
# An MLA decode may take several tokens of a request in one call. They share its length, so that a rule by length would make their bits depend on the call; its splits always have 1,024 keys.
#
# ### What the switches of others do
#
# The table has the switch of each library, as its source says, and the cut of requests of 2,048 keys on an H200, alone → in a batch of 64:

# %%
SWITCHES = [name for name in named.WAYS if ", " in name]
rows = []
for name in SWITCHES:
    base, _, switch = name.partition(", ")
    row = [base, switch]
    for planner in (base, name):
        (few, _), (many, other) = named.cuts(planner, one, gpu("h200"), (1, 64))
        row.append(f"{few.label()} → {many.label()}" if other else few.label())
    rows.append(row)
columns = ["library", "switch", "cut without it", "cut with it"]
plots.table(pd.DataFrame(rows, columns=columns), "switches")

# %% [markdown]
# - FlashInfer's `fixed_split_size` counts pages, and `disable_split_kv` leaves the keys whole {cite:p}`ye2025`. Both belong to the fa2 kernels; the kernels on CUDA cores have neither.
# - FlashAttention's `num_splits` is 0 by default, which asks the heuristic; in FlashAttention-4 the default is 1. A number above 1 is no fixed size: FlashAttention-3 deals each request its share of them by the lengths of the batch.
# - vLLM's `VLLM_BATCH_INVARIANT=1` asks FlashInfer for splits of 2,048 pages and also disables splits, which prevails; of FlashAttention-3 it asks for one split.
# - SGLang's `--enable-deterministic-inference` takes splits of 2,048 keys in a decode by FlashInfer, disables them under CUDA graphs, and asks FlashAttention-3 for one split. A pull request for several splits reports up to 2.1 times the throughput on work that prefill bounds {cite:p}`sglang24101`; we did not measure that.
#
# One split is not always enough. In vLLM's FlashAttention-3 the batch's longest query sets the tile, so that a decode that shares its call with a prefill may change:

# %%
mixed = replace(one, kv_lens=(2048, 2048), q_lens=(1, 512), causal=True)
cut = named.WAYS["vLLM FlashAttention-3, BATCH_INVARIANT"]
pair = [cut(batch, gpu("h200")) for batch in (mixed.alone(0), mixed)]
print([c.label() for c in pair], "other cut" if changed(*pair) else "same cut")

# %% [markdown]
# {cite:t}`vllm51902` measured just this with vLLM 0.25.1 on an H100: the bits of a decode change when a prefill in the same call grows from 9 tokens to 10. We did not run vLLM.
#
# Does the GPU matter? The table has the first batch of 2, 4, 8, … whose cut is not that of a request alone:

# %% tags=["hide-input"]
GPUS = ("rtx4090", "a100", "h100", "h200", "b200")
rows = []
for name in ("FlashInfer fa2", "FlashAttention-2 kvcache", "torch flash"):
    rows.append([name])
    for key in GPUS:
        sizes = [2**n for n in range(1, 9)]
        found = zip(sizes, named.cuts(name, one, gpu(key), sizes), strict=True)
        rows[-1].append(next((n for n, (_, other) in found if other), "none"))
plots.table(pd.DataFrame(rows, columns=["2,048 keys", *(gpu(k).name for k in GPUS)]), "by-gpu")

# %% [markdown]
# Of these columns only the H200's was measured, for FlashInfer, FlashAttention-2 and torch; the others are the planners' rules with other numbers of SMs.
#
# ## The report of Two roads, again
#
# With random inputs {doc}`two_roads` does not show what its report does: the author saw no difference in most samples, and we saw one in nearly all.
# What if the scores led with the recent keys, as those of trained models often do? The last key's score is raised by a lead, which halves every 16 keys backwards, on otherwise the same 16 samples.
# This is the prediction for the two kernels of that chapter, unsplit and in 4 splits:

# %%
plain = two_roads.samples()
LEADS, PATHS = (0, 5, 10, 15, 20, 30), (two_roads.KVCACHE, two_roads.SPLIT)
equal = []
for lead in LEADS:
    led = two_roads.with_recent_lead(plain, lead)
    whole = two_roads.predicted(led, two_roads.VARLEN)
    for path in PATHS:
        same = two_roads.differing(two_roads.predicted(led, path), whole) == 0
        for kind, share in (("heads", same.mean()), ("samples", same.all(axis=1).mean())):
            equal.append((f"{path.name.split(', ')[-1]}, {kind}", lead, 100 * share))
equal = pd.DataFrame(equal, columns=["kind", "x", "y"])
equal["kind"] = equal.kind.str.replace("kvcache", "unsplit")

# %% mystnb={"figure": {"caption": "Scores that lead with the recent keys make most samples equal, as in the report, while some heads still differ; with splits it takes a larger lead. Predicted from the equation, for 16 samples with 4 heads.", "name": "bits-recent"}, "image": {"alt": "Four rising curves over a lead of 0 to 30 in log2 units: the share of heads and of samples with equal bits, unsplit and with 4 splits. Unsplit samples rise from near zero to above 90 % by a lead of ten.", "width": "100%"}} tags=["hide-input"]
curves(equal, labels=("lead of the last key, log2 units", "equal, %"), mark="o", origin=HERE)
plt.show()

# %% [markdown]
# Our kernels run at a lead of 10; the random inputs ran in the recording that {doc}`two_roads` shows, with the same bits:

# %%
LEAD = two_roads.LEAD
led = two_roads.with_recent_lead(plain, LEAD)
full = two_roads.varlen(led)
heads = pd.DataFrame(store.read("two_roads_heads"))
rows = []
for path in PATHS:
    ours = two_roads.differing(two_roads.kvcache(led, path).out, full) == 0
    random = heads[heads.road == path.name].pivot(
        index="sample", columns="head", values="different"
    )
    for inputs, same in (("random", random.to_numpy() == 0), (f"lead {LEAD}", ours)):
        rows.append((inputs, path.splits, same.sum(), 100 * same.mean(), same.all(axis=1).sum()))
columns = ["inputs", "splits", "equal heads, of 64", "share, %", "equal samples, of 16"]
recent = pd.DataFrame(rows, columns=columns)
plots.table(recent, "recent", {"share, %": "{:.0f}"})

# %% [markdown]
# In FlashAttention's own package the same inputs gave the same counts ({doc}`two_roads`), on an H200. Its heuristic, read in its source, cuts the report's shapes as follows on other GPUs, with a cache of 8,192 keys:

# %%
report = Batch(two_roads.LENGTHS, 4, 4, 64, page_size=16)
for key in ("rtx4090", "a100", "h100", "h200"):
    cut = flash_attention_2(report, gpu(key), split_kernel=True, allocated=8192)
    print(f"{gpu(key).name}: the longest sample {cut.label()}")

# %% [markdown]
# Inputs with a lead of recent keys thus show the report's pattern, most samples equal and single heads different, without splits. With 4 splits half of the samples are equal.
# The author's tensors and GPU are not known, and that the author's scores had such a lead is a guess that fits, and no finding.
#
# ## What would change the answer
#
# - **Calls that were not made.** A certificate compares one request's bits in the calls that it makes, at the lengths and batches that it is given. A plan that changes at another batch or on another GPU passes, and so do races that strike seldom. Sampling, other layers, tensor parallelism and quantization are outside.
# - **Other layers.** Attention is one of the layers that look at the batch. Matrix products and norms have plans of their own, and a server needs all of them invariant.
# - **Other versions.** Each planner is read at the commit that its docstring in `labkernels/planners` names; the next version of a library may plan otherwise.
# - **Planners that cannot be read.** cuDNN and cuBLAS choose in closed code, so nothing is predicted for two of torch's backends.
# - **Prefill against decode.** Equal bits *between* operations are {doc}`two_roads`'s question, and `batch_invariant=True` does not promise them.
# - **Shapes of your own.** The program at the foot of this page shows the tables above for other lengths, GPUs and libraries.

# %% tags=["evidence"]
planned = bits[bits.method != ""]
differ = decodes.groupby("way").heads_differ.sum() > 0
by_grid = grids.set_index("name")
long = price[(price.kv_len == 131072) & (price["plan"] == "unsplit") & (price.dtype == "bf16")]
prefills = bits[bits.operation == "prefill"]
versions = decodes.version[decodes.library != "labkernels"].unique()
launches = pd.DataFrame(store.read("launches"))
glue("n_launches", len(launches), display=False)
glue("n_planned", int(launches.agrees.sum()), display=False)
glue("versions", ", ".join(name.partition("+")[0] for name in versions), display=False)
decoded = price[price.operation == "decode"]
sized_as = decoded.groupby(["keys_per_split", "why"]).times.max()

# %% tags=["evidence"]
of_mma = changed_bits["decode", "decode_mma", "on"]
for name, inputs in (("random_outputs", "random"), ("real_outputs", "SmolLM2")):
    glue(name, f"{of_mma[f'free, {inputs}'].mean():.0f}", display=False)

# %% tags=["evidence"]
numbers = {
    "n_ways": differ.size, "n_change": differ.sum(),
    "right": f"{planned.heads_right.astype(int).sum():,}", "judged": f"{planned.q_heads.sum():,}",
    "grid_mean": f"{by_grid.value['decode, grid']:.2f}",
    "grid_worst": f"{by_grid.worst['decode, grid']:.2f}",
    "mla_mean": f"{by_grid.value['mla, grid']:.2f}",
    "small_worst": f"{by_grid.worst['decode, small batch']:.2f}",
    "small_1024": f"{sized_as[1024, 'small batch']:.2f}",
    "grid_256": f"{sized_as[256, 'grid']:.2f}",
    "unsplit": f"{long.times.iloc[0]:.0f}", "unstable": (decodes.heads_unstable > 0).sum(),
    "prefill_change": ", ".join(prefills[prefills.heads_differ > 0].way.unique()),
    "prefill_ways": prefills.way.nunique(), "neighbours": len(same_bits.NEIGHBOURS),
}  # fmt: skip
for name, number in numbers.items():
    glue(name, f"{number}", display=False)

# %% tags=["nbval-ignore-output", "evidence"]
sized.log + eight.log + bench.log

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: bits-first-batch
#
# FlashInfer's fa2 decode on an A100, 32 query and 8 KV heads of 128 channels, pages of 16: from which batch on (of 2, 3, 4, …) is a request of 4,096 keys cut otherwise than alone?
# Check your answer with `exercises.check("bits-first-batch", batch)`.
# ```
#
# ```{solution-start} bits-first-batch
# :class: dropdown
# ```
#
# Twice 108 SMs over 8 KV heads allow 27 chunks of keys, and the least chunk has 128 keys; 4,096 keys alone would be 32 of them, so that the chunk is already larger when the request is alone. Any second request makes it larger again.

# %%
asked = replace(one, kv_lens=(4096,))
sizes = range(2, 20)
found = zip(sizes, named.cuts("FlashInfer fa2", asked, gpu("a100"), sizes), strict=True)
first = next(n for n, (_, other) in found if other)
assert exercises.check("bits-first-batch", first)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: bits-state
#
# By {eq}`split-state`, how many MiB of state do splits of 256 keys take for one request of 131,072 keys, 32 query heads, 128 channels?
# Check your answer with `exercises.check("bits-state", mebibytes)`.
# ```
#
# ```{solution-start} bits-state
# :class: dropdown
# ```
#
# There are four times as many splits as of 1,024 keys.

# %%
assert exercises.check("bits-state", 4 * (131072 // 256) * 32 * (128 + 2) / 2**20)

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The author of {cite:t}`flashattention1897` had measured equal bits; a maintainer did not think that the kernel is batch-invariant unless the size of its splits is fixed. The author of {cite:t}`flashmla212` measured differences of one or two units in the last place, first took them for the cause of other completions at temperature 0, and withdrew this in the thread. Split-KV is from {cite:t}`dao2023`, and the online softmax is from {cite:t}`milakov2018`.
# The planners of FlashInfer {cite:p}`ye2025`, FlashAttention, torch, vLLM and SGLang were read in their sources; each function in `labkernels/planners` names files and commits.
# {cite:t}`sglang24101` is cited for what one split costs in SGLang, as its author reports.
