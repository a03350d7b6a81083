"""The cases over which every kernel keeps its contract, by what they vary: on the CPU and a GPU."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import ceil

import pytest

from labkernels.kernels.kernel import Kernel
from labkernels.policy import CUDA_CORES, TENSOR_CORES
from tests.kernels import contract
from tests.kernels.backward import cases as backward_cases
from tests.kernels.contract import RAGGED, SPECS
from tests.kernels.decode.cases import LAYOUTS, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import RAGGED_LAYOUTS, prefill_case
from tests.kernels.variants.cases import variants, varied

CASES = {
    "decode": decode_case,
    "prefill": prefill_case,
    "mla": mla_case,
    "backward": backward_cases.backward_case,
}
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
ODD_GROUPS = (3, 5, 6, 7)  # query heads per KV head that do not fill a tile's rows
PAGES = (1, 3, 16, 64, 256)
AROUND = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)  # a tile and a step
# No query, no key, more queries than keys, a new token, around a tile or a step. The last requests
# are for a GPU alone.
PREFILL = ((0, 1, 15, 16, 17, 70, 20), (5, 1, 0, 16, 150, 65, 7))
PREFILL_ON_GPU = ((0, 1, 15, 16, 17, 150, 129, 20), (5, 1, 0, 16, 150, 400, 129, 7))
MLA = ((0, 1, 2, 4, 3, 4, 1), (5, 0, 1, 3, 64, 150, 17))
MLA_ON_GPU = ((*MLA[0], 2), (*MLA[1], 1000))
# the plan's choice; one and several splits; whole steps; no whole steps
CUTS = ({}, {"splits": 1}, {"splits": 3}, {"keys_per_split": 64}, {"keys_per_split": 37})
ORDERS = ({"deterministic": False}, {"deterministic": True})
DTYPES = ("fp16", "bf16")
# How many cases of a kernel `make test` runs, by what they vary; all, where nothing is said.
FEW = dict.fromkeys(("odd group", "queries", "scores", "scale", "empty", "policies"), 1)
FEW |= {"group": 1, "tile": 2, "policy": 1, "page": 1, "layout": 1, "length": 1, "race": 1}
FEW |= {"interpreted": 2, "variant": 2, "channels": 1}


def short_case(kernel, **how):
    """Return a case of two requests, in pages where the kernel takes them."""
    spec = SPECS[kernel]
    if spec.operation == "prefill":
        paged = {"page_size": 16, "layout": "nhd"} if "paged" in spec.layouts else {}
        return prefill_case((3, 70), (150, 200), **paged, **how)
    if spec.operation == "mla":
        return mla_case((1, 2), (150, 200), **how)
    return decode_case((150, 200), group=2, **how)


@dataclass(frozen=True)
class Trial:
    """A case of one kernel, and the options with which the kernel runs on it.

    varies: what it shares with the other cases of its kind. lengths: the case's positional
    arguments; shape: its options.
    """

    kernel: str
    varies: str
    lengths: tuple
    shape: dict = field(default_factory=dict)
    runs: tuple[dict, ...] = ({},)
    scores: float = 1.0  # a factor of the scores
    scale: float | None = None
    variant: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the name of the test, without what many tests share."""
        words = [f"{name}={value}" for name, value in self.shape.items() if name != "seed"]
        words += (
            [getattr(v, "label", str(v)) for run in self.runs for v in run.values()]
            if len(self.runs) == 1
            else []
        )
        words += [] if self.scores == 1 else [f"scores={self.scores:g}"]
        words += [f"{name}={value}" for name, value in self.variant.items()]
        return "-".join([self.kernel, self.varies, *words])

    def check(self, device: str = "cpu") -> None:
        """Run the kernel in each way, and check its contract."""
        operation = SPECS[self.kernel].operation
        case = CASES[operation](*self.lengths, **self.shape, device=device)
        plain = self.scores == 1 and self.scale is None
        if operation == "backward":
            run = backward_cases.run_checked
            if self.variant:
                case = backward_cases.varied_backward(case, self.kernel, **self.variant)
        else:
            case = case if self.scores == 1 else case.with_scores(self.scores)
            case = case if self.scale is None else case.changed(scale=self.scale)
            case = varied(case, self.kernel, **self.variant) if self.variant else case
            run = contract.run_checked
        for options in self.runs:
            sharp = {} if operation == "backward" else {"sharp": plain}
            plan = run(case, self.kernel, **sharp, **options).plan
            assert plan.tile == options.get("tile", plan.tile)
            assert plan.policy == getattr(options.get("policy"), "label", plan.policy)
            if self.varies in ("splits", "policy") and "keys_per_split" in options:
                assert plan.splits >= ceil(max(self.lengths[-1]) / options["keys_per_split"]) > 1


