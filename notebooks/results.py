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
# # Results
#
# This page shows what the lab promised to reach, and what it reached.
# A target is a line of `data/targets.toml`, with which the newest measurement is compared.
# A result is the newest recorded run that measured both sides in one process; `labkernels scoreboard` prints the same.
#
# *Ratio* is the other library's time divided by ours; of errors it is the error without a remedy divided by the error with it.
# More is better, and 1 means equal. *At least* is the promised ratio.

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
from myst_nb import glue

from labkernels import hardware, plots
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.decode.workload import Decode
from labkernels.plots import style
from labkernels.records import profiles, recorded, store
from labkernels.records.scoreboard import MET, NOT_MEASURED, NOT_MET, scoreboard

scores = scoreboard()
measured = [s for s in scores if s.status != NOT_MEASURED]
timed = [s for s in scores if s.target.metric in ("time", "time_graph")]

# %% tags=["hide-input"]
PARTS = {"decode_tensor_cores": "decode", "decode_fp8": "decode of 8 bits", "decode_fp8_scales": "decode of 8 bits", "decode_fp8_peers": "decode of 8 bits", "prefill_fp8": "prefill of 8 bits", "prefill": "prefill", "mla": "MLA decode", "backward": "backward", "kv_append": "append", "host_time": "calls on the host"}  # fmt: skip


def summary(name, chosen):
    found = pd.Series([s.ratio for s in chosen if s.peer and s.status != NOT_MEASURED])
    statuses = [s.status for s in chosen]
    counts = {status: statuses.count(status) for status in (MET, NOT_MET, NOT_MEASURED)}
    return {"part": name, "targets": len(chosen), **counts, "median ratio": found.median(), "least ratio": found.min()}  # fmt: skip


# %% tags=["hide-input"]
of_part = {name: [] for name in [*PARTS.values(), "errors"]}
for s in scores:
    on_error = s.target.metric.startswith("error")
    of_part["errors" if on_error else PARTS[s.target.experiment]].append(s)
lines = [summary(name, chosen) for name, chosen in of_part.items()] + [summary("all", scores)]
RATIOS = dict.fromkeys(["median ratio", "least ratio"], "{:.2f}")
plots.table(pd.DataFrame(lines), "summary", RATIOS)

# %% [markdown]
# {numref}`ratios` has a mark for each target of speed that was measured against another kernel: the measured ratio over the promised one, so that marks left of the line are targets that are missed.
# Each part has a table of its targets below, which opens in a page and scrolls in JupyterLab.

# %% mystnb={"figure": {"caption": "Most targets are met, and those that are missed are mostly missed by a few percent. A mark is a target; right of the line it is met.", "name": "ratios"}, "image": {"alt": "Four rows of marks, for decode, prefill, MLA decode and backward, around a vertical line at 1. Most marks lie right of the line, a cloud of them close to it.", "width": "100%"}} tags=["hide-input"]
COMPARED = ("decode_tensor_cores", "prefill", "mla", "backward")
compared = [s for s in timed if s.target.experiment in COMPARED and s.target.peers]
rows = [
    (PARTS[s.target.experiment], s.dtype, s.ratio if s.peer else None, s.target.minimum_ratio)
    for s in compared
]
ratios = pd.DataFrame(rows, columns=["part", "dtype", "ratio", "promised"])
plots.ratios_by_part(ratios, origin="measured in the runs named below")
plt.show()

# %% [markdown]
# These targets of the figure are missed; those of 8 bits and of calls on the host are in their own tables:

# %% tags=["hide-input"]
short = [
    (s.target.title, s.dtype, s.ratio, s.target.minimum_ratio)
    for s in compared
    if s.status == NOT_MET
]
short = pd.DataFrame(short, columns=["missed target", "dtype", "ratio", "at least"])
plots.table(short, "missed", {"ratio": "{:.3f}", "at least": "{:.2f}"})

# %% tags=["hide-input"]
for run in sorted({(s.gpu, s.started_utc, s.commit) for s in measured}):
    print("measured on {}, {}, commit {}".format(*run))

# %% [markdown]
# A target that is not measured yet has its row and no ratio: it is neither met nor missed.

# %% tags=["hide-input"]
DIGITS = {"ratio": "{:.3f}", "at least": "{:.2f}"}


