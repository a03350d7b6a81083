"""`labkernels.verdict`: torch or NumPy tensors in, rounding or a bug out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from labkernels.audit import eight_bits, meaning
from labkernels.audit.layouts import arranged, taken_as
from labkernels.numerics import rounding
from labkernels.numerics.arrays import moved, namespace, to_numpy
from labkernels.numerics.truth.layouts import of_dense, of_packed, tokens
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.verdict import BUG, ROUNDING, Verdict, decide
from labkernels.policy import P_FORMATS, NumericPolicy
from labkernels.units import SCALES, require_choice

TAKEN_AS_BSHD = taken_as("bshd")
LAYOUTS = ("bhsd", "bshd")
_NO_OPTIONS = ("out", "q", "k", "v", "layout", "named")
VARIANT = ("window_left", "window_right", "soft_cap", "alibi", "sinks")
MASKS = ("mask", "bias")
_FORMATS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_FORMATS["uint16"] = "bf16"  # its bits


def verdict(
    out,
    q,
    k=None,
    v=None,
    *,
    kv_len=None,
    cu_seqlens=None,
    cu_seqlens_q=None,
    causal: bool = False,
    cache=None,
    lse2=None,
    scale: float | None = None,
    p_format: str | None = None,
    denominator: str | None = None,
    exp2: str = "mufu",
    window_left: int | None = None,
    window_right: int | None = None,
    soft_cap: float | None = None,
    alibi=None,
    sinks=None,
    mask=None,
    bias=None,
    layout: str | None = None,
    named: bool = True,
) -> Verdict:
    """Say whether an attention output differs from float64 by rounding or by a bug.

    Shapes: q, out [B, Hq, D] for one query per request, [B, Hq, M, D] for M, or [total_q, Hq, D]
    with cu_seqlens_q [B + 1]; out may have another Dv. k, v [B, Hkv, L, D] with kv_len [B] where
    lengths differ, or [total, Hkv, D] with cu_seqlens [B + 1], or neither and a cache with k, v
    [pages, page_size, Hkv, D], page_table and kv_len, as PagedKV. lse2 as q without D, base 2.
    causal: the last query of a request sees all of its keys, and each earlier query one key less
    than the next. For MLA: q is the pair (q_nope, q_pe), and cache a LatentKV, which gives the
    default scale. Variants: window_left and window_right, no key more than so many before or after
    a row's own place, as in FlashAttention; soft_cap; alibi, slopes [Hq], on both sides of a row's
    place as in flash-attn or, where the output is right so, as in FlashInfer; sinks [Hq], logits
    only in the denominator; mask, True where a row sees a key, or floats that are added, and bias,
    of [total_q, longest request] or any shape that broadcasts to [B, Hq, M, L].
    Units: torch or NumPy tensors; a NumPy uint16 holds the bits of bf16. p_format: the format of
    the probabilities in the second product, by default q's; denominator None: either kind. Torch
    tensors are worked on where q lies: on a GPU a prefill takes seconds, not minutes. layout:
    "bhsd" as above or "bshd", [B, M, Hq, D] for q and out and [B, L, Hkv, D] for k and v; by
    default "bhsd", unless the output is right or far less wrong in "bshd". named: names are sought,
    which takes most of the time; where not, LESS EXACT is BUG.
    A soft cap of 50 left on over standard scores is found at 48 keys in fp16. In bf16 it moves an
    output by less than P's rounding: 64 rows of 64 channels show it from 192 keys on, 512 from 48.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 1, 64)).astype(np.float16)
    >>> verdict(v, q, k, v).answer, verdict(v * 1.01, q, k, v).answer  # one key gives its V
    ('ROUNDING', 'BUG')
    """
    how = {name: x for name, x in locals().items() if name not in _NO_OPTIONS}
    how["causal"] = meaning.flag("causal", causal)
    return first_right(_ways((out, _query(q), k, v), layout, how), named=named)


@dataclass(frozen=True)
class Way:
    """One way to read tensors: judge(named=True or False) gives a verdict.

    doubt: so many times as wrong a wrong output counts; infinite: only right outputs count.
    """

    judge: Callable[..., Verdict]
    doubt: float = 1.0


def first_right(ways: Sequence[Way], *, named: bool, query: np.ndarray | None = None) -> Verdict:
    """Return the verdict of the first way in which the output is right, or of the least wrong.

    query: of wrong ways, those with this q are preferred.
    Raises: the ValueError of the first way, if every way is refused.
    """
    wrong, refused = [], None
    for way in ways:
        try:
            found = way.judge(named=named and len(ways) == 1)
        except ValueError as error:
            refused = refused or error
            continue
        if found.answer != BUG:
            return found
        if way.doubt < math.inf or not wrong:
            wrong.append((way, found))
    if not wrong:
        assert refused is not None  # there is a way
        raise refused
    alike = [
        (way, found)
        for way, found in wrong
        if query is not None and np.array_equal(to_numpy(found.problem.q), query)
    ]
    way, found = min(alike or wrong, key=lambda pair: wrongness(pair[1], pair[0].doubt))
    return way.judge(named=True) if named and len(ways) > 1 else found


def _ways(tensors: tuple, layout: str | None, how: dict) -> list[Way]:
    """Return the ways in which tensors may lie: the layout that is told, else those that fit."""
    require_choice("layout", layout or "bhsd", LAYOUTS)
    words = LAYOUTS[: 1 + _may_be_bshd(*tensors)] if layout is None else (layout,)

    def judge(word: str, *, named: bool) -> Verdict:
        lying = tensors if word == "bhsd" else [arranged(x, word, "bhsd") for x in tensors]
        note = taken_as(word) if word != "bhsd" and layout is None else ""
        return replace(_judged(*lying, named=named, **how), note=note)

    return [Way(partial(judge, word), 1.0 + i) for i, word in enumerate(words)]


def _judged(out, q, k, v, *, p_format, denominator, exp2, lse2, named, **how) -> Verdict:
    """Return the verdict on tensors as [B, H, S, D]; how: further options of `verdict`."""
    out_format, in_format, q = format_of("out", out), format_of("q", q), _array("q", q)
    if q.ndim > 2 and 0 in q.shape[:-1]:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: one row or more, of a head or more")
    if any(getattr(x, "ndim", 0) > 2 and 0 in x.shape for x in (k, v)):
        shapes = f"k.shape = {tuple(k.shape)}, v.shape = {tuple(v.shape)}"
        raise ValueError(f"{shapes}, allowed: no 0; kv_len says that a request has no keys")
    variant = _variant(**{name: how.pop(name) for name in VARIANT})
    masks = {name: how.pop(name) for name in MASKS}
    masks = {name: mask for name, mask in masks.items() if mask is not None}
    problem = _problem(q, k, v, variant=variant, **how)
    if masks:
        queries = None if how["cu_seqlens_q"] is not None else _queries(q)
        problem = meaning.with_masks(problem, masks, queries)
    ends = how["cu_seqlens_q"]
    out = to_numpy(_rows("out", _array("out", out), q, ends, 1))
    if out.shape[:2] != problem.out_shape[:2]:
        raise ValueError(f"out.shape = {out.shape}, allowed: {(*q.shape[:-1],)} and any Dv, as q")
    if lse2 is not None:
        lse2 = to_numpy(_rows("lse2", _array("lse2", lse2), q, ends, 0))
        if lse2.shape == out.shape[:2]:  # flash-attn has +inf for a row without keys
            lse2 = np.where((problem.n_keys == 0)[:, None] & (lse2 == np.inf), -np.inf, lse2)
    # no kernel keeps P in more than fp32; an output from float64 is judged as if P were fp32
    told = in_format.replace("fp64", "fp32") if p_format is None else p_format
    require_choice("p_format", told, P_FORMATS)
    policy = NumericPolicy(told, denominator, exp2, out=out_format)
    has_bias = problem.variant is not None and problem.variant.bias is not None
    how_named = {"policy": policy, "lse2": lse2, "named": named and not has_bias}
    found = _of_codes(problem, out, how["cache"], **how_named)
    given = problem.variant
    if given is not None and given.alibi is not None and not problem.causal and found.answer == BUG:
        one_side = replace(problem, variant=replace(given, both_sides=False))
        second = decide(one_side, out, **how_named)
        if second.answer != BUG:
            found, problem = second, one_side
    if found.answer != ROUNDING and (cut := eight_bits.with_cut_scores(problem)):
        second = decide(cut, out, **(how_named | {"named": False}))
        if second.answer == ROUNDING:
            found = replace(second, why=f"{second.why}; scores as Hopper sums products of 8 bits")
    if found.answer == BUG:
        found = _with_dark_rows(found, problem, out, lse2)
    return replace(found, problem=problem, out=out)


def _of_codes(problem: Problem, out, cache, *, named: bool, **how) -> Verdict:
    """Return the verdict, named by the mistakes with a cache of 8 bits if one explains it."""
    if named and cache is not None and eight_bits.format_of(cache):
        judge = partial(decide, out=out, named=False, **how)
        if told := eight_bits.named(problem, cache, out, judge):
            return told
    return decide(problem, out, named=named, **how)


def _with_dark_rows(found: Verdict, problem: Problem, out, lse2) -> Verdict:
    """Return a bug that lists rows of NaN or inf; an LSE that has any is not fitted by a name."""
    dark = {"the output": ~np.isfinite(out).all(-1)}
    if lse2 is not None and any(
        x.name.startswith("lse2") and x.status == "bug" for x in found.findings
    ):
        hidden = (lse2 == -np.inf) & (problem.variant is not None)  # as where a mask hides all keys
        dark["lse"] = ~np.isfinite(lse2) & ~hidden & (problem.n_keys > 0)[:, None]
    words, matches, why = [], found.matches, found.why
    for name, where in dark.items():
        rows = np.argwhere(where)
        if len(rows):
            shown = " and ".join(problem.row_name(*map(int, row)) for row in rows[:4])
            more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
            count = f"{len(rows)} rows" if len(rows) > 1 else "a row"
            words.append(f"NaN or inf in {count} of {name}: {shown}{more}")
            if name == "lse":
                matches = tuple(match for match in matches if not match.name.startswith("LSE"))
                why = why.partition("; ")[2] if matches != found.matches else why
    return replace(found, matches=matches, why="; ".join((*words, why)))


def _may_be_bshd(out, q, k, v) -> bool:
    """Return whether tensors of four dimensions have sizes that fit [B, S, H, D] too."""
    four = all(getattr(x, "ndim", 0) == 4 for x in (out, q, k, v))
    return four and bool(k.shape[2]) and q.shape[2] % k.shape[2] == 0


def wrongness(found: Verdict, doubt: float) -> tuple[float, int]:
    """Return how many elements exceed their bounds, times the doubt, and how many tests fail."""
    beyond = int((~(np.abs(found.error) <= found.bound)).sum())
    return max(1, beyond) * doubt, sum(test.status == "bug" for test in found.findings)


def format_of(name: str, tensor) -> str:
    """Return the format of a tensor's numbers."""
    kind = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
    if kind not in _FORMATS:
        allowed = "float16, bfloat16, float32, float64, uint16 (bits of bf16)"
        raise ValueError(f"{name}.dtype = {kind}, allowed: {allowed}")
    return _FORMATS[kind]


