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
# # What a tensor core really computes
#
# ## Question
#
# **Does the same attention kernel give the same bits on an A100, an RTX 4090, an H200, a B200 and an RTX 5090?**
# {cite:t}`li2024` gave GPUs one small product: a V100 and an A100 answered 0, an H100 191.875, and no manual says which is right {cite:p}`ptx`.
#
# :::{admonition} Answer
# :class: important
#
# No. With 16-bit inputs A100 and RTX 4090 (`sm_80`, `sm_89`) add in one way, H200, B200 and RTX 5090 (`sm_90`, `sm_100`, `sm_120`) in another. In a decode {glue:text}`computes_decode_differ` % of the outputs differ.
# No GPU is wrong: no standard says how to add. Each rule is written to the last bit.
# How sure: the rule of `sm_90` gave all {glue:text}`computes_outputs` million outputs of an H200 (CUDA {glue:text}`computes_cuda`); the other rules are from the literature, and no record tests the rule of `sm_120`.
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

from labkernels import Bench, Decode, Prefill, plots
from labkernels.bench import elements
from labkernels.chapters import exercises
from labkernels.chapters import what_a_tensor_core_computes as five
from labkernels.numerics import rounding
from labkernels.numerics.emulation import ex2_unit, tensor_core
from labkernels.records import recorded, store

# %% tags=["hide-input"]
# In fp16, with 3 requests; the last rows of a prefill see as many keys as a decode.
decode = Decode((900, 300, 64), 8, 2, 128, dtype="fp16")
prefill = Prefill((96, 64, 33), (512, 256, 33), 8, 2, 128, causal=True, dtype="fp16")
ran = {
    "decode": five.outputs("decode", decode, "decode_mma"),
    "prefill": five.outputs("prefill", prefill, "prefill_mma"),
}

# %% mystnb={"figure": {"caption": "The bits that change: the share of outputs that the tensor cores of sm_80 and sm_89 compute otherwise than those of sm_90, sm_100 and sm_120. Request 2, which has the fewest keys, changes least. A cell of the decode has 128 outputs. By CPU builds.", "name": "five-bits"}, "image": {"alt": "Two heat maps of three requests and eight heads, for a decode and for a prefill. Every cell lies between 0 and 2 %, and the row of request 2 has the most cells near 0.", "width": "100%"}} tags=["hide-input"]
maps = []
for name, work in (("decode", decode), ("prefill", prefill)):
    other = 100.0 * (ran[name]["sm_80"] != ran[name]["sm_90"])
    each = elements.rows({name: other}, elements.tokens(work))
    cells = each.groupby(["sample", "head"]).error.mean().rename("rmse").reset_index()
    maps.append(cells.assign(kernel=f"{name}_mma", tensor_cores="on"))
plots.error_maps(pd.concat(maps), origin="computed on this machine", label="outputs that differ, %")
plt.show()

# %% [markdown]
# ## Prediction
#
# ### The step
#
# A tensor core does not chain operations: it adds a whole *chunk* of products and the accumulator $c$ in one step {cite:p}`fasi2021,xie2025,khattak2025`.
# Each product $t_k = a_k b_k$ is exact.
# Let $e_k$ be the sum of the exponents of its factors, $e_c$ that of $c$, and $e$ the largest of them all.
# Every term is put on one grid, whose step lies $F$ bits below $2^e$, and what does not fit is cut off, toward zero:
#
# $$
# \begin{aligned}
# g &= 2^{e - F}, \\
# s &= g \Bigl( \Bigl[\frac{c}{g}\Bigr] + \sum_{k} \Bigl[\frac{t_k}{g}\Bigr] \Bigr),
# \end{aligned}
# $$ (tensor-core-step)
#
# where $g$ is the step of the grid, $k$ runs over the products of a chunk, and $[x]$ cuts $x$ to a whole number.
# These integers are added without error, and $s$ is cut once more, toward zero, to the fraction bits of the result.
# A longer sum goes chunk by chunk, in ascending order, and the result of a step is the $c$ of the next.
#
# So four numbers describe a generation: $F$, the chunk, the fraction bits of the result, and an exponent below which the grid does not follow.
# These are the numbers of the lab's models, for inputs of 16 and of 8 bits:

# %% tags=["hide-input"]
rows = []
for arch, units in tensor_core.UNITS.items():
    for fmt in ("fp16", "e4m3"):
        if unit := units.get(fmt):
            kept = (unit.fraction_bits, unit.chunk, unit.out_fraction_bits)
            rows.append((arch, fmt, *kept, unit.lowest_exponent_fp32))
