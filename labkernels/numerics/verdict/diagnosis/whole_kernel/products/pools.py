"""Pages of a pool under a wrong stride, or a wrong first page: any order of its axes.

A page of a request, a head and a tensor is a unit. In a pool the units lie in some order of their
axes, and a kernel finds one by four strides; one of them is wrong, or the start is. Functions take
sheets and a misfit, as those of `fitted` do.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of

_PAGES = (16, 32, 64, 128, 8, 1)
_AXES = {"b": "requests", "p": "pages", "w": "K and V", "h": "heads"}
_JUDGED, _NEAR = 6, 48
_NUMBERS = 2**23  # numbers of a pool: with more, it would take seconds
_AT_ONCE = 2**21
_TENSORS = ("K and V", "V", "K")


@dataclass(frozen=True)
class Pool:
    """The order of a pool's axes, how many units each has, and the keys of a page."""

    order: str
    counts: tuple[int, ...]
    size: int

    @functools.cached_property
    def strides(self) -> dict[str, int]:
        """How many units apart two neighbours along an axis lie."""
        found, step = {}, 1
        for axis, count in zip(reversed(self.order), reversed(self.counts), strict=True):
            found[axis] = step
            step *= count
        return found

    @property
    def units(self) -> int:
        """How many units the pool has."""
        return int(np.prod(self.counts))

    def place(self, unit: Array, axis: str) -> np.ndarray:
        """Return where units lie along an axis; 0 of an axis that the pool has not."""
        if axis not in self.order:
            return 0 * unit
        return unit // self.strides[axis] % self.counts[self.order.index(axis)]


@dataclass(frozen=True)
class Way:
    """A pool that is read with one wrong stride, or from a wrong start."""

    pool: Pool
    axis: str
    stride: int
    start: int = 0

    def unit(self, request: int, head: int, which: int, pages: int) -> np.ndarray:
        """Return the unit that is read for each page. Shapes: [pages]."""
        at = {"b": request, "h": head, "w": which}
        strides = self.pool.strides | ({self.axis: self.stride} if self.axis else {})
        first = sum(at[axis] * step for axis, step in strides.items() if axis != "p")
        return (first + np.arange(pages) * strides["p"] + self.start) % self.pool.units

    @property
    def words(self) -> str:
        """The pool and its mistake in words."""
        order = ", ".join(_AXES[axis] for axis in self.pool.order)
        lies = f"pages of {self.pool.size} keys lie as [{order}]"
        if not self.axis:
            return f"{lies}, and are read from unit {self.start:+d} on"
        right = self.pool.strides[self.axis]
        return f"{lies}; the stride of {_AXES[self.axis]} is {self.stride}, not {right}"


