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
# # Rounding or bug?
#
# ## Question
#
# **A test passes in fp16 and fails in bf16. Is its tolerance fair, or is the kernel broken?**
#
# The question is that of {cite:t}`flashinfer882`.
# Its author ran an attention test of FlashInfer with bf16 in place of fp16, and the comparison at a tolerance of 1e-3 failed.
# A maintainer answered that a larger tolerance is needed for bf16, and that a failure "doesn't indicate a bug".
# With 1e-2 the test passes.
#
# The numbers of the question settle neither the tolerance nor the kernel.
# A tolerance asks whether the difference is smaller than a number that somebody chose.
# When you have read this chapter you can ask the question that matters, *could rounding have done this?*, and you know
#
# 1. what a right kernel's error looks like, element by element;
# 2. which of 17 real bugs the tolerances in use would have let through, and why;
# 3. how to get a verdict on two tensors of your own with one command, and what it is worth.
#
# ## You need
#
# {doc}`tensor_cores_on_and_off` derives the expected error of an output element; {eq}`decode-variance` there is what this chapter divides by.
# {doc}`/book/how_to_read` says what is recorded and what runs here.
# You need no GPU.

# %% tags=["remove-cell"]
# Where the lab is not installed, as in Colab, this cell installs it, with its recorded data.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("labkernels") is None:
    lab = "labkernels[gpu,plots] @ git+https://github.com/labkernels/labkernels"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", lab, "myst-nb"], check=True)

# %% tags=["hide-input"]
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from myst_nb import glue

from labkernels import Bench, Decode, Prefill, cli, ops, plots, verdict
from labkernels.kernels.registry import discover
from labkernels.measure.judge.criteria import REFUSED, VERDICT, Criteria
from labkernels.measure.mutants import decode
from labkernels.numerics import rounding
from labkernels.numerics.verdict.criteria import RULES
from labkernels.records import recorded, store

# %% [markdown]
# ## Symbols
#
# From {doc}`/book/notation`: $P_j$, $l$, $o$ of one row, $L$ keys, $\mathrm{ulp}$.
# This chapter adds $e = \hat o - o$, the error of an output element against float64; $\sigma$, the standard deviation that {eq}`decode-variance` gives it; $N$ output elements.
#
# ## Model
#
# ### What rounding does
#
# In units of its own $\sigma$ the error of a right kernel has a known distribution, whatever the inputs were:
#
# $$
# z \;=\; \frac{e}{\sigma}, \qquad \text{mean } 0, \quad \text{standard deviation } 1, \quad |z| \text{ beyond } 5 \text{ once in two million.}
# $$ (verdict-z)
#
# That gives five kinds of tests, each with a limit that follows from how often rounding alone may pass it:
#
# - **Bound.** $|e|$ over a proven upper bound never exceeds 1.
# - **Spread.** The standard deviation of $z$ is 1 by head, by sample, by channel and in all.
# - **Outliers.** No more elements lie beyond $5\sigma$ than chance allows.
# - **Direction.** A bug pushes all elements one way, known beforehand: a wrong scale along $\sum_j p_j (s_j - \bar s) v_j$, a wrong denominator along $o$ itself, a missing key along $o - v_j$.
#   The {term}`matched filter` says how far the error went along a direction $D$:
#
#   $$
#   \beta \;=\; \frac{\sum e D / \sigma^2}{\sum D^2 / \sigma^2},
#   $$ (verdict-beta)
#
#   which averages over all elements, so that a push far below one ulp shows if enough of them share it.
# - **Keys.** The same filter runs for each single key, left out or counted twice.
#
# The verdict is **BUG** where a test exceeds what rounding does in ten million runs, **INCONCLUSIVE** between that and ten thousand, and **ROUNDING** otherwise.
# A fourth answer, **LESS EXACT**, is for an output that rounds something the formats need not round, such as scores in 16 bits, and is right otherwise.
#
# ### What tolerances do
#
# The table has six rules in use and what each demands; *ref* is the truth rounded to the output's format, *eager* a plain 16-bit attention on the same inputs.

# %% tags=["hide-input"]
demands = [(rule.name, rule.demand, Path(rule.source).name) for rule in RULES.values()]
plots.table(pd.DataFrame(demands, columns=["rule", "demands", "from"]), "rules")

# %% [markdown]
# Written out, the cosine rule demands $1 - 2\,\mathrm{out} \cdot \mathrm{ref} \,/\, (|\mathrm{out}|^2 + |\mathrm{ref}|^2) < 5 \cdot 10^{-6}$.
# Five of the six look at the *largest* error, and none asks how large the error of this element should be.
#
# ## Prediction
#
# ### Where a fixed tolerance stands
#
# A right output stored in bf16 may differ from the rounded truth by one ulp, where the two fall on different sides of a rounding boundary.
# What, then, does a tolerance allow at long contexts, where an output is a mean over many values and so is small?

# %%
sizes = np.array([0.0156, 0.0625, 0.25, 1.0, 4.0])
fixed = pd.DataFrame({"|o|": sizes})
for fmt in ("fp16", "bf16"):
    fixed[f"one ulp of {fmt}"] = rounding.quantum(sizes, fmt)
for tolerance in (1e-3, 1e-2):
    fixed[f"close {tolerance:g} allows"] = tolerance + tolerance * sizes
fixed["1e-2 / |o|"] = fixed["close 0.01 allows"] / sizes
plots.table(fixed, "fixed", dict.fromkeys(fixed, "{:.3g}"))

# %% [markdown]
# So the prediction is twofold.
# At 1e-3 a *right* bf16 kernel fails as soon as outputs reach 0.25: the failure in the question says nothing.
# At 1e-2 the pass says nothing either, once contexts are long.
# Normal inputs of standard deviation $s$ give scores of variance $s^4$, so that $L e^{-s^4}$ of the $L$ keys have a weight that counts:

