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
# # Tensor cores, on and off
#
# ## Question
#
# **The same decode, with tensor cores and without: the outputs differ and the speeds differ. Which output is right, and where does the speed come from?**
#
# The question is {cite:t}`flashinfer703`.
# Its author ran one decode step of 57 requests with 8192 keys each, 32 query heads on 8 KV heads, 128 channels per head, and pages of 16 keys.
# FlashInfer {cite:p}`ye2025` has a switch for it, `use_tensor_cores`, and both positions of the switch were measured:
#
# | | tensor cores on | tensor cores off |
# |---|---|---|
# | time | 1.276 ms | 1.595 ms |
# | registers, from the {term}`profiler` | 182 | 66 |
# | dynamic shared memory | 69.63 KB | 9.22 KB |
# | waves per SM | 2.11 | 0.60 |
#
# (A {term}`wave` is as many blocks as all SMs hold at once.)
# The inputs were the same, and the outputs were not: their largest relative difference was 1.579, and the mean one 0.0022.
# A maintainer answered that the kernel without tensor cores computes in fp32, while tensor cores take the weights $P$ in 16 bits.
#
# Seven sentences about this case sound right.
# When you have read this chapter you can say of each what is true in it, with a number:
#
# 1. The kernel with tensor cores uses 182 registers per thread block.
# 2. Its accumulators take (query rows × keys + query rows × channels) / threads registers.
# 3. A relative difference of 1.58 means that one of the outputs is wrong.
# 4. Where precision matters, turn tensor cores off.
# 5. Tensor cores are faster because they do more arithmetic per second.
# 6. `use_tensor_cores=True` is the fast way.
# 7. A tensor-core tile has 16 rows, so that four query heads waste three quarters of it.
#
# ## You need
#
# {doc}`/book/how_to_read` says how predictions, recorded runs and verdicts work here.
# {doc}`/book/glossary` has the words; {term}`warp`, {term}`register`, {term}`occupancy`, {term}`GQA` and {term}`online softmax` come up most.
# You need no GPU: the kernels below run as CPU builds that give the bits of an H200, and what only a GPU can say is recorded.

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
from myst_nb import glue

# %% tags=["hide-input"]
from labkernels import Bench, Prefill, budget, hardware, ops, plots, widgets
from labkernels.budget.published import flashinfer_decode, flashinfer_prefill
from labkernels.chapters import exercises
from labkernels.chapters import tensor_cores_on_and_off as chapter
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure import error_budget, register_fit, resources
from labkernels.measure.judge.judge import judge_of
from labkernels.numerics import arrays, metrics, rounding
from labkernels.numerics.truth import oracle
from labkernels.policy import CUDA_CORES, TENSOR_CORES
from labkernels.records import recorded, store

# %% [markdown]
# ## Symbols
#
# From {doc}`/book/notation`: $B$ requests, $L$ keys of a request, $H_q$ query heads on $H_{kv}$ KV heads, $g = H_q / H_{kv}$ the group, $D$ channels; $P_j$, $l$ and $o$ of one row; $\mathrm{ulp}$.
# Two are needed here only: $\beta$, the bytes per second that a plain copy reaches on the same chip, and $\sigma$, the standard deviation of the error of one output element.
#
# ## Model
#
# ### Time
#
# A decode step must read every key and every value once.
# So it takes at least
#
# $$
# t_{\min} \;=\; \frac{2 \cdot 2 \, B \, L \, H_{kv} \, D}{\beta},
# $$ (decode-least-time)
#
# in which $g$ does not occur: the query heads of a group share what is read.
# The arithmetic does grow with $g$, because each of the group's heads multiplies with each key and each value.
# It only matters if it takes longer than the reading.
#
# ### Registers
#
# A warp that multiplies on tensor cores keeps its sums, the {term}`accumulator`, in registers.
# A matrix of 16 rows and $n$ columns in fp32 takes $16 n / 32$ registers of each of the warp's 32 threads.
# What this makes per thread depends on what the warps of a block divide among themselves.
#
# If they divide the *query rows*, each warp has its own rows of $S$ and of $O$, and the block's threads share both matrices:
#
# $$
# R_{\text{rows}} \;=\; \frac{\text{rows} \cdot \text{keys} + \text{rows} \cdot D}{\text{threads}}.
# $$ (registers-rows)
#
# If they divide the *keys*, as every decode kernel does because it has so few rows, then each warp sums over other keys and needs a whole $O$ for itself:
#
# $$
# R_{\text{keys}} \;=\; \frac{\text{rows} \cdot (\text{keys of a warp}) + \text{rows} \cdot D}{32}.
# $$ (registers-keys)
#
# ### Error
#
# Both kernels add in fp32, whose rounding is far below what 16 bits can show.
# What remains are two roundings to 16 bits.
# Each is uniform in one ulp, so that its variance is $\mathrm{ulp}^2 / 12$ {cite:p}`higham2019`:
#
# $$
# \sigma^2 \;=\; \underbrace{\frac{1}{l^2} \sum_j \frac{\mathrm{ulp}(P_j)^2}{12} \, v_j^2}_{\text{on: } P \text{ rounded for the second product}} \;+\; \underbrace{\frac{\mathrm{ulp}(o)^2}{12}}_{\text{on and off: the output is stored}}
# $$ (decode-variance)
#
# The first term is the price of tensor cores.
# The second is paid by everyone who stores 16 bits.
#
# ## Prediction
#
# ### How long should it take?
#
# The table sets {eq}`decode-least-time` beside the arithmetic, each alone at its best rate on an H200, for the batch of the case and five groups.
# The bandwidth is the one that a copy reaches, the others are the vendor's peaks ({doc}`hardware`).

# %%
h200 = hardware.gpu("h200")
floors = []
for group in (1, 2, 4, 8, 16):
    step = Decode.uniform(57, 8192, q_heads=8 * group, kv_heads=8, dtype="fp16")
    copy = h200.measured_copy_bytes_per_s
    off = budget.least_time(step, h200, tensor_cores=False, bytes_per_s=copy)
    on = budget.least_time(step, h200, tensor_cores=True, mma_rows=16, bytes_per_s=copy)
    floors.append((group, off.memory_s, off.math_s, on.math_s, off.exp_s))
columns = ["group", "memory, ms", "off: FMAs, ms", "on: mma, ms", "exponentials, ms"]
floors = pd.DataFrame(floors, columns=columns).set_index("group").mul(1e3).reset_index()
plots.table(floors, "floors", dict.fromkeys(columns[1:], "{:.3f}"))

# %% [markdown]
# For the case, group 4, reading takes four times as long as the FMAs.
# So the prediction is: **both ways at the {term}`copy ceiling` and no gain from tensor cores**, until the group comes near 16.
# The author of the case measured a gain of a quarter, and we shall see why.
#
# ### What should it need?
#
# The first table is about FlashInfer's two kernels: their shared memory by the formulas in its source, and how many blocks an A100 can hold with the registers that the profiler gave.
# The report does not name its GPU. An A100 is our guess, and the last column tests it: blocks, 57 requests times 8 KV heads, over what 108 SMs hold at once.