columns = ["architecture", "inputs", "F", "chunk", "result's bits", "lowest exponent"]
plots.table(pd.DataFrame(rows, columns=columns), "constants")

# %% [markdown]
# ### Rivals
#
# A model is good only if wrong models fail where it succeeds. Five rivals compete with it: one bit less or more in $F$, half the chunk, and two models that many people believe in, a loop of FMAs and the exact sum rounded once.
# First, on random numbers, how often does each rival differ from {eq}`tensor-core-step`?

# %%
SM_90 = tensor_core.unit_of("sm_90", "fp16")
RIVALS = {
    "24 fraction bits": replace(SM_90, fraction_bits=24),
    "26 fraction bits": replace(SM_90, fraction_bits=26),
    "chunk 8": replace(SM_90, chunk=8),
}


# %% tags=["hide-input"]
def fma_loop(a, b, c):
    """c + a b, one fused multiply-add after the other."""
    for k in range(a.shape[-1]):
        c = rounding.fma_rn(a[..., :, k, None], b[..., None, k, :], c)
    return c


def rounded_once(a, b, c):
    """c + a b, exact up to float64, then rounded to nearest."""
    return (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)


# %% tags=["hide-input"]
rng = np.random.default_rng(0)
shapes = (512, 16, 16), (512, 16, 8), (512, 16, 8)
a, b, c = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in shapes)
c = rng.standard_normal(c.shape).astype(np.float32)
model = tensor_core.matmul(a, b, c, arch="sm_90", fmt="fp16")
rivals = {
    name: tensor_core.matmul(a, b, c, arch="sm_90", fmt="fp16", unit=unit)
    for name, unit in RIVALS.items()
}
beliefs = {"a loop of FMAs": fma_loop(a, b, c), "rounded once": rounded_once(a, b, c)}
predicted = pd.Series({name: np.mean(d != model) for name, d in (rivals | beliefs).items()})
plots.table(predicted.rename("would differ").rename_axis("model").reset_index(), "predicted",
            {"would differ": "{:.1%}"})  # fmt: skip

# %% [markdown]
# Every rival can be told apart.
#
# The second prediction is about long sums.
# Each step of {eq}`tensor-core-step` cuts toward zero, so for products of one sign nothing cancels.
# If the products have mean $\mu$, the accumulator is about $k \mu$ after $k$ of them, and a step loses half an ulp of it on average, and about half a step of the grid for each of its products:
#
# $$
# \text{bias} = -\frac{1}{2 K \mu} \sum_{\text{steps}} \bigl( \operatorname{ulp}(k \mu) + n \, g \, \phi \bigr),
# $$ (tensor-core-bias)
#
# where $n$ is the number of products of a chunk, and $\phi$ is the share of products with bits below the grid: 1 once $2^{e-F}$ is well above a product's last bit, 0 before.
# We let $\phi$ jump from 0 to 1 where the grid's step passes the last bit of a product of two fp16 numbers near 1, $2^{-20}$, which is too early for short sums.


# %% tags=["hide-input"]
def predicted_bias(unit: tensor_core.Unit, k: int, mean: float) -> float:
    """The relative bias of a sum of k products with this mean, factors in [1, 2)."""
    so_far = mean * np.arange(unit.chunk, k + 1, unit.chunk)
    ulp = 2.0 ** (np.floor(np.log2(so_far)) - unit.out_fraction_bits)
    grid = 2.0 ** (np.floor(np.log2(so_far)) - unit.fraction_bits)
    cut = np.where(grid > 2.0**-20, 0.5 * unit.chunk * grid, 0.0)
    return -float(np.sum(0.5 * np.maximum(ulp - grid, 0) + cut)) / (mean * k)


lengths = 2 ** np.arange(6, 14)
predictions = [
    {"arch": arch, "k": k, "predicted": predicted_bias(tensor_core.unit_of(arch, "fp16"), k, 2.25)}
    for arch in ("sm_70", "sm_80", "sm_90") for k in lengths
]  # fmt: skip

# %% [markdown]
# ### What a block takes
#
# The GPU fixes the arithmetic of `mma.sync`; the kernel chooses how many registers and bytes of shared memory it takes.
# These are both formulas of `prefill_mma`, for the prefill above on an A100.

