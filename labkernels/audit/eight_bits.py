"""Mistakes with a cache of 8 bits: its codes in another format, or with scales of other places."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels import defects, formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, namespace, to_numpy
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis import region
from labkernels.numerics.verdict.diagnosis.match import Edit, Match
from labkernels.numerics.verdict.diagnosis.search import LEFT
from labkernels.numerics.verdict.verdict import BUG, INCONCLUSIVE, Verdict

_FORMATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
_AXES = ("page", "slot", "head", "channel")


def holds_codes(cache: Any) -> bool:
    """Return whether a cache holds codes of 8 bits and their scales."""
    return hasattr(cache, "k_scale") and _format(cache) is not None


def _format(cache: Any) -> str | None:
    return _FORMATS.get(str(getattr(cache.k, "dtype", "")).removeprefix("torch."))


@dataclass(frozen=True, eq=False)
class _Codes:
    """K or V of a cache. Shapes: bits [pages, page_size, Hkv, D]; scales broadcast to it."""

    bits: np.ndarray
    fmt: str
    scale: np.ndarray
    others: np.ndarray  # the scale of V or of K

    @property
    def values(self) -> np.ndarray:
        """What the codes are without a scale."""
        return rounding.from_bits(self.bits, self.fmt).astype(np.float64)

    @property
    def saturated(self) -> np.ndarray:
        """Values in which infinities and NaN are the largest number."""
        most = np.where(self.bits & 128, -1, 1) * formats.named(self.fmt).max
        return np.where(np.isfinite(self.values), self.values, most)

    @property
    def overflowed(self) -> np.ndarray:
        """Values in which the largest numbers are infinite."""
        most = np.abs(self.values) == formats.named(self.fmt).max
        return np.where(most, np.copysign(np.inf, self.values), self.values)


@dataclass(frozen=True, eq=False)
class _Reading:
    """K and V as a mistake reads them. Shapes: k, v [pages, page_size, Hkv, D]."""

    edit: Edit
    k: np.ndarray
    v: np.ndarray

    @property
    def kind(self) -> str:
        return defects.SCORES if self.edit.operand.startswith("K") else defects.VALUES


def _laws(fmt: str, axes: tuple[int, ...]) -> dict[tuple[str, ...], Callable[[_Codes], Array]]:
    """Return what mistakes make of codes, by their words. axes: of the scales."""
    other = next(name for name in _FORMATS.values() if name != fmt)
    laws: dict[tuple[str, ...], Callable[[_Codes], Array]] = {
        ("without its scale",): lambda x: x.values,
        ("with its scale twice",): lambda x: x.values * x.scale**2,
        ("with the scale of", "the other"): lambda x: x.values * x.others,
        ("read as", other): lambda x: replace(x, fmt=other).values * x.scale,
        ("saturated, where codes are not finite",): lambda x: x.saturated * x.scale,
        ("infinite, where codes are the largest",): lambda x: x.overflowed * x.scale,
    }
    for (place, n), step in itertools.product(enumerate(axes), (-1, 1)):
        axis = place - len(axes) - 1  # channels follow
        if n > 1:
            words = "with the scale of", f"{_AXES[axis]} {step:+d}"
            laws[words] = lambda x, a=axis, n=step: x.values * np.roll(x.scale, -n, a)
    return laws


def readings(cache: Any) -> Iterator[_Reading]:
    """Yield K and V of a cache of 8 bits as each mistake would read them."""
    fmt, scales = _format(cache) or "", [to_numpy(x) for x in (cache.k_scale, cache.v_scale)]
    wide = [x.astype(np.float64)[..., None] for x in scales]
    k, v = (
        _Codes(pool.view(namespace(pool).uint8).cpu().numpy(), fmt, *pair)
        for pool, pair in ((cache.k, wide), (cache.v, wide[::-1]))
    )
    right = [x.values * x.scale for x in (k, v)]
    for words, law in _laws(fmt, scales[0].shape).items():
        wrong = [law(k), law(v)]
        alike = [np.array_equal(*pair, equal_nan=True) for pair in zip(wrong, right, strict=True)]
        parts = {"K": (wrong[0], right[1]), "V": (right[0], wrong[1]), "K and V": tuple(wrong)}
        # the format of codes is one for both, the scales are not
        for operand in sorted(parts, key=len, reverse=words[0] == "read as"):
            if not any(same for same, name in zip(alike, "KV", strict=True) if name in operand):
                yield _Reading(Edit(operand, words[0], words[1:]), *parts[operand])


@np.errstate(all="ignore")  # codes read otherwise may be infinite, or the products of scales
def named(
    found: Verdict, problem: Problem, cache: Any, out: Array, judge: Callable[[Problem], Verdict]
) -> Verdict | None:
    """Return the verdict with the readings that explain each wrong head; None if none do.

    found: a bug, or inconclusive where codes are not finite. judge: of a problem, without names.
    Shapes: out [total_q, Hq, Dv].
    """
    group, fitting = problem.group, {}
    wrong = [h for h, left in enumerate(_left(problem, found, out)) if not left <= LEFT]
    k, v = (np.array(to_numpy(x), np.float64) for x in (problem.k_pool, problem.v_pool))
    before = float(np.sqrt(np.mean(np.minimum(found.z[np.isfinite(found.z)] ** 2, 1e20))))
    for reading in readings(cache):
        todo = [h for h in wrong if h not in fitting]
        if not todo:
            break
        other = replace(problem, k_pool=reading.k, v_pool=reading.v)
        for h, left in enumerate(_left(other, found, out)):
            if h in todo and left <= LEFT:
                fitting[h] = reading, left
                k[:, :, h], v[:, :, h] = reading.k[:, :, h], reading.v[:, :, h]
    if not wrong or len(fitting) < len(wrong):
        return None
    whole = replace(problem, k_pool=k, v_pool=v)
    finite = np.isfinite(k).all() and np.isfinite(v).all()
    if finite and judge(whole).answer in (BUG, INCONCLUSIVE):
        return None
    matches, rows = [], np.zeros(out.shape[:2], bool)
    for edit in dict.fromkeys(reading.edit for reading, _ in fitting.values()):
        own = [h for h, (reading, _) in fitting.items() if reading.edit == edit]
        heads = np.isin(np.arange(out.shape[1]) // group, own)
        here = np.broadcast_to(heads & (problem.n_keys > 0)[:, None], rows.shape)
        rows |= here
        reading, left = fitting[own[0]]
        place = region.of_rows(problem, here)
        matches.append(Match(reading.kind, edit, place, before, left))
    why = f"{matches[0].name}, {matches[0].where}; {found.why.rpartition('; ')[2]}"
    place = region.of_rows(problem, rows)
    return replace(found, answer=BUG, why=why, matches=tuple(matches[:3]), region=place)


def _left(problem: Problem, found: Verdict, out: Array) -> list[float]:
    """Return the rms of z of each KV head's rows; infinite where other rows are not finite."""
    truth = to_numpy(oracle.attention(problem)[0])
    sigma = to_numpy(error_sigma.sigma(problem, found.policy))
    dark = [~np.isfinite(x).all(-1) for x in (truth, out)]
    z = np.where(truth == out, 0.0, (out - truth) / sigma)
    z[dark[0] & dark[1]] = 0.0
    z[dark[0] != dark[1]] = np.inf
    of_heads = z.reshape(len(z), problem.kv_heads, -1)
    left: list[float] = np.sqrt((of_heads**2).mean((0, 2))).tolist()
    return left