# %%
a100 = hardware.gpu("a100")
on_smem = flashinfer_prefill(cta_q=16, cta_kv=128, head_dim=128, warps_kv=4).total
off_smem = flashinfer_decode(head_dim=128, group=4).total
read_as = [("on", 182, on_smem), ("off", 66, off_smem), ("off, if 66 were a block's", 1, off_smem)]
rows = []
for kernel, registers, smem_bytes in read_as:
    fit = budget.occupancy(a100, threads=128, registers=registers, smem_bytes=smem_bytes)
    in_waves = budget.waves(57 * 8, fit, a100)
    rows.append((kernel, smem_bytes, fit.blocks_per_sm, fit.limit, in_waves))
reported = pd.DataFrame(rows, columns=["FlashInfer", "bytes", "blocks per SM", "limit", "waves"])
plots.table(reported, "reported", {"bytes": "{:,}", "waves": "{:.2f}"})

# %% [markdown]
# Bytes and waves are those of the report, to the last digit.
# They come out only if the registers are *per thread*, which is how profilers count them; the last row shows what else the 66 would have given.
#
# The second table has the accumulators of FlashInfer's tile by {eq}`registers-rows` and {eq}`registers-keys`, and the {term}`ledgers <ledger>` of our own three kernels, in registers per thread.
# A ledger is a lower bound: the compiler adds addresses and values that overlap in time.
# In the code below a kernel's *spec* declares its tiles and ledgers, and an *instance* is one tile for one shape, as it is compiled.

# %%
by_rows = budget.reported_register_formula(16, 128, 128, 128)
by_keys = budget.kv_split_register_formula(16, 128, 32)
print(f"FlashInfer's tile, 16 rows, 4 warps of 32 keys: {by_rows:g} if rows are divided, "
      f"{by_keys} if keys are")  # fmt: skip
KERNELS = ("decode_fma", "decode_mma", "decode_mma_n8")
specs = {name: discover()[name] for name in KERNELS}
instances = {n: s.instance(s.shape(dtype="fp16", head_dim=128, group=4)) for n, s in specs.items()}
ledgers = {n: specs[n].registers(instance) for n, instance in instances.items()}
lines = {n: {line.name: line.amount for line in led.lines} for n, led in ledgers.items()}
ledger = pd.DataFrame(lines).astype("Int64")
ledger.loc["total"] = [led.total for led in ledgers.values()]
plots.table(ledger.rename_axis("registers").reset_index(), "ledgers")

# %% [markdown]
# The report's 182 registers are 102 more than FlashInfer's accumulators, and the report does not say what those 102 hold.
# Our formula of registers, which *What it takes* below tests on every kernel of the lab, names them for `decode_mma` with the same tile: 16 rows, 4 warps of 32 keys.
# One term differs: FlashInfer reads a fragment of $Q$ anew for each product, and `decode_mma` keeps all of $Q$.

# %%
spec = specs["decode_mma"]
alike = spec.instance(spec.shape(dtype="fp16", head_dim=128, group=4), tile="4x32x2x1")
terms = {line.name: int(line.amount) for line in spec.predicted_registers(alike, a100).ledger.lines}
terms["Q fragments"] = budget.fragment_registers(16, 16, bits=16)  # of one fragment
foreseen = sum(terms.values())
terms |= {"the formula": foreseen, "the profiler": 182, "without a name": 182 - foreseen}
plots.table(pd.DataFrame(terms.items(), columns=["term", "registers"]), "hundred-and-two")

# %% [markdown]
# *Kept* stands for pointers, swizzled addresses and counters that the compiler holds through the loop, *copies* for the addresses of the 16-byte copies of a step, and *loaded ahead* for fragments that wait for their product.
#
# ### The two formulas, and the blocks that follow
#
# A {term}`ledger` is a formula with named terms.
# For `decode_mma` and the workload of the case the two formulas stand below, first in the symbols of {doc}`/book/notation`, then with this workload's numbers, then beside what the compiler made of the kernel.
# The shared memory is exact, because the source asserts it.
# The registers are a prediction: what must be live at once, what the compiler adds by habit, and the limit that the launch promises.
# The last equation takes both and gives the blocks that an SM holds.
#
# The prefill beside the decode is not part of the case.
# The question whether tensor cores pay has another answer there, and the same kernels give it.
# Every chapter puts its workloads on a `Bench`, which shows the formulas of a kernel, runs all kernels of an operation, and draws budgets, times and errors.

# %%
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8, dtype="fp16")
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
bench = Bench(decode, prefill, gpu="h200")

# %%
bench.equations("decode_mma")

# %% [markdown]
# A prefill kernel keeps 64 to 128 query rows in a block where the decode keeps the few heads of a group.
# Its accumulators and scores therefore take most of the 255 registers that a thread can have ({numref}`onoff-budget`), and fewer blocks fit on an SM ({numref}`onoff-occupancy`).
# In two of the prefill kernels some warps only copy, and give registers to the warps that multiply ({term}`warp specialisation`); the circle *after a trade* is what a thread of the latter then has.

# %% mystnb={"figure": {"caption": "Accumulators and operands are most of what a kernel with tensor cores needs; addresses and values that overlap in time come on top, and a mark left of the end of its bar shows a kernel that the launch bounds hold back. Shared memory is predicted to the byte.", "name": "onoff-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "On an H200 registers end first for decode_fma and decode_mma; on GPUs with 100 KiB per SM shared memory ends first for every decode kernel.", "name": "onoff-occupancy"}, "image": {"alt": "A panel for each GPU with a row for each kernel. Marks on a logarithmic axis give the blocks that registers, shared memory, warps and the block limit leave on an SM; a bar ends at the least of them.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200", "a100", "rtx4090")
plt.show()

# %% [markdown]
# ### How wrong should it be?
#
# Equation {eq}`decode-variance` needs the inputs and nothing else.
# We take random normal inputs, as the recorded run does, and one request of the case's 8192 keys.
# *On / off* is all that turning tensor cores off can gain.

# %%
WAYS = {"off": CUDA_CORES, "on": TENSOR_CORES}
one = {t: Decode((8192,), 32, 8, 128, 16, dtype=t) for t in ("fp16", "bf16")}
long = {t: decode_inputs(workload, Normal(0, "cpu")) for t, workload in one.items()}
predicted, sigmas = pd.DataFrame({"dtype": list(long)}).set_index("dtype"), {}
for way, policy in WAYS.items():
    sigmas[way] = {t: error_budget.decode_sigma(case, policy=policy) for t, case in long.items()}
    predicted[way] = {t: float(metrics.rms(sigma, by="all")) for t, sigma in sigmas[way].items()}
