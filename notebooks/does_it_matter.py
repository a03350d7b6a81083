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
# # Does it matter?
#
# ## Question
#
# **Every case ends with "rounding, harmless": to what, the next token, a text, a training?**
# {cite:t}`zhong2026` report that small numerical differences between the pass that writes a text and the pass that trains on it can by themselves let reinforcement learning collapse.
#
# :::{admonition} Answer
# :class: important
#
# In a small model attention's rounding changes {glue:text}`flips` of 1,000 next bytes, whichever the kernel; bf16 in the rest of the model changes {glue:text}`flips_model`.
# Losses of nine ways to train differ by less than those of three seeds.
# But once a bit differs, rollout and training part by up to {glue:text}`largest_ratio` % in a byte's probability, whatever the kernel; with equal bits they agree exactly.
# How sure: one model of {glue:text}`weights` million weights, one H200; no larger one was run.
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

from labkernels import Bench, Decode, Prefill, plots
from labkernels.chapters import does_it_matter as chapter
from labkernels.chapters import exercises, live
from labkernels.experiments.training.model import Gpt, Size
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.random_inputs import Normal
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import bars, curves
from labkernels.records import recorded, store

# %% tags=["hide-input"]
origin = recorded.origin(store.read("effects"))
found = chapter.effects()
full = chapter.means(found, "logits")
KERNELS = ["tensor cores", "CUDA cores", "torch flash", "torch cuDNN", "torch efficient"]
shown = full.loc[[*KERNELS, "torch fp32", "torch fp32, model in bf16"]]
words = [f"{1000 * share:.1f} of 1,000" for share in shown["other next bytes"]]
names = [chapter.NAMES.get(way, way) for way in shown.index]
first = pd.DataFrame({"name": names, "value": shown["RMSE of logits"], "words": words})

# %% mystnb={"figure": {"caption": "What a kernel of attention does to the logits is a quarter of what bf16 does in the rest of the model, and all kernels do the same. Distance of logits from attention in fp32 on rounded Q, K and V, all else in fp32; behind each bar, how many most likely next bytes are others. Means over 16 held-out texts of 1,024 bytes.", "name": "effect-logits"}, "image": {"alt": "Seven horizontal bars. The five of attention kernels are alike, near 0.005; that of Q, K and V not rounded is a little longer; that of the rest of the model in bf16 is four times as long.", "width": "100%"}} tags=["hide-input"]
bars(first, label="RMSE of logits, nats", origin=origin)
plt.show()

# %% [markdown]
# ## Prediction
#
# The model is a GPT of six layers with rotary positions, six query heads and two KV heads of 64 channels. It reads bytes, and was trained on the sources of Python's standard library. Only its attention is replaced.
#
# An error $\varepsilon_l$ of the attention of layer $l$ changes the logits, to first order, by the model's derivative $J_l$. Errors of the layers are independent, so that their squares add up:
#
# $$
# \Delta z \approx \sum_l J_l \, \varepsilon_l, \qquad
# \sigma_z^2 = \sum_l \operatorname{mean} (J_l \, \varepsilon_l)^2
# $$ (effect-logits-sum)
#
# A next byte becomes another one if the change exceeds the gap $g$ between the two largest logits:
#
# $$
# P(\text{another byte}) = \Phi\!\left(-\frac{g}{\sigma_{12}}\right)
# $$ (effect-flip)
#
# | symbol | meaning |
# |---|---|
# | $\varepsilon_l$ | error of the attention output of layer $l$: random, of the kernel's size for each head and text |
# | $J_l$ | derivative of the logits by that output, taken forwards (a Jacobian-vector product) |
# | $\sigma_{12}$ | spread of the change of the largest logit minus that of the second |
# | $\Phi$ | distribution function of the standard normal |
#
# ### What the kernels of a training step take
#
# The budgets are those of {doc}`tensor_cores_on_and_off` and {doc}`the_tuner_and_the_backward_pass`, at this model's shape. A decode has a batch of 16 texts.

# %%
TEXTS, TOKENS = 16, 1024
shape = dict(q_heads=6, kv_heads=2, head_dim=64, dtype="bf16")
step = Prefill((TOKENS,) * TEXTS, (TOKENS,) * TEXTS, causal=True, **shape)
served = Decode((768,) * TEXTS, **shape)
ON_AND_OFF = ["decode_fma", "decode_mma", "prefill_fma", "prefill_mma", "prefill_wgmma"]
sized = Bench(served, step, kernels=ON_AND_OFF, gpu="h200")
sized.equations("prefill_wgmma")

