"""The data of the explorer of tolerances in a page: recorded judgements of outputs."""

from __future__ import annotations

import collections
from typing import Any

from labkernels.numerics.verdict.criteria import RULES
from labkernels.records import store

VERDICT = "verdict"
ORDER = ("close 1e-2", "close 1e-3", "FA 2x", "FA3 2x", "PyTorch fudge", "cosine", VERDICT)
_WHOLE_VERDICT = "every error beside the error that rounding causes in that element"


def data() -> dict[str, Any]:
    """Return the counts of data/accuracy/detection.parquet that were made on a GPU, as JSON.

    A row has dtype, keys, bug ("" if the kernel is right) and for each rule, in the order of
    "rules", how many outputs it judged and how many of them it refused.
    """
    rows = [row for row in store.read("detection") if row["device"] != "CPU build"]
    counts: dict[tuple, dict[str, list[int]]] = collections.defaultdict(dict)
    for row in rows:
        of = counts[row["dtype"], row["kv_len"], row["mutant"] or ""]
        runs, refused = of.setdefault(row["rule"], [0, 0])
        of[row["rule"]] = [runs + row["runs"], refused + row["refused"]]
    commits = ", ".join(dict.fromkeys(str(row["commit"]) for row in rows))
    day = str(rows[0]["started_utc"])[:10]
    meanings = {rule.name: rule.demand for rule in RULES.values()} | {VERDICT: _WHOLE_VERDICT}
    return {
        "rules": [{"name": name, "meaning": meanings[name]} for name in ORDER],
        "rows": [[*key, *(of.get(name, [0, 0]) for name in ORDER)] for key, of in counts.items()],
        "origin": f"measured on {rows[0]['device']}, {day}, commit {commits}",
    }
