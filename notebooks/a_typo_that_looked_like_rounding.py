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
# # A typo that looked like rounding
#
# ## Question
#
# **A kernel is right on one GPU and wrong on another. Is it the number format, the tolerance, or the kernel?**
#
# In March 2025 the tests of FlashInfer's MLA kernel failed on an RTX 4090 {cite:p}`flashinfer949`: 99.2 % of the elements were off, by up to 1.97 where 0.001 was allowed.
# The maintainers, on larger GPUs, could not reproduce it at first.
# The report named bfloat16; a tolerance of 2e-2 was proposed, and another backend.
# The fix came the same day, and it deleted one term: an index was added twice.
#
# No test had run that line.
# The kernel chooses its tile by the shared memory of the GPU, the typo was in the branch for 100 KB, and the tests ran on GPUs that have more.
#
# Step by step, you will
#
# 1. tell wrong data from rounding by three numbers, before you look for a cause;
# 2. work out which branch of a kernel a given GPU runs, and why a 512-wide accumulator leaves so little choice;
# 3. write the test that would have failed on every machine;
# 4. say why no tolerance that a test would use could have passed, and what the two commits of the report already said.
#
# ## You need
#
# {doc}`rounding_or_bug` introduces the verdict, {doc}`/book/notation` has the symbols, and {doc}`/book/glossary` explains {term}`MLA`, {term}`tile` and {term}`split <split-KV>`.
# You need no GPU: the kernels run as CPU builds with the bits of an H200, whatever tile a GPU would choose.

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

import labkernels
from labkernels import Bench, Decode, Prefill, hardware, plots
from labkernels.chapters import a_typo_that_looked_like_rounding, exercises
from labkernels.kernels.mla.inputs import mla_inputs
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.kernels.registry import discover
from labkernels.measure.mutants.mla import DUPLICATED_INDEX, KERNEL, TILE
from labkernels.numerics import metrics, rounding
from labkernels.numerics.truth import oracle
from labkernels.records import recorded, store

# %% [markdown]
# ## Symbols
#
# The symbols are those of {doc}`/book/notation`.
# Multi-head latent attention caches one *latent row* per key for all heads: $c_j$ of 512 channels, and $r_j$ of 64 that carry the position.
# In the absorbed form, which decode uses, a head's query has the same two parts, and attention is that of one key/value head:
#
# $$
# s_{hj} = \alpha_2\,(q_h \cdot c_j + q'_h \cdot r_j), \qquad o_h = \frac{1}{l_h}\sum_j P_{hj}\, c_j .
# $$ (mla)
#
# The row $c_j$ is key and value at once, so one read of it serves both products.
#
# ## Model
#
# ### Where the time goes
#
# With $H$ heads and $n$ tokens per request, a key costs $2 H n\,(576 + 512)$ FLOPs and $2 \cdot 576$ bytes:
#
# $$
# I = \frac{2 H n\,(576 + 512)}{2 \cdot 576} \approx 1.89\, H n \;\text{FLOP per byte}.
# $$ (mla-intensity)
#
# The kernel is bound by memory below some number of head-tokens $H n$, and by the tensor cores above.

# %%
h200 = hardware.gpu("h200")
per_head = MlaDecode((8192,), q_heads=1).flops / MlaDecode((8192,), q_heads=1).kv_bytes
crossover = h200.tensor_fp16_flops / h200.dram_bytes_per_s / per_head
measured = h200.measured_bf16_matmul_flops / h200.measured_copy_bytes_per_s / per_head
round(crossover), round(measured)

# %% [markdown]
# By the data sheet's peaks the two roofs meet at the first number of head-tokens, by what a matrix product and a copy reach on our H200 at the second.
#
# ### What 512 channels cost
#
# A tile of $R$ rows keeps an accumulator of $R \times 512$ fp32 numbers.
# For 64 rows that is 32,768 registers, half of what an SM has; spread over 128 threads, they are 256 per thread, one more than a thread can have.
# So eight warps share the channels, 128 registers per thread, and all of them need all of $P$: it goes through shared memory.
#
# The other budget is shared memory: the query's tile and every stage of keys are 576 channels wide.
# `mla_mma` has three tiles of 64 rows, as the libraries do, for the three sizes of shared memory that are sold.
# The ledger of the smallest tile has these lines:

