"""Names for a bug of a whole kernel: every known mistake is tried on all wrong rows.

Each mistake is made in float64. The mistake is named if the output differs from this float64 result
by rounding alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from labkernels.numerics.verdict.diagnosis import aliases
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.numerics.verdict.diagnosis.whole_kernel import fitted, grammar, one_rule, same
from labkernels.numerics.verdict.diagnosis.whole_kernel.keys import (
    appended,
    ends,
    indices,
    intervals,
    key_runs,
    memory,
    orders,
    packs,
    scaled_ends,
    some_keys,
    sources,
    weights_of_keys,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import (
    blocks,
    clips,
    elements,
    modes,
    nibbles,
    weights,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import (
    channels as product_channels,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import keys as product_keys
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import masks as product_masks
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import pools as product_pools
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import queries as product_queries
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import sources as product_sources
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import tiles as product_tiles
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import turns
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import weights as product_weights
from labkernels.numerics.verdict.diagnosis.whole_kernel.scores import (
    biases,
    by_head,
    channels,
    exponentials,
    functions,
    places,
    positions,
    queries,
    substitutes,
    swizzles,
    variants,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import LEFT, Family, Search
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.numerics.verdict.diagnosis.whole_kernel.sums import (
    begun,
    chains,
    merges,
    others,
    precision,
    stale,
    states,
)
from labkernels.numerics.verdict.significance import RIGHT_RMS

ALIKE = 0.1  # times _SHARE: difference of the rms that does not tell two mistakes apart
CLEARLY = 9.0  # factor by which mean z^2 must fall so that one number of all rows ends the search
SURELY = 1e3  # factor by which mean z^2 must fall so that a fitted number leaves no doubt
VAGUE = 0.2  # least difference of the rms by which a fitted number wins over a known mistake
_WITHOUT_NUMBERS = (
    *one_rule.ALL,
    *one_rule.LATER,
    *queries.ALL,
    *precision.ALL,
    *precision.LATER,
    *functions.WITHOUT_NUMBERS,
    positions.of_values,
)
_OF_ALL_ROWS = (*_WITHOUT_NUMBERS, variants.of_each_sink)


def of_some_keys(few: list[Sheet], misfit: fitted.Misfit) -> Iterator[Mistake]:
    """Yield mistakes without numbers, and rotations, that concern only some keys."""
    known = (mistake for family in _WITHOUT_NUMBERS for mistake in family(few))
    turned = positions.rotations(few)
    yield from some_keys.of_mistakes(few, misfit, itertools.chain(known, turned))


Rounds = tuple[tuple[Family, ...], ...]
_QUICK = 3  # rounds of a few seconds; the later ones take up to half a minute
# A round is tried if the rounds before found only vague numbers, or left more than rounding.
_ROUNDS: Rounds = (
    one_rule.ALL,
    (
        *precision.ALL,
        variants.of_variant,
        *fitted.ALL,
        key_runs.of_range,
        *ends.ALL,
        *fitted.LATER,
        *key_runs.LATER,
        orders.of_offset,
        merges.of_splits,
    ),
    (variants.of_each_sink, grammar.of_readings, *states.ALL),
    (
        merges.of_lanes,
        *exponentials.ALL,
        *orders.ALL[1:],
        *channels.ALL,
        *positions.ALL,
        *weights_of_keys.ALL,
        *chains.ALL,
        *functions.ALL,
        *functions.WITHOUT_NUMBERS,
        positions.of_values,
        *one_rule.LATER,
        *queries.ALL,
        *precision.LATER,
        *by_head.ALL,
        *sources.ALL,
        *intervals.ALL,
        biases.of_distances,
    ),
    (of_some_keys, *product_tiles.ALL),
    chains.LAST,
)
# Hundreds of formats, places and layouts, tried where nothing else has a name for the errors.
_LATE: Rounds = (
    (
        *(*biases.ALL, *memory.ALL, *packs.ALL, *swizzles.ALL),
        *(*weights.ALL, *clips.ALL, *places.ALL),
    ),
    blocks.ALL,
    (*appended.ALL, *indices.ALL, *stale.ALL, *scaled_ends.ALL),
    (*substitutes.ALL, *queries.LATE, *elements.ALL, *modes.ALL),
    (*product_keys.ALL, *product_channels.ALL, *turns.ALL),
    (*product_weights.ALL, *begun.ALL),
    (
        *(*product_masks.ALL, *product_queries.ALL, *product_sources.ALL, *product_pools.ALL),
        *(*turns.LATE, *others.ALL, *nibbles.ALL),
    ),
)
# How the name of a mistake begins, and families that may be nearly the same on some inputs. A cap
# that is not multiplied back is a scale where scores are small. Weights relative to the wrong
# maximum are those of a merge without it. With one query, another distance is the right one by
# another slope. These families are tried too, to print both names.
_RIVALS: dict[str, tuple[Family, ...]] = {
    "wrong scale": (fitted.of_scale, functions.of_cuts),
    "soft cap that was not asked for": (functions.of_cuts,),
    "soft cap of another number": (substitutes.of_caps,),
    "ALiBi slopes": (biases.of_distances,),
    "splits merged unweighted": (states.of_steps,),
    chains.OTHER_TILES: (states.of_skips,),
    "splits merged by l alone": (states.of_steps,),
    "splits merged by their maximum alone": (states.of_steps,),
}
# What errors as small as rounding's can still show: a number, or the kind of arithmetic.
_OF_ARITHMETIC: Rounds = (
    *_ROUNDS[:2],
    (
        *(*exponentials.ALL, *chains.ALL, *precision.LATER, chains.of_weights),
        *(weights.of_sums, weights.of_partials),
    ),
)
_LATE_OF_ARITHMETIC: Rounds = (modes.ALL, blocks.ALL)
_SAME = 6.0  # fall of sum z^2: a smaller difference does not tell two mistakes apart
_BETTER = 30.0  # fall of sum z^2 that tells two mistakes apart, in units of the better one's
_FLOOR = 0.05  # rms of z: less is no better, since fp32's errors may be far below their sigma
_SHARE = 0.1


@np.errstate(all="ignore")  # a wrong guess may overflow; it is not kept
def explain(
    found: list[Sheet],
    out_format: str,
    *,
    start: list[Sheet] | None = None,
    of_arithmetic: bool = False,
    of_rows: Callable[[], list[Match]] = list,
    late: bool = False,
) -> list[Match]:
    """Return the mistakes that explain all sheets, the best first.

    start: sheets of the first tokens of long requests, where the errors are alike. They are
    searched first, and what explains them is judged on all sheets. Where nothing does, the long
    sheets are searched in their first round alone.
    of_arithmetic: coarser arithmetic errs as much, so that hundreds of readings are not tried.
    of_rows: returns the mistakes of single rows; a sure one ends the search after the quick rounds.
    late: the mistakes are tried that are left to the end.
    """
    if not found:
        return []

    search = Search(found, out_format)
    if not any(sheet.out.any() for sheet in found):
        was = math.sqrt(search.before)
        return [Match("row never written, or V read as 0", "it is 0", 0.0, was)]
    small = of_arithmetic or search.before <= LEFT**2
    rounds = _OF_ARITHMETIC if small else _ROUNDS
    if late:
        rounds = _LATE_OF_ARITHMETIC if of_arithmetic else _LATE
    if start:
        early = Search(start, out_format)
        _searched(early, rounds, of_rows)
        for _, mistake in early.kept:
            search.judge(mistake)
        rounds = rounds[: not late]
    if not search.kept:
        _searched(search, rounds, of_rows)
    return _ordered(search.kept, found, math.sqrt(search.before))


def _searched(search: Search, rounds: Rounds, of_rows: Callable[[], list[Match]]) -> None:
    """Try the rounds, until a mistake settles the question, and then what may be the same."""
    for done, families in enumerate(rounds):
        if done == _QUICK and not search.kept and any(map(_is_sure, of_rows())):
            break
        search.try_all(families, _OF_ALL_ROWS)
        sure = (rms**2 * SURELY <= search.before for rms, _ in search.kept)
        if any(_settles(*pair, search.before) for pair in search.kept) or any(sure):
            break
    rivals = [
        family
        for _, mistake in search.kept
        for start, families in _RIVALS.items()
        for family in families * mistake.name.startswith(start)
    ]
    search.try_all(rivals, _OF_ALL_ROWS)


def _settles(rms: float, mistake: Mistake, before: float) -> bool:
    """Whether a mistake leaves no more than right elements have, so that the search may end."""
    if mistake.settles:
        return rms <= mistake.settles and rms**2 * CLEARLY <= before
    return rms <= RIGHT_RMS and not mistake.vague


def _is_sure(match: Match) -> bool:
    return match.rms <= RIGHT_RMS and match.rms**2 * SURELY <= match.was**2


def _ordered(kept: list[tuple[float, Mistake]], found: list[Sheet], was: float) -> list[Match]:
    """Return the best mistake, with those that these rows cannot tell from it."""
    if not kept:
        return []
    n = sum(sheet.out.size for sheet in found)
    best = min(rms + VAGUE * mistake.vague for rms, mistake in kept)

    def rank(pair: tuple[float, Mistake]) -> tuple[float, float]:
        rms, mistake = pair
        off = rms + VAGUE * mistake.vague
        worse = (off**2 - best**2) * n / max(best, _FLOOR) ** 2
        near = worse <= _BETTER or off <= best + ALIKE * _SHARE
        return (best if near else off), mistake.cost

    order = sorted(kept, key=rank)
    rms, first = order[0]
    # A cheap mistake may come before one that explains a little more. Both are named then, unless
    # the latter alone is vague: fitted numbers explain a little more of any error.
    alike = []
    for other, mistake in order[1:]:
        worse = (other**2 - rms**2) * n
        chance = mistake.vague and not first.vague and -_BETTER * rms**2 <= worse < -_SAME
        if worse <= _SAME and not chance and not first.name.startswith(mistake.name):
            alike.append(mistake)
    every = [name for m in (first, *alike) for name in m.name.split(", or ")]
    if same.is_mask(first, found):
        every.insert(1, same.ANOTHER_MASK)
    names = list(dict.fromkeys(every))[: aliases.MOST]
    matches = [
        Match(m.name, m.where, rms, was, m.precision, m.vague, m.like_scale, m.for_each)
        for rms, m in order[:3]
    ]
    matches[0] = replace(matches[0], settled=first.settles > 0 and _settles(rms, first, was**2))
    if len(names) > 1:
        where = "; or ".join(filter(None, dict.fromkeys(m.where for m in (first, *alike[:1]))))
        each = any(m.for_each for m in (first, *alike) if m.name.split(", or ")[0] in names)
        matches[0] = replace(matches[0], name=", or ".join(names), where=where, for_each=each)
        matches[1:] = [match for match in matches[1:] if match.name not in names]
    return matches
