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
# # A GPU in one sitting
#
# ## Question
#
# **What does a kernel take of a GPU, and how can you know, before you compile the kernel, how many of its blocks fit on an SM?**
#
# A GPU is fast because it keeps thousands of threads at hand, and some of these threads can always go on.
# Each thread needs registers, each thread block needs shared memory, and an SM has little of either.
# So the first thing to know about a kernel is a budget: how many registers per thread, how many bytes per block, and how many blocks then fit.
# This page derives both budgets for a small kernel, and the compiler then checks them.
#
# ## You need
#
# {doc}`your_first_kernel`: threads, thread blocks, shared memory, barriers.
# No GPU is needed: the kernel runs on the CPU machine of this lab, which runs CUDA threads one by one on your processor and gives the bits of a GPU. A kernel that is compiled for the CPU machine is called a {term}`CPU build`.
# Words in this style, {term}`warp`, lead to the {doc}`glossary </book/glossary>`.

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

from labkernels import budget, hardware, plots
from labkernels.budget import tile_model
from labkernels.chapters import exercises
from labkernels.chapters.primers import latency, small_product
from labkernels.cuda.compiler import nvrtc
from labkernels.cuda.host.build import HostKernelError
from labkernels.plots.primers import machine as drawn
from labkernels.records import store
from labkernels.units import format_bytes

h200 = hardware.gpu("h200")

# %% [markdown]
# ## The machine
#
# A kernel is a function that many threads run at once.
# You launch it as a grid of thread blocks; a thread block, or {term}`block` for short, is a group of threads, here often 128.
# The hardware groups the threads of a block by 32 and executes each such {term}`warp` as one: its 32 threads take the same instruction together.
# A thread's place in its warp, from 0 to 31, is its {term}`lane`.
#
# The GPU consists of {term}`SM`s, streaming multiprocessors.
# A block runs on one SM from its first instruction to its last.
# An SM has four arithmetic parts, each of which can start one instruction of one warp in every clock cycle.
# Each SM also has two memories of its own:
#
# - **Registers.** A register is a 32-bit word that belongs to one thread. Only registers can be added and multiplied.
# - **Shared memory.** All threads of a block see it, and one thread hands a number to another through it.
#
# Behind these two memories lie the {term}`L2` cache and the {term}`DRAM`, the GPU's main memory, which all SMs share.
# The nearer a memory is, the faster it is; DRAM is by far the largest.

# %% tags=["hide-input"]
smem_tb_s = tile_model.SMEM_BYTES_PER_CLK * h200.sm_count * h200.boost_clock_hz / 1e12
sizes = {
    "registers": (h200.registers_per_sm * 4 * h200.sm_count, "each serves one thread"),
    "shared memory": (
        h200.smem_per_sm_bytes * h200.sm_count,
        f"a part for each block; {smem_tb_s:.0f} TB/s",
    ),
    "L2 cache": (h200.l2_bytes, "for all SMs"),
    "DRAM": (h200.dram_bytes, f"for all SMs; {h200.dram_bytes_per_s / 1e12:.1f} TB/s"),
}

# %% mystnb={"figure": {"caption": "The memories of an H200; registers and shared memory are counted over all SMs.", "name": "memories"}, "image": {"alt": "Four horizontal bars on a logarithmic axis of bytes. Registers and shared memory, about 30 MiB each, are the shortest; the L2 cache is twice as large; the DRAM is several thousand times as large.", "width": "90%"}} tags=["hide-input"]
levels = pd.DataFrame(
    [(name, n, f"{n / 2**20:,.0f} MiB, {words}") for name, (n, words) in sizes.items()],
    columns=["name", "bytes", "words"],
)
drawn.memories(levels, origin="facts of an H200, labkernels/hardware/gpus.toml")
plt.show()