# %% tags=["hide-input"]
def who(kernel, time_s):
    return f"{style.name(kernel)} {time_s * 1e3:.4f}\N{NO-BREAK SPACE}ms" if kernel else "–"


def row(s):
    return {
        "target": s.target.title,
        "dtype": s.dtype,
        "ours": who(s.kernel, s.ours),
        "other": who(s.peer, s.theirs),
        "ratio": s.ratio if s.peer else None,
        "at least": s.target.minimum_ratio if s.target.peers else None,
        "status": s.status,
    }


# %% tags=["hide-input"]
def shown(experiment):
    rows = pd.DataFrame(row(s) for s in timed if s.target.experiment == experiment)
    return plots.table(rows, experiment, DIGITS)


# %% [markdown]
# ## Decode
#
# Decode is held against FlashInfer's best backend for each shape, with tensor cores on and off.

# %% tags=["remove-input", "hide-output"]
shown("decode_tensor_cores")

# %% [markdown]
# ## Eight bits
#
# A decode from a cache of 8 bits is held against the rate of a copy, and against the time of our own decode from 16 bits in the same run; {doc}`eight_bits` says what is in the way. Scales of pages and of tokens are held against scales of heads, and a prefill in 8 bits against the rates that FlashAttention-3 publishes.

# %% tags=["remove-input", "hide-output"]
eight = [
    {"in e4m3": "{batch} x {kv_len}, {q_heads}/{kv_heads}".format(**s.target.workload)}
    | row(s) | {"at most, ms": 1e3 * s.target.maximum if s.target.maximum else None}
    for s in timed if "_fp8" in s.target.experiment
]  # fmt: skip
plots.table(pd.DataFrame(eight), "decode_fp8", DIGITS | {"at most, ms": "{:.4f}"})

# %% [markdown]
# ## Prefill
#
# `prefill_mma` is held against FlashAttention-2, and `prefill_wgmma` against the fastest of torch's two kernels, FlashInfer's fa3 and FlashAttention-4; with pages it is held against fa3.
# What was tried for the missed rows, here and below, is told in decision {doc}`27 </book/decisions/0027-the-targets-of-speed-that-stay-missed>`.
# Some rows compare runs of our own: pages with none, and uneven lengths with even ones.

# %% tags=["remove-input", "hide-output"]
shown("prefill")

# %% [markdown]
# ## MLA decode
#
# MLA decode is held against FlashInfer's two generations: `mla_mma` against fa2, `mla_wgmma` against fa3, and in some rows the faster of ours against the faster of theirs.

# %% tags=["remove-input", "hide-output"]
shown("mla")

# %% [markdown]
# ## Backward
#
# The time of a backward pass is that of all its launches.
# `backward_wgmma` is held against the fastest of torch's cuDNN and FlashAttention-2 and, at head_dim 64 and 128, FlashAttention-4; `backward_mma` is held against FlashAttention-2.
# Where $dQ$ is always added up in the same order, a row compares with our own kernel without that order, or with FlashAttention-4, which then keeps an order too.

# %% tags=["remove-input", "hide-output"]
shown("backward")

# %% [markdown]
# ## The rest
#
# The append of new keys is compared with a copy.

# %% tags=["hide-input"]
rest = [s for s in timed if s.target.experiment == "kv_append"]
rest = pd.DataFrame(map(row, rest))
plots.table(rest, "rest", DIGITS)

# %% [markdown]
# ## Requests that share a prefix
#
# `cascade_decode` reads a prefix that all requests share once, and merges it with what each request has of its own. The table has microseconds, beside FlashInfer's cascade and beside decodes that read the prefix for each request, which then mostly comes from the L2 cache.
# Where the prefix is short, three launches take longer than that.

# %% tags=["hide-input"]
shared = pd.DataFrame(store.read("cascade"))
shared = shared[(shared.metric == "time_graph") & (shared.statistic == "median")]
shared = shared.assign(us=1e6 * shared.value, own=256)
shared["prefix"] = shared.kv_len - shared.own
shared = shared.pivot_table(index=["batch", "prefix", "own"], columns="kernel", values="us")
names = {"cascade_decode": "ours", "flashinfer_cascade": "FlashInfer's cascade"}
names |= {"decode_mma_n8": "ours, no cascade", "flashinfer_fa2": "FlashInfer's fa2, no cascade"}
shared = shared[list(names)].rename(columns=names)
shared["ratio"] = shared["FlashInfer's cascade"] / shared.ours
shared = shared.rename_axis(
    index={"batch": "requests", "own": "own keys"}, columns=None
).reset_index()
plots.table(shared, "cascade", dict.fromkeys(names.values(), "{:.0f}") | {"ratio": "{:.2f}"})

