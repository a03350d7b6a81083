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
# # Fragments and rounding
#
# ## Question
#
# **Tensor cores multiply matrices that lie scattered over the registers of a warp. Which lane holds which element, how do the elements get there without waiting, and where are they rounded?**
#
# A tensor core takes whole matrices, and it gives each thread of the warp a few elements of the result.
# The hardware decides which elements. Everything around the product follows from that: how tiles lie in shared memory, why the pieces of their rows are permuted, and why a kernel can keep its weights $P$ in registers.
# Numbers also pass through formats of 16 bits and of 8 bits.
# This page shows the places and the roundings by asking the CPU machine, which computes these instructions bit for bit.
#
# ## You need
#
# {doc}`a_gpu_in_one_sitting` for warps and shared memory, {doc}`attention_block_by_block` for $S$, $P$ and $O$.

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

from labkernels import formats, plots
from labkernels.chapters import exercises
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.chapters.primers import fragments
from labkernels.numerics import rounding
from labkernels.plots.primers import fragments as drawn
from labkernels.plots.primers import motion

ORIGIN = "computed on this machine, by the CPU build"

# %% [markdown]
# ## Model
#
# ### Who holds which element
#
# The instruction `mma.sync.m16n8k16` multiplies a matrix $A$ of 16 × 16 by a matrix $B$ of 16 × 8 and adds the product to 16 × 8 sums $D$ {cite:p}`ptx`.
# The 32 lanes of the warp hold these matrices together.
# A lane has eight 16-bit elements of $A$, two in each of four registers, and four sums of $D$ in fp32.
#
# The picture is not drawn from a manual.
# The cell multiplies a matrix whose elements are the numbers 0 to 255, and asks each lane which of these numbers it holds.

