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
# # The order of a sum across a wire
#
# ## Question
#
# **{cite:t}`ringflashattention42` split a context over GPUs, and saw errors that grew with their number. Which bits change, by how much, and is it a bug?**
#
# :::{admonition} Answer
# :class: important
#
# Parts that travel in fp32, or rounded once to bf16, give errors that do not grow with the ranks.
# A sum that is rounded to bf16 at every hop of a ring errs {glue:text}`grown` times as much with {glue:text}`most_ranks` ranks as with 2, as predicted.
# A merge in the order of the ranks has the bits of one process, also on two GPUs, which decode {glue:text}`gain_57` times as fast as one.
# How sure: two H200 by NVLink (NCCL {glue:text}`nccl`), and up to {glue:text}`most_ranks` ranks in one process on this CPU.
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
import torch
from myst_nb import glue

from labkernels import Bench, Decode, Prefill, gpu, plots
from labkernels.audit.ranks import verdict_ranks
from labkernels.bench.formulas import Equations
from labkernels.budget.roofline import least_time
from labkernels.chapters import across_a_wire as chapter
from labkernels.chapters import exercises, live
from labkernels.distributed import decode_in_parts, on_cpus, shard, zigzag
from labkernels.distributed.decode import Message
from labkernels.distributed.ranks import TIMEOUT_S

# %% tags=["hide-input"]
from labkernels.kernels.decode.inputs import problem_of
from labkernels.kernels.decode.schedule import invariant_keys_per_split
from labkernels.kernels.kernel import Shape
from labkernels.kernels.registry import discover
from labkernels.measure import real_inputs
from labkernels.measure.resources import resources
from labkernels.numerics.error import merging
from labkernels.numerics.truth import oracle
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import bars, curves
from labkernels.policy import TENSOR_CORES
from labkernels.records import recorded, store

# %% tags=["hide-input"]
inputs, HERE = chapter.decode_of(1024, 1021, 700, 512), "computed on this machine"
two_gpus, sums = (pd.DataFrame(store.read(name)) for name in ("ranks", "sums"))


def rms(values):
    return float(np.sqrt((np.asarray(values) ** 2).mean()))


def parts_of(given, ranks):
    shards = [shard(given.cache, rank, ranks) for rank in range(ranks)]
    return [problem_of(given.q, part, scale=given.scale).in_numpy() for part in shards]


# %% tags=["hide-input"]
points, exact = [], live.truth(inputs)
for n in (2, 4, 16, 64):
    parts = parts_of(inputs, n)
    for carry, (how, hops) in chapter.CARRIES.items():
        wire = "fp32" if how == "fp32" else "bf16"
        model = merging.sigma_of_parts(parts, TENSOR_CORES.of("bf16"), wire, hops=hops)
        error = chapter.in_parts(inputs, n, carry).double().numpy() - exact
        name = f"{carry.removeprefix('bf16 ')}, model"
        points += [(carry, n, rms(error)), (name, n, rms(model))]
grown = pd.DataFrame(points, columns=["kind", "x", "y"])

# %% mystnb={"figure": {"caption": "Only a sum that is rounded at every hop errs more with more ranks. RMSE of a decode of four requests whose keys lie on 2 to 64 ranks, by how the parts travel; found, and by the model from the inputs alone. bf16, computed on this machine, all ranks in one process.", "name": "wire-growth"}, "image": {"alt": "Six curves over 2 to 64 ranks, logarithmic. Two pairs stay flat, fp32 below bf16 once; the pair of bf16 hops rises about threefold. Found and modelled curves lie on each other.", "width": "100%"}} tags=["hide-input"]
curves(grown, labels=("ranks", "RMSE of the output"), log="xy", mark="o", origin=HERE)
plt.show()

