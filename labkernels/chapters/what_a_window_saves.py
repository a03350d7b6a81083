"""Times with a window and without: what the keys of a tile predict, and what was recorded."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.packed_gqa.schedule import Lengths, visible_keys
from labkernels.kernels.prefill.workload import Prefill
from labkernels.variant import AttentionVariant

PLAIN = "all keys"  # the label of a call without a variant
OURS = ("cuda", "triton")
# A model's query heads and head_dim, the variant of its layers with a window, and how many of them
# stand beside a layer without one.
MODELS = {
    "Gemma 3": (16, 256, "window 1024", 5),
    "GPT-OSS": (64, 64, "window 128, sinks", 1),
}
METRICS = ("time", "time_graph")
SHAPE = ["operation", "batch", "kv_len", "q_heads", "kv_heads", "head_dim"]


def times(rows: list[dict]) -> pd.DataFrame:
    """Return a row for each workload and implementation, with its median time and its rmse.

    rows: those of the experiments on variants. variant: as AttentionVariant.label, or PLAIN.
    window: the window alone, 0 with another variant, the length with all keys. Units: us
    """
    found = pd.DataFrame(rows)
    found["operation"] = found.experiment.str.split("_").str[0]
    label = found.note.str.split("bf16").str[1].fillna("").str.strip(", ")
    found["variant"] = label.replace("", PLAIN)
    window = label.str.extract(r"^window (\d+)$")[0].astype(float)
    found["window"] = window.fillna(0).where(label != "", found.kv_len).astype(int)
    of = [*SHAPE, "kernel", "tensor_cores"]
    errors = found[(found.metric == "error") & (found.statistic == "rmse")]
    errors = errors.set_index([*of, "variant"]).value.rename("rmse")
    found = found[found.metric.isin(METRICS) & (found.statistic == "median")]
    found = found.assign(us=1e6 * found.value, ours=found.backend.isin(OURS))
    return found.join(errors, on=[*of, "variant"])


def fastest(found: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest of ours and of the others for each workload and variant, with its gain.

    gain: the time of the fastest on all keys, over this time.
    """
    best = found.sort_values("us").groupby([*SHAPE, "variant", "ours"], sort=False).head(1)
    plain = best[best.variant == PLAIN].set_index([*SHAPE, "ours"]).us.rename("plain_us")
    best = best.join(plain, on=[*SHAPE, "ours"])
    return best.assign(gain=best.plain_us / best.us)


def workload(row: Mapping) -> Decode | Prefill:
    """Return the workload of a row of `times` that has a window alone, or all keys."""
    left = None if row["variant"] == PLAIN else int(row["window"])
    n, heads = int(row["kv_len"]), [int(row[name]) for name in SHAPE[3:]]
    if row["operation"] == "decode":
        variant = AttentionVariant(window_left=left)
        return Decode((n,) * int(row["batch"]), *heads, variant=variant)
    variant = AttentionVariant(causal=True, window_left=left)
    return Prefill(*[(n,) * int(row["batch"])] * 2, *heads, causal=True, variant=variant)


def steps(work: Prefill, q_rows: int, keys: int) -> np.ndarray:
    """Return how many steps of `keys` keys each tile of a request takes, its tiles in order.

    Only of the first request, since all requests are alike.
    """
    n = work.q_lens[0]
    tiles = np.arange(-(-n * work.group // q_rows))
    lengths = Lengths(np.array([n]), np.array([work.kv_lens[0]]))
    variant = work.variant
    seen = visible_keys(lengths, 0 * tiles, tiles, q_rows, work.group, variant, keys)
    found: np.ndarray = -(-seen // keys)
    return found


def expected_gain(row: Mapping, plain: Mapping) -> float:
    """Return how many times less a window takes if only its work counts.

    The work of a prefill is the steps of its tiles; that of a decode is its bytes.
    """
    pair = [workload(each) for each in (plain, row)]
    if row["operation"] == "decode":
        return pair[0].bytes / pair[1].bytes
    sizes = [[int(size) for size in each["tile"].split("x")[:2]] for each in (plain, row)]
    taken = [
        steps(work, *size).sum() * np.prod(size) for work, size in zip(pair, sizes, strict=True)
    ]
    return float(taken[0] / taken[1])


def chain(found: pd.DataFrame, windows: Iterable[int]) -> pd.DataFrame:
    """Return what each thought makes of the gain of a window, a column a thought.

    found: rows of `fastest`, ours, of one shape.
    """
    by_window = {row["window"]: row for row in found.to_dict("records")}
    length = int(found.kv_len.iloc[0])
    plain, rows = by_window[length], []
    for window in windows:
        row = by_window[window]
        works = [workload(each) for each in (plain, row)]
        pairs = [work.variant.seen(np.arange(length), length, length).sum() for work in works]
        told = {"window": window, "S / window": length / window}
        told |= {"keys that rows see": pairs[0] / pairs[1]} if row["operation"] == "prefill" else {}
        told |= {"work of the kernel": expected_gain(row, plain), "measured": row["gain"]}
        rows.append(told | {"time, µs": row["us"]})
    return pd.DataFrame(rows)


def of_models(ours: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each model and operation: its layers' times, and the gain of all layers.

    ours: rows of `fastest`. Units: us
    """
    rows = []
    for model, (q_heads, dim, variant, windowed) in MODELS.items():
        of_model = ours[(ours.q_heads == q_heads) & (ours.head_dim == dim)]
        for operation, part in of_model.groupby("operation", sort=False):
            full, short = (part.us[part.variant == name].iloc[0] for name in (PLAIN, variant))
            row = {"model's shape": model, "operation": operation, "all keys, µs": full}
            row |= {"window, µs": short, "gain": full / short}
            row |= {"of all layers": (windowed + 1) * full / (windowed * short + full)}
            rows.append(row | {"at most": windowed + 1})
    return pd.DataFrame(rows)


def beside(
    outs: Mapping[str, np.ndarray], exact: np.ndarray, heads: Mapping[Any, list[int]]
) -> pd.DataFrame:
    """Return the size of the outputs and the errors of some heads, a row for each way and heads.

    Shapes: outs, exact [rows, heads, channels]; heads has the numbers of the heads by a name.
    """
    rows = []
    for way, out in outs.items():
        for name, chosen in heads.items():
            true = exact[:, chosen]
            size, error = (np.sqrt(np.mean(x**2)) for x in (true, out[:, chosen] - true))
            rows.append({"way": way, "heads": name, "output": size, "error": error})
    return pd.DataFrame(rows).assign(relative=lambda table: table.error / table.output)