# %% [markdown]
# ### Waiting, and what hides it
#
# A number from DRAM arrives several hundred clock cycles after it was asked for.
# A thread that needs it cannot go on, and its whole warp waits.
# The SM does not wait: in every cycle it picks another warp that is ready.
# With enough warps, at least one warp is always ready.
#
# A small simulation shows this effect.
# Each warp asks for data, waits 12 turns, and works for 2 turns; the arithmetic unit serves one warp at a time.

# %% mystnb={"figure": {"caption": "More warps hide more of the same waiting: with seven, the unit works in every turn after the first wait.", "name": "warps-in-time"}, "image": {"alt": "Three panels over time, with 1, 3 and 7 warps. Grey bars are waiting, orange bars are work. With one warp the unit is idle most of the time; with seven it always works after the first wait.", "width": "90%"}} tags=["hide-input"]
runs = {n: pd.DataFrame(latency.schedule(n, wait=12, work=2, rounds=4)) for n in (1, 3, 7)}
drawn.warps_in_time(runs, origin="simulated: a load takes 12 turns, its work 2")
plt.show()

# %% [markdown]
# Seven warps are enough here, because while one works for 2 turns and waits for 12, six others can work for 2 turns each.
# In general the unit is busy when
#
# $$
# \text{warps} \;\ge\; \frac{\text{wait} + \text{work}}{\text{work}}.
# $$ (warps-to-hide)
#
# There are two ways to fulfil {eq}`warps-to-hide`: more warps on the SM, or more work for each load that a warp waits for.
# The share of an SM's room for warps that is filled is called {term}`occupancy`, and the budgets below decide it.
# More work for each load is the reason why good kernels keep many sums in registers.
#
# The same law holds for bytes.
# If data take $\tau$ seconds to come and $\beta$ bytes per second are wanted, then $\beta \tau$ bytes have to be on their way at any time.
# For the bandwidth of the H200's DRAM, each SM's share of these bytes is:

# %%
in_flight = [
    {
        "latency, ns": ns,
        "KiB on their way, per SM": h200.dram_bytes_per_s * ns * 1e-9 / h200.sm_count / 1024,
    }
    for ns in (400, 600, 800, 1000)
]
plots.table(pd.DataFrame(in_flight), "in-flight", {"KiB on their way, per SM": "{:.1f}"})

# %% [markdown]
# ## Kernel
#
# The kernel multiplies two matrices: thread $t$ computes the `Sums` numbers of column $t$ of $y = W^T x$.
# A thread keeps its sums in registers, because every step changes each of them.
# The block keeps a *tile* of $W$, 32 of its rows, in shared memory, because all 128 threads need the same numbers.
# `Stages` is the number of tiles that shared memory has room for; they are filled in turns.
#
# ```{literalinclude} /labkernels/chapters/primers/small_product.cuh
# :language: cpp
# :start-after: "// [lab: kernel]"
# :end-before: "// [/lab: kernel]"
# ```
#
# Some words are C++ and not C.
# `template <int Sums, int Stages>` makes a kernel for each pair of numbers, which the compiler knows; `auto&` gives the struct another name, without a copy.
#
# Other words are the lab's own.
# `LAB_KERNEL(threads, 1)` marks a kernel: its blocks have `threads` threads each, and the 1 tells the compiler that at least one such block must fit on an SM.
# `shared_memory<...>()` gives the block's shared memory as a struct.
# `load_constant` and `store_global` read and write DRAM.
# `fma_rn(a, b, c)` is $a b + c$, rounded once.
# `sync_block()` is a barrier: no thread goes on before all threads of the block have arrived.
# `#pragma unroll` writes the loop out, so that `sum[i]` is a certain register and not an element of an array in memory.
#
# The kernel runs on your machine, and NumPy gives the same numbers:

# %%
rng = np.random.default_rng(0)
x, w = rng.standard_normal((96, 128)), rng.standard_normal((96, 8))
y = small_product.multiply(x, w, stages=2)
exact = np.float32(x).T.astype(np.float64) @ np.float32(w)
bool(np.allclose(y, exact, atol=1e-4))