def _pools(sheet: Sheet, both: bool) -> Iterator[Pool]:
    problem, longest = sheet.problem, int(sheet.problem.kv_lens.max())
    width = sheet.k.shape[1] + sheet.v.shape[1]
    for size in _PAGES:
        pages = -(-longest // size)
        own = {"b": problem.batch, "p": pages, "w": 2, "h": problem.kv_heads}
        if pages < 2 or problem.batch * pages * size * problem.kv_heads * width > _NUMBERS:
            continue
        axes = [axis for axis in own if own[axis] > 1 and (both or axis != "w")]
        for order in itertools.permutations(axes):
            if ("w" in order) == both:
                yield Pool("".join(order), tuple(own[axis] for axis in order), size)


def _ways(pool: Pool) -> Iterator[Way]:
    known = set(pool.strides.values())
    for axis, right in pool.strides.items():
        near = {right - 1, right + 1, right // 2, 2 * right, 0}
        yield from (Way(pool, axis, step) for step in sorted(near | known) if step != right)
    steps = sorted({1, 2, *known})
    yield from (Way(pool, "", 0, sign * step) for step in steps for sign in (1, -1))


def _pages(sheet: Sheet, size: int, which: str) -> np.ndarray:
    """Return the pages of K or V by request, page and head. Shapes: [B P H, size, D]."""

    def found() -> Array:
        problem = sheet.problem
        n = -(-int(problem.kv_lens.max()) // size) * size
        width = (problem.k_pool if which == "k" else problem.v_pool).shape[-1]
        x = np.zeros((problem.batch, n, problem.kv_heads, width))
        for b, h in itertools.product(range(problem.batch), range(problem.kv_heads)):
            own = keys_of(problem, which, h, b)
            x[b, : len(own), h] = own
        x = x.reshape(problem.batch, -1, size, *x.shape[2:]).swapaxes(2, 3)
        return x.reshape(-1, size, width)

    return sheet.once(("pages of a pool", size, which), found)


def _indices(sheet: Sheet, way: Way) -> tuple[Array, Array]:
    """Return which page of all is read as each page of K and of V. Shapes: [pages] each.

    Pages count by tensor, request, page and head, in this order.
    """
    pool, problem = way.pool, sheet.problem
    pages, longest = (-(-int(n) // pool.size) for n in (sheet.kv_len, problem.kv_lens.max()))
    found = []
    for which in (0, 1):
        unit = way.unit(sheet.request, sheet.kv_head, which, pages)
        b, p, h, w = (pool.place(unit, axis) for axis in "bphw")
        h = h if "h" in pool.order or problem.kv_heads == 1 else h + sheet.kv_head
        w = w if "w" in pool.order else w + which
        b = b if "b" in pool.order else b + sheet.request
        found.append(((w * problem.batch + b) * longest + p) * problem.kv_heads + h)
    return found[0], found[1]


def of_strides(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Pages are found by a wrong stride, or from a wrong start, for K, V or both."""
    if not isinstance(sheets[0].channels, slice):
        return
    rows = screens.rows_of(sheets)
    own = list(_every(sheets[0]))
    if not own:
        return
    total = _left(rows[0], own)
    near = np.argsort(total, kind="stable")[:_NEAR]
    own, total = [own[i] for i in near], total[near]
    for row in rows[1:]:
        total = total + _left(row, own)
    for i in np.argsort(total, kind="stable")[:_JUDGED].tolist():
        way, what = own[i]
        if np.isfinite(total[i]):
            name = "keys" if what == "K and V" else what
            yield Mistake(
                f"{name} read from other pages, by a wrong stride",
                way.words,
                lambda sheet, given=own[i]: _outputs(sheet, *given),
                cost=1.5,
            )


def _every(sheet: Sheet) -> Iterator[tuple[Way, str]]:
    """Yield ways and tensors, each that reads other pages once."""
    seen: set[tuple[object, ...]] = set()
    alike = sheet.k.shape == sheet.v.shape
    for pool in itertools.chain(_pools(sheet, False), _pools(sheet, True) if alike else ()):
        for way in _ways(pool):
            k, v = (x.tobytes() for x in _indices(sheet, way))
            for what, same in (("K and V", (k, v)), ("V", (v,)), ("K", (k,))):
                if (pool.size, what, *same) not in seen:
                    seen.add((pool.size, what, *same))
                    yield way, what


def _left(row: screens.Rows, own: list[tuple[Way, str]]) -> np.ndarray:
    """Return mean z^2 of a row, by each way. Shapes: [N]."""
    sheet, n = row.sheet, row.keys
    found = np.full(len(own), np.inf)
    of_size: dict[int, list[int]] = {}
    for i, (way, _) in enumerate(own):
        of_size.setdefault(way.pool.size, []).append(i)
    right = (sheet.q @ sheet.k.T)[0]
    for size, some in of_size.items():
        k, v = (_pages(sheet, size, which) for which in "kv")
        alike = k.shape == v.shape
        products = np.concatenate([x @ sheet.q[0] for x in ((k, v) if alike else (k, k))])
        values = np.concatenate([x @ row.ways for x in ((k, v) if alike else (v, v))])
        step = max(1, _AT_ONCE // (n * values.shape[2]))
        for first in range(0, len(some), step):
            part = some[first : first + step]
            at = [_indices(sheet, own[i][0]) for i in part]
            of_k = products[np.stack([x for x, _ in at])].reshape(len(part), -1)[:, :n]
            of_v = values[np.stack([x for _, x in at])].reshape(len(part), -1, values.shape[2])
            reads_k = np.array(["K" in own[i][1] for i in part])[:, None]
            reads_v = np.array(["V" in own[i][1] for i in part])[:, None, None]
            of_k = np.where(reads_k, of_k, right)
            of_v = np.where(reads_v, of_v[:, :n], row.values[:n])
            found[part] = _missed(row, of_k, of_v)
    return found


def _missed(row: screens.Rows, products: Array, values: Array) -> np.ndarray:
    sheet = row.sheet
    shaped = products
    if sheet.problem.variant is not None:
        shaped = np.concatenate([sheet.shaped(one[None]) for one in products])
    scores = np.where(sheet.hidden, -np.inf, shaped)
    top = np.maximum(scores.max(1, keepdims=True), sheet.sink)
    with np.errstate(all="ignore"):
        p = np.exp2(scores - top)
    below = p.sum(1) + np.exp2(sheet.sink - top)[:, 0]
    return row.missed(np.einsum("nl,nlw->nw", p, values), below)


def _outputs(sheet: Sheet, way: Way, what: str) -> Array:
    found = []
    for which, own, at in zip("kv", (sheet.k, sheet.v), _indices(sheet, way), strict=True):
        pages = _pages(sheet, way.pool.size, which)
        if "w" in way.pool.order:
            pages = np.concatenate([_pages(sheet, way.pool.size, name) for name in "kv"])
        elif which == "v":
            at = at - len(pages)  # the pages of V count behind those of K
        found.append(pages[at].reshape(-1, own.shape[1])[: sheet.kv_len])
    k, v = found
    scores = sheet.masked(sheet.shaped(sheet.q @ k.T)) if "K" in what else sheet.scores
    return sheet.attend(scores, v if "V" in what else sheet.v)


ALL: tuple[Callable[..., Iterator[Mistake]], ...] = (of_strides,)
