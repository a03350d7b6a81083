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
# # Where the error comes from
#
# ## Question
#
# A test of attention with a tolerance of 0.001 fails in bf16 {cite:p}`flashinfer882`; a maintainer pointed to a study of flash attention in bf16 {cite:p}`golden2024`.
# **Which step of the kernel makes the difference, and what would it cost to remove it?**
#
# :::{admonition} Answer
# :class: important
#
# Two of seven steps make nearly all of the error: tensor cores take the weights $P$, and the store takes the output, in 16 bits. In the test, whose keys are 0, only the store errs: near 0.25 bf16 numbers lie {glue:text}`ulp` apart.
# $P$ in two parts removes most of its error, for at most {glue:text}`cost` % of a decode's time.
# How sure: on one H200 (CUDA {glue:text}`cuda`) random heads of 32 rows or more err within {glue:text}`spread_within` % of the prediction; a model's sink errs less.
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

# %% tags=["hide-input"]
from labkernels import Bench, Decode, Prefill, ops, plots
from labkernels.chapters import exercises, live
from labkernels.kernels.operation import operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure import error_budget, real_inputs
from labkernels.numerics import metrics, rounding
from labkernels.numerics.arrays import as_float64
from labkernels.numerics.emulation.decode import SOURCES, emulate
from labkernels.numerics.emulation.exp2 import exp2_mufu, exp2_poly3
from labkernels.plots.accuracy.by_place import by_place
from labkernels.policy import NumericPolicy
from labkernels.records import recorded, store

# %% tags=["hide-input"]
WORKLOAD = dict(kv_lens=(2048, 512, 128, 32), q_heads=8, kv_heads=2, head_dim=128, page_size=16)
WAY = {"kernel": "decode_mma", "keys_per_split": 2048}
HERE = "computed on this machine"
POLICIES = {"16 bits": NumericPolicy(), "fp32": NumericPolicy(out="fp32")}


def decode_inputs(dtype, mean):
    """Queries and a cache, in the same bits on every machine."""
    case = operations()["decode"].inputs(Decode(**WORKLOAD, dtype=dtype), ExactNormal(0))
    case.cache.v.add_(mean)
    return case.q, case.cache


# %% tags=["hide-input"]
inputs = {(t, mean): decode_inputs(t, mean) for t in ("fp16", "bf16") for mean in (0, 1)}
one = error_budget.measured_budget(*inputs["bf16", 0], POLICIES["16 bits"], **WAY)
by_head, by_sample = (pd.DataFrame(one.rows(by=by)) for by in ("head", "sample"))

# %% mystnb={"figure": {"caption": "The sources add up to the error of the kernel, and each is as large as predicted, from the largest to the smallest. Output in bf16, V of mean 0; measured: each source alone, and in the last row the kernel. No bias is larger than its noise.", "name": "budget-waterfall"}, "image": {"alt": "Left, a waterfall: P to 16 bits and the output take half of the variance each, the others nothing that can be seen; measured bars lie under the predicted ones. Right, the shares on a logarithmic axis: measured dots on predicted ticks, from the whole down to less than a billionth.", "width": "100%"}} tags=["hide-input"]
plots.error_waterfall(by_head, origin=HERE)
plt.show()

