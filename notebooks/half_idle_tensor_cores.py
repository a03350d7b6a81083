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
# # Half-idle tensor cores
#
# ## Question
#
# On an RTX 3080, an RTX 4080 and an Orin the counter *Tensor Active* reads about 50 % for most of FlashAttention's kernels, and about 90 % for matrix products and convolutions {cite:p}`flashattention1205`.
# **Where does the other half go, and is it the occupancy?**
#
# :::{admonition} Answer
# :class: important
#
# On an H200 the counter reads {glue:text}`fa2_active` % for torch's FlashAttention-2: softmax takes much of the rest. For our kernel it reads {glue:text}`alone_active` % without overlap, {glue:text}`within_active` % with it. Occupancy is not why: a matrix product at {glue:text}`gemm_active` % has as few warps.
# On the report's GPUs the cause is *not settled*; half rate for fp32 sums would fit the GeForce parts.
# How sure: one H200 was counted (CUDA {glue:text}`cuda`, torch {glue:text}`torch`), {glue:text}`fa3_counted`.
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

from labkernels import Bench, Decode, Prefill, budget, hardware, plots
from labkernels.budget.published import flash_attention_2
from labkernels.budget.tile_model import busiest_sm_steps
from labkernels.chapters import exercises, live
from labkernels.experiments.performance import counters as experiment
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.prefill.inputs import prefill_inputs

# %% tags=["hide-input"]
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import real_inputs, resources
from labkernels.measure.implementation import with_tile
from labkernels.measure.tuning import search as tuning_search
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import bars, in_panels
from labkernels.records import recorded, store