def trials(device: str, languages: tuple[str, ...]) -> list:
    """Return the trials of all kernels of these languages, as parameters of a test."""
    found = []
    for spec in SPECS.values():
        if spec.language not in languages or spec.operation not in CASES:
            continue
        if spec.language == "triton" and device == "cpu":
            listed = [("interpreted", *rest) for rest in interpreted(spec)]
        else:
            listed = [*OF_OPERATION[spec.operation](spec, device == "cuda"), *empty(spec)]
        listed += variants(spec, interpreted=spec.language == "triton" and device == "cpu")
        for varies, *rest in listed:
            trial, kind = Trial(spec.name, varies, *rest), f"{spec.name} {varies}"
            few = [pytest.mark.few_of_each("kind", FEW[varies])] if varies in FEW else []
            found.append(pytest.param(kind, trial, id=trial.label, marks=few))
    return found


def tiles_of(spec: Kernel, policy=None, **shape) -> list[str]:
    """Return the labels of the tiles that a kernel has for a shape."""
    return [tile.label for tile in spec.tiles(spec.shape(**shape), policy or spec.policies[0])]


def cuts(*keys_per_split) -> tuple[dict, ...]:
    return tuple({"keys_per_split": keys} for keys in keys_per_split)


def decode(spec: Kernel, on_gpu: bool) -> Iterator[tuple]:
    """Yield what a decode's cases vary, the lengths, the shape and the runs."""
    more = {"head_dim": 128} if on_gpu else {}
    for group, dtype in product(GROUPS, DTYPES if on_gpu else DTYPES[:1]):
        shape = {"group": group, "layout": LAYOUTS[group % 4], "dtype": dtype, "seed": group}
        yield "group", (RAGGED,), {**shape, **more}, cuts(None, 64, 37, *[10_000] * on_gpu)
    for head_dim in spec.head_dims:
        for rows in {4, 16} if on_gpu else {max(map(spec.rows, GROUPS))}:
            for i, tile in enumerate(tiles_of(spec, head_dim=head_dim, group=rows)):
                for dtype in DTYPES if on_gpu else DTYPES[1 - i % 2 :][:1]:
                    shape = {"group": rows, "kv_heads": 1, "head_dim": head_dim, "dtype": dtype}
                    runs = ({"tile": tile}, {"tile": tile, "keys_per_split": 1016})
                    yield "tile", (RAGGED,), shape, runs
        for page_size in PAGES:
            shape = {"group": 8, "head_dim": head_dim, "page_size": page_size, "seed": page_size}
            yield "page", (RAGGED,), shape
    for shape, runs in channels(spec, on_gpu):
        yield "channels", ((0, 1, 17, 200),), shape, runs
    for policy in policies(spec, on_gpu):
        yield "policy", (RAGGED,), {"group": 8, "seed": 11}, ({"policy": policy, **cuts(300)[0]},)
    for layout, page_size in product(LAYOUTS, PAGES if on_gpu else PAGES[:2]):
        shape = {"group": 5, "page_size": page_size, "layout": layout, "dtype": "bf16"}
        yield "layout", (RAGGED,), shape, cuts(100)
    for n in (0, *AROUND, *[5000] * on_gpu):
        yield "length", ((n,),), {"kv_heads": 1, "seed": n}, cuts(1, 16, 64, None)
    # the longest request sets the number of splits, and most splits of the others are empty
    yield "splits", ((1000, 0, 1, 64, 65),), {"seed": 5}, cuts(64)
    yield from scores((RAGGED,))
    if not on_gpu:
        groups = {spec.rows(group): group for group in (1, 2, 3, 7, 16)}
        for head_dim in spec.head_dims:
            for rows in groups if head_dim == 64 else [max(groups)]:
                shape = {"group": groups[rows], "head_dim": head_dim, "page_size": 3}
                runs = checked(*cuts(None, 64))
                yield "race", ((0, 1, 17, 200),), {**shape, "layout": "padded"}, runs
        for group in ODD_GROUPS:
            yield "odd group", ((0, 17, 200),), {"group": group, "kv_heads": 1}, checked(*cuts(64))


