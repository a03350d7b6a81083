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
# # Hardware
#
# Every fact about a GPU that the lab uses has its one home in `labkernels/hardware/gpus.toml`, with its unit, its source and the day it was checked.
# This page only shows that file.
# Vendors' peaks and our own measurements are different facts, and the lab never mixes them.

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
import pandas as pd

from labkernels import plots
from labkernels.hardware import GPUS, fact
from labkernels.plots import style
from labkernels.units import TB, GiB, KiB

gpus = pd.DataFrame([vars(g) for g in GPUS.values()])
gpus["name"] = gpus["name"].str.removeprefix("NVIDIA ").str.removeprefix("GeForce ")


# %% tags=["hide-input"]
def show(rows, name, columns):
    """A table of `columns`, title -> (field, divided by, digits); its HTML never changes by itself."""
    table = pd.DataFrame({title: rows[field] for title, (field, _, _) in columns.items()})
    formats = {}
    for title, (_, divisor, digits) in columns.items():
        if digits is not None:
            table[title] = table[title] / divisor
            formats[title] = f"{{:,.{digits}f}}"
    return plots.table(table, name, formats)


# %% [markdown]
# ## Rates
#
# These are the peaks of the whole chip, as the vendor gives them.
# "Tensor" counts dense fp16 products summed in fp32, which is what attention needs; GeForce parts do these at half the rate of fp16 sums.
# The copy rate is our own measurement, bytes read plus bytes written, where we have one.

# %% tags=["hide-input"]
rates = {
    "GPU": ("name", 1, None),
    "arch": ("arch", 1, None),
    "SMs": ("sm_count", 1, 0),
    "memory, GiB": ("dram_bytes", GiB, 0),
    "memory, TB/s": ("dram_bytes_per_s", TB, 2),
    "copy measured, TB/s": ("measured_copy_bytes_per_s", TB, 2),
    "fp32, TFLOP/s": ("fp32_flops", 1e12, 1),
    "tensor, TFLOP/s": ("tensor_fp16_flops", 1e12, 1),
}
show(gpus, "rates", rates)

# %% [markdown]
# ## The ridge point
#
# A kernel that does $I$ operations for each byte it moves is limited by memory while $I$ is below the ridge point, FLOP/s divided by bytes/s {cite:p}`williams2009`.
#
# Decode reads each 16-bit key and value once, and for each of the $g$ query heads of the group it does one multiplication and one addition with it.
# So its intensity, in FLOP per byte, is
#
# $$
# I \;=\; \frac{4 \, L \, H_q \, D}{2 \cdot 2 \, L \, H_{kv} \, D} \;=\; g.
# $$ (decode-intensity)
#
# {numref}`ridge-points` draws both ridge points of every GPU beside the groups 1 to 16.
# With tensor cores, decode is far below the ridge everywhere: memory is the limit.
# Without them a large group comes close to it, most of all on the chips with the fastest memory.

# %% tags=["hide-input"]
by_name = gpus[::-1].set_index("name")
on_cuda_cores = by_name.fp32_flops / by_name.dram_bytes_per_s
on_tensor_cores = by_name.tensor_fp16_flops / by_name.dram_bytes_per_s
ridge = pd.DataFrame({"GPU": by_name.index, "cuda": on_cuda_cores, "tensor": on_tensor_cores})
ridge_columns = {
    "GPU": ("GPU", 1, None),
    "CUDA cores, FLOP per byte": ("cuda", 1, 1),
    "tensor cores, FLOP per byte": ("tensor", 1, 1),
}
show(ridge[::-1], "ridge", ridge_columns)

# %% mystnb={"figure": {"caption": "Decode with a group of 1 to 16 is memory-bound on tensor cores everywhere; on CUDA cores a large group reaches the ridge point of the GPUs with the fastest memory. The peaks are the vendors', in gpus.toml.", "name": "ridge-points"}, "image": {"alt": "Left, bars of memory bandwidth for each GPU, from 0.2 to 7.7 TB/s. Right, on a logarithmic axis of FLOP per byte, two points for each GPU: CUDA cores at about 10 to 106, tensor cores at about 76 to 419. A band from 1 to 16 marks decode; it lies left of all tensor-core points and touches the CUDA-core points of A100, H200 and B200.", "width": "100%"}} tags=["hide-input"]
plt.rcParams.update(style.HOUSE)
names = by_name.index
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
left.barh(names, by_name.dram_bytes_per_s / TB, color="#8a94a3")
left.set(xlabel="memory bandwidth, TB/s")
right.axvspan(1, 16, color="#e69f00", alpha=0.25, lw=0, label="decode, group 1 to 16")
right.hlines(names, on_cuda_cores, on_tensor_cores, color="#c3c9d1")
right.plot(on_cuda_cores, names, "o", color="#d55e00", label="CUDA cores, fp32")
right.plot(on_tensor_cores, names, "s", color="#0072b2", label="tensor cores, fp16")
right.set(xscale="log", xlim=(0.8, 700), xlabel="ridge point, FLOP per byte")
figure.legend(*right.get_legend_handles_labels(), loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# ## Limits of one SM
#
# These belong to the architecture, and decide how many blocks run at once: see `labkernels.budget`.
# Of each block's shared memory the system keeps a part for itself, which counts for how many blocks fit.

# %% tags=["hide-input"]
limits = {
    "arch": ("arch", 1, None),
    "registers": ("registers_per_sm", 1, 0),
    "registers per thread": ("registers_per_thread_max", 1, 0),
    "shared memory, KiB": ("smem_per_sm_bytes", KiB, 0),
    "a block at most, KiB": ("smem_per_block_max_bytes", KiB, 0),
    "kept of each block, KiB": ("smem_reserved_per_block_bytes", KiB, 0),
    "warps": ("warps_per_sm_max", 1, 0),
    "blocks": ("blocks_per_sm_max", 1, 0),
    "fp32 FMA per clock": ("fp32_fma_per_clk_per_sm", 1, 0),
    "exp2 per clock": ("mufu_per_clk_per_sm", 1, 0),
}
show(gpus.drop_duplicates("arch"), "limits", limits)

# %% [markdown]
# ## Sources
#
# The table says where the facts come from, for which GPUs, and when they were last checked.

# %% tags=["hide-input"]
fields = gpus.columns.drop(["key", "name", "arch"])
facts = pd.DataFrame(
    {"GPU": key, "fact": field, **vars(fact(key, field))}
    for key, g in GPUS.items()
    for field in fields
    if getattr(g, field) is not None
)
by_source = facts.groupby("source", sort=False)
every = {column: lambda names: ", ".join(names.unique()) for column in ("fact", "GPU")}
sources = by_source.agg(every | {"date": "max"}).reset_index()
show(sources, "sources", {c: (c, 1, None) for c in sources})

# %% [markdown]
# ## Every fact
#
# This is the whole table, which opens in a page and scrolls in JupyterLab; a column is a GPU's key in `gpus.toml`.

# %% tags=["hide-input", "hide-output"]
table = facts.pivot(index=["fact", "unit"], columns="GPU", values="value")
table = table.loc[fields, list(GPUS)].reset_index().rename_axis(columns=None)
plots.table(table, "facts", dict.fromkeys(GPUS, "{:,.10g}"))
