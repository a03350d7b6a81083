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
# # The chapters, in order
#
# Each chapter is a notebook that predicts, runs and measures; the minutes are those of reading, without the exercises.
# A chapter stands by itself, and the lines below its answer say which earlier chapters help.
#
# | | Chapter | Minutes | Its question |
# |---|---|---|---|
# | 1 | [Your first kernel](your_first_kernel.ipynb) | 15 | How do a thousand threads divide a task? |
# | 2 | [A GPU in one sitting](a_gpu_in_one_sitting.ipynb) | 15 | What is a GPU made of, and what does a kernel take of it? |
# | 3 | [Attention, block by block](attention_block_by_block.ipynb) | 20 | How is attention computed a KV tile at a time? |
# | 4 | [Fragments and rounding](fragments_and_rounding.ipynb) | 15 | Which lane holds which number, and where is it rounded? |
# | 5 | [Tensor cores, on and off](tensor_cores_on_and_off.ipynb) | 20 | Which output of the same decode is right, and where does the speed come from? |
# | 6 | [What a tensor core really computes](what_a_tensor_core_computes.ipynb) | 20 | Does one attention kernel give the same bits on five GPUs? |
# | 7 | [Where the error comes from](where_the_error_comes_from.ipynb) | 25 | Which step makes the error, and what would it cost to remove it? |
# | 8 | [Rounding or bug?](rounding_or_bug.ipynb) | 20 | Could rounding have done this? |
# | 9 | [The test that could not fail](the_test_that_could_not_fail.ipynb) | 20 | Is bf16 at fault, or the tolerance, or the test? |
# | 10 | [A typo that looked like rounding](a_typo_that_looked_like_rounding.ipynb) | 15 | Why is a kernel right on one GPU and wrong on another? |
# | 11 | [Two roads to one attention](two_roads.ipynb) | 25 | Why do only some heads differ between a full pass and the KV cache? |
# | 12 | [Same bits, whatever the batch](same_bits.ipynb) | 20 | Why did my bits change when only the batch changed? |
# | 13 | [What a window saves](what_a_window_saves.ipynb) | 20 | What does a window save, and why is it not the length over the window? |
# | 14 | [Eight bits](eight_bits.ipynb) | 20 | Is a decode from 8 bits twice as fast, and which of its errors are rounding? |
# | 15 | [Half-idle tensor cores](half_idle_tensor_cores.ipynb) | 20 | Where does the other half of the tensor cores' time go? |
# | 16 | [A ladder from CUDA cores to wgmma](the_ladder.ipynb) | 20 | Which idea gains how much? |
# | 17 | [The tuner and the backward pass](the_tuner_and_the_backward_pass.ipynb) | 15 | Which tile is the fastest, and why is the backward pass harder? |
# | 18 | [One latent row for 128 heads](one_latent_row.ipynb) | 10 | Why does a latent decode need the fastest tensor cores? |
# | 19 | [Does it matter?](does_it_matter.ipynb) | 25 | "Rounding, harmless": harmless to what? |
# | 20 | [The order of a sum across a wire](across_a_wire.ipynb) | 15 | Which bits change when a context is split over GPUs? |

# %% tags=["remove-cell"]
# Where the lab is not installed, as in Colab, this cell installs it, with its recorded data.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("labkernels") is None:
    lab = "labkernels[gpu,plots] @ git+https://github.com/labkernels/labkernels"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", lab, "myst-nb"], check=True)

# %% [markdown]
# ## What this machine can do
#
# The chapters run their kernels here: on an NVIDIA GPU of `sm_80` (the A100 of 2020) or newer at full size, elsewhere as CPU builds and under Triton's interpreter, at a small size.
# This cell says what is there, and tries both compilers.

# %% tags=["nbval-ignore-output"]
from labkernels import cli

_ = cli.main(["doctor"])

# %% [markdown]
# ## Try one
#
# Any workload goes on the bench.
# Change the numbers, and run the cell again.

# %% tags=["nbval-ignore-output"]
from labkernels import Bench, Decode

bench = Bench(Decode.uniform(16, 2048, q_heads=32, kv_heads=8))
ran = bench.run()
print("times:", ", ".join(ran.kind.unique()))
ran.drop(columns="kind")