# %% tags=["hide-output"]
kernels = [
    "decode_fma",
    "decode_mma",
    "triton_decode",
    "prefill_fma",
    "prefill_mma",
    "triton_prefill",
]
bench = Bench(decode, prefill, kernels=kernels, gpu="a100")
bench.equations("prefill_mma")

# %% mystnb={"figure": {"caption": "A prefill on tensor cores keeps S, P and O in its registers; without them Q takes twice the shared memory, and S and P lie there, too. Compiled for an A100.", "name": "core-budget"}, "image": {"alt": "Two panels of stacked bars for decode and prefill, with tensor cores and without: registers per thread above, with a line at 255, and shared memory per block below. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "The same kernels on three GPUs: an SM of an RTX 4090 has less shared memory, and holds fewer blocks of either kernel than one of an H200.", "name": "core-occupancy"}, "image": {"alt": "Three panels, one for each GPU, with a bar of blocks for each kernel and the words of what one block more would take.", "width": "100%"}} tags=["hide-input"]
own = Bench(decode, prefill, kernels=["decode_mma", "prefill_mma"], gpu="a100")
own.plot_occupancy("a100", "rtx4090", "h200")
plt.show()

# %% [markdown]
# ## Code
#
# The same step stands three times in the lab: in NumPy, in int64 operations of torch that run on the GPU, and in the C++ of the CPU build.
# This is the C++, where the sum of a chunk is finished:
#
# ```{literalinclude} /labkernels/cuda/include/lab/host/arithmetic/dot.cpp
# :language: cpp
# :start-at: "double result(const Unit& unit"
# :end-before: "private:"
# ```
#
# The second listing asks a GPU for products of two tiles in shared memory.
# It issues a `wgmma` for each 16 columns, with a descriptor of each operand:
#
# ```{literalinclude} /labkernels/cuda/include/lab/hopper/tile.cuh
# :language: cpp
# :start-at: "// Issues the wgmma of d = A B^T"
# :end-before: "// Starts d = A B^T, with fence"
# ```
#
# ## Measurement
#
# ### The H200 against the model
#
# An experiment, which is now in the history of the package ({doc}`/book/decisions/0034-recordings-that-are-complete`), tried twelve instructions on nine families of tiles: normal numbers, numbers of all sizes, {term}`subnormal <subnormal>` ones, sums that cancel, and tiles that are difficult on purpose, with one huge term, with infinities and NaN, or with random bits.
# A few tiles of each are in `data/`, and the NumPy model runs on them now.

# %% tags=["hide-input"]
with np.load(store.path_of("tensor_core_sm90.npz")) as file:
    sample = dict(file)
names = list(dict.fromkeys(key.rpartition(" ")[0] for key in sample))
rows = []
for name in names:
    (_, out, fmt), operands = name.rsplit(".", 2), (sample[f"{name} {x}"] for x in "abcd")
    a, b, c, d = (x.reshape(-1, *x.shape[2:]) for x in operands)
    a, b, c = rounding.from_bits(a, fmt), rounding.from_bits(b, fmt), c.view(f"f{c.itemsize}")
    if name.startswith("mma") and fmt in ("e4m3", "e5m2"):
        got = tensor_core.widened_matmul(a, b, c, fmt=fmt)
    else:
        got = tensor_core.matmul(a, b, c, arch="sm_90", fmt=fmt, out=out)
    rows.append((name, d.size, int(np.sum(got.view(d.dtype) != d))))
plots.table(pd.DataFrame(rows, columns=["instruction", "outputs here", "that differ"]), "sample")

# %% [markdown]
# The run on the GPU compared far more:

# %% tags=["hide-input"]
counts = pd.DataFrame(store.newest(store.read("tensor_core_arithmetic")))
origin = recorded.origin(counts.to_dict("records"))
counts[["kind", "family", "model"]] = counts.metric.str.split(", ", n=2, expand=True)
outputs = counts[counts.kind == "outputs"].groupby("kernel", sort=False).value.sum()
missed = counts[counts.kind == "mismatches"].groupby(["kernel", "model"], sort=False).value.sum()
ours = missed.xs("the model", level="model")
print(f"{outputs.sum() / 1e6:.0f} million outputs of {len(outputs)} instructions, "
      f"{ours.sum():.0f} unlike the model")  # fmt: skip

