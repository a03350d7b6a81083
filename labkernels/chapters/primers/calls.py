"""Calls a phase of the small attention kernel by itself, on arguments that few requests have."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labkernels.chapters.primers import machine
from labkernels.cuda.host import banks
from labkernels.units import LOG2_E

HEADER, _LANES, THREADS, SMEM_BYTES = "calls.cuh", 32, 128, 9344
# A function, its arguments in lanes of x, and its integers.
_FUNCTIONS = {
    "maximum": ("row_maximum", "m s", ""),
    "update": ("update", "m s", ""),
    "log2": ("in_log2_units", "s scale", ""),
    "mask": ("masked", "s", "key end"),
    "causal": ("keys_seen", "", "token n_queries kv_len"),
    "packing": ("row_of", "", "packed kv_head group"),
    "page": ("offset_of", "", "key kv_head p.page_size p.kv_heads"),
    "merge": ("merge", "a.m b.m", ""),
    "loop": ("walk", "", "end"),
}
INSTANCES = tuple(f"calls::call_{region}" for region in _FUNCTIONS)


def run(region: str, folder: Path) -> dict[str, np.ndarray]:
    """Return what the function of a region returns, {} for a region that is not called.

    None is called on a GPU, or where bank conflicts are counted.
    Shapes: [calls, results, lanes].
    Raises: HostKernelError if a call does something that a kernel must not do.
    """
    if region not in _FUNCTIONS or machine.uses_gpu() or banks.listed() is not None:
        return {}
    x, n, right, _ = _calls(region)
    y = np.full((len(n), 2, THREADS), np.nan)
    table = _page_table() if region == "page" else np.zeros(THREADS, np.int32)
    machine.run(
        HEADER,
        f"calls::call_{region}",
        {"x": x, "n": np.ascontiguousarray(n, np.int32), "page_table": table, "y": y},
        grid=(len(n),),
        threads=right.shape[-1],
        smem_bytes=(SMEM_BYTES + 8 * THREADS) * (region == "loop"),
        writes=("y",),
        folders=(folder, machine.FOLDER),
    )
    return {"calls": y[:, : right.shape[1], : right.shape[2]]}


def judge(region: str, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Yield the first call that returns something else than it has to."""
    if "calls" not in results:
        return
    (x, n, right, within), given = _calls(region), results["calls"]
    fits = given <= right if region == "loop" else given == right
    with np.errstate(invalid="ignore"):  # infinities
        wrong = np.argwhere(~(fits | (abs(given - right) <= within)))
    if not len(wrong):
        return
    call, part, lane = wrong[0]
    if region == "loop":
        blocks, warps = given[call, :, lane].astype(int)
        yield (
            f"A walk over {n[call, 0]} keys takes {right[call, 1, 0]:.0f} turns. Each thread comes "
            f"to sync_block {blocks} times and to sync_warp {warps} times in it: "
            f"{right[call, 0, 0]:.0f} and {right[call, 1, 0]:.0f} are enough."
        )
        return
    name, of_lane, of_call = _FUNCTIONS[region]
    arguments = [*of_lane.split(), *of_call.split()]
    values = [*x[call, : len(of_lane.split()), lane], *n[call]]
    words = ", ".join(f"{a} = {v:.9g}" for a, v in zip(arguments, values, strict=False))
    parts = {"packing": ("token", "head")}
    parts["update"] = ("m", "l + o + P, with l = lane % 2 and o = 2 before,")
    parts["merge"] = ("m", "o - l, with o - l = 2^31 in a and 1 in b,")
    which = parts.get(region, ("the result",))[part]
    yield (
        f"{name} is also called outside of the kernel. With {words}, {which} is "
        f"{given[call, part, lane]:.9g} in lane {lane}, and should be "
        f"{right[call, part, lane]:.9g}."
    )


