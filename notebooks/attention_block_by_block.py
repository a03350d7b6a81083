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
# # Attention, block by block
#
# ## Question
#
# **How does a kernel compute attention over keys that do not fit into an SM, without ever seeing a whole row of scores?**
#
# Attention compares a query with every key, turns the scores into weights that sum to one, and averages the values with these weights.
# Written down like this, attention needs all scores of a row before the first weight can be computed.
# A text may have a hundred thousand keys, while a thread block that computes 128 rows has room for a few hundred scores of each.
# The way out, the {term}`online softmax` {cite:p}`milakov2018`, is the heart of every kernel in this book.
# You will build it here in NumPy, and then read, run and change the same lines in CUDA and in Triton.
#
# ## You need
#
# {doc}`your_first_kernel`: threads, warps, shared memory, barriers; {doc}`a_gpu_in_one_sitting`: what limits the threads on an SM.
# No GPU is needed.

# %% tags=["remove-cell"]
# Where the lab is not installed, as in Colab, this cell installs it, with its recorded data.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("labkernels") is None:
    lab = "labkernels[gpu,plots] @ git+https://github.com/labkernels/labkernels"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", lab, "myst-nb"], check=True)

# %% tags=["hide-input"]
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

# %% tags=["hide-input"]
from labkernels import budget, hardware, plots
from labkernels.chapters import exercises
from labkernels.chapters.primers import pipeline, small_attention, triton_attention, walk
from labkernels.chapters.primers.small_attention import Request
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.numerics.error import bounds
from labkernels.numerics.truth import online_softmax, oracle
from labkernels.plots.primers import attention as drawn
from labkernels.plots.primers import motion
from labkernels.variant import CAUSAL

LOG2_E = math.log2(math.e)
ORIGIN = "computed on this machine"

# %% [markdown]
# ## Model
#
# ### One row
#
# One query $q$ meets the keys $k_1, \dots, k_L$ with their values $v_1, \dots, v_L$:
#
# $$
# s_j = \alpha \, q \cdot k_j, \qquad o = \sum_j \frac{e^{s_j}}{\sum_i e^{s_i}} \, v_j .
# $$ (one-row)
#
# The factor $\alpha = 1 / \sqrt D$ keeps the scores of long vectors from growing.
# In NumPy:


# %%
def plain(q, k, v):
    weights = np.exp(k @ q / math.sqrt(len(q)))
    return weights @ v / weights.sum()


rng = np.random.default_rng(2)
q, k, v = rng.standard_normal(32), rng.standard_normal((96, 32)), rng.standard_normal((96, 32))
plain(q, k, v)[:3].round(4)

# %% [markdown]
# ### Why the maximum
#
# In fp32, the format of 32-bit floating-point numbers, $e^{89}$ is too large to be written down.
# Scores of 89 do occur, and then {eq}`one-row` divides infinity by infinity.
# A constant that is added to all scores of a row cancels, however, so that we may subtract the largest score $m$ first.
# The largest weight is then exactly 1, and nothing can overflow:


# %%
def with_maximum(q, k, v):
    s = k @ q / np.float32(math.sqrt(len(q)))
    weights = np.exp(s - s.max())
    return weights @ v / weights.sum()


large = [np.float32(20 * q), np.float32(2 * k), np.float32(v)]
with np.errstate(over="ignore", invalid="ignore"):
    print(plain(*large)[:3], with_maximum(*large)[:3].round(3))