# %% [markdown]
# ## What a call costs its caller
#
# The table has the microseconds that a warm call spends in Python on the host, with requests so short that the GPU would wait for Python.
# Many calls are made in a row, and none waits for the GPU; the number is the median over such rows of calls.

# %% tags=["hide-input"]
host = [s for s in scores if s.target.experiment == "host_time"]
host = pd.DataFrame(
    {
        "target": s.target.title,
        "ours, us": s.ours * 1e6 if s.kernel else None,
        "at most, us": s.target.maximum * 1e6,
        "status": s.status,
    }
    for s in host
)
plots.table(host, "host", {"ours, us": "{:.1f}", "at most, us": "{:.0f}"})

# %% [markdown]
# The next table says where the time goes, in microseconds. Each column is a recorded run on some host, and the last is the newest.
# Hosts differ, and a host that others share differs from hour to hour, for torch's own calls as for ours.
# So read a column downwards. *autograd alone* makes outputs and gradients and computes nothing; its row is what is left when nothing of the lab runs.

# %% tags=["hide-input"]
of_calls = pd.DataFrame(store.select(store.read("host_time"), {"statistic": "median"}))
of_calls["run"] = of_calls["gpu"].str.split().str[1] + ", " + of_calls["started_utc"].str[:16].str.replace("T", " ")  # fmt: skip
calls = of_calls.pivot(index="kernel", columns="run", values="value") * 1e6
runs = sorted(calls, key=lambda run: run.split(", ")[1])
calls = calls.loc[of_calls["kernel"].drop_duplicates(keep="last"), runs].rename_axis("call")
plots.table(calls.reset_index(), "calls", dict.fromkeys(runs, "{:.1f}"))

# %% tags=["remove-cell"]
newest, both = calls[runs[-1]], "forward and backward"
for name in ("attention", "torch_sdpa"):
    threads_us = newest[f"{name}, {both}"] - newest[f"{name}, {both} in one thread"]
    glue(f"{name}_threads_us", f"{threads_us:.0f}", display=False)
    glue(f"{name}_threads", f"{100 * threads_us / newest[f'{name}, {both}']:.0f}", display=False)
glue("autograd_us", f"{newest[f'autograd alone, {both}']:.0f}", display=False)

# %% [markdown]
# The longest row is the one with gradients, and {glue:text}`attention_threads` % of it are neither a launch nor a check in the newest run.
# torch runs the backward pass of a GPU's tensors in a thread of its own, on another core. We think that Python's code and objects are not in the caches of that core; this was not counted.
# The way there and back costs {glue:text}`attention_threads_us` µs in `attention`. In torch's own attention, whose backward pass has no Python, it costs {glue:text}`torch_sdpa_threads_us` µs ({glue:text}`torch_sdpa_threads` %). autograd alone takes {glue:text}`autograd_us` µs.
# If you train on one GPU, you can save this: `torch.autograd.set_multithreading_enabled(False)` keeps the backward pass in the calling thread.

# %% [markdown]
# ## Every target on error
#
# The table has errors before the store, of one kernel under two numeric policies; {doc}`where_the_error_comes_from` says what each switch does.
# Promoted sums in bf16 with P rounded once are no target, since they leave the bias of rounding P, the larger one, as it is; their number is in that chapter.

# %% tags=["hide-input"]
errors = pd.DataFrame(
    {
        "target": s.target.title,
        "dtype": s.dtype,
        "with": s.ours,
        "without": s.theirs,
        "ratio": s.ratio,
        "at least": s.target.minimum_ratio,
        "status": s.status,
    }
    for s in measured
    if s.target.metric.startswith("error")
)

# %% tags=["hide-input"]
digits = {"with": "{:.2e}", "without": "{:.2e}", "ratio": "{:.1f}", "at least": "{:.1f}"}
plots.table(errors, "errors", digits)

# %% [markdown]
# ## How much room the missed decode targets left
#
# The table has, for each decode target that is not met, the time that the target asks for, and the time in which this run's plain read of memory would bring the same bytes.
# The rest is all that a kernel may spend on its launch, on the first bytes to arrive and on its last block.