# %% mystnb={"figure": {"caption": "Who holds which pair of neighbouring elements. In A one of the lane's four registers has both elements; in D two registers have one element each. A colour is a quad of four lanes.", "name": "fragment-owners"}, "image": {"alt": "Two grids, A of 16 by 16 and D of 16 by 8. Each row of a grid belongs to one quad of four lanes, row g and row g + 8 to the same one. Pairs of columns belong to the lanes of the quad in order.", "width": "100%"}} tags=["hide-input"]
owners = fragments.owners()
names = {"A: lane · register": owners["a"] // [1, 2], "D: lane · registers": owners["d"]}
drawn.owners(names, origin=ORIGIN)
plt.show()

# %% [markdown]
# Write a lane as $4 g + t$, with $g$ from 0 to 7 and $t$ from 0 to 3.
# Then lane $4 g + t$ holds elements of the rows $g$ and $g + 8$ of both matrices.
# These elements stand in the columns $2 t$ and $2 t + 1$; in $A$ there are two more, $2 t + 8$ and $2 t + 9$.
# A row of $D$ thus belongs to the four lanes of a quad, and two exchanges, `shfl_xor` with 1 and with 2, find the maximum of a row.
#
# Compare the two grids: $D$ looks like the left half of $A$.
# Two results $D$ side by side have exactly the pattern of one $A$.
# That is why a kernel can compute $S = Q K^T$, turn it into $P$ in the same registers, round $P$ to 16 bits, and use it as the matrix $A$ of the next product $P V$. No lane hands a number to another lane (assignment 13).
#
# {term}`wgmma`, the instruction of {term}`Hopper`, NVIDIA's architecture of the H100 and H200, multiplies 64 rows by four warps at once.
# Each warp has 16 of the rows, and its lanes hold them in the pattern of $D$, so what you see here holds for this instruction too.
# It reads $B$ from shared memory, and $A$ from shared memory or from registers.
#
# ### From shared memory to registers: ldmatrix
#
# A lane needs four registers of $A$, and each register holds a pair of neighbours, 32 bits: two pairs of row $g$ and two of row $g + 8$. Ordinary loads would fetch them in four reads.
# The instruction `ldmatrix` reads four matrices of 8 × 8 elements at once: each lane gives the address of one row of eight elements, 16 bytes, and the hardware deals out the pieces.
#
# ### Banks and swizzles
#
# Shared memory has 32 banks, and bank $i$ has the 4-byte words $i$, $i + 32$, $i + 64$ and so on.
# In one turn each bank serves one word.
# If the lanes of a read want different words of the same bank, they take turns: a {term}`bank conflict`.
#
# Take a tile whose rows are 128 bytes, eight chunks of 16 bytes.
# A row fills all banks once, so chunk $c$ of *every* row lies in the same four banks.
# `ldmatrix` reads chunk $c$ of eight rows at once.
# The remedy is to store chunk $c$ of row $r$ at place $c \oplus (r \bmod 8)$, with the exclusive or of the two numbers:
#
# ```{literalinclude} /labkernels/chapters/primers/fragments.cuh
# :language: cpp
# :start-after: "// [lab: swizzle]"
# :end-before: "// [/lab: swizzle]"
# ```
#
# ### Formats
#
# A floating-point number has a sign, an exponent and a fraction.
# The exponent decides how large a number can be, and the fraction how near its neighbours are.
# The distance to the next number is called {term}`ulp`, and rounding errs by half an ulp at most.
# Of 16 bits, fp16 gives 5 to the exponent and 10 to the fraction; bf16 gives 8 and 7. The names of the 8-bit formats, e4m3 and e5m2, count these bits.
# In {doc}`/book/the_lab_in_your_browser` you can type a number, turn its bits over, and read which number each format makes of it.

# %% mystnb={"figure": {"caption": "The distance between neighbours doubles with each power of two: bf16 has the range of fp32 and eight times the distance of fp16.", "name": "spacing"}, "image": {"alt": "Four parallel staircases on logarithmic axes: e4m3 on top, then bf16, fp16 and far below fp32. Each ends flat on the left, where numbers are subnormal, at different places.", "width": "90%"}} tags=["hide-input"]
x = 2.0 ** np.arange(-20, 9)
steps = [
    {"format": name, "x": value, "ulp": formats.named(name).ulp(value)}
    for name in ("e4m3", "bf16", "fp16", "fp32")
    for value in x
    if value <= formats.named(name).max
]
drawn.spacing(pd.DataFrame(steps), origin="computed on this machine")
plt.show()

# %%
known = [formats.named(name) for name in ("fp32", "fp16", "bf16", "e4m3", "e5m2")]
columns = ["format", "bits", "largest", "unit roundoff"]
table = [(f.name, f.bits, f.max, f.unit_roundoff) for f in known]
plots.table(
    pd.DataFrame(table, columns=columns),
    "formats",
    {"largest": "{:.3g}", "unit roundoff": "{:.1e}"},
)

# %% [markdown]
# The {term}`unit roundoff` $u$ is the largest relative error of one rounding.
#
# ### What is rounded where
#
# In a kernel on tensor cores each step of a row has its own format:
#
# | Step | Format | Rounded |
# |---|---|---|
# | $q$, $k$, $v$ | 16 bits | before the kernel |
# | products $q k$, their sum | exact products, fp32 sums | in each addition, a little |
# | scores, maximum, weights $P$ | fp32 | $2^x$, by the special-function unit |
# | $P$ for the second product | **16 bits** | **once per weight** |
# | sum of $P v$ | fp32 sums | in each addition, a little |
# | output | **16 bits** | **once per element** |
#
# The kernel itself rounds to 16 bits in two of these steps, and these two roundings make nearly all of its error.
# {doc}`where_the_error_comes_from` measures each line.
#
# ## Prediction
#
# **Bank conflicts.** Without a swizzle the eight rows of an `ldmatrix` meet in the same banks, so that the read takes 8 turns; with the swizzle it takes 1.
#
# **Rounding.** Compute $O = P V$ with $P$ in fp16, for 16 weights per row.
# The relative error of each weight is at most $u$, so that
#
# $$
# |\hat o - o| \;\le\; u \sum_j |P_j| \, |v_j| + a,
# $$ (p-in-16-bits)
#
# where $a$ is what the fp32 additions may add. Roundings go up as often as down, so that the typical error should be a fraction of this bound.
#
# ## Kernel
#
# This kernel has one warp. Its lanes store the tile in four steps of four rows, and `ldmatrix` reads the tile again.
#
# ```{literalinclude} /labkernels/chapters/primers/fragments.cuh
# :language: cpp
# :start-at: "LAB_KERNEL(32, 1) swizzled"
# :end-before: "// ---- mma"
# ```
#
# `u16* to` points at a number of 16 bits, and `u32x4` is 16 bytes, which are loaded and stored at once; `reinterpret_cast<T*>(p)` is C's `(T*)p`, and `chunk_elements` is 8.
# `touched` takes the address that each lane uses, and the banks are counted from these.
#
# ## Measurement
#
# ### Turns

# %%
plain_lines = "LAB_DEVICE int place_of(int row, int c) { return c; }"
plain = (folder_with(fragments.HEADER, "swizzle", plain_lines),)
layouts = {"in order": fragments.swizzled(plain), "swizzled": fragments.swizzled()}
turns = [
    {
        "layout": name,
        "turns of a store": int(fragments.ways(found["stores"]).max()),
        "turns of an ldmatrix": int(fragments.ways(found["reads"]).max()),
    }
    for name, found in layouts.items()
]
pd.DataFrame(turns).set_index("layout")

# %% mystnb={"figure": {"caption": "Where the chunks of eight rows lie. Chunk 0 of all rows is read at once: in order it lies in the same banks eight times, swizzled it lies in eight different places.", "name": "bank-map"}, "image": {"alt": "Two grids of 8 rows by 8 places with the number of the chunk at each place. On the left every row is 0 to 7, so the zeros form a column. On the right the zeros form a diagonal.", "width": "100%"}} tags=["hide-input"]
places = {}
for name, found in layouts.items():
    bytes_of_rows = found["stores"].reshape(16, 8)[:8]
    places[name] = bytes_of_rows % 128 // 16
drawn.banks(places, {row["layout"]: row["turns of an ldmatrix"] for row in turns}, origin=ORIGIN)
plt.show()

# %% [markdown]
# The read of chunk 0 in motion (in JupyterLab, run the cell to see it): rows whose chunks lie in the same four banks wait for their turn.

# %% tags=["hide-input", "nbval-ignore-output"]
chunk_0 = {name: found["reads"][0][:8] for name, found in layouts.items()}
motion.turns_of_a_read(chunk_0, origin="Addresses from the CPU build.")

# %% [markdown]
# The counts are as predicted.
# The numbers come out of both layouts alike, since the same function says where a chunk is stored and where it is read:

# %%
bool((layouts["in order"]["numbers"] == layouts["swizzled"]["numbers"]).all())

# %% [markdown]
# ### Rounding
#
# The cell computes two products in a row, with $P$ rounded to fp16 between them, and compares them with float64:

# %%
rng = np.random.default_rng(1)
q, k = (rounding.round_to(rng.standard_normal((16, 16)), "fp16") for _ in range(2))
v = rounding.round_to(rng.standard_normal((16, 8)), "fp16")
p = q @ k.T
u16, u32 = (formats.named(name).unit_roundoff for name in ("fp16", "fp32"))
bound = u16 * abs(p) @ abs(v) + 64 * u32 * (abs(q) @ abs(k.T)) @ abs(v)
error = abs(fragments.two_products(q, k, v)["out"] - p @ v)
print(
    f"largest error {100 * (error / bound).max():.0f} % of its bound, typical error {100 * np.sqrt((error / bound) ** 2).mean():.0f} %"
)

# %% [markdown]
# The errors stay within {eq}`p-in-16-bits`, and a typical one is far below it, because 16 roundings seldom go the same way.
# To see that $P$ is to blame, round $P$ by hand and compare again:

# %%
rounded_p = rounding.round_to(p, "fp16")
left = abs(fragments.two_products(q, k, v)["out"] - rounded_p @ v)
print(
    f"what the rounding of P does not explain: {100 * left.max() / error.max():.2f} % of the largest error"
)

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: fragments-swizzle
#
# Assignment 11, *A swizzle without bank conflicts*. The exclusive or is one such layout; find another. The check takes every other layout in which no two lanes of a store or a read meet.
# ```

# %%
swizzle = exercises.get("swizzle")
print(swizzle, exercises.check("swizzle", swizzle.starter), sep="\n\n")

# %% [markdown]
# ```{solution-start} fragments-swizzle
# :class: dropdown
# ```
#
# The places must be a *Latin square*: in every row and in every column, each chunk number stands once. The chunk shifted by the row is such a square.

# %% tags=["nbval-ignore-output"]
found = exercises.check(
    "swizzle", "LAB_DEVICE int place_of(int row, int c) { return (c + row) % 8; }"
)
print(found)
assert found.passed

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: fragments-of-p
#
# Assignment 13, *P stays in registers*; before it, assignment 12, *Addresses for ldmatrix*, which is `exercises.get("ldmatrix_addresses")`.
# ```

# %%
exercises.get("fragment_of_p")

# %% [markdown]
# ```{solution-start} fragments-of-p
# :class: dropdown
# ```

# %%
answer = """
LAB_DEVICE void fragment_of_p(u32 (&a)[4], const float (&s)[2][4]) {
  a[0] = pack2<f16>(s[0][0], s[0][1]);
  a[1] = pack2<f16>(s[0][2], s[0][3]);
  a[2] = pack2<f16>(s[1][0], s[1][1]);
  a[3] = pack2<f16>(s[1][2], s[1][3]);
}
"""
assert exercises.check("fragment_of_p", answer).passed

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: fragments-halves
#
# By how much does the error of $P V$ grow if $P$ is rounded to bf16 in place of fp16? Predict it from the table of formats, then round `p` by hand.
# Check your answer with `exercises.check("fragments-halves", times)`.
# ```
#
# ```{solution-start} fragments-halves
# :class: dropdown
# ```
#
# The error grows by the quotient of the two unit roundoffs, which is 8. Here it is the mean of only 128 random numbers, so that the measured quotient is near 8.

# %%
errors = [
    np.sqrt(np.mean((rounding.round_to(p, name) @ v - p @ v) ** 2)) for name in ("bf16", "fp16")
]
print(f"{errors[0] / errors[1]:.1f} times")
assert 5 < errors[0] / errors[1] < 12
assert exercises.check("fragments-halves", errors[0] / errors[1])

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The layouts of fragments are in {cite:t}`ptx`; what a tensor core computes, to the last bit, is measured in {doc}`what_a_tensor_core_computes`.
# The error of sums of roundings is from {cite:t}`higham2019`.
