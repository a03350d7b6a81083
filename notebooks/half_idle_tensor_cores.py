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
# **The profiler says that tensor cores are active about half of the time in attention, and 90 % of it in a matrix product. Where does the other half go?**
#
# The question is that of {cite:t}`flashattention1205`.
# Its author profiled FlashAttention-2 on an RTX 3080, an RTX 4080 and an Orin, read about 50 % *Tensor Active* almost everywhere, and about 90 % for products and convolutions by cuBLAS and cuDNN, NVIDIA's libraries.
# The author also multiplied the percentage by the chip's peak and the kernel's time, and found the FLOPs that the formula asks for.
# So the counter counts work, and half of the tensor cores' time is idle.
#
# The report suspects two causes: that copies cannot overlap with products within a warp, and that shared memory and registers leave an SM too few warps.
# A kernel's tile was held up as the proof: 128 query rows, 128 keys, 64 channels take 49,152 bytes of shared memory, so that an SM holds two blocks.
# {doc}`the_ladder` climbs from CUDA cores to the fastest prefill kernel, and {doc}`the_tuner_and_the_backward_pass` searches tiles and takes the backward pass apart.
# People say seven things about this case. At the end of this chapter you can say what is true in each of them, with a number:
#
# 1. Tensor cores that are active half of the time do half of the arithmetic they could.
# 2. The tile's 49,152 bytes limit an SM to two blocks.
# 3. An occupancy of an eighth is too low.
# 4. What attention adds to a matrix product are exponentials, and they take the time.
# 5. What idles is waiting for copies.
# 6. A matrix product shows what a kernel should reach.
# 7. The backward pass loses more because it does more of the same.
#
# ## You need
#
# {doc}`/book/how_to_read` says how predictions and recorded runs work here.
# {doc}`/book/glossary` explains {term}`tensor core`, {term}`wgmma`, {term}`occupancy`, {term}`wave`, {term}`ledger` and {term}`stage`.
# {doc}`tensor_cores_on_and_off` counts the registers of a tile.
# You need no GPU: ledgers, compiler and the errors of all kernels run here; what only a profiler can say is recorded.

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
from labkernels.chapters import exercises
from labkernels.experiments.performance import counters as experiment
from labkernels.measure import resources
from labkernels.measure.implementation import with_tile
from labkernels.measure.tuning import search as tuning_search
from labkernels.records import recorded, store

# %% [markdown]
# ## Symbols
#
# From {doc}`/book/notation`: $D$ channels, $L$ keys of a request, $S$ and $P$ before and after the exponential.
# Two symbols are used only here: $R$, the FLOPs that an SM's tensor cores do in a clock, and $E$, the exponentials that its special-function units ({term}`MUFU <ex2.approx>`) do in one.
#
# ## Model
#
# ### A roof with exponentials in it
#
# For each score a kernel does $4 D$ FLOPs, $2 D$ in $Q K^T$ and $2 D$ in $P V$, and one exponential.
# In clocks of an SM,
#
# $$
# \frac{t_{\text{products}}}{t_{\exp}} \;=\; \frac{4 D / R}{1 / E} \;=\; \frac{4 D E}{R} .
# $$ (half-idle-ratio)
#
# If the two never overlap, the tensor cores are active for the share $t_{\text{products}} / (t_{\text{products}} + t_{\exp})$ of the time.
# If they overlap perfectly, the longer one sets the pace, and the tensor cores are active all the time wherever the ratio is 1 or more.
# A real kernel lies between these two.
#
# A chip has more than one $R$.
# On Hopper, `wgmma` does 4096 FLOPs per clock, and the profiler says of `mma.sync` that it can do two thirds of that.
# On GeForce parts, NVIDIA's GPUs for games, sums in fp32 run at half the rate of sums in fp16, and attention must sum in fp32.
#
# ### Who fits on an SM
#
# A block holds its bytes and registers until it is done, so that an SM has room for
#
# $$
# \text{blocks} \;=\; \min\!\left( \left\lfloor \frac{\text{bytes of an SM}}{\text{bytes} + 1024} \right\rfloor,\; \left\lfloor \frac{65536}{\text{registers} \cdot \text{threads}} \right\rfloor,\; \dots \right).
# $$ (half-idle-blocks)
#
# A thread's registers hold its part of $S$ and $O$ above all.
# For 4 warps that share 128 rows these are $128 \cdot 128 / 128 = 128$ for $S$ and $128 \cdot 64 / 128 = 64$ for $O$, whatever the GPU.
#
# ### What a step costs
#
# A block goes through its keys in steps, and a step has two phases that follow each other: the products, in which tensor cores and shared memory work side by side, and the softmax, in which exponentials and all other instructions take turns.
# A warp that is in one phase leaves the other phase's units idle, unless another warp is in that phase.
# With $n$ warps or warpgroups on a {term}`scheduler` the longer phase goes on all the time, and $1/n$ of the shorter one is not hidden behind it. The same holds for a latency, one constant that we set once:
#
# $$
# t_{\text{step}} \;=\; t_{\text{long}} + \frac{t_{\text{short}} + t_{\text{latency}}}{n},
# \qquad
# t \;=\; t_{\text{step}} \cdot (\text{steps of the busiest SM}).
# $$ (half-idle-step)
#
# ## Prediction
#
# ### Products against exponentials
#
# The table has {eq}`half-idle-ratio` for the GPUs of {doc}`hardware`.
# {numref}`exp-roof` draws the ratio: one to one is a tie, which only {term}`Hopper` and the B200 come near.

