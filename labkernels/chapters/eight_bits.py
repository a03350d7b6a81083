"""Eight bits: recorded times of both caches, and errors of inputs that a cache of 8 bits holds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from labkernels.formats import named
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.checks import KV_DTYPES
from labkernels.kernels.decode.inputs import DecodeInputs
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.numerics import rounding
from labkernels.numerics.arrays import as_float64
from labkernels.numerics.emulation import running_max
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error import truncation_bias
from labkernels.numerics.error.quantization import Stored, first_order
from labkernels.numerics.truth import oracle
from labkernels.policy import NumericPolicy
from labkernels.records import recorded, store
from labkernels.units import LOG2_E

KINDS = {name: kind for kind, name in KV_DTYPES.items()}
PLAIN = "16 bits"


def newest(name: str = "decode_fp8") -> list[store.Row]:
    """Return a table's rows of each kernel's newest run; FlashInfer's may be another than ours."""
    return recorded.newest_of_each(store.read(name), ("kernel",))


def times() -> pd.DataFrame:
    """Return a row for each recorded decode; cache: e4m3, e5m2 or PLAIN, rate: over a copy's."""
    every = pd.DataFrame(store.read("decode_fp8"))
    copy = every[(every.metric == "bandwidth") & (every.kernel == "copy")]
    copy = copy.groupby("started_utc").value.first()  # of each run
    found = pd.DataFrame(newest())
    of = ["kernel", "tensor_cores", "note"]
    rate = found[found.metric == "bandwidth"].drop_duplicates(of)
    rate = rate.assign(rate=rate.value / rate.started_utc.map(copy)).set_index(of).rate
    found = found[(found.metric == "time_graph") & (found.statistic == "median")]
    found = found.drop_duplicates(of).join(rate, on=of)
    parts = found.note.str.split(", ", expand=True)
    told = {"shape": parts[0], "heads": parts[1], "dtype": parts[4]}
    told |= {"cache": parts[5].str.removesuffix(" cache").fillna(PLAIN), "us": 1e6 * found.value}
    found = found.assign(**told, kernel=found.kernel.str.removesuffix(" 16-bit"))
    return found[[*told, "kernel", "tensor_cores", "rate"]].reset_index(drop=True)


def held(
    given: DecodeInputs, kv_dtype: str, *, each_head: bool = True
) -> tuple[DecodeInputs, DecodeInputs]:
    """Return inputs in 16 bits and with a cache of 8 bits whose scales let no number be clipped.

    each_head: a scale for each KV head, else one for all.
    """
    cache, codes, scales = given.cache, [], []
    for pool in cache.pools:
        largest = pool.float().abs().amax((0, 1, 3))
        largest = largest if each_head else largest.max().expand(len(largest))
        scales.append((largest / named(kv_dtype).max).contiguous())
        codes.append((pool.float() / scales[-1][:, None]).to(KINDS[kv_dtype]))
    narrow = QuantizedKV(*codes, cache.page_table, cache.kv_len, *scales)
    work = replace(given.workload, kv_dtype=kv_dtype)
    return given, replace(given, workload=work, cache=narrow)


def held_prefill(given: PrefillInputs, kv_dtype: str) -> tuple[PrefillInputs, dict[str, Stored]]:
    """Return a prefill whose K and V are the numbers of such a cache, and how they are stored."""
    stored, pools = {}, []
    for name, x in (("k", given.kv.k), ("v", given.kv.v)):
        stored[name] = Stored(kv_dtype, as_float64(x.abs().amax((0, 2))) / named(kv_dtype).max)
        pools.append(torch.from_numpy(stored[name].rounded(as_float64(x))).to(x.dtype))
    return replace(given, kv=RaggedKV(*pools, given.kv.cu_seqlens)), stored


def stored_as(narrow: DecodeInputs) -> dict[str, Stored]:
    """Return how K and V of a cache of 8 bits are stored."""
    cache, fmt = narrow.cache, narrow.workload.kv_dtype
    return {n: Stored(fmt, as_float64(getattr(cache, f"{n}_scale"))) for n in ("k", "v")}


def expected(given, read, stored: dict[str, Stored], policy: NumericPolicy) -> np.ndarray:
    """Return the error to expect of a kernel's output: what was stored, and what it rounds itself.

    given, read: inputs as they are in 16 bits, and as the kernel reads them. policy: of the kernel;
    with P in e4m3 of `prefill_fp8` in one split, whose mean errors are known with their signs.
    Shapes: [rows, heads, channels]. Error: 10 % in the RMSE of a head or sample of a hundred rows,
    or that of `first_order`.
    """
    policy, problem = policy.of(given.workload.dtype), read.problem().in_numpy()
    known = sum(first_order(given.problem(), stored).values())
    if policy.p != "e4m3":
        return np.sqrt(error_sigma.sigma(problem, policy) ** 2 + known**2)
    every = 128 if policy.accumulate == "promoted" else None
    mean, variance = truncation_bias.of_codes(problem, every=every)
    stores = rounding.quantum(oracle.attention(problem)[0], policy.out) ** 2 / 12
    return np.sqrt((known + mean) ** 2 + variance + stores)


def parted(
    lengths: Sequence[int], p_format: str, tiles: tuple[int, int] = (96, 192), *, heads: int = 64
) -> pd.DataFrame:
    """Return how far two tiles of keys part, which take their keys from the last tile on.

    x: keys, standard normal with 128 channels. y: the RMS of the difference of two outputs that
    round P and nothing else. predicted: from the keys whose maximum differs. error n: of a tile.
    """
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((heads, n, 128)) for n in (1, max(lengths), max(lengths)))
    scores = (q @ k.swapaxes(1, 2))[:, 0] * (LOG2_E / 128**0.5)
    rows = []
    for n in lengths:
        s, values, how = scores[:, :n], v[:, :n], {"order": "descending"}
        outs = [running_max.attend(s, values, p_format=p_format, keys=t, **how) for t in tiles]
        tops = [running_max.running_max(s, keys=t, **how) for t in tiles]
        spaces = [rounding.quantum(np.exp2(s - top), p_format) * np.exp2(top) for top in tops]
        exact = [s == top for top in tops]
        square = sum(np.where(e, 0.0, w) ** 2 / 12 for e, w in zip(exact, spaces, strict=True))
        square = np.where(tops[0] == tops[1], 0.0, square) / np.exp2(s).sum(1)[:, None] ** 2
        predicted = np.sqrt((square[:, None] @ values**2).mean())
        true = running_max.attend(s, values, p_format="fp64", keys=n)
        pairs = [(outs[0], outs[1]), (outs[0], true), (outs[1], true)]
        off = [np.sqrt(((a - b) ** 2).mean()) for a, b in pairs]
        rows.append((n, off[0], predicted, *off[1:]))
    return pd.DataFrame(rows, columns=["x", "y", "predicted", *(f"error {t}" for t in tiles)])