# %% [markdown]
# ## Prediction
#
# ### Seven places
#
# A decode kernel on tensor cores computes $s_j$, $P_j = 2^{s_j - m}$, $l = \sum P_j$ and $\sum P_j v_j$, merges the sums of its warps and splits, divides, and stores.
# The kernel departs from exact arithmetic at seven places.
#
# | source | what happens there |
# |---|---|
# | scores | tensor cores add up $q \cdot k_j$ |
# | exp2 | scale and argument are rounded to fp32, and the special-function unit has errors of its own |
# | p | $P_j$ is rounded to the input's 16 bits for the second product |
# | denominator | $l$ is added up in fp32 |
# | accumulation | tensor cores add up $P_j v_j$, and $o$ is rescaled when the maximum moves |
# | merge | the sums of warps and splits are joined in fp32 |
# | store | the quotient is rounded to fp32, and then to the output's format |
#
# ### How an error reaches the output
#
# Let $p_j = P_j / l$, so that $o = \sum p_j v_j$.
# A relative error $\varepsilon_j$ of the weight $P_j$, made before $l$ is summed up, changes numerator and denominator. An error $\delta_j$ of the rounding to 16 bits, made after the sum, changes the numerator alone.
# To first order
#
# $$
# \begin{aligned}
# \hat o - o =\;& \sum_j p_j \, \varepsilon_j \, (v_j - o) \\
# &+ \sum_j p_j \, \delta_j \, (v_j - x) + r,
# \end{aligned}
# $$ (error-decomposition)
#
# where $r$ is what the sums, the merge and the store add. If $l$ sums the unrounded $P_j$, as in FlashAttention {cite:p}`dao2024`, then $x = 0$. If $l$ sums the rounded ones, as in FlashInfer's fa2 kernels {cite:p}`ye2025`, then $x = o$, because $\delta_j$ changes the denominator as well.
# If the values have no common mean, then $o \approx 0$, and the two conventions hardly differ.
#
# ### Random errors, and one that is not
#
# Rounding to nearest goes up as often as down.
# Its errors are independent and uniform in one ulp, so their variances add {cite:p}`higham2019`:
#
# $$
# \begin{aligned}
# \sigma^2 &= \sum_{\text{sources}} \sigma_{\text{source}}^2, \\
# \sigma_{p}^2 &= \frac{1}{l^2} \sum_j \frac{\mathrm{ulp}(P_j)^2}{12} \, (v_j - x)^2 .
# \end{aligned}
# $$ (error-variances)
#
# Tensor cores do not round to nearest.
# They align the products of a step and the old sum to the largest of them, and cut each off toward zero: {doc}`what_a_tensor_core_computes` has the rules.
# On average a term loses half of what it can lose, always toward zero.
# If all $v_j$ have one sign, nothing cancels, and after $n$ steps the sum is too small by about
#
# $$
# b \;\approx\; - n \cdot \tfrac{1}{2} \, c \; 2^{-23} \, |o|,
# $$ (truncation-bias)
#
# where $c$ is about 1 for fp16 and half of that for bf16, whose products have fewer bits to lose; `numerics.error.truncation_bias` computes it step by step.
# This is a bias. It grows with the number of steps in a chain, and averaging does not remove it.
#
# ### The shares
#
# `measure.error_budget` evaluates {eq}`error-variances` and {eq}`truncation-bias` on given tensors, source by source, before any kernel runs.
# Our inputs are four requests of 2048 to 32 keys, 8 query heads on 2 KV heads, once with values of mean 0 and once of mean 1.
# The table has each source's share of the square error of the longest request, in percent.
# The table also has an output in fp32, which no model asks for: the store to 16 bits would hide all other sources.

# %% tags=["hide-input"]
budgets, shares = {}, {}
for (dtype, mean), (q, cache) in inputs.items():
    inside = error_budget.error_budget(q, cache, POLICIES["fp32"], **WAY)
    kinds = {"16 bits": inside.stored(dtype), "fp32": inside}
    for out, budget in kinds.items():
        budgets[dtype, mean, out] = budget
        longest = pd.DataFrame(budget.table(by="sample")[0]).set_index("source")
        shares[dtype, mean, out] = 100 * longest.share
keys = ["dtype", "mean of V", "output"]
shares = pd.DataFrame(shares).T.rename_axis(keys).sort_index(level="output", sort_remaining=False)
plots.table(shares.reset_index(), "shares", dict.fromkeys(shares.columns, "{:.2f}"))

# %% [markdown]
# So the prediction is:
#
# - With a 16-bit output, **P and the store are everything**, and with values of one sign the store alone, since it grows with $|o|$.
# - In fp32, **P is nearly all that is left**.
#   The exponential, which every fast kernel takes from an approximate unit, has no share to speak of.
# - The one rival of P is **the accumulation, in fp16 with values of one sign**: there P is rounded finely enough to let the truncation come into sight.
#   Truncation grows with the number of keys, and the case that was recorded on an H200, 57 requests of 8192 keys, has four times as many.

# %% [markdown]
# ### What more digits would take
#
# A switch of the numeric policy costs registers before it costs time.
# These are the formulas of `decode_mma` with the default policy, for the recorded case:

# %% tags=["hide-output"]
decode = Decode.uniform(57, 8192, q_heads=32, kv_heads=8)
prefill = Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True)
kernels = ["decode_fma", "decode_mma", "triton_decode"]
kernels += ["prefill_fma", "prefill_mma", "triton_prefill"]
bench = Bench(decode, prefill, kernels=kernels, gpu="h200")
bench.equations("decode_mma")

# %% [markdown]
# With `p=input_x2` the term of the rounded $P$ doubles, and `accumulate=promoted` adds a fragment for the sum of 16 keys.
# As {numref}`sources-budget` shows, the decode has registers left for both, and `prefill_mma` has none.