# %% mystnb={"figure": {"caption": "A model with one bit more or less, or with half the chunk, fails on every instruction. Shares of all outputs of the GPU, of random and of difficult tiles.", "name": "rejections"}, "image": {"alt": "A row for each of twelve instructions. The model's mark stands on the line labelled none in all of them. The marks of models with a fraction bit less or more, half the chunk or another number of output bits stand to the right, between a few outputs in a thousand and nearly all.", "width": "100%"}} tags=["hide-input"]
shares = (missed / outputs).rename("share").reset_index()
known = {f"{n} fraction bits": "fraction bits ± 1" for n in (12, 14, 24, 26)}
known |= {f"{n} output bits": "output bits ± 1" for n in (12, 14)}
known |= {f"chunk {n}": "half the chunk" for n in (4, 8, 16)}
plots.rejections(shares.assign(model=shares.model.replace(known)), origin=origin)
plt.show()

# %% [markdown]
# The table sets the shares beside those predicted, for normal numbers in fp16. A loop of FMAs and the sum rounded once were tried on the tiles in `data/` alone:

# %% tags=["hide-input"]
normal = counts[(counts.family == "normal") & (counts.kernel == "mma.sync.m16n8k16.fp32.fp16")]
normal = normal.set_index("model").value
measured = normal[list(RIVALS)] / normal[None]
a, b, c, d = (sample[f"mma.sync.m16n8k16.fp32.fp16 {x}"][0] for x in "abcd")
a, b = (rounding.from_bits(x, "fp16") for x in (a, b))
for name, belief in {"a loop of FMAs": fma_loop, "rounded once": rounded_once}.items():
    measured[name] = np.mean(belief(a, b, c.view(np.float32)).view(np.uint32) != d)
beside = pd.DataFrame({"predicted": predicted, "on the H200": measured})
beside["measured / predicted"] = beside["on the H200"] / beside.predicted
percent = dict.fromkeys(["predicted", "on the H200"], "{:.1%}")
plots.table(beside.rename_axis("model").reset_index(), "beside",
            percent | {"measured / predicted": "{:.2f}"})  # fmt: skip

# %% [markdown]
# ### One sum, looked into
#
# {numref}`one-sum` shows one output of the H200 from the recorded tiles, with terms of very different exponents.
# A bar is a term, and the part that is cut is orange.


# %% tags=["hide-input"]
def span(x):
    """Exponents of the first and the last bit of a number that are 1."""
    mantissa, exponent = np.frexp(x)
    integer = int(abs(mantissa) * 2**53)
    return exponent - 1, exponent - 54 + (integer & -integer).bit_length()


# %% mystnb={"figure": {"caption": "Seventeen terms on one grid: the largest decides which bits the others keep. An output of wgmma for fp16, from the tiles with numbers of all sizes.", "name": "one-sum"}, "image": {"alt": "Seventeen horizontal bars, one for c and one for each product, at different heights of exponent. A vertical line marks the last place kept. Parts of bars to its right are orange: most terms lose some of their bits, a few all of them.", "width": "100%"}} tags=["hide-input"]
a, b, c = (sample[f"wgmma.m64n64k16.fp32.fp16 {x}"][1, 0] for x in "abc")
a, b = rounding.from_bits(a[0], "fp16"), rounding.from_bits(b[:, 0], "fp16")
c = c.view(np.float32)[0, 0]
largest = max(span(c)[0], *(span(x)[0] + span(y)[0] for x, y in zip(a, b, strict=True)))
spans = {"c": span(c)} | {f"a{k} b{k}": span(float(a[k]) * float(b[k])) for k in range(16)}
terms = pd.DataFrame(
    [(name, *ends) for name, ends in spans.items()], columns=["name", "top", "bottom"]
)
plots.alignment(terms, last_kept=largest - SM_90.fraction_bits, origin=origin)
plt.show()

# %% [markdown]
# ### Long sums, by generation
#
# The factors are uniform in $[1, 2)$, so that all products have one sign, and the models of three generations add them.
# For 16 bits `sm_89` has the constants of `sm_80`, and `sm_100` and `sm_120` have those of `sm_90`: their points would lie on the same lines.