# %%
deviation, keys = 1.15, 8177
size = deviation * np.sqrt(np.exp(deviation**4) / keys)
print(f"outputs of {keys} keys are about {size:.3f}; 1e-2 allows {1e-2 / size + 1e-2:.0%} of that")

# %% [markdown]
# An output may be wrong by a third of itself.
#
# ### What no largest error can show
#
# Take a kernel that truncates $P$ to bf16 where it should round.
# Each weight loses half an ulp on average, a known share of itself, while $l$ is summed before the cut.
# So every output shrinks by the same factor:

# %%
p = np.exp2(np.random.default_rng(0).uniform(-8, 0, 100_000))
loss = float(np.mean(rounding.round_to(p, "bf16", "rz") / p - 1))
ulp_share = float(np.mean(rounding.quantum(p, "bf16") / p))
print(f"P loses {-100 * loss:.2f} % of itself, which is {-loss / ulp_share:.2f} ulp")

# %% [markdown]
# To any single element the rounding of the store may do as much.
# No rule that looks at the largest error should see it.
# The filter along $o$ in {eq}`verdict-beta` averages over all $N$ elements, and should see it.

# %% [markdown]
# ### What the judged kernels take
#
# The verdict needs to know how a kernel rounds, and nothing else about the kernel.
# For completeness, here are the formulas of the kernel whose outputs it judges below:

# %%
workloads = [
    Decode.uniform(57, 8192, q_heads=32, kv_heads=8),
    Prefill((2048,) * 8, (2048,) * 8, 16, 16, 128, causal=True),
]
bench = Bench(*workloads, gpu="h200")

# %%
bench.equations("decode_mma")

# %% [markdown]
# A bug changes none of these numbers: a mutant compiles to the same bytes, and mostly to the same registers.
# Neither budget nor time gives a bug away; only its output does.

# %% mystnb={"figure": {"caption": "All kernels whose outputs are judged here. A bug of one line leaves this figure as it is.", "name": "verdict-budget"}, "image": {"alt": "Two panels of stacked bars, one bar for each kernel: registers per thread above, shared memory per block in KiB below, split into the terms of the formulas. A diamond on each bar marks the compiler's number.", "width": "100%"}} tags=["hide-input"]
bench.plot_budget()
plt.show()

# %% mystnb={"figure": {"caption": "The blocks per SM of the same kernels, which a bug leaves as they are, too.", "name": "verdict-occupancy"}, "image": {"alt": "A panel for each GPU with a row for each kernel. Marks on a logarithmic axis give the blocks that registers, shared memory, warps and the block limit leave on an SM; a bar ends at the least of them.", "width": "100%"}} tags=["hide-input"]
bench.plot_occupancy("h200", "a100")
plt.show()

# %% [markdown]
# ## Code
#
# A {term}`mutant` is a kernel of this lab with one line changed, after a bug that somebody reported.
# It is compiled and run like the right one.
# Here are all of them:

# %% tags=["hide-input"]
bugs = [(m.name, m.bug, "/".join(m.source.split("/")[3:5]) + " " + m.source.split("/")[-1])
        for m in decode.MUTANTS.values()]  # fmt: skip
plots.table(pd.DataFrame(bugs, columns=["mutant", "the bug", "reported in"]), "mutants")

# %% [markdown]
# This is one of them as it is written: the text that is searched for in the source, and what replaces it.

# %%
edit = decode.MUTANTS["wrong merge base"].edits["decode_mma"]
print(edit.file, edit.pattern, edit.by, sep="\n")

# %% [markdown]
# ```{literalinclude} /labkernels/cuda/include/lab/attention/split_kv.cuh
# :language: cpp
# :start-at: "float top = part_m;"
# :end-at: "weight = exp2<P>(part_m - m);"
# ```
#
# ## Measurement
#
# ### A right kernel
#
# The outputs are those of four requests of 1009 keys in bf16, with 16 query heads on 4 KV heads, by the CPU build of `decode_mma`, which gives the H200's bits.

# %%
right_mutant = decode.MUTANTS["P truncated"]
case = decode.exposing_case(right_mutant, 1009, "bf16", seed=0, device="cpu")
split = decode.LENGTHS[1009].keys_per_split
right = ops.decode(case.q, case.cache, kernel="decode_mma", keys_per_split=split).out
print(verdict(right, case.q, cache=case.cache).summary())

# %% [markdown]
# Every line is a test, with its value and the limits beyond which it would be odd or impossible.
# The spreads stay below 1 because the verdict grants {eq}`decode-variance` its own uncertainty, and takes the larger of two $\sigma$ where it was not told which sum $l$ is.
#
# ### Three wrong ones
#
# The same inputs now go through three mutants, and their outputs before all judges.
# The largest error stands beside the ulp of the element at which it was found.

# %%
SHOWN = ("scale applied twice", "padding in the denominator", "P truncated")
judge, policy = Criteria(case), discover()["decode_mma"].policies[0]
outputs = {"none": right}
outputs |= {name: decode.decode(decode.MUTANTS[name], "decode_mma", case) for name in SHOWN}
live, verdicts = [], {}
for name, out in outputs.items():
    verdicts[name] = judge.verdict(out, policy)
    error, ulp = np.abs(verdicts[name].error), rounding.quantum(judge.truth, "bf16")
    answers, worst = judge.answers(out, policy, judged=verdicts[name]), error.argmax()
    marks = {rule: "refused" if answers[rule] == REFUSED else "–" for rule in (VERDICT, *RULES)}
    sizes = {"largest error": error.max(), "in ulp": error.flat[worst] / ulp.flat[worst]}
    live.append({"bug": name} | sizes | marks)
plots.table(pd.DataFrame(live), "live", {"largest error": "{:.1e}", "in ulp": "{:.1f}"})

# %%
for name in SHOWN:
    print(f"{name}: {verdicts[name].why}")