# %% mystnb={"figure": {"caption": "Room for more exact arithmetic: decode_mma is compiled for fewer than the 255 registers that a thread may have, so that more blocks fit an SM; prefill_mma uses all of them. H200, default policy.", "name": "sources-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each of four kernels: registers per thread above, with a line at 255, and shared memory per block below. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "One block more of decode_mma would need far fewer registers than a thread has, and a policy with more of them costs no block while a thread stays below what decode_mma is compiled for. H200, default policy.", "name": "sources-occupancy"}, "image": {"alt": "A bar of blocks for each of four kernels in the colour of what limits them, with the words of what one block more would take.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200")
plt.show()

# %% [markdown]
# ## Code
#
# The two large internal terms are made in one function: $O \mathrel{+}= P V$ of `decode_mma`.
#
# ```{literalinclude} /labkernels/kernels/decode/mma/kernel.cuh
# :language: cpp
# :start-after: "[lab: accumulate]"
# :end-before: "[/lab: accumulate]"
# ```
#
# Three switches of the {term}`numeric policy` act here. All are known at compile time, so the default kernel holds none of their instructions.
# With `p=input_x2`, $P$ has two parts: $P$ rounded, and what the rounding left, rounded again. Each fragment of $V$ then takes two `mma`.
# With `accumulate=promoted` the tensor cores sum up 16 keys from zero, and an fp32 addition, which rounds to nearest, joins them to $O$:
#
# ```{literalinclude} /labkernels/cuda/include/lab/core/policy.cuh
# :language: cpp
# :start-at: "// Adds the tensor cores' sum"
# :end-before: "}  // namespace lab"
# ```
#
# With `denominator=rounded`, $l$ sums the rounded $P$, which the second product takes.
#
# ## Measurement
#
# ### The budget holds, head by head and sample by sample
#
# We run the kernel, subtract the predicted bias from each element's error, and divide by the predicted $\sigma$.
# If the budget is right, the result has the standard deviation 1, in every head and in every sample.
# On a trained model's inputs it need not be: roundings are random only if exact numbers fall anywhere between two numbers of the format. So heads of SmolLM2 ({doc}`does_it_matter`) stand beside random inputs: decodes after 193 to 256 tokens, of which 16 are a sample. Heads 0 to 2 are *peaky*, 3 to 5 have an *outlier channel*, 6 to 8 see the *first key*, 9 to 11 have *large values*.

# %% mystnb={"figure": {"caption": "The budget holds, random or real, but for one case: where the first key has nearly all weight (SmolLM2's heads 7 and 8), outputs in 16 bits err less than predicted. Spread of error about its bias over σ, of 16 requests and a head; bf16.", "name": "budget-real"}, "image": {"alt": "Two panels, over query heads and over samples, each with random inputs on the left and SmolLM2 on the right. Nearly all dots lie within a tenth of 1, those of SmolLM2 with an output in fp32 within a quarter; the dots of heads 7 and 8 with an output in 16 bits fall to 0.75 and to 0.1.", "width": "100%"}} tags=["hide-input"]
REAL = ("peaky", "outlier channel", "first key", "large values")
real = real_inputs.decode_of(range(193, 257), REAL)
drawn = {"random": operations()["decode"].inputs(real.workload, ExactNormal(0)), "SmolLM2": real}
cells = []
for name, given in drawn.items():
    inside = error_budget.error_budget(*given.arguments, POLICIES["fp32"], **WAY)
    for kind, budget in {"16 bits": inside.stored("bf16"), "fp32": inside}.items():
        z = budget.z(live.output("decode", given, policy=POLICIES[kind], **WAY))
        # cells are errors relative to an output: z against an output of 1 is its own size
        found = live.cells("decode", {f"output in {kind}": 1 + z}, 0 * z + 1, (16,) * 4)
        cells.append(found.assign(inputs=name))
of_places = pd.concat(cells).rename(columns={"way": "kind"})
by_place(of_places, label="spread of error / σ", origin=HERE, log=False, sample="sample")
plt.show()

# %% [markdown]
# So the prediction fails in a sink: heads 7 and 8 have spreads of {glue:text}`sink_7` and {glue:text}`sink_8`. Their output is nearly the value of the first key, which is a number of bf16 already, so that the store has little to round. To round the exact output and do nothing else gives {glue:text}`stored_7` and {glue:text}`stored_8`. There the budget is an upper estimate. With an output in fp32 it holds in each of the twelve heads, the outlier channel's and the sink's too, within {glue:text}`real_within` %.

