# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
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
# What the lab promised to reach, and what it reached.
# A target is a line of `data/targets.toml`, written before the measurement.
# A result is the newest recorded run that measured both sides in one process; `labkernels scoreboard` prints the same.
#
# *Ratio* is the other library's time divided by ours, or an error without a measure against it divided by the error with it.
# More is better, and 1 means equal.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt
import pandas as pd

from labkernels.records import store
from labkernels.records.scoreboard import MET, NOT_MEASURED, NOT_MET, scoreboard
from labkernels.workload import Decode

scores = scoreboard()
measured = [s for s in scores if s.status != NOT_MEASURED]
timed = [s for s in scores if s.target.metric == "time_graph"]
with_peer = [s for s in timed if s.target.peers]

# %% tags=["hide-input"]
for status in (MET, NOT_MET, NOT_MEASURED):
    print(f"{sum(s.status == status for s in scores):3d} of {len(scores)} targets: {status}")
for run in sorted({(s.gpu, s.started_utc, s.commit) for s in measured}):
    print("measured on {}, {}, commit {}".format(*run))

# %% [markdown]
# ## Ratio and target
#
# {numref}`ratio-and-target` shows each target that names another library.

# %% mystnb={"figure": {"caption": "Time of the other library divided by ours, for each target. The tick is what was promised. Measured in the runs named above; a row without a point is not measured.", "name": "ratio-and-target"}, "image": {"alt": "One row a target. A tick marks the ratio that was promised; a circle for fp16 and a square for bf16 mark the measured ratios. The numbers are in the table below.", "width": "100%"}} tags=["hide-input"]
promised = {s.target.title: s.target.minimum_ratio for s in with_peer}
titles = list(promised)
figure, axes = plt.subplots(figsize=(6.5, 0.28 * len(titles) + 1), dpi=160, layout="constrained")
axes.axvline(1, color="#c3c9d1", zorder=0)
axes.scatter(list(promised.values()), titles, marker="|", color="#56606d", s=160, label="promised")
for dtype, marker, colour in (("fp16", "o", "#0072b2"), ("bf16", "s", "#d55e00")):
    chosen = [s for s in with_peer if s.status != NOT_MEASURED and s.dtype == dtype]
    places = [s.target.title for s in chosen]
    axes.scatter([s.ratio for s in chosen], places, marker=marker, color=colour, label=dtype)
axes.set(xlabel="other library's time / our time")
axes.invert_yaxis()
figure.legend(loc="outside upper center", ncols=3)
plt.show()

# %% [markdown]
# ## Every target on time
#
# "At least" is the promised ratio.
# Where no other library can do the job, the target asks only for a verified time.

# %% tags=["hide-input"]
table = pd.DataFrame(
    {
        "target": s.target.title,
        "dtype": s.dtype,
        "ours": s.kernel or "–",
        "ours, ms": s.ours * 1e3 if s.kernel else None,
        "other": s.peer or "–",
        "other, ms": s.theirs * 1e3 if s.peer else None,
        "ratio": s.ratio if s.peer else None,
        "at least": s.target.minimum_ratio if s.target.peers else None,
        "status": s.status,
    }
    for s in timed
)

# %% tags=["hide-input"]
digits = {"ours, ms": "{:.4f}", "other, ms": "{:.4f}", "ratio": "{:.3f}", "at least": "{:.2f}"}
table.style.hide(axis="index").set_uuid("scoreboard").format(digits, na_rep="–")

# %% [markdown]
# ## Every target on error
#
# Errors before the store, of one kernel under two numeric policies; {doc}`where_the_error_comes_from` says what each switch does.

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
errors.style.hide(axis="index").set_uuid("errors").format(digits)

# %% [markdown]
# ## How much room the missed targets left
#
# For each target that is not met: the time it asks for, and the time in which this run's plain read of memory would bring the same bytes.
# The rest is all that a kernel may spend on its launch, on the first bytes to arrive and on its last block.

# %% tags=["hide-input"]
rows = store.newest(store.read(store.DATA_DIR / "decode_tensor_cores.csv"))
reads = [r["value"] for r in rows if (r["kernel"], r["metric"]) == ("read", "bandwidth")]
room = []
for s in (s for s in timed if s.status == NOT_MET):
    shape = {k: v for k, v in s.target.workload.items() if k not in ("batch", "kv_len")}
    step = Decode.uniform(s.target.workload["batch"], s.target.workload["kv_len"], **shape)
    asked_s, read_s = s.theirs / s.target.minimum_ratio, step.bytes / reads[0]
    times = (asked_s, read_s, asked_s - read_s, s.ours - read_s)
    room.append([s.target.title, s.dtype, *(f"{t * 1e6:.1f}" for t in times)])
names = ["target", "dtype", "asked, us", "plain read, us", "room, us", "ours needs, us"]
pd.DataFrame(room, columns=names).style.hide(axis="index").set_uuid("room")

# %% [markdown]
# ## Reasons
#
# What a run said about a kernel or library that refused or failed.

# %% tags=["hide-input"]
notes = dict.fromkeys(f"{s.target.title}, {s.dtype}: {s.note}" for s in scores if s.note)
print("\n".join(notes) or "none")
