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
# # Your first kernel
#
# ## Question
#
# **How do you divide a task among a thousand threads that all run the same function?**
#
# A GPU is fast because many threads work at once.
# You write one function, a *kernel*, and the GPU runs it in every thread.
# A thread knows only its own number, and from this number it must find out which part of the work is its own.
# On this page you write eight small kernels in standard CUDA, launch each of them, and read what the machine says about your mistakes.
# After that you compute one row of attention, which is what every kernel of this book is about.
#
# ## You need
#
# You need Python, and enough C to read a loop over an array.
# You do not need a GPU: the CPU machine of this lab runs CUDA threads on your processor, checks every access to memory, and gives the bits that a GPU gives.
# In JupyterLab you can change each kernel below and run its cell again; a kernel may use `printf`.

# %% tags=["remove-cell"]
# Where the lab is not installed, as in Colab, this cell installs it, with its recorded data.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("labkernels") is None:
    lab = "labkernels[gpu,plots] @ git+https://github.com/labkernels/labkernels"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", lab, "myst-nb"], check=True)

# %% tags=["hide-input"]
import contextlib

import matplotlib.pyplot as plt
import numpy as np

from labkernels.chapters import exercises
from labkernels.chapters.primers import first_kernel, machine
from labkernels.chapters.primers.first_kernel import attention_row
from labkernels.plots.primers import locator

# %% [markdown]
# ## The machine in one picture
#
# A *launch* starts a {term}`grid` of thread blocks.
# All thread blocks of a grid have the same number of threads, at most 1024.
# The GPU places each thread block on one of its {term}`SM`s, and the thread block stays there until its last thread has returned.
# The SM executes the threads in groups of 32, which are called {term}`warp`s; a thread's place in its warp is its {term}`lane`.
#
# Each thread has its own {term}`register`s.
# The threads of a thread block have one {term}`shared memory`, through which they exchange numbers.
# All threads of the grid read and write the global memory, where your arrays are.

# %% mystnb={"figure": {"caption": "Left is what you launch, right is where it runs.", "name": "gpu-locator"}, "image": {"alt": "Two columns. On the left a grid of six thread blocks, below it one thread block of four warps, below that one warp of 32 lanes. On the right the GPU with its SMs, the L2 cache and the global memory; below it one SM with its shared memory; below that the registers of a lane. An arrow says that a thread block runs on an SM, and another that a warp has registers.", "width": "90%"}} tags=["hide-input"]
locator.locator(origin="a drawing, not to scale")
plt.show()

# %% [markdown]
# ### Words of CUDA and of this lab
#
# The steps of this page use the words of CUDA.
# The kernels of this lab use words of their own, which the CPU machine can check. Each of them stands for one word or one instruction of CUDA.
#
# | CUDA | This lab | Meaning |
# |---|---|---|
# | `__global__ void f(...)` | `LAB_KERNEL(threads, 1) f(...)` | a kernel: the function that every thread runs |
# | `f<<<blocks, threads>>>(x, n)` | a launch from Python | starts `blocks` thread blocks of `threads` threads |
# | `threadIdx.x` | `thread_x()` | the number of the thread in its thread block, from 0 |
# | `blockIdx.x` | `block_x()` | the number of the thread block in the grid, from 0 |
# | `blockDim.x` | a constant, often `threads` | threads of a thread block |
# | `gridDim.x` | a parameter | thread blocks of the grid |
# | `x[i]`, where `x` is a parameter | `load_constant(x + i)` | a read of global memory |
# | `y[i] = v` | `store_global(y + i, v)` | a write to global memory |
# | `__shared__ float a[64]` | `shared_memory<Smem>()` | memory that the threads of a thread block share |
# | `__syncthreads()` | `sync_block()` | a {term}`barrier` for the threads of a thread block |
# | `__shfl_xor_sync(~0u, v, k)` | `shfl_xor(v, k)` | the `v` of the lane whose number differs in the bits of `k` |
# | `exp2f(x)` | `ex2_approx(x)` | $2^x$ |
#
# ## Eight steps
#
# Each step is a kernel with one mistake, as a text in Python.
# `check` launches the kernel as the text above it says, and compares what the kernel wrote with what it should write; in a message, line 1 is the line with `__global__`.
# Read the kernel, guess what the machine will say, and compare.
# Then mend the kernel and run the cell again until it says *Passed*.
# A kernel that passes is in the closed cell below.
#
# ### 1. Index
#
# The launch is `fill<<<4, 64>>>(y)`: 4 thread blocks of 64 threads, which are 256 threads.
# Thread $i$ of all 256 is to write the number $i$ into `y[i]`.
# `threadIdx.x` counts from 0 to 63 in *every* thread block.