# %% [markdown] tags=["evidence"]
# The four requests above, in both formats; a head has four rows here, which share the errors of their weights, so that deviations of some 10 % are expected, and twice as much in fp32 with values of mean 1:

# %% tags=["evidence"]
errors, spread = {}, []
for key, budget in budgets.items():
    q, cache = inputs[key[:2]]
    out = as_float64(ops.decode(q, cache, policy=POLICIES[key[2]], **WAY).out)
    errors[key] = out - budget.o
    z = budget.z(out)
    heads, samples = metrics.rms(z, by="head"), metrics.rms(z, by="sample")
    spread.append((*key, heads.min(), heads.max(), samples.min(), samples.max()))
columns = [*keys, "head: least", "head: most", "sample: least", "sample: most"]
plots.table(pd.DataFrame(spread, columns=columns), "spread", dict.fromkeys(columns[3:], "{:.2f}"))

# %% [markdown]
# ### One source at a time
#
# `numerics.emulation.decode` is the same kernel in NumPy, in which every source can be left out; with all of them on it gives the kernel's very bits, as a test holds.
# So each line of the budget can be put to an experiment of its own: leave all sources out but one.
# {numref}`budget-waterfall` does it for bf16 with an output in 16 bits.
# The spread was also measured on the H200, with 32 rows or more for most heads, and on other inputs: peaked softmaxes, attention sinks, outliers.

# %% mystnb={"figure": {"caption": "On the H200 the spread of every head of 32 rows or more is within {glue:text}`spread_within` % of 1; the few points far outside are heads of 8 rows, which chance alone takes that far. Biases that exceed their noise are as large as predicted.", "name": "budget-calibration"}, "image": {"alt": "Two panels. Above, one point per query head and policy for five families of inputs, and their distributions: standard deviations of error over sigma, nearly all of them between 0.85 and 1.15. Below, measured bias against predicted bias on logarithmic axes, with the points along the diagonal.", "width": "100%"}} tags=["hide-input"]
trial = pd.DataFrame(store.read("error_calibration"), dtype=object)
trial = trial.infer_objects().query("samples > 2")  # two rows per head say little
first = trial.iloc[0]
when = f"{first.started_utc[:10]}, commit {first.commit}"
plots.calibration(trial, origin=f"measured on {first.device}, {when}")
plt.show()

# %% [markdown] tags=["evidence"]
# Each kernel's least and largest spread on the H200, over the heads with most rows:

# %% tags=["evidence"]
whole = trial[(trial.source == "total") & (trial.other_policy == "") & (trial.samples > 8)]
spread = np.sqrt(whole.measured_share.astype(float)).groupby(whole.kernel)
spread = spread.agg(["size", "min", "max"]).reset_index()
spread.columns = ["kernel", "heads", "least spread", "largest spread"]
plots.table(spread, "spreads", dict.fromkeys(spread.columns[2:], "{:.3f}"))

# %% [markdown]
# ### What better arithmetic costs
#
# The recorded case is that of {doc}`tensor_cores_on_and_off`: 57 requests of 8192 keys, 32 query heads on 8 KV heads.
# Each row of the figure is a policy, and its name says in what it differs from the default.
# Times are of a step with its usual 16-bit output, and errors of the same policy before the store.

# %% tags=["hide-input"]
rows = store.newest(store.read("numeric_policies"))
costs = plots.policy_costs(pd.DataFrame(rows), baseline="decode_mma")
of_case = costs[costs.kv_len == 8192]

# %% mystnb={"figure": {"caption": "P in two parts takes away the error of P, and promoted sums take away the bias that then remains; on tensor cores neither costs more than {glue:text}`cost` % of the time. bf16, 57 requests of 8192 keys; open markers: V of mean 0, full ones: of mean 1.", "name": "policy-costs"}, "image": {"alt": "Three panels below each other, with a row for each numeric policy. Above: times between 1.00 and 1.03 of the default's. Middle: rmse on a logarithmic axis; five policies, the default among them, stand at some 3e-5; the two with P in two parts and the one on CUDA cores lie about one to four decades lower. Below: the size of the bias; it falls below 1e-7 where P is in two parts and sums are promoted, and on CUDA cores.", "width": "100%"}} tags=["hide-input"]
plots.policies(of_case[of_case.dtype == "bf16"], origin=recorded.origin(rows))
bench.log.drew("timing", "decode")
plt.show()

