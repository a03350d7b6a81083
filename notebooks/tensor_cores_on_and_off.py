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
# One decode step in FlashInfer takes 1.276 ms with `use_tensor_cores` on and 1.595 ms with it off; the inputs are the same, but the outputs do not match {cite:p}`flashinfer703`.
# **Which output is right, and where does the speed come from?**
#
# :::{admonition} Answer
# :class: important
#
# Both are right, and err as predicted. Tensor cores take the weights in 16 bits; our rmse in fp16 grows {glue:text}`gain_fp16` times, with real inputs by {glue:text}`more_real` %.
# The cache is the same, so little is gained: {glue:text}`ours_4` times in ours at 4 heads per KV head. FlashInfer's gain {glue:text}`theirs_4` in fp16 and {glue:text}`theirs_bf16` in bf16; this and the report's 1.25 are *not explained*.
# How sure: one H200 (CUDA {glue:text}`cuda`), {glue:text}`flashinfer` by later rows; no A100, not the report's version.
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
from myst_nb import glue

# %% tags=["hide-input"]
from labkernels import Bench, Prefill, budget, hardware, ops, plots, widgets
from labkernels.budget.published import flashinfer_decode, flashinfer_prefill
from labkernels.chapters import exercises, live
from labkernels.chapters import tensor_cores_on_and_off as chapter
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure import error_budget, real_inputs
from labkernels.measure.judge.judge import judge_of
from labkernels.numerics import arrays, metrics, rounding
from labkernels.numerics.truth import oracle

# %% tags=["hide-input"]
from labkernels.plots.accuracy.by_place import by_place
from labkernels.policy import CUDA_CORES, TENSOR_CORES
from labkernels.records import recorded, store

KERNELS = ("decode_fma", "decode_mma", "decode_mma_n8")
specs = {name: discover()[name] for name in KERNELS}
case_000 = {"batch": 57, "kv_len": 8192, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 16}  # fmt: skip
FLASHINFER = ("flashinfer_cuda_cores", "flashinfer_fa2", "flashinfer_auto")
everything = store.read("decode_tensor_cores")
run = recorded.newest_with(everything, (*KERNELS, *FLASHINFER), case_000)
measured, origin = pd.DataFrame(run), recorded.origin(run)
sweeps = plots.graph_times(measured).query("batch == 57 and head_dim == 128")
of_case = sweeps.query("q_heads == 32 and page_size == 16 and kernel != 'torch_sdpa'")

# %% mystnb={"figure": {"caption": "The case on an H200: our kernels, with tensor cores (squares) and without (circles), and fa2, FlashInfer's kernel on tensor cores, which its default (auto) runs, come near the rate of a copy; FlashInfer's kernel on CUDA cores does not. Filled marks are fp16, hollow ones bf16. Percent are of the copy's rate, which a kernel that only reads can pass a little.", "name": "case-times"}, "image": {"alt": "Horizontal lines that end in marks, two for each kernel, sorted by time, with the time in milliseconds and the percent of the copy ceiling written beside each. A vertical line marks the copy ceiling. FlashInfer fa2, decode_mma, decode_mma_n8, decode_fma, FlashInfer auto and Triton with tensor cores end near it; FlashInfer on CUDA cores is longer.", "width": "100%"}} tags=["hide-input"]
plots.case_times(of_case.query("time_ms < 5"), origin=origin)
plt.show()