# %% [markdown]
# The verdict does not only refuse, it says what it takes the mistake for, and where.
# A test of the lab asks it for the name of all 17.
# A name says what the tensors show, which is not always the reason: for a page offset that wraps at 32 bits they show from which key on zeros were read.
# Where two mistakes give the same output, such as a lost key and a lost page that held only this key, the verdict gives both names, and first the one that had fewer places to choose from.
#
# {numref}`truncated-z` shows how the truncated $P$ looks.
# The errors are hardly larger than they should be, none of them by much, and no head or sample is worse than a factor of two.
# The bug shows because all errors have one direction: the filter along $o$ adds them up.

# %% mystnb={"figure": {"caption": "A bug that moves every element by half an ulp hardly shows in the size of the errors. P truncated, bf16, 1009 keys; above, the rms of z by sample and head, below, the distribution of z with that of a normal variable.", "name": "truncated-z"}, "image": {"alt": "Above, a heat map of 4 samples and 16 query heads, the rms of z, a grain between one and two. Below, a histogram of z on a logarithmic axis, a little wider than the bell curve drawn over it, that ends within five sigma.", "width": "100%"}} tags=["hide-input"]
plots.verdict_figure(verdicts["P truncated"], origin="computed on this machine")
plt.show()

# %% [markdown]
# ### Two tensors of your own
#
# Save the inputs and the output, from any framework and any kernel, as `npz`, `safetensors` or `pt`, or take what FlashInfer, FlashInfer-Bench or SGLang have dumped; in an `npz`, `uint16` holds the bits of bf16.
# Then one command gives the verdict, and its exit code is 0 for rounding, 1 for a bug, 3 for less exact than the format allows, 2 for none of these.
# The dump of this cell has the output whose scores were scaled twice:

# %%
out = outputs["scale applied twice"]
tensors = {"q": case.q, "k": case.cache.k, "v": case.cache.v, "out": out}
arrays = {name: rounding.to_bits(x.double().numpy(), "bf16") for name, x in tensors.items()}
numbers = {"page_table": case.cache.page_table.numpy(), "kv_len": case.cache.kv_len.numpy()}
with tempfile.TemporaryDirectory() as folder:
    dump = Path(folder) / "dump.npz"
    np.savez(dump, **arrays, **numbers)
    exit_code = cli.main(["audit", str(dump)])
exit_code

# %% [markdown]
# In a test suite one line takes the place of a tolerance: `labkernels.testing.assert_attention_close(out, q, k, v)`.
# Where a test must have a tolerance, `labkernels tolerance` derives one, which a right output breaks only with a stated probability.

# %%
from labkernels.audit.tolerance import tolerance
from labkernels.chapters import exercises

print(tolerance(4, 1009, q_heads=16, kv_heads=4, head_dim=128, dtype="bf16").summary())

# %% [markdown]
# `labkernels tolerance` also says which of the bugs of strangers such a test lets through.
# `labkernels compare` holds two outputs of the same tokens against each other, for example of a training run and of the server that wrote its samples. The command answers that their bits are equal, or that they differ by rounding alone and where first, or that one of them has a bug.
#
# ### All bugs before all judges
#
# `labkernels record detection` runs every mutant on every kernel that has the line, in fp16 and bf16, at four lengths, with inputs of eight seeds (four at the longest), and right kernels over five families of inputs, all their numeric policies in turn.

# %% tags=["hide-input"]
counts = pd.DataFrame(store.read("detection"))
order = [VERDICT, "cosine", "close 1e-3", "FA 2x", "FA3 2x", "PyTorch fudge", "close 1e-2"]
counts = counts.sort_values("rule", key=lambda names: names.map(order.index), kind="stable")
gpu_name = next(name for name in counts.device.unique() if name != "CPU build")
on_gpu = counts[counts.device == gpu_name]
commits, day = ", ".join(dict.fromkeys(on_gpu.commit)), on_gpu.started_utc.iloc[0][:10]
origin = f"measured on {gpu_name}, {day}, commit {commits}"
wrong, sound = on_gpu[on_gpu.mutant != ""], on_gpu[on_gpu.mutant == ""]

# %% mystnb={"figure": {"caption": "The verdict finds every bug and calls no right kernel wrong; each tolerance lets bugs through, refuses right kernels, or both. Outputs of kernels with one bug built in, over two dtypes and four lengths, and of right kernels by dtype.", "name": "detection"}, "image": {"alt": "A matrix of percentages. Rows are 17 bugs, columns the verdict and six rules. The verdict's column is 100 throughout; the other columns have gaps, most at the truncated P, the 16-bit accumulator and the padding in the denominator. Below, two rows for right kernels: close 1e-3 refuses nearly half of those in bf16, the others hardly any.", "width": "100%"}} tags=["hide-input"]
shares = plots.refused_shares(wrong, "mutant")
shares = shares.loc[shares.mean(axis=1).sort_values(kind="stable").index]
plots.detection_matrix(shares, plots.refused_shares(sound, "dtype"), origin=origin)
plt.show()

# %% [markdown]
# The figure is of the verdict of the commits it names. Since then the verdict knows more right kernels, and calls some outputs with a truncated $P$ at 305 keys INCONCLUSIVE, since a right kernel whose largest weight is rounded once could make them.

# %% [markdown]
# Do longer contexts help or hurt?
# The table has all bugs together, by length.

# %% tags=["hide-input"]
by_length = plots.refused_shares(wrong.sort_values("kv_len", kind="stable"), "kv_len")[order]
plots.table(by_length.reset_index(), "by-length", dict.fromkeys(order, "{:.0f}"))

