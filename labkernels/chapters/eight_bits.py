"""Eight bits: recorded times of both caches, and errors of inputs that a cache of 8 bits holds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from labkernels import ops
from labkernels.audit.verdict import verdict
from labkernels.chapters import live
from labkernels.formats import named
from labkernels.kernels.caches.paged import QuantizedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.checks import KV_DTYPES
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.kernels.random_inputs import Normal
from labkernels.numerics import rounding
from labkernels.numerics.arrays import as_float64
from labkernels.numerics.emulation import running_max
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.quantization import Stored, mean_squares, rotated
from labkernels.numerics.truth import oracle
from labkernels.policy import NumericPolicy
from labkernels.records import store
from labkernels.units import LOG2_E

KINDS = {name: kind for kind, name in KV_DTYPES.items()}
NUMBERS = NumericPolicy(p="fp32", accumulate="fma", out="fp32")  # only the cache rounds
PLAIN = "16 bits"


def times() -> pd.DataFrame:
    """Return a row for each recorded decode: shape, heads, dtype, cache, kernel, on, us, rate.

    cache: e4m3, e5m2 or PLAIN. rate: of a copy, 1 where the bytes of K and V take no longer.
    """
    found = pd.DataFrame(store.read("decode_fp8"))
    rate = found[(found.metric == "bandwidth") & (found.kernel != "read")]
    copy = rate[rate.kernel == "copy"].value.iloc[0]
    of = ["kernel", "tensor_cores", "note"]
    rate = rate.drop_duplicates(of).set_index(of).value.rename("rate") / copy
    found = found[(found.metric == "time_graph") & (found.statistic == "median")]
    found = found.drop_duplicates(of).join(rate, on=of)
    parts = found.note.str.split(", ", expand=True)
    cache = parts[5].str.removesuffix(" cache").fillna(PLAIN)
    told = {"shape": parts[0], "heads": parts[1], "dtype": parts[4], "cache": cache}
    told |= {"kernel": found.kernel.str.removesuffix(" 16-bit"), "us": 1e6 * found.value}
    return found.assign(**told)[[*told, "tensor_cores", "rate"]].reset_index(drop=True)


def gains(found: pd.DataFrame) -> pd.DataFrame:
    """Return for each shape the fastest of our kernels on either cache, and FlashInfer's time.

    found: rows of `times`. predicted: the gain if the time is that of the bytes.
    """
    of, rows = ["shape", "heads", "dtype", "cache"], []
    peer = found.kernel.str.startswith("flashinfer")
    ours, theirs = (x.sort_values("us").groupby(of).first() for x in (found[~peer], found[peer]))
    for key, row in ours.iterrows():
        shape, heads, dtype, cache = key
        if cache == PLAIN:
            continue
        batch, keys = (int(n) for n in shape.split(" x "))
        q_heads, kv_heads = map(int, heads.split("/"))
        wide = Decode.uniform(batch, keys, q_heads=q_heads, kv_heads=kv_heads)
        moved = wide.bytes / replace(wide, kv_dtype=cache).bytes
        plain = ours.us[shape, heads, dtype, PLAIN]
        told = dict(zip(of, key, strict=True)) | {"16 bits, µs": plain, "8 bits, µs": row.us}
        told |= {"gain": plain / row.us, "predicted": moved, "of a copy's rate": row.rate}
        rows.append(told | {"FlashInfer, µs": theirs.us[key]})
    return pd.DataFrame(rows)


def held(
    given: DecodeInputs, kv_dtype: str, *, each_head: bool = True, rotate: bool = False
) -> tuple[DecodeInputs, DecodeInputs]:
    """Return inputs in 16 bits and with a cache of 8 bits whose scales let no number be clipped.

    each_head: a scale for each KV head, else one for all. rotate: Q and K are turned first.
    """
    if rotate:
        q, k = rotated(given.q, given.cache.k)
        given = replace(given, q=q, cache=replace(given.cache, k=k))
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
    """Return a prefill whose K and V are the numbers of a cache of 8 bits, in 16, and how stored.

    A scale of each KV head lets no number be clipped.
    """
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
    """Return the standard deviation to expect of a kernel's output from that of 16 bits.

    given, read: inputs as they are in 16 bits, and as the kernel reads them. policy: of the kernel.
    Shapes: [rows, heads, channels].
    """
    of_kernel = error_sigma.sigma(read.problem().in_numpy(), policy.of(given.workload.dtype))
    of_cache = sum(mean_squares(given.problem(), stored).values())
    return np.sqrt(of_kernel**2 + of_cache)


def over_heads(each: float, *, heads: int = 8) -> pd.DataFrame:
    """Return the relative error of heads whose values are each times those of the head before.

    x: the size of a head's values over those of the first; y, predicted: the error over the output.
    kind: the format, with one scale unless it says that each head has its own.
    """
    drawn = decode_inputs(Decode((320,) * 12, heads, heads, 64, dtype="bf16"), Normal(5, "cpu"))
    drawn.q.div_(2)  # so that many keys share a row's weight
    drawn.cache.v.mul_(each ** torch.arange(heads)[:, None])
    ways = {"e4m3": ("e4m3", False), "e5m2": ("e5m2", False)}
    rows = []
    for kind, (fmt, each_head) in (ways | {"e4m3, own scales": ("e4m3", True)}).items():
        given, narrow = held(drawn, fmt, each_head=each_head)
        exact, sigma = live.truth(given), expected(given, narrow, stored_as(narrow), NUMBERS)
        size, off, told = (
            np.sqrt((x**2).mean((0, 2))) for x in (exact, live.truth(narrow) - exact, sigma)
        )
        rows += [(kind, each**h, off[h] / size[h], told[h] / size[h]) for h in range(heads)]
    return pd.DataFrame(rows, columns=["kind", "x", "y", "predicted"])


def rotations(cases: dict[str, tuple[float, float]], fmt: str = "e4m3") -> pd.DataFrame:
    """Return the error from K with a large channel, and what turning Q and K gains.

    cases: by name, how many times as large as the others one channel of Q and of K is. Q's size is
    such that scores have the standard deviation 1/2.
    """
    rows = []
    for name, factors in cases.items():
        drawn = decode_inputs(Decode((320,) * 12, 8, 8, 64, dtype="bf16"), Normal(6, "cpu"))
        for x, factor in zip((drawn.q, drawn.cache.k), factors, strict=True):
            x[..., 5] *= factor
        drawn.q.div_(float(np.sqrt(63 + (factors[0] * factors[1]) ** 2)) / 4)
        found = []
        for rotate in (False, True):
            given, narrow = held(drawn, fmt, rotate=rotate)
            problem, stored = given.problem().in_numpy(), {"k": stored_as(narrow)["k"]}
            read = replace(problem, k_pool=stored["k"].rounded(problem.k_pool))
            error = oracle.attention(read)[0] - oracle.attention(problem)[0]
            square = mean_squares(problem, stored)["k"]
            found += [np.sqrt((error**2).mean()), np.sqrt(square.mean())]
        told = [found[0] / found[2], found[1] / found[3]]
        rows.append((name, found[0], found[2], *told))
    columns = ["a channel is large", "error", "error, turned", "gain", "gain, predicted"]
    return pd.DataFrame(rows, columns=columns)


def parted(
    lengths: Sequence[int], p_format: str, tiles: tuple[int, int] = (96, 192), *, heads: int = 64
) -> pd.DataFrame:
    """Return how far two tiles of keys part, which take their keys from the last tile on.

    Of standard normal inputs with 128 channels: x, the keys; y, the RMS of the difference of two
    outputs that round P and nothing else; predicted, from the keys whose maximum differs; error n,
    that of the tile of n keys.
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


