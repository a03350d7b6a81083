"""Names for a bug that several rows show: by places, lanes, races and matched filters."""

from dataclasses import replace
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, float64, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import significance
from labkernels.numerics.verdict.diagnosis import places
from labkernels.numerics.verdict.diagnosis.one_row import Match, Row, explain
from labkernels.numerics.verdict.diagnosis.outputs import bits
from labkernels.numerics.verdict.matched_filters import DIRECTIONS, Filters

_FAR_OUT = 7.5  # least mean |z| of outliers; the tail of a normal distribution beyond 5 has less
_LEFT_RMS = 1.5  # rms of z without one direction: rounding alone gives 1, and up to 15 % more
# Share of the predicted truncation. The weight of a key that was its warp's maximum for a while is
# exact, but the prediction knows only the last maximum.
_TRUNCATED = (0.4, 1.3)
_NEAR = 0.2  # a smaller difference of two rms of z does not tell two directions apart
_CLEARLY = 3.0  # least rms of z of a channel that is wrong in many rows
_FEW = 0.1  # share of the rows: fewer are the rows of one block, and a race is more likely
_MANY = 0.25  # share of the rows: fewer may share wrong channels by chance, unless in one region
_BLOCK = 8  # channels side by side that no chance makes wrong in rows anywhere
_OFTEN = 0.4  # share of the rows that went wrong in which a wrong channel shows
_MOST = 0.6  # share of the other rows that a row's mistake must explain too
_MOST_CHANNELS = 0.75  # share of the channels that may be wrong
_TINY = 1e-300  # in place of a division by 0
_GAIN = 60.0  # fall of sum z^2: one fitted number gains 60 by chance once in 10^14
_COARSE_STEPS = 4.0  # least step in spacings of the store: smaller steps may fit by chance
_COARSE = 32  # elements: fewer may have few bits by chance
_CUT = (0.25, 0.75)  # mean distance to the truth, in spacings, of a row that was cut toward 0
_CUT_ELEMENTS = 256  # elements of such rows: fewer may lie so by chance
_NEARLY = 0.02  # difference of two rms of z that is negligible
_FITTED = 4  # channels that a factor must explain: any factor explains one
_SPARSE = 0.02  # share of elements up to which outliers are sparse


def of_output(
    problem: Problem, out: Array, truth: Array, sigma: Array, out_format: str
) -> list[Match]:
    """Return names for NaN, infinity, a coarser store or wrong channels."""
    bad = ~np.isfinite(out)
    if bad.any():
        rows = np.argwhere(bad.any(-1))
        whole = int(bad.all(-1).sum())
        first = problem.row_name(*rows[0].tolist())
        where = f"{len(rows)} rows, {whole} of them whole, first {first}"
        return [Match("NaN or infinity", where, np.nan, np.inf)]
    coarser = _coarser_store(out, truth, sigma, out_format)
    if coarser:
        return coarser
    cut = _cut_store(problem, out, truth, sigma, out_format)
    if cut:
        return cut
    z = np.where(sigma > 0, (out - truth) / np.where(sigma > 0, sigma, 1.0), 0.0)
    return _channels(problem, out, truth, sigma, z)


def _coarser_store(out: Array, truth: Array, sigma: Array, out_format: str) -> list[Match]:
    """Return a name if every element of the wrong rows has fewer bits than the output's format."""
    rows = (np.abs(out - truth) > significance.OUTLIER * sigma).any(-1)
    given, right, spread = out[rows], truth[rows], sigma[rows]
    if given.size < _COARSE:
        return []
    for fmt in ("bf16", "fp16", "e4m3", "e5m2"):
        coarser = formats.coarser(fmt, out_format)
        if not coarser or not rounding.is_representable(given, fmt).all():
            continue
        store = rounding.quantum(right, fmt) ** 2 / 12
        was, left = (
            float(np.sqrt(np.nanmean((given - right) ** 2 / np.maximum(variance, _TINY))))
            for variance in (spread**2, spread**2 + store)
        )
        if left <= _LEFT_RMS:
            return [Match(f"out was rounded to {fmt}", "every element", left, was, True)]
    return _stepped(given, right, spread, out_format) or bits.of_output(
        given, right, spread, out_format
    )