# %% [markdown]
# A fixed tolerance loses power as outputs shrink; the verdict divides by the expected error, and loses none.
#
# All of these bugs and families of inputs were known while the verdict was written: the figures are of a *development* set, and say little about bugs that nobody thought of.
#
# ### On code of other people's kinds
#
# `labkernels.measure.strangers` has outputs of code that shares none of the lab's: implementations that are right in other ways, and bugs of other people's kinds.
# Some of them are *held out*: they were written before anybody saw what the verdict says of them.
# A right output is held out if its implementation or its family of inputs is; a wrong one if its bug is.
#
# The newest of these sets is the eighteenth, with families of inputs, implementations and shapes of its own; some of its calls ask for a window, a soft cap, sinks or ALiBi.
# After its recording each set is looked at case by case and the verdict is mended. So a row that says *held out* is of the newest set, a row that says *held out once* was recorded so with a set before and an older verdict, and *development* is what was known when it was recorded.
#
# The eighteenth set was judged once. Its writer had not seen how the verdict works, nor the bugs of any set but two early ones. By accident he saw thirty lines of the seventeenth set's right names and, in a test, names of about twenty-four of its bugs and some of the verdict's words; he dropped seven bugs that older ones had the names of. He wrote all bugs before reading which names the verdict has. The words of each right name were fixed after that and before anything was judged. Somebody else worked on the verdict meanwhile, without a look at the set. The sets from the fourteenth to the seventeenth were written in the same way.
#
# The sets from the tenth to the thirteenth were written in the same way, but their writers could read the list of causes while they wrote the bugs. The writer of the eighth knew the earlier sets too, and the writer of the ninth did not know the list of causes.
#
# Each new bug gives two outputs, of two families and two shapes, the second with the bug in a part of the rows; some bugs change nothing in a shape and give fewer.
# A few of the kinds that were seen before are recorded again.
# The first table is about right outputs, and says how often the verdict calls them a bug.

# %% tags=["hide-input"]
strangers = pd.DataFrame(store.read("strangers"))
recordings = strangers.sort_values("started_utc").commit
older = (strangers.set == "held out") & (strangers.commit != recordings.iloc[-1])
strangers.loc[older, "set"] = "held out once"
sound_ones = strangers[strangers.role == "right"].groupby(["set", "dtype"])
answers_of = ["runs", "bug", "less_exact", "inconclusive", "rounding"]
plots.table(sound_ones[answers_of].sum().reset_index(), "strangers-right")

# %%
of_right = strangers[strangers.role == "right"]
print(f"{of_right.bug.sum()} of {of_right.runs.sum()} right outputs are called a bug, "
      f"{of_right.inconclusive.sum()} inconclusive")  # fmt: skip
print(f"{of_right.kind.nunique()} implementations, {of_right.family.nunique()} families of inputs")

# %% [markdown]
# The aim is none of at least 5,000, of 25 families and 12 implementations. These outputs are a CPU's, those of the next section a GPU's.
# Of the tenth set, of the eleventh, of the thirteenth, of the fourteenth, of the sixteenth, of the seventeenth and of the eighteenth, no right output is called a bug.
#
# Before the sixteenth, somebody wrote right kernels to find false alarms: random combinations of scores, references, formats, orders, splits and merges on 52 new families of inputs. Of 2,599 such outputs, 50 were called a bug. What they had in common became five rules with tests: a reference that is as far from the maximum in all rows gives the largest weight one error for all; V may lack its mean while P has 16 bits; the fp32 rounding of scores of several thousand shows in fp16; weights may be so small that fp16 loses bits of them; and a problem without any rounding ended in an error. With them, none of 1,192 new ones was. These runs are not in `data/`.
# The price is power: a mistake that is as small as one rounding of the weights is more often called INCONCLUSIVE, since a right kernel could make the same output.
#
# The fifteenth missed the aim with four outputs. In three of them, in bf16, the weights of a row are relative to its median or to its second largest score. The largest weight of a row is then no power of two and has a rounding of its own, which is most of the error where few keys count. Some of the right kernels that the verdict computes beside an output round so too, but they were too few: it now asks eight more where a test is near its limit. The fourth, in fp32, is of a kernel that mixes V's channels by a rotation and unmixes the output's, where one value of V is far larger than all others; it is LESS EXACT now. Tests hold both.
#
# The twelfth missed the aim with two outputs in fp32, both of a kernel that takes the mean off V before the products and adds it to the output. Its errors are those of the mean: in one output some elements are far smaller than the mean, and in the other all channels of a row are off by the mean's last bit. The verdict now computes with a centred V beside others, and bounds such errors by the largest value of the head and channel: both outputs are LESS EXACT, which a test holds.
#
# The ninth set missed the aim with two outputs, both of a ring in fp32: it merges the partial output of each device by a share of its difference, which cancels where the partial output is a thousand times as large as the result.
# The verdict now computes such merges beside others, and calls both outputs LESS EXACT, which a test holds.
# The sets before had false alarms, and each class of them has a mend that a test holds: a running maximum that is a whole number, warps that take keys in turn, and errors in fp32 that are a few times rounding's, where sums are in another order or inputs repeat.
#
# For an output that rounds more than it need, the better answer is LESS EXACT.
# The verdict asks kernels that are right and compute as coarsely, on the same inputs, whether it could tell the output from theirs: kernels whose products are cut to tf32 or to two bf16 parts, whose output is normalised at every step, whose exp2 is a cubic, whose $P$ has 16 bits.
#
# The second table is about bugs.
# An output whose bits the bug did not change is left out, because nothing could see it.
# *Found* counts BUG and LESS EXACT; a name counts as right if it would send a reader to the right line.
# Where the output does not tell mistakes apart, the verdict lists them as "A, or B". The list counts as right if the true mistake is one of at most three; a longer list with the true one counts as no name, and any list without the true one as a wrong name.
# The writer of a bug writes the words of a right name beside the bug, as a pattern, before the verdict sees it, and the pattern is not changed after the recording.