# %% [markdown]
# ### Powers of two
#
# The hardware has an instruction for $2^x$ and none for $e^x$.
# Since $e^x = 2^{x \log_2 e}$, a kernel multiplies its scores by $\alpha_2 = \alpha \log_2 e$ and works in powers of two from there on.
# Scores, maxima and logarithms are then *in log2 units*, and so they are everywhere in this book.
#
# ### Block by block
#
# The block of the title is a block of keys. This book calls it a *KV tile*, since a block of threads is another thing.
#
# Suppose that a kernel has seen some of the keys.
# Of each row the kernel keeps three things: the largest score so far $m$, the sum of the weights $l = \sum 2^{s_j - m}$, and the weighted values $o = \sum 2^{s_j - m} v_j$, not yet divided.
# Now the next KV tile comes, and the maximum may rise.
# Then all old weights are too large, and all must be multiplied by the same factor $2^{m_{old} - m_{new}}$.
# So the kernel multiplies $l$ and $o$ by this factor, and adds the weights of the new KV tile:
#
# $$
# \begin{aligned}
# m' &= \max(m, \max_j s_j) \\
# l' &= 2^{m - m'} \, l + \sum_j 2^{s_j - m'} \\
# o' &= 2^{m - m'} \, o + \sum_j 2^{s_j - m'} \, v_j
# \end{aligned}
# $$ (primer-update)
#
# After the last KV tile, $o / l$ is the output.


# %%
def block_by_block(q, k, v, tile=32):
    m, l, o = np.finfo(float).min, 0.0, np.zeros(v.shape[1])
    for first in range(0, len(k), tile):
        s = k[first : first + tile] @ q * (LOG2_E / math.sqrt(len(q)))
        m_new = max(m, s.max())
        rescale, weights = 2 ** (m - m_new), 2 ** (s - m_new)
        l = rescale * l + weights.sum()
        o = rescale * o + weights @ v[first : first + tile]
        m = m_new
    return o / l, m + math.log2(l)


bool(np.allclose(block_by_block(q, k, v)[0], plain(q, k, v), rtol=1e-12))

# %% [markdown]
# The function also returns $\mathrm{lse2} = m + \log_2 l$, the logarithm of the sum of all $2^{s_j}$.
# The output $o / l$ no longer says how large the sum was. With lse2 beside it, outputs over different keys can be merged later: *Split and merge*, below, does this.

# %% mystnb={"figure": {"caption": "A row whose scores rise, in four KV tiles of 32 keys: where the maximum moves, the old sums shrink. The first KV tile has no old sums.", "name": "online-softmax-walk"}, "image": {"alt": "Three panels over 128 keys in four KV tiles. Above, bars of scores with the running maximum as a staircase; in the middle the sum l; below the factor on the old sums, which is 1 where the maximum stays and small where it jumps.", "width": "95%"}} tags=["hide-input"]
scores = rng.standard_normal(128) * 1.5 + np.linspace(0, 4, 128)
state, steps = online_softmax.empty((1,), 1), []
for first in range(0, 128, 32):
    tile = scores[None, first : first + 32]
    moved = online_softmax.update(state, tile, np.ones((32, 1)))
    steps.append((first, first + 32, moved.m[0], moved.l[0], 2.0 ** (state.m[0] - moved.m[0])))
    state = moved
steps = pd.DataFrame(steps, columns=["first", "last", "m", "l", "rescale"])
drawn.walk(scores, steps, origin=ORIGIN)
plt.show()

# %% [markdown]
# ### Split and merge
#
# A single thread block for a query with very many keys would keep one SM busy, while all other SMs idle.
# So the keys are split among several thread blocks. Each of them goes through its part of the keys and ends with its own $(m, l, o)$.
# To merge two results $a$ and $b$, both are rescaled to the larger maximum and added:
#
# $$
# \begin{aligned}
# m &= \max(m_a, m_b), \\
# l &= 2^{m_a - m} l_a + 2^{m_b - m} l_b, \\
# o &= 2^{m_a - m} o_a + 2^{m_b - m} o_b .
# \end{aligned}
# $$ (primer-merge)
#
# Where a result was kept as output and lse2, the merge takes $m = \mathrm{lse2}$, $l = 1$ and the output as $o$, which describe the same weights.
# A split without keys has $l = 0$ and $o = 0$, and changes nothing; its $m$ is the lowest finite number, since $-\infty - (-\infty)$ would be NaN.