# %% [markdown]
# We had expected promoted sums to divide the bias by ten, but in bf16 they hardly change it, unless P is in two parts. So truncation does not make the bias that is left.
# Rounding P makes it.
#
# Rounding to nearest is unbiased as long as the spacing of the format is the same above and below.
# At a power of two the spacings differ. All numbers up to half a wide spacing above the power are rounded to it, but only those up to half a narrow spacing below.
# For numbers spread smoothly over many {term}`binades <binade>`, as softmax weights are, the sum of the rounded ones is too small by the share
#
# $$
# \beta_P \;=\; \frac{u^2}{8 \ln 2}
# $$ (rounding-bias)
#
# where $u$ is the {term}`unit roundoff`.
# In the default policy $l$ sums the unrounded $P$, and the output shrinks by $\beta_P$. With `denominator=rounded` both sums shrink, and their quotient does not.

# %% tags=["hide-input"]
grid = ["dtype", "words", "v", "kernel"]
bias = of_case.set_index(grid).bias.xs(("V ~ N(1, 1)", "decode_mma"), level=("v", "kernel"))
bias = bias.unstack("words")[["default", "promoted sums", "l of rounded P"]]
rmse = of_case.set_index(grid).rmse.xs(("V ~ N(1, 1)", "decode_mma"), level=("v", "kernel"))
# a row's outputs share the errors of its weights, so that only the 57 x 32 rows err independently
bias["noise"] = rmse.unstack("words")["default"] / np.sqrt(2 * 57 * 32)
bias["of rounding P"] = [rounding.mean_relative_error(dtype) for dtype in bias.index]
plots.table(bias.reset_index(), "biases", dict.fromkeys(bias.columns, "{:+.1e}"))

# %% [markdown]
# *Noise* is how far the mean over all rows may stray, as the weights' roundings are random in each row.
# With promoted sums the default's bias is that of rounding P, within this noise.
# In fp16 $\beta_P$ is 64 times smaller, so truncation makes the bias there, and promotion divides it.
#
# ### Did promotion fail in bf16?
#
# To see the sums alone, the kernel runs twice in NumPy, on the request of 2048 keys with values of mean 1: with the sources before the sums, and with the sums too.
# $P$ is the same in both runs, bit for bit, so its rounding drops out.


# %% tags=["hide-input"]
def bias_of_sums(dtype, accumulate):
    """What the sums alone add to the bias, in the mean over the heads, and its noise."""
    policy = NumericPolicy(accumulate=accumulate, out="fp32")
    found = error_budget.setting(*inputs[dtype, 1], policy, **WAY)
    before, after = (
        emulate(found.problem, found.policy, found.order, sources=sources)[0]
        for sources in (("exp2", "p"), ("exp2", "p", "accumulation"))
    )
    of_heads = ((after - before) * np.sign(before)).mean(axis=-1)
    return of_heads.mean(), of_heads.std(ddof=1) / np.sqrt(len(of_heads))


# %% tags=["hide-input"]
alone = []
for dtype in ("fp16", "bf16"):
    (plain, _), (promoted, noise) = (bias_of_sums(dtype, k) for k in ("tensor_core", "promoted"))
    at_least = abs(plain) / (abs(promoted) + 2 * noise)
    alone.append((dtype, plain, promoted, noise, at_least))
columns = ["dtype", "tensor cores", "promoted", "noise of promoted", "divided by at least"]
digits = dict.fromkeys(columns[1:4], "{:+.1e}") | {columns[4]: "{:.0f}"}
alone = pd.DataFrame(alone, columns=columns)
plots.table(alone, "sums-alone", digits)

# %% [markdown]
# No: the sums lose nearly all of their bias, in bf16 too.
# In bf16 their bias was the smaller part of the kernel's, and no accumulator can undo what rounding $P$ did.

# %% [markdown]
# ### Decode and prefill, each source gone once
#
# Both operations run here with $P$ in 16 bits, and on CUDA cores with $P$ in fp32. The decode also runs with $P$ in two parts, which no prefill kernel offers. Outputs are in fp32, so that the store hides nothing.

# %% tags=["hide-input"]
small = {"decode": Decode((1024, 256, 64), 8, 2, 128)}
small["prefill"] = Prefill((64, 48, 33), (512, 256, 33), 8, 2, 128, causal=True)
kinds = {"P in 16 bits": ("mma", {})}
kinds |= {"P in two parts": ("mma", {"p": "input_x2"})}
kinds |= {"tensor cores off": ("fma", {"p": "fp32", "accumulate": "fma"})}