# %%
spec = discover()[KERNEL]
tiles = [
    tile
    for tile in spec.tiles(spec.shape(head_dim=576, rows=64), spec.policies[0])
    if tile.q_rows == 64
]
shape = spec.shape(head_dim=576, group=64)
instances = {tile.label: spec.instance(shape, tile=tile.label) for tile in tiles}
print(spec.smem(instances[TILE]).table())

# %% [markdown]
# ### The formulas behind the ledger
#
# Here is the same ledger as an equation, for the workload of {numref}`mla-roof` and the tile that an H200 takes: shared memory and registers in the symbols of {doc}`/book/notation`, then in numbers, then beside the compiler's, and the blocks per SM that follow.
# A decode without latent rows and a prefill stand beside it, because the typo's lesson is about any kernel with several tiles.

# %%
mla = MlaDecode((4096,) * 64, q_heads=128)
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
bench = Bench(mla, decode, prefill, gpu="h200")

# %%
bench.equations("mla_mma")

# %% [markdown]
# The accumulator alone is half of a thread's registers, and the stages of 576-channel rows fill shared memory ({numref}`mla-budget`).
# One block is all that any GPU holds, whichever tile it takes ({numref}`mla-occupancy`).

# %% mystnb={"figure": {"caption": "The kernels of latent attention use nearly all registers of a thread and nearly all shared memory of a block; decode fills neither, and prefill leaves more of the shared memory.", "name": "mla-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "An SM holds one block of every MLA kernel, on a large GPU as on a small one; the small one gets there with the smallest tile, the branch that had the typo.", "name": "mla-occupancy"}, "image": {"alt": "A panel for each GPU with a row for each kernel. Marks on a logarithmic axis give the blocks that registers, shared memory, warps and the block limit leave on an SM; a bar ends at the least of them.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200", "a100", "rtx4090")
plt.show()

# %% [markdown]
# ### Which branch runs where
#
# A GPU takes the first of the tiles that fits its shared memory.

# %% tags=["hide-input"]
rows = []
for gpu in map(hardware.gpu, hardware.GPUS):
    bytes_of = {label: spec.smem(instance).total for label, instance in instances.items()}
    fits = {label: "fits" if n <= gpu.smem_per_block_max_bytes else "" for label, n in bytes_of.items()}  # fmt: skip
    takes = spec.instance(shape, gpu=gpu).tile.label
    rows.append({"GPU": gpu.name, "bytes per block": gpu.smem_per_block_max_bytes, **fits, "takes": takes})  # fmt: skip
named = {label: f"{label}: {n:,} B" for label, n in bytes_of.items()}
plots.table(pd.DataFrame(rows).rename(columns=named), "branches", {"bytes per block": "{:,}"})

# %% [markdown]
# Only the cards with 100 KB per SM take the smallest tile.
# A test farm of A100s and H100s runs every line of this kernel but one branch.
#
# ## Prediction
#
# ### The typo, in NumPy
#
# Four warps copy sixteen keys, and eight lanes copy each key; the key of a lane is `lane / 8 + warp * 4`.
# The typo adds `lane / 8` twice, and the sixteen slots of the tile then hold these keys:

# %%
a_typo_that_looked_like_rounding.duplicated_index(16)

# %% [markdown]
# Twelve of sixteen slots hold another key than they should. Some keys count twice, some never, and the last slots reach into the next step or past the end, where zeros are copied.
# To see the effect we need no GPU and no number format.
# The table computes it in float64, on random inputs, beside the same attention rounded to bf16:

# %%
workload = MlaDecode((304, 304), q_heads=16, page_size=16, dtype="bf16")
case = mla_inputs(workload, ExactNormal(0))
truth = a_typo_that_looked_like_rounding.read_instead(case, np.arange(304))
typo = a_typo_that_looked_like_rounding.read_instead(
    case, a_typo_that_looked_like_rounding.duplicated_index(304)
)
tried = {"typo, in float64": typo, "truth, rounded to bf16": rounding.round_to(truth, "bf16")}
signs = [
    {"": name, **a_typo_that_looked_like_rounding.signature(out, truth)}
    for name, out in tried.items()
]
plots.table(pd.DataFrame(signs), "predicted", a_typo_that_looked_like_rounding.SIGNATURE_FORMATS)

# %% [markdown]
# **Wrong data and rounding are hundreds of times apart**, and the report's own numbers, 99.2 % and 1.97, stand on the side of wrong data.
# Cosine and relative L2 say it without any tolerance: rounding to bf16 leaves a relative L2 of 0.002, whatever the kernel; near 1 means that the error is as large as the output, and not a matter of last bits.
#
# A tolerance of 2e-2 would have had to forgive almost every element:

# %%
error = np.abs(typo - truth)
for tolerance in (1e-3, 1e-2, 2e-2, 0.1, 1.0):
    beyond = np.mean(error > tolerance * (1 + np.abs(truth)))
    print(f"tolerance {tolerance:g}: {beyond:.1%} beyond")

# %% [markdown]
# ## Kernel
#
# The first listing has the line in our kernel, as it should be.
# `mla_mma` copies a latent row once and uses it as key and as value; where its rows lie is looked up a step ahead:
#
# ```{literalinclude} /labkernels/kernels/mla/pipeline.cuh
# :language: cpp
# :start-at: "  // Returns the key of the window that this lane copies in a pass."
# :end-before: "// A block has a pipeline over its keys"
# ```
#
# The second listing has the defect, kept as an edit of that line in the branch for 16 keys alone:
#
# ```{literalinclude} /labkernels/measure/mutants/mla.py
# :language: python
# :start-at: "DUPLICATED_INDEX"
# ```
#
# ## Measurement
#
# ### The report, rebuilt
#
# The cell runs all three tiles, right and with the defect, in fp16 and bf16, with tensor cores; and `mla_fma`, which has none, for comparison.
# CPU builds compute what an H200 computes; here they also compute what an RTX 4090 would run.

# %%
wrong = DUPLICATED_INDEX.spec(KERNEL)
found, outputs = [], {}
for dtype in ("fp16", "bf16"):
    mine = mla_inputs(MlaDecode((304, 304), 16, page_size=16, dtype=dtype), ExactNormal(0))  # fmt: skip
    exact = a_typo_that_looked_like_rounding.read_instead(mine, np.arange(304))
    runs = [("mla_fma", "", None)] + [(k, i, t) for t in instances for k, i in ((KERNEL, ""), (wrong, "typo"))]  # fmt: skip
    for kernel, defect, tile in runs:
        out = a_typo_that_looked_like_rounding.decode(mine, kernel=kernel, tile=tile, splits=1)
        name = kernel if isinstance(kernel, str) else KERNEL
        outputs[dtype, name, tile, defect] = out, exact
        found.append({"dtype": dtype, "kernel": name, "tile": tile or "", "defect": defect, **a_typo_that_looked_like_rounding.signature(out, exact)})  # fmt: skip
plots.table(pd.DataFrame(found), "report", a_typo_that_looked_like_rounding.SIGNATURE_FORMATS)

# %% [markdown]
# The defect does not change one bit in the two larger tiles, on any GPU that takes them.
# In the smallest tile it produces numbers like those of the report, and it does so in fp16 as well, so the format does not matter.
#
# FlashInfer's test has one query token per request, and also 17, 37 and 77; each token sees one key more than the token before it:

# %%
found = []
for tokens in (17, 37, 77):
    mine = mla_inputs(MlaDecode((304,), 16, q_len=tokens, page_size=16), ExactNormal(0))
    exact, _ = oracle.attention(mine.problem())
    for kernel, defect in ((KERNEL, ""), (wrong, "typo")):
        out = a_typo_that_looked_like_rounding.decode(mine, kernel=kernel, tile=TILE, splits=1)
        told = a_typo_that_looked_like_rounding.signature(out, exact)
        found.append({"tokens": tokens, "tile": TILE, "defect": defect, **told})
