"""Random calls of every verb, each compared with float64.

A seed makes the choices: of several options, and of integers from 0 to a number. `wide`: with any
policy and head_dim, and checks, which compile for long; `varied`: with variants of attention. What
is compiled is chosen first. Then `of_problem` begins the choices of one of the problems on it, so
that a seed has many problems and compiles once or twice.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import kernels_of
from tests.kernels import contract
from tests.kernels.append import test_rotary
from tests.kernels.append.cases import append_case, check_appended, check_codes
from tests.kernels.backward import cases as backward_cases
from tests.kernels.decode.cases import (
    DTYPES,
    KV_DTYPES,
    LAYOUTS,
    SCALES,
    assert_same,
    narrowed,
)
from tests.kernels.decode.test_eight_bits import with_tile
from tests.kernels.prefill import test_fp8
from tests.kernels.prefill.cases import RAGGED_LAYOUTS
from tests.kernels.trials import CASES
from tests.kernels.variants.cases import varied

PAGE_SIZES = (1, 2, 3, 8, 16, 17, 64, 100, 256)
GROUPS = (1, 2, 3, 4, 5, 7, 8, 16)
SPLITS = (None, 16, 64, 100, 1000)
LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129)
WINDOWS = (0, 1, 5, 16, 63, 64, 65, 100, 128, 1000)
MOST_TOKENS = {"prefill": 80, "mla": 4, "backward": 80}


@dataclass
class Seeded:
    """A chooser whose choices follow from a seed, and those of a problem from its number too."""

    seed: int
    problem: int = 0
    device: str = "cpu"
    wide: bool = True
    varied: bool = True

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def pick(self, options: Sequence):
        return self._random.choice(options)

    def integer(self, most: int) -> int:
        return self._random.randint(0, most)

    def of_problem(self) -> None:
        self._random.seed(f"{self.seed} {self.problem}")


def attention(operation: str, choose, *, eight_bits: bool = False) -> None:
    """Check a call of any kernel of an operation, with a cache of 16 bits or of 8."""
    spec, how = _kernel(choose, operation)
    shape = {"dtype": choose.pick(spec.dtypes), "device": choose.device}
    if operation == "mla":
        shape["heads"] = choose.pick((1, 3, 5, 16))
    else:
        every_dim = choose.wide or choose.device == "cuda"
        dims = (*spec.head_dims, *spec.padded_dims)
        shape["head_dim"] = choose.pick(dims if every_dim else spec.head_dims[:1])
        shape["group"] = choose.pick(GROUPS[:3] if operation == "backward" else GROUPS)
    paged = "paged" in spec.layouts and (spec.layouts == ("paged",) or choose.pick((False, True)))
    if paged:
        shape["page_size"] = choose.pick(PAGE_SIZES)
    shape["layout"] = choose.pick(LAYOUTS if paged else RAGGED_LAYOUTS)
    if eight_bits:
        kind, of = choose.pick(tuple(KV_DTYPES)), choose.pick(_scales(spec, shape["dtype"]))
        in_bits = spec.language == "cuda" and choose.pick((False, True))
    switches = {name for name in spec.features if choose.varied and choose.pick((False, True))}
    if operation == "backward":
        how["deterministic"] = choose.pick((False, True))
    choose.of_problem()
    shape["seed"] = seed = choose.integer(2**31)
    if operation != "mla":
        shape["kv_heads"] = choose.pick((1, 2, 3) if operation == "decode" else (1, 2))
    if operation != "decode":
        shape["causal"] = choose.pick((False, True))
    case = CASES[operation](*_lengths(choose, operation), **shape)
    if eight_bits:
        case = narrowed(case, kind, seed, of, powers=in_bits)
    if switches:
        vary = backward_cases.varied_backward if operation == "backward" else varied
        case = vary(case, spec.name, seed=seed, **variant(choose, switches))
    if operation == "backward":
        backward_cases.run_checked(case, spec, **how)
        return
    keys = choose.pick(SPLITS)
    found = contract.run_checked(case, spec, sharp=False, keys_per_split=keys, **how)
    if eight_bits and in_bits:
        compare_with_16_bits(case, spec, found, **how)


def _lengths(choose, operation: str) -> tuple[tuple[int, ...], ...]:
    """Return the keys of each request, after its queries unless each has one."""
    n = 1 + choose.integer(3)
    kv_lens = tuple(choose.pick((*LENGTHS, 1 + choose.integer(400))) for _ in range(n))
    if operation == "decode":
        return (kv_lens,)
    return tuple(choose.integer(MOST_TOKENS[operation]) for _ in kv_lens), kv_lens


def _scales(spec: Kernel, dtype: str) -> tuple[str, ...]:
    """Return whose scales a kernel takes: without those of blocks of keys where it refuses them."""
    return SCALES if dtype in spec.block_dtypes else SCALES[:2]


def compare_with_16_bits(case, spec: Kernel, found, **how) -> None:
    """Compare the bits with those of the kernel on a cache of 16 bits that has the same numbers."""
    kind, cache = case.q.dtype, case.cache
    pools = (x.to(kind) for x in cache.values())
    wide = PagedKV(*pools, cache.page_table, cache.kv_len)
    how |= {"keys_per_split": found.plan.keys_per_split, "tile": found.plan.tile}
    assert_same(found, case.changed(cache=wide).run(with_tile(spec.name, found), **how))


def variant(choose, switches) -> dict[str, object]:
    """Return values of features, with windows that end inside, at and beyond steps."""
    found = {name: True for name in ("alibi", "sinks", "bias") if name in switches}
    if "window" in switches:
        ends = choose.pick(({"window_left"}, {"window_right"}, {"window_left", "window_right"}))
        found |= {name: choose.pick(WINDOWS) for name in sorted(ends)}
    if "soft_cap" in switches:
        found["soft_cap"] = choose.pick((0.5, 3.0, 50.0))
    if "mask" in switches:
        found["mask"] = choose.pick((0.1, 0.5, 0.9))
    return found


def prefill_8_bits(choose) -> None:
    """Check a prefill of codes in e4m3, with a scale of each request and KV head."""
    spec = test_fp8.KERNEL
    policy = choose.pick(spec.policies if choose.wide else spec.policies[:1])
    how = {"policy": policy, "dtype": DTYPES[choose.pick(("fp16", "bf16"))]}
    tiles = spec.tiles(spec.shape(head_dim=128), policy)
    how["tile"] = choose.pick(tiles if choose.wide else tiles[:1]).label
    choose.of_problem()
    how |= {"causal": choose.pick((False, True)), "keys_per_split": choose.pick(SPLITS)}
    shape = {"group": choose.pick(GROUPS), "kv_heads": choose.pick((1, 2)), "device": choose.device}
    lengths, shape["seed"] = _lengths(choose, "prefill"), choose.integer(2**31)
    test_fp8.check_bounds(*test_fp8.drawn(*lengths, **shape), mean=False, **how)


def append(choose) -> None:
    """Check every bit of a cache after an append."""
    shape = {
        "kv_heads": choose.pick((1, 2, 3)),
        "page_size": choose.pick(PAGE_SIZES),
        "layout": choose.pick(LAYOUTS),
        "head_dim": choose.pick((32, 64, 80, 96, 128)),
        "device": choose.device,
    }
    rotates, checks = choose.pick((False, True)), choose.pick((False, True))
    rotary = (*choose.pick(test_rotary.FORMATS), choose.pick((False, True)))
    choose.of_problem()
    growths, shape["seed"] = _growths(choose), choose.integer(2**31)
    if rotates and any(new for _, new in growths):
        dtype, *formats = rotary
        shape |= {
            "width": choose.pick([n for n in (8, 24, 32) if 2 * n <= shape["head_dim"]]),
            "dtype": dtype,
            "checks": checks,
        }
        test_rotary.check_rotary(growths, *formats, **shape)
        return
    case = append_case(*growths, **shape)
    ops.append(*case.arguments, checks=checks)
    check_appended(case)


def _growths(choose) -> list[tuple[int, int]]:
    """Return the keys before and the new keys of each request."""
    return [(choose.integer(100), choose.integer(70)) for _ in range(1 + choose.integer(3))]


def append_8_bits(choose) -> None:
    """Check every code after an append of any bits: numbers, infinities and NaN."""
    shape = {name: choose.pick(x) for name, x in (("page_size", PAGE_SIZES), ("layout", LAYOUTS))}
    shape |= {"head_dim": choose.pick((64, 128, 256)), "dtype": choose.pick(("fp16", "bf16"))}
    kind, of = choose.pick(tuple(KV_DTYPES)), choose.pick(SCALES)
    choose.of_problem()
    growths, seed = _growths(choose), choose.integer(2**31)
    shape |= {"kv_heads": choose.pick((1, 2, 3)), "device": choose.device, "seed": seed}
    case = append_case(*growths, **shape)
    case = replace(case, cache=narrowed(case.whole.changed(cache=case.cache), kind, seed, of).cache)
    generator = torch.Generator().manual_seed(seed)
    for rows in (case.k_new, case.v_new):
        drawn = torch.randint(-(2**15), 2**15, rows.shape, generator=generator, dtype=torch.int16)
        rows.copy_(drawn.view(rows.dtype))
    before = [x.clone() for x in case.cache.pools]
    ops.append(*case.arguments)
    check_codes(case.cache, before, case.k_new, case.v_new, case.cu_seqlens)


VERBS = {name: partial(attention, name) for name in CASES} | {
    "append": append,
    "decode_8_bits": partial(attention, "decode", eight_bits=True),
    "prefill_8_bits": prefill_8_bits,
    "append_8_bits": append_8_bits,
}


def _kernel(choose, operation: str) -> tuple[Kernel, dict[str, object]]:
    """Return a kernel and options of its call; on a CPU not Triton, whose interpreter is slow.

    On a GPU one in eight is Triton's: it compiles anew for other divisors of lengths and strides.
    """
    languages = ("cuda",) * 7 + ("triton",) if choose.device == "cuda" else ("cuda",)
    named = kernels_of(operation, choose.pick(languages)).values()
    spec, how = choose.pick(list(named)), {}
    if choose.wide:
        how["policy"] = choose.pick(spec.policies)
        if choose.device == "cpu":
            how["checks"] = choose.pick((False, False, True))
    return spec, how
