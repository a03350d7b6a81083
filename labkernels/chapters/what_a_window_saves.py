"""Times with a window and without: what the steps of tiles and bytes predict, and the recorded."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from labkernels.hardware import gpu
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.kernel import PADDED_DIMS
from labkernels.kernels.packed_gqa.schedule import steps_of_tiles as steps
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.registry import discover
from labkernels.variant import AttentionVariant

PLAIN = "all keys"  # the label of a call without a variant
OURS = ("cuda", "triton")
FASTEST = "prefill_wgmma"
TRAINED_KEYS = 1024  # of a text in a training step, whose kernels "Does it matter?" shows
# A model's query heads, KV heads and head_dim, the window of its layers with one, as keys before a
# token, and how many of these layers stand beside a layer without a window.
MODELS = {"Gemma 3": ((16, 8, 256), 1024, 5), "GPT-OSS": ((64, 8, 64), 128, 1)}


def times(rows: list[dict]) -> pd.DataFrame:
    """Return a row for each variant and implementation, with its median time and its rmse.

    rows: those of a recording of prefills of one shape. variant: as AttentionVariant.label, or
    PLAIN. window: the window alone, 0 with another variant, the length with all keys. Units: us
    """
    found = pd.DataFrame(rows)
    label = found.note.str.split("bf16").str[1].fillna("").str.strip(", ")
    found["variant"] = label.replace("", PLAIN)
    window = label.str.extract(r"^window (\d+)$")[0].astype(float)
    found["window"] = window.fillna(0).where(label != "", found.kv_len).astype(int)
    of = ["variant", "kernel", "tensor_cores"]
    errors = found[(found.metric == "error") & (found.statistic == "rmse")]
    errors = errors.set_index(of).value.rename("rmse")
    found = found[(found.metric == "time") & (found.statistic == "median")]
    found = found.assign(us=1e6 * found.value, ours=found.backend.isin(OURS))
    return found.join(errors, on=of)


def gradients(rows: list[dict], heads: str) -> pd.DataFrame:
    """Return our fastest time of each variant's gradients, and its gain over all keys.

    rows: of the recorded gradients; those of the first recording count, which has all keys too.
    heads: query heads/KV heads, as workloads' labels have them.
    """
    first = min(row["started_utc"] for row in rows)
    rows = [row for row in rows if row["started_utc"] == first]
    best = fastest(times([row for row in rows if f", {heads}, " in str(row["note"])]))
    best = best[best.ours & (best.variant.str.count(",") == 0)].sort_values("us")
    return best[["variant", "us", "gain", "kernel"]]


def against_peers(rows: list[dict], metric: str = "time") -> pd.DataFrame:
    """Return our fastest of each workload, the fastest of the others, and their time over ours.

    rows: of recordings with labels in note, of which heads of padded tiles and the short texts of a
    training do not count. A workload's last recording counts, if both ran in it.
    Units: us
    """
    kept = [r for r in rows if r["head_dim"] not in PADDED_DIMS and r["kv_len"] > TRAINED_KEYS]
    found = pd.DataFrame(kept)
    found = found[(found.metric == metric) & (found.statistic == "median")]
    found = found[found.started_utc == found.groupby("note").started_utc.transform("max")]
    found = found.assign(us=1e6 * found.value, ours=found.backend.isin(OURS))
    best = found.sort_values("us").drop_duplicates(["note", "ours"]).set_index("note")
    both = best[best.ours].join(best[~best.ours][["kernel", "us"]], rsuffix=" of peer", how="inner")
    both = both.loc[[note for note in found.note.unique() if note in both.index]].reset_index()
    both["quotient"] = both["us of peer"] / both.us
    return both[["note", "us", "kernel", "us of peer", "kernel of peer", "quotient"]]


def fastest(found: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest implementation of each variant, of ours and of the others, with its gain.

    gain: the time of the fastest on all keys, over this time.
    """
    best = found.sort_values("us").groupby(["variant", "ours"], sort=False).head(1)
    plain = best[best.variant == PLAIN].set_index("ours").us.rename("plain_us")
    best = best.join(plain, on="ours")
    return best.assign(gain=best.plain_us / best.us)


def prefill(
    length: int, window: int | None, heads: tuple[int, int, int], batch: int = 1
) -> Prefill:
    """Return a causal prefill with a window, or without. heads: query heads, KV heads, head_dim."""
    variant = AttentionVariant(causal=True, window_left=window)
    return Prefill(*[(length,) * batch] * 2, *heads, variant=variant)


def decode(length: int, window: int | None, heads: tuple[int, int, int], batch: int = 1) -> Decode:
    """Return a decode with a window, or without. heads: query heads, KV heads, head_dim."""
    return Decode((length,) * batch, *heads, variant=AttentionVariant(window_left=window))


def scores(work: Prefill) -> int:
    """Return how many scores the tiles of our fastest kernel compute for a request's KV head."""
    kernel = discover()[FASTEST]
    shape = kernel.shape(
        dtype=work.dtype,
        head_dim=work.head_dim,
        group=work.group,
        rows=work.group * work.q_lens[0],
        layout="ragged",
        variant=work.variant,
    )
    tile = kernel.instance(shape).tile
    return int(steps(work, tile.q_rows, tile.keys).sum() * tile.q_rows * tile.keys)


def least_us(work: Decode | Prefill) -> float:
    """Return the time in which an H200 can move the bytes of a workload. Units: us"""
    return 1e6 * work.bytes / gpu("h200").dram_bytes_per_s


def chain(best: pd.DataFrame, windows: Iterable[int], heads: tuple[int, int, int]) -> pd.DataFrame:
    """Return what each thought makes of the gain of a window, a column a thought.

    best: rows of `fastest`, ours.
    """
    length = int(best.kv_len.iloc[0])
    plain, rows = prefill(length, None, heads), []
    for window in windows:
        row = best[best.window == window].iloc[0]
        work = prefill(length, window, heads)
        seen = [w.variant.seen(np.arange(length), length, length).sum() for w in (plain, work)]
        told = {"window": window, "S / window": length / window}
        told |= {"keys that rows see": seen[0] / seen[1]}
        told |= {"steps of tiles": scores(plain) / scores(work), "measured": row.gain}
        rows.append(told | {"time, µs": row.us})
    return pd.DataFrame(rows)


def of_models(lengths: Iterable[int]) -> pd.DataFrame:
    """Return what is expected of each model: the gain of a layer with a window, and of all layers.

    The work of a prefill is the scores of its tiles; that of a decode is its bytes.
    """
    rows = []
    for model, (heads, window, windowed) in MODELS.items():
        for length in lengths:
            pairs = {
                "prefill": [scores(prefill(length, w, heads)) for w in (None, window)],
                "decode": [decode(length, w, heads).bytes for w in (None, window)],
            }
            for operation, (full, short) in pairs.items():
                row = {"model's shape": model, "operation": operation, "keys": length}
                row |= {"a layer with a window": full / short}
                row |= {"all layers": (windowed + 1) * full / (windowed * short + full)}
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


def score_of_first(given: PrefillInputs) -> torch.Tensor:
    """Return the mean score of each query head's first key, as a sink has it: [q_heads] float32.

    given: requests that begin with one key.
    """
    first = given.kv.k[0].repeat_interleave(given.workload.group, 0)
    return (given.q.float() * first.float()).sum(-1).mean(0) * given.scale
