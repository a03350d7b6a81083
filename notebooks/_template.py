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
# # The title names the idea
#
# Copy this file to `notebooks/<idea>.py`, run `make notebooks`, and list the chapter in `book/_toc.yml`.
# A file name that begins with an underscore, like this one's, stays out of the book.
# Write one sentence per line; keep a code cell to 15 lines, and put what is longer into `labkernels`.
#
# ## Question
#
# One question that a person asked, with its source in `book/references.bib`, for example {cite:t}`milakov2018`.
# A second sentence says what is at stake.
#
# :::{admonition} Answer
# :class: important
#
# At most five lines, a sentence each, which a reader understands without the rest of the page.
# How sure: what was measured, on which hardware and versions, and what was only computed.
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
import math

import matplotlib.pyplot as plt

from labkernels import Bench, Decode, Prefill

# %% mystnb={"figure": {"caption": "One picture answers the question: the sum grows with the square of n. Computed on this machine.", "name": "template-figure"}, "image": {"alt": "A curve that rises from 0 to 5050, ever more steeply.", "width": "80%"}} tags=["hide-input"]
n = 100
figure, axes = plt.subplots(figsize=(5, 3))
axes.plot(range(n + 1), [math.comb(k + 1, 2) for k in range(n + 1)])
axes.set(xlabel="n, numbers", ylabel="their sum")
plt.show()

# %% [markdown]
# ## Prediction
#
# The formula, labelled, in the symbols of {doc}`/book/notation`, short enough for a phone:
#
# $$
# 1 + 2 + \dots + n = \frac{n \, (n + 1)}{2}
# $$ (template-sum)
#
# The prediction is computed before the measurement, from {eq}`template-sum`.

# %%
predicted = n * (n + 1) // 2
predicted

# %% [markdown]
# ## Code
#
# Listings are read from the real source, never pasted:
#
# ```{literalinclude} /labkernels/cuda/include/lab/attention/online_softmax.cuh
# :language: cpp
# :start-at: "// The maximum before the first key"
# :end-before: "// Raises a row's maximum"
# ```
#
# ## Measurement
#
# One figure a claim, no taller than a screen.
# Its caption states the claim and where the numbers come from; the alternative text says what is seen.

# %%
measured = sum(range(n + 1))
measured / predicted

# %% [markdown]
# ### The run
#
# Every chapter runs both operations for its question: CUDA and Triton, tensor cores on and off, on the few kernels that the question is about.
# Its figures of budget, timing, occupancy and errors are its own; `bench.log.drew("errors", "decode")` notes one that `Bench` did not draw.
# `bench.equations("decode_mma")` shows the two formulas, and `bench.log` at the end, with the tag `evidence` as all that only a checker needs, goes to {doc}`/book/evidence`; a test reads it.

# %% tags=["nbval-ignore-output"]
kernels = ["decode_mma", "prefill_mma"]
bench = Bench(Decode((64, 17), 8, 2, 128), Prefill((16,), (16,), 4, 4, 128), kernels=kernels)
bench.run()

# %% [markdown]
# ## What would change the answer
#
# Where the model fails, what was not measured, and which hardware, version or shape would give another answer.
#
# ## Exercises
#
# ```{exercise}
# :label: template-exercise
#
# What is the sum of the first $n$ odd numbers?
# ```
#
# ```{solution-start} template-exercise
# :class: dropdown
# ```
#
# It is $n^2$.

# %%
assert sum(range(1, 2 * n, 2)) == n**2

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
#
# What was read, and what each source was used for: the online softmax is from {cite:t}`milakov2018`.