# %% tags=["hide-input"]
rows = store.newest(store.read("decode_tensor_cores"))
reads = [r["value"] for r in rows if (r["kernel"], r["metric"]) == ("read", "bandwidth")]
room = []
missed = [s for s in timed if s.status == NOT_MET]
for s in (s for s in missed if s.target.experiment == "decode_tensor_cores"):
    shape = {k: v for k, v in s.target.workload.items() if k not in ("batch", "kv_len")}
    step = Decode.uniform(s.target.workload["batch"], s.target.workload["kv_len"], **shape)
    asked_s, read_s = s.theirs / s.target.minimum_ratio, step.bytes / reads[0]
    times = (asked_s, read_s, asked_s - read_s, s.ours - read_s)
    room.append([s.target.title, s.dtype, *(f"{t * 1e6:.1f}" for t in times)])
names = ["target", "dtype", "asked, us", "plain read, us", "room, us", "ours needs, us"]
plots.table(pd.DataFrame(room, columns=names), "room")

# %% [markdown]
# ## What the missed prefill targets lost
#
# All lengths have the same number of tokens, and so of tiles of 128 rows.
# For each tile of its share, a multiprocessor then takes the time $a + b\,L/128$ in a pass without a mask, with $L$ keys: $a$ is what a tile costs whatever its length, and $b$ what a step of 128 keys costs.
# From the recorded times, $a$ follows from 512 and 2048 keys, $b$ from 2048 and 16384:

# %% tags=["hide-input"]
of_dense = {"metric": "time", "statistic": "median", "causal": False, "page_size": 0}
rows = store.newest(store.select(store.read("prefill"), of_dense))
sms = hardware.gpu("h200").sm_count
tile_us = {
    (r["kernel"], r["head_dim"], r["kv_len"]): r["value"] * 1e6 * sms / r["tiles"]
    for r in (r | {"tiles": r["batch"] * r["q_len"] * r["q_heads"] / 128} for r in rows)
}
parts = []
for head_dim in (64, 128, 256):
    for kernel in ("prefill_wgmma", "torch_cudnn", "torch_fa2", "flash_attention_4"):
        us = [tile_us[kernel, head_dim, n] for n in (512, 2048, 16384)]
        early, late = (us[1] - us[0]) / (2048 - 512), (us[2] - us[1]) / (16384 - 2048)
        parts.append([head_dim, style.name(kernel), us[0] - 512 * early, 128 * late])

# %% tags=["hide-input"]
columns = ["head_dim", "kernel", "a: a tile, us", "b: 128 keys, us"]
parts = pd.DataFrame(parts, columns=columns)
digits = dict.fromkeys(columns[2:], "{:.2f}")
plots.table(parts, "parts", digits)

# %% [markdown]
# At 512 keys the missed rows lose in $a$: the end of a tile and the start of the next, in which the tensor cores wait; a causal pass sees half the keys, so that $a$ weighs twice.
# In $b$ FlashAttention-4 is ahead at head_dim 64, and within 1 % of ours at 128 and 256; no other library is ahead.
# Nsight Compute's samples of the warps at 512 keys say what $a$ is made of: the rows on their way out and the end of their sums; the next tile's $Q$, for which there is no second stage at head_dim 256; the wait for a turn at the tensor cores, at head_dim 64; and the first tile of every multiprocessor, when all ask memory for their keys at once, and for the kernel's own instructions.
# {doc}`half_idle_tensor_cores` has the counters of longer requests.

# %% tags=["hide-cell"]
b = parts.pivot(index="head_dim", columns="kernel", values=columns[3])
b = b.rdiv(b[style.name("prefill_wgmma")], axis=0)  # above 1: the peer is ahead
beside = b.pop(style.name("flash_attention_4"))
assert beside[64] > 1.01, "said of FlashAttention-4"
assert (beside[[128, 256]] - 1).abs().max() < 0.01, "said of FlashAttention-4"
assert b.max(axis=None) == 1, "no other peer is said to be ahead"