# %% mystnb={"figure": {"caption": "Truncation is a bias that grows with the sum, and more bits make it smaller: marks are the models, lines the prediction. fp16 factors between 1 and 2.", "name": "chain-bias"}, "image": {"alt": "Relative bias against the number of products, from 64 to 8192, both axes logarithmic, for sm_70, sm_80 and sm_90. Each rises with the number of products; sm_70 lies highest, sm_90 lowest, and the lines follow the marks.", "width": "100%"}} tags=["hide-input"]
rng = np.random.default_rng(1)
a, b = (
    rounding.round_to(rng.uniform(1, 2, shape), "fp16")
    for shape in ((32, lengths[-1]), (lengths[-1], 32))
)
for row in predictions:
    some = a[:, : row["k"]], b[: row["k"]]
    exact = some[0] @ some[1]
    row["bias"] = float(
        np.mean(tensor_core.matmul(*some, arch=row["arch"], fmt="fp16") / exact - 1)
    )
chains = pd.DataFrame(predictions)
plots.chain_bias(chains, origin="computed on this machine")
plt.show()

# %%
longest = chains[chains.k == lengths[-1]].assign(ratio=chains.bias / chains.predicted)
longest = longest.rename(
    columns={"arch": "architecture", "k": "products", "ratio": "bias / predicted"}
)
plots.table(
    longest, "longest", {"predicted": "{:.1e}", "bias": "{:.1e}", "bias / predicted": "{:.2f}"}
)

# %% [markdown]
# ### Eight bits
#
# `wgmma` with inputs in one of the {term}`8-bit formats` keeps $F = 13$ bits, and its fp32 results have 13 fraction bits: the ten others are zero.
# An accumulator of 13 bits stops growing when each product of a step is smaller than its last place.
# That is why kernels with fp8 inputs end their chains early and add the parts in fp32 {cite:p}`shah2024`.
#
# `mma.sync` on an H200 takes 8-bit inputs as well, and gives other results.
# Its machine code shows why: the chip has no unit for them, so the compiler widens the inputs to fp16 (`F2FP`), issues two `HMMA` from zero, and adds $c$ with an ordinary fp32 addition.
# The first `HMMA` takes two of every four products, and the second takes the others.

# %%
e4m3 = counts[counts.kernel.isin([n for n in names if "e4m3" in n]) & (counts.kind == "mismatches")]
shown = e4m3.groupby(["kernel", "model"], sort=False).value.sum().reset_index()
shown["value"] = shown.value / outputs[shown.kernel].to_numpy()
plots.table(shown.rename(columns={"kernel": "instruction", "value": "outputs that differ"}), "eight",
            {"outputs that differ": "{:.2%}"})  # fmt: skip

# %% [markdown]
# ### Triton
#
# `tl.dot(q, k^T)` compiles to `mma.sync` for tiles of 16 queries, and to `wgmma` from 64 on.
# If both chain the channels in ascending order, their bits must equal each other and the model's.

# %% tags=["hide-input"]
dots = pd.DataFrame(store.newest(store.read("triton_dot")))
keys = ["kernel", "dtype", "head_dim", "note"]
dots = dots.pivot(index=keys, columns="metric", values="value").reset_index()
dots.columns = [name.removeprefix("mismatches, ") for name in dots]
dots = dots.rename(columns={"note": "instruction", "head_dim": "channels"})
whole = ["outputs", "the model", "head_dim descending"]
plots.table(dots[["kernel", "dtype", "channels", "instruction", *whole]], "triton",
            dict.fromkeys(whole, "{:,.0f}"))  # fmt: skip

# %% [markdown]
# ### The exponential
#
# `ex2.approx.ftz.f32` gives $2^x$ in a few cycles.
# The lab read its results at all $2^{23}$ fractions, and found what made them: 64 parabolas.
# For $x = n + f / 2^{23}$ the upper six bits of $f$ choose three integers, the lower 17 are $l$, and
#
# $$
# \begin{aligned}
# 2^x &= 2^n \bigl( 1 + 2^{-23} \lfloor y \rfloor \bigr), \\
# y &= \frac{2^{13} c_0 + c_1 l + c_2 s + \text{bias}}{2^{15}}, \\
# s &\approx l^2 / 2^{19}.
# \end{aligned}
# $$ (ex2-parabola)
#
# The square is cheap, because those of its partial products that lie below $2^{19}$ are never added.
# The widths, 26, 16 and 10 bits, are those of an interpolator published twenty years ago {cite:p}`oberman2005`.
# For a negative $x$ the unit inverts every bit of $n$ and $f$.