def prefill(spec: Kernel, on_gpu: bool) -> Iterator[tuple]:
    """Yield what a prefill's cases vary, the lengths, the shape and the runs."""
    lengths, more = (PREFILL_ON_GPU, {"head_dim": 128}) if on_gpu else (PREFILL, {})
    for turn, group, causal in ((g, g, c) for g in GROUPS for c in (False, True)):
        shape = {"group": group, "causal": causal, "kv_heads": 2 if group < 8 else 1, **more}
        shape |= {"layout": RAGGED_LAYOUTS[turn % 4], "dtype": DTYPES[on_gpu and turn % 2]}
        yield "group", lengths, shape, CUTS if on_gpu else (CUTS[(0, 2, 4)[turn % 3]],)
    seen = set()
    for head_dim, layout in product(spec.head_dims, spec.layouts):
        for i, tile in enumerate(tiles_of(spec, head_dim=head_dim, layout=layout)):
            if not on_gpu and i > 0 and tile in seen:
                continue
            seen.add(tile)
            shape = {"head_dim": head_dim, "dtype": DTYPES[1 - i % 2], "kv_heads": 1}
            shape["page_size"] = 3 if layout == "paged" else None
            runs = ({"tile": tile}, {"tile": tile, "keys_per_split": 96})
            yield "tile", lengths if on_gpu else ((150, 3), (200, 3)), shape, runs
    for layout in spec.layouts:
        for shape, runs in channels(spec, on_gpu, layout=layout):
            more = {"page_size": 16} if layout == "paged" else {"causal": shape["head_dim"] != 80}
            yield "channels", lengths, {**shape, **more}, runs
    for policy in policies(spec, on_gpu):
        # a key with a high score has a tenth of a row's weight, so the error of its score shows
        few = {"group": 4, "seed": 11}
        yield "policy", ((1, 40, 200), (900, 400, 200)), few, ({"policy": policy, **cuts(300)[0]},)
    for layout in RAGGED_LAYOUTS:
        for each, causal in product(((0, 17, 1, 70), (33,)), (False, True)):
            yield "layout", (each, each), {"causal": causal, "group": 1, "layout": layout}
    if "paged" in spec.layouts:
        for page_size, layout in product(PAGES, LAYOUTS):
            if on_gpu or layout == LAYOUTS[page_size % 4]:
                shape = {"page_size": page_size, "layout": layout, "dtype": "bf16"}
                yield "page", lengths, shape, CUTS if on_gpu else CUTS[::2]
        for layout in LAYOUTS:
            shape = {"head_dim": 192, "kv_heads": 1, "page_size": 3, "layout": layout}
            yield "layout", ((20, 33), (40, 33)), shape
    long = (*AROUND, 255, 256, 257) if on_gpu else AROUND
    yield from around(long, {"kv_heads": 1, "group": 1}, ({"splits": 1},))
    yield "splits", ((300, 0, 2), (300, 10, 290)), {"kv_heads": 1}, cuts(32)
    yield "decode", ((1, 1, 1), (200, 0, 17)), {"group": 8, "kv_heads": 1}
    yield from scores(PREFILL, seed=3)
    if not on_gpu:
        for head_dim, page_size in product(spec.head_dims, (None, 3)):
            if page_size is None or "paged" in spec.layouts:
                shape = {"head_dim": head_dim, "page_size": page_size, "layout": "padded"}
                yield from races({**shape, "kv_heads": 1}, checked(*cuts(None, 64)))
        for group, page_size in product(ODD_GROUPS, (None, 16)):
            if page_size is None or "paged" in spec.layouts:
                shape = {"group": group, "kv_heads": 1, "page_size": page_size}
                yield "odd group", ((1, 70, 20), (5, 90, 150)), shape, checked(*cuts(64))