# %% [markdown]
# ## Prediction
#
# Rank $i$ of $n$ attends to its keys alone. It has an output $o_i$ and a log-sum-exp $\mathrm{lse}_i$, in base 2. The merge is a weighted mean:
#
# $$
# o = \sum_i w_i \, o_i, \qquad
# w_i = \frac{2^{\mathrm{lse}_i}}{\sum_j 2^{\mathrm{lse}_j}}
# $$ (wire-merge)
#
# Three things can round here. A kernel rounds P within a part, as on one GPU. Each part may be rounded on the wire; and in a ring the sum so far, $s_k$, may be rounded at each hop. These roundings are independent, so that their variances add up:
#
# $$
# \sigma^2 = \sum_i w_i^2 \sigma_i^2
# + \sum_i w_i^2 \frac{q(o_i)^2}{12}
# + \sum_{k=2}^{n-1} W_k^2 \frac{q(s_k)^2}{12}
# $$ (wire-variance)
#
# | symbol | meaning |
# |---|---|
# | $\sigma_i$ | what the kernel of rank $i$ rounds inside, as in {doc}`where_the_error_comes_from` |
# | $q(x)$ | spacing of the numbers of the wire's format at $x$; tiny for fp32 |
# | $s_k$ | the sum when it holds $k$ parts, $W_k$ its share of all weight |
#
# With equal shares and values without a mean, an output over fewer keys is *larger*: it averages less, and $o_i$ has the size $\sqrt{n} \, o$. So the second sum is $n \cdot n^{-2} \cdot n = 1$ rounding of $o$, however many ranks there are. In the third sum $s_k$ has the size $\sqrt{n/k} \, o$ and the share $k/n$, and it gives
#
# $$
# \sum_{k=2}^{n-1} \frac{k^2}{n^2} \cdot \frac{n}{k} \approx \frac{n-1}{2} \ \text{roundings of } o
# $$ (wire-hops)
#
# The error grows with the root of it. Where all values have one sign, the outputs do not grow with fewer keys: a part's rounding then even falls as $1/n$, and that of the hops grows as $n/3$.
#
# The figure above holds the three carries against {eq}`wire-variance`, which was computed from the inputs, not fitted. The first two do not grow; their difference is the one rounding of each part.
#
# ### Registers and shared memory
#
# The merge keeps no tile: it has no shared memory, and a thread holds eight channels of two parts in registers.

# %% tags=["nbval-ignore-output"]
h200 = gpu("h200")
merge = discover()["merge_states"]
shape = Shape("bf16", 128, 128, group=1, rows=1, layout="states")
Equations(resources(merge.instance(shape, gpu=h200), gpu=h200))

# %% [markdown]
# The parts come from the decode and prefill of a single GPU, so that their budgets do not change. Both formulas of the decode on CUDA cores; those of `decode_mma_n8`, which the verb chooses here, stand in {doc}`tensor_cores_on_and_off`:

# %%
big = dict(q_heads=64, kv_heads=8, head_dim=128, dtype="bf16")
served, long = Decode((131072,), **big), Prefill((8192,), (8192,), causal=True, **big)
ON_AND_OFF = ["decode_fma", "decode_mma_n8", "prefill_fma", "prefill_mma", "prefill_wgmma"]
sized = Bench(served, long, kernels=ON_AND_OFF, gpu="h200")
sized.equations("decode_fma")