def _query(q):
    """Return the query as one tensor: of a pair, both parts side by side."""
    if not isinstance(q, tuple):
        return q
    format_of("q", q[0])
    if hasattr(q[0], "detach"):
        return namespace(q[0]).cat(q, dim=-1)
    return np.concatenate(q, axis=-1)


def _array(name: str, tensor, like=None):
    """Return the values in torch or NumPy, as given or where `like` is; bits of bf16 as float32."""
    format_of(name, tensor)
    array = tensor.detach() if hasattr(tensor, "detach") else np.asarray(tensor)
    if isinstance(array, np.ndarray) and array.dtype == np.uint16:
        array = rounding.from_bits(array, "bf16")
    if like is None or (namespace(array) is namespace(like) and array.device == like.device):
        return array
    return moved(to_numpy(array), like)


def _rows(name: str, array, q, cu_seqlens_q, n_after: int):
    """Return one row per query token: [total_q, Hq] and n_after dimensions more."""
    if cu_seqlens_q is None and array.ndim == 3 + n_after and q.ndim == 4:
        return tokens(array)
    if array.ndim != 2 + n_after or (q.ndim == 4 and q.shape[2] != 1):
        last = ", D" * n_after
        allowed = f"[total_q, Hq{last}]" if cu_seqlens_q is not None else f"[B, Hq, M{last}]"
        short = "" if cu_seqlens_q is not None else f" or, of one query per request, [B, Hq{last}]"
        raise ValueError(f"{name}.shape = {tuple(array.shape)}, allowed: {allowed}{short}")
    return array


