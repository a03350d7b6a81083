"""Mistakes with a cache of 8 bits: its codes in another format, or with scales of other places.

Products of codes in 8 bits are no mistake, though tensor cores cut them: `with_cut_scores`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from labkernels import defects, formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, moved, namespace, to_numpy
from labkernels.numerics.emulation import tensor_core
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis import region
from labkernels.numerics.verdict.diagnosis.match import Edit, Match, Region
from labkernels.numerics.verdict.diagnosis.search import LEFT
from labkernels.numerics.verdict.verdict import BUG, ROUNDING, Verdict

_FORMATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
_MOST = 0.9  # share of wrong tokens to explain: fp32 may not hold the scores of a wrong format
_FEW_PAGES = 64  # of each of which alone a mistake is sought; of more that takes too long
_CHANCE = 3.0  # rms of z that is left of rows in which one key has most weight: P errs once there


def format_of(cache: Any) -> str | None:
    """Return the format of a cache of codes of 8 bits with scales; None of any other."""
    kind = str(getattr(cache.k, "dtype", "")) if hasattr(cache, "k_scale") else ""
    return _FORMATS.get(kind.removeprefix("torch."))


@dataclass(frozen=True, eq=False)
class _Codes:
    """K or V of a cache. Shapes: bits [pages, page_size, Hkv, D].

    scale, others: of it, and of V or of K: [Hkv, 1], or of each key, [pages, page_size, Hkv, 1].
    pages: the page before each in its request, and the page after [2, pages].
    """

    bits: np.ndarray
    fmt: str
    scale: np.ndarray
    others: np.ndarray
    pages: np.ndarray

    @property
    def values(self) -> np.ndarray:
        return rounding.from_bits(self.bits, self.fmt).astype(np.float64)

    @property
    def most(self) -> np.ndarray:  # the largest number, with the sign of each code
        return np.where(self.bits & 128, -1, 1) * formats.named(self.fmt).max


def _of_pages() -> dict[tuple[str, ...], Callable[[_Codes], Array]]:
    """Return what the scales of other pages make of codes, where blocks of keys have scales."""
    of = "with the scale of"
    return {
        (of, "its request's page before"): lambda x: x.values * x.scale[x.pages[0]],
        (of, "its request's page after"): lambda x: x.values * x.scale[x.pages[1]],
        (of, "page -1"): lambda x: x.values * np.roll(x.scale, 1, 0),
        (of, "page +1"): lambda x: x.values * np.roll(x.scale, -1, 0),
    }


def _of_keys() -> dict[tuple[str, ...], Callable[[_Codes], Array]]:
    """Return what the scales of other keys of a page make of codes."""
    of = "with the scale of"
    return {
        (of, "the key before"): lambda x: x.values * np.roll(x.scale, 1, 1),
        (of, "the key after"): lambda x: x.values * np.roll(x.scale, -1, 1),
        (of, "the first key of the page"): lambda x: x.values * x.scale[:, :1],
    }


def _laws(fmt: str) -> dict[tuple[str, ...], Callable[[_Codes], Array]]:
    """Return what mistakes make of codes, by their words."""
    other = {"e4m3": "e5m2", "e5m2": "e4m3"}[fmt]
    word, beyond = ("NaN", np.nan) if fmt == "e4m3" else ("infinite", np.inf)
    return {
        ("without its scale",): lambda x: x.values,
        ("with its scale twice",): lambda x: x.values * x.scale**2,
        ("divided by its scale",): lambda x: x.values / x.scale,
        ("with the scale of", "the other"): lambda x: x.values * x.others,
        ("with the scale of", "head -1"): lambda x: x.values * np.roll(x.scale, 1, -2),
        ("with the scale of", "head +1"): lambda x: x.values * np.roll(x.scale, -1, -2),
        ("read as", other): lambda x: replace(x, fmt=other).values * x.scale,
        ("saturated, where codes are not finite",): lambda x: (
            x.scale * np.where(np.isfinite(x.values), x.values, x.most)
        ),
        (f"{word}, where codes are the largest",): lambda x: (
            x.scale * np.where(x.values == x.most, beyond * x.most, x.values)
        ),
    }


def readings(cache: Any) -> Iterator[tuple[Edit, Array, Array]]:
    """Yield K and V of a cache of 8 bits as each mistake would read them."""
    fmt, scales = format_of(cache) or "", (cache.k_scale, cache.v_scale)
    wide, sizes = [to_numpy(x).astype(np.float64)[..., None] for x in scales], cache.k.shape
    if of_blocks := wide[0].ndim == 4:
        wide = [np.repeat(x, sizes[1] // x.shape[1], 1) for x in wide]
    wide = [np.broadcast_to(x, (*x.shape[:-2], sizes[2], 1)) for x in wide]
    pages = _neighbours(*map(to_numpy, (cache.page_table, cache.kv_len)), sizes[:2])
    k, v = (
        _Codes(pool.view(namespace(pool).uint8).cpu().numpy(), fmt, *pair, pages)
        for pool, pair in ((cache.k, wide), (cache.v, wide[::-1]))
    )
    right = {"K": k.values * k.scale, "V": v.values * v.scale}
    laws, of_pages = _laws(fmt), _of_pages() if of_blocks else {}
    laws |= of_pages | (_of_keys() if of_blocks else {})
    used = np.unique(to_numpy(cache.page_table).clip(0))
    for page in used if len(used) <= _FEW_PAGES else ():
        for words, law in of_pages.items():
            laws[*words, f"in page {page} alone"] = partial(_of_page, page, law)
    for words, law in laws.items():
        wrong = {"K": law(k), "V": law(v)}
        other = {n for n in wrong if not np.array_equal(wrong[n], right[n], equal_nan=True)}
        # the format of codes is one for both, the scales are not
        for operand in sorted(("K", "V", "K and V"), key=len, reverse=words[0] == "read as"):
            names = set(operand.split(" and "))
            if names <= other:
                parts = [(wrong if n in names else right)[n] for n in "KV"]
                yield Edit(operand, words[0], words[1:]), *parts


def _of_page(page: int, law: Callable[[_Codes], Array], x: _Codes) -> np.ndarray:
    """Return what a law makes of one page, beside the right values of all others."""
    found = x.values * x.scale
    found[page] = law(x)[page]
    return found


def _neighbours(table: Array, lengths: Array, sizes: tuple[int, int]) -> np.ndarray:
    """Return the page before each page in its request, and the page after; at the ends, itself."""
    found = np.tile(np.arange(sizes[0]), (2, 1))
    for row, length in zip(table, lengths, strict=True):
        own = row[: -(-int(length) // sizes[1])]
        found[0, own[1:]], found[1, own[:-1]] = own[:-1], own[1:]
    return found


@np.errstate(all="ignore")  # codes read otherwise may be infinite, or the products of scales
def named(
    problem: Problem, cache: Any, out: Array, judge: Callable[[Problem], Verdict]
) -> Verdict | None:
    """Return a bug's verdict with the readings that explain each wrong head; None if none do.

    judge: gives the verdict on a problem, without names. Shapes: out [total_q, Hq, Dv].
    """
    found, fitting = judge(problem), dict[int, tuple[Edit, float]]()
    if found.answer == ROUNDING:
        return None
    before = _left(problem, found, out)
    wrong = {h: before[:, h] > LEFT for h in range(problem.kv_heads) if before[:, h].max() > LEFT}
    k, v = (np.array(to_numpy(x), np.float64) for x in (problem.k_pool, problem.v_pool))
    heads, most = np.arange(problem.kv_heads), before.max()
    for edit, *parts in readings(cache):
        if not (todo := [h for h in wrong if h not in fitting or fitting[h][1] > LEFT]):
            break
        after = _left(_with(problem, *parts), found, out)
        for h in todo:
            some = np.stack([before[wrong[h], h], after[wrong[h], h]])
            was, left = np.quantile(some, _MOST, axis=1, method="lower").tolist()
            least = fitting[h][1] if h in fitting else math.inf
            kept = (after[~wrong[h], h] <= _CHANCE).all()  # what was right stays so
            if kept and left < least and left <= max(LEFT, min(_CHANCE, most / 10, was / 2)):
                fitting[h] = edit, left
                alike = ((after <= before).all(0) & ~np.isin(heads, [*wrong])) | (heads == h)
                k[:, :, alike], v[:, :, alike] = (x[:, :, alike] for x in parts)
    if not fitting or any(before[:, h].max() > _CHANCE for h in wrong.keys() - fitting.keys()):
        return None
    finite = np.isfinite(k).all() and np.isfinite(v).all()
    if finite and judge(_with(problem, k, v)).answer == BUG:
        return None

    def place(own: list[int]) -> Region:
        rows = np.isin(np.arange(out.shape[1]) // problem.group, own)
        return region.of_rows(problem, rows & (problem.n_keys > 0)[:, None])

    matches = []
    for edit in dict.fromkeys(edit for edit, _ in fitting.values()):
        own = [h for h, (of, _) in fitting.items() if of == edit]
        kind = defects.SCORES if "K" in edit.operand else defects.VALUES
        matches.append(Match(kind, edit, place(own), float(before.max()), fitting[own[0]][1]))
    why = f"{matches[0].name}, {matches[0].where}; {found.why.rpartition('; ')[2]}"
    told = {"why": why, "matches": tuple(matches[:3]), "region": place(list(fitting))}
    return replace(found, answer=BUG, **told)


def _with(problem: Problem, k: Array, v: Array) -> Problem:
    return replace(problem, k_pool=moved(k, problem.q), v_pool=moved(v, problem.q))


def _left(problem: Problem, found: Verdict, out: Array) -> np.ndarray:
    """Return the rms of z of each token's rows of a KV head, inf where it is not known.

    Rows are right where the same numbers of output and truth are not finite, and likelier right
    than finite ones where others are. Shapes: [total_q, Hkv].
    """
    truth = to_numpy(oracle.attention(problem)[0])
    sigma = to_numpy(error_sigma.sigma(problem, found.policy))
    dark = [~np.isfinite(x) for x in (truth, out)]
    z = np.where(truth == out, 0.0, (out - truth) / sigma)
    both = np.logical_and(*(x.any(-1, keepdims=True) for x in dark))
    z[dark[0] & dark[1]] = 0.0
    z = np.where(dark[0] != dark[1], np.where(both, _CHANCE, np.inf), z)
    left = np.sqrt((z.reshape(len(z), problem.kv_heads, -1) ** 2).mean(-1))
    return np.where(np.isnan(left), np.inf, left)


@np.errstate(all="ignore")  # values that are no codes may be anything
def with_cut_scores(problem: Problem) -> Problem | None:
    """Return the problem with scores as Hopper's tensor cores sum products of codes in e4m3.

    They keep 13 bits of the largest product, which shows where P has 16 bits. None where Q and K
    are no codes times a scale of each request and KV head, or where this takes longer than seconds.
    """
    if problem.variant is not None or not problem.keeps_scores:
        return None
    problem, cut = problem.in_numpy(), np.zeros((*problem.q.shape[:2], problem.kv_lens.max()))
    for request, head in np.ndindex(problem.batch, problem.kv_heads):
        rows = slice(*problem.q_ends[request : request + 2])
        heads = slice(head * problem.group, (head + 1) * problem.group)
        q, k = problem.q[rows, heads], keys_of(problem, "k", head, request)
        if q.size and k.size:
            of_q, of_k = _codes(q), _codes(k)
            if of_q is None or of_k is None:
                return None
            found = tensor_core.matmul(of_q[0], of_k[0].T, arch="sm_90", fmt="e4m3")
            off = found * (of_q[1] * of_k[1]) - q.astype(np.float64) @ k.T
            cut[rows, heads, : len(k)] = problem.scale * off
    return replace(problem, variant=VariantTensors(bias=np.moveaxis(cut, 1, 0)))


def _codes(x: Array) -> tuple[np.ndarray, float] | None:
    """Return codes in e4m3, the largest of them as large as can be, and their scale."""
    for scale in np.abs(x).max() / np.array([448, 416, 384, 352, 320, 288, 256, 240]):
        codes = rounding.round_to(x / scale, "e4m3")
        if np.allclose(codes * scale, x, rtol=2.0**-22, atol=0):  # floats in fp32 may be rounded
            return codes, scale
    return None
