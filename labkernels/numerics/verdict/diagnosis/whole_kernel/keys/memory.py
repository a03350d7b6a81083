"""Keys as they lie in memory, read otherwise: pages in another layout, other starts, what follows.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, of_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of, part

_PAGES = (16, 32, 64, 128, 8, 0)
_NUMBERS = 2**26  # numbers of K and V that are moved: with more, it would take seconds
_MORE = 128  # most keys past the end
_EDGE = 128  # keys beyond both ends of all requests
_ZEROS = -1  # in place of the first of the keys that are added, if they are 0
_TENSORS = ("K", "V", "K and V")
_AXES = {"p": "pages", "h": "heads", "s": "slots", "d": "channels", "w": "K and V"}
_BOTH = ("pwshd", "pswhd", "pshwd", "pwhsd", "phwsd", "phswd", "wpshd", "wphsd")


def of_pages(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K and V lie in the same pages, in one order of K and V, heads and slots, read in another."""
    sheet = sheets[0]
    alike = sheet.k.shape == sheet.v.shape and isinstance(sheet.channels, slice)
    ways = [(n, a, b) for n in _PAGES for a, b in itertools.permutations(_BOTH, 2)]
    most = _NUMBERS // max(sheet.k.size * sheet.problem.kv_heads, 1)
    tried = ways[:most] if alike else []

    def each(sheet: Sheet, row: int) -> Array:
        one = part(sheet, slice(row, row + 1))
        return np.concatenate([_of_pages(one, *way) for way in tried])

    for i in sorted({i for _, _, i in of_rows(sheets[:1], each, rows=1)} if tried else ()):
        size, wrote, read = tried[i]
        said = [", ".join(_AXES[axis] for axis in order) for order in (wrote, read)]
        yield Mistake(
            "K and V read with pages in another layout",
            f"pages of {size or 'all'} keys lie as [{said[0]}], and are read as [{said[1]}]",
            lambda sheet, way=tried[i]: _of_pages(sheet, *way),
            cost=1.0,
        )


def _of_pages(sheet: Sheet, size: int, wrote: str, read: str) -> Array:
    def both() -> Array:
        whole = np.stack([_paged(sheet, name, size or sheet.kv_len) for name in "kv"])
        own = dict(zip("wphsd", whole.shape, strict=True))
        memory = whole.transpose(["wphsd".index(axis) for axis in wrote])
        shaped = memory.reshape([own[axis] for axis in read])
        back = shaped.transpose([read.index(axis) for axis in "wphsd"])
        return back[:, :, sheet.kv_head].reshape(2, -1, own["d"])[:, : sheet.kv_len]

    k, v = both()
    return sheet.attend(sheet.masked(sheet.shaped(sheet.q @ k.T)), v)


def _paged(sheet: Sheet, which: str, size: int) -> np.ndarray:
    """Return K or V of all heads in pages, 0 behind the last key. Shapes: [P, H, size, D]."""

    def found() -> Array:
        n = sheet.problem.kv_heads
        each = [keys_of(sheet.problem, which, head, sheet.request) for head in range(n)]
        x = np.stack(each)  # [H, L, D]
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % size), (0, 0)))
        return x.reshape(n, -1, size, x.shape[2]).swapaxes(0, 1)

    return sheet.once((which, "pages", size), found)


def _flat(sheet: Sheet, which: str) -> np.ndarray:
    """Return K or V of all requests, one behind the other, with copies of both ends beyond them."""

    def found() -> Array:
        each = [sheet.keys(which, request=r) for r in range(sheet.problem.batch)]
        return np.pad(np.concatenate(each), ((_EDGE, _EDGE), (0, 0)), mode="edge")

    return sheet.once((which, "flat", sheet.kv_head), found)


def _start(sheet: Sheet) -> int:
    """Return where the request begins in the keys of all requests."""
    return int(sheet.problem.kv_lens[: sheet.request].sum()) + _EDGE