predicted["on / off"] = predicted.on / predicted.off
digits = {"off": "{:.2e}", "on": "{:.2e}", "on / off": "{:.2f}"}
plots.table(predicted.reset_index(), "predicted", digits)

# %% [markdown]
# ## Code
#
# All three kernels share the skeleton.
# A block has 4 warps; every warp is a {term}`pipeline` of its own, which copies 16 keys and values at a time into its shared memory, keeps its own {term}`online softmax`, and meets the others only once, at the end.
# They differ in how they multiply.
# The listings show $S = Q K^T$ of each kernel, from the files that were measured.
#
# `decode_fma` has no tensor cores.
# Sixteen lanes share a key, eight channels each, and do one fp32 {term}`FMA` per query head and channel; `reduce` then adds up over the lanes.
#
# ```{literalinclude} /labkernels/kernels/decode/fma/kernel.cuh
# :language: cpp
# :start-after: "[lab: scores]"
# :end-before: "[/lab: scores]"
# ```
#
# `decode_mma` has them.
# The group's query heads are the rows of a tile of `mma.sync.m16n8k16`, so that one instruction does 16 × 8 × 16 products.
# With a group of 4, twelve of the 16 rows are padding.
#
# ```{literalinclude} /labkernels/kernels/decode/mma/kernel.cuh
# :language: cpp
# :start-after: "[lab: scores]"
# :end-before: "[/lab: scores]"
# ```
#
# `decode_mma_n8` turns the tile around.
# The instruction's shape is fixed at 16 × 8, but the queries need not be the 16 rows: with the *keys* on M, the 16 rows, and the queries on N, the 8 columns, the same instruction gives $S^T = K Q^T$ for 8 queries.
# An 8-row tile had been proposed for FlashInfer too, as a 16-row instruction with half of its rows left empty; turned around, it needs no empty half.
#
# ```{literalinclude} /labkernels/kernels/decode/mma_n8/kernel.cuh
# :language: cpp
# :start-after: "[lab: scores]"
# :end-before: "[/lab: scores]"
# ```
#
# For the values the transposed kernel computes $O^T = V^T P^T$, and `movmatrix` turns $P^T$ around within the registers.
# Its $O^T$ has 8 columns where `decode_mma`'s $O$ has 16 rows: half the accumulator, as the ledger said.
#
# ### Run it here
#
# These kernels run in this page, on your own CPU, and give the bits of an H200.
# Run `decode_mma`, then `decode_fma` with the same inputs: which errors are smaller, and by how much?

# %% tags=["hide-input"]
widgets.run_kernel("decode_mma")

# %% [markdown]
# ## Measurement
#
# ### Error, on this machine
#
# Eight requests of 17 to 1024 keys run here in both dtypes, on each kernel twice: with its output in 16 bits, and with the output left in fp32, which shows what the store hides.

# %%
lengths = (1024, 1000, 777, 512, 300, 129, 64, 17)
cases, truths, outputs, policies = {}, {}, {}, {}
for dtype in ("fp16", "bf16"):
    case = decode_inputs(Decode(lengths, 32, 8, 128, 16, dtype), Normal(0, "cpu"))
    cases[dtype] = case
    truths[dtype] = judge_of("decode", case).reference.o
    for kernel, spec in specs.items():
        for store_in in ("input", "fp32"):
            policies[kernel, store_in] = policy = replace(spec.policies[0], out=store_in)
            result = ops.decode(case.q, case.cache, kernel=kernel, policy=policy)
            outputs[dtype, kernel, store_in] = arrays.as_float64(result.out)
result.plan.machine

# %% tags=["hide-input"]
rows, each = [], {(t, policies[k, s]) for t, k, s in outputs}  # two kernels round alike
expected = {(t, p): error_budget.decode_sigma(cases[t], policy=p) for t, p in each}
for (dtype, kernel, store_in), out in outputs.items():
    policy = policies[kernel, store_in]
    found = metrics.error_table(out, truths[dtype], by="all")
    sigma = metrics.rms(expected[dtype, policy], by="all")
    way = "on" if policy.tensor_cores else "off"
    stored = dtype if store_in == "input" else store_in
    row = {"dtype": dtype, "stored in": stored, "kernel": kernel, "tensor cores": way}
    named = {"rmse": "rmse", "bias": "mean_signed"}
    row |= {f"{title}, 1e-6": 1e6 * found[name] for title, name in named.items()}
    rows.append(row | {"rmse / predicted": found["rmse"] / sigma})
live = pd.DataFrame(rows).sort_values(["dtype", "stored in"], ascending=False, kind="stable")
digits = {"rmse, 1e-6": "{:.3g}", "bias, 1e-6": "{:+.1g}", "rmse / predicted": "{:.2f}"}
plots.table(live, "live", digits)

# %% [markdown]
# Look at *rmse / predicted* first, the {term}`root mean square error <RMSE>` over the $\sigma$ of {eq}`decode-variance`: wherever 16 bits come in, it is near 1, with tensor cores and without.
# The verdict calls such an output *rounding*.
# The quotient is a little below 1 with tensor cores, because the model exempts one weight per row from rounding, the one that is exactly 1, whereas each warp of each {term}`split <split-KV>` has such a weight.
# Where nothing is rounded to 16 bits, the model is only an upper estimate, and the error of the fp32 kernel stays well below it.
#
# Then compare the two stores.
# In fp32, tensor cores off is {glue:text}`fp32_gain` times as exact as on.
# In fp16, it is {glue:text}`fp16_gain` times as exact: both outputs are rounded to the same coarse grid, and that rounding is most of either error.
# The {term}`bias` is so far below the rmse that it does not matter.
#
# {numref}`live-map` shows the fp16 errors where they happen.

# %% mystnb={"figure": {"caption": "The error follows the length of the request and no head, and tensor cores raise it a little everywhere. fp16, from 1024 keys (sample 0) to 17 keys (sample 7): short requests have larger outputs, and so larger ulps.", "name": "live-map"}, "image": {"alt": "Three heat maps, one above the other, of 8 samples and 32 query heads: rmse of decode_fma with tensor cores off, of decode_mma with tensor cores on, and of the difference of their outputs. In each the rows grow lighter from sample 0 to sample 7, over a factor of ten; no column stands out.", "width": "100%"}} tags=["hide-input"]
off, on = outputs["fp16", "decode_fma", "input"], outputs["fp16", "decode_mma", "input"]
shown = {
    ("decode_fma", "off"): (off, truths["fp16"]),
    ("decode_mma", "on"): (on, truths["fp16"]),
    ("decode_mma - decode_fma", ""): (on, off),
}
cells = {}
for (kernel, way), pair in shown.items():
    by_pair = metrics.error_table(*pair, by="sample_and_head")
    cells[way] = plots.error_cells(by_pair, kernel=kernel, tensor_cores=way)
plots.error_maps(
    pd.concat(cells.values()), origin="computed on this machine", label="rmse", log=True
)
plt.show()