# %%
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

# %% mystnb={"figure": {"caption": "Exponentials take less time than products nearly everywhere. They tie at head_dim 64 on Hopper and at 128 on B200, and take twice as long at 64 on B200. On the GeForce parts of the case they need an eighth of the products' time or less. The rates are those of gpus.toml; GPUs of one ratio share a line.", "name": "exp-roof"}, "image": {"alt": "Lines of the ratio of clocks for products and for exponentials over head_dim 64, 128 and 256, both axes logarithmic. GeForce parts rise from 8 to 32, A10 and L40S from 4 to 16, A100 from 2 to 8, H100 and H200 from 1 to 4, B200 from one half to 2. A horizontal line marks one to one.", "width": "100%"}} tags=["hide-input"]
kinds = roof.groupby(["rate", "head_dim"], sort=False).agg(
    gpu=("gpu", lambda names: ", ".join(dict.fromkeys(names))), ratio=("ratio", "first")
)
plots.products_and_exponentials(kinds.reset_index(), origin="computed from gpus.toml")
plt.show()

# %% [markdown]
# So the special-function unit can explain 50 % at head_dim 64 on an H100, if nothing overlaps.
# It cannot explain 50 % on an RTX 3080: there the products take eight times as long, and a kernel without any overlap would still be {glue:text}`serial_geforce` % active.
# A later section has a hypothesis that might explain it.
#
# ### The tile of the case
#
# The tables have its {term}`ledger`, from FlashAttention-2's source, and the blocks that {eq}`half-idle-blocks` leaves on every GPU: by shared memory alone, and by registers alone, at the 255 that the compiler gives such tiles.

# %%
smem = flash_attention_2(block_m=128, block_n=128, head_dim=64)
print(smem.table())

# %% tags=["hide-input"]
rows = []
for gpu in hardware.GPUS.values():
    fit = budget.occupancy(gpu, threads=128, registers=255, smem_bytes=smem.total)
    held = 100 * fit.blocks_per_sm * 4 / gpu.warps_per_sm_max
    name = gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    rows.append((name, fit.by_smem, fit.by_registers, fit.blocks_per_sm, fit.limit, held))
columns = ["GPU", "by shared memory", "by registers", "blocks per SM", "limit", "occupancy, %"]
blocks_of_case = pd.DataFrame(rows, columns=columns)
plots.table(blocks_of_case, "blocks-of-case", {"occupancy, %": "{:.1f}"})

# %% [markdown]
# Registers allow two blocks on *every* GPU.
# Shared memory allows two only where an SM has 100 KiB; there both limits agree, and elsewhere shared memory is not the limit.
# A kernel that the same author ran on an Orin shows it too: its tile of head_dim 32 takes 24,576 bytes, and still reaches just two blocks.
#
# Are the 255 registers an accident of FlashAttention's code?
# Our kernel `prefill_mma` can be compiled for this tile.
# Its bytes are the same, its register ledger is a lower bound, and the compiler decides for each architecture.

# %% tags=["hide-input"]
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
# ### The same formulas for all kernels
#
# The cell shows the two formulas of `prefill_mma` at 128 channels, and the blocks per SM that follow from both, in symbols, in numbers, and beside the compiler's.
# A decode stands beside the prefill: its kernels are built of the same parts, and they have too few products to fill the tensor cores.
# In these formulas $R$ stands for the rows of a tile, as in {doc}`/book/notation`.