# %%
index = """__global__ void fill(int* y) {
  int i = threadIdx.x;
  y[i] = i;
}"""
first_kernel.check("index", index)

# %% [markdown]
# All four thread blocks wrote the same 64 numbers.
# The number of a thread in the grid needs three words: `blockIdx.x` says how many thread blocks come before, and `blockDim.x` how many threads each of them has.

# %% tags=["hide-cell"]
# A kernel that passes.
index = """__global__ void fill(int* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = i;
}"""
found = first_kernel.check("index", index)
print(found)
assert found.passed

# %% [markdown]
# ### 2. Guard
#
# Now there are `n` = 200 numbers, and 200 is not a multiple of 64.
# The launch rounds up: `add<<<(n + 63) / 64, 64>>>(x, y, z, n)` starts 4 thread blocks.

# %%
guard = """__global__ void add(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  z[i] = x[i] + y[i];
}"""
first_kernel.check("guard", guard)

# %% [markdown]
# The last 56 threads have no number to add, and they read behind the end of the arrays.
# A GPU often does not notice this, and reads or overwrites what lies there.
# So nearly every kernel has a *guard*, a condition that lets such threads do nothing.

# %% tags=["hide-cell"]
# A kernel that passes.
guard = """__global__ void add(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}"""
found = first_kernel.check("guard", guard)
print(found)
assert found.passed

# %% [markdown]
# ### 3. Two dimensions
#
# A matrix has rows and columns, and a grid can have them too: `fill<<<dim3(2, 2), dim3(16, 4)>>>(b, rows, columns)` starts 2 × 2 thread blocks of 16 × 4 threads.
# Each index then has an `.x` and a `.y`.
# The matrix has 6 rows and 20 columns; element (row, column) is to become 10 · row + column.

# %%
two_dimensions = """__global__ void fill(int* b, int rows, int columns) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  int column = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < rows && column < columns) b[row * columns + column] = 10 * row + column;
}"""
first_kernel.check("two_dimensions", two_dimensions)

# %% [markdown]
# The first size of `dim3` is the size in `x`.
# The grid has 32 threads in `x` and 8 in `y`, so `x` must count the 20 columns.
# There is a second reason to count the columns by `x`: threads whose `x` follow each other are neighbours in a warp, and step 7 shows why neighbours should read neighbouring numbers.

# %% tags=["hide-cell"]
# A kernel that passes.
two_dimensions = """__global__ void fill(int* b, int rows, int columns) {
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows && column < columns) b[row * columns + column] = 10 * row + column;
}"""
found = first_kernel.check("two_dimensions", two_dimensions)
print(found)
assert found.passed

# %% [markdown]
# ### 4. Shared memory
#
# The launch is `reverse<<<2, 64>>>(x, y)`.
# Each thread block is to write its 64 numbers in the reverse order.
# A thread reads a number that another thread has loaded, so the numbers go through shared memory.
# An array with `__shared__` exists once for each thread block.
# A variable without `__shared__`, such as `t`, exists once for each thread.

# %%
shared_memory = """__global__ void reverse(const float* x, float* y) {
  __shared__ float part[64];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  // a line is missing here
  __syncthreads();
  y[i] = part[63 - t];
}"""
first_kernel.check("shared_memory", shared_memory)

# %% [markdown]
# Shared memory begins with whatever an earlier thread block has left there.
# The CPU machine knows which bytes nobody has written, and stops at the first such read.

# %% tags=["hide-cell"]
# A kernel that passes.
shared_memory = """__global__ void reverse(const float* x, float* y) {
  __shared__ float part[64];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  part[t] = x[i];
  __syncthreads();
  y[i] = part[63 - t];
}"""
found = first_kernel.check("shared_memory", shared_memory)
print(found)
assert found.passed