# %% mystnb={"figure": {"caption": "Three splits of the row above, the factors that rescale them, and what they merge to.", "name": "split-and-merge"}, "image": {"alt": "Three boxes with the m and l of three splits. An arrow with a factor leads from each to one box with the m and l of all keys.", "width": "95%"}} tags=["hide-input"]
parts = [(0, 48), (48, 96), (96, 128)]
empty = online_softmax.empty((1,), 1)
states = [online_softmax.update(empty, scores[None, a:b], np.ones((b - a, 1))) for a, b in parts]
found = [(f"keys {a} to {b - 1}", s.m[0], s.l[0]) for (a, b), s in zip(parts, states, strict=True)]
whole = online_softmax.merge(online_softmax.merge(states[0], states[1]), states[2])
assert np.isclose(whole.l[0], state.l[0])
found = pd.DataFrame(found, columns=["keys", "m", "l"])
drawn.split_and_merge(found, (whole.m[0], whole.l[0]), origin=ORIGIN)
plt.show()

# %% [markdown]
# ### Heads that share keys
#
# A model has many query heads, and often fewer heads of keys and values: with {term}`GQA` a *group* of query heads shares one KV head {cite:p}`ainslie2023`.
# A thread block that has loaded a key can use it for all heads of the group.
# So kernels *pack* the heads: the rows of a tile are the query heads of a group, and with several query tokens row $r$ is token $\lfloor r / g \rfloor$ and head $r \bmod g$ of the group.
#
# ### A query tile meets K and V
#
# A kernel cuts the query rows into *query tiles*, and one thread block computes each of them.
# The thread block loads its query tile once. Then it goes through the keys, a KV tile at a time: it loads these rows of $K$ and of $V$, computes $S = Q K^T$, and updates $(m, l, o)$ of each row by {eq}`primer-update`.
# The weights of a KV tile are the matrix $P$, and what they add to $o$ is the product $P V$.
#
# When a model reads a text, a token may see only the tokens up to itself: attention has a {term}`causal mask`.
# If $n$ query tokens ask for $L$ keys, query token $i$ (from 0) sees keys 0 to $L - n + i$.
# Scores of later keys are masked, that is, set to $-\infty$, so that their weights are 0.
# A thread block skips the KV tiles of which none of its rows sees a key, and it masks scores only in those KV tiles through which the limit runs.

# %% mystnb={"figure": {"caption": "The numbered steps of one query tile under a causal mask: three query tiles of 64 tokens, the last 192 of 320, against five KV tiles of 64 keys.", "name": "tile-walk"}, "image": {"alt": "Five boxes of K and five of V in two rows. Below them a grid of three query tiles by five KV tiles. In each row the KV tiles on the left are seen whole, the next is masked and the rest are skipped. The middle row has steps 1 to 4, and an arrow leads from it to a box with its output and its m, l and o.", "width": "95%"}} tags=["hide-input"]
blocks = pd.DataFrame(walk.blocks(CAUSAL, 192, 320, rows=64, keys=64))
drawn.tile_walk(blocks, 1, origin=ORIGIN)
plt.show()

# %% [markdown]
# ### The paged cache
#
# When a model writes text, each new token brings one query and adds one key and one value to those of its request.
# The keys and values of all tokens are kept in a cache.
# Nobody knows how long a request will become. So the cache is a pool of pages of, say, 16 keys each, and a request gets a page when it needs one; its pages lie anywhere in the pool {cite:p}`kwon2023`.
# A {term}`page table` says which pages a request has, in order.

# %% mystnb={"figure": {"caption": "Three requests, their pages in order, and where these lie in the pool.", "name": "page-table"}, "image": {"alt": "Three rows of coloured boxes, the pages of three requests. Lines lead from each to a box of the same colour among the twelve of the pool, in no order; some pool pages are grey, which is unused.", "width": "95%"}} tags=["hide-input"]
pages = np.random.default_rng(4).permutation(12)
tables = {"request 0": pages[:4], "request 1": pages[4:6], "request 2": pages[6:9]}
drawn.page_table({name: list(map(int, of)) for name, of in tables.items()}, 12, origin=ORIGIN)
plt.show()