def _cut_store(
    problem: Problem, out: Array, truth: Array, sigma: Array, out_format: str
) -> list[Match]:
    """Return a name if elements of some rows lie on average half a spacing nearer to 0 than truth.

    A factor on the output has nearly the same effect; both are named where both leave as little.
    """
    ulp = rounding.quantum(truth, out_format)
    short = np.where(truth == 0, 0.0, (truth - out) * np.sign(truth) / ulp)
    mean = short.mean(-1)
    rows = (mean > _CUT[0]) & (mean < _CUT[1]) & (sigma > 0).all(-1)
    z = np.where(sigma > 0, (out - truth) / np.where(sigma > 0, sigma, 1.0), 0.0)
    if rows.sum() * out.shape[-1] < _CUT_ELEMENTS or _rms(z[~rows]) > significance.RIGHT_RMS:
        return []
    own, given = z[rows], truth[rows] / sigma[rows]
    beta = float((own * given).sum() / max(float((given**2).sum()), _TINY))
    left = _rms(own + (ulp * np.sign(truth) / 2)[rows] / sigma[rows])
    was, by_factor = _rms(own), _rms(own - beta * given)
    gains = (was**2 - left**2) * own.size >= _GAIN
    if left > significance.RIGHT_RMS or not gains or by_factor < left - _NEARLY:
        return []
    name, where = "out was cut toward 0, not rounded to nearest", places.words(problem, rows)
    if by_factor > left + _NEARLY:
        return [Match(name, where, left, was, True)]
    either = f"{name}, or V or the output by a factor"
    return [Match(either, f"{where}; or times {1 + beta:.5g}", left, was)]


def _rms(x: Array) -> float:
    return float(np.sqrt((x**2).mean())) if x.size else 0.0


def _stepped(out: Array, truth: Array, sigma: Array, out_format: str) -> list[Match]:
    """Return a name if elements are whole numbers of steps, as integers of 8 or 4 bits are."""
    size = np.abs(out)
    for whose, largest in (("row", size.max(-1, keepdims=True)), ("tensor", size.max())):
        for width in (8, 4):
            step = np.maximum(largest / (2.0 ** (width - 1) - 1), _TINY)
            store = rounding.quantum(out, out_format)
            off = np.abs(out - np.rint(out / step) * step)
            coarse = np.median(step / store) >= _COARSE_STEPS
            # 0 and the largest number are whole numbers of steps in any output
            coarse &= np.count_nonzero((size > step / 2) & (size < largest - step / 2)) >= _COARSE
            if not coarse or (off > store * (1 + size / largest)).any():
                continue
            was, left = (
                float(np.sqrt(np.mean((out - truth) ** 2 / (sigma**2 + more))))
                for more in (_TINY, step**2 / 12)
            )
            if left <= _LEFT_RMS:
                where = f"{2**width - 1} steps for each {whose}"
                name = f"out was rounded to steps, as int{width}"
                return [Match(name, where, left, was, True)]
    return []


def _channels(problem: Problem, out: Array, truth: Array, sigma: Array, z: Array) -> list[Match]:
    """Return a name if some channels of the wrong rows are wrong and others are right."""
    wrong, bad, rms, others = wrong_channels(problem, sigma, z)
    if wrong is None:
        return []
    out, truth, sigma = (x[bad] for x in (out, truth, sigma))
    c, was = int(wrong[0]), float(rms[wrong[0]])
    with np.errstate(invalid="ignore", divide="ignore"):
        copies = (out[..., c, None] - truth) / sigma
    left = np.sqrt(np.where(sigma > 0, copies**2, 0.0).mean(0))
    source = int(left.argmin())
    shown = ", ".join(map(str, wrong[:8])) + (", ..." if len(wrong) > 8 else "")
    if left[source] <= _LEFT_RMS:
        where = f"channel {c} holds channel {source}; wrong: {shown}"
        return [Match("channels mixed up", where, float(left[source]), was)]
    zeros = " they are 0" * bool((out[..., wrong] == 0).all())
    where = f"{shown}, and no others;{zeros}".rstrip(";")
    return [Match("channels wrong", where, others, was, vague=True)]