def _problem(
    q, k, v, *, kv_len, cu_seqlens, cu_seqlens_q, causal, cache, scale, variant
) -> Problem:
    """Return the problem of q and of keys of any of the three kinds, on a CPU in NumPy."""
    if q.ndim < 3 or q.shape[-1] < 1:
        raise ValueError(
            f"q.shape = {tuple(q.shape)}, allowed: [B, Hq, D] and more, D of 1 or more"
        )
    rows = _rows("q", q, q, cu_seqlens_q, 1)
    if cu_seqlens_q is None:
        cu_seqlens_q = np.arange(len(q) + 1) * _queries(q)
    if scale is None:
        scale = getattr(cache, "default_scale", 1 / math.sqrt(q.shape[-1]))
    if not SCALES[0] <= scale <= SCALES[1]:
        raise ValueError(f"scale = {scale}, allowed: {SCALES[0]:.3g} to {SCALES[1]:.3g}")
    keys = _keys(q, k, v, kv_len, cu_seqlens, cache)
    how = {"scale": scale, "cu_seqlens_q": cu_seqlens_q, "causal": causal}
    return Problem(rows, *keys, **how, variant=variant).on_cpu_in_numpy()


def _queries(q) -> int:
    return 1 if q.ndim == 3 else q.shape[2]