# %% [markdown]
# ### Decode waits for memory, prefill for arithmetic
#
# Count what one KV head does with one key: it loads $2 D$ numbers, K and V, and every row multiplies and adds $2 D$ times.
# A *decode*, the step that writes the next token, has $g$ rows per KV head; a *prefill*, which reads a prompt of $n$ tokens, has $n g$.
# In 16 bits the operations per byte loaded are therefore
#
# $$
# \frac{\text{FLOP}}{\text{byte}} \;=\; \frac{4 D \cdot \text{rows}}{2 D \cdot 2} \;=\; \text{rows}.
# $$ (primer-intensity)
#
# The quotient is $g$ for a decode. For a prefill, it is the number of rows of the query tile, which one loaded key serves.
# A GPU multiplies with two kinds of units: a {term}`CUDA core` multiplies and adds one number of each lane, and a {term}`tensor core` multiplies small matrices.
# With either kind of unit, a GPU can do a certain number of operations in the time that one byte takes to arrive {cite:p}`williams2009`.
# A kernel that does fewer operations per byte waits for memory, and a kernel that does more waits for arithmetic.
#
# ## Prediction
#
# For an H200:

# %%
h200 = hardware.gpu("h200")
print(
    f"FLOP in the time of a byte: {h200.tensor_fp16_flops / h200.dram_bytes_per_s:.0f} on tensor cores, "
    f"{h200.fp32_flops / h200.dram_bytes_per_s:.0f} on CUDA cores"
)
heads = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "bf16"}
calls = {
    "decode of 64 requests, 8192 keys": Decode.uniform(64, 8192, **heads),
    "prefill of one prompt, 8192 tokens": Prefill((8192,), (8192,), causal=True, **heads),
}
floors = {name: budget.least_time(call, h200, tensor_cores=True) for name, call in calls.items()}
found = [(name, f.memory_s * 1e3, f.math_s * 1e3, f.bound) for name, f in floors.items()]
columns = ["call", "memory, ms", "arithmetic, ms", "waits for"]
floors = pd.DataFrame(found, columns=columns).replace("math", "arithmetic")
plots.table(floors, "bounds", dict.fromkeys(columns[1:3], "{:.3f}"))

# %% [markdown]
# Decode and prefill therefore need different optimisations.
# A decode kernel must keep bytes on their way at all times; what it computes is almost free.
# A prefill kernel must keep the tensor cores fed; its bytes are almost free.
#
# For the small kernel below there is a prediction of another kind.
# The kernel computes in fp32, whose {term}`unit roundoff` is $2^{-24}$, so its errors should be some $10^{-7}$, and they have a bound that `labkernels.numerics` derives.
#
# ## Kernel
#
# Here are the same steps in CUDA.
# A thread block of 128 threads computes four packed rows of one KV head, and each of its four warps computes one row.
# A lane has two duties in turn.
# While the scores are computed, lane $j$ works for key $j$ of a KV tile of 32 keys. While $P V$ is added, it works for channel $j$ of 32 channels.
# The loop has four phases, in this order: the dot product, the running maximum, the update {eq}`primer-update`, and the sum over values.
#
# ```{literalinclude} /labkernels/chapters/primers/attention.cuh
# :language: cpp
# :start-after: "// [lab: score]"
# :end-before: "// [/lab: score]"
# ```
#
# Lane $j$ reads row $j$ of the KV tile, and all lanes read the same channel at a time.
# All lanes read the same word of the query, and shared memory serves such a read at once.
#
# ```{literalinclude} /labkernels/chapters/primers/attention.cuh
# :language: cpp
# :start-after: "// [lab: maximum]"
# :end-before: "// [/lab: maximum]"
# ```
#
# `shfl_xor(s, 16)` gives lane $i$ the `s` of lane $i \oplus 16$, with the exclusive or of the two numbers: lanes 0 and 16 exchange their scores, lanes 1 and 17, and so on.
# After the same exchange with 8, 4, 2 and 1 every lane has the maximum of all 32 scores.
# The exchange goes from register to register, without memory.
#
# ```{literalinclude} /labkernels/chapters/primers/attention.cuh
# :language: cpp
# :start-after: "// [lab: update]"
# :end-before: "// [/lab: update]"
# ```
#
# `ex2_approx(x)` is the hardware's $2^x$, and `State&` gives the function the caller's own state, as a pointer would.
# These are the lines of `block_by_block`, for one key of each lane.
# A lane sums its own keys in `l`, and the 32 sums are added once, after the last KV tile.
#
# ```{literalinclude} /labkernels/chapters/primers/attention.cuh
# :language: cpp
# :start-after: "// [lab: loop]"
# :end-before: "// [/lab: loop]"
# ```
#
# Three barriers stand in the loop, and the comment behind each says what the barrier is for.
# In assignment 9 the loop is turned round and a barrier is missing: the CPU machine tells you which threads then disagree.
#
# ### A copy that runs ahead
#
# This loop loads a KV tile, waits for all of it, and only then computes.
# A kernel that must keep bytes on their way has room for two KV tiles in shared memory, its *stages*, and starts the copy of the next KV tile before it computes on the present one.
# Here is that loop for a simpler task, the sum of some tiles; `fetch` starts a copy that runs in the background ({term}`cp.async`), and `consume` adds a tile to the sum.
#
# ```{literalinclude} /labkernels/chapters/primers/pipeline.cuh
# :language: cpp
# :start-after: "// [lab: pipeline]"
# :end-before: "// [/lab: pipeline]"
# ```