# %% [markdown]
# Why are there two stages?
# With one stage a fast thread would overwrite a tile that a slow thread still reads.
# The CPU machine notices this mistake, and names both threads and their lines: the multiplication, and the copy of the next tile.

# %%
try:
    small_product.multiply(x, w, stages=1)
except HostKernelError as error:
    print(error)

# %% [markdown]
# With two stages a fast thread fills the second tile in the meantime. The fast thread comes back to the first tile only after the next barrier, and the slow thread reaches this barrier after its last read.
#
# ## Prediction
#
# **Shared memory per block** is the size of the struct, and it is exact:
#
# $$
# M \;=\; \text{stages} \cdot 32 \cdot \text{sums} \cdot 4 \text{ bytes}.
# $$ (ten-lines-smem)
#
# **Registers per thread** are the numbers that are alive at the same time.
# The sums are alive from the first step to the last, and take one register each.
# Addresses, the loop counter, and weights on their way to the multiplier come on top.
# The number of these other registers is a constant $c$, as long as there are many sums:
#
# $$
# R \;=\; \text{sums} + c.
# $$ (ten-lines-registers)
#
# We do not derive $c$, because the compiler chooses how many weights it loads ahead. We take $c$ from one compilation, of 64 sums, and predict the others.
# (`sm_90a` is the compiler's name for the H200's architecture.)
# A thread can have 255 registers at most.
# So {eq}`ten-lines-registers` also says for how many sums it must fail.

# %%
recorded = pd.DataFrame(store.read("register_growth"))
recorded = recorded[recorded.arch == "sm_90a"].set_index("sums")
c = int(recorded.registers[64]) - 64
predicted = {sums: sums + c for sums in (96, 128, 160, 192, 224, 256)}
print(f"c = {c}", predicted, sep="\n")

# %% [markdown]
# So the compiler needs 54 registers beside the sums.
# Its machine code shows what these registers hold: 44 of them hold weights, because eleven loads of four weights each stand before the first multiplication, which then need not wait for shared memory.
# The other ten are for one number of $x$, for addresses and for counters.
#
# Up to 160 sums the prediction should be exact.
# At 192 sums the prediction comes close to 255, so that the compiler may begin to save registers; at 224 the prediction exceeds 255, and the compiler has to save many.
# At 256 the sums alone do not fit, and some must go to memory: the compiler must {term}`spill`.
#
# **Blocks per SM** follow from both budgets.
# An SM has $R_{SM}$ registers, $M_{SM}$ bytes of shared memory, of which the system keeps $M_0$ for each block, and room for $W_{SM}$ warps.
# Each resource allows some number of blocks, and the smallest number counts:
#
# $$
# \begin{aligned}
# \text{blocks} &= \min(b_R, b_M, b_W) , \\
# b_R &= \frac{R_{SM}}{R \cdot \text{threads}}, \\
# b_M &= \frac{M_{SM}}{M + M_0}, \\
# b_W &= \frac{W_{SM}}{\text{threads} / 32} ,
# \end{aligned}
# $$ (ten-lines-blocks)
#
# each quotient rounded down.
# (Registers are handed out in units, so `labkernels.budget.occupancy` rounds a little more than this.)
# For an H200, the data-centre GPU of NVIDIA's {term}`Hopper` generation on which this lab measures, and 64 sums:

# %%
sums, stages = 64, 2
registers, smem_bytes = int(recorded.registers[sums]), small_product.smem_bytes(sums, stages)
fit = budget.occupancy(h200, threads=128, registers=registers, smem_bytes=smem_bytes)
print(
    f"R_SM {h200.registers_per_sm}, M_SM {format_bytes(h200.smem_per_sm_bytes)}, W_SM {h200.warps_per_sm_max}"
)
print(f"{registers} registers per thread, {format_bytes(smem_bytes)} per block")
print(
    f"blocks by registers {fit.by_registers}, by shared memory {fit.by_smem}, by warps {fit.by_warps}"
)