def _variant(window_left, window_right, soft_cap, alibi, sinks) -> VariantTensors | None:
    found = {n: to_numpy(x) for n, x in (("alibi", alibi), ("sinks", sinks)) if x is not None}
    if soft_cap:  # 0 means that there is none
        found["soft_cap"] = float(soft_cap)
    for name, size in (("window_left", window_left), ("window_right", window_right)):
        end = None if size is None else meaning.window_end(name, size)
        if end is not None:
            found[name] = end
    return VariantTensors(**found, both_sides=alibi is not None) if found else None


def _keys(q, k, v, kv_len, cu_seqlens, cache) -> tuple:
    """Return the pools, page table and lengths, where q lies."""
    if cache is not None:
        if not (k is None and v is None and kv_len is None and cu_seqlens is None):
            raise ValueError("cache is given, allowed: without k, v, kv_len and cu_seqlens")
        if not hasattr(cache, "k"):
            words = "a PagedKV, QuantizedKV, RaggedKV or LatentKV"
            raise ValueError(f"cache is a {type(cache).__name__}, allowed: {words}")
        read = cache.values() if hasattr(cache, "values") else (cache.k, cache.v)
        k, v = (_array(f"cache.{name}", x, q) for name, x in zip("kv", read, strict=True))
        if hasattr(cache, "cu_seqlens"):
            return of_packed(k, v, cache.cu_seqlens)
        return k, v, cache.page_table, cache.kv_len
    if k is None or v is None:
        raise ValueError(f"{'k' if k is None else 'v'} is missing, allowed: k and v, or a cache")
    k, v = _array("k", k, q), _array("v", v, q)
    return of_dense(k, v, kv_len) if cu_seqlens is None else of_packed(k, v, cu_seqlens)