# %% [markdown]
# ## What each source says
#
# The thread has 57 requests with 8192 keys, 32 query heads on 8 KV heads, 128 channels, pages of 16 keys, and the two times.
# From a profiler it quotes, for on and off, 182 and 66 "Registers Per Threadblock", 69.63 and 9.22 KB of dynamic shared memory, and 2.11 and 0.60 {term}`waves <wave>` per SM.
# A maintainer answers that the decode kernel computes in fp32, and names as another possible reason that $P$ must be rounded to f16 for the second product.
# Neither GPU nor data type is in the part that is public to us.
#
# An article that retells the thread, 《FlashInfer项目中Tensor Core使用对注意力计算精度的影响分析》 (in Chinese, on a developers' site, 2025-06-29), has the relative differences, 1.579 at most and 0.0022 on average, before which the part of the thread that we have ends. It adds a formula of registers, (rows × keys + rows × channels) / threads, a plan for a tile of 8 rows, and the advice to turn tensor cores off where precision matters.
# This is what the chapter finds of these claims:
#
# | claim | found |
# |---|---|
# | 182 registers per block (thread and article) | 182 per *thread*: only so the waves come out |
# | the formula of registers (article) | right where warps divide the rows; here they divide the keys |
# | a relative difference of 1.579 (article) | a quotient by an output near zero, if it is like ours |
# | off where precision matters (article) | a 16-bit output is the floor: off is {glue:text}`gain_fp16` times as exact in fp16, {glue:text}`gain_bf16` times in bf16, and {glue:text}`fp32_gain` times only if fp32 is stored |
# | an 8-row tile (article) | our `decode_mma_n8` has one, and takes {glue:text}`n8_time` of the time of `decode_mma` |
#
# ## Prediction
#
# ### Time
#
# A step must read every key and every value once, so that it takes at least
#
# $$
# t_{\min} = \frac{2 \cdot 2 \, B \, L \, H_{kv} \, D}{\beta} .
# $$ (decode-least-time)
#
# | symbol | meaning |
# |---|---|
# | 2, 2 | keys and values; bytes of an element |
# | $B$, $L$ | requests; keys of a request |
# | $H_{kv}$, $D$ | KV heads; channels |
# | $\beta$ | bytes per second that a copy reaches on the chip |
#
# The query heads of one KV head, 4 in the case, are its {term}`group <GQA>`. They share what is read, and only the arithmetic grows with their number.
# The table has the time of each part alone, at its best rate on an H200:

# %% tags=["hide-input"]
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
# At the case's group of 4, reading takes {glue:text}`reading_4` times as long as the FMAs: **no gain from tensor cores**, until the group comes near {glue:text}`tie_group`.
#
# ### Registers and shared memory
#
# A matrix of 16 rows and $n$ columns in fp32 takes $16 n / 32$ registers of each of a warp's 32 threads.
# If the warps of a block divide the *query rows*, they divide the scores $S$ and the output $O$, too. If they divide the *keys*, as decode kernels do because they have so few rows, each warp needs a whole $O$:
#
# $$
# \begin{aligned}
# R_{\text{rows}} &= \frac{\text{rows} \cdot (\text{keys} + D)}{\text{threads}} , \\
# R_{\text{keys}} &= \frac{\text{rows} \cdot (\text{keys of a warp} + D)}{32} .
# \end{aligned}
# $$ (registers)
#
# For FlashInfer's tile of 16 rows and 4 warps of 32 keys:

# %%
by_rows = budget.reported_register_formula(16, 128, 128, 128)
by_keys = budget.kv_split_register_formula(16, 128, 32)
print(f"{by_rows:g} registers if rows are divided, {by_keys} if keys are")

# %% [markdown]
# The next table has FlashInfer's bytes, by the formulas in its source, and the blocks that an A100 holds with the profiler's registers.
# That the GPU was an A100 is our inference from the waves, which are 456 blocks over what 108 SMs hold at once:

# %% tags=["hide-input"]
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
# Bytes and waves are the report's to the last digit, and would not be if 66 registers were a block's.
#
# ### What our kernels take
#
# This is the same for our own `decode_mma_n8`, whose tile has 8 rows, term by term on an A100:

# %% tags=["hide-output"]
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8, dtype="fp16")
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True, page_size=16)
names = [*live.EVERY, "decode_mma_n8"]
whole = Bench(decode, prefill, kernels=names, gpu="h200")
whole.equations("decode_mma_n8", gpu="a100")