# %% [markdown]
# ### 5. Barrier
#
# The launch is `difference<<<2, 64>>>(x, y)`.
# Each thread subtracts the number of its left neighbour from its own; the first thread of a thread block subtracts 0.

# %%
barrier = """__global__ void difference(const float* x, float* y) {
  __shared__ float part[64];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  part[t] = x[i];
  float left = 0;
  if (t > 0) left = part[t - 1];
  y[i] = x[i] - left;
}"""
first_kernel.check("barrier", barrier)

# %% [markdown]
# Threads do not run in any order that you can rely on.
# Thread 1 may read `part[0]` before thread 0 has written it; this is a *race*.
# `__syncthreads()` is the remedy: no thread goes on before all threads of the thread block have arrived.
# *All* is meant literally, as the next attempt shows:

# %%
barrier = """__global__ void difference(const float* x, float* y) {
  __shared__ float part[64];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  part[t] = x[i];
  float left = 0;
  if (t > 0) {
    __syncthreads();
    left = part[t - 1];
  }
  y[i] = x[i] - left;
}"""
first_kernel.check("barrier", barrier)

# %% [markdown]
# Thread 0 skips the `if` and returns, while the 63 other threads wait for it.
# A barrier therefore stands where every thread passes, and not inside a condition on the thread's number.

# %% tags=["hide-cell"]
# A kernel that passes.
barrier = """__global__ void difference(const float* x, float* y) {
  __shared__ float part[64];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  part[t] = x[i];
  __syncthreads();
  float left = 0;
  if (t > 0) left = part[t - 1];
  y[i] = x[i] - left;
}"""
found = first_kernel.check("barrier", barrier)
print(found)
assert found.passed

# %% [markdown]
# ### 6. Reduction
#
# The launch is `add_up<<<1, 128>>>(x, y)`: one thread block is to add 128 numbers.
# In the first turn, 64 threads each add one number of the upper half to one of the lower half.
# In the next turn 32 threads do so, and after seven turns one number is left.

# %%
reduction = """__global__ void add_up(const float* x, float* y) {
  __shared__ float sum[128];
  int t = threadIdx.x;
  sum[t] = x[t];
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) sum[t] += sum[t + half];
  }
  if (t == 0) y[0] = sum[0];
}"""
first_kernel.check("reduction", reduction)

# %% [markdown]
# A turn reads what the turn before has written, so a barrier must stand between two turns.
# The sums of different turns meet in different threads: thread 0 adds `sum[1]` in the last turn, and thread 1 wrote it.

# %% tags=["hide-cell"]
# A kernel that passes.
reduction = """__global__ void add_up(const float* x, float* y) {
  __shared__ float sum[128];
  int t = threadIdx.x;
  sum[t] = x[t];
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) sum[t] += sum[t + half];
    __syncthreads();
  }
  if (t == 0) y[0] = sum[0];
}"""
found = first_kernel.check("reduction", reduction)
print(found)
assert found.passed

# %% [markdown]
# ### 7. Coalescing
#
# The numbers are right in this step, and the kernel is slow.
# The launch is `copy<<<2, 64>>>(x, y)`: each of 128 threads copies 8 numbers of 4 bytes.
#
# The 32 lanes of a warp read in the same turn, and global memory answers in *sectors* of 32 bytes.
# If the lanes want 32 numbers that lie side by side, these are 128 bytes in 4 sectors: the access is {term}`coalesced`.
# If each lane wants a number from a sector of its own, memory moves 32 sectors for these 128 bytes.
# The CPU machine notes the address of every access and counts both:

# %%
coalescing = """__global__ void copy(const float* x, float* y) {
  int first = blockIdx.x * 512, t = threadIdx.x;
  for (int k = 0; k < 8; ++k) {
    int i = first + 8 * t + k;
    y[i] = x[i];
  }
}"""
first_kernel.check("coalescing", coalescing)

# %% [markdown]
# In turn `k` the lanes want `x[k]`, `x[8 + k]`, `x[16 + k]` and so on: each number lies 32 bytes behind the one before, and so in the next sector.
# Memory moves eight times as many bytes as the kernel wants.
# The remedy is to give neighbouring lanes neighbouring numbers, and to jump from turn to turn.