# %% tags=["hide-input"]
unsound = strangers[strangers.role == "wrong"].groupby(["set", "dtype"])
counts_of = ["runs", "bug", "less_exact", "named_right", "named_wrong", "not_named"]
tally = unsound[counts_of].sum()
found_ones = tally.bug + tally.less_exact
shares_of = pd.DataFrame({"outputs": tally.runs, "found": 100 * found_ones / tally.runs})
for name in ("named_right", "named_wrong", "not_named"):
    shares_of[name.replace("_", " ")] = 100 * tally[name] / found_ones
digits = dict.fromkeys(shares_of.columns[1:], "{:.1f} %")
plots.table(shares_of.reset_index(), "strangers-wrong", digits)

# %% [markdown]
# The aim was that at least 85 of 100 names are right and at most 2 are wrong.

# %%
of_wrong = strangers[strangers.role == "wrong"].groupby("set")
for label, some in of_wrong[counts_of].sum().iterrows():
    named = 100 * some[["named_right", "named_wrong"]] / (some.bug + some.less_exact)
    aims = ("met" if named.named_right >= 85 else "missed",
            "met" if named.named_wrong <= 2 else "missed")  # fmt: skip
    print(f"{label}: {named.named_right:.1f} % right ({aims[0]}), "
          f"{named.named_wrong:.1f} % wrong ({aims[1]})")  # fmt: skip
counted = strangers[strangers.names_listed.astype(str) != ""]
listed_names, right_names = counted.names_listed.astype(float).sum(), counted.named_right.sum()
print(f"a right line of the newest recording lists {listed_names / right_names:.2f} names")

# %% [markdown]
# The names of the first six sets came from a list of known mistakes, and each mend after a set helped new bugs hardly at all.
#
# So the figures of a held-out set are the ones to trust. What helped is a grammar of mistakes: what happens to Q, K, V, the scores or the weights, apart from the keys that it happens to. Every change is tried at all keys, at every run of keys, and at regular sets of keys.
# Where nothing of this explains the rows, the diagnosis fits the structure of the rows:
# it solves for the weight of each key, for the block of V that each block of keys meets, for blocks of keys that were read otherwise, and for the rows that a row is a sum of, and puts the numbers into words.
# Where the rows cannot tell two mistakes apart, as the last 48 of 96 keys and the last split of 48 keys left out, both are named.
# A judge that does not know a bug should give it no name.
# A wrong name is worse; the next table has the bugs that got one, and those that got none more than once.

# %% tags=["hide-input"]
by_bug = strangers[strangers.role == "wrong"].groupby(["set", "kind"])[counts_of].sum()
by_bug["missed"] = by_bug.runs - by_bug.bug - by_bug.less_exact
worst_ones = by_bug[(by_bug.named_wrong > 0) | (by_bug.not_named > 1) | (by_bug.missed > 0)]
order_of = ["named_wrong", "not_named", "missed"]
worst_ones = worst_ones.sort_values(order_of, ascending=False, kind="stable")
worst_ones = worst_ones[["runs", *order_of]].reset_index()
worst_ones.columns = ["set", "bug", "outputs", "named wrong", "without a name", "not found"]
plots.table(worst_ones, "strangers-worst")