# %% mystnb={"figure": {"caption": "Sixty-four parabolas: the error of 2^x is a wave with a jump at every border, and stays within {glue:text}`computes_ulp` ulp. Line: mean; area: all values. Above: x from 0 to 1. Below: the first four segments.", "name": "ex2-error"}, "image": {"alt": "Two panels. Above, the error in ulps over 64 segments, a jagged band between about minus 1 and plus 1.4. Below, the first four segments, each a smooth wave of third degree that jumps at the border to the next.", "width": "100%"}} tags=["hide-input"]
unit = ex2_unit.load()
fractions = np.arange(ex2_unit.ENTRIES)
mantissas = unit.mantissa(fractions)
error_ulp = mantissas - (np.exp2(fractions / ex2_unit.ENTRIES) - 1) * ex2_unit.ENTRIES
plots.exponential_unit(
    error_ulp, origin="computed on this machine, from coefficients read off an H200"
)
plt.show()

# %%
tried = pd.DataFrame(store.newest(store.read("special_functions")))
tried = tried.set_index("metric").value
print(f"{tried.inputs:,.0f} inputs tried on the H200, {tried.mismatches:.0f} unlike the parabolas")
print(f"{ex2_unit.DATA_FILE.stat().st_size:,} bytes hold all of them")
print(f"largest error {np.abs(error_ulp).max():.2f} ulp, mean {error_ulp.mean():+.2f} ulp; "
      f"correctly rounded {100 * np.mean(np.abs(error_ulp) <= 0.5):.0f} %")  # fmt: skip

# %% tags=["evidence"]
shares = {name: five.differing(bits)[0]["sm_90"] for name, bits in ran.items()}
numbers = {f"{name}_differ": f"{share:.1f}" for name, share in shares.items()}
step = np.abs(ran["prefill"]["sm_80"] - ran["prefill"]["sm_90"])
ulps = step / rounding.quantum(ran["prefill"]["sm_90"], "fp16")
numbers["ulps"] = f"{100 * np.mean(ulps[ulps > 0] <= 1):.0f}"
numbers |= {
    f"bits_{arch}": f"{tensor_core.unit_of(f'sm_{arch}', 'fp16').fraction_bits}"
    for arch in ("80", "90")
}

# %% tags=["evidence"]
bias = chains[chains.k == lengths[-1]].set_index("arch").bias
numbers |= {
    "outputs": f"{outputs.sum() / 1e6:.0f}", "fma_loop": f"{100 * measured['a loop of FMAs']:.0f}",
    "once": f"{100 * measured['rounded once']:.0f}", "bias_90": f"{-1e5 * bias['sm_90']:.0f}",
    "bias_70": f"{-1e5 * bias['sm_70']:.0f}", "bytes": f"{ex2_unit.DATA_FILE.stat().st_size:,}",
    "dots": f"{dots.outputs.sum() / 1e6:.0f}", "ulp": f"{np.abs(error_ulp).max():.2f}",
    "cuda": counts.cuda.iloc[0],
}  # fmt: skip
for name, text in numbers.items():
    glue(f"computes_{name}", text, display=False)

# %% [markdown]
# ### Five GPUs, one attention
#
# {numref}`five-bits` compares two architectures, of which `sm_80` keeps {glue:text}`computes_bits_80` fraction bits below the largest term and `sm_90` {glue:text}`computes_bits_90`.
# In the prefill {glue:text}`computes_prefill_differ` % of the outputs differ, {glue:text}`computes_ulps` % of these by one unit in the last place. The tables have the outputs that differ between any two architectures, in percent: first of the decode, then of the prefill.

# %%
digits = dict.fromkeys(ran["decode"], "{:.2f}")
plots.table(pd.DataFrame(five.differing(ran["decode"])), "pairs-d", digits)

# %%
plots.table(pd.DataFrame(five.differing(ran["prefill"])), "pairs-p", digits)

# %% [markdown]
# Are the outputs of one way better than those of the other? Both are held against the same attention in float64.

# %% mystnb={"figure": {"caption": "Both ways to compute err alike, in every head and request: P in 16 bits and the 16-bit output hide what the sums lose. Prefill in fp16.", "name": "core-errors"}, "image": {"alt": "Boxes of the absolute error for each of eight heads above, and for each of three requests below, one for sm_80 and one for sm_90. The two boxes of each pair look the same.", "width": "100%"}} tags=["hide-input"]
exact = elements.outputs("prefill", prefill, {})["exact"]
ways = {name: ran["prefill"][name] - exact for name in ("sm_80", "sm_90")}
plots.error_spread(elements.rows(ways, prefill.q_lens), origin="computed on this machine")
bench.log.drew("errors", "prefill")
plt.show()