# %% tags=["hide-cell"]
# A kernel that passes.
coalescing = """__global__ void copy(const float* x, float* y) {
  int first = blockIdx.x * 512, t = threadIdx.x;
  for (int k = 0; k < 8; ++k) {
    int i = first + 64 * k + t;
    y[i] = x[i];
  }
}"""
found = first_kernel.check("coalescing", coalescing)
print(found)
assert found.passed

# %%
n = np.arange(1024, dtype=np.float32)
first_kernel.counted(coalescing, "copy<<<2, 64>>>(x, y)", x=n, y=np.zeros_like(n))

# %% [markdown]
# The table has a row for each line that reads or writes global memory.
# `warps` is the number of accesses by a warp; `lanes`, `bytes` and `sectors` are means of one access.
#
# ### 8. Divergence
#
# The launch is `mix<<<4, 64>>>(x, y)`.
# Even elements are to become squares, and odd elements are to change their sign.

# %%
divergence = """__global__ void mix(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i % 2 == 0)
    y[i] = x[i] * x[i];
  else
    y[i] = -x[i];
}"""
first_kernel.check("divergence", divergence)

# %% [markdown]
# A warp executes one instruction at a time for its 32 lanes.
# If 16 lanes take the `if` and 16 lanes the `else`, the warp executes both, one after the other, and half of its lanes do nothing in each: this is {term}`divergence`.
# Where different *warps* take different ways, no lane is idle.
# Where both sides are short, let every lane compute both values and choose one of them.

# %% tags=["hide-cell"]
# A kernel that passes.
divergence = """__global__ void mix(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i];
  y[i] = i % 2 == 0 ? v * v : -v;
}"""
found = first_kernel.check("divergence", divergence)
print(found)
assert found.passed

# %% [markdown]
# ### A kernel of your own
#
# Now write a kernel from nothing, without a check that knows the answer.
# The kernel has the parameters `float a, const float* x, float* y, int n`, and adds `a * x[i]` to each `y[i]`.
# Choose the number of thread blocks for `n` = 1000, launch the kernel by `first_kernel.launch(source, call, a=2.0, x=x, y=y, n=1000)`, and compare `y` with NumPy's result.
# The closed cell has such a kernel.

# %% tags=["hide-cell"]
# A kernel that passes.
saxpy = """__global__ void saxpy(float a, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}"""
x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
call = "saxpy<<<(n + 255) / 256, 256>>>(a, x, y, n)"
first_kernel.launch(saxpy, call, a=2.0, x=x, y=y, n=1000)
assert (y == 1 + 2 * x).all()

# %% [markdown]
# ## Prediction
#
# The last task is one row of attention, which is small enough to compute by hand.
# A query $q$ is compared with four keys, and each key has a value.
# All of these are vectors; an entry of a vector is called a *channel*, and here there are two.
# The score of a key is the product $s_j = q \cdot k_j$; its weight is $2^{s_j}$, divided by the sum of all four weights; and the output is the weighted mean of the values $v_j$.
# (The textbook has $e^s$ in place of $2^s$, and a factor before the score. {doc}`attention_block_by_block` has both, and says why a kernel uses powers of two.)

# %%
q = np.float32([1, 1])
k = np.float32([[1, 0], [1, -1], [2, 1], [0, 2]])
v = np.float32([[3, 0], [1, 2], [1, 3], [0, 1]])
print("scores", k @ q)