# %% mystnb={"figure": {"caption": "A rank's kernel takes what it takes on one GPU: the split changes how many keys a kernel sees, not its tile. Registers and shared memory of decode and prefill, with tensor cores and without. Predicted, and compiled for an H200.", "name": "wire-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas, with a diamond for the compiler's number.", "width": "100%"}} tags=["hide-input"]
sized.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "What limits each kernel at this shape, and what one block more would take.", "name": "wire-occupancy"}, "image": {"alt": "A panel with a row for each kernel: the blocks that fit an SM of an H200, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
sized.plot_occupancy("h200")
plt.show()

# %% tags=["hide-input"]
times = two_gpus[(two_gpus["keys"] == 131072) & (two_gpus.carry != "input")].set_index("way").time
measured = {n: f"; took {1e6 * times[way]:.0f} µs" for n, way in ((1, "one GPU"), (2, "gather"))}

# %% [markdown]
# ### What a rank reads and sends
#
# A rank reads its share of the cache; its message does not shrink, since every rank has a part of every row. For a decode of one request with 131,072 keys it sends {glue:text}`message` to each other rank:

# %% mystnb={"figure": {"caption": "The time to read the cache halves with each doubling of the GPUs, and the message stays small beside it. Least time by the memory of an H200; one request of 131,072 keys, 64 query heads, 8 KV heads of 128 channels, bf16. Predicted, and measured by NCCL with parts in fp32.", "name": "wire-timing"}, "image": {"alt": "Four horizontal bars for 1, 2, 4 and 8 GPUs, each half as long as the one before, with the measured time behind the first two.", "width": "100%"}} tags=["hide-input"]
rows = []
for n in (1, 2, 4, 8):
    us = 1e6 * least_time(Decode((131072 // n,), **big), h200, tensor_cores=True).time_s
    rows.append((f"{n} GPU" + "s" * (n > 1), us, f"{us:.0f} µs" + measured.get(n, "")))
rows = pd.DataFrame(rows, columns=["name", "value", "words"])
told = f"predicted for an H200; {recorded.origin(store.read('ranks'))}"
bars(rows, label="least time to read a rank's keys, µs", origin=told)
sized.log.drew("timing", "decode")
plt.show()

# %% [markdown]
# ## Measurement
#
# ### Ranks with the bits of one process
#
# `context_parallel_decode` runs on any number of ranks of `torch.distributed`. A rank holds whole pages, either a contiguous part or every $n$-th page, and there are three ways to merge:
#
# | merge | what travels | who adds |
# |---|---|---|
# | `gather` | all parts to all ranks | every rank, in the order of the ranks |
# | `heads` | each rank gets the parts of its heads | that rank, in the order of the ranks |
# | `scatter` | weighted parts, summed on the way | the library, in its own order |
#
# The first two use the kernel `merge_states`, which adds the parts one after the other. The same sum in one process is `decode_in_parts`: one launch in which the parts are requests of one batch, and one merge. This works because a request's bits do not depend on its batch, as {doc}`same_bits` shows for splits of a fixed size.
# Four processes on this CPU, which speak by gloo, against one:

# %% tags=["nbval-ignore-output"]
seen = on_cpus(chapter.on_ranks, 4, (1024, 1021, 700, 512))
columns = ["pages", "merge", "other outputs, %", "other LSEs, %"]
found = pd.concat(pd.DataFrame(rows, columns=columns) for rows in seen)
found = found.groupby(columns[:2], sort=False).max().reset_index()  # of the worst rank
plots.table(found, "wire-bits", dict.fromkeys(columns[2:], "{:.1f}"))

# %% [markdown]
# Only the library's sum has other bits, and only in some LSEs.
#
# ### On two GPUs
#
# The same calls ran on two H200 of one host, which NVLink joins, by NCCL. A time is that of a CUDA graph's replay on the slower GPU. A column has requests x keys; behind a merge stands the format in which parts travel:

# %% tags=["hide-input"]
decodes = two_gpus[(two_gpus.operation == "decode") & ~two_gpus.way.str.startswith("a part")]
decodes = decodes.assign(
    call=(decodes.way + " " + decodes.carry.replace("input", "bf16")).str.strip()
)
us_of = (
    decodes.pivot_table(index="call", columns=["batch", "keys"], values="time", sort=False) * 1e6
)
us_of.columns = [f"{n} x {keys:,}, µs" for n, keys in us_of.columns]
counts = decodes.groupby("call", sort=False)[["other", "outputs"]].sum()
shown = us_of.join(counts).reset_index()
shown.columns = ["merge", *us_of.columns, "other outputs", "of"]
forms = dict.fromkeys(us_of.columns, "{:.0f}") | dict.fromkeys(("other outputs", "of"), "{:,}")
plots.table(shown, "wire-gpus", forms)

# %% [markdown]
# *Other outputs* have other bits than `decode_in_parts` gives on one GPU. `gather` and `heads` have none, and in a test the bits of CPU ranks. With `scatter` NCCL adds parts that already have their weights: in fp32 this rarely shows, and in bf16 it rounds elsewhere.
# The order costs {glue:text}`order_cost` % of the decode for 57 requests, {glue:text}`order_cost_long` % for one of 131,072 keys, and {glue:text}`order_cost_longest` % for one of a million: splits follow from a request's own length alone, and in the longest request a rank merges {glue:text}`longest_splits` of them. The library's sum, `scatter`, is slower than `gather` each time.
# Two GPUs take more than half of one GPU's time, {glue:text}`over_half` µs more for 57 requests: the message, the merge and their launches do not shrink. The bytes alone are no reason: for NVLink, which NVIDIA rates at {glue:text}`floor_rate` GB/s in each direction, the {glue:text}`floor_mb` MB that a rank sends are {glue:text}`floor_us` µs, and the K and V of a ring of 65,536 tokens {glue:text}`floor_ring` ms.
#
# A ring prefill of 65,536 tokens, in a CUDA graph, takes {glue:text}`ring_ms` ms in place of {glue:text}`one_ms`, {glue:text}`ring_ideal` % of what two GPUs could do, and its gradients {glue:text}`back_ideal` %. With 8,192 tokens these are {glue:text}`short_ideal` % and {glue:text}`short_back` %. A ring that is called anew first compares the arguments of its ranks: with 8,192 tokens it takes {glue:text}`ring_short` times as long as one GPU. All {glue:text}`ring_outputs` outputs and gradients of the recorded rings have the bits of one process.
# The control splits the heads and needs no merge: an all-reduce adds the ranks' output projections. With 57 requests and sums in fp32 this takes {glue:text}`control` µs, in place of {glue:text}`control_one` on one GPU. On two GPUs all {glue:text}`projected` sums had the bits of the sum in one process, 100 times in a row.
# A sum of two numbers has no order: ring and tree differ in which rank adds the two, and channels in which numbers a rank adds. So all of {glue:text}`sums` sums of NCCL's all-reduce, in fp32, bf16 and fp16, were the fp32 sum, rounded once, and had the same bits in every further call. NCCL chose the way, or was told: ring or tree, each of three protocols, and 1, 4 or {glue:text}`channels` channels. By its log it used what it was told, but fewer channels for few bytes, and one for 4 KB (a table is in {doc}`the evidence </book/evidence>`).
# With more GPUs there is an order to find. Here gloo stands in on a CPU: `order_of_sums` finds that gloo adds each quarter of the numbers along the ring of four ranks, beginning at another rank, and in every call alike. In a test a million sums in this order have gloo's bits; in the order of the ranks a third have others.

# %% [markdown]
# ### CUDA and Triton, on and off

# %% tags=["nbval-ignore-output"]
few = dict(q_heads=4, kv_heads=2, head_dim=64, dtype="bf16")
bench = Bench(Decode((64, 128), **few), Prefill((16,) * 2, (64, 128), **few), kernels=live.EVERY)
bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")

# %% [markdown]
# Each kernel now computes the parts of four ranks. A prefill goes round a ring: rank $r$ of $n$ has chunks $r$ and $2n - 1 - r$ of the tokens (*zigzag*), so that under a causal mask all ranks have equal work.

# %%
short, chunk = chapter.decode_of(256, 200), chapter.prefill_of(32)
ways = {"decode": (short, chapter.in_parts), "prefill": (chunk, chapter.ring)}
rows = []
for operation, (given, run) in ways.items():
    exact = live.truth(given)
    for kernel in live.KERNELS[operation]:
        row = {"one GPU": rms(live.output(operation, given, kernel) - exact)}
        for carry in ("fp32", "bf16 once", "bf16 hops"):
            no_fp32 = carry == "fp32" and kernel.startswith("triton")
            if not (no_fp32 or (carry == "bf16 once" and operation == "prefill")):
                row[carry] = rms(run(given, 4, carry, kernel=kernel).double().numpy() - exact)
        rows.append({"operation": operation, "kernel": kernel} | row)
table = pd.DataFrame(rows)
plots.table(table, "wire-kernels", dict.fromkeys(table.columns[2:], "{:.6f}"))

# %% [markdown]
# Tensor cores, which round P to bf16, are a little worse everywhere; what the wire adds is nearly the same for all. The Triton kernels store 16 bits only, so that their parts cannot travel in fp32, and a ring has no way to round its parts only once.
#
# ### By head, by request, and by rank
#
# Beside random inputs are two KV heads of SmolLM2, a trained model, with three query heads each, after 2,000 to 2,048 tokens:

# %% tags=["hide-input"]
real = real_inputs.decode_of((2000, 2016, 2032, 2048), ("diffuse", "long"))
cells = []
for name, given in {"random": inputs, "SmolLM2": real}.items():
    done = decode_in_parts(*given.arguments, 4, scale=given.scale)
    truths = [oracle.attention(part)[0] for part in parts_of(given, 4)]
    found = {f"rank {i}": pair for i, pair in enumerate(zip(done.outs, truths, strict=True))}
    found["merged"] = done.out, live.truth(given)
    for kind, (out, truth) in found.items():
        part = live.cells("decode", {kind: out.double().numpy()}, truth, (1,) * 4)
        cells.append(part.assign(inputs=name))

# %% tags=["hide-input"]
given = chapter.prefill_of(64, 64)
out, exact = chapter.ring(given, 4, "fp32").double().numpy(), live.truth(given)
for rank in range(4):
    own = np.concatenate([64 * request + zigzag(64, rank, 4).numpy() for request in range(2)])
    part = live.cells("prefill", {f"rank {rank}": out[own]}, exact[own], (16, 16))
    cells.append(part.assign(inputs="random"))
cells = pd.concat(cells).rename(columns={"way": "kind"})

# %% mystnb={"figure": {"caption": "No rank is worse than the others, and the merged output, which is stored in bf16, errs most; rank 0 of SmolLM2 has the first key, whose weight among its keys is nearly 1 in two heads and is not rounded. Relative L2 error against float64 of each query head and request, with a mark for each of four ranks: parts in fp32 of a decode, each against its own keys, and the rows of a ring prefill, against all keys. decode_mma_n8 and prefill_mma, bf16; of SmolLM2 the heads diffuse and long.", "name": "wire-errors"}, "image": {"alt": "Four panels, decode above and prefill below, over query heads on the left and the requests on the right; in the decode random inputs stand beside those of SmolLM2. Dots of four ranks lie together, but rank 0 of SmolLM2 lies far below in two heads; those of the merged decode lie above them.", "width": "100%"}} tags=["hide-input"]
by_place(cells, label="relative L2 error", origin=HERE)
sized.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# What does a head look at, and does its error grow with the ranks? The head *long* has a query head for each case. Here their sums are rounded at every hop, over ranks that hold the keys in order:

# %% tags=["hide-input"]
of_long = real_inputs.decode_of(range(2008, 2049, 8), ("long",))
exact, of_ranks = live.truth(of_long), {}
for n in (2, 64):
    how = TENSOR_CORES.of("bf16"), "bf16"
    model = merging.sigma_of_parts(parts_of(of_long, n), *how, hops=True)
    error = chapter.in_parts(of_long, n, "bf16 hops").double().numpy() - exact
    of_ranks[n] = [np.sqrt((x**2).mean(axis=(0, 2))) for x in (error, model)]
(two, two_told), (most, most_told) = of_ranks.values()
columns = ["looks at", "error, 2 ranks", "64 ranks", "times", "by the model"]
seen = ["the first key", "its own key", "many keys"]
values = seen, two, most, most / two, most_told / two_told
by_head = pd.DataFrame(dict(zip(columns, values, strict=True)))
forms = dict.fromkeys(columns[1:3], "{:.5f}") | dict.fromkeys(columns[3:], "{:.1f}")
plots.table(by_head, "wire-real", forms)

# %% [markdown]
# By {eq}`wire-variance` a hop rounds what the sum holds. A head that looks at the first key has its weight from the first hop on, and pays for all others; one that looks at its own key gets its weight at the last hops, and pays nothing. Of the first the model misses a part: what a hop adds is often less than half a spacing of the sum, and is lost at every hop alike.

# %% [markdown]
# ### Rounding, or a bug?
#
# More ranks are more places for mistakes. FlashInfer's LSEs have base 2, as {cite:t}`flashinfer2113` asks about, and a merge that takes them for natural ones gives wrong weights: {cite:t}`vllm47079` removed this mistake from a decode over ranks. `verdict_ranks` takes the parts of all ranks. It judges each over its own keys, and the merge against the exact merge of these parts, so that a mistake is placed once:

# %% tags=["hide-input"]
caches = [shard(short.cache, rank, 4) for rank in range(4)]
done = decode_in_parts(*short.arguments, 4, scale=short.scale)
weights, twice = torch.exp2(done.lse2s.double()), torch.tensor([1, 2, 1, 1])[:, None, None]


def merged(weights):
    shares = (weights / weights.sum(0))[..., None]
    return (shares * done.outs.double()).sum(0).to(short.q.dtype)


def judged(outs=done.outs, lse2s=done.lse2s, out=done.out):
    found = verdict_ranks(list(outs), list(lse2s), short.q, caches, out=out, scale=short.scale)
    return found.answer, found.why.partition(";")[0]


# %% tags=["hide-input"]
natural, sent = done.lse2s.clone(), [0, 1, 1, 3]
natural[2] *= np.log(2)
planted = {
    "none": judged(),
    "rank 2 gives a natural LSE": judged(lse2s=natural),
    "rank 2 sends rank 1's part": judged(done.outs[sent], done.lse2s[sent]),
    "the merge takes base 2 for base e": judged(out=merged(torch.exp(done.lse2s.double()))),
    "the merge does not weigh": judged(out=merged(torch.ones_like(weights))),
    "rank 1 counts twice": judged(out=merged(weights * twice)),
}
rows = [(name, *said) for name, said in planted.items()]
table = pd.DataFrame(rows, columns=["planted mistake", "verdict", "why"])
plots.table(table, "wire-mistakes", {})

# %% [markdown]
# In a ring a mask can be off where two chunks meet; a test plants such a mask, and the verdict places it on its part.

# %% [markdown]
# ### When a rank is lost
#
# All ranks compare their arguments before they start. If one differs, every rank raises the same line, such as `rank 2: q.dtype = torch.bfloat16, allowed: torch.float16, as on rank 0`. With gloo the others end with `LostRank` and one line if a rank dies, and after a time-out (by default {glue:text}`timeout` seconds) if a rank hangs. With NCCL on two GPUs, `on_gpus` ended the others within seconds when a rank was killed in a decode, in a graph's replay and in a ring.
#
# ## What would change the answer
#
# - **The backward pass.** {cite:t}`ringflashattention42` saw the errors in gradients, with parts in bf16 that are added in fp32. For the forward pass {eq}`wire-variance` predicts that this carry does not grow. `labkernels.distributed.ring_backward` adds its parts in this way: a test holds its gradients on up to eight ranks to a bound of float64.
# - **Values with a mean.** Then parts in bf16 cost less with more ranks, and hops more: see the text below {eq}`wire-hops`.
# - **A library's sum.** Two GPUs leave no order to choose. `order_of_sums` probes NCCL's order on more, and has not run there.
# - **More keys than fit.** Errors were computed at up to 1,024 keys. By {eq}`wire-variance` only the shares of the ranks matter.

# %% tags=["evidence"]
hops = grown[grown.kind == "bf16 hops"].y
glue("grown", f"{hops.iloc[-1] / hops.iloc[0]:.1f}", display=False)
glue("most_ranks", f"{points[-1][1]}", display=False)
glue("timeout", f"{TIMEOUT_S:.0f}", display=False)

# %% tags=["evidence"]
sizes = [Message(1, 64, 128, x).n_bytes / 1024 for x in (torch.float32, torch.bfloat16)]
message = f"{sizes[0]:.0f} KiB in fp32 and {sizes[1]:.0f} KiB in bf16"
glue("message", message, display=False)

# %% tags=["evidence"]
sent, rate = Message(57, 32, 128, torch.float32).n_bytes, h200.nvlink_bytes_per_s
glue("floor_rate", f"{rate / 1e9:.0f}", display=False)
glue("floor_mb", f"{sent / 1e6:.1f}", display=False)
glue("floor_us", f"{1e6 * sent / rate:.0f}", display=False)
keys_and_values = 2 * 65536 // 2 * 8 * 128 * 2  # of a rank's half of the tokens, in 16 bits
glue("floor_ring", f"{1e3 * keys_and_values / rate:.1f}", display=False)
half = 2**20 // 2  # keys of a rank in the longest request
glue("longest_splits", half // invariant_keys_per_split(half), display=False)

# %% tags=["evidence"]
rung = two_gpus[two_gpus.way.str.startswith("ring")]
projected = two_gpus[two_gpus.way == "all-reduce"]
assert all(x.other.sum() == x.unstable.sum() == 0 for x in (rung, sums, projected))
took = two_gpus[two_gpus.carry != "input"].set_index(["operation", "way", "keys"]).time.sort_index()
one, ring, anew = (took["prefill", way] for way in ("one GPU", "ring in a graph", "ring"))
ideal = 50 * one / ring
back = 50 * took["backward", "one GPU"] / took["backward", "ring in a graph"]
whole, fixed, free = (took["decode", way] for way in ("gather", "a part", "a part, free splits"))
order_cost = 100 * (fixed - free) / whole
assert (order_cost <= 5).all()
assert (took["decode", "scatter"] > whole).all()

# %% [markdown] tags=["evidence"]
# All-reduces of two H200, of 4 KB to 256 MiB, by what NCCL was told, and what its log says that it used. *Other* sums have other bits than the only sum of two numbers, *changed* ones have them in one of ten more calls.

# %% tags=["evidence"]
said = sums.copy()
used, asked = said.algorithm + " " + said.protocol, said.asked.str.upper()
assert all(a == "" or a.startswith(f"{u} ") for a, u in zip(asked, used, strict=True))
assert said.asked.nunique() == 19, "its own choice, and 2 x 3 x 3 others"
said["told"] = asked.str.replace(r" \w+ ", ", channels: ", regex=True).replace("", "nothing")
ways = said.assign(used=used, channels=said.channels.astype(int)).groupby("told", sort=False)
columns = {name: (name, "sum") for name in ("outputs", "other", "unstable")}
columns |= {"fewest": ("channels", "min"), "most": ("channels", "max")}
by = ways.agg(used=("used", lambda x: ", ".join(x.unique())), **columns).reset_index()
assert (by.outputs > 2 * 10**7).all()
assert not by[["other", "unstable"]].any(axis=None)

# %% tags=["evidence"]
few_or_many = zip(by.fewest, by.most, strict=True)
by["channels"] = [f"{few} to {many}" if few < many else f"{few}" for few, many in few_or_many]
shown = by.rename(columns={"outputs": "sums", "unstable": "changed"})
names = ["told", "used", "channels", "sums", "other", "changed"]
plots.table(shown[names], "wire-sums", dict.fromkeys(names[3:], "{:,}"))

# %% tags=["evidence"]
first, ms, control = us_of.iloc[:, 0], 1e3 * ring, took.xs(8192, level="keys")["projection"]
numbers = {
    "nccl": two_gpus.nccl.iloc[0], "gain_57": f"{first['one GPU'] / first['gather fp32']:.1f}",
    "over_half": f"{first['gather fp32'] - first['one GPU'] / 2:.0f}", "ring_ms": f"{ms[65536]:.0f}",
    "one_ms": f"{1e3 * one[65536]:.0f}", "ring_ideal": f"{ideal[65536]:.0f}",
    "ring_short": f"{anew[8192] / one[8192]:.1f}", "ring_outputs": f"{rung.outputs.sum():,}",
    "sums": f"{sums.outputs.sum():,}", "projected": f"{projected.outputs.sum():,}",
    "channels": f"{by.most.max()}", "control": f"{1e6 * control['all-reduce']:.0f}",
    "control_one": f"{1e6 * control['one GPU']:.0f}", "order_cost": f"{order_cost[8192]:.1f}",
    "order_cost_long": f"{order_cost[131072]:.1f}",
    "order_cost_longest": f"{order_cost[2**20]:.1f}", "short_back": f"{back[8192]:.0f}",
    "short_ideal": f"{ideal[8192]:.0f}", "back_ideal": f"{back[65536]:.0f}",
}  # fmt: skip
for name, number in numbers.items():
    glue(name, number, display=False)

# %% tags=["nbval-ignore-output", "evidence"]
sized.log + bench.log

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: wire-ring
#
# A ring of 33 ranks rounds its sum to bf16 at every hop. Besides the hops, a decode's variance has three roundings of $o$: P, the parts, and the store. How many times as large does {eq}`wire-hops` make the error (RMSE)?
# Check your answer with `exercises.check("wire-ring", times)`.
# ```
#
# ```{solution-start} wire-ring
# :class: dropdown
# ```
#
# The hops add $(33 - 1) / 2 = 16$ roundings to three, and the error grows with the root: $\sqrt{19 / 3} = 2.5$.

# %%
assert exercises.check("wire-ring", (19 / 3) ** 0.5)

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# {cite:t}`ringflashattention42` is open; its author found that the errors begin in outputs and LSEs of the forward pass. That LSEs of base 2 are merged as natural ones was reported in {cite:t}`flashinfer2113` and repaired in {cite:t}`vllm47079`. {cite:t}`nccl1055` has the maintainers' words on the order of an all-reduce. None of these was run here.