def wrong_channels(problem: Problem, sigma: Array, z: Array) -> tuple[Any, ...]:
    """Return the wrong channels or None, the wrong rows, rms of z by channel, and of right ones.

    Shapes: sigma, z [total_q, Hq, Dv] -> [n] or None, [total_q, Hq], [Dv], a number.
    """
    bad = (np.abs(z) > significance.OUTLIER).any(-1)
    few = bad.sum() < max(2, _FEW * bad.size)
    if few:
        return None, bad, None, np.inf
    scattered = bad.mean() < _MANY and not places.filled(problem, bad)
    z = z[bad]
    rms = np.sqrt((z**2).mean(0))
    often = (np.abs(z) > _CLEARLY).mean(0) >= _OFTEN
    wrong = np.flatnonzero((rms > _CLEARLY) & often)
    right = np.delete(rms, wrong)
    others = float(np.sqrt((right**2).mean())) if len(right) else np.inf
    some = 0 < len(wrong) <= _MOST_CHANNELS * z.shape[-1] and others <= _LEFT_RMS
    block = len(wrong) >= _BLOCK and wrong[-1] - wrong[0] + 1 == len(wrong)
    some = some and (block or not scattered)
    some = some and right.max() <= _CLEARLY and _would_show(problem, sigma, bad, rms, wrong)
    return wrong if some else None, bad, rms, others