def mla(spec: Kernel, on_gpu: bool) -> Iterator[tuple]:
    """Yield what an MLA decode's cases vary, the lengths, the shape and the runs."""
    lengths = MLA_ON_GPU if on_gpu else MLA
    for turn, heads in enumerate((1, 3, 16, 33, *[64, 127] * on_gpu, 128)):
        shape = {"heads": heads, "causal": heads != 3, "layout": LAYOUTS[turn % 4], "dtype": "fp16"}
        short = lengths if on_gpu or heads < 100 else ((1, 2), (70, 1))
        yield "group", short, shape, CUTS if on_gpu else (CUTS[turn % 5],)
    for i, tile in enumerate(tiles_of(spec, head_dim=576)):
        shape = {"heads": 17, "dtype": DTYPES[1 - i % 2]}
        runs = ({"tile": tile}, {"tile": tile, "keys_per_split": 70, "checks": True})
        yield "tile", ((4, 1, 2), (150, 0, 40)), shape, runs
    for policy in policies(spec, on_gpu):
        few = {"heads": 17}
        yield "policy", ((2, 1), (150, 140)), few, ({"policy": policy, **cuts(64)[0]},)
    for page_size, layout in product(PAGES, LAYOUTS):
        if on_gpu or layout == LAYOUTS[page_size % 4]:
            shape = {"page_size": page_size, "layout": layout}
            yield "page", lengths, shape, CUTS if on_gpu else CUTS[::2]
    for causal in (False, True):  # FlashInfer's own test of MLA has these lengths
        yield "queries", ((17, 37, 77), (64, 37, 150)), {"heads": 16, "causal": causal}
    yield "splits", ((2, 0, 4, 1), (300, 10, 0, 90)), {"heads": 9}, cuts(32)
    yield from scores(MLA)
    if not on_gpu:
        for heads, dtype in ((9, "bf16"), (20, "fp16")):
            shape = {"heads": heads, "page_size": 3, "dtype": dtype, "layout": "padded"}
            yield "race", ((1, 0, 2, 4), (0, 5, 17, 90)), shape, checked(*cuts(None, 64))
        for heads in ODD_GROUPS:
            yield "odd group", ((1, 4), (70, 150)), {"heads": heads}, checked(*cuts(64))


def backward(spec: Kernel, on_gpu: bool) -> Iterator[tuple]:
    """Yield what a backward pass's cases vary, the lengths, the shape and the runs."""
    lengths, more = (PREFILL_ON_GPU, {"head_dim": 128}) if on_gpu else (PREFILL, {})
    for group, causal in product(GROUPS, (False, True)):
        shape = {"group": group, "causal": causal, "kv_heads": 2 if group < 8 else 1, **more}
        shape |= {"layout": RAGGED_LAYOUTS[group % 4], "dtype": DTYPES[on_gpu and group % 2]}
        yield "group", lengths, shape, ORDERS if on_gpu else (ORDERS[causal != (group % 2 == 0)],)
    for head_dim in spec.head_dims:
        for i, tile in enumerate(tiles_of(spec, head_dim=head_dim)):
            shape = {"kv_heads": 1, "head_dim": head_dim, "dtype": DTYPES[1 - i % 2]}
            for causal in (False, True) if on_gpu else (True,):
                long = ((700, 3, 129), (1000, 3, 129)) if on_gpu else ((150, 3), (200, 3))
                yield "tile", long, {**shape, "causal": causal}, ({"tile": tile},)
    for turn, head_dim in enumerate(spec.padded_dims):
        shape = {"head_dim": head_dim, "layout": "padded", "dtype": DTYPES[turn % 2], "group": 3}
        runs = tuple({"tile": tile} for tile in tiles_of(spec, head_dim=head_dim))
        short = ((0, 1, 17, 70), (5, 17, 0, 90))
        yield "channels", short, shape, runs if on_gpu else checked(*runs)
    for policy in spec.policies:
        yield (
            "policies",
            ((20, 3), (40, 3)),
            {"kv_heads": 1, "dtype": "bf16"},
            ({"policy": policy},),
        )
    long = (*AROUND, 255, 256, 257) if on_gpu else AROUND
    yield from around(long, {"group": 1, "kv_heads": 1}, ORDERS)
    yield "scores", ((40, 70), (70, 20)), {"scale": 40.0}, ORDERS
    if on_gpu:
        long = {"group": 1, "head_dim": 128, "dtype": "bf16"}
        yield "splits", ((4096,), (4096,)), long, ORDERS
    else:
        for head_dim in spec.head_dims:
            yield from races({"kv_heads": 1, "head_dim": head_dim}, checked(*ORDERS))
        for group in ODD_GROUPS:
            shape = {"group": group, "kv_heads": 1}
            yield "odd group", ((1, 70), (5, 90)), shape, checked(*ORDERS)


OF_OPERATION = {"decode": decode, "prefill": prefill, "mla": mla, "backward": backward}


def channels(spec: Kernel, on_gpu: bool, **layout) -> Iterator[tuple]:
    """Yield shapes and runs of heads that fill a part of their tiles, with NaN behind each row."""
    for turn, head_dim in enumerate(spec.padded_dims):
        shape = {"head_dim": head_dim, "layout": "padded", "dtype": DTYPES[turn % 2], "group": 3}
        tiles = tiles_of(spec, head_dim=head_dim, **layout)
        runs = [{"tile": tile, **cut} for tile in tiles for cut in cuts(1000, 64)]
        yield shape, tuple(runs) if on_gpu else checked(*runs[:2])