# %% [markdown]
# Divided by the prediction, the rows become alike ({numref}`live-spread`).
# A bug in one head, or in the last request, would stand apart here by orders of magnitude.
# The signed bias scatters about zero too.
# It reaches further with tensor cores: of 17 keys one can carry most of the weight, and the rounding of that one weight pulls all channels the same way.

# %% mystnb={"figure": {"caption": "Each sample and head errs as much as rounding predicts, on and off, and in no common direction. fp16; a point is one of 256 pairs of sample and head, a violin their distribution, its white mark their mean.", "name": "live-spread"}, "image": {"alt": "Violins over clouds of points for decode_fma off and decode_mma on. Above, measured over predicted rmse: off is centred on 1, on a little below, and both reach about a quarter to either side. Below, the signed bias in standard errors: both are centred on 0; most lie between minus 2 and 2, and the one with tensor cores has a longer tail.", "width": "100%"}} tags=["hide-input"]
for way, policy in {"off": CUDA_CORES, "on": TENSOR_CORES}.items():
    per_pair = metrics.rms(expected["fp16", policy], by="sample_and_head").ravel()
    cells[way]["ratio"] = cells[way].rmse / per_pair
    cells[way]["bias_sigma"] = cells[way].mean_signed * np.sqrt(128) / per_pair
plots.distributions(pd.concat([cells["off"], cells["on"]]), origin="computed on this machine")
plt.show()

# %% [markdown]
# ### The difference of the two outputs
#
# The table has the numbers of the report again, on against off, and beside them the place where the relative difference is largest.

# %% tags=["hide-input"]
columns = {}
for dtype in cases:
    off, on = (outputs[dtype, kernel, "input"] for kernel in ("decode_fma", "decode_mma"))
    gap, size = np.abs(on - off), np.abs(off)
    worst = np.argmax(gap / size)
    there = (gap.flat[worst], size.flat[worst])
    relative = gap / size
    columns[dtype] = [100 * np.mean(gap > 0), gap.max(), relative.mean(), relative.max(), *there]
lines = ["elements that differ, %", "largest |on − off|", "mean |on − off| / |off|"]
lines += ["largest |on − off| / |off|", "there: |on − off|", "there: |off|"]
gaps = pd.DataFrame({"": lines, **columns})
plots.table(gaps, "gaps", dict.fromkeys(cases, "{:.2g}"))

# %% [markdown]
# The largest relative difference sits where the output happens to be almost zero.
# An output is a weighted sum of values of both signs.
# Its error scales with the sizes of the terms, and the sum itself can cancel to anything.
# So the largest quotient says how close to zero the smallest of all outputs came ({numref}`relative`).
# With more outputs the quotient grows, although no kernel has changed.

# %% mystnb={"figure": {"caption": "The difference follows the size of the terms, not of the output: towards small outputs it stays where it is, and so the relative difference grows without limit. fp16; a dot is an element whose two outputs differ.", "name": "relative"}, "image": {"alt": "Two scatter plots over the size of the output, all axes logarithmic. Above, the absolute difference: on the right horizontal stripes on the staircase of one ulp, on the left a cloud at about ten to the minus five, far above the ulp. Below, the relative difference: on the right below one part in a thousand, rising to the left; a circle marks its highest point, at one of the smallest outputs.", "width": "100%"}} tags=["hide-input"]
off, on = outputs["fp16", "decode_fma", "input"], outputs["fp16", "decode_mma", "input"]
size, gap = (np.abs(x).ravel() for x in (truths["fp16"], on - off))
elements = pd.DataFrame({"size": size, "difference": gap})[gap > 0]
steps = np.geomspace(size.min(), size.max(), 4000)
staircase = pd.DataFrame({"size": steps, "ulp": rounding.quantum(steps, "fp16")})
plots.relative_difference(elements, ulp=staircase, origin="computed on this machine")
plt.show()

# %% [markdown]
# <!-- guess: decode_gain -->
#
# ### Time, on the H200
#
# From here on the numbers are recorded: `labkernels record decode_tensor_cores` measured our kernels and FlashInfer's three ways in turns, in one process.
# FlashInfer can run the case on CUDA cores, on tensor cores with `backend="fa2"`, and on tensor cores with `backend="auto"`, the default.

# %% mystnb={"figure": {"caption": "The case on an H200: both of our ways and fa2 come near the rate of a copy, FlashInfer's CUDA cores do not; its default backend is fa2. Filled marks are fp16, hollow ones bf16; squares tensor cores, circles CUDA cores. Percent are of the copy ceiling; a kernel that only reads can pass it a little.", "name": "case-times"}, "image": {"alt": "Horizontal lines that end in marks, two for each kernel, sorted by time, with the time in milliseconds and the percent of the copy ceiling written beside each. A vertical line marks the copy ceiling. FlashInfer fa2, decode_mma, decode_mma_n8, decode_fma, FlashInfer auto and Triton with tensor cores end near it; FlashInfer on CUDA cores is longer.", "width": "100%"}} tags=["hide-input"]
case_000 = {"batch": 57, "kv_len": 8192, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 16}  # fmt: skip
FLASHINFER = ("flashinfer_cuda_cores", "flashinfer_fa2", "flashinfer_auto")
everything = store.read("decode_tensor_cores")
run = recorded.newest_with(everything, (*KERNELS, *FLASHINFER), case_000)
measured, origin = pd.DataFrame(run), recorded.origin(run)
sweeps = plots.graph_times(measured).query("batch == 57 and head_dim == 128")
of_case = sweeps.query("q_heads == 32 and page_size == 16 and kernel != 'torch_sdpa'")
plots.case_times(of_case.query("time_ms < 5"), origin=origin)
plt.show()

# %% [markdown]
# Triton with tensor cores off is not drawn: it takes {glue:text}`triton_off` ms, because it multiplies all 16 rows of a padded tile, product by product.
#
# The prediction said: no gain at a group of 4.
# The prediction holds for our kernels, on and off.
# It fails for FlashInfer's two kernels, which are the two of the report.
# {numref}`group-sweep` lets the group grow.

# %% mystnb={"figure": {"caption": "Tensor cores gain nothing at a group of 1, and more with every query head that shares a KV head; the size of a page hardly matters. fp16, 57 requests of 8192 keys, page 16 on the left, group 4 on the right; missing marks were refused. Quartiles are drawn, mostly hidden by the marks.", "name": "group-sweep"}, "image": {"alt": "Two panels on one logarithmic time axis. Left, time against the group from 1 to 16: fa2, auto, decode_mma and decode_mma_n8 are flat lines near the copy ceiling; FlashInfer on CUDA cores leaves it at a group of 3 or 4 and rises steeply, decode_fma leaves it later and rises less. Right, time against pages of 1, 16 and 64 keys: flat lines.", "width": "100%"}} tags=["hide-input"]
sweeps = sweeps.query("dtype == 'fp16' and kernel not in ['triton_decode', 'torch_sdpa']")
groups, pages = sweeps.query("page_size == 16"), sweeps.query("q_heads == 32")
plots.group_and_page(groups, pages, origin=origin)
plt.show()