# %% mystnb={"figure": {"caption": "Tensor cores cost no registers by themselves: decode_fma and decode_mma take about as many, and decode_mma_n8, whose accumulator is half as large, takes fewest. Predicted; compiled for an H200.", "name": "onoff-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
whole.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "The same tiles fill other GPUs differently: registers set the limit on an H200, and shared memory on an RTX 4090, whose SM has 100 KiB. Below each bar stands what one block more would take. Computed from the ledgers.", "name": "blocks-per-sm"}, "image": {"alt": "A panel for each of three GPUs with a row for each of three kernels: the blocks that fit an SM, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
Bench(decode, kernels=KERNELS).plot_occupancy("a100", "h200", "rtx4090")
whole.log.drew("occupancy", "decode")
plt.show()

# %% [markdown]
# ### Error
#
# Sums in fp32 err far below 16 bits. Two roundings to 16 bits remain, each uniform in one ulp, with variance $\mathrm{ulp}^2/12$ {cite:p}`higham2019`:
#
# $$
# \begin{aligned}
# \sigma_P^2 &= \frac{1}{l^2} \sum_j \frac{\mathrm{ulp}(P_j)^2}{12} \, v_j^2 , \\
# \sigma_o^2 &= \frac{\mathrm{ulp}(o)^2}{12} .
# \end{aligned}
# $$ (decode-variance)
#
# Here $l$ is the sum of the weights.
# The first variance is the price of tensor cores; the second is paid by every kernel that stores 16 bits.
# For one request of 8192 keys the inputs alone predict this rmse:

# %% tags=["hide-input"]
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
# `decode_fma` has no tensor cores: sixteen lanes share a key, with one fp32 {term}`FMA` per query head and channel.
#
# ```{literalinclude} /labkernels/kernels/decode/fma/kernel.cuh
# :language: cpp
# :start-after: "[lab: scores]"
# :end-before: "[/lab: scores]"
# ```
#
# `decode_mma` makes the group's query heads the rows of `mma.sync.m16n8k16`; with a group of 4, twelve of the 16 rows are padding.
#
# ```{literalinclude} /labkernels/kernels/decode/mma/kernel.cuh
# :language: cpp
# :start-after: "[lab: scores]"
# :end-before: "[/lab: scores]"
# ```
#
# Run `decode_mma`, then `decode_fma` with the same inputs, on your own CPU and with the bits of an H200:

# %% tags=["remove-input", "hide-output"]
widgets.run_kernel("decode_mma")

# %% [markdown]
# ## Measurement
#
# ### Error, on this machine
#
# Each kernel runs twice on eight requests of 17 to 1024 keys: its output is stored in 16 bits, and in fp32, which shows what the store hides. `decode_mma_n8` rounds as `decode_mma` does, and has no row here.

# %% tags=["hide-input"]
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
live_table = pd.DataFrame(rows).sort_values(["dtype", "stored in"], ascending=False, kind="stable")
digits = {"rmse, 1e-6": "{:.3g}", "bias, 1e-6": "{:+.1g}", "rmse / predicted": "{:.2f}"}
plots.table(live_table[live_table.kernel != "decode_mma_n8"], "live", digits)

# %% [markdown]
# Wherever something is rounded to 16 bits, *rmse / predicted* is 1 or a little less, with tensor cores and without; elsewhere the model is only an upper estimate.
# If fp32 is stored, off is {glue:text}`fp32_gain` times as exact as on; if fp16 is stored, {glue:text}`fp16_gain` times.
#
# The report and the article compare on with off. The same comparison here:

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

# %% mystnb={"figure": {"caption": "The difference follows the size of the terms, not of the output: towards small outputs it stays where it is, and so the relative difference grows without limit. fp16; a dot is an element whose two outputs differ.", "name": "relative"}, "image": {"alt": "Two scatter plots over the size of the output, all axes logarithmic. Above, the absolute difference: on the right horizontal stripes on the staircase of one ulp, on the left a cloud at about ten to the minus five, far above the ulp. Below, the relative difference: on the right below one part in a thousand, rising to the left; a circle marks its highest point, at one of the smallest outputs.", "width": "100%"}} tags=["hide-input"]
off, on = outputs["fp16", "decode_fma", "input"], outputs["fp16", "decode_mma", "input"]
size, gap = (np.abs(x).ravel() for x in (truths["fp16"], on - off))
elements = pd.DataFrame({"size": size, "difference": gap})[gap > 0]
steps = np.geomspace(size.min(), size.max(), 4000)
staircase = pd.DataFrame({"size": steps, "ulp": rounding.quantum(steps, "fp16")})
plots.relative_difference(elements, ulp=staircase, origin="computed on this machine")
plt.show()

# %% [markdown]
# An output is a weighted sum of values of both signs, and can cancel to nearly nothing, while its error stays as large as before.
# So the largest quotient says how close to zero an output came, and grows with the number of outputs.
#
# ### Both operations, on and off
#
# Decode and prefill answer the same question here, in CUDA and in Triton, with random inputs and with heads of SmolLM2 ({doc}`does_it_matter`). Its query heads 0 to 2 are *peaky*, 3 to 5 have *large values*, and 6 to 8 look at the *first key*:

# %% tags=["hide-input", "nbval-ignore-output"]
small = {"decode": Decode((160, 64, 17), 8, 2, 128, dtype="fp16")}
small["prefill"] = Prefill((32, 24, 17), (128, 64, 17), 4, 2, 128, causal=True, dtype="fp16")
bench = Bench(*small.values(), kernels=live.EVERY)
ran = bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")

# %% mystnb={"figure": {"caption": "Tensor cores add {glue:text}`more_random` % to the error of the store with random inputs, and {glue:text}`more_real` % with a trained model's, in a prefill as in a decode. Relative L2 error of each request and head, CUDA and Triton, fp16.", "name": "onoff-places"}, "image": {"alt": "Four panels, decode above and prefill below, over query heads on the left and requests on the right, each for random inputs and for SmolLM2. Dots with tensor cores off lie near 0.0002, those with tensor cores on lie higher with random inputs, and hardly higher with SmolLM2, whose head 8 has some dots near zero.", "width": "100%"}} tags=["hide-input"]
drawing = {"decode": decode_inputs, "prefill": prefill_inputs}
drawn = {name: draw(small[name], Normal(0, "cpu")) for name, draw in drawing.items()}
real = real_inputs.of_both(("peaky", "large values", "first key"), "fp16")
cells = live.beside({"random": drawn, "SmolLM2": real})
cells["kind"] = "tensor cores " + cells.way.str.split(", ").str[1]
cells = cells.sort_values("kind", ascending=False, kind="stable")
by_place(cells, label="relative L2 error", origin="computed on this machine", log=False)
bench.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# In a model a key often has most of a row's weight; its $P$ is 1, which 16 bits hold. Where many keys share the weight, their values cancel less than random ones, and the store errs with the larger output.
#
# ### Error, on the H200
#
# This is the whole case, as it was recorded:

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
# Our kernels err as predicted, with tensor cores a little less, so that on over off is {glue:text}`gain_fp16` in fp16 and {glue:text}`gain_bf16` in bf16.
# FlashInfer's kernel on CUDA cores errs more than {eq}`decode-variance` allows: on an H200 it cuts each request into two and stores the two parts in 16 bits (the last exercise).
# So off is no better than on here. By FlashInfer's source the kernel would not cut them on an A100, and off would be better there.
#
# <!-- guess: decode_gain -->
#
# ### Time, on the H200
#
# {numref}`case-times` has the case. The prediction, no gain at a group of 4, holds for our kernels and fails for FlashInfer's, which gain {glue:text}`theirs_4` in fp16 and {glue:text}`theirs_bf16` in bf16; the report does not say which of the two it ran.
# The step of `decode_mma` does {glue:text}`tensor_percent` % of the FLOPs that the tensor cores could.
# With the group the gain grows:

# %% mystnb={"figure": {"caption": "The more query heads share a KV head, the more tensor cores gain; the size of a page hardly matters. fp16, 57 requests of 8192 keys, page 16 on the left, group 4 on the right; missing marks were refused. Quartiles are drawn, mostly hidden by the marks.", "name": "group-sweep"}, "image": {"alt": "Two panels on one logarithmic time axis. Left, time against the group from 1 to 16: fa2, auto, decode_mma and decode_mma_n8 are flat lines near the copy ceiling; FlashInfer on CUDA cores leaves it at a group of 3 or 4 and rises steeply, decode_fma leaves it later and rises less. Right, time against pages of 1, 16 and 64 keys: flat lines.", "width": "100%"}} tags=["hide-input"]
sweeps = sweeps.query("dtype == 'fp16' and kernel not in ['triton_decode', 'torch_sdpa']")
groups, pages = sweeps.query("page_size == 16"), sweeps.query("q_heads == 32")
plots.group_and_page(groups, pages, origin=origin)
plt.show()

# %% [markdown]
# The stairs of `decode_fma` come from its tile, which has 8 rows for 5 to 8 query heads; beyond that, two blocks share the work.
#
# Why do the lines without tensor cores rise so early?
# An {term}`SM` can issue four instructions in a clock. FMAs at their peak take all four of these *slots*, but a kernel also converts, adds up over lanes and computes addresses.
# The time at a group of 8, over that of the FMAs alone, is the number of slots that pass per FMA. The column *group 4, slots* predicts a group of 4 from this number:

# %% tags=["hide-input"]
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
# One fitted number per kernel does not carry far: at a group of 4 it predicts {glue:text}`slots_4` ms for FlashInfer's kernel, which takes {glue:text}`measured_4`.
# Slots may be part of that kernel's time, and something else is, too.
# One `mma.sync` does the work of 64 FMAs of a lane if all 16 rows are used, and of 16 at a group of 4.
#
# ### What a profiler counted
#
# For our own kernels Nsight Compute counted the slots, at a group of 8 with 64 requests of 4096 keys:

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
# `decode_fma` issues {glue:text}`issued_fma` instructions per FMA in the time of {glue:text}`spent_fma` slots, and hardly a warp waits for memory: at a group of 8 its own instructions set its time.
# On tensor cores the same work issues at most {glue:text}`issued_share` % of these instructions, and the warps wait for a busy memory.
#
# ### The report's quarter, on an A100
#
# Suppose that the kernel on tensor cores takes the memory's time, and the other one the longer of memory's and slots', with the load of SMs that share the blocks (*even*) or of the SM with the most blocks (*busiest*).
# What would an A100 gain?

# %% tags=["hide-input"]
there = pd.DataFrame(chapter.on_the_threads_gpu(slots["slots per FMA"][1]))
lines = there.set_index("GPU").T.rename_axis("").reset_index()
plots.table(lines, "thread", dict.fromkeys(there.GPU, "{:.2f}"))

# %% tags=["evidence"]
shares = {f"wave_{way}": share for way, share in chapter.last_wave().items()}
shares |= dict(zip(("on_small", "on_large"), there["on, % of the peak"], strict=True))
shares["off_large"] = there["off, % of the peak"][1]
shares["copy_percent"] = 100 * h200.measured_copy_bytes_per_s / h200.dram_bytes_per_s
for name, percent in shares.items():
    glue(name, f"{percent:.0f}", display=False)

# %% [markdown]
# An A100 would gain nothing with 40 GB and at most {glue:text}`gain_most` times with 80 GB. **This criterion does not explain the report's 1.25.**
# The last two lines say where it fails.
# With 40 GB the kernel on tensor cores would have read at {glue:text}`on_small` % of the memory's peak. A copy on an H200 reaches {glue:text}`copy_percent` %, so that the report's GPU probably had 80 GB, of whose peak the kernel reached {glue:text}`on_large` %.
# Its blocks come in three rounds, the last almost empty, so that the SMs are filled for {glue:text}`wave_on` % of the time.
# Without tensor cores they are filled for {glue:text}`wave_off` %, and yet that kernel reached only {glue:text}`off_large` % of the memory's peak.
# So both kernels stayed below the memory's pace, for reasons that only a profile on an A100 could name.

# %% tags=["evidence"]
live_rmse = live_table.pivot(index=["dtype", "stored in"], columns="kernel", values="rmse, 1e-6").T
rmse_by = errors.pivot(index="kernel", columns="dtype", values="rmse")
rmse = rmse_by["fp16"]
ours = off_ms["decode_fma"] / off_ms["decode_mma_n8"]
theirs = off_ms["flashinfer_cuda_cores"] / off_ms["flashinfer_fa2"]
flops_per_s = decode.flops / off_ms["decode_mma", 4] * 1e3
least, issued = floors.set_index("group"), profile["issued slots per FMA"]
in_time = least["memory, ms"] / least["off: FMAs, ms"]

# %% tags=["evidence"]
numbers = {
    "reading_4": f"{in_time[4]:.1f}",
    "tie_group": f"{(in_time - 1).abs().idxmin()}",
    "issued_share": f"{100 * issued.drop('decode_fma').max() / issued.decode_fma:.0f}",
    **{f"gain_{t}": f"{rmse_by[t].decode_mma / rmse_by[t].decode_fma:.2f}" for t in rmse_by},
    "gain_most": f"{there['gain, busiest'].max():.2f}",
    "fp16_gain": f"{live_rmse['fp16', 'fp16'].pipe(lambda r: r.decode_mma / r.decode_fma):.1f}",
    "fp32_gain": f"{live_rmse['fp16', 'fp32'].pipe(lambda r: r.decode_mma / r.decode_fma):.0f}",
}

# %% tags=["evidence"]
means = cells.groupby(["inputs", "kind"]).value.mean().unstack()
more = 100 * (means["tensor cores on"] / means["tensor cores off"] - 1)
numbers |= {"more_random": f"{more['random']:.0f}", "more_real": f"{more['SmolLM2']:.0f}"}

# %% tags=["evidence"]
in_bf16 = of_case[of_case.dtype == "bf16"].set_index("kernel").time_ms
numbers |= {
    "tensor_percent": f"{100 * flops_per_s / h200.tensor_fp16_flops:.1f}",
    "cuda": measured.cuda.iloc[0],
    "issued_fma": f"{profile['issued slots per FMA'].decode_fma:.1f}",
    "spent_fma": f"{profile['all slots per FMA'].decode_fma:.1f}",
    "slots_4": f"{slots['group 4, slots, ms'][1]:.3f}",
    "measured_4": f"{slots['measured, ms'][1]:.3f}",
    "n8_time": f"{off_ms['decode_mma_n8', 4] / off_ms['decode_mma', 4]:.2f}",
    "theirs_bf16": f"{in_bf16.flashinfer_cuda_cores / in_bf16.flashinfer_fa2:.2f}",
    **{f"ours_{g}": f"{ours[g]:.2f}" for g in (4, 8, 16)},
    **{f"theirs_{g}": f"{theirs[g]:.2f}" for g in (4, 8)},
}
for name, text in numbers.items():
    glue(name, text, display=False)

# %% tags=["evidence"]
noted = [r for r in store.read("datasheets") if "FlashInfer" in r["version"]]
(peer,) = {r["version"] for r in noted}
glue("flashinfer", peer, display=False)
glue("flashinfer_day", min(r["started_utc"] for r in noted)[:10], display=False)

# %% [markdown]
# ### And a prefill?
#
# A prefill multiplies each key with thousands of query tokens, and there the switch is arithmetic:

# %% mystnb={"figure": {"caption": "In this prefill the switch means an order of magnitude: even the least time without tensor cores is longer than any measured with them. 8 requests of 2048 tokens in pages of 16; one recording on an H200.", "name": "onoff-timing"}, "image": {"alt": "A mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input"]
paged = Bench(prefill, kernels=live.KERNELS["prefill"], gpu="h200")
paged.plot_timing()
plt.show()

# %% tags=["nbval-ignore-output", "evidence"]
whole.log + paged.log + bench.log

# %% [markdown]
# ## What would change the answer
#
# - **A larger group.** Tensor cores make a step of our kernels {glue:text}`ours_8` times as fast at 8 query heads per KV head and {glue:text}`ours_16` times at 16, and one of FlashInfer's {glue:text}`theirs_8` times at 8.
# - **An fp32 output.** There alone the kernels without tensor cores are much more exact.
# - **Another version.** The recorded rows do not name FlashInfer's version; {glue:text}`flashinfer` is that of all later rows that do, from {glue:text}`flashinfer_day` on. `use_tensor_cores=True` does not say which kernel runs: by default a decode in 16 bits ran fa3 on this GPU in FlashInfer 0.6.0 to 0.6.3, and runs fa2 before and after them.
# - **An A100 with a profiler** could say what the report's kernels waited for.
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
# The first of {eq}`registers` holds.
# A warp then has 16 rows, all 128 keys and all 128 channels, which the second counts for that one warp; the two agree.

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
# The kernel stores the two partial outputs in the type of the output and merges them by their {term}`LSE`.
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
# The case is {cite:t}`flashinfer703`, as far as the thread is public to us; the article is named above without its author.
# FlashInfer's shared memory, its tile, its plans, the type of its partial outputs and its default kernel were read in its sources {cite:p}`ye2025`.
# {cite:t}`higham2019` justify the treatment of roundings as independent uniform errors.
# What tensor cores do to the products, which the CPU build follows bit for bit, is from {cite:t}`fasi2021` and {cite:t}`xie2025`.
# Grouped queries are from {cite:t}`ainslie2023`, split-KV is from {cite:t}`dao2023`, and `mma.sync` is from the PTX manual {cite:p}`ptx`.