def _would_show(problem: Problem, sigma: Array, bad: Array, rms: Array, wrong: Array) -> bool:
    """Return whether errors like those of the wrong channels would show in the right ones.

    Where weights are wrong, the error of a channel is in proportion to the spread of its values.
    """
    spread = float64(problem.v_pool).std((0, 1, 2)) if problem.v_pool.size else np.zeros(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = to_numpy(spread) / np.median(sigma[bad], 0)
        share = np.nan_to_num(rms / np.where(reach > 0, reach, np.inf))
    right = np.setdiff1d(np.arange(len(rms)), wrong)
    expected = np.median(share[wrong]) * reach[right]
    return bool((expected > _CLEARLY).mean() >= _OFTEN)


def of_outliers(problem: Problem, out: Array, error: Array, sigma: Array) -> list[Match]:
    """Return a name if few elements are far out in right rows, as by a race or a lost write.

    An error along a direction that all rows share also leaves such elements; it is tried first.
    """
    z = np.where(sigma > 0, error / np.where(sigma > 0, sigma, 1.0), 0.0)
    if not np.isfinite(z).all():
        return []
    far = np.abs(z) > significance.OUTLIER
    left = float(np.sqrt((z[~far] ** 2).mean())) if (~far).any() else np.inf
    spread_out = far.any(-1).sum() > 1 and far.sum(-1).max() <= z.shape[-1] // 4
    sparse = far.any() and far.mean() <= _SPARSE and np.abs(z[far]).mean() >= _FAR_OUT
    if sparse and spread_out and left <= significance.RIGHT_RMS:
        token, head, channel = np.argwhere(far)[0].tolist()
        first = f"{problem.row_name(token, head)}, channel {channel}"
        where = f"{int(far.sum())} of {far.size} elements, first {first}"
        was = float(np.sqrt((z**2).mean()))
        name = "sparse outliers, as of a race"
        if (out[far] == 0).all():
            name = "elements never written: they are 0"
        return [Match(name, where, left, was, vague=True)]
    return []


def of_rows(rows: list[Row]) -> list[Match]:
    """Return mistakes that explain the worst row and most other wrong rows, with their place."""
    if not rows:
        return []
    found = explain(rows[0])
    if not found:
        return []
    others = [explain(row) for row in rows[1:]]
    place = rows[0].problem.row_name(*rows[0].place)
    return [
        replace(match, where=f"{match.where}; {place}".strip("; "))
        for match in found
        if sum(any(each.name == match.name for each in other) for other in others)
        >= _MOST * len(others)
    ]


def of_factor(rows: list[Row]) -> list[Match]:
    """Return a name for rows that are right but for a factor, which points to the denominator."""
    if not rows:
        return []
    parts = [_factor(row) for row in rows]
    if sum(bool(part) for part in parts) < _MOST * len(parts):
        return []
    return parts[0]


def _factor(row: Row) -> list[Match]:
    truth, weight = row.outputs[row.place], 1 / row.sigma**2
    factor = float((row.out * truth * weight).sum() / max((truth**2 * weight).sum(), 1e-300))
    error = row.out - truth
    if not row.out.any():  # no denominator makes an output 0
        return []
    if np.count_nonzero(np.abs(truth) > significance.SHOWS * row.sigma) < _FITTED:
        return []
    if abs(factor - 1) * float((truth**2 * weight).sum()) ** 0.5 <= significance.OUTLIER:
        return []
    where = f"times {factor:.4g}; {row.problem.row_name(*row.place)}"
    left = row.out - factor * truth
    total, taken = (float((x**2 * weight).sum()) for x in (error, left))
    return _kept("denominator of a row", where, total, total - taken, error.size)


def of_filters(
    problem: Problem, error: Array, sigma: Array, bugs: set[str], filters: Filters
) -> list[Match]:
    """Return mistakes that rows share and that one row may not show, by their matched filters."""
    z2 = np.where((sigma > 0) & np.isfinite(error), error / np.where(sigma > 0, sigma, 1.0), 0.0)
    z2 = (z2**2).sum(-1)
    named = []
    if "one key, by sample" in bugs:
        sample = int(np.abs(filters.sample.z).argmax())
        key, beta = int(filters.sample.key[sample]), float(filters.sample.beta[sample])
        name = "key left out" if beta > 0 else "key counted twice"
        where = f"key {key}, all heads of sample {sample}, beta {beta:.3g}"
        of_sample = z2[problem.request_of == sample]
        n = of_sample.size * error.shape[-1]
        named += _kept(name, where, of_sample.sum(), filters.sample.z[sample] ** 2, n)
    for name in ("P truncated", "scale", "common mode"):
        if not any(test.startswith(name) for test in bugs):
            continue
        i = DIRECTIONS.index(name)
        beta, _ = significance.beta(filters, name)
        if name == "P truncated" and not _TRUNCATED[0] <= beta <= _TRUNCATED[1]:
            continue
        along, power = filters.along[i].sum(), max(filters.power[i].sum(), 1e-300)
        where = f"beta {beta:.3g} over all rows"
        name = "V or the output by a factor" if name == "common mode" else name
        named += _kept(name, where, z2.sum(), along**2 / power, error.size)
    # The directions are nearly the same: the special name comes before the general one, which is
    # named, too, where it explains more.
    named.sort(key=lambda match: match.rms - (_NEAR if match.name == "P truncated" else 0))
    least = min(named, key=lambda match: match.rms, default=None)
    if least and named[0] is not least:
        both = f"{named[0].name}, or {least.name}"
        named[0] = replace(named[0], name=both, where=f"{named[0].where}; or {least.where}")
    return named


def _kept(name: str, where: str, total: float, taken: float, n: int) -> list[Match]:
    """Return the match, if it leaves no more than rounding and explains more than chance could."""
    left, was = (float(np.sqrt(max(x, 0.0) / n)) for x in (total - taken, total))
    if not (left <= _LEFT_RMS and taken >= _GAIN):
        return []
    return [Match(name, where, left, was, vague=name != "P truncated")]