# %% mystnb={"figure": {"caption": "What thread 0 did, in the order of its program: each copy is on its way while the tile before it is summed. A trace of the CPU machine.", "name": "pipeline-trace"}, "image": {"alt": "Three rows of bars. Below, the sums of tiles 0 to 4, one after the other; above, the copies to stage 0 and to stage 1 in turns, each of which begins one sum earlier and ends when its own sum begins.", "width": "95%"}} tags=["hide-input"]
sums, events = pipeline.run(5)
assert (sums == pipeline.tiles(5).reshape(-1, pipeline.THREADS).sum(axis=0)).all()
drawn.timeline(events, pipeline.STAGES, origin="a trace of the CPU machine")
plt.show()

# %% [markdown]
# The same trace in motion (in JupyterLab, run the cell to see it): a stage fills while its copy is on its way, drawn as if the bytes arrived evenly, and drains while its tile is summed.
# Assignment 10 asks for such a loop with one barrier per tile.

# %% tags=["hide-input", "nbval-ignore-output"]
motion.pipeline(events, pipeline.STAGES, origin="A trace of the CPU machine.")

# %% [markdown]
# ### The same update in Triton
#
# In Triton a program handles whole arrays of numbers, and the compiler decides which thread does what.
# The same update is:
#
# ```{literalinclude} /labkernels/chapters/primers/attention_triton.py
# :language: python
# :start-after: "# [lab: update]"
# :end-before: "# [/lab: update]"
# ```
#
# ## Measurement
#
# Both kernels run here: the CUDA kernel as its CPU build, with every check, and the Triton kernel on the GPU, or interpreted where there is none.
# Both outputs are compared with float64. Is the error of every number within the bound that rounding must keep?

# %% tags=["hide-input"]
requests = {
    "96 keys": Request("", kv_len=96),
    "75 keys, ragged end": Request("", kv_len=75),
    "rising scores": Request("", kv_len=128, rising=True),
    "7 tokens, causal": Request("", kv_len=70, n_queries=7, causal=True),
}
kernels = {"CUDA": small_attention.attend, "Triton": triton_attention.attend}
found = []
for name, request in requests.items():
    problem = request.problem()
    truth, _ = oracle.attention(problem)
    bound, _ = bounds.both_bounds(problem, small_attention.POLICY)
    errors = {kernel: abs(attend(request)[0] - truth) for kernel, attend in kernels.items()}
    found.append({"request": name} | {key: bool((e <= bound).all()) for key, e in errors.items()})
pd.DataFrame(found).set_index("request")

# %% [markdown]
# Splitting changes only the last bits:

# %%
request = Request("", kv_len=200, splits=3, rising=True)
out, lse2 = small_attention.attend(request)
truth, truth_lse2 = oracle.attention(request.problem())
bool(abs(out - truth).max() < 1e-6 and abs(lse2 - truth_lse2).max() < 1e-5)

# %% [markdown]
# ## Exercises
#
# In each exercise your lines replace one phase of a kernel, and the task asks for another form than the listings above have.
# `exercises.get(...)` shows the task and a starter, `.hint(1)` a first hint, and `check` compiles your lines, runs them with all checks, and says in terms of your own lines what is wrong.
# The notebook of this chapter has a cell for each answer, above the solution: edit its starter, and run the cell.
# On the book's page, a fold below the tasks of assignments 2 and 9 takes your lines: "Check" grades them there, and "Step" goes through a run of the kernel with your lines in it, from barrier to barrier.
# A cell that begins with `%%cuda rescale` is an answer too, after `%load_ext labkernels.chapters.exercises`.
# After a right answer, `check` puts your kernel beside the book's own: their bits, their {term}`ledgers <ledger>`, and how often lanes waited for each other in shared memory ({term}`bank conflicts <bank conflict>`, which {doc}`fragments_and_rounding` explains).
#
# ```{exercise}
# :label: block-rescale
#
# Assignment 2, *Rescale what was summed before*. The starter forgets something; the output has the task and what the check says to the starter.
# ```

# %% tags=["hide-output"]
rescale = exercises.get("rescale")
print(rescale, exercises.check("rescale", rescale.starter), sep="\n\n")

# %% [markdown]
# ```{solution-start} block-rescale
# :class: dropdown
# ```
#
# Both $l$ and $o$ shrink by $2^{m_{old} - m_{new}}$ where $m$ moves.

# %% tags=["nbval-ignore-output"]
found = exercises.check(
    "rescale",
    rescale.starter.replace(
        "if (top > state.m + 8.f) state.m = top;",
        """if (top > state.m + 8.f) {
    const float rescale = ex2_approx(state.m - top);
    state.m = top;
    state.l = state.l * rescale;
    state.o = state.o * rescale;
  }""",
    ),
)
print(found)
assert found.passed

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: block-barrier
#
# Assignment 9, *The missing barrier*. On most days this loop gives the right numbers on a GPU; the CPU machine does not rely on luck.
# ```

# %% tags=["hide-output"]
barrier = exercises.get("missing_barrier")
print(barrier, exercises.check("missing_barrier", barrier.starter), sep="\n\n")

# %% [markdown]
# ```{solution-start} block-barrier
# :class: dropdown
# ```
#
# A barrier of the block stands before the load of the next tile, in the turns that load a tile.

# %%
found = exercises.check(
    "missing_barrier",
    barrier.starter.replace(
        "    if (key + keys < end) load_tile(",
        "    if (key + keys < end) sync_block();\n    if (key + keys < end) load_tile(",
    ),
)
assert found.passed

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: block-triton
#
# Assignment 16, *The online softmax in Triton*.
# Then assignments 1 and 3 to 8, a phase each; {doc}`/book/assignments` lists them all.
# ```

# %% tags=["hide-output"]
exercises.get("triton_update")

# %% [markdown]
# ```{solution-start} block-triton
# :class: dropdown
# ```

# %%
answer = """
@triton.jit
def update_columns(b_m, b_l, b_o, b_s, b_v):
    m_new = tl.maximum(b_m, tl.max(b_s, axis=0))
    rescale = tl.exp2(b_m - m_new)
    b_p = tl.exp2(b_s - m_new[None, :])
    b_l = b_l * rescale + tl.sum(b_p, axis=0)
    b_o = b_o * rescale[None, :] + tl.dot(b_v, b_p, input_precision="ieee")
    return m_new, b_l, b_o
"""
assert exercises.check("triton_update", answer).passed

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The online softmax is from {cite:t}`milakov2018`; attention by tiles, with nothing of the size of all scores, is from {cite:t}`dao2022`.
# Paged caches are from {cite:t}`kwon2023`, shared key heads from {cite:t}`ainslie2023`, the {term}`roofline` from {cite:t}`williams2009`.
