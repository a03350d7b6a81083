"""Requests alone and among others: their bits by our kernels, and by the cuts of both batches.

The inputs have the same bits on every machine, and so have our kernels' outputs.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from labkernels import ops
from labkernels.chapters import live, two_roads
from labkernels.chapters.two_roads import HEAD_DIM, HEADS, SCALE_LOG2, Samples
from labkernels.kernels.decode.schedule import invariant_keys_per_split
from labkernels.measure.implementation import implementations, on_and_off
from labkernels.numerics.arrays import as_float64
from labkernels.planners.prediction import output
from labkernels.probing.our_cuts import cut_of

SAME_RULE = 65_536  # keys up to which batch_invariant=True splits as when it was recorded
LENGTHS = (2048, 1536, 1024, 768, 640, 512, 300, 200)
SHORT = (640, 384, 300)  # for kernels that an interpreter runs
NEIGHBOURS = (24,) * 32  # so many short requests that no plan for all of them splits the long ones
TOKENS = {"decode": 1, "prefill": 4}  # query tokens of each request, its last ones


@dataclass(frozen=True, eq=False)
class Ran:
    """Outputs of the shown requests, and their plans. Shapes: [requests, tokens, HEADS, HEAD_DIM].

    plans: of each request alone, or one for all of them together.
    """

    out: np.ndarray
    plans: tuple


def requests(dtype: str = "bf16", lengths: tuple[int, ...] = LENGTHS) -> Samples:
    """Return the shown requests, and behind them their neighbours."""
    given = two_roads.samples(lengths + NEIGHBOURS)
    return given if dtype == "bf16" else replace(given, qkv=given.qkv.half())


def shown(given: Samples) -> tuple[int, ...]:
    """Return the lengths of the shown requests."""
    return given.lengths[: -len(NEIGHBOURS)]


def call(operation: str, given: Samples, **options):
    """Return the result of a verb for the last tokens of every request."""
    rows = two_roads.last_rows(given, TOKENS[operation])
    if operation == "decode":
        return ops.decode(rows.q, two_roads.whole_cache(given), **options)
    return ops.prefill(*rows.arguments, causal=True, **options)


def alone(operation: str, given: Samples, **options) -> Ran:
    """Run each shown request in a batch of its own."""
    found = [call(operation, given.one(i), **options) for i in range(len(shown(given)))]
    return Ran(np.concatenate([_out(operation, f) for f in found]), tuple(f.plan for f in found))


def together(operation: str, given: Samples, **options) -> Ran:
    """Run all requests in one batch."""
    found = call(operation, given, **options)
    return Ran(_out(operation, found)[: len(shown(given))], (found.plan,))


def _out(operation: str, found) -> np.ndarray:
    return as_float64(found.out).reshape(-1, TOKENS[operation], HEADS, HEAD_DIM)


def differing(a: Ran, b: Ran) -> np.ndarray:
    """Return how many outputs of each request and head differ. Shapes: [requests, HEADS]."""
    return (a.out != b.out).sum(axis=(1, 3))


def predicted(operation: str, given: Samples, a: Ran, b: Ran, dtype: str = "bf16") -> np.ndarray:
    """Return how many outputs of each request and head differ between two cuts.

    The scores are exact, and nothing but P and the output is rounded. a: the requests alone. b: all
    of them together. Shapes: [requests, HEADS]
    """
    how = {"head_dim": HEAD_DIM, "group": 1, "dtype": dtype}
    rows = []
    for i, n in enumerate(shown(given)):
        cuts = [cut_of(plan, (n,), **how) for plan in (a.plans[i], b.plans[0])]
        if cuts[0].arithmetic(0) == cuts[1].arithmetic(0):
            rows.append(np.zeros(HEADS, int))
            continue
        q, k, v = (as_float64(x) for x in given.one(i).qkv.unbind(1))
        counts = np.zeros(HEADS, int)
        for end in range(n - TOKENS[operation] + 1, n + 1):
            s = np.einsum("hd,nhd->hn", q[end - 1], k[:end]) * SCALE_LOG2
            outs = [output(s, v[:end].transpose(1, 0, 2), cut, dtype=dtype) for cut in cuts]
            counts += (outs[0] != outs[1]).sum(-1)
        rows.append(counts)
    return np.array(rows)


def truth(operation: str, given: Samples) -> np.ndarray:
    """Return the shown outputs in float64. Shapes: [requests, tokens, HEADS, HEAD_DIM]."""
    exact = live.truth(two_roads.last_rows(given, TOKENS[operation]))
    return exact.reshape(-1, TOKENS[operation], HEADS, HEAD_DIM)[: len(shown(given))]


def policies(operation: str, kernel: str) -> tuple:
    """Return a kernel's numeric policies with tensor cores off and on; of Triton's that with on.

    Off, Triton's interpreter takes several times as long.
    On a machine without a GPU, Triton runs once a Bench has, which imports its interpreter.
    """
    known = implementations(operation, on_and_off).values()
    found = (item.policy for item in known if item.spec and item.spec.name == kernel)
    return tuple(p for p in found if p.tensor_cores or not kernel.startswith("triton"))


def prices(rows: list[dict]) -> pd.DataFrame:
    """Return each plan's time over that of the free plan of its workload, as `times`.

    rows: those of batch_invariance. keys_per_split: 0 where the plan chooses it. A decode of more
    than SAME_RULE keys was recorded by an older rule: what stands for it are fixed splits that are
    as long as those of today's.
    """
    found = pd.DataFrame(rows)
    found = found[(found.metric == "time_graph") & (found.statistic == "median")]
    found[["plan", "why"]] = found.note.str.split(", ", expand=True).to_numpy()
    found["operation"] = found.kernel.str.split("_").str[0]
    shape = ["operation", "why", "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim"]
    shape += ["page_size", "causal", "dtype"]
    free = found[found["plan"] == "free"].set_index(shape).value.rename("free")
    found = found.join(free, on=shape)
    found["times"] = found.value / found.free
    sizes = found["plan"].str.extract(r"^(\d+) keys$")[0].astype(float).fillna(0)
    found["keys_per_split"] = sizes.astype(int)
    unsplit = found["keys_per_split"] > found.kv_len.max()
    found["plan"] = found["plan"].mask(unsplit, "unsplit")
    long = (found.operation == "decode") & (found.kv_len > SAME_RULE)
    today = long & (found.keys_per_split == found.kv_len.map(invariant_keys_per_split))
    stands = found[today].assign(plan="invariant", keys_per_split=0)
    return pd.concat([found[~long | (found["plan"] != "invariant")], stands])


def certified(rows: list[dict]) -> pd.DataFrame:
    """Return how many ways to call each kernel change a request's bits, from its certificates."""
    found = pd.DataFrame(rows).fillna({"asked": ""})
    found["asked"] = found.asked.replace("", "free plan")
    by = found.groupby(["kernel", "asked"], sort=False)
    table = by.agg(ways=("ways", "sum"), changed=("changed", "sum"), heads=("heads", "max"))
    table["first"] = by["first"].apply(lambda words: next(filter(None, words), ""))
    names = {"ways": "ways to call", "changed": "other bits", "heads": "most heads, of 32"}
    return table.reset_index().rename(columns=names | {"first": "first in"})