# %%
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
bench = Bench(prefill, decode, gpu="h200")

# %%
bench.equations("prefill_mma")

# %% [markdown]
# Without `wgmma` the registers of a prefill kernel end at or just below the 255 that a thread can have.
# A kernel on `wgmma` is compiled for fewer, and its warps that load then hand some of theirs to the warps that multiply; a circle in {numref}`halfidle-budget` marks what these then have.

# %% mystnb={"figure": {"caption": "Scores and accumulators are most of the registers of every prefill kernel on tensor cores, and a kernel on wgmma holds no fragment of K or V.", "name": "halfidle-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "Registers and shared memory leave one or two blocks of the prefill kernels on an SM; warps never end first.", "name": "halfidle-occupancy"}, "image": {"alt": "A panel for each GPU with a row for each kernel. Marks on a logarithmic axis give the blocks that registers, shared memory, warps and the block limit leave on an SM; a bar ends at the least of them.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200", "a100", "rtx3090")
plt.show()

# %% [markdown]
# ### What will the profiler say?
#
# The table evaluates {eq}`half-idle-step` for our kernel of FlashAttention-2's kind, `prefill_mma`, and for that of Hopper's, `prefill_wgmma`, each with the tile that it prefers.
# *Active* is the share of a step in which the tensor cores work; *of the peak* counts their FLOPs against `wgmma`'s, which `mma.sync` cannot reach.
# *Busiest* names what sets the time of a step: the tensor cores (mma), the exponentials (exp) or shared memory (smem).