# %% [markdown]
# Most wrong names of the seventh set concern a scale: that of K applied to V, that of another head, that of a dropout which was left on. Several lines of code explain such an output.
# Those of the eighth concern what a call asked for and the kernel read otherwise, as sinks in base 2 or a cap of another number, and rounding that is nearly invisible, as an output cut toward 0.
# The verdict has learned these since, with swizzles that only the writer knows, numbers in fixed steps, and lanes that are joined without their maxima.
#
# The ninth set showed how little that helps with bugs of a new writer: fewer of its names are right than of the eighth's.
# Many of its wrong names said something that is equal on the output, in words that its writer did not expect, such as "V read as 0" where the output of the last split is 0, or "splits merged with wrong weights" where the weights of a tile are taken against another maximum.
# They count as wrong, since a reader with that name looks for a split in a kernel that has none; such names now list both.
# What helped most since is a rule about evidence: a reading that has as many numbers to choose as the rows have equations explains any output, so that the verdict counts the equations and gives no name where they are too few.
#
# So the tenth set is the first whose wrong names keep to the aim. Its right names missed theirs, because more than a fifth of its bugs had no name:
# blocks of 4 and 8 bits with scales of their own, places of rotations that begin anew in each page, pages with another order inside, log-sum-exps of another base, format or head.
# The verdict now tries such classes last: grids and blocks of few bits, rotations by other places and bases, and what memory holds where a kernel looks for something else.
# The eleventh set, of another writer, shows how far that carries: its wrong names keep to the aim again, and its right names come closer to theirs and still miss it.
# What had no name there was packed in memory in ways that the verdict did not try, belonged to a ring or a tree that only the caller knows, or was a number cut toward zero.
# The verdict has learned such classes: indices by other rules, functions in the place of exp and tanh, and numbers that are cut, dropped or wrapped.
#
# The twelfth set said that this helped the next writer's bugs little: its wrong names kept to the aim, its right names missed it by more than the eleventh's.
# Without a name were mistakes in a part that the verdict did not try, as half of the channels of o or the last 16 bytes of a row of K, formats whose scales lie in another order, and outputs that are clipped.
# Adding what a set had taught never helped the next writer much. So the axes were multiplied out: each map of keys or channels with each part of the tensor that it may happen to, each format with each block, law of scales and rounding. A point of these products is first tried on one row, which is why tens of thousands of them take seconds.
#
# The thirteenth set is the first whose right names meet their aim, and by a margin. Its wrong names miss theirs.
# Most of these wrong names say what is equal on the output in words that the writer did not expect: "channels of K mixed up" with the right channels, where the list of causes had only "channels of Q or K"; keys "in reverse" where the mask is reversed; "a bias of the scores of whole tiles" where a tile's mean is taken off K. They count as wrong all the same. The list of causes now has the words that were missing.
# One says something else: in one of the two outputs with another rank's sinks, a factor on the denominator in each lane.
#
# Before the fourteenth set, the verdict learned to list what makes the same outputs in another tensor or step, and to ask for more evidence where a reading has a number for each row or lane.
# The wrong names of earlier sets that were judged again became right by it. The fourteenth set misses both aims nevertheless: its wrong names are more than the thirteenth's, and a sixth of its outputs have no name.
# The most frequent wrong name said of slopes that they were not asked for, in calls that ask for them, and another the same of a window; the verdict now says "of other numbers" and "another window". Without a name are rows of tables or masks that lie at another stride, bytes that are read in another order or with another bias, an output whose blocks are transposed, and slopes that stand inside a cap.
#
# Before the fifteenth set, somebody else wrote bugs after real reports of trackers, in three batches, and the verdict was mended between them. It learned to look for what lies elsewhere: pages, masks, queries, slots and partial outputs at another stride or place. It also learned that numbers of rows or heads count as shared only where they differ by no more than their errors.
# The right names of the fifteenth set meet their aim; its wrong names miss theirs by little. Three of these say what the mistake does in words that the writer did not expect, as "a constant is added" where the zero point of V is not taken off. One of the six has no name when it is judged again on another machine. Without a name are places modulo a number, scores that carry over from a tile to the next, and scales of new tokens.
#
# Before the sixteenth set, all wrong names of the sets from the ninth on were judged again. Most had said the right mistake in other words; no residual separated the others from right names. So the verdict now lists more of what is equal on the output, and searches further before it says only where an output is wrong.
# The sixteenth set is the one that meets both aims. Of its four wrong names, two say the effect and not the cause, "keys left out" where tiles of small weights are skipped; two point to another part. Three older bugs that were recorded with it have wrong names too, as "V read as 0" where V's halves are read in a format in which they are tiny. Without a name are zero points and scales of wrong keys, values that are clipped by another tile's range, sums over half of the channels, and scores at another scale beyond a threshold.
#
# Before the seventeenth set, these seven wrong names were judged again, and so were 94 outputs of new bugs after real reports: the verdict learned thresholds of tiles, small outputs and rows that are 0. No property of a match tells wrong names from right ones: of its residual, its gain, the time of the search, the count of names listed and five others, none orders a wrong name behind a right one in more than 64 of 100 pairs.
# The seventeenth set misses both aims. Of its twelve wrong names, four say the cause in words that its patterns lack, as "sinks in base 2 where e is meant" for sinks in powers of two, or "sinks by a factor, times 0.125" for sinks that were scaled like scores; by the rule they count as wrong. Of the others, "ALiBi slopes with the wrong sign" and "a bias of the scores of whole tiles" say what distances that begin anew in a row or a tile do to a call, "V read as 0" says what an output that starts over lacks, and a log-sum-exp that lands in a channel of the output is taken for a foreign sum there. Without a name are blocks of two and four bits in V, codes read without their sign or their scales, a clamp of Q, a cap that is not divided by, and a head that begins half a head further.
#
# Before the eighteenth set, the seven of those wrong names that patterns do not explain were judged again and are right now, and so are fifteen of twenty outputs that had no name.
# The eighteenth set misses both aims by more: its names are right less often than those of most sets, and as often wrong as the seventeenth's. All twelve wrong names were read again. Seven say what the mistake does in other words, as "a bias of K or of the scores of whole tiles" for K less the mean of each tile, "another row's output", in some channels, for channels that the row before stores, or "the row by a factor of its own, in some channels" for channels that are not divided by the denominator. Two say "RoPE of Q or K alone" where new keys are turned once more. Three point elsewhere: V's scale that is left out in a part of the rows is called a denominator, and one scale for all blocks of V is called a wrong rescale.
# Without a name are K by its signs or at a longer stride, formats that are read as their neighbours or wrap around, angles in 16 bits or of half the size, tables of another layer, and an output that is gated.
#
# So the share of right names depends on who writes the bugs more than on what the verdict learned from the set before; decision {doc}`26 </book/decisions/0026-the-aims-for-names-stay-missed>` says what was tried. A reader does best to expect what the sets of all these writers say together, which is the line of the sets that were *held out once*, and to look at the two residuals beside each name.
#
# ### Others
#
# This section has the verdict on what other libraries compute on a GPU, in decode and prefill.
# Each output is judged twice: told that $P$ was kept in fp32, and told that it was rounded to the input's format.
# All are of an H100, and none is called a bug.

# %% tags=["hide-input"]
others = recorded.newest_of_each(store.read("peer_verdicts"), ("batch", "kv_len", "dtype"))
others = pd.DataFrame(others)
others = others[others.metric != "refused"]
assert others.gpu.str.contains("H100").all(), "said of an H100"
assert not others.note.str.contains(": BUG").any(), "none is said to be a bug"
told = others.policy.where(others.policy == "p=fp32", "p=input").str.replace("p=", "P in ")
others = others.assign(told=told.str.replace("input", "16 bits") + ", " + others.dtype)
called = others[others.metric == "bug"].groupby(["kernel", "told"], sort=False)
called = called["value"].agg(lambda bugs: f"{bugs.sum():.0f} of {len(bugs)}").unstack("told")
plots.table(called.rename_axis("LESS EXACT or BUG").reset_index(), "others")

# %% [markdown]
# The evidence, where the told format was right, is the largest error over its bound, and the spread of $z$ over all elements, both at their largest over the shapes.

# %% tags=["hide-input"]
fair = others[others.told.str.startswith("P in 16 bits")]
fair = fair.pivot_table(index=["kernel", "dtype"], columns="metric", values="value", aggfunc="max")
fair = fair.reset_index()[["kernel", "dtype", "bound_ratio", "z_spread", "bias"]]
fair.columns = ["backend", "dtype", "error / bound", "spread of z", "bias along o"]
digits = {"error / bound": "{:.2f}", "spread of z": "{:.2f}", "bias along o": "{:+.1e}"}
plots.table(fair, "evidence", digits)

