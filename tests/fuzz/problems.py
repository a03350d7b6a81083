"""Random calls of every verb, each compared with float64.

A chooser makes the choices: Hypothesis, which shrinks a call that fails, or a seed alone. It has
`pick` one of several options and `integer` from 0 to a number; `device`; `wide`: with any policy
and head_dim, and checks, which compile for long; and `varied`: with variants of attention.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from labkernels import ops
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import kernels_of
from tests.kernels import contract
from tests.kernels.append import test_rotary
from tests.kernels.append.cases import append_case, check_appended
from tests.kernels.backward import cases as backward_cases
from tests.kernels.decode.cases import LAYOUTS, narrowed
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
    """A chooser whose choices follow from a seed."""

    seed: int
    device: str = "cpu"
    wide: bool = True
    varied: bool = True

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def pick(self, options: Sequence):
        return self._random.choice(options)

    def integer(self, most: int) -> int:
        return self._random.randint(0, most)


def attention(operation: str, choose) -> None:
    """Check a call of any kernel of an operation."""
    spec, how = _kernel(choose, operation)
    n = 1 + choose.integer(3)
    kv_lens = tuple(choose.pick((*LENGTHS, 1 + choose.integer(400))) for _ in range(n))
    shape = {
        "dtype": choose.pick(spec.dtypes),
        "seed": choose.integer(2**31),
        "device": choose.device,
    }
    if operation == "mla":
        shape["heads"] = choose.pick((1, 3, 5, 16))
    else:
        every_dim = choose.wide or choose.device == "cuda"
        shape["head_dim"] = choose.pick(spec.head_dims if every_dim else spec.head_dims[:1])
        shape["group"] = choose.pick(GROUPS[:3] if operation == "backward" else GROUPS)
        shape["kv_heads"] = choose.pick((1, 2, 3) if operation == "decode" else (1, 2))
    paged = "paged" in spec.layouts and (spec.layouts == ("paged",) or choose.pick((False, True)))
    if paged:
        shape["page_size"] = choose.pick(PAGE_SIZES)
    shape["layout"] = choose.pick(LAYOUTS if paged else RAGGED_LAYOUTS)
    lengths = (kv_lens,)
    if operation != "decode":
        shape["causal"] = choose.pick((False, True))
        lengths = tuple(choose.integer(MOST_TOKENS[operation]) for _ in kv_lens), kv_lens
    case = CASES[operation](*lengths, **shape)
    if operation == "decode":
        kind = choose.pick(spec.kv_dtypes)
        takes = shape["dtype"] in spec.block_dtypes
        blocks = (None, 1, shape["page_size"]) if takes else (None,)
        case = narrowed(case, kind, shape["seed"], choose.pick(blocks)) if kind else case
    if choose.varied and spec.features:
        vary = backward_cases.varied_backward if operation == "backward" else varied
        case = vary(case, spec.name, seed=shape["seed"], **variant(choose, spec.features))
    if operation == "backward":
        backward_cases.run_checked(case, spec, deterministic=choose.pick((False, True)), **how)
    else:
        keys = choose.pick(SPLITS)
        contract.run_checked(case, spec, sharp=False, keys_per_split=keys, **how)


def variant(choose, features) -> dict[str, object]:
    """Return any features of a variant, with windows that end inside, at and beyond steps."""
    found = {name: choose.pick((None, None, *WINDOWS)) for name in ("window_left", "window_right")}
    found["soft_cap"] = choose.pick((None, None, 0.5, 3.0, 50.0))
    names = ("alibi", "sinks", "bias") if "bias" in features else ("alibi", "sinks")
    found |= {name: choose.pick((None, True)) for name in names}
    if "mask" in features:
        found["mask"] = choose.pick((None, None, 0.1, 0.5, 0.9))
    return {name: value for name, value in found.items() if value is not None}


def append(choose) -> None:
    """Check every bit of a cache after an append."""
    growths = [(choose.integer(100), choose.integer(70)) for _ in range(1 + choose.integer(3))]
    shape = {
        "kv_heads": choose.pick((1, 2, 3)),
        "page_size": choose.pick(PAGE_SIZES),
        "layout": choose.pick(LAYOUTS),
        "head_dim": choose.pick((64, 128)),
        "device": choose.device,
        "seed": choose.integer(2**31),
    }
    checks = choose.pick((False, True))
    if choose.pick((False, True)) and any(new for _, new in growths):
        dtype, *formats = choose.pick(test_rotary.FORMATS)
        shape |= {"width": choose.pick((8, 24, 32)), "dtype": dtype, "checks": checks}
        test_rotary.check_rotary(growths, *formats, choose.pick((False, True)), **shape)
        return
    case = append_case(*growths, **shape)
    ops.append(*case.arguments, checks=checks)
    check_appended(case)


VERBS = {name: partial(attention, name) for name in CASES} | {"append": append}


def _kernel(choose, operation: str) -> tuple[Kernel, dict[str, object]]:
    """Return a kernel and options of its call; on a CPU not Triton, whose interpreter is slow."""
    languages = ("cuda", "triton") if choose.device == "cuda" else ("cuda",)
    named = [k for language in languages for k in kernels_of(operation, language).values()]
    spec, how = choose.pick(named), {}
    if choose.wide:
        how["policy"] = choose.pick(spec.policies)
        if choose.device == "cpu":
            how["checks"] = choose.pick((False, False, True))
    return spec, how
