"""Random calls of every verb, each compared with float64.

A chooser makes the choices: Hypothesis, which shrinks a call that fails, or a seed alone.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from labkernels import ops
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import kernels_of
from labkernels.numerics.truth import gradients, oracle
from tests.fuzz import plain
from tests.kernels import contract
from tests.kernels.append.cases import append_case, check_appended
from tests.kernels.backward import cases as backward_cases
from tests.kernels.decode.cases import LAYOUTS, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import RAGGED_LAYOUTS, prefill_case

PAGE_SIZES = (1, 2, 3, 8, 16, 17, 64, 100, 256)
GROUPS = (1, 2, 3, 4, 5, 7, 8, 16)
SPLITS = (None, 16, 64, 100, 1000)
LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129)
AGREES = 1e-12  # of the largest number, between two float64 results: 4,500 spacings of float64


class Chooser(Protocol):
    """Makes the choices. wide: with any policy and head_dim, and checks, which compile for long."""

    wide: bool
    device: str

    def pick(self, options: Sequence):
        """Return one of several options."""

    def integer(self, most: int) -> int:
        """Return a number from 0 to `most`."""


@dataclass
class Seeded:
    """A chooser whose choices follow from a seed."""

    seed: int
    device: str = "cpu"
    wide: bool = True

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def pick(self, options: Sequence):
        return self._random.choice(options)

    def integer(self, most: int) -> int:
        return self._random.randint(0, most)


def decode(choose: Chooser) -> None:
    """Check a decode of any kernel."""
    spec, how = _kernel(choose, "decode")
    case = decode_case(
        _lengths(choose),
        group=choose.pick(GROUPS),
        kv_heads=choose.pick((1, 2, 3)),
        page_size=choose.pick(PAGE_SIZES),
        layout=choose.pick(LAYOUTS),
        **_common(choose, spec),
    )
    _attention(case, spec, how | {"keys_per_split": choose.pick(SPLITS)})


def prefill(choose: Chooser) -> None:
    """Check a prefill of any kernel, over pages or ragged."""
    spec, how = _kernel(choose, "prefill")
    kv_lens = _lengths(choose)
    page_size = choose.pick((None, *PAGE_SIZES)) if "paged" in spec.layouts else None
    case = prefill_case(
        tuple(choose.integer(80) for _ in kv_lens),
        kv_lens,
        causal=choose.pick((False, True)),
        group=choose.pick(GROUPS),
        kv_heads=choose.pick((1, 2)),
        page_size=page_size,
        layout=choose.pick(RAGGED_LAYOUTS if page_size is None else LAYOUTS),
        **_common(choose, spec),
    )
    _attention(case, spec, how | {"keys_per_split": choose.pick(SPLITS)})


def mla(choose: Chooser) -> None:
    """Check an MLA decode of any kernel."""
    spec, how = _kernel(choose, "mla")
    kv_lens = _lengths(choose)
    given = _common(choose, spec)
    del given["head_dim"]
    case = mla_case(
        tuple(choose.integer(4) for _ in kv_lens),
        kv_lens,
        heads=choose.pick((1, 3, 5, 16)),
        causal=choose.pick((False, True)),
        page_size=choose.pick(PAGE_SIZES),
        layout=choose.pick(LAYOUTS),
        **given,
    )
    _attention(case, spec, how | {"keys_per_split": choose.pick(SPLITS)})


def backward(choose: Chooser) -> None:
    """Check a backward pass of any kernel."""
    spec, how = _kernel(choose, "backward")
    kv_lens = _lengths(choose)
    case = backward_cases.backward_case(
        tuple(choose.integer(80) for _ in kv_lens),
        kv_lens,
        causal=choose.pick((False, True)),
        group=choose.pick((1, 2, 3)),
        kv_heads=choose.pick((1, 2)),
        layout=choose.pick(RAGGED_LAYOUTS[:3]),
        **_common(choose, spec),
    )
    given = case.given()
    for name, found, exact in zip(
        backward_cases.GRADIENTS, plain.gradients(given), gradients.gradients(given), strict=True
    ):
        _agree(name, found, *contract.hosted(exact))
    backward_cases.run_checked(case, spec, deterministic=choose.pick((False, True)), **how)


def append(choose: Chooser) -> None:
    """Check every bit of a cache after an append."""
    growths = [(choose.integer(100), choose.integer(70)) for _ in range(1 + choose.integer(3))]
    case = append_case(
        *growths,
        kv_heads=choose.pick((1, 2, 3)),
        page_size=choose.pick(PAGE_SIZES),
        layout=choose.pick(LAYOUTS),
        head_dim=choose.pick((64, 128)),
        device=choose.device,
        seed=choose.integer(2**31),
    )
    ops.append(*case.arguments, checks=choose.pick((False, True)))
    check_appended(case)


VERBS: dict[str, Callable[[Chooser], None]] = {
    "decode": decode,
    "prefill": prefill,
    "mla": mla,
    "backward": backward,
    "append": append,
}


def _kernel(choose: Chooser, operation: str) -> tuple[Kernel, dict[str, object]]:
    """Return a kernel and options of its call; on a CPU not Triton, whose interpreter is slow."""
    languages = ("cuda", "triton") if choose.device == "cuda" else ("cuda",)
    named = [k for language in languages for k in kernels_of(operation, language).values()]
    spec, how = choose.pick(named), {}
    if choose.wide:
        how["policy"] = choose.pick(spec.policies)
        if choose.device == "cpu":
            how["checks"] = choose.pick((False, False, True))
    return spec, how


def _common(choose: Chooser, spec: Kernel) -> dict[str, object]:
    head_dims = spec.head_dims if choose.wide else spec.head_dims[:1]
    return {
        "dtype": choose.pick(spec.dtypes),
        "head_dim": choose.pick(head_dims),
        "seed": choose.integer(2**31),
        "device": choose.device,
    }


def _lengths(choose: Chooser) -> tuple[int, ...]:
    n = 1 + choose.integer(3)
    return tuple(choose.pick((*LENGTHS, 1 + choose.integer(400))) for _ in range(n))


def _attention(case, spec: Kernel, how: dict[str, object]) -> None:
    """Compare the oracle with plain attention, and the kernel with the oracle."""
    given = [plain.attention(case.problem()), contract.hosted(*oracle.attention(case.problem()))]
    for name, found, exact in zip(("out", "lse2"), *given, strict=True):
        _agree(name, found, exact)
    contract.run_checked(case, spec, sharp=False, **how)


def _agree(name: str, found: np.ndarray, exact: np.ndarray) -> None:
    same = found == exact  # infinities, too
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.abs(found - exact))
    top = np.max(np.abs(exact), where=np.isfinite(exact), initial=1)
    assert (error <= AGREES * top).all(), f"{name}: two float64 references differ by {error.max()}"