# %% [markdown]
# If the verdict is told fp32, it calls the backends that round $P$ less exact in most cases, and says that they round it; if it is told 16 bits, it accepts them. From nothing but tensors it sees which of the two a backend does.
# torch's *math* keeps $P$ in fp32 and passes both.
# With values of mean 1 some of them pass: the store in 16 bits hides what is inside, and a verdict can only be as sharp as the output.
#
# FlashInfer's decodes that split the keys of a request are less exact in either case but one, on CUDA cores and on tensor cores.
# The verdict is right about it.
# FlashInfer stores the splits' partial outputs in the type of the output before it merges them; an exercise of {doc}`tensor_cores_on_and_off` finds the variance that this adds.
# The same kernels told not to split, and `fa3`, which never does, are accepted where the verdict is told 16 bits.
# What it says of the kernels that split, in decode and in prefill:

# %%
splits = others.kernel.str.contains("flashinfer") & ~others.kernel.str.contains("unsplit|fa3")
refused = others[(others.metric == "bug") & (others.value > 0) & splits]
names = refused.note.str.extract(r"(?P<answer>BUG|LESS EXACT): (?P<name>[^;]*)")
names.name = names.name.str.replace("than the format allows: ", "")
told_and_named = names.assign(told=refused.told.str.partition(",")[0])
print(told_and_named.value_counts(["told", "answer", "name"], sort=False).to_string())

# %% [markdown]
# Told fp32, the verdict names a cause that is there in each: partial outputs in the input's format, the rounding of $P$, or both.
# Told 16 bits it accounts for the rounding of $P$, and what remains of the decodes is small: the spread of $z$ in the table above. It then names a kernel that takes the mean of V off, whose error is as large, or it says the size alone. The first of these names is wrong.
# A simulation of the two roundings alone, of $P$ and of the partial outputs, passed when it was judged in the same way (it is not in `data/`). So FlashInfer's error has one more part, which was not found.
# The extra rounding is a choice and not a mistake. The verdict says that rounding *as described* did not do this, and the evidence says how small the effect was.

# %% [markdown]
# ### Every kernel before the judge, live
#
# The chapter judged one decode kernel in detail.
# This cell runs all kernels of decode and prefill, in CUDA and in Triton, with tensor cores on and off.
# Each output is held against its bound and its expected spread, and a kernel that fails stays in the table with the reason.

# %% tags=["nbval-ignore-output"]
print(*(workload.label for workload in bench.here), sep="\n")
ran = bench.run()
columns = ["operation", "kernel", "language", "tensor_cores", "time_ms", "kind", "note"]
plots.table(ran[columns], "ran", {"time_ms": "{:.3g}"})

# %% [markdown]
# No right kernel failed.

# %% mystnb={"figure": {"caption": "The times of what is judged, full size, recorded where this machine has no GPU.", "name": "verdict-timing"}, "image": {"alt": "A panel for each workload: a mark for each kernel and library on a logarithmic axis of milliseconds, squares with tensor cores and circles without. Vertical lines mark the least time with tensor cores and without.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_timing()
plt.show()

# %% mystnb={"figure": {"caption": "What rounding looks like in a decode: an even grain, with no head or request that stands apart. bf16.", "name": "verdict-errors-decode"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("decode")
plt.show()

# %% mystnb={"figure": {"caption": "The same in a prefill. bf16; the curves below show that every element stays below 100 % of its bound.", "name": "verdict-errors-prefill"}, "image": {"alt": "Heat maps of the rmse over requests and query heads, one for each kernel. Below, the distribution of the absolute error for each head, tensor cores on beside off, and the share of elements below each percentage of the bound, a curve for each request.", "width": "100%"}} tags=["hide-input", "nbval-ignore-output"]
bench.plot_errors("prefill")
plt.show()

# %% [markdown]
# This is what ran here:

# %% tags=["nbval-ignore-output"]
bench.log

# %% [markdown]
# ## What we learned
#
# The numbers below are computed from the tables above, in the cells folded here.

# %% tags=["hide-cell"]
found = 100 * wrong.groupby("rule").refused.sum() / wrong.groupby("rule").runs.sum()
alarms = sound.groupby("rule").refused.sum()
in_bf16 = plots.refused_shares(sound, "dtype").loc["bf16"]
least = shares.min()
hardest = shares.loc[["P truncated", "O accumulated in 16 bits", "padding in the denominator"]]
on_cpu = counts[(counts.device == "CPU build") & (counts.rule == VERDICT)]
totals = {kind: int(part[part.rule == VERDICT].runs.sum()) for kind, part in
          (("wrong", wrong), ("right", sound))}  # fmt: skip

# %% tags=["hide-cell"]
glued = {
    "wrong_runs": f"{totals['wrong']}", "right_runs": f"{totals['right']}",
    "verdict_found": f"{found[VERDICT]:.2f}", "verdict_alarms": f"{alarms[VERDICT]}",
    "cpu_runs": f"{on_cpu.runs.sum()}", "cpu_alarms": f"{on_cpu.refused.sum()}",
    "close3_alarms": f"{in_bf16['close 1e-3']:.0f}", "close2_found": f"{found['close 1e-2']:.0f}",
    "close3_found": f"{found['close 1e-3']:.0f}", "cosine_found": f"{found['cosine']:.0f}",
    "fa_found": f"{found['FA 2x']:.0f}", "torch_found": f"{found['PyTorch fudge']:.0f}",
    "fa_hardest": f"{hardest['FA 2x'].mean():.0f}", "cosine_least": f"{least['cosine']:.0f}",
    "close2_long": f"{by_length['close 1e-2'].iloc[-1]:.0f}",
    "close2_short": f"{by_length['close 1e-2'].iloc[0]:.0f}",
}  # fmt: skip
for name, text in glued.items():
    glue(name, text, display=False)
listed = pd.DataFrame(glued.items(), columns=["name", "number"])
plots.table(listed.assign(name=listed.name.str.replace("_", " ")), "numbers")