plots.table(pd.DataFrame(found), "many-tokens", a_typo_that_looked_like_rounding.SIGNATURE_FORMATS)

# %% [markdown]
# The number of tokens changes the rows of a block and not the keys that it copies, so that the signature is the same.
# On the H200 all kernels and both of FlashInfer's backends were also timed and judged with these tokens (`mla_fma` with 17 alone), 17 requests of 1024 keys and 128 heads; every output kept its bounds.
#
# ### What the verdict says

# %%
parts = (case.q_nope, case.q_pe, case.cache, case.cu_seqlens_q)
done = labkernels.mla_decode(*parts, kernel=wrong, tile=TILE, splits=1)
told = labkernels.verdict(done.out, case.q, cache=case.cache, scale=case.scale, causal=True)
print(told.summary())

# %% [markdown]
# The verdict knows neither which kernel ran nor with which tile.
# From the output and the inputs alone it says that keys were read in each other's place, and which.
#
# ### Which test would have failed on every machine
#
# **Run every branch.** A tile is an argument of our kernels, not only a consequence of the GPU; tests go through all of them on every machine, the CPU included.
# The report's test skipped the file on everything but Hopper.
#
# **Count.** With queries of zero all weights are equal. Let the value row of key $j$ be *one-hot*: 1 in channel $j$ and 0 elsewhere. Channel $j$ of the output then says how often key $j$ was read, over the number of keys.
# The counts are integers, so that no tolerance is needed.

# %% mystnb={"figure": {"caption": "How often each of the first 32 of 304 keys is read. The right kernel reads every key once; with the typo no odd key is read, and nearly every even one twice. Computed on this machine.", "name": "counts"}, "image": {"alt": "Two rows of bars over key numbers 0 to 31. Upper row: all bars 1. Lower row: no bars at odd keys, bars of 2 at even keys, of 1 at keys 0 and 2.", "width": "100%"}} tags=["hide-input"]
probe = a_typo_that_looked_like_rounding.counting_case(case)
how_often = {
    name: 304
    * a_typo_that_looked_like_rounding.decode(probe, kernel=kernel, tile=TILE, splits=1)[0, 0, :304]
    for name, kernel in (("right", KERNEL), ("typo", wrong))
}
plots.read_counts(how_often, first=32, origin="computed on this machine")
plt.show()

# %% [markdown]
# **Shuffle.** Attention does not see the order of its keys. Rows of the cache in another order must give the same output but for rounding:

# %%
shuffled = a_typo_that_looked_like_rounding.shuffled_case(case, seed=1)
for name, kernel in (("right", KERNEL), ("typo", wrong)):
    a, b = (
        a_typo_that_looked_like_rounding.decode(c, kernel=kernel, tile=TILE, splits=1)
        for c in (case, shuffled)
    )
    print(f"{name}: {a_typo_that_looked_like_rounding.relative(b, a):.4f} of the output's RMS")

# %% [markdown]
# Neither probe needs a reference kernel, a second GPU or a tolerance to argue about.
#
# <!-- guess: latent_decode_gain -->
#
# ### What the three tiles cost
#
# On a card with 100 KB no other tile than the smallest fits.
# An H200 takes the largest by itself, and all three when it is asked; this is what each takes there, for 64 requests of 4096 keys:

# %% tags=["hide-input"]
tiled = pd.DataFrame([r for r in store.read("mla") if r["kernel"].startswith("mla_mma 64x")])
tiled = tiled[(tiled.metric == "time_graph") & (tiled.statistic == "median")]
tiled = tiled.sort_values("started_utc").groupby(["tile", "q_heads"]).value.last().mul(1e6)
tiled = tiled.unstack().loc[list(instances)].rename(columns="{} heads, µs".format)
over = tiled.div(tiled.iloc[0]).rename(columns=lambda name: name.replace("µs", "× the largest"))
digits = dict.fromkeys(tiled.columns, "{:.0f}") | dict.fromkeys(over.columns, "{:.2f}")
plots.table(tiled.join(over).reset_index(), "tile-times", digits)