def _calls(region: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | float]:
    """Return x, n, what each call has to return, and the largest error of that."""
    drawn = np.random.default_rng(3).standard_normal((48, 2, _LANES))
    x = (drawn * np.array([1, 30, 300])[np.arange(48) % 3, None, None]).astype(np.float32)
    if region == "maximum":
        x[:, 0] = x[:, 0, :1]
        for lane in range(_LANES):  # each lane has the largest score once
            x[lane], x[lane, 1, lane] = -300 - lane % 2, -299
        return x, _no_integers(x), np.maximum(x[:, :1], x[:, 1:].max(axis=-1, keepdims=True)), 0
    if region == "update":  # m stays while no score lies more than 8 above it
        above = np.nextafter(np.float32(12), np.float32(13))
        for lane in range(_LANES):
            x[lane, 0], x[lane, 1] = 4, -300
            x[lane, 1, lane] = (4, 5, 12, above, 300)[lane % 5]
        x[:, 0] = x[:, 0, :1]
        x[40:, 0], x[40:, 1] = np.finfo(np.float32).min, -300 - np.arange(_LANES)  # the first keys
        before, s = x[:, :1], x[:, 1:]
        top = np.maximum(before, s.max(axis=-1, keepdims=True))
        m = np.where(top > before + np.float32(8), top, before).astype(np.float64)
        sums = (2 + np.arange(_LANES) % 2) * np.exp2(before - m) + 2 * np.exp2(s - m)
        # A power's argument has 24 bits, of which 18 lie behind the point while it is no zero.
        return x, _no_integers(x), np.hstack([m, sums]), np.hstack([0 * m, sums * 2**-17 + 1e-30])
    if region == "merge":  # sums far apart, so that a factor that is too large is seen
        x = np.rint(x)
        m = np.maximum(x[:, :1], x[:, 1:]).astype(np.float64)
        sums = 2.0**31 * np.exp2(x[:, :1] - m) + np.exp2(x[:, 1:] - m)
        return x, _no_integers(x), np.hstack([m, sums]), np.hstack([0 * m, sums * 2**-20])
    if region == "log2":
        x[:, 1] = 2.0 ** (4 - np.arange(48)[:, None] / 6)  # a scale may be larger than 1
        right = x[:, :1].astype(np.float64) * x[:, 1:] * LOG2_E
        return x, _no_integers(x), right, 3 * 2.0**-24 * abs(right)  # three roundings
    n, right = _INTEGERS[region]()
    x, right = np.resize(x, (len(n), 2, _LANES)), right.astype(np.float64)
    if region == "mask":
        x[::2] *= 0
        return x, n, np.where(right[:, :, None] > 0, x[:, :1].astype(np.float64), -np.inf), 0
    lanes = THREADS if region == "loop" else _LANES
    return x, n, np.repeat(right[:, :, None], lanes, axis=-1), 0


def _no_integers(x: np.ndarray) -> np.ndarray:
    return np.zeros((len(x), 4), np.int64)


def _product(*values: tuple[int, ...]) -> np.ndarray:
    """Return every combination as integers. Shapes: [4, combinations]."""
    rows = np.array(list(itertools.product(*values)), np.int64).T
    return np.concatenate([rows, np.zeros((4 - len(rows), rows.shape[1]), np.int64)])


def _mask() -> tuple[np.ndarray, np.ndarray]:
    n = _product((0, 1, 31, 32, 74, 75, 76, 2**20), (0, 1, 32, 75))
    return n.T, (n[:1] < n[1]).T


def _causal() -> tuple[np.ndarray, np.ndarray]:
    n = _product((0, 1, 6, 63), (1, 2, 7, 64), (64, 65, 127, 130, 4097))
    n = n[:, n[0] < n[1]]
    return n.T, (n[2:3] - n[1] + n[0] + 1).T


def _packing() -> tuple[np.ndarray, np.ndarray]:
    packed, kv_head, group, _ = n = _product(
        (0, 1, 2, 3, 29, 2**24 + 1), (0, 1, 21), (1, 3, 4, 5, 6, 8, 12)
    )
    return n.T, np.stack([packed // group, kv_head * group + packed % group], axis=1)


def _page_table() -> np.ndarray:
    """Return pages in random order; most of their keys have numbers beyond 2^31 in the pool."""
    return np.random.default_rng(5).permutation(70_000).astype(np.int32) * 1009


def _page() -> tuple[np.ndarray, np.ndarray]:
    n = _product((0, 1, 15, 16, 191, 65_537), (0, 1, 4), (1, 5, 16, 24, 64), (5, 8))
    key, kv_head, size, kv_heads = n
    page = _page_table().astype(np.int64)[key // size]
    return n.T, (((page * size + key % size) * kv_heads + kv_head) * _LANES)[:, None]


def _loop() -> tuple[np.ndarray, np.ndarray]:
    n = _product((20, 75, 128))
    turns = -(-n[0] // _LANES)
    return n.T, np.stack([2 * turns - 1, turns], axis=1)


_INTEGERS = {
    "mask": _mask,
    "causal": _causal,
    "packing": _packing,
    "page": _page,
    "loop": _loop,
}