def each_gone(operation, inputs):
    """The outputs, in fp32, with each kind of P that the operation has."""
    found = {}
    for kind, (engine, switches) in kinds.items():
        if (operation, kind) != ("prefill", "P in two parts"):  # which no prefill kernel offers
            policy = NumericPolicy(**switches, out="fp32")
            found[kind] = live.output(operation, inputs, f"{operation}_{engine}", policy=policy)
    return found


# %% mystnb={"figure": {"caption": "Rounding P makes nearly all of the error in every head and request of random inputs, and of a model less, the more weight a single key has: in SmolLM2's head 8, nothing. fp32 outputs of bf16 inputs.", "name": "sources-errors"}, "image": {"alt": "Four panels on logarithmic axes, decode above and prefill below, over query heads on the left and requests on the right, each for random inputs and for SmolLM2. Dots of P in 16 bits lie near 0.001, three decades above P in two parts and nearly four above tensor cores off; on SmolLM2 they fall from head to head and meet the others at head 8.", "width": "100%"}} tags=["hide-input"]
real = real_inputs.of_both(("peaky", "outlier channel", "first key"))
of_random = {name: operations()[name].inputs(work, ExactNormal(0)) for name, work in small.items()}
cells = live.beside({"random": of_random, "SmolLM2": real}, each_gone)
by_place(cells, label="relative L2 error", origin=HERE)
bench.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# The key with the largest score has $P = 1$, which 16 bits hold. Where this key has nearly all weight, no rounded $P$ is left that matters. {numref}`budget-groups` has the shares of each head and sample of the random inputs.

# %% mystnb={"figure": {"caption": "Every head and every sample has the same two sources, in nearly the same shares. None stands apart, as a head with a bug would.", "name": "budget-groups"}, "image": {"alt": "Stacked bars, two for each of 8 query heads and below for each of 4 samples, predicted beside measured. Each stack is about half P to 16 bits and half the output; the predicted ones end at 1, the measured ones between 0.95 and 1.15.", "width": "100%"}} tags=["hide-input"]
plots.budget_by_group(by_head, by_sample, origin=HERE)
plt.show()

# %% [markdown] tags=["evidence"]
# The default policy on small shapes, in CUDA and in Triton:

# %% tags=["nbval-ignore-output", "evidence"]
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(bench.run()[columns], "ran", {"time_ms": "{:.3g}"})

# %% tags=["nbval-ignore-output", "evidence"]
bench.log

# %% tags=["evidence"]
point = of_case.set_index(grid)
mma = {
    (t, w, v): point.loc[t, w, v, "decode_mma"] for t, w, v, k in point.index if k == "decode_mma"
}
ZERO, ONE = "V ~ N(0, 1)", "V ~ N(1, 1)"
both = "P = hi + lo, promoted sums"
by_length = metrics.rms(errors["bf16", 0, "fp32"], by="sample")
truncated = mma["fp16", "P = hi + lo", ONE]
numbers = {
    "length": f"{by_length[3] / by_length[0]:.1f}",
    "exp2_share": f"{shares.exp2.max():.5f}",
}


# %% tags=["evidence"]
def gain(dtype, words, v, statistic="rmse"):
    """The default's error over that of a policy, on decode_mma."""
    return abs(mma[dtype, "default", v][statistic] / mma[dtype, words, v][statistic])


slowest = of_case[(of_case.tensor_cores == "on") & ~of_case.words.str.contains("exp2")]
x = np.linspace(0, 1, 4096, endpoint=False, dtype=np.float32)
by_unit, by_poly3 = (
    np.abs(f(x) - np.exp2(x.astype(np.float64))).max() for f in (exp2_mufu, exp2_poly3)
)

# %% tags=["evidence"]
numbers |= {
    "poly3_worse": f"{by_poly3 / by_unit:.0f}",
    "poly3": f"{1 / gain('bf16', 'exp2 of degree 3', ZERO):.3f}",
    "bias_share": f"{100 * (truncated.bias / truncated.rmse) ** 2:.1f}",
    "fp16_bias": f"{gain('fp16', 'promoted sums', ONE, 'bias'):.0f}",
    "dtype_zero": f"{mma['bf16', 'default', ZERO].rmse / mma['fp16', 'default', ZERO].rmse:.1f}",
    "dtype_one": f"{mma['bf16', 'P = hi + lo', ONE].rmse / truncated.rmse:.2f}",
    "hi_lo": f"{gain('bf16', 'P = hi + lo', ZERO):.0f}",
    "both": f"{gain('bf16', both, ONE):.0f}",
}