# %% [markdown]
# The tile of the small cards takes twice the time of the largest and more, on the same chip: it has four times as many steps, and a single stage, so that no copy runs beside a product.
# So the branch with the typo is also the slowest, and nobody who can choose has a reason to run it.
#
# {numref}`mla-roof` shows how much of the roof each kernel reaches on our H200 as the heads grow.

# %% mystnb={"figure": {"caption": "Below about a hundred head-tokens MLA decode is bound by memory, above by the tensor cores. mla_mma keeps up with mla_wgmma to 16 heads and falls behind from 32 on. 64 requests of 4096 keys, bf16, page 64; 100 % is the larger of the times at the measured copy and matrix-product rates.", "name": "mla-roof"}, "image": {"alt": "Percent of the roof over the number of heads, from 1 to 128, one line per kernel.", "width": "100%"}} tags=["hide-input"]
wanted = {"metric": "time_graph", "statistic": "median", "dtype": "bf16", "page_size": 64}
rows = [row for row in store.read("mla") if wanted.items() <= row.items()]
rows = [row for row in rows if row["note"].startswith("64 x 4096,") and " " not in row["kernel"]]
each = ("kernel", "tensor_cores", "q_heads", "q_len")
sweep = recorded.newest_of_each(rows, each)
worked = [row | a_typo_that_looked_like_rounding.bytes_and_flops(row) for row in sweep]
plots.roof_by_heads(
    pd.DataFrame(worked).drop_duplicates(list(each)), h200, origin=recorded.origins(sweep)
)
plt.show()

# %% [markdown]
# ### Per head and per sample
#
# Where is the error of the right kernels? The maps show the RMSE of every request and head, over what rounding that head's output to its format leaves by itself.

# %% mystnb={"figure": {"caption": "Without tensor cores the rounding of the store is all the error there is, in every head. With them the rounding of P comes on top, in some heads by two fifths, in fp16 as in bf16. Computed on this machine.", "name": "mla-maps"}, "image": {"alt": "Four heat maps of two requests and sixteen heads, one per kernel and type. Those of mla_fma are 1 everywhere, those of mla_mma lie between 1 and 1.42.", "width": "100%"}} tags=["hide-input"]
cells = []
for dtype in ("fp16", "bf16"):
    for name, tile in (("mla_fma", None), (KERNEL, tiles[0].label)):
        out, exact = outputs[dtype, name, tile, ""]
        store_error = rounding.round_to(exact, dtype) - exact
        z = (out - exact) / np.sqrt(np.mean(store_error**2, axis=-1, keepdims=True))
        z = z[:, :, None, :]
        table = metrics.error_table(z, np.zeros_like(z), by="sample_and_head")
        cells.append(plots.error_cells(table, kernel=f"{name}, {dtype}", tensor_cores=""))
plots.error_maps(
    pd.concat(cells), origin="computed on this machine", label="RMSE / that of the store"
)
plt.show()

# %% [markdown]
# ### Every operation, live
#
# Do the right kernels err alike in all operations, so that the signature of rounding is the same everywhere?
# This cell runs all kernels of latent decode, decode and prefill.

# %% tags=["nbval-ignore-output"]
print(*(workload.label for workload in bench.here), sep="\n")
ran = bench.run()
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# All of them stay within their bounds, which a kernel with the typo would exceed hundreds of times.

# %% mystnb={"figure": {"caption": "Latent decode with 128 heads is limited by products and memory about equally on an H200; the plain decode only by memory, the prefill only by products. Full size; what is recorded is said below the figure.", "name": "mla-timing"}, "image": {"alt": "A panel for each workload: a mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_timing()
plt.show()

# %% mystnb={"figure": {"caption": "Latent decode: the error is even over heads and requests. A wrong row of keys would be a row of large errors. bf16.", "name": "mla-errors-mla"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("mla")
plt.show()

# %% mystnb={"figure": {"caption": "Plain decode has the same grain. bf16.", "name": "mla-errors-decode"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("decode")
plt.show()