# %% [markdown]
# 1. **The failure in the question meant nothing, and so did the pass.**
#    At 1e-3, {glue:text}`close3_alarms` % of the outputs of right bf16 kernels fail, by a single flip of the last bit.
#    At 1e-2 none fails, and {glue:text}`close2_found` % of the broken ones are found: {glue:text}`close2_short` % at the shortest length, {glue:text}`close2_long` % at the longest.
# 2. **A tolerance relative to eager code is as wide as the error of eager code.**
#    Twice the error of 16-bit eager attention sounds strict, but eager code rounds its scores too, and one element sets the allowance for all.
#    FlashAttention's rule finds {glue:text}`fa_found` % and PyTorch's {glue:text}`torch_found` %; of the three quietest bugs FlashAttention's finds {glue:text}`fa_hardest` %.
# 3. **An average sees an error that all elements share, and misses one that is local or small.**
#    The cosine finds {glue:text}`cosine_found` %, but of one bug only {glue:text}`cosine_least` %: its threshold is one number for fp16 and bf16, eight times apart in precision.
# 4. **Divided by what rounding does, error becomes evidence.**
#    The verdict found {glue:text}`verdict_found` % of {glue:text}`wrong_runs` wrong outputs and called {glue:text}`verdict_alarms` of {glue:text}`right_runs` right ones wrong, and on the CPU build {glue:text}`cpu_alarms` of {glue:text}`cpu_runs` right ones.
#    The lab's tests compute a part of these counts again with every change, on the CPU build, whose outputs have the same bits.
#    It needs the inputs, a float64 reference, and to be told how $P$ is rounded. If it is told wrongly it says BUG, and rightly so: the kernel does not round as described.
#
# Where does the verdict fail?
# Its power grows with the number of elements: with one request of few heads, a truncated $P$ in fp16 is only odd, not impossible.
# It judges one call, so that a race that strikes one launch in a thousand is found only if that launch is judged.
# Inputs that cannot show a bug hide it from the verdict too: with all keys zero, as in the test of the question's file, every weight is the same, and no mistake about $K$ exists.
#
# ## Exercises
#
# ```{exercise}
# :label: rounding-or-bug-flip
#
# Take the truth of the case above, scale it so that its largest element is 0.3, round it to bf16, and move one element by one ulp.
# Does the comparison at 1e-3 pass?
# Check your answer with `exercises.check("rounding-or-bug-flip", word)`: "passes" or "fails".
# ```
#
# ```{solution-start} rounding-or-bug-flip
# :class: dropdown
# ```
#
# It does not: one ulp of an element in [0.25, 0.5) is larger than what the rule allows it.

# %%
scaled = rounding.round_to(judge.truth * (0.3 / np.abs(judge.truth).max()), "bf16")
largest = np.unravel_index(np.abs(scaled).argmax(), scaled.shape)
flipped = rounding.quantum(scaled, "bf16")[largest]
allowed = 1e-3 + 1e-3 * np.abs(scaled[largest])
assert exercises.check("rounding-or-bug-flip", "fails" if flipped > allowed else "passes")

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: rounding-or-bug-fool
#
# Make an output in which *every* element is wrong by the same factor, and which all rules but the cosine and 1e-3 accept.
# What does the verdict say?
# Check your answer with `exercises.check("rounding-or-bug-fool", word)`: "accepts" or "refuses".
# ```
#
# ```{solution-start} rounding-or-bug-fool
# :class: dropdown
# ```
#
# A factor of half a percent does it, such as a slightly wrong denominator would give.
# The verdict names a factor of V or the output; here on eight requests of 305 keys.

# %%
short = decode.exposing_case(right_mutant, 305, "bf16", seed=0, device="cpu")
split = decode.LENGTHS[305].keys_per_split
sound = ops.decode(short.q, short.cache, kernel="decode_mma", keys_per_split=split).out
answers = Criteria(short).answers(0.995 * sound, policy)
accepted = [rule for rule in RULES if answers[rule] != REFUSED]
assert {"FA 2x", "FA3 2x", "close 1e-2"} <= set(accepted)
assert exercises.check(
    "rounding-or-bug-fool", "refuses" if answers[VERDICT] == REFUSED else "accepts"
)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise}
# :label: rounding-or-bug-keys
#
# The test of the question's file had $K = 0$.
# Run the mutant whose keys are those of the KV head beside on such inputs.
# Which rule can find it?
# Check your answer with `exercises.check("rounding-or-bug-keys", rules)`: the number of rules that find it.
# ```
#
# ```{solution-start} rounding-or-bug-keys
# :class: dropdown
# ```
#
# No rule can: all keys are alike, those of the other head too, and the mutant gives the right output, bit for bit.
# So the power of a test depends on its inputs.

# %%
blind = decode.exposing_case(decode.MUTANTS["head mix-up"], 305, "bf16", seed=0, device="cpu")
blind.cache.k.zero_()
split = decode.LENGTHS[305].keys_per_split
unseen = decode.decode(decode.MUTANTS["head mix-up"], "decode_mma", blind)
same = ops.decode(blind.q, blind.cache, kernel="decode_mma", keys_per_split=split).out
assert exercises.check("rounding-or-bug-keys", 0 if unseen.equal(same) else len(RULES))

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# The case and the maintainer's answer are from {cite:t}`flashinfer882`; that its test has keys of zero was read in the test's source.
# The rules were read in the test suites of FlashAttention {cite:p}`dao2024,shah2024`, PyTorch, FlashInfer {cite:p}`ye2025` and FlashMLA; the files are named in the table above.
# Each mutant names the report it follows; the mutant is our model of it, in our kernels, and not the code of the report.
# {cite:t}`higham2019` justify the treatment of roundings as independent uniform errors.
# The model of tensor cores is from {cite:t}`fasi2021` and {cite:t}`xie2025`.