# %% [markdown]
# The steps of `decode_fma` are those of its tile, which has 8 rows for 5 to 8 query heads; beyond that, two blocks share the work.
#
# Why do the lines of the kernels on CUDA cores rise at all, so far below the groups at which FMAs would take longer than memory?
# An {term}`SM` issues at most four instructions per clock, and FMAs at their peak take every one of these slots.
# But a kernel has more to do than FMAs: it converts 16-bit numbers, adds up over lanes, moves weights, computes addresses.
# At a group of 8 the kernels without tensor cores take longer than the memory does, so that their time counts slots, used or lost.
# This time over that of the FMAs alone says how many slots each FMA costs in all, and what that makes at a group of 4:

# %%
off_ms = groups.set_index(["kernel", "group"]).time_ms
fma_ms, memory_ms = (floors.set_index("group")[c] for c in ("off: FMAs, ms", "memory, ms"))
slots = pd.DataFrame({"kernel": ["decode_fma", "flashinfer_cuda_cores"]})
slots["group 8, ms"] = [off_ms[kernel, 8] for kernel in slots.kernel]
slots["FMAs alone, ms"] = fma_ms[8]
slots["slots per FMA"] = slots["group 8, ms"] / fma_ms[8]
slots["group 4, slots, ms"] = slots["slots per FMA"] * fma_ms[4]
slots["memory, ms"] = memory_ms[4]
slots["measured, ms"] = [off_ms[kernel, 4] for kernel in slots.kernel]
numeric = slots.columns[1:]
plots.table(slots, "slots", dict.fromkeys(numeric, "{:.3f}") | {"slots per FMA": "{:.1f}"})

# %% [markdown]
# For `decode_fma` the slots of a group of 4 take less time than the memory, so that the kernel runs at the memory's pace.
# For FlashInfer's kernel the slots take more time than the memory, and they set its pace.
# While the slots are busy, the next loads are not issued, so the memory waits as well.
# On tensor cores one `mma.sync` replaces 64 FMAs per lane, and the slots are free for loading.
#
# That is a fit of one number per kernel. Nsight Compute counts the slots themselves; of our kernels the lab has its counters at a group of 8, for 64 requests of 4096 keys on the same H200:

# %% tags=["hide-input"]
counted = [r for r in store.read("counters") if r["kernel"] in KERNELS and r["q_len"] == 1]
counted = pd.DataFrame(recorded.newest_of_each(counted, ("kernel",)))
counted = counted.pivot(index="kernel", columns="metric", values="value")
shape = Decode.uniform(64, 4096, q_heads=64, kv_heads=8)
fmas = shape.flops / 2 / 32  # in instructions of a warp
all_slots = 4 * counted.time * counted.sm_clock * h200.sm_count
waiting = counted.stall_long_scoreboard / counted.filter(like="stall_").sum(axis=1)
profile = pd.DataFrame({"slots issued, %": counted.issue, "memory's peak, %": counted.dram})
profile["issued slots per FMA"] = counted.issue / 100 * all_slots / fmas
profile["all slots per FMA"] = all_slots / fmas
profile["warps that wait for memory, %"] = 100 * waiting
digits = dict.fromkeys(profile.columns, "{:.0f}") | dict.fromkeys(profile.columns[2:4], "{:.1f}")
plots.table(profile.reset_index(), "counted-slots", digits)

# %% [markdown]
# `decode_fma` issues {glue:text}`issued_fma` instructions per FMA and takes the time of {glue:text}`spent_fma`: two thirds of the slots are used and the rest are lost to dependences, while hardly a warp waits for memory.
# So at a group of 8 it is the slots that it waits for, as the fit says.
# On tensor cores the same work issues fewer than a third of these instructions, and the warps wait for a memory that is busy.
# FlashInfer's kernels have not been profiled; of them the fit is all that there is.
#
# ### The report's quarter, on the report's GPU
#
# Does the same criterion give the gain of the case, 1.25, on the GPU that the case ran on?
# The profiler's waves fit 108 SMs and no other part: it was an A100, of 40 or 80 GB.
# The table takes the slots per FMA of FlashInfer's kernel from above, once for work that all SMs share evenly, and once for an SM that has 5 of the 456 blocks where the mean is 4.2.

# %% tags=["hide-input"]
there = pd.DataFrame(chapter.on_the_threads_gpu(slots["slots per FMA"][1]))
lines = there.set_index("GPU").T.rename_axis("").reset_index()
plots.table(lines, "thread", dict.fromkeys(there.GPU, "{:.2f}"))

# %% tags=["hide-cell"]
shares = {f"wave_{way}": share for way, share in chapter.last_wave().items()}
shares |= dict(zip(("on_small", "on_large"), there["on, % of the peak"], strict=True))
shares["off_large"] = there["off, % of the peak"][1]
shares["copy_percent"] = 100 * h200.measured_copy_bytes_per_s / h200.dram_bytes_per_s
for name, percent in shares.items():
    glue(name, f"{percent:.0f}", display=False)

# %% [markdown]
# The criterion says: no gain with 40 GB, and at most a tenth with 80 GB.
# The report has a gain of a quarter, so the criterion does not explain it.
#
# The last two lines say where it fails.
# It supposes that the kernel with tensor cores runs at the memory's pace.
# With 40 GB that kernel would have read at {glue:text}`on_small` % of the memory's peak, where a copy on an H200 reaches {glue:text}`copy_percent` %; so the part had 80 GB, and there it stood at {glue:text}`on_large` %.
# Its blocks come two per SM, in three rounds of which the last is almost empty: {glue:text}`wave_on` % of the SMs' time has a block.
# These empty slots alone are as much as the kernel lost.
# Without tensor cores all blocks are there at once, an SM with five ends last, {glue:text}`wave_off` % of the time has a block, and yet the kernel stood at {glue:text}`off_large` %.
# The rest must be waiting that slots and waves do not count: loads are issued late, because each of the few warps first has to spend its slots.
# A profile of that kernel on an A100, with its issued slots and its warps' reasons to wait, would prove or refute it; the lab has no A100.
# So the quarter is the quotient of two kernels that both stay below the memory's pace, for different reasons; it is no property of tensor cores.
#
# ### The default backend
#
# What runs behind `auto` depends on FlashInfer's version.
# In the version that the lab measured first, `auto` meant *fa3* on this GPU, a {term}`prefill` kernel for Hopper whose tile has 128 query rows.
# That kernel does not pack the group into the tile: every query head reads its keys again, $g$ times the bytes, so that its time rises as {eq}`decode-least-time` times $g$.
# In 0.7.2, which is recorded here, `auto` means fa2 for a decode in 16 bits.
# So the lines of `auto` and fa2 in {numref}`group-sweep` lie on each other: at a group of 4 their times are {glue:text}`auto_fa2` to one.
#
# ### Error, on the H200
#
# The maps below are those of the recorded case, with 57 samples and 32 heads.
# All requests have the same length, so all rows should look alike.
# A single cell with a large error is a row whose softmax is sharp: its outputs are larger, and so are its ulps, on and off alike.