h200 = hardware.gpu("h200")
REPORTED = ("h200", "rtx3080", "rtx4080", "orin")
COUNTED = {d: Prefill((4096,) * 4, (4096,) * 4, 2048 // d, 2048 // d, d) for d in (64, 128, 256)}

# %% tags=["hide-input"]
everything = store.read("counters")
everything = recorded.newest_of_each(everything, ("kernel", "tile", "head_dim"))
in_figures = [r for r in everything if not r["tile"] and "backward" not in r["kernel"]]
origin = recorded.origins(in_figures)
counted = plots.counter_table(pd.DataFrame(everything))
by_default = counted[counted.tile == ""]  # the others are the ladder's

# %% tags=["hide-input"]
wanted = [
    (call.head_dim, experiment.kernel_column(call), call.operation)
    for head_dim in COUNTED
    for call in experiment.calls(head_dim)
]
place = {(head_dim, name): n for n, (head_dim, name, _) in enumerate(wanted)}
order = [place.get(key, -1) for key in zip(by_default.head_dim, by_default.kernel, strict=True)]
by_default = by_default.assign(order=order).sort_values("order")
is_backward = by_default.kernel.str.contains("backward")
forward, backward = by_default[~is_backward], by_default[is_backward]

# %% mystnb={"figure": {"caption": "Tensor cores (tensor pipe) idle for part of the time in every attention kernel, and no other part is busy all the time either. Numbers are percent of what each part can do; exp2 is the special-function unit, ALU takes maxima and conversions, issue is the share of clocks in which a scheduler issues, warps is the occupancy.", "name": "busy-parts"}, "image": {"alt": "Grids of kernels and parts of an SM with percentages, one for the matrix product and one for each head_dim of attention. The matrix product is dark at the tensor pipe and at shared memory alone. Attention is half dark at the tensor pipe, darkest for kernels on wgmma at large head_dims; prefill_fma is dark at FMA and issue instead.", "width": "100%"}} tags=["hide-input"]
busy = plots.busy(forward[forward.head_dim < 256])
titles = {0: "matrix product, 8192 cubed"} | {d: f"forward, head_dim {d}" for d in COUNTED}
busy["panel"] = busy.head_dim.map(titles)
plots.busy_parts(busy, origin=origin)
plt.show()

# %% [markdown]
# ## What each source says
#
# The thread has the percentages above, from Nsight Systems. It has the author's check that *Tensor Active* times peak times time is the number of FLOPs, $4 B S^2 H D$, and the author's suspicion: the copies to shared memory are synchronised with the products, and shared memory allows few blocks.
# A sibling report by the same author has a kernel of 32 channels on the Orin, with 255 registers, 24,576 bytes of shared memory, a theoretical occupancy of 16.67 %, and 42.5 % active.
#
# An article that retells the thread, 《FlashAttention中TensorCore利用率优化深度解析》 (in Chinese, on a developers' site, 2025-05-13), adds a tile of 128 × 128 for 64 channels, whose 49 KB leave two blocks on an SM, the sentence that exponentials limit an H100 at 64 channels, and up to 85 % at 256.
# The last two are told as a maintainer's answer, which is not in the part of the thread that is public to us.
#
# ## Prediction
#
# ### Products against exponentials
#
# For each score a kernel does $4 D$ FLOPs and one exponential. In clocks of an SM,
#
# $$
# \frac{t_{\text{products}}}{t_{\exp}} = \frac{4 D E}{R_{\text{tensor}}} .
# $$ (half-idle-ratio)
#
# | symbol | meaning |
# |---|---|
# | $4 D$ | $2 D$ in $Q K^T$ and $2 D$ in $P V$, for $D$ channels |
# | $R_{\text{tensor}}$ | FLOPs of an SM's tensor cores in a clock, with fp32 sums |
# | $E$ | exponentials of its special-function units in a clock |
#
# If the two never overlap, the tensor cores are active for the share $t_{\text{products}} / (t_{\text{products}} + t_{\exp})$. {numref}`exp-roof` draws the ratio.

# %% [markdown] tags=["evidence"]
# The ratio of clocks for products and for exponentials, for every GPU that the lab knows:

# %% tags=["evidence"]
rows = []
for gpu in hardware.GPUS.values():
    rate = gpu.tensor_flops_per_clk_per_sm * gpu.tensor_fp32_accumulate_rate
    name = gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ").split(" SXM")[0]
    for head_dim in (64, 128, 256):
        ratio = 4 * head_dim * gpu.mufu_per_clk_per_sm / rate
        rows.append((name, head_dim, rate, ratio, 100 * ratio / (1 + ratio)))
columns = ["gpu", "head_dim", "rate", "ratio", "serial"]
roof = pd.DataFrame(rows, columns=columns)
shown = roof.pivot(index=["gpu", "rate"], columns="head_dim", values="ratio")
shown = shown.loc[roof.gpu.unique()].rename(columns="head_dim {}".format).reset_index()
shown = shown.rename(columns={"gpu": "GPU", "rate": "FLOP per clock, fp32 sums"})
ratios = dict.fromkeys(shown.columns[2:], "{:g} : 1")
plots.table(shown, "roof", {"FLOP per clock, fp32 sums": "{:,.0f}"} | ratios)

# %% mystnb={"figure": {"caption": "Exponentials take less time than products nearly everywhere. They tie at head_dim 64 on Hopper and at 128 on B200, and take longer at 64 on B200. On the GeForce parts of the case products take at least {glue:text}`geforce_ratio` times as long. The rates are those of gpus.toml; GPUs of one ratio share a line.", "name": "exp-roof"}, "image": {"alt": "Lines of the ratio of clocks for products and for exponentials over head_dim 64, 128 and 256, both axes logarithmic. GeForce parts rise from 8 to 32, A10 and L40S from 4 to 16, A100 from 2 to 8, H100 and H200 from 1 to 4, B200 from one half to 2.", "width": "100%"}} tags=["hide-input"]
kinds = roof.groupby(["rate", "head_dim"], sort=False).agg(
    kind=("gpu", lambda names: ", ".join(dict.fromkeys(names))), y=("ratio", "first")
)
kinds = kinds.reset_index().assign(panel="", dashed=False, x=lambda of: of.head_dim)
labels = ("head_dim", "products : exponentials")
in_panels(kinds, labels=labels, log="y", origin="computed from gpus.toml")
plt.show()

# %% [markdown]
# So exponentials can explain 50 % at 64 channels on an H100, if nothing overlaps.
# On an RTX 3080 they cannot: without any overlap its kernel would still be {glue:text}`serial_geforce` % active.
# For the Orin's kernel of 32 channels they can, since its ratio is half of that at 64 channels, one to one.
#
# ### Who fits on an SM
#
# $$
# \begin{aligned}
# \text{blocks} &= \min(b_{\text{bytes}}, b_{\text{registers}}, \dots) , \\
# b_{\text{bytes}} &= \Bigl\lfloor \frac{M}{m + 1024} \Bigr\rfloor , \\
# b_{\text{registers}} &= \Bigl\lfloor \frac{65536}{r \, t} \Bigr\rfloor .
# \end{aligned}
# $$ (half-idle-blocks)
#
# | symbol | meaning |
# |---|---|
# | $M$, $m$ | bytes of shared memory of an SM, and of a block |
# | 1024 | bytes that the system reserves for a block |
# | 65536 | registers of an SM |
# | $r$, $t$ | registers per thread; threads per block |
#
# This is the article's tile, 128 × 128 with 4 warps at 64 channels, as FlashAttention-2's source has it:

# %%
smem = flash_attention_2(block_m=128, block_n=128, head_dim=64)
print(smem.table())

# %% [markdown]
# The sums alone are 128 registers per thread for $S$ and 64 for $O$.
# The thread does not say what the compiler gives the whole kernel; issue 1630 of the same project has the compiler's report for this tile, 255 registers and 172 bytes spilled.
# With 255 registers every GPU holds two blocks by its registers.

# %% [markdown] tags=["evidence"]
# Blocks of FlashAttention-2's tile on an SM, with 255 registers per thread:

# %% tags=["evidence"]
rows = []
for gpu in hardware.GPUS.values():
    fit = budget.occupancy(gpu, threads=128, registers=255, smem_bytes=smem.total)
    held = 100 * fit.blocks_per_sm * 4 / gpu.warps_per_sm_max
    name = gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    rows.append((name, fit.by_smem, fit.by_registers, fit.blocks_per_sm, held))
columns = ["GPU", "by shared memory", "by registers", "blocks per SM", "occupancy, %"]
blocks_of_case = pd.DataFrame(rows, columns=columns)
plots.table(blocks_of_case, "blocks-of-case", {"occupancy, %": "{:.1f}"})

# %% [markdown]
# Where an SM has 100 KiB, shared memory leaves room for two blocks as well; elsewhere it leaves room for more.
# The sibling report agrees: by shared memory its tile would fit an Orin's SM six times, and its 16.67 % of the warps are two blocks.
# Do only FlashAttention's kernels take 255 registers? `prefill_mma` can be compiled for the same tile, and takes them on every architecture ({doc}`the tables </book/evidence>`).

# %% [markdown] tags=["evidence"]
# The same tile in `prefill_mma`, with the registers and spills that the compiler gives for each architecture:

# %% tags=["evidence"]
case_tile = with_tile("prefill_mma", "128x128x4x1x2-backward", 64)
ours = case_tile.instance(case_tile.shape(dtype="bf16", head_dim=64, group=1, layout="ragged"))
print(case_tile.registers(ours).table(), "\n")
first = {gpu.compile_arch: gpu for gpu in hardware.GPUS.values()}
rows = []
for arch, gpu in first.items():
    known = resources.resources(ours, gpu=gpu)
    said = (known.compiled.registers, known.compiled.spill_bytes) if known.compiled else ("–", "–")
    by = known.occupancy
    rows.append((arch, known.smem.total, *said, by.by_smem, by.by_registers))
columns = ["architecture", "bytes", "registers, compiled", "bytes spilled"]
compiled = pd.DataFrame(rows, columns=[*columns, "blocks by bytes", "blocks by registers"])
plots.table(compiled, "compiled-case", {"bytes": "{:,}"})

# %% [markdown]
# ### What our kernels take
#
# These are the terms of `prefill_mma` at 256 channels, as it was counted; below them stands what the kernels take at 128, and on the report's GPUs:

# %% tags=["hide-output"]
decode = Decode.uniform(64, 4096, q_heads=16, kv_heads=16)
names = [*live.EVERY, "prefill_wgmma"]
whole = Bench(COUNTED[128], decode, kernels=names, gpu="h200")
large = Bench(COUNTED[256], kernels=["prefill_mma"], gpu="h200")
large.equations("prefill_mma")

# %% mystnb={"figure": {"caption": "The sums of S and O take most of the registers of a prefill kernel on tensor cores, and fewer of a decode's. A circle is what a thread has after the warps that load have handed registers over. 128 channels, bf16; predicted, and compiled for an H200.", "name": "halfidle-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
whole.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "More blocks of prefill_mma fit an SM of the H200 than an SM of the report's GPUs; below each bar stands what one block more would take. Computed from the ledgers.", "name": "halfidle-occupancy"}, "image": {"alt": "A panel for each of four GPUs: the blocks of prefill_mma that fit an SM, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
Bench(COUNTED[128], kernels=["prefill_mma"]).plot_occupancy(*REPORTED)
whole.log.drew("occupancy", "prefill")
plt.show()

# %% [markdown]
# ### What a step costs
#
# A step has two phases: the products, with tensor cores and shared memory side by side, and the softmax, with exponentials and all other instructions in turns.
# With $n$ warps or warpgroups on a {term}`scheduler` the longer phase goes on all the time, and one part in $n$ of the rest is not hidden:
#
# $$
# t_{\text{step}} = t_{\text{long}} + \frac{t_{\text{short}} + t_{\text{latency}}}{n}
# $$ (half-idle-step)
#
# | symbol | meaning |
# |---|---|
# | $t_{\text{long}}$, $t_{\text{short}}$ | the longer and the shorter phase |
# | $t_{\text{latency}}$ | one constant for all kernels, set once |
#
# *Active* is the share of a step in which the tensor cores work; *of the peak* counts their FLOPs against `wgmma`'s:

# %% tags=["hide-input"]
PEAK_SHARE, rows = {"prefill_mma": h200.measured_mma_sync_share, "prefill_wgmma": 1.0}, []
for kernel, head_dim in [(k, d) for k in PEAK_SHARE for d in COUNTED]:
    spec = tuning_search.tunable(kernel)
    chosen = spec.instance(
        spec.shape(dtype="bf16", head_dim=head_dim, group=1, layout="ragged"), gpu=h200
    )
    known = resources.resources(chosen, gpu=h200)
    held = known.occupancy.blocks_per_sm
    candidate = tuning_search.Candidate(chosen, known.registers.total, known.smem.total, held)
    time = tuning_search.expected_time(candidate, COUNTED[head_dim], h200)
    busy = 100 * time.mma / time.step * np.array([1, PEAK_SHARE[kernel]])
    rows.append((kernel, head_dim, chosen.tile.label, held, *busy, time.bound))

# %% tags=["hide-input"]
columns = ["kernel", "head_dim", "tile", "blocks per SM", "active, %", "of the peak, %", "busiest"]
foreseen = pd.DataFrame(rows, columns=columns)
plots.table(foreseen, "foreseen", dict.fromkeys(columns[4:6], "{:.0f}"))

# %% [markdown]
# The model is rough. For `prefill_mma` at 64 and 128 channels it foresees {glue:text}`foreseen_64` and {glue:text}`mma_foreseen` % active, and the profiler found {glue:text}`mma_64` and {glue:text}`mma_active`. For `prefill_wgmma`, on which it was not tuned, it foresees {glue:text}`wgmma_foreseen_64` and {glue:text}`wgmma_foreseen` %, and the profiler found {glue:text}`wgmma_64` and {glue:text}`wgmma_active`.
#
# ## Code
#
# `prefill_mma` begins the products of $P V$ while exponentials are still computed, 16 keys at a time; this is all the overlap that one warp has:
#
# ```{literalinclude} /labkernels/kernels/prefill/mma/kernel.cuh
# :language: cpp
# :start-after: "[lab: accumulate]"
# :end-before: "[/lab: accumulate]"
# ```
#
# `prefill_wgmma` starts two products before it waits for either, the next step's $S$ and this step's $P V$, and its {term}`warpgroup` exponentiates meanwhile.
# {doc}`the_ladder` shows what each kind of overlap changes, and in assignment 22 you write these lines.
#
# ## Measurement
#
# <!-- guess: busy_tensor_cores -->
#
# ### What was busy
#
# {numref}`busy-parts` shows 4 requests of 4096 tokens, heads × channels = 2048, bf16, no mask, and a product of square matrices by cuBLAS.
# The tensor pipe is never full in attention, and neither is any other part: *phases* alternate. {glue:text}`fa3_said`
#
# ### What the counter counts
#
# The run also counted the FLOPs of the tensor cores. *Counted / formula* is the author's check, and is 1 where no padding of tiles counts as well. These are the rows of 128 channels; {doc}`the evidence </book/evidence>` has the others.

# %% tags=["hide-input"]
alone = counted[counted.tile.str.endswith("-none")].assign(kernel="prefill_wgmma, no overlap")
within = counted[(counted.kernel == "prefill_wgmma") & counted.tile.str.endswith("-within")]
on = pd.concat([forward, alone]).query("tensor_flops > 0 and head_dim > 0").copy()
clocks = on.time * on.sm_clock * h200.sm_count
on["formula"] = [COUNTED[d].flops for d in on.head_dim]
on["counted / formula"] = on.tensor_flops * clocks / on.formula
on["of the peak, %"] = 100 * on.tensor_flops / on.wgmma_peak
on["TFLOP/s"] = on.formula / on.call_s / 1e12
on["clock, GHz"] = on.sm_clock / 1e9
on["active, %"] = on.tensor_pipe
names = ["kernel", "head_dim", "active, %", "of the peak, %", "counted / formula", "clock, GHz"]
digits = {"active, %": "{:.1f}", "of the peak, %": "{:.1f}", "counted / formula": "{:.3f}"}
digits |= {"clock, GHz": "{:.2f}", "TFLOP/s": "{:.0f}"}
plots.table(on.query("head_dim == 128")[[*names, "TFLOP/s"]], "active", digits)

# %% [markdown] tags=["evidence"]
# What the profiler counted at all three head_dims:

# %% tags=["evidence"]
plots.table(on[[*names, "TFLOP/s"]], "active-all", digits)

# %% [markdown]
# The last line is `prefill_wgmma` at 128 channels, compiled without the overlap of softmax and products: {glue:text}`alone_active` % active, about as much as `prefill_mma`, against {glue:text}`within_active` % with it in the same recording.
#
# `prefill_mma` and cuDNN at 128 channels are active for {glue:text}`mma_active` and {glue:text}`cudnn_active` % of the time, and reach {glue:text}`mma_of_peak` and {glue:text}`cudnn_of_peak` % of the chip's FLOPs.
# The profiler has a peak for each instruction: {glue:text}`mma_peak` FLOPs per clock for `mma.sync`, {glue:text}`wgmma_peak` for `wgmma`.
# So a slow instruction costs FLOPs and not activity. It cannot be where the *counter's* other half goes, and a counter needs its peak beside it.
# The article's 85 % at 256 channels fits kernels on `wgmma`, of which ours reaches {glue:text}`wgmma_256` % of the FLOPs, and not FlashAttention-2 with {glue:text}`fa2_256` %.
#
# ### What the warps waited for

# %% mystnb={"figure": {"caption": "In the kernels on mma.sync hardly any warp waits for memory: they wait for the instruction before, for a busy pipe and for shared memory. In prefill_wgmma {glue:text}`wgmma_waits` % of the warps wait for memory, among them those that do nothing but fetch. The bars are of head_dim 128 and of the matrix product.", "name": "waiting-warps"}, "image": {"alt": "Stacked bars, one per kernel, of the warps of a scheduler by what they do in an average clock. The part that waits for memory is small in the attention kernels on mma.sync, and larger in prefill_wgmma, cuDNN and cuBLAS.", "width": "100%"}} tags=["hide-input"]
at_128 = forward[forward.head_dim.isin([0, 128])]
plots.waiting_warps(plots.waiting(at_128), origin=origin)
plt.show()

# %% [markdown]
# The author suspects copies. For `prefill_mma` on an H200 this does not hold: {glue:text}`waits_for_memory` % of its warps wait for memory.
#
# ### Occupancy and time

# %% mystnb={"figure": {"caption": "Activity does not order the times: Triton's kernel is less active than prefill_mma, and faster. All of them hold few of the warps that fit an SM. One recording on an H200, 128 channels.", "name": "halfidle-times"}, "image": {"alt": "Horizontal bars of milliseconds, one for each kernel, shortest first, with the percentage of active clocks and the occupancy behind each.", "width": "100%"}} tags=["hide-input"]
at_d = [r for r in in_figures if r["head_dim"] == 128]
starts = pd.Series([r["started_utc"] for r in at_d]).value_counts()
same = [r for r in at_d if r["started_utc"] == starts.index[0]]
table = plots.counter_table(pd.DataFrame(same)).sort_values("call_s")
words = [f"active {a:.0f} %, warps {w:.0f} %" for a, w in zip(table.tensor_pipe, table.occupancy, strict=True)]  # fmt: skip
shown = pd.DataFrame(
    {"name": table.kernel.map(plots.style.name), "value": 1e3 * table.call_s, "words": words}
)
bars(shown[table.tensor_pipe > 1], label="time, ms", origin=recorded.origin(same))
whole.log.drew("timing", "prefill")
plt.show()

# %% [markdown] tags=["evidence"]
# Occupancy beside activity, busiest first:

# %% tags=["evidence"]
held = forward[["kernel", "head_dim", "threads", "registers", "occupancy", "tensor_pipe"]]
held = held[held.tensor_pipe > 1].sort_values("tensor_pipe", ascending=False)
held = held.rename(columns={"occupancy": "occupancy, %", "tensor_pipe": "active, %"})
digits = {"threads": "{:.0f}", "registers": "{:.0f}", "occupancy, %": "{:.1f}"}
plots.table(held, "occupancies", digits | {"active, %": "{:.1f}"})

# %% [markdown]
# Over all channels, attention and matrix product hold {glue:text}`fewest_warps` to {glue:text}`most_warps` % of the warps that fit.
# Triton's products here are `wgmma`, whose peak is higher, so that fewer active clocks do more.
# What hides latency in these kernels is independent work within a warp, and not the number of warps: more warps would share the same 65,536 registers.
#
# ### A hypothesis about GeForce
#
# GeForce parts do fp16 products with fp32 sums at half the rate of fp16 sums, and FlashAttention sums in fp32.
# If a counter takes the faster rate for 100 %, no such kernel reads more than 50 %.
# Two reports give numbers. {cite:t}`llmc377` took 50 % for the most that the tensor core counter shows on an RTX 4090. {cite:t}`triton10851` has, for an RTX 4060, the share of each mode's own peak beside the SM's throughput, `sm__throughput`, which is *another counter* than Tensor Active:

# %% tags=["hide-input"]
half = hardware.gpu("rtx4090").tensor_fp32_accumulate_rate
reports = pd.DataFrame(
    [
        ("RTX 4090, the most there is", "fp32", 100, 50),
        ("RTX 4060, matrix product", "fp32", 95.73, 47.38),
        ("RTX 4060, matrix product", "fp16", 89.91, 86.9),
    ],
    columns=["report", "sums in", "of its own peak, %", "counter, %"],
)
rate = reports["sums in"].map({"fp32": half, "fp16": 1.0})
reports.insert(3, "predicted, %", reports["of its own peak, %"] * rate)
plots.table(reports, "geforce", dict.fromkeys(reports.columns[2:], "{:.1f}"))

# %% [markdown]
# The predictions are within {glue:text}`geforce_off` points. So the SM's throughput has a ceiling of one half with fp32 sums there, and one in Tensor Active is plausible; no source has that very counter with both kinds of sums.
# One reading would refute the hypothesis: a kernel with fp32 sums that is more than 50 % active on such a part.
# The hypothesis does not explain the Orin, which sums in fp32 at the full rate; its kernel has the exponentials and the {term}`waves <wave>` of the second exercise.
#
# ### Does a busier kernel err more?
#
# Kernels that keep tensor cores busier sum in another order. All of these kernels run here, in both operations, with random inputs and with heads of SmolLM2 ({doc}`does_it_matter`):

# %% tags=["nbval-ignore-output"]
small = {"decode": Decode((96, 64, 17), 4, 4, 64, dtype="fp16")}
small["prefill"] = Prefill((32, 24, 17), (128, 64, 17), 4, 4, 64, dtype="fp16")
bench = Bench(*small.values(), kernels=live.EVERY)
ran = bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")


# %% tags=["hide-input"]
def with_wgmma(operation, inputs):
    outs = live.outputs(operation, inputs)
    if operation == "prefill":
        outs["wgmma, on"] = live.output(operation, inputs, "prefill_wgmma")
    return outs


drawing = {"decode": decode_inputs, "prefill": prefill_inputs}
drawn = {name: draw(small[name], Normal(0, "cpu")) for name, draw in drawing.items()}

# %% mystnb={"figure": {"caption": "No: per head and per request all kernels with tensor cores err alike, whether they use mma.sync (CUDA), wgmma or what Triton compiles, and more than those without, hardly so with real inputs. fp16, relative L2 error; decode has no kernel on wgmma; SmolLM2: heads 0 to 2 own key, 3 to 5 outlier channel, 6 to 8 long.", "name": "halfidle-places"}, "image": {"alt": "Four panels, decode above and prefill below, over query heads on the left and requests on the right, each for random inputs and for SmolLM2. With random inputs dots of CUDA cores lie lowest, all others above them; with SmolLM2 all lie together.", "width": "100%"}} tags=["hide-input"]
real = real_inputs.of_both(("own key", "outlier channel", "long"), "fp16")
cells = live.beside({"random": drawn, "SmolLM2": real}, with_wgmma)
by_place(cells, label="relative L2 error", origin="computed on this machine", log=False)
bench.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# In a prefill the kernel on `wgmma` errs {glue:text}`busy_random` % more than that on `mma.sync` with random inputs, and {glue:text}`busy_real` % more with the model's, in the mean. In single heads up to {glue:text}`busy_most` % lie between kernels, which is chance: a head has few rows here, and each kernel makes other roundings. {doc}`tensor_cores_on_and_off` says why tensor cores add so little to the error of a model's heads.

# %% tags=["evidence"]
gemm = forward[forward.kernel == "cublas"].iloc[0]
at = on.set_index(["kernel", "head_dim"])
fore = forward.set_index(["kernel", "head_dim"])
said = foreseen.set_index(["kernel", "head_dim"])["active, %"]
stalled = plots.waiting(at_128).pivot(index="kernel", columns="reason", values="warps")
waits = 100 * stalled["memory"] / stalled.sum(axis=1)
numbers = {
    "geforce_off": (reports["predicted, %"] - reports["counter, %"]).abs().max(),
    "serial_geforce": roof[(roof.gpu == "RTX 3080") & (roof.head_dim == 64)].serial.iloc[0],
    "gemm_active": gemm.tensor_pipe, "waits_for_memory": waits["prefill_mma"],
    "wgmma_waits": waits["prefill_wgmma"], "geforce_ratio": roof[roof.gpu == "RTX 3080"].ratio.min(),
    "alone_active": alone.tensor_pipe.iloc[0],
    "within_active": within.tensor_pipe.iloc[0],
    "fewest_warps": held["occupancy, %"].min(), "most_warps": held["occupancy, %"].max(),
}  # fmt: skip

# %% tags=["evidence"]
BUSY = {"mma": "prefill_mma", "wgmma": "prefill_wgmma", "cudnn": "torch_cudnn"}
for name, kernel in BUSY.items():
    numbers[f"{name}_active"] = fore.tensor_pipe[kernel, 128]
    numbers[f"{name}_of_peak"] = at["of the peak, %"][kernel, 128]
    numbers[f"{name}_64"] = fore.tensor_pipe[kernel, 64]
numbers |= {
    "fa2_active": fore.tensor_pipe["torch_fa2", 128],
    "fa2_256": at["of the peak, %"]["torch_fa2", 256], "mufu_64": fore.mufu["torch_cudnn", 64],
    "wgmma_256": at["of the peak, %"]["prefill_wgmma", 256],
    "foreseen_64": said["prefill_mma", 64], "mma_foreseen": said["prefill_mma", 128],
    "wgmma_foreseen_64": said["prefill_wgmma", 64], "wgmma_foreseen": said["prefill_wgmma", 128],
    "mma_peak": gemm.mma_peak, "wgmma_peak": gemm.wgmma_peak,
}  # fmt: skip
for name, number in numbers.items():
    glue(name, f"{number:,.0f}", display=False)

# %% tags=["evidence"]
squares = cells.assign(value=cells.value**2).groupby(["operation", "inputs", "head", "kind"]).value
sizes = (squares.mean() ** 0.5).unstack("kind").filter(like=", on")
apart = 100 * (sizes.max(axis=1) / sizes.min(axis=1) - 1)
means = sizes.loc["prefill"].groupby("inputs").mean()
busier = 100 * (means["wgmma, on"] / means["CUDA, on"] - 1)
for group, name in {"random": "busy_random", "SmolLM2": "busy_real"}.items():
    glue(name, f"{busier[group]:.1f}", display=False)
glue("busy_most", f"{apart.max():.0f}", display=False)

# %% tags=["evidence"]
fa3 = {d: fore.tensor_pipe.get((experiment.FA3, d)) for d in COUNTED}
fa3 = {head_dim: percent for head_dim, percent in fa3.items() if percent is not None}
counted_too = "no GPU of the report nor FlashAttention-3"
said = "FlashAttention-3 is not in the figure: no run of the profiler has counted it so far."
if fa3:
    counted_too = "with fa3 of FlashInfer, no GPU of the report"
    active = ", ".join(f"{percent:.0f}" for percent in fa3.values())
    said = (
        "FlashAttention-3 stands there as the fa3 of FlashInfer, whose code for Hopper is its own. "
    )
    said += f"With {', '.join(map(str, fa3))} channels the tensor cores are {active} % active."
glue("fa3_said", said, display=False)
glue("fa3_counted", counted_too, display=False)

# %% tags=["evidence"]
for name in ("cuda", "torch"):
    versions = {row[name].partition("+")[0] for row in in_figures}
    glue(name, " and ".join(sorted(versions)), display=False)

# %% tags=["nbval-ignore-output", "evidence"]
whole.log + large.log + bench.log

# %% [markdown]
# ## What would change the answer
#
# - **A profile on the report's own GPUs**, which we do not have. They differ from an H200 in their ratio of products to exponentials, their shared memory and their rates.
# - **Counters of FlashAttention-3's own package**, which we do not have. By its paper it overlaps softmax and products {cite:p}`shah2024`, as `prefill_wgmma` does.
# - **Fewer channels.** On Hopper exponentials take as long as products at 64 channels, and cuDNN's kernel there has its pipe active for {glue:text}`cudnn_64` % and the special-function unit for {glue:text}`mufu_64` %. On a B200 the two tie at 128 channels.
# - **A causal mask or short sequences**, whose last waves leave SMs empty.
#
# ## Exercises
#
# ```{exercise}
# :label: half-idle-tie
#
# At which head_dim do products with fp32 sums take exactly as long as the exponentials, on an A100, an RTX 4090 and a B200?
# Check your answer with `exercises.check("half-idle-tie", (a100, rtx4090, b200))`.
# ```
#
# ```{solution-start} half-idle-tie
# :class: dropdown
# ```
#
# {eq}`half-idle-ratio` is 1 at $D = R_{\text{tensor}} / (4 E)$.
# On the A100 that is a head of 32 channels and on GeForce parts one of 8, fewer than most models have; on a B200 it is 128, the most common head_dim, which is why kernels for it compute some of the exponentials by polynomials.

# %%
ties = {}
for key in ("a100", "rtx4090", "b200"):
    gpu = hardware.gpu(key)
    rate = gpu.tensor_flops_per_clk_per_sm * gpu.tensor_fp32_accumulate_rate
    ties[key] = rate / (4 * gpu.mufu_per_clk_per_sm)
assert exercises.check("half-idle-tie", ties.values())

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: half-idle-waves
#
# The same author's Orin has 16 SMs and ran a grid of 13 × 1 × 8 blocks, two on an SM, and *Tensor Active* read 42.5 %.
# How active could its tensor cores be at most, if every block takes the same time?
# Check your answer with `exercises.check("half-idle-waves", percent)`.
# ```
#
# ```{solution-start} half-idle-waves
# :class: dropdown
# ```
#
# 104 blocks are 3.25 waves of 32, and take the time of four.

# %%
per_slot = busiest_sm_steps([1] * (13 * 8), 2 * 16)
at_most = 13 * 8 / (2 * 16) / per_slot
assert exercises.check("half-idle-waves", 100 * at_most)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: half-idle-blocks-128
#
# At head_dim 128 and without a mask FlashAttention-2 takes tiles of 128 × 64 with 4 warps on an A100, and of 128 × 32 on an A10.
# How many blocks does an SM of an A10 and of an A100 hold with either tile? Use ledger and occupancy, and say what the narrower tile saves.
# Check your answer with `exercises.check("half-idle-blocks-128", (a10_64, a10_32, a100_64, a100_32))`: the blocks per SM with 64 and with 32 keys.
# ```
#
# ```{solution-start} half-idle-blocks-128
# :class: dropdown
# ```
#
# On an A10 the narrower tile makes room for a second block: two blocks of 48 KiB fit, and only one of 64 KiB.
# On an A100 registers allow two of either.

# %%
found = {}
for key in ("a10", "a100"):
    for keys in (64, 32):
        n_bytes = flash_attention_2(block_m=128, block_n=keys, head_dim=128).total
        fit = budget.occupancy(hardware.gpu(key), threads=128, registers=255, smem_bytes=n_bytes)
        found[key, keys] = fit.blocks_per_sm
assert exercises.check("half-idle-blocks-128", found.values())

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case, its GPUs, its percentages and its author's own explanation are from {cite:t}`flashattention1205`, as far as the thread is public to us; the Orin's kernel is from issue 1202 of the same author, and the article is named above without its author.
# The bytes of FlashAttention-2's tiles were read in its sources, kernel_traits.h and flash_fwd_launch_template.h {cite:p}`dao2024`.
# {cite:t}`shah2024` say that the exponential limits Hopper, and that warpgroups in turns and products behind the softmax help.
# GeForce's half rate is from NVIDIA's white papers ({doc}`hardware`); the two observations are from {cite:t}`llmc377` and {cite:t}`triton10851`.
# The rates of `mma.sync` and `wgmma` on Hopper are what the profiler calls their peaks; {cite:t}`luo2024` measured that of `mma.sync`.
# The model of a step is ours; that the sum of what does not overlap matters, and not occupancy, is an old insight {cite:p}`volkov2010`.