# %% tags=["evidence"]
squares = of_places.assign(value=of_places.value**2).groupby(["kind", "inputs", "head"]).value
of_heads = (squares.mean() ** 0.5).unstack(["kind", "inputs"])
stored = inside.stored("bf16").z(rounding.round_to(inside.o, "bf16"))
for head in (7, 8):
    numbers[f"sink_{head}"] = f"{of_heads['output in 16 bits', 'SmolLM2'][head]:.2f}"
    numbers[f"stored_{head}"] = f"{metrics.rms(stored, by='head')[head]:.2f}"
off = 100 * (of_heads["output in fp32", "SmolLM2"] - 1).abs().max()
numbers["real_within"] = f"{off:.0f}"

# %% tags=["evidence"]
numbers |= {
    "bf16_bias": f"{gain('bf16', 'promoted sums', ONE, 'bias'):.2f}",
    "bf16_sums_bias": f"{alone.set_index('dtype')['divided by at least']['bf16']:.0f}",
    "bf16_hi_lo_bias": f"{mma['bf16', 'P = hi + lo', ONE].bias / mma['bf16', both, ONE].bias:.0f}",
}

# %% tags=["evidence"]
numbers |= {
    "ulp": f"{rounding.quantum(0.25, 'bf16'):.4f}",
    "rounded": f"{gain('bf16', 'l of rounded P', ONE):.2f}",
    "rounded_zero": f"{gain('bf16', 'l of rounded P', ZERO):.2f}",
    "cost": f"{100 * (slowest.time_ratio.max() - 1):.1f}",
    "cuda": rows[0]["cuda"],
    "spread_within": f"{100 * (spread.iloc[:, 2:] - 1).abs().max(axis=None):.0f}",
}
for name, text in numbers.items():
    glue(name, text, display=False)

# %% [markdown]
# ### Five lessons, in numbers
#
# 1. **Errors do not accumulate over the keys, they average out.**
#    The root-mean-square error (rmse) of the request of 32 keys is {glue:text}`length` times that of the request of 2048: the weights' roundings are independent, and more of them average out.
#    What does accumulate is the bias of the tensor cores, which the 16-bit store hides.
# 2. **The exponential is the last thing to improve.**
#    Its share of the square error is at most {glue:text}`exp2_share` % in our cases.
#    A polynomial of degree 3, {glue:text}`poly3_worse` times as wrong as the hardware's unit at worst, multiplies the recorded rmse before the store by only {glue:text}`poly3`, in bf16.
# 3. **Tensor cores add up in fp32, but they cut.**
#    With values of one sign and P in two parts, {glue:text}`bias_share` % of the square error in fp16 is bias. Promoted sums divide the default's bias by {glue:text}`fp16_bias` in fp16, and by no more than {glue:text}`bf16_bias` in bf16, where the rest is {eq}`rounding-bias`.
#    In bf16 they divide the bias of the sums alone by {glue:text}`bf16_sums_bias` or more, and that of the kernel with P in two parts by {glue:text}`bf16_hi_lo_bias`, on the H200.
# 4. **bf16 errs eight times as much as fp16 where only roundings count.**
#    The factor is {glue:text}`dtype_zero` as long as P is rounded once.
#    With P in two parts and values of one sign truncation is left, and bf16 has {glue:text}`dtype_one` times the error of fp16, since its products have fewer bits to cut.
# 5. **Here more digits are nearly free.**
#    P in two parts (hi + lo) divides the rmse before the store by {glue:text}`hi_lo`, in bf16 with values of mean 0. With values of mean 1 it takes promoted sums as well, and both divide the rmse by {glue:text}`both`.
#    A denominator of rounded P divides the rmse by {glue:text}`rounded` with values of mean 1, and by {glue:text}`rounded_zero` with values of mean 0.
#    A decode step waits for memory, and none of these switches costs more than {glue:text}`cost` % of its time.
#
# ## What would change the answer
#
# - **Inputs of another kind.** With values of a common mean the store makes nearly all of the error of a 16-bit output, and truncation comes into sight in fp32. In the test in question all keys were 0, so every $P_j$ was 1, and exact.
# - **A prefill.** The cost above holds for a decode, which waits for memory; a prefill does not.
# - **8-bit inputs.** They are the question of {doc}`eight_bits`.
# - **Another denominator.** With a denominator of rounded $P$, as in FlashInfer's fa2 kernels, values of one sign err less.
#
# ## Exercises
#
# ```{exercise}
# :label: error-constant-values
#
# Let all values be 1, so that every output is exactly 1.
# Predict the error of both denominators in bf16, with an fp32 output, and try it.
# Check your answer with `exercises.check("error-constant-values", word)`: the denominator, "rounded" or "unrounded", with the smaller error.
# ```
#
# ```{solution-start} error-constant-values
# :class: dropdown
# ```
#
# With $x = o$ in {eq}`error-decomposition` every $v_j - x$ is 0: only fp32 roundings remain.
# With $x = 0$ the roundings of $P$ stay, all channels of a row have the same error, and the mean of many is that of {eq}`rounding-bias`.