# %% mystnb={"figure": {"caption": "On the H200 too no sample and no head stands apart: the error is rounding, tensor cores on or off. fp16, 8192 keys each.", "name": "recorded-map"}, "image": {"alt": "Three heat maps side by side, each of 57 samples and 32 query heads: rmse with tensor cores off, with tensor cores on, and of the difference of the two outputs. Each is an even grain without stripes; off has the smallest errors, the difference the largest.", "width": "100%"}} tags=["hide-input"]
maps = pd.DataFrame(store.read("decode_accuracy"))
of_maps = store.select(everything, {"started_utc": maps.started_utc.iloc[0]})
shown = ["decode_fma", "decode_mma", "decode_mma - decode_fma"]
maps = maps[(maps.dtype == "fp16") & maps.kernel.isin(shown)]
plots.error_maps(maps, origin=recorded.origin(of_maps), label="rmse")
plt.show()

# %% tags=["hide-input"]
at_case = measured[(measured[list(case_000)] == pd.Series(case_000)).all(axis=1)]
keys = ["dtype", "tensor_cores", "kernel"]
errors = at_case[at_case.metric == "error"].pivot(index=keys, columns="statistic", values="value")
errors = errors.reset_index().query("kernel in @KERNELS or kernel in @FLASHINFER")
expected_rmse = [predicted.loc[row.dtype, row.tensor_cores] for row in errors.itertuples()]
shown = errors[keys].rename(columns={"tensor_cores": "tensor cores"})
for title, name in {"rmse": "rmse", "max": "max_abs", "bias": "bias"}.items():
    shown[f"{title}, 1e-6"] = 1e6 * errors[name]
shown["rmse / predicted"] = errors.rmse / expected_rmse
shown = shown.sort_values(["dtype", "tensor cores"], ascending=False)
digits = {"rmse, 1e-6": "{:.2f}", "max, 1e-6": "{:.0f}", "bias, 1e-6": "{:+.1g}"}
plots.table(shown, "errors", digits | {"rmse / predicted": "{:.2f}"})

# %% [markdown]
# Our kernels err as predicted, from one request of other random numbers.
# FlashInfer on CUDA cores errs more than {eq}`decode-variance` allows it, more even than on tensor cores.
# This is no bug, and the kernel does compute in fp32; the last exercise finds the reason.
#
# ### What it takes
#
# The table has the registers and the shared memory of our kernels for the case, predicted and as the compiler made them, and the blocks that the H200's driver counts.

# %% tags=["hide-input"]
driver = at_case.query("dtype == 'fp16' and statistic == 'exact' and kernel in @KERNELS")
driver = driver.pivot(index="kernel", columns="metric", values="value")
columns, found = {}, {}
for name, instance in instances.items():
    found[name] = known = resources.resources(instance, gpu=h200)
    compiled, fit, told = known.compiled, known.occupancy, driver.loc[name]
    columns[name] = [known.registers.total, known.predicted.registers, compiled.registers]
    columns[name] += [f"{told.registers:.0f}"]
    columns[name] += [compiled.spill_bytes, f"{known.smem.total:,}", fit.blocks_per_sm, fit.limit]
    columns[name] += [f"{value:.0f}" for value in (told.blocks_per_sm, told.blocks)]
    columns[name] += [f"{budget.waves(int(told.blocks), fit, h200):.2f}"]
lines = ["registers per thread, held", "… predicted", "… compiled", "… by the H200's driver"]
lines += ["bytes spilled", "shared memory, bytes", "blocks per SM, predicted", "… limited by"]
lines += ["… by the H200's driver", "blocks of the case", "waves"]
plots.table(pd.DataFrame({"": lines, **columns}), "taken")

# %% [markdown]
# What is *held* follows from the algorithm: fragments, sums, addresses.
# {term}`ptxas`, the last step of NVIDIA's compiler, gives a thread more, at the place where the most registers are alive: operands loaded before their products, addresses computed before the loop, partial results in flight in the merge of splits.
# It spends registers up to a limit, which the {term}`launch bounds` set, and what it adds is a habit, alike in all kernels.
# The {glue:text}`fit_habits` numbers for these habits predict all kernels, tiles and architectures of the lab ({numref}`predicted-registers`).
# On tiles that the fit had not seen, the median error is {glue:text}`fit_unseen` %, and {glue:text}`fit_near` % of the rows lie within 12 %.
# A kernel of a new kind may have a habit of its own, which no fit can know in advance.
#
# A {term}`spill` is foreseen by where the limit lies; the table below the figure counts how well.
# Of what the compiler adds, every kernel kept some part even under the tightest limit; what is held and this part together are the *least* that a kernel needs.
# If the whole need fits into the limit with two registers to spare, the answer is *fits*; if only the least fits, it is *at the edge*; if not even the least fits, it is *spills*.

# %% mystnb={"figure": {"caption": "A ledger and a few habits of the compiler predict the registers of every kernel, tile and architecture, most of them within 12 %. Compiled by NVRTC for six architectures; on the limits 128, 168 and 255 many marks lie on each other, and only kernels of 254 or 255 registers spill.", "name": "predicted-registers"}, "image": {"alt": "A scatter of compiled over predicted registers per thread, from 64 to 255, along the diagonal of a grey band of 12 percent. Circles for CUDA cores, squares for mma.sync, diamonds for wgmma. A few marks lie outside the band, most of them above it; rings mark spills at 254 and 255.", "width": "100%"}} tags=["hide-input"]
reports = register_fit.reports()
plots.predicted_registers(
    pd.DataFrame(register_fit.scatter_rows(reports)),
    origin=f"computed on this machine; compiled by {reports.rows[-1]['compiler']}",
)
plt.show()

# %% tags=["hide-cell"]
unseen = np.abs(register_fit.held_out(reports, register_fit.tile_fold))
glue("fit_unseen", f"{100 * np.median(unseen):.1f}", display=False)
glue("fit_near", f"{100 * np.mean(unseen <= 0.12):.0f}", display=False)
glue("fit_habits", f"{len(register_fit.NAMES)}", display=False)

# %% [markdown]
# What is said to fit never spills, and at the edge a spill is rare and small.
# Rows are reports of the compiler; a tile spills if one of its reports does.

# %% tags=["hide-input"]
plots.table(pd.DataFrame(register_fit.spill_rows(reports)), "spill-answers", {"rows": "{:,}"})

# %% [markdown]
# A tile whose least stands on its limit may spill on one architecture and not on the next, with the same numbers alive.
# There the order in which ptxas lays out the instructions decides, and no count knows that order.
# The table has all answers that did not hold, each with its cause; the places of the spilled words were read in the machine code:

# %% tags=["hide-input"]
misses = pd.DataFrame(register_fit.spill_misses(reports))
plots.table(misses.rename(columns={"of": "of architectures"}), "spill-misses")

# %% [markdown]
# The halved accumulator of `decode_mma_n8` shows in the compiled registers.
# A smaller accumulator helps only where registers limit the blocks and the kernel needs more blocks. Here every warp is a pipeline of its own, so that few blocks already keep enough loads in flight.
# {numref}`blocks-per-sm` does the same sum for every GPU of {doc}`hardware`.

# %% mystnb={"figure": {"caption": "The same tiles fill other GPUs differently: where an SM has only 100 KiB, shared memory sets the limit. Blocks of 4 warps on an SM, from the compiled registers and the ledgers.", "name": "blocks-per-sm"}, "image": {"alt": "A grid of GPUs and three kernels. Each field holds the number of blocks on an SM and the number of warps, and its colour tells whether registers or shared memory set the limit. H100, H200 and B200 hold the most blocks, GPUs with 100 KiB the fewest.", "width": "100%"}} tags=["hide-input"]
rows = []
for gpu in hardware.GPUS.values():
    for name, instance in instances.items():
        fit = resources.resources(instance, gpu=gpu).occupancy
        short = gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        rows.append((short, name, fit.blocks_per_sm, fit.warps, fit.limit))
fits = pd.DataFrame(rows, columns=["gpu", "kernel", "blocks", "warps", "limit"])
plots.blocks_per_sm(fits, origin="computed on this machine")
plt.show()

# %% [markdown]
# ### Decode and prefill, live
#
# Everything above was about one decode.
# The next cell runs all kernels of both operations on this machine: on its GPU at full size if it has one of `sm_80` or newer, and otherwise as CPU builds and under Triton's interpreter, at the small size that the cell prints.
# A time of a CPU build is the time of a simulation and says nothing about a GPU.
# Every output is judged against float64 before it appears in the table.

# %% tags=["nbval-ignore-output"]
print(*(workload.label for workload in bench.here), sep="\n")
ran = bench.run()
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# The two operations differ here.
# The decode waits for memory, so that our CUDA kernels take nearly the same time with tensor cores on and off.
# The prefill multiplies each key with thousands of query tokens, and without tensor cores it takes many times as long ({numref}`onoff-timing`).

# %% mystnb={"figure": {"caption": "A CUDA kernel gains little from tensor cores in the decode and an order of magnitude in the prefill. The two workloads above, at full size; lines mark the least time, which memory sets for the decode and the products for the prefill.", "name": "onoff-timing"}, "image": {"alt": "A panel for each workload: a mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_timing()
plt.show()

# %% mystnb={"figure": {"caption": "Tensor cores add the rounding of P to every head and every request alike. Decode, fp16.", "name": "onoff-errors-decode"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("decode")
plt.show()

# %% mystnb={"figure": {"caption": "The same holds for prefill: no head and no request stands apart. bf16; under Triton's interpreter P stays in fp32, so that Triton's maps show the error of the store alone.", "name": "onoff-errors-prefill"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("prefill")
plt.show()

# %% [markdown]
# The fifth point below is therefore about decode only.
# This is what ran here:

# %% tags=["nbval-ignore-output"]
bench.log

# %% [markdown]
# ## What we learned
#
# The numbers below are computed from the tables above, in the cells folded here.

# %% tags=["hide-cell"]
live_rmse = live.pivot(index=["dtype", "stored in"], columns="kernel", values="rmse, 1e-6").T
rmse = errors.pivot(index="kernel", columns="dtype", values="rmse")["fp16"]
apart = at_case.query("metric == 'difference' and dtype == 'fp16'").set_index(
    ["kernel", "statistic"]
)
apart = apart.value["decode_mma - decode_fma"]
ours = off_ms["decode_fma"] / off_ms["decode_mma_n8"]
theirs = off_ms["flashinfer_cuda_cores"] / off_ms["flashinfer_fa2"]
auto = off_ms["flashinfer_auto"] / off_ms["flashinfer_fa2"]
flops_per_s = Decode.uniform(57, 8192, q_heads=32, kv_heads=8).flops / off_ms["decode_mma", 4] * 1e3
accumulators = ledger.loc["O accumulator"]

# %% tags=["hide-cell"]
numbers = {
    "issued_fma": f"{profile['issued slots per FMA'].decode_fma:.1f}",
    "spent_fma": f"{profile['all slots per FMA'].decode_fma:.1f}", "unnamed": f"{terms['without a name']}",
    "waves_thread": f"{reported.waves[1]:.2f}", "waves_block": f"{reported.waves[2]:.2f}",
    "by_rows": f"{by_rows:g}", "by_keys": f"{by_keys}",
    "max_relative": f"{apart.max_relative:.0f}", "max_abs": f"{apart.max_abs:.1e}",
    "gain_predicted": f"{predicted['on / off']['fp16']:.2f}",
    "gain_measured": f"{rmse.decode_mma / rmse.decode_fma:.2f}",
    "gain_flashinfer": f"{rmse.flashinfer_fa2 / rmse.flashinfer_cuda_cores:.2f}",
    "fp16_gain": f"{live_rmse['fp16', 'fp16'].pipe(lambda r: r.decode_mma / r.decode_fma):.1f}",
    "fp32_gain": f"{live_rmse['fp16', 'fp32'].pipe(lambda r: r.decode_mma / r.decode_fma):.0f}",
    "tensor_percent": f"{100 * flops_per_s / h200.tensor_fp16_flops:.1f}",
    **{f"ours_{g}": f"{ours[g]:.2f}" for g in (1, 4, 8, 16)},
    **{f"theirs_{g}": f"{theirs[g]:.2f}" for g in (1, 4, 8)},
}  # fmt: skip

# %% tags=["hide-cell"]
numbers |= {
    "slots_ours": f"{slots['slots per FMA'][0]:.1f}", "slots_theirs": f"{slots['slots per FMA'][1]:.1f}",
    "auto_fa2": f"{auto[4]:.3f}",
    "o_mma": f"{accumulators.decode_mma}", "o_n8": f"{accumulators.decode_mma_n8}",
    "registers_mma": f"{found['decode_mma'].compiled.registers}",
    "registers_n8": f"{found['decode_mma_n8'].compiled.registers}",
    "triton_off": f"{of_case[of_case.kernel == 'triton_decode'].time_ms.max():.1f}",
    "n8_time": f"{off_ms['decode_mma_n8', 4] / off_ms['decode_mma', 4]:.2f}",
}  # fmt: skip
for name, text in numbers.items():
    glue(name, text, display=False)
listed = pd.DataFrame(numbers.items(), columns=["name", "number"])
plots.table(listed.assign(name=listed.name.str.replace("_", " ")), "numbers")