# %% [markdown]
# The scores are 1, 0, 3 and 2, so the weights are 2, 1, 8 and 4, with the sum 15.
# The weighted values have the sum $2 (3, 0) + 1 (1, 2) + 8 (1, 3) + 4 (0, 1) = (15, 30)$, so the output must be $(1, 2)$.
#
# A kernel does not see all keys at once: a thread block works on one part of the keys at a time.
# This page calls such a part a *KV tile*, from K for keys and V for values, since CUDA and most of this book say *block* for a thread block.
# Of the keys seen, in two KV tiles of two keys here, it keeps the largest score $m$, the sum of weights $l$, and the weighted values $o$.
# Weights are taken relative to $m$, as $2^{s - m}$, because $2^s$ itself could be too large for a number of 32 bits.
#
# | After | maximum $m$ | sum $l$ | output $o$ |
# |---|---|---|---|
# | the first KV tile, scores 1 and 0 | 1 | $1 + \frac12 = 1.5$ | $1 (3, 0) + \frac12 (1, 2) = (3.5, 1)$ |
# | the second KV tile, scores 3 and 2 | 3 | $\frac14 \cdot 1.5 + 1 + \frac12 = 1.875$ | $\frac14 (3.5, 1) + 1 (1, 3) + \frac12 (0, 1) = (1.875, 3.75)$ |
#
# The second KV tile has a larger score.
# All weights of the first KV tile were relative to 1 and must now be relative to 3, so the old $l$ and $o$ are multiplied by $\frac14$. At the end $o / l = (1, 2)$.
#
# ## Measurement
#
# The same steps in NumPy:

# %%
m, l, o = -1e30, 0.0, np.zeros(2)
for first in (0, 2):
    s = k[first : first + 2] @ q
    m_new = max(m, s.max())
    rescale, p = 2.0 ** (m - m_new), 2.0 ** (s - m_new)
    l = rescale * l + p.sum()
    o = rescale * o + p @ v[first : first + 2]
    m = m_new
    print(f"m {m:.0f}, l {l}, o {o}")
in_numpy = o / l

# %% [markdown]
# In CUDA the launch is `attend<<<1, 2>>>(q, k, v, out, keys)`, one thread block of two threads.
# A thread has two duties in turn.
# While the scores are computed, thread `t` works for key `t` of the KV tile.
# While the values are added, it works for channel `t` of the output.
# The scores go from the first duty to the second through shared memory, so a barrier stands between the two, as step 5 says, and the second barrier has the same reason.
#
# ```{literalinclude} /labkernels/chapters/primers/first_kernel/attention_row.cu
# :language: cpp
# ```
#
# In Triton a *program* takes the place of a thread block.
# A program handles whole arrays, here of KEYS keys and D channels; Triton's compiler decides which thread holds what, and where barriers stand.
#
# ```{literalinclude} /labkernels/chapters/primers/first_kernel/attention_row_triton.py
# :language: python
# :start-after: "# [lab: row]"
# :end-before: "# [/lab: row]"
# ```
#
# All three give the same numbers:

# %%
results = [in_numpy, attention_row.cuda(q, k, v), attention_row.triton(q, k, v)]
for name, found in zip(("NumPy", "CUDA", "Triton"), results, strict=True):
    print(name, found)
assert all((found == [1, 2]).all() for found in results)

# %% [markdown]
# ### On a GPU
#
# `machine.on_gpu()` sends the launches of a block of Python to this machine's GPU.
# There the same text of the kernel is compiled by NVIDIA's compiler; nothing is checked, and a mistake shows as a wrong number or not at all.
# Where there is no GPU, this cell runs the kernel on the CPU machine.

# %% tags=["nbval-ignore-output"]
with machine.on_gpu() if machine.has_gpu() else contextlib.nullcontext():
    out = attention_row.cuda(q, k, v)
print("on the GPU:" if machine.has_gpu() else "on the CPU machine:", out)

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: first-stride
#
# Each lane of a warp reads one float of 4 bytes, but only every second one: lane $i$ reads `x[2 * i]`, and `x` begins where a sector begins.
# How many sectors does memory move for the warp?
# Check your answer with `exercises.check("first-stride", sectors)`.
# ```
#
# ```{solution-start} first-stride
# :class: dropdown
# ```
#
# The lanes reach over 64 floats, which are 256 bytes and 8 sectors.

# %%
stride = """__global__ void read(const float* x, float* y) {
  int i = threadIdx.x;
  y[i] = x[2 * i];
}"""
given = {"x": np.zeros(64, np.float32), "y": np.zeros(32, np.float32)}
counts = first_kernel.counted(stride, "read<<<1, 32>>>(x, y)", **given)
assert exercises.check("first-stride", counts.sectors[0])

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The words of CUDA, the order of threads in a warp and what a barrier promises are in {cite:t}`cudaguide`.
# The steps of a row with $m$, $l$ and $o$ are the {term}`online softmax` of {cite:t}`milakov2018`.