# %% mystnb={"figure": {"caption": "prefill_mma comes close to the 255 registers of a thread; the decodes stay far below. Registers and shared memory of the kernels that the model uses, with tensor cores and without. Predicted, and compiled for an H200.", "name": "effect-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas, with a diamond for the compiler's number.", "width": "100%"}} tags=["hide-input"]
sized.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "What limits each kernel at the model's shape, and what one block more would take.", "name": "effect-occupancy"}, "image": {"alt": "A panel with a row for each kernel: the blocks that fit an SM of an H200, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
sized.plot_occupancy("h200")
plt.show()

# %% [markdown]
# A training asks for gradients, too, and for equal bits their sums need one order (`deterministic=True`). What this costs was recorded at a larger size:

# %% mystnb={"figure": {"caption": "With one order of all sums, backward_wgmma takes a few per cent longer. Gradients of 4 x 8,192 tokens, 16 heads of 128, causal, bf16; tensor cores are on in all, and *ordered* means one order.", "name": "effect-timing"}, "image": {"alt": "Horizontal bars of milliseconds for eight kernels; backward_wgmma and its ordered form are the two shortest and nearly equal, torch's cuDNN is next, triton_backward is by far the longest.", "width": "100%"}} tags=["hide-input"]
NOTE = "4 x 8192 on 4 x 8192, 16/16, d128, causal, bf16"
bars(
    chapter.gradients(NOTE),
    label="time, ms",
    origin=recorded.origin(store.read("backward_variants")),
)
sized.log.drew("timing", "prefill")
plt.show()

# %% [markdown]
# ## Measurement
#
# ### Real Q, K and V
#
# Q, K and V of one held-out text were kept: of each layer a KV head and its three query heads. Are they like the random inputs of the other chapters? The number of keys that share a row's weight, $1 / \sum_j p_j^2$, says how peaked a head is:

# %%
parts = chapter.activations()
TAKEN = 256
real = chapter.prefill_of(parts, TAKEN)
random = prefill_inputs(real.workload, Normal(1, "cpu"))
shared_by = {}
for name, drawn in (("of the model", real), ("random", random)):
    q = drawn.q.double().numpy().reshape(6, TAKEN, 3, 64)[:, -1]
    k = drawn.kv.k.double().numpy().reshape(6, TAKEN, 64)
    scores = np.einsum("lhd,lkd->lhk", q, k) * drawn.scale
    shared_by[name] = chapter.keys_that_share(scores)
columns = ["head 0", "head 1", "head 2"]
table = pd.DataFrame(shared_by["of the model"], columns=columns)
table = table.rename_axis("layer").reset_index()
plots.table(table, "effect-keys", dict.fromkeys(columns, "{:.1f}"))

# %% [markdown]
# The last of 256 tokens sees 256 keys. With random inputs between {glue:text}`random_low` and {glue:text}`random_high` of them share its weight; in the model, between {glue:text}`model_low` and {glue:text}`model_high`. Where one key has nearly all weight, the output is that key's value, and only its last rounding is left.
#
# CUDA and Triton, with tensor cores and without, now compute a prefill of these 256 tokens and a decode after 64, 128 and 256 of them:

# %% tags=["nbval-ignore-output"]
few = dict(q_heads=3, kv_heads=1, head_dim=64, dtype="bf16")
bench = Bench(Decode((64, 128), **few), Prefill((16,) * 2, (64, 128), **few), kernels=live.EVERY)
bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")

# %%
decoded = chapter.decode_of(parts, (64, 128, 256))
outs, cells = {}, []
for operation, drawn, n in (("decode", decoded, (3,) * 6), ("prefill", real, (TAKEN,) * 6)):
    outs[operation], exact = live.outputs(operation, drawn), live.truth(drawn)
    cells.append(live.cells(operation, outs[operation], exact, n))
errors = pd.concat(cells).rename(columns={"way": "kind"})
errors = errors[errors.kind != "Triton, on"]

# %% mystnb={"figure": {"caption": "With tensor cores on, errors are a few per cent larger; the heads of one token differ by more. Relative L2 error against float64 of each query head and layer (in place of a request); Triton with tensor cores is left out, since its interpreter does not round P to bf16. bf16.", "name": "effect-errors"}, "image": {"alt": "Four panels, decode above and prefill below, over three query heads on the left and six layers on the right; dots of kernels with and without tensor cores lie close together, and layers differ.", "width": "100%"}} tags=["hide-input"]
by_place(errors, label="relative L2 error", origin="computed on this machine", log=False)
bench.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# Is the verdict, which was tuned on random inputs, right about real ones? All outputs are of right kernels:

# %% tags=["hide-input"]
rows = []
for operation, drawn in (("decode", decoded), ("prefill", real)):
    for kernel in live.KERNELS[operation]:
        rows.append((operation, kernel, chapter.judged(operation, drawn, kernel)))
table = pd.DataFrame(rows, columns=["operation", "kernel", "verdict"])
plots.table(table, "effect-verdicts", {})

# %% [markdown]
# ### From the error to the logits
#
# The table has the prediction of {eq}`effect-logits-sum` beside what was measured:

# %%
MEASURED = "RMSE of logits"
ROUNDED = f"{MEASURED}, random errors"
table = full.loc[KERNELS, [f"{MEASURED}, predicted", ROUNDED, MEASURED]].reset_index()
table.columns = ["attention", "first order", "random errors", "measured"]
plots.table(table, "effect-prediction", dict.fromkeys(table.columns[1:], "{:.5f}"))

# %% [markdown]
# The first order predicts half. It leaves out that the next layer rounds its Q, K and V to bf16 *again*: a change far below a last digit moves some of these numbers across a rounding boundary, and then by a whole digit. *Random errors* of the kernel's size, in a model that rounds in this way, give {glue:text}`explained` % of the measured distance.
#
# So more accurate attention gains little: the CUDA cores, whose weights stay in fp32, come within {glue:text}`gained` % of the tensor cores. The bytes follow: with the first order {eq}`effect-flip` predicts {glue:text}`flips_predicted` of 1,000, and {glue:text}`flips` were found. The losses of these kernels on the text agree within {glue:text}`loss_spread` nats per byte.
#
# ### A training
#
# Nine ways of attention trained the model for 500 steps from three seeds each. The loss on held-out text, in nats per byte:

# %%
losses = chapter.losses()
table = losses.assign(mean=losses.mean(axis=1)).reset_index()
table.columns = ["attention", *(f"seed {n}" for n in losses.columns), "mean"]
plots.table(table, "effect-losses", dict.fromkeys(table.columns[1:], "{:.4f}"))

# %% mystnb={"figure": {"caption": "The same seed with another kernel soon takes another way, and none stays above or below. Loss of each training step's batch less the mean of all nine ways; four of them, seed 0.", "name": "effect-training"}, "image": {"alt": "Four curves over 500 steps that cross each other around zero, first within a few hundredths of a nat, later within a hundredth.", "width": "100%"}} tags=["hide-input"]
curves(
    chapter.curve(0, ["tensor cores", "CUDA cores", "torch cuDNN", "torch fp32"]),
    labels=("step", "loss above the mean, nats"),
    origin=recorded.origin(store.read("training")),
)
plt.show()

# %% [markdown]
# The means of the nine ways spread by {glue:text}`spread_ways`, the losses of one way over its seeds by {glue:text}`spread_seeds` (standard deviations). With three seeds a difference of this size cannot be told from chance. This is a null: it does not say that the ways are equal, but that their difference, if there is one, is small against that of seeds.
# Attention without tensor cores, with fp32 weights, is not better; nor does the denominator matter here that our kernels can round as P {cite:p}`qiu2025`. The conditions under which {cite:t}`qiu2025` saw a training fail were not provoked.
#
# ### Write with one kernel, train with another
#
# A policy gradient weighs each token by the ratio of two probabilities: that of the pass that trains, and that of the rollout that wrote it. Both should be one model, and the ratio 1. The rollout here is a decode on tensor cores in bf16, 16 texts of 256 bytes at temperature 1:

# %%
kinds = {"ratio": "decode", "ratio of a full pass": "full pass"}
rows = []
for what, kind in kinds.items():
    part = found[found.what == what].pivot_table(
        index="way", columns="metric", values="value", sort=False, aggfunc=["mean", "max"]
    )
    for way, row in part.iterrows():
        mean = np.expm1(row["mean", "mean |log ratio|"])
        largest = np.expm1(row["max", "largest |log ratio|"])
        rows.append((kind, way, 100 * mean, 100 * largest))
columns = ["trains with", "attention", "mean distance from 1, %", "largest, %"]
ratios = pd.DataFrame(rows, columns=columns)
plots.table(ratios, "effect-ratios", dict.fromkeys(columns[2:], "{:.2f}"))

# %% [markdown]
# There are two kinds of rows. The same kernel gives the same bits, alone or in the batch as its plan is the same here, and the ratio is 1 for all {glue:text}`written` bytes. Every other way, be it fp32, another kernel or the same kernel with other splits, gives the same distance. {doc}`same_bits` says how to get equal bits; being more accurate on one side does not help.
#
# ### A text that parts
#
# The most likely bytes are written by a decode, and the texts compared with those of the tensor cores:

# %%
greedy = found[found.what == "greedy text"]
parted = greedy.pivot_table(index=["way", "sample"], columns="metric", values="value", sort=False)
parted = parted.rename(columns=lambda name: "gap" if name.startswith("gap") else "bytes")
rows = []
for way, part in parted.groupby("way", sort=False):
    others = part[part.bytes < 256]
    first = f"{others.bytes.min():.0f}", f"{others.gap.max():.3f}"
    rows.append((way, len(others), *(first if len(others) else ("none", ""))))
columns = ["decode", "texts of 16 that part", "first byte", "largest gap there, nats"]
plots.table(pd.DataFrame(rows, columns=columns), "effect-texts", {})

# %% [markdown]
# Texts part only where the two most likely bytes are as good as equal. The logits of a model in bf16 are bf16 numbers, which from 4 to 8 lie 1/32 apart: the largest gap is one such step, and some gaps are zero. From there on the texts are different ones; which of them is better was not asked.
#
# ## What would change the answer
#
# - **A larger model.** It has more layers, outlier channels and sharper heads; more layers round more often. No larger model was measured.
# - **Attention that is wrong.** A bug is no random error: its effect does not sink below rounding. See {doc}`rounding_or_bug`.
# - **A model in fp32.** Then bf16 attention would be the largest error of all.
# - **Longer trainings.** 500 steps were run. The repeat with equal seeds parted at its first step: torch's gradient of the embedding sums in free order. The experiment now asks torch for its deterministic algorithms, and was not recorded again.

# %% tags=["evidence"]
own, share = full.loc[KERNELS], full["other next bytes"] * 1000
numbers = {
    "flips": f"{share[KERNELS].mean():.1f}",
    "flips_model": f"{share['torch fp32, model in bf16']:.1f}",
    "flips_predicted": f"{1000 * own['other next bytes, predicted'].mean():.1f}",
    "explained": f"{100 * (own[ROUNDED] / own[MEASURED]).mean():.0f}",
    "gained": f"{100 * (1 - own[MEASURED]['CUDA cores'] / own[MEASURED]['tensor cores']):.0f}",
    "largest_ratio": f"{ratios['largest, %'].max():.0f}",
    "loss_spread": f"{np.ptp(own['loss, nats per byte']):.5f}",
    "spread_ways": f"{losses.mean(axis=1).std():.4f}",
    "spread_seeds": f"{losses.std(axis=1).mean():.4f}",
    "written": f"{16 * 256:,}",
}  # fmt: skip
for name, number in numbers.items():
    glue(name, number, display=False)

# %% tags=["evidence"]
count = sum(weight.numel() for weight in Gpt(Size()).parameters())
glue("weights", f"{count / 1e6:.1f}", display=False)
for kind, word in (("of the model", "model"), ("random", "random")):
    for limit, find in (("low", np.min), ("high", np.max)):
        glue(f"{word}_{limit}", f"{find(shared_by[kind]):.0f}", display=False)

# %% tags=["nbval-ignore-output", "evidence"]
sized.log + bench.log

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: effect-gap
#
# The two largest logits are 0.02 nats apart, and the change of their difference has a spread of 0.01. How often, in percent, does {eq}`effect-flip` say that another byte becomes the most likely?
# Check your answer with `exercises.check("effect-gap", percent)`.
# ```
#
# ```{solution-start} effect-gap
# :class: dropdown
# ```
#
# $\Phi(-2)$ is 2.3 %.

# %%
assert exercises.check("effect-gap", 2.3)

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# {cite:t}`zhong2026` studied the mismatch of training and rollout; {cite:t}`qiu2025` explain a training that failed by a bias of low-precision attention. Neither was repeated here. The model, its data and the recordings are the experiments `training` and `effects`: `labkernels record effects` trains it anew.