# %% [markdown]
# ## What each missed target spends its time on
#
# Nsight Compute counted our kernel and the best peer at the very workload of each target that is missed: how busy the parts of the GPU are, in percent of what each can do, and what the warps wait for most, with its share of their time.
# The words are the profiler's: a *long scoreboard* waits for global memory or L2, a *short scoreboard* for shared memory or the special-function unit, a *barrier* for other warps, and *wait* is the fixed latency of the instruction before.
# A peer without a row could not be counted in that run. The table opens in a page, and `labkernels scoreboard` prints the same.

# %% tags=["hide-cell"]
columns = {"tensor_pipe": "tensor pipe", "smem": "shared memory", "l2": "L2", "dram": "DRAM", "issue": "issue slots"}  # fmt: skip
lines = []
for s in (s for s in timed if s.status == NOT_MET):
    for kernel, values in s.profiles.items():
        reason, share = profiles.stalls(values)[0]
        line = {"target": s.target.title, "dtype": s.dtype, "kernel": style.name(kernel)}
        line |= {word: values.get(name, float("nan")) for name, word in columns.items()}
        lines.append(line | {"waits for": f"{reason}, {share:.0f} %"})
spent = pd.DataFrame(lines)
plots.table(spent, "spent", dict.fromkeys(columns.values(), "{:.0f}"))

# %% tags=["hide-cell"]
counted_on, counted_gpu = {}, {}
for row in sorted(store.read("missed_targets"), key=lambda row: str(row["started_utc"])):
    counted_on[row["kernel"]] = str(row["started_utc"])
    counted_gpu[row["kernel"]] = str(row["gpu"])
uncounted = [s for s in timed if s.status == NOT_MET and s.kernel not in s.profiles]
for s in uncounted:
    measured_on = max(row["started_utc"] for row in store.read(s.target.experiment))
    assert measured_on > counted_on.get(s.kernel, ""), (
        f"missed when counters were last read: {s.target.id}"
    )
titles = dict.fromkeys(f"{s.target.title}" for s in uncounted)
glue("uncounted", "; ".join(titles) or "none", display=False)
missed_by = dict.fromkeys(s.kernel for s in timed if s.kernel in s.profiles)
gpus = dict.fromkeys(counted_gpu[kernel] for kernel in missed_by)
glue("counted_gpus", " and an ".join(gpus), display=False)

# %% tags=["hide-cell"]
others = [s for s in timed if s in measured and s.gpu != "NVIDIA H200"]
ends = ", ".join(dict.fromkeys(s.target.title.rpartition(", ")[2] for s in others))
elsewhere = (
    f"{len(others)} with {ends}, on an {' and an '.join(dict.fromkeys(s.gpu for s in others))}"
)
glue("elsewhere", elsewhere if others else "none", display=False)

# %% [markdown]
# The counters are of an {glue:text}`counted_gpus`. The times of the targets are of an H200, but for targets that were measured elsewhere: {glue:text}`elsewhere`.
#
# Targets that were missed after the counters were read have none here: {glue:text}`uncounted`.

# %% [markdown]
# ## What the missed backward targets wait for
#
# The table has counters of the longest kernel of each backward pass at head_dim 256, for 4 requests of 4096 tokens without a mask: the FLOPs that its tensor cores did over those of the formula, and how busy its parts were, in percent of what each can do.
# Beside them stand the rates of whole causal passes, in TFLOP/s of the formula:

# %% tags=["hide-input"]
counted = recorded.newest_of_each(store.read("counters"), ("kernel", "tile", "head_dim"))
counted = plots.counter_table(pd.DataFrame(counted)).set_index(["kernel", "head_dim"])
BUSY = {"tensor_pipe": "tensor pipe, %", "smem": "shared memory, %", "l2": "L2, %"}
asked = Backward((4096,) * 4, (4096,) * 4, 8, 8, 256).flops
rows = store.select(
    store.read("backward"),
    {"metric": "time", "statistic": "median", "causal": True, "head_dim": 256},
)

# %% tags=["hide-input"]
rates = []
for kernel in ("backward_wgmma", "torch_cudnn", "torch_fa2"):
    name = kernel if kernel.startswith("backward") else f"{kernel} backward"
    busy = counted.loc[(name, 256)]
    done = busy.tensor_flops * busy.time * busy.sm_clock * sms
    rate = {"kernel": style.name(kernel), "FLOPs, done / asked": done / asked}
    rate |= busy[list(BUSY)].rename(BUSY)
    for row in sorted((r for r in rows if r["kernel"] == kernel), key=lambda r: r["kv_len"]):
        lengths, heads = (row["kv_len"],) * row["batch"], row["q_heads"]
        work = Backward(lengths, lengths, heads, heads, 256, causal=True)
        rate[f"{row['kv_len']} keys"] = work.flops / row["value"] / 1e12
    rates.append(rate)