# %% [markdown]
# 1. **182 registers are those of a thread, not of a block.**
#    Profilers count per thread, and only so the report's own figures agree: 66 registers per thread give {glue:text}`waves_thread` waves, as reported; 66 per block would give {glue:text}`waves_block`.
# 2. **The register formula is right for another kernel.**
#    (rows × keys + rows × channels) / threads gives {glue:text}`by_rows`, and holds where warps divide the rows.
#    Here they divide the keys, each keeps a whole $O$, and the accumulators take {glue:text}`by_keys`; of the other 102, operands, addresses and fragments loaded ahead explain all but {glue:text}`unnamed`.
# 3. **A maximum relative difference means nothing.**
#    On the H200 our two kernels, both as exact as rounding allows, reach {glue:text}`max_relative`.
#    The largest absolute difference is {glue:text}`max_abs`, one ulp of a large output.
# 4. **Turning tensor cores off buys little, because 16-bit outputs are the floor.**
#    The model allows a factor of {glue:text}`gain_predicted` in rmse, and the case measures {glue:text}`gain_measured`.
#    Whoever needs more must first store fp32; then off is {glue:text}`fp32_gain` times as exact.
#    In FlashInfer the factor is even {glue:text}`gain_flashinfer`: off is no better than on.
# 5. **The gain is issue slots and hidden latency, not arithmetic.**
#    With tensor cores on, the case uses {glue:text}`tensor_percent` % of what they can do: it waits for memory.
#    Off, our kernel takes {glue:text}`ours_1`, {glue:text}`ours_4`, {glue:text}`ours_8` and {glue:text}`ours_16` times as long at groups of 1, 4, 8 and 16, and FlashInfer's {glue:text}`theirs_1`, {glue:text}`theirs_4` and {glue:text}`theirs_8` times at 1, 4 and 8.
#    For each FMA they spend, or lose, {glue:text}`slots_ours` and {glue:text}`slots_theirs` instruction slots.
#    At a group of 4 that is more time than the memory needs for FlashInfer's kernel, and less for ours.
# 6. **`use_tensor_cores=True` does not say which kernel runs.**
#    Older versions of FlashInfer picked a prefill kernel of 128 query rows on this GPU, which reads K and V once for each of the 4 query heads.
#    FlashInfer 0.7.2 picks fa2, and the switch does what it promises.
#    Whoever compares kernels must name the backend, or read which one was picked.
# 7. **The 8-row tile exists: keys on M, queries on N.**
#    `decode_mma_n8` keeps {glue:text}`o_n8` accumulator registers where `decode_mma` keeps {glue:text}`o_mma`, and compiles to {glue:text}`registers_n8` registers instead of {glue:text}`registers_mma`.
#    It takes {glue:text}`n8_time` times as long and errs the same: the padding was never what this decode waited for.
#
# Where did the model fail?
# Its time is a floor: it counts FMAs, whereas a kernel spends issue slots, and the slots per FMA had to be measured.
# What a thread holds is a lower bound on its registers; what the compiler adds had to be read off its reports.
# Its error needed no correction, except for a kernel that rounds more often than it must.
#
# ## Exercises
#
# ```{exercise}
# :label: tensor-cores-rows
#
# FlashInfer's tile for longer queries has 64 rows and 128 keys, and its 4 warps divide the *rows*.
# Which of the two register formulas holds for a block of 128 threads, and how many registers does a thread's accumulator take, scores and output together?
# Check your answer with `exercises.check("tensor-cores-rows", registers)`.
# ```
#
# ```{solution-start} tensor-cores-rows
# :class: dropdown
# ```
#
# Equation {eq}`registers-rows` holds.
# A warp then has 16 rows, all 128 keys and all 128 channels, which {eq}`registers-keys` counts for that one warp; the two agree.

# %%
one_warp = budget.kv_split_register_formula(16, 128, 128)
assert budget.reported_register_formula(64, 128, 128, threads=128) == one_warp == 128
assert exercises.check("tensor-cores-rows", one_warp)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: tensor-cores-floor
#
# Build the best fp16 output there can be: the float64 output, rounded once.
# How much smaller is its rmse than that of `decode_fma` and of `decode_mma` on the eight requests?
# Check your answer with `exercises.check("tensor-cores-floor", (of_decode_fma, of_decode_mma))`: each kernel's rmse over that of the best output.
# ```
#
# ```{solution-start} tensor-cores-floor
# :class: dropdown
# ```
#
# Tensor cores off is at the floor already: no kernel that stores fp16 can be better.

# %%
best = metrics.difference(rounding.round_to(truths["fp16"], "fp16"), truths["fp16"])
over_floor = live_rmse["fp16", "fp16"] * 1e-6 / metrics.rms(best, by="all")
assert exercises.check("tensor-cores-floor", (over_floor.decode_fma, over_floor.decode_mma))

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: tensor-cores-partials
#
# On the H200 FlashInfer's CUDA-core kernel cuts each request of the case into two splits.
# It stores the two partial outputs in the type of the output and merges them by their {term}`LSE`.
# Predict its rmse from that, and compare with the recorded one.
# Check your answer with `exercises.check("tensor-cores-partials", predicted / recorded)`.
# ```
#
# ```{solution-start} tensor-cores-partials
# :class: dropdown
# ```
#
# Each partial output is rounded to 16 bits, and enters the merge with its share of the sum of weights.
# Together with the store of the merged output these are three roundings instead of one.
# Our kernels keep partial outputs in fp32.

# %%
from labkernels.numerics.truth.problem import Problem

case = long["fp16"]
q, k, v = (arrays.as_float64(x) for x in (case.q, case.cache.k, case.cache.v))
halves = np.split(case.cache.page_table.numpy(), 2, axis=1)
parts = [oracle.attention(Problem(q, k, v, pages, [4096], case.scale)) for pages in halves]
lse2 = np.logaddexp2(parts[0][1], parts[1][1])
variance = sigmas["off"]["fp16"] ** 2
for o, part_lse2 in parts:
    weight = np.exp2(part_lse2 - lse2)[..., None]
    variance = variance + (weight * rounding.quantum(o, "fp16")) ** 2 / 12
predicted = np.sqrt(variance.mean())
assert exercises.check("tensor-cores-partials", predicted / rmse.flashinfer_cuda_cores)

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case and its numbers, and the maintainer's answer on $P$, are from {cite:t}`flashinfer703`.
# We infer from the waves that it ran on an A100.
# FlashInfer's shared memory, its tile and the type of its partial outputs were read in its sources {cite:p}`ye2025`; the register formula for divided rows was reported with the case.
# What `auto` picks was read in the sources of FlashInfer 0.7.2, and seen in an earlier recording for the version before.
# {cite:t}`higham2019` justify the treatment of roundings as independent uniform errors.
# What tensor cores do to the products, which the CPU build follows bit for bit, is from {cite:t}`fasi2021` and {cite:t}`xie2025`.
# Grouped queries are from {cite:t}`ainslie2023`, split-KV is from {cite:t}`dao2023`, and `mma.sync`, `ldmatrix` and `movmatrix` are from the PTX manual {cite:p}`ptx`.