# %% mystnb={"figure": {"caption": "Prefill has the same grain, too. bf16.", "name": "mla-errors-prefill"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("prefill")
plt.show()

# %% [markdown]
# This is what ran here:

# %% tags=["nbval-ignore-output"]
bench.log

# %% [markdown]
# ## How the hunt could have ended
#
# The report names two commits: one that works and the one that fails.
# The good commit is the parent of the bad one, so that `git bisect` needs no run at all to name the first bad commit:
#
# ```
# git bisect start 27906fdbf 061db556d   # bad, good
# # 27906fdbf is the first bad commit
# ```
#
# The discussion was about other things: the format, which does not matter (the table above), the tolerance, which would have had to be near 1 before all elements passed, and another backend.
# "Fall back to fa2" could not help, because fa2 *was* the backend with the typo.
# The actual fix deleted the second `lane_idx / 8`, added the tests to a machine with an A10, whose 100 KB run that branch, and left the tolerance at 1e-3.
#
# ## What we learned
#
# - **Three numbers tell gross errors from rounding before any theory.** A cosine far below 1 and a relative L2 near 1 mean wrong data. A relative L2 near 0.002 in bf16, or 0.0002 in fp16, means rounding, or a bug that is small or rare; for those {doc}`rounding_or_bug` has the verdict.
# - **Each tile of a kernel is a kernel to test.** The shared memory of a GPU decides which tile runs; a tile that the test farm does not run is not tested, and sooner or later wrong.
# - **A tile must be an argument**, so that any machine can run any branch. With the CPU build a laptop runs the tile of an RTX 4090.
# - **Ask questions with integer answers.** One-hot values count keys; a shuffled cache must change nothing.
# - Two commits, one that works and one that does not, name the change without any theory.
#
# The discussion was therefore wrong about the format, the tolerance and the cure. The report itself was right to name both commits.
#
# ## Exercises
#
# ```{exercise}
# :label: mla-counts
#
# In a step of 16 slots the typo reads ten different keys, from 0 to 18. Why does {numref}`counts` show only odd keys missing, and none of the even ones beyond the first two read once?
# Predict the counts in the middle of a request from `duplicated_index`, then read them off the kernel.
# Check your answer with `exercises.check("mla-counts", (even, odd))`: how often an even and an odd key are read.
# ```
#
# ```{solution-start} mla-counts
# :class: dropdown
# ```
#
# A slot's key is always even. The last two slots reach keys 0 and 2 of the next step, which that step reads once itself: together they read every even key twice.

# %%
keys = a_typo_that_looked_like_rounding.duplicated_index(304)
predicted = np.bincount(keys, minlength=306)[16:288]
counted = np.rint(how_often["typo"][16:288]).astype(int)
assert (predicted == counted).all()
assert exercises.check("mla-counts", (counted[::2].mean(), counted[1::2].mean()))

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: mla-splits
#
# Would more splits have hidden the typo? Run the wrong kernel with one split and with three, and compare the relative L2.
# Check your answer with `exercises.check("mla-splits", word)`: "yes" or "no".
# ```
#
# ```{solution-start} mla-splits
# :class: dropdown
# ```
#
# No: each split reads wrong keys of its own, and the error stays.

# %%
off = [
    a_typo_that_looked_like_rounding.signature(
        a_typo_that_looked_like_rounding.decode(case, kernel=wrong, tile=TILE, splits=n), truth
    )["rel L2"]
    for n in (1, 3)
]
assert exercises.check("mla-splits", "yes" if off[1] < 0.5 * off[0] else "no")

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case, its numbers and both commits are from {cite:t}`flashinfer949`; the defect was read in FlashInfer's history {cite:p}`ye2025`: commit 27906fdbf typed the index twice, 30b2838e6 deleted one of them.
# In the same place we read that its MLA kernel chooses a tile by shared memory, 221,696, 147,968 or 92,672 bytes per SM.
# The absorbed form of MLA and its dimensions are from {cite:t}`deepseek2024`.