# %%
q, cache = inputs["bf16", 1]
constant = cache.__class__(cache.k, cache.v * 0 + 1, cache.page_table, cache.kv_len)
rmse_of = {}
for denominator in ("unrounded", "rounded"):
    policy = NumericPolicy(denominator=denominator, out="fp32")
    out = as_float64(ops.decode(q, constant, policy=policy, **WAY).out)
    rmse_of[denominator] = metrics.rms(out - 1, by="all")
assert rmse_of["rounded"] < 1e-6 < 1e-4 < rmse_of["unrounded"]
assert exercises.check("error-constant-values", min(rmse_of, key=rmse_of.get))

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: error-splits
#
# Cut the request of 2048 keys into 8 splits.
# What happens to the bias of the tensor cores in fp16, values of mean 1?
# Check your answer with `exercises.check("error-splits", factor)`: the bias of one split over that of 8.
# ```
#
# ```{solution-start} error-splits
# :class: dropdown
# ```
#
# A split has a chain of its own.
# Chains of an eighth of the length leave about an eighth of the bias. The first step of a chain has no old sum to align with, so the bias is a little smaller than that.

# %%
q, cache = inputs["fp16", 1]
place = SOURCES.index("accumulation")
policy = NumericPolicy(p="input_x2", out="fp32")
bias = {}
for split in (2048, 256):
    way = WAY | {"keys_per_split": split}
    budget = error_budget.error_budget(q, cache, policy, **way)
    error = as_float64(ops.decode(q, cache, policy=policy, **way).out) - budget.o
    bias[split] = budget.biases[place][0].mean(), error[0].mean()
assert all(5 < whole / cut < 14 for whole, cut in zip(bias[2048], bias[256], strict=True))
assert exercises.check("error-splits", bias[2048][1] / bias[256][1])

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: error-cheapest
#
# The request of 2048 keys is to have an fp32 output with an rmse below 2e-7, in bf16, whatever the mean of the values.
# Which policies reach it, by prediction alone?
# Check your answer with `exercises.check("error-cheapest", (p, accumulate))`: the two switches of the policy.
# ```
#
# ```{solution-start} error-cheapest
# :class: dropdown
# ```
#
# P in two parts suffices for values of mean 0.
# With mean 1 the truncation comes into sight and needs promoted sums besides. Without P in two parts promoted sums gain nothing.

# %%
reached = {}
for p in ("input", "input_x2"):
    for accumulate in ("tensor_core", "promoted"):
        policy = NumericPolicy(p=p, accumulate=accumulate, out="fp32")
        for mean in (0, 1):
            budget = error_budget.error_budget(*inputs["bf16", mean], policy, **WAY)
            square = np.mean((budget.sigma**2 + budget.bias**2)[0])
            reached[p, accumulate, mean] = np.sqrt(square) < 2e-7
enough = {key[:2] for key in reached if reached[*key[:2], 0] and reached[*key[:2], 1]}
(cheapest,) = enough
assert exercises.check("error-cheapest", cheapest)

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case and its answer are from {cite:t}`flashinfer882`, the study that it names is {cite:t}`golden2024`.
# That the test allowed 0.001 and that its keys were 0 was read in FlashInfer's history, in `tests/test_deepseek_mla.py` of that week.
# Which denominator FlashAttention and FlashInfer's fa2 kernels take was read in their sources {cite:p}`dao2024,ye2025`.
# Independent roundings and their variances are from {cite:t}`higham2019`, bounds for softmax from {cite:t}`blanchard2021`.
# How tensor cores align and cut was first probed by {cite:t}`fasi2021`.
# Equation {eq}`rounding-bias` was derived here, after the recorded run had shown that it was needed.