# %% mystnb={"figure": {"caption": "An SM filled by blocks of this kernel with 64 sums: registers run out first.", "name": "sm-with-blocks"}, "image": {"alt": "Three horizontal bars: registers, nearly filled by numbered blocks; shared memory, a third filled; warp slots, a quarter filled.", "width": "90%"}} tags=["hide-input"]
have = [
    ("registers", registers * 128, h200.registers_per_sm, "registers"),
    (
        "shared memory",
        smem_bytes + h200.smem_reserved_per_block_bytes,
        h200.smem_per_sm_bytes,
        "bytes",
    ),
    ("warp slots", 4, h200.warps_per_sm_max, "warps"),
]
have = pd.DataFrame(have, columns=["name", "per_block", "available", "unit"])
drawn.sm_with_blocks(
    have.assign(blocks=fit.blocks_per_sm), origin="computed: an H200, 64 sums, 2 stages"
)
plt.show()

# %% [markdown]
# ## Measurement
#
# NVIDIA's compiler runs without a GPU.
# What the compiler reported for each number of sums is recorded in `data/performance/register_growth.csv`:

# %%
table = recorded[["registers", "spill_bytes"]].assign(predicted=lambda t: t.index + c)
table["beyond the prediction"] = table.registers - table.predicted
table

# %% [markdown]
# From 64 to 160 sums the formula is right to the register.
# Below 64 the constant is smaller, because fewer weights are in registers at once.
# Above 160 sums the compiler saves registers where it can, and at 256 it spills.
#
# {term}`NVRTC` is NVIDIA's compiler as a library. Where this machine has NVRTC, the next cell asks it about the same kernels:

# %% tags=["nbval-ignore-output"]
if nvrtc.available() is None:
    live = {s: small_product.compiled(s, 2, "sm_90a").report.registers for s in (64, 128)}
    print("compiled here:", live)
else:
    print("not compiled here:", nvrtc.available())

# %% [markdown]
# The shared memory needs no measurement: in the lab's kernels a `static_assert` holds the struct's size equal to the formula's, so that a wrong formula does not compile.
#
# More sums per thread mean more work for each load, but fewer warps. Both hide waiting, so the kernel with the highest occupancy is rarely the best {cite:p}`volkov2010`.
#
# ## Exercises
#
# ```{exercise}
# :label: gpu-ledger
#
# Assignment 14, *A register ledger*: how many registers do the matrices of a decode kernel take?
# `exercises.get("register_ledger")` has the task, and `exercises.check("register_ledger", ...)` judges your number.
# What the matrices are for comes in {doc}`attention_block_by_block`; here only their sizes matter. A number takes 16 bits in fp16 and in bf16, and 32 bits in fp32.
# ```

# %%
exercises.get("register_ledger")

# %% [markdown]
# ```{solution-start} gpu-ledger
# :class: dropdown
# ```
#
# Every matrix takes rows × columns × bits / 32 bits / 32 threads.

# %%
found = exercises.check("register_ledger", 32 + 16 + 64 + 4)
print(found)
assert found.passed

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: gpu-occupancy
#
# Assignment 15, *Choose the stages for two blocks per SM*: how many tiles can be in flight before a second block no longer fits?
# `exercises.check("occupancy_choice", ...)` judges your three numbers.
# ```

# %%
exercises.get("occupancy_choice")

# %% [markdown]
# ```{solution-start} gpu-occupancy
# :class: dropdown
# ```
#
# Half of an H200's 228 KiB, less the reserve of 1 KiB, is 113 KiB; after the query's 16 KiB there is room for three stages of 32 KiB. Half of an A100's 164 KiB has room for two, and half of an L4's 100 KiB for one.

# %%
found = exercises.check("occupancy_choice", "3, 2, 1")
print(found)
assert found.passed

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The limits of an SM are from {cite:t}`cudaguide`; each number of the lab's tables has its source beside it ({doc}`hardware`).
# {cite:t}`volkov2010` showed that fewer warps with more work each can be faster.
# The {term}`roofline`, to which {doc}`attention_block_by_block` comes, is from {cite:t}`williams2009`.