# %% tags=["hide-input"]
rates = pd.DataFrame(rates)
sevens = rates.set_index("kernel").iloc[:, 0]["cuDNN (torch)"]
glue("seven_products", f"{sevens:.1f}", display=False)
digits = dict.fromkeys(rates.columns[2:], "{:.0f}") | {rates.columns[1]: "{:.2f}"}
plots.table(rates, "rates", digits)

# %% [markdown]
# In ours L2 is the busiest part: every KV tile adds its part of $dQ$ there, and at 256 channels a KV tile has few keys.
# cuDNN does {glue:text}`seven_products` times the FLOPs, which is seven products where five are asked: it seems to compute $S$ and $dP$ twice, once for $dK$ and $dV$ and once for $dQ$, and so leaves L2 alone.
# From 2048 keys to 16384 our rate grows all the way; cuDNN is at its best at 8192, where ours is the least ahead.
# The counters are those of the kernel before the changes that {doc}`the_tuner_and_the_backward_pass` tells.

# %% [markdown]
# ## Injected faults
#
# Tests killed processes, cut, flipped and filled files, denied calls of the system and let processes race, at random, and then asked for a right result or a refusal in one line. The code that did this has left the repository, and is in its history: {doc}`/book/decisions/0034-recordings-that-are-complete`.
# *Wrong* counted everything else: a wrong result without a word, a traceback, or damage that stays.

# %% tags=["hide-input"]
faults = pd.DataFrame(store.read("chaos"))
counts = ["injections", "right", "refused", "wrong"]
print(f"run of {faults.started_utc.iloc[0]}, commit {faults.commit.iloc[0]}")
plots.table(faults.groupby("suite", as_index=False)[counts].sum(), "faults", {})

# %% [markdown]
# ## The same bits every time
#
# On a GPU, decode steps were replayed under CUDA graphs while lengths and pages changed beneath them, and every kernel was repeated on the same inputs. The code that did this has left the package, and is in its history: {doc}`/book/decisions/0034-recordings-that-are-complete`.
# Each run's outputs were compared on the GPU, bit for bit, with those of the first run of the same contents.
# *Different* counts the runs whose bits differ, and *grown* the bytes of GPU memory held at the end and not at the start.

# %% tags=["hide-input"]
repeated = pd.DataFrame(store.read("reliability"))
shown = repeated[["what", "kernel", "runs", "different", "grown_bytes"]]
print(
    f"run of {repeated.started_utc.iloc[0]}, commit {repeated.commit.iloc[0]}, {repeated.device.iloc[0]}"
)
plots.table(shown, "reliability", {"runs": "{:,}"})

# %% [markdown]
# ## How long the chapters take
#
# `make times` runs one chapter after another, as a reader's Jupyter does, and nothing beside it. A time includes the start of the kernel, and what the chapter compiles if no earlier chapter compiled it.
# The aim is 60 s for each, on a GPU and on two cores of a CPU. A chapter that was written after these runs has no row.

# %% tags=["hide-input"]
ran = pd.DataFrame(store.read("chapters"))
ran["on"] = ran.device + ", " + ran.cores.astype(str) + " cores"
newest_of = ran.sort_values("started_utc", kind="stable").groupby(["chapter", "on"], as_index=False)
seconds = newest_of.last().pivot(index="chapter", columns="on", values="seconds")
for on, run in ran.groupby("on"):
    print(
        f"{on}: {', '.join(sorted(set(run.started_utc)))}, commit {', '.join(run.commit.unique())}"
    )
shown = seconds.map(lambda s: "not timed" if pd.isna(s) else f"{s:.0f} s")
plots.table(shown.reset_index(), "chapters", {})

# %% [markdown]
# ## Reasons
#
# The list says why a kernel or library refused a target's workload or failed in it. It may be empty.

# %% tags=["hide-input"]
notes = dict.fromkeys(f"{s.target.title}, {s.dtype}: {s.note}" for s in scores if s.note)
print("\n".join(notes) or "none")