# %%
h200 = hardware.gpu("h200")
COUNTED = {d: Prefill((4096,) * 4, (4096,) * 4, 2048 // d, 2048 // d, d) for d in (64, 128, 256)}
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
# ## Kernels
#
# The listings show three ways to the same products, each from the file that was profiled.
# Without tensor cores, `prefill_fma` reads four channels of its rows and of its keys, and multiplies each with each:
#
# ```{literalinclude} /labkernels/kernels/packed_gqa/fma_tile.cuh
# :language: cpp
# :start-after: "[lab: scores]"
# :end-before: "[/lab: scores]"
# ```
#
# `prefill_mma` hands a {term}`fragment` of 16 × 16 to `mma.sync`, and must first bring it from shared memory into the registers of the very warp that multiplies:
#
# ```{literalinclude} /labkernels/kernels/prefill/mma/kernel.cuh
# :language: cpp
# :start-after: "[lab: scores]"
# :end-before: "[/lab: scores]"
# ```
#
# The products of $P V$ begin while exponentials are still computed, 16 keys at a time; this is all the overlap that one warp has:
#
# ```{literalinclude} /labkernels/kernels/prefill/mma/kernel.cuh
# :language: cpp
# :start-after: "[lab: accumulate]"
# :end-before: "[/lab: accumulate]"
# ```
#
# `prefill_wgmma` leaves $K$ and $V$ in shared memory, from where {term}`wgmma` takes them, and starts two products before it waits for either: the next step's $S$, and this step's $P V$.
# While they run, its {term}`warpgroup` exponentiates, or lets another one have the tensor cores:
#
# ```{literalinclude} /labkernels/kernels/prefill/wgmma/consumer.cuh
# :language: cpp
# :start-at: "  // Computes the next block's scores beside"
# :end-before: "  // ---- softmax"
# ```
#
# ## Measurement
#
# <!-- guess: busy_tensor_cores -->
#
# ### What was busy
#
# The counters of Nsight Compute, NVIDIA's {term}`profiler`, were recorded on an H200, for 4 requests of 4096 tokens, heads × head_dim = 2048, bf16, no mask, and a product of square matrices of 8192 rows by cuBLAS.
# Where a call launches several kernels, its longest is shown.
# The rows are not all of one commit: the table says of which each is, with head_dim 0 for the product; a kernel that it lacks has not been counted yet.

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

# %% tags=["hide-input"]
commits = {(r["head_dim"], r["kernel"]): r["commit"] for r in everything if not r["tile"]}
listed = [(0, "cublas", "matrix product"), *wanted]
rows = [(family, d, commits[d, name], name) for d, name, family in listed if (d, name) in commits]
states = pd.DataFrame(rows, columns=["of", "head_dim", "commit", "kernels"])
states = states.groupby(["of", "head_dim", "commit"], sort=False).kernels.agg(", ".join)
plots.table(states.reset_index(), "recorded")

# %% mystnb={"figure": {"caption": "Tensor cores idle in every attention kernel, least in prefill_wgmma at head_dim 256, and no other part is busy all the time either. Numbers are percent of what each part can do; exp2 is the special-function unit, ALU takes maxima and conversions, issue is the share of clocks in which a scheduler issues, warps is the occupancy.", "name": "busy-parts"}, "image": {"alt": "Grids of kernels and parts of an SM with percentages, one for the matrix product and one for each head_dim of attention. The matrix product is dark at the tensor pipe and at shared memory alone. Attention is half dark at the tensor pipe, darkest for kernels on wgmma at large head_dims; prefill_fma is dark at FMA and issue instead.", "width": "100%"}} tags=["hide-input"]
busy = plots.busy(forward)
titles = {0: "matrix product, 8192 cubed"} | {d: f"forward, head_dim {d}" for d in COUNTED}
busy["panel"] = busy.head_dim.map(titles)
plots.busy_parts(busy, origin=origin)
plt.show()

# %% [markdown]
# ### What a counter counts
#
# The same run counted the FLOPs that tensor cores did, in each clock of each SM.
# This number times clocks and SMs must give the formula's FLOPs. That is the author's check, and here it is exact, except for tiles whose rows or keys do not divide a request's, because products with padding count as well.
# *Active* is another quantity: the share of clocks in which the pipe holds an instruction, whatever that instruction can do.

# %% tags=["hide-input"]
on = forward[(forward.tensor_flops > 0) & (forward.head_dim > 0)].copy()
clocks = on.time * on.sm_clock * h200.sm_count
on["formula"] = [COUNTED[d].flops for d in on.head_dim]
on["counted / formula"] = on.tensor_flops * clocks / on.formula
on["of the peak, %"] = 100 * on.tensor_flops / on.wgmma_peak
on["TFLOP/s"] = on.formula / on.call_s / 1e12
on["clock, GHz"] = on.sm_clock / 1e9
on["active, %"] = on.tensor_pipe
names = ["kernel", "head_dim", "active, %", "of the peak, %", "counted / formula", "clock, GHz"]
digits = {"active, %": "{:.1f}", "of the peak, %": "{:.1f}", "counted / formula": "{:.3f}"}
plots.table(
    on[[*names, "TFLOP/s"]], "active", digits | {"clock, GHz": "{:.2f}", "TFLOP/s": "{:.0f}"}
)

# %% [markdown]
# Compare `prefill_mma` with cuDNN at head_dim 128.
# They are active for {glue:text}`mma_active` and {glue:text}`cudnn_active` % of the time, and do {glue:text}`mma_of_peak` and {glue:text}`cudnn_of_peak` % of what the chip could: the FLOPs differ by far more than the activity.
# The profiler gives both peaks: {glue:text}`mma_peak` FLOPs per clock for `mma.sync`, {glue:text}`wgmma_peak` for `wgmma`.
# A kernel on `mma.sync` that were active all the time would reach {glue:text}`mma_share` % of this chip.
#
# The case comes with an "up to 85 %" at head_dim 256.
# In the same clocks, FlashAttention-2 does {glue:text}`fa2_256` %, cuDNN {glue:text}`cudnn_256` % and `prefill_wgmma` {glue:text}`wgmma_256` % of what the chip could do.
# The sentence is right for kernels on `wgmma`, and wrong for the kernel that the report is about, because `mma.sync` cannot do that much.
#
# ### A hypothesis about the GeForce parts of the case
#
# Two peaks of one chip may also explain the 50 % of the report.
# GeForce parts do fp16 products with fp32 sums at half the rate of fp16 sums.
# The hypothesis is that *Tensor Active* takes the faster rate for 100 %, so that a kernel reads its share of its own peak, times the ratio of the two rates.
# Then no kernel with fp32 sums can read more than 50 %, and a product with fp16 sums can read 90 %.
# Two reports give numbers to try it on: {cite:t}`llmc377` took 50 % for the largest value that the counter shows on an RTX 4090, and {cite:t}`triton10851` has the share of the own peak and the SM's counter side by side, on an RTX 4060 of the same generation.

# %%
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
# The three numbers come out within {glue:text}`geforce_off` points.
# The same model says that the RTX 4060 should be {glue:text}`geforce_gain` times as fast with fp16 sums, where the report has 1.72; the clocks of its two runs are not told.
# The author's own check fits too: activity times peak times time gives the right FLOPs only if the peak is the one that belongs to the counter.
#
# The report does not say in which type its products were summed, and we have measured no GeForce part, so that this remains a hypothesis.
# One reading refutes it: a kernel with fp32 sums that is more than 50 % active on a GeForce part of these generations, or a product with fp16 sums that stays at 50 %.
# It does not explain the Orin, whose {term}`waves <wave>` are the second exercise.
#
# ### What the warps waited for
#
# In an average clock a scheduler has two to four warps, and at most one of them issues.
# {numref}`waiting-warps` says what the others do.

# %% mystnb={"figure": {"caption": "In the kernels on mma.sync hardly any warp waits for memory: they wait for the instruction before, for a busy pipe and for shared memory. In prefill_wgmma about a quarter of the warps wait for memory, among them those that do nothing but fetch. The bars are of head_dim 128 and of the matrix product.", "name": "waiting-warps"}, "image": {"alt": "Stacked bars, one per kernel, of the warps of a scheduler by what they do in an average clock. The part that waits for memory is small in the attention kernels on mma.sync, and larger in prefill_wgmma, cuDNN and cuBLAS.", "width": "100%"}} tags=["hide-input"]
at_128 = forward[forward.head_dim.isin([0, 128])]
plots.waiting_warps(plots.waiting(at_128), origin=origin)
plt.show()

# %% tags=["hide-input"]
held = forward[["kernel", "head_dim", "threads", "registers", "occupancy", "tensor_pipe"]]
held = held[held.tensor_pipe > 1].sort_values("tensor_pipe", ascending=False)
held = held.rename(columns={"occupancy": "occupancy, %", "tensor_pipe": "active, %"})
digits = {
    "threads": "{:.0f}",
    "registers": "{:.0f}",
    "occupancy, %": "{:.1f}",
    "active, %": "{:.1f}",
}
plots.table(held, "occupancies", digits)

# %% [markdown]
# All of them hold {glue:text}`fewest_warps` to {glue:text}`most_warps` % of the warps that an SM could, and the busiest of all, the matrix product, is one of them: {glue:text}`gemm_occupancy` % occupancy, {glue:text}`gemm_active` % active.
# If there were more warps, each would have to hold less: their $S$ and $O$ must fit the same 65,536 registers, and a warp with half the rows reads each fragment of $K$ and $V$ for half as many products.
# What hides latency here is not the number of warps but the independent work in each.

# %% [markdown]
# ### Prefill and decode, live
#
# The counters above are recorded.
# Every kernel of prefill and of decode can run here; in the first the tensor cores idle for a part of the time, in the second for nearly all of it.

# %% tags=["nbval-ignore-output"]
print(*(workload.label for workload in bench.here), sep="\n")
ran = bench.run()
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# A decode does a few FLOPs for each byte that it reads, so that the tensor cores must wait for memory.
# A prefill has enough work, and its tensor cores wait between the phases.

# %% mystnb={"figure": {"caption": "Distance from the least time: a decode reaches what memory allows, a prefill stays above what the products need. The workloads have their full size.", "name": "halfidle-timing"}, "image": {"alt": "A panel for each workload: a mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_timing()
plt.show()

# %% mystnb={"figure": {"caption": "No request and no head stands apart. The kernels that round P, those on tensor cores, have the larger errors. This is a prefill in bf16; Triton's interpreter does not round P.", "name": "halfidle-errors-prefill"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("prefill")
plt.show()

# %% mystnb={"figure": {"caption": "In a decode, too, the kernels that round P have the larger errors. The dtype is bf16; Triton's interpreter does not round P.", "name": "halfidle-errors-decode"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
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
gemm = forward[forward.kernel == "cublas"].iloc[0]
gemm_rate = 2 * 8192**3 / gemm.call_s / 1e12
at = on.set_index(["kernel", "head_dim"])
fore = forward.set_index(["kernel", "head_dim"])
back = backward.set_index(["kernel", "head_dim"])
said = foreseen.set_index(["kernel", "head_dim"])["active, %"]
stalled = plots.waiting(at_128).pivot(index="kernel", columns="reason", values="warps")
waits = 100 * stalled["memory"] / stalled.sum(axis=1)
low = hardware.gpu("a10")
fit_low = budget.occupancy(low, threads=128, registers=255, smem_bytes=smem.total)

# %% tags=["hide-cell"]
numbers = {
    "geforce_off": f"{(reports['predicted, %'] - reports['counter, %']).abs().max():.0f}",
    "geforce_gain": f"{reports['predicted, %'][2] / reports['predicted, %'][1]:.2f}",
    "serial_geforce": f"{roof[(roof.gpu == 'RTX 3090') & (roof.head_dim == 64)].serial.iloc[0]:.0f}",
    "mma_peak": f"{gemm.mma_peak:,.0f}", "wgmma_peak": f"{gemm.wgmma_peak:,.0f}",
    "mma_share": f"{100 * gemm.mma_peak / gemm.wgmma_peak:.0f}",
    "gemm_occupancy": f"{gemm.occupancy:.0f}", "gemm_active": f"{gemm.tensor_pipe:.0f}",
    "gemm_clock": f"{gemm.sm_clock / 1e9:.2f}", "gemm_rate": f"{gemm_rate:.0f}",
    "boost": f"{h200.boost_clock_hz / 1e9:.2f}",
    "mma_active": f"{fore.tensor_pipe['prefill_mma', 128]:.0f}",
    "mma_of_peak": f"{at['of the peak, %']['prefill_mma', 128]:.0f}",
    "mma_foreseen": f"{said['prefill_mma', 128]:.0f}", "waits_for_memory": f"{waits['prefill_mma']:.0f}",
    "waits_wgmma": f"{waits['prefill_wgmma']:.0f}",
    "low_smem": f"{fit_low.by_smem}", "low_registers": f"{fit_low.by_registers}",
}  # fmt: skip

# %% tags=["hide-cell"]
numbers |= {
    "fa2_256": f"{at['of the peak, %']['torch_fa2', 256]:.0f}",
    "cudnn_256": f"{at['of the peak, %']['torch_cudnn', 256]:.0f}",
    "wgmma_256": f"{at['of the peak, %']['prefill_wgmma', 256]:.0f}",
    "mufu_64": f"{fore.mufu['torch_cudnn', 64]:.0f}",
    "cudnn_64": f"{fore.tensor_pipe['torch_cudnn', 64]:.0f}",
    "mma_64": f"{fore.tensor_pipe['prefill_mma', 64]:.0f}", "foreseen_64": f"{said['prefill_mma', 64]:.0f}",
    "mufu_mma": f"{fore.mufu['prefill_mma', 128]:.0f}",
    "mufu_cudnn": f"{fore.mufu['torch_cudnn', 128]:.0f}",
    "back_fa2": f"{back.tensor_pipe['torch_fa2 backward', 128]:.0f}",
    "front_fa2": f"{fore.tensor_pipe['torch_fa2', 128]:.0f}",
    "back_mufu": f"{back.mufu['torch_fa2 backward', 128]:.0f}",
    "back_smem": f"{back.smem['torch_fa2 backward', 128]:.0f}",
}  # fmt: skip

# %% tags=["hide-cell"]
numbers |= {
    "fewest_warps": f"{held['occupancy, %'].min():.0f}",
    "most_warps": f"{held['occupancy, %'].max():.0f}",
    "cudnn_of_peak": f"{at['of the peak, %']['torch_cudnn', 128]:.0f}",
    "cudnn_active": f"{fore.tensor_pipe['torch_cudnn', 128]:.0f}",
    "cudnn_rate": f"{at['TFLOP/s']['torch_cudnn', 128]:.0f}",
    "wgmma_foreseen_64": f"{said['prefill_wgmma', 64]:.0f}",
    "wgmma_64": f"{fore.tensor_pipe['prefill_wgmma', 64]:.0f}",
    "wgmma_active": f"{fore.tensor_pipe['prefill_wgmma', 128]:.0f}",
    "wgmma_foreseen": f"{said['prefill_wgmma', 128]:.0f}",
}
for name, text in numbers.items():
    glue(name, text, display=False)

# %% tags=["hide-cell"]
listed = pd.DataFrame(numbers.items(), columns=["name", "number"])
plots.table(listed.assign(name=listed.name.str.replace("_", " ")), "numbers")

# %% [markdown]
# 1. **Active is not arithmetic.**
#    `prefill_mma` is active for {glue:text}`mma_active` % of the time at head_dim 128 and does {glue:text}`mma_of_peak` % of the FLOPs that the chip could, because its instruction can do {glue:text}`mma_share` % at most.
#    A counter needs its peak beside it.
# 2. **49,152 bytes allow two blocks only where an SM has 100 KiB**, and even there registers allow the same two.
#    The report's three GPUs are not alike in this, and everything newer than them with more shared memory is limited by registers.
# 3. **Low occupancy is what large accumulators cost, and they are worth it.**
#    The matrix product of the comparison has {glue:text}`gemm_occupancy` %, and is active for {glue:text}`gemm_active` % of the time.
# 4. **Exponentials take as long as products at head_dim 64 on Hopper and at 128 on a B200.**
#    cuDNN's kernel at head_dim 64 has its tensor pipe active for {glue:text}`cudnn_64` % of the time and its special-function unit for {glue:text}`mufu_64` %.
#    These are averages over the whole kernel, and do not say when the two overlap.
#    At head_dim 128 the unit is at {glue:text}`mufu_cudnn` % there, and in `prefill_mma` at {glue:text}`mufu_mma` %.
#    What attention adds besides are maxima, conversions and rescaling, and above all an *order*: products, softmax, products.
# 5. **In `prefill_mma` hardly any warp waits for copies**, {glue:text}`waits_for_memory` % of them; a stage ahead is enough.
#    Its warps wait for each other's pipe, and for the phase before their own.
#    In `prefill_wgmma` {glue:text}`waits_wgmma` % wait for memory, among them the warps whose only work is to fetch.
# 6. **A matrix product is a ceiling with a clock of its own.**
#    Busy as it is, it runs at {glue:text}`gemm_clock` GHz instead of {glue:text}`boost`, since the chip reaches its power limit, and gives {glue:text}`gemm_rate` TFLOP/s.
#    A kernel whose tensor cores idle runs at a higher clock, which makes up for a part.
# 7. **Backward loses by shared memory and registers, not by exponentials.**
#    FlashAttention-2's goes from {glue:text}`front_fa2` to {glue:text}`back_fa2` % active at head_dim 128, with exp2 at {glue:text}`back_mufu` % and shared memory at {glue:text}`back_smem` %; {doc}`the_tuner_and_the_backward_pass` has the figure.
#
# Where does the other half go?
# It goes into phases that nothing overlaps, and into an instruction that cannot do more.
# cuDNN, which has neither fault, has its tensor pipe active for {glue:text}`cudnn_active` % of the time at head_dim 128 and reaches {glue:text}`cudnn_rate` TFLOP/s; {doc}`the_ladder` says which idea gains how much of that.
#
# Where did the model fail?
# The model foresaw {glue:text}`foreseen_64` and {glue:text}`mma_foreseen` % activity for `prefill_mma` at head_dim 64 and 128; the profiler found {glue:text}`mma_64` and {glue:text}`mma_active` %.
# For `prefill_wgmma`, on which it was not tuned, it foresaw {glue:text}`wgmma_foreseen_64` and {glue:text}`wgmma_foreseen` %, and the profiler found {glue:text}`wgmma_64` and {glue:text}`wgmma_active` %.
# The model does not know how well a compiler schedules, to which clock the power limit leads, or how the L2 cache behaves.
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
# {eq}`half-idle-ratio` is 1 at $D = R / (4 E)$.
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
# At head_dim 128 FlashAttention-2 takes tiles of 128 × 64 with 4 warps, and 128 × 32 on GPUs with 100 KiB per SM.
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
# The case, its GPUs, its percentages and its author's own explanation are from {cite:t}`flashattention1205`; the tile of 49,152 bytes and the sentences on occupancy and head_dim were reported with it.
# The Orin's kernel is from another report of the same author.
# The bytes of FlashAttention-2's tiles were read in its sources, kernel_traits.h and flash_fwd_launch_template.h {cite:p}`dao2024`.
# {cite:t}`shah2024` say that the exponential limits Hopper, and that warpgroups in turns and products behind the softmax help.
# GeForce's half rate is from NVIDIA's white papers ({doc}`hardware`); the two observations of its counter are from {cite:t}`llmc377` and {cite:t}`triton10851`.
# The rates of `mma.sync` and `wgmma` on Hopper are what the profiler calls their peaks; {cite:t}`luo2024` measured the former.
# The model of a step is ours. It is an old insight that the sum of what does not overlap matters, and not occupancy {cite:p}`volkov2010`.