def of_starts(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Each request's keys begin at a wrong place among those of all requests."""
    problem = sheets[0].problem
    total = int(problem.kv_lens.sum()) + 2 * _EDGE
    most = max(sheet.kv_len for sheet in sheets) * total * sheets[0].v.shape[1]
    if problem.batch < 2 or problem.variant is not None or most > _NUMBERS * 8:
        return
    for what in _TENSORS:
        starts: dict[int, int] = {}
        for sheet in sheets:
            starts.setdefault(sheet.request, _nearest_start(sheet, what))
        off = [starts[sheet.request] - _start(sheet) for sheet in sheets]
        if not any(off):
            continue

        def outputs(sheet: Sheet, w: str = what, at: dict[int, int] = starts) -> Array:
            mine = slice(at[sheet.request], at[sheet.request] + sheet.kv_len)
            k = _flat(sheet, "k")[mine] if "K" in w else sheet.k
            scores = sheet.masked(sheet.q @ k.T) if "K" in w else sheet.scores
            return sheet.attend(scores, _flat(sheet, "v")[mine] if "V" in w else sheet.v)

        told = ", ".join(
            f"sample {sheet.request}: {x:+d}" for sheet, x in zip(sheets, off, strict=True)
        )
        name = "keys" if what == "K and V" else what
        where = f"where the request begins, in tokens: {told}"
        yield Mistake(f"{name} read at an offset, across requests", where, outputs, cost=2.0)


def _worst(sheet: Sheet) -> int:
    return int((((sheet.out - sheet.truth) / sheet.sigma) ** 2).mean(1).argmax())


def _nearest_start(sheet: Sheet, what: str) -> int:
    """Return the start whose keys come nearest to the worst row."""
    row, n = _worst(sheet), sheet.kv_len
    seen = ~sheet.hidden[row]
    k, v = _flat(sheet, "k"), _flat(sheet, "v")
    s = k @ sheet.q[row]
    p = np.exp2(s - s.max())
    if what == "K and V":  # a row sees its first keys
        last = int(seen.sum())
        sums = np.cumsum(np.concatenate([p[:, None] * v, p[:, None]], 1), 0)
        sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
        both = (sums[last:] - sums[:-last])[: len(k) - n + 1]
    elif what == "V":
        windows = np.lib.stride_tricks.sliding_window_view(v, n, axis=0)  # [S, Dv, L]
        above = windows @ sheet.weights[row]
        both = np.concatenate([above, np.full((len(above), 1), sheet.weights[row].sum())], 1)
    else:
        windows = np.lib.stride_tricks.sliding_window_view(p, n)  # [S, L]
        both = windows @ (seen[:, None] * np.concatenate([sheet.v, np.ones((n, 1))], 1))
    z = (both[:, :-1] / both[:, -1:] - sheet.out[row]) / sheet.sigma[row]
    miss = (z**2).mean(1)
    return int(np.where(np.isfinite(miss), miss, np.inf).argmin())


def of_more(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Rows also see keys past the end: some of this request or of another."""
    problem = sheets[0].problem
    total = int(problem.kv_lens.sum())
    if problem.variant is not None or total * sheets[0].v.shape[1] * _MORE > 8 * _NUMBERS:
        return
    runs: dict[int, tuple[int, int]] = {}
    for sheet in sheets:
        runs.setdefault(sheet.request, _nearest_more(sheet))

    def outputs(sheet: Sheet) -> Array:
        first, count = runs[sheet.request]
        k, v = (_flat(sheet, which)[first : first + count] for which in "kv")
        if first == _ZEROS:
            k, v = (np.zeros((count, x.shape[1])) for x in (k, v))
        scores = np.concatenate([sheet.scores, sheet.q @ k.T], 1)
        return sheet.attend(scores, np.concatenate([sheet.v, v]))

    told = []
    for request, (first, count) in runs.items():
        if first == _ZEROS:
            told.append(f"sample {request}: {count} keys of zeros")
            continue
        ends = np.cumsum(problem.kv_lens)
        of = int(np.searchsorted(ends, first - _EDGE, side="right"))
        place = first - _EDGE - int(ends[of - 1] if of else 0)
        told.append(f"sample {request}: {count} keys, those of sample {of} from key {place} on")
    yield Mistake("keys past the end take part", ", ".join(told), outputs, cost=2.0)


def _nearest_more(sheet: Sheet) -> tuple[int, int]:
    """Return the first and the count of the keys that come nearest to the worst row if added."""
    row = _worst(sheet)
    k, v = _flat(sheet, "k"), _flat(sheet, "v")
    p = np.exp2(k @ sheet.q[row] - sheet.scores[row].max())
    sums = np.cumsum(np.concatenate([p[:, None] * v, p[:, None]], 1), 0)
    sums = np.concatenate([np.zeros((1, sums.shape[1])), sums])
    own = sheet.weights[row]
    right = np.append(own @ sheet.v, own.sum())
    zeros = np.tile(right, (_MORE, 1))
    zeros[:, -1:] += np.arange(1, _MORE + 1)[:, None] * np.exp2(-sheet.scores[row].max())
    miss = (((zeros[:, :-1] / zeros[:, -1:] - sheet.out[row]) / sheet.sigma[row]) ** 2).mean(1)
    least, at = float(miss.min()), (_ZEROS, int(miss.argmin()) + 1)
    inside = slice(_EDGE, len(k) - _EDGE)
    for count in range(1, _MORE + 1):
        both = right + (sums[count:] - sums[:-count])[inside]
        if not len(both):
            break
        miss = (((both[:, :-1] / both[:, -1:] - sheet.out[row]) / sheet.sigma[row]) ** 2).mean(1)
        i = int(miss.argmin())
        if miss[i] < least:
            least, at = float(miss[i]), (i + _EDGE, count)
    return at


ALL = (of_pages, of_starts, of_more)