def checked(*runs: dict) -> tuple[dict, ...]:
    """Return runs in which the CPU build looks for races and for reads of unwritten memory."""
    return tuple({**run, "checks": True} for run in runs)


def races(shape: dict, runs: tuple[dict, ...]) -> Iterator[tuple]:
    yield "race", ((0, 1, 17, 70), (5, 17, 0, 90)), {"layout": "padded", **shape}, runs


def around(lengths: tuple[int, ...], shape: dict, runs: tuple[dict, ...]) -> Iterator[tuple]:
    """Yield lengths of queries and keys around a tile and a step, in several pairings."""
    for keys in (lengths, lengths[::-1], (64,) * len(lengths), (lengths[-1],) * len(lengths)):
        for causal in (False, True):
            yield "length", (lengths, keys), {**shape, "causal": causal}, runs


def scores(lengths: tuple, **shape) -> Iterator[tuple]:
    """Scores of hundreds leave one key with all the weight; scores of nearly 0 leave it to all."""
    for factor in (30.0, 2.0**-12):
        yield "scores", lengths, shape, cuts(100), factor
    for scale in (0.02, 1.5):
        yield "scale", lengths, shape, cuts(100), 1.0, scale


def empty(spec: Kernel) -> Iterator[tuple]:
    """Yield batches without a query, and without a key."""
    if spec.operation == "decode":
        yield "empty", ((0, 0, 0),), {}, cuts(None, 1)
        return
    runs = ORDERS if spec.operation == "backward" else cuts(None, 16)
    for lengths in (((0, 0), (5, 0)), ((3, 4), (0, 0)), ((0,), (0,))):
        yield "empty", lengths, {}, runs


def policies(spec: Kernel, on_gpu: bool) -> list:
    """Return all policies of the kernels whose switches the others share, and of all on a GPU.

    Of other kernels the CPU build runs the policies that differ from the default by one switch.
    """
    if on_gpu or spec.name in ("decode_fma", "decode_mma"):
        return list(spec.policies)
    plain = vars(spec.policies[0])
    apart = [sum(vars(p)[name] != plain[name] for name in plain) for p in spec.policies]
    return [p for p, n in zip(spec.policies, apart, strict=True) if n <= 1]


# Lengths and shapes at which Triton's interpreter takes less than some seconds.
INTERPRETED = {
    "decode": (((0, 1, 16, 70),), ("hnd", "padded")),
    "prefill": (((0, 3, 70, 1, 20, 5), (5, 1, 70, 65, 7, 0)), ("htd", "padded")),
    "mla": (((0, 1, 4, 2, 1, 3), (5, 0, 2, 4, 70, 33)), ("nhd", "padded")),
    "backward": (((0, 3, 70, 20, 5), (5, 1, 65, 40, 0)), ("htd", "padded")),
}


def interpreted(spec: Kernel) -> Iterator[tuple]:
    """Yield the lengths, shapes and runs of a Triton kernel, with tensor cores on and off."""
    operation = spec.operation
    lengths, layouts = INTERPRETED[operation]
    ways = ORDERS if operation == "backward" else cuts(1000, 24)
    heads, one = ("heads", {}) if operation == "mla" else ("group", {"kv_heads": 1})
    for policy in (TENSOR_CORES, CUDA_CORES):
        runs = tuple({**way, "policy": policy} for way in ways)
        for group, layout in zip((1, 5), layouts, strict=True):
            causal = {"page_size": 3} if operation == "decode" else {"causal": group == 1}
            yield lengths, {heads: group, "layout": layout, **one, **causal}, runs
        if operation == "prefill":
            for page_size, layout in ((3, "hnd"), (16, "padded"), (64, "joint")):
                shape = {"group": 3, "page_size": page_size, "layout": layout, "dtype": "bf16"}
                yield lengths, shape, runs[1:]
        for head_dim in (*spec.head_dims, *spec.padded_dims):
            size = {} if operation == "mla" else {"head_dim": head_dim}
            few = tuple((20, 3) if row == 0 else (33, 3) for row in range(len(lengths)))
            tiles = tiles_of(spec, policy, head_dim=head_dim, rows=64)
            # every tile in 64 channels, and the preferred one in others
            ways_of = tuple({"policy": policy, "tile": tile} for tile in tiles)
            shape = {"dtype": DTYPES[head_dim > 64], **one, **size, "layout": "padded"}
            yield few, shape, ways_of if head_dim in (64, 576) else ways_of[:1]
        for _, *rest in empty(spec):
            yield rest[0], rest[1], tuple({**way, "policy": policy} for way in rest[2])