# %% [markdown] tags=["evidence"]
# The same shapes with tensor cores off and on, in CUDA and in Triton, whose interpreter lets NumPy multiply, so that its bits are those of no tensor core:

# %% tags=["nbval-ignore-output", "evidence"]
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind"]
plots.table(bench.run()[columns], "ran", {"time_ms": "{:.3g}"})

# %% mystnb={"figure": {"caption": "What this arithmetic is for: the least time of a prefill of 4 x 4096 tokens on five GPUs, with tensor cores and without, at the vendor's peaks. No time is measured.", "name": "core-timing"}, "image": {"alt": "Two marks for each of five GPUs on a logarithmic axis of milliseconds: the one with tensor cores stands far to the left of the one without.", "width": "100%"}} tags=["hide-input"]
large = Prefill((4096,) * 4, (4096,) * 4, 16, 16, 128)
plots.least_times(pd.DataFrame(five.least_times(large)), origin="computed from the vendor's peaks")
bench.log.drew("timing", "prefill")
plt.show()

# %% tags=["nbval-ignore-output", "evidence"]
bench.log + own.log

# %% [markdown]
# ### The question again
#
# The inputs of Li et al. were not in the copies of their test suite that we could read, so their answers are not recomputed here.
# The models can answer a product of the same kind: many eighths between a large number and its negative.
# The answers of Li et al. are whole numbers of eighths too.

# %% tags=["hide-input"]
large, small = 2.0**11, np.full(14, 1 / 8)
left, right = np.array([large, *small, -large]), np.array([large, *np.ones(14), large])
answers = {"exact": float(left @ right)}
for arch in ("sm_70", "sm_80", "sm_90"):
    product = tensor_core.matmul(left[None], right[:, None], arch=arch, fmt="fp16")
    answers[arch] = float(product[0, 0])
    grid = 2.0 ** (22 - tensor_core.unit_of(arch, "fp16").fraction_bits)
    print(f"{arch}: the grid beside 2^22 has steps of {grid}")
answers

# %% [markdown]
# Beside $2^{22}$ an eighth lies below the grids of `sm_70` and `sm_80`, and these answer 0, as the V100 and the A100 did. It lies on the grid of `sm_90`, which answers another number, as the H100 did.
#
# ### Seven beliefs, judged
#
# 1. *A tensor core multiplies in 16 bits and adds in fp32, like FMAs.* No: products are exact, and the terms of a sum are cut, not rounded. A loop of FMAs differs in {glue:text}`computes_fma_loop` % of the outputs of normal numbers, and the exact sum rounded once in {glue:text}`computes_once` %.
# 2. *A tensor core rounds to nearest, so that errors cancel.* No: it cuts toward zero. A sum of 8192 products of one sign is {glue:text}`computes_bias_90` parts in 100,000 too small on `sm_90`, and {glue:text}`computes_bias_70` on `sm_70`. Only fp16 results are rounded to nearest.
# 3. *The order of the products matters.* Not within a chunk, because {eq}`tensor-core-step` has no order. Across chunks it does, as the column of descending channels shows.
# 4. *Accumulation in fp32 means the same bits everywhere.* No: $F$ is 23, 24 or 25 for 16-bit inputs, and the chunk 4, 8 or 16.
# 5. *With 8-bit inputs the sum is fp32.* The sum of `wgmma` has 13 fraction bits; `mma.sync` of the same chip multiplies in fp16 and adds in fp32.
# 6. *`mma.sync`, `wgmma` and `tl.dot` differ.* Not for 16-bit inputs on an H200, in none of the {glue:text}`computes_dots` million scores tried. For 8 bits `mma.sync` and `wgmma` do.
# 7. *The exponential cannot be modelled.* It can: {glue:text}`computes_bytes` bytes give all $2^{32}$ results, none of them more than {glue:text}`computes_ulp` ulp from $2^x$ at the argument that the unit sees.
#
# ## What would change the answer
#
# - **Other inputs.** With 8-bit inputs `sm_89`, `sm_90` and `sm_100` compute in three ways, not two.
# - **Another tile or another number of splits** changes the order of the sums too. A library that picks tiles by GPU may differ for this reason first.
# - **A GPU that contradicts a record.** The lab tried one H200. {cite:t}`khattak2025` have published what eight GPUs answered, from a V100 to a B200, and no output of the models of `sm_70`, `sm_80`, `sm_89`, `sm_90` and of `mma.sync` on `sm_100` differs. The models of `sm_75`, of `sm_120` and of 8 bits by `tcgen05` are those of {cite:t}`xie2025` alone.
# - **AMD's GPUs** are not modelled here. In {cite:t}`li2024` an MI100 answered 255.875 and an MI250X 0, and the lab cannot say why.
#
# The lab has no model of what its kernels do not use: 4-bit and 6-bit inputs, e4m3 times e5m2 by `mma.sync` on `sm_90` and `sm_100`, `rcp.approx` and `lg2.approx`.
# Whether other generations have the same parabolas for $2^x$ is not known here.
# Two rules came from outputs that did not fit at first: a {term}`subnormal` fp16 accumulator lifts the grid to fp16's lowest exponent, and a {term}`tf32` NaN whose bits all lie below the ten that are read is an infinity.
#
# ## Exercises
#
# ```{exercise}
# :label: tensor-core-unknown
#
# Three generations hide in three boxes, in some order.
# Find the number of fraction bits of each with products that are powers of two, and nothing else: `unknown(box, a, b, c)` is a product by box 0, 1 or 2.
# Check your answer with `exercises.check("tensor-core-unknown", (of_box_0, of_box_1, of_box_2))`.
# ```