def mistakes(cache: QuantizedKV) -> dict[str, QuantizedKV]:
    """Return a cache as kernels with a mistake would read it, by the mistake."""
    k, v, one = cache.k_scale, cache.v_scale, torch.ones_like(cache.k_scale)
    other = next(kind for kind in KINDS.values() if kind != cache.k.dtype)
    last = torch.arange(len(v)) == len(v) - 1
    return {
        "none": cache,
        "K's scale is left out": replace(cache, k_scale=one),
        "V's scale is left out for the last head": replace(
            cache, v_scale=torch.where(last, one, v)
        ),
        "K's scale is that of the head before": replace(cache, k_scale=k.roll(1)),
        "V's scale is applied twice": replace(cache, v_scale=v * v),
        "codes are read in the other format": replace(
            cache, k=cache.k.view(other), v=cache.v.view(other)
        ),
    }


def judged(eight: DecodeInputs, kernel: str) -> pd.DataFrame:
    """Return what the verdict says of a kernel's output under each of `mistakes`."""
    rows = []
    for name, cache in mistakes(eight.cache).items():
        out = ops.decode(eight.q, cache, scale=eight.scale, kernel=kernel)
        found = verdict(out.out, eight.q, cache=eight.cache, lse2=out.lse2, scale=eight.scale)
        told = found.matches[0] if found.matches else None
        words = (told.name, told.where) if told else ("", "")
        rows.append((name, found.answer, *words))
    return pd.DataFrame(rows, columns=["mistake", "verdict", "named", "where"])
