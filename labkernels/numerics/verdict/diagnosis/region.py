"""Where an output went wrong: requests, heads, queries, channels, and sets of numbers in words."""

import numpy as np

from labkernels.numerics.arrays import Array, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.match import Region

_MOST = 0.9  # share of a region's rows that are bad: some mistakes leave a row right
_LISTED = 6
_MODULI = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)
_CLEARLY, _RIGHT = 3.0, 1.5  # rms of z of a channel that is wrong, and the most of a right one
_OFTEN = 0.4  # share of the wrong rows in which a wrong channel shows
_PAGES = 64  # of V, whose spread is looked at
_SPREAD = 0.2  # least ratio of the spreads of V: a channel of constant values shows nothing


def of_rows(problem: Problem, bad: Array, channels: Array | None = None) -> Region:
    """Return the smallest region that holds all bad rows. Shapes: bad [total_q, Hq], bool."""
    said = "" if channels is None else "; " + numbers("channel", channels, problem.out_shape[-1])
    own = None if channels is None else tuple(map(int, channels))
    live = np.broadcast_to(problem.n_keys[:, None] > 0, bad.shape)
    if not bad.any() or bad.sum() >= _MOST * live.sum():
        return Region(channels=own, words="all rows" + said)
    tokens = np.flatnonzero(bad.any(1))
    heads, requests = np.flatnonzero(bad.any(0)), np.unique(problem.request_of[tokens])
    query = np.arange(len(bad)) - problem.q_ends[problem.request_of]
    first, last = int(query[tokens].min()), int(query[tokens].max())
    longest = int(np.diff(problem.q_ends).max(initial=0))
    region, words = live & (query >= first)[:, None] & (query <= last)[:, None], []
    region = region & np.isin(problem.request_of, requests)[:, None]
    region = region & np.isin(np.arange(bad.shape[1]), heads)
    found = []
    for what, some, count in (("request", requests, problem.batch), ("head", heads, bad.shape[1])):
        found.append(tuple(map(int, some)) if len(some) < count else None)
        words += [numbers(what, some, count)] * (len(some) < count)
    some_rows = first > 0 or last < longest - 1
    words += [numbers("query", np.arange(first, last + 1), longest)] * some_rows
    if bad.sum() < _MOST * region.sum():
        there = " there" * bool(words)
        words.append(f"{int(bad.sum())} of {int(region.sum())} rows{there}")
    place = ", ".join(words)
    of_requests, of_heads = found
    rows = (first, last) if some_rows else None
    return Region(of_requests, of_heads, rows, own, words=place + said)


def wrong_channels(problem: Problem, z: Array, bad: Array) -> np.ndarray | None:
    """Return the channels that are wrong where all others are right, else None.

    A channel whose values hardly differ is right whatever the weights are, and says nothing.
    Shapes: z [total_q, Hq, Dv], bad [total_q, Hq].
    """
    rms = np.sqrt((np.minimum(np.abs(z[bad]), 1e3) ** 2).mean(0))
    often = (np.abs(z[bad]) > _CLEARLY).mean(0) >= _OFTEN
    wrong = np.flatnonzero((rms > _CLEARLY) & often)
    right = np.delete(np.arange(len(rms)), wrong)
    if not len(wrong) or len(right) < len(rms) / 8 or not rms[right].max() < _CLEARLY:
        return None
    if not np.sqrt((rms[right] ** 2).mean()) < _RIGHT:
        return None
    spread = to_numpy(problem.v_pool[:_PAGES]).astype(np.float64).std((0, 1, 2))
    alike = np.median(spread[right]) >= _SPREAD * np.median(spread[wrong])
    return wrong if alike else None


def numbers(what: str, some: Array, count: int) -> str:
    """Return a set of the numbers 0 to count - 1 in words: runs, or residues.

    >>> numbers("key", np.array([4, 5, 6, 7]), 8), numbers("head", np.array([2]), 8)
    ('keys from 4 on', 'head 2')
    >>> numbers("key", np.arange(1, 32, 4), 32)
    'every key with key % 4 in 1'
    """
    some = np.sort(np.asarray(some))
    several = {"query": "queries"}.get(what, what + "s")
    if len(some) <= 1:
        return f"{what} {some[0]}" if len(some) else f"no {what}"
    runs = np.split(some, np.flatnonzero(np.diff(some) > 1) + 1)
    if len(runs) <= 2:
        return f"{several} " + ", ".join(_run(run, count) for run in runs)
    for modulus in _MODULI:
        residues = np.unique(some % modulus)
        span = np.arange(some[0], some[-1] + 1)
        whole = int(np.isin(span % modulus, residues).sum()) == len(some)
        if whole and 2 * len(residues) <= min(len(some), modulus):
            listed = ", ".join(map(str, residues[:_LISTED])) + ", ..." * (len(residues) > _LISTED)
            inside = some[0] >= modulus or some[-1] < count - modulus
            ends = f" from {some[0]} to {some[-1]}" * bool(inside)
            return f"every {what} with {what} % {modulus} in {listed}{ends}"
    more = f" and {len(runs) - _LISTED} runs more" * (len(runs) > _LISTED)
    return f"{several} " + ", ".join(_run(run, count) for run in runs[:_LISTED]) + more


def _run(run: Array, count: int) -> str:
    if len(run) == 1:
        return str(run[0])
    return f"from {run[0]} on" if run[-1] == count - 1 else f"{run[0]} to {run[-1]}"