# %% tags=["hide-input"]
BOXES = ("sm_80", "sm_90", "sm_70")


def unknown(box, a, b, c):
    """A product on the generation of a box."""
    return tensor_core.matmul(a, b, c, arch=BOXES[box], fmt="fp16")


# %% [markdown]
# ```{solution-start} tensor-core-unknown
# :class: dropdown
# ```
#
# Put $2^{24}$ in $c$, whose grid is $2^{24 - F}$, and add four products of $2^{-j}$: they survive as long as each is at least one step of it.


# %%
def survives(box, j):
    """Whether four products of 2^-j change a sum of 2^24."""
    left, right, c = np.ones((1, 4)), np.full((4, 1), 2.0**-j), np.float32([[2.0**24]])
    return unknown(box, left, right, c)[0, 0] > 2.0**24


bits = [24 + max(j for j in range(-2, 4) if survives(box, j)) for box in range(3)]
assert exercises.check("tensor-core-unknown", bits)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: tensor-core-eight-bits
#
# A row of ones times a column of ones in e4m3, chained by `wgmma`: at which number does the sum stop growing?
# Predict it from $F = 13$ and the chunk of 32, then let the model try.
# Check your answer with `exercises.check("tensor-core-eight-bits", number)`.
# ```
#
# ```{solution-start} tensor-core-eight-bits
# :class: dropdown
# ```
#
# A 1 is cut to nothing once the grid's step, $2^{e - 13}$, is above it: at $e = 14$.
# All 32 ones of a step vanish together, since each is cut by itself.

# %%
stop = 2 ** (13 + 1)
ones = np.ones((1, 2 * stop))
assert tensor_core.matmul(ones, ones.T, arch="sm_90", fmt="e4m3")[0, 0] == stop
assert exercises.check("tensor-core-eight-bits", stop)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: tensor-core-parabolas
#
# Forget the 64 rows of integers and find them again in `mantissas`, the unit's results.
# Check your answer with `exercises.check("tensor-core-parabolas", bias)`: the bias of the unit that you found.
# ```
#
# ```{solution-start} tensor-core-parabolas
# :class: dropdown
# ```
#
# The last places of $c_1$ and $c_2$ are coarse: a change of one moves the end of a segment by 4 ulps or by 1.
# A least-squares fit over $2^{17}$ results knows both to a hundredth, so that rounding gives the integers.
# The bias is then the only number that gives every result.

# %%
again = ex2_unit.fit(mantissas)
assert np.array_equal(again.c1, unit.c1)
assert exercises.check("tensor-core-parabolas", again.bias)

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The small product and its answers are from {cite:t}`li2024`.
# The step of {eq}`tensor-core-step` and the constants of generations that the lab has not tried are from {cite:t}`fasi2021`, {cite:t}`xie2025` and {cite:t}`khattak2025`; {cite:t}`ptx` leaves them open.
# Fp8 kernels that promote their sums are from {cite:t}`shah2024`.
# The form of the interpolator is from {cite:t}`oberman2005`; its coefficients were found here.
