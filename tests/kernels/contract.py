"""What every decode kernel must keep; the same checks serve the CPU build and the GPU."""

import dataclasses
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from labkernels import ops
from labkernels.kernels.spec import KernelSpec, NumericPolicy, discover
from labkernels.numerics import bounds, error_model, metrics, oracle
from tests.kernels.cases import DTYPES, Case, bits, poisoned

NAMES = {kind: name for name, kind in DTYPES.items()}
RAGGED = (0, 1, 15, 16, 17, 1000)
DECODERS = {name: spec for name, spec in discover().items() if spec.family == "decode"}
CUDA = {name: spec for name, spec in DECODERS.items() if spec.language == "cuda"}

# decode_sigma claims 15 %, and twice itself for poly3 beside an unrounded P (see its docstring).
MODEL = 1.15
MODEL_POLY3 = 2.0
# An RMSE over n independent errors strays from the standard deviation by 1 in sqrt(2 n); four of
# that happen once in 30000 tests. The channels of a row share the errors of its P, so that a row
# counts as no more than the 8 or so keys that carry most of its weight.
STRAY = 4.0
INDEPENDENT_A_ROW = 8
# No element of a right kernel lies this far out: of a million normal errors none passes 5 sigma,
# and the store's rounding, which is uniform, ends at 1.7.
FARTHEST = 6.0


@dataclass(frozen=True)
class Way:
    """How a kernel rounds, in the words of numerics."""

    p_format: str
    out_format: str
    tensor_cores: bool
    exp2: str
    denominator: str
    arch: str = "sm_90"


def way_of(spec: KernelSpec, policy: NumericPolicy, dtype: str, arch: str = "sm_90") -> Way:
    return Way(
        p_format=dtype if policy.p == "input" else policy.p.replace("fp64", "fp32"),
        out_format=dtype if policy.out == "input" else policy.out,
        tensor_cores=spec.uses_tensor_cores(policy),
        # torch's own exponential is nearer to the truth than the special-function unit
        exp2=policy.exp2.replace("library", "mufu"),
        denominator=policy.denominator,
        arch=arch,
    )


def run_checked(
    case: Case, kernel: str | KernelSpec, *, sharp: bool = True, arch: str = "sm_90", **options
):
    """Decode into poisoned outputs, hold everything against the contract, return the result."""
    spec = kernel if isinstance(kernel, KernelSpec) else DECODERS[kernel]
    policy = options.get("policy") or spec.policies[0]
    before = [bits(x).clone() for x in case.storage]
    outputs = poisoned(case, dtype=None if policy.out == "input" else policy.out)
    options.setdefault("scale", case.scale)
    with poisoned_workspaces(spec):
        result = ops.decode(
            case.q, case.cache, kernel=kernel, out=outputs.out, lse2=outputs.lse2, **options
        )
    assert result.out is outputs.out
    assert result.lse2 is outputs.lse2
    outputs.check_guards()
    for left, right in zip(before, case.storage, strict=True):
        assert torch.equal(left, bits(right)), "an input was changed"
    way = way_of(spec, policy, NAMES[case.q.dtype], arch)
    check(case, result.out, result.lse2, way, splits=result.plan.splits, sharp=sharp)
    return result


@contextmanager
def poisoned_workspaces(spec: KernelSpec):
    """Let torch.empty give NaN, which it does where torch is asked to be deterministic.

    torch.use_deterministic_algorithms would import Triton, before it is told to interpret.
    """
    torch.set_deterministic_debug_mode("default" if spec.language == "torch" else "error")
    try:
        if spec.language != "torch":
            assert torch.empty(1000).isnan().all()
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def check(case: Case, out, lse2, way: Way, *, splits: int, sharp: bool = True) -> None:
    """Hold an output against float64: empty rows, the bounds and, if sharp, the error model."""
    found, found_lse2 = (x.double().cpu().numpy() for x in (out, lse2))
    truth, truth_lse2 = case.once(
        "truth", lambda: oracle.decode_float64(*case.arrays(), scale=case.scale)
    )
    empty = case.arrays()[-1] == 0
    assert not found[empty].any(), "a row without keys is not zero"
    assert (found_lse2[empty] == -np.inf).all(), "the lse2 of a row without keys is not -inf"
    assert np.isfinite(found).all(), "NaN or infinity in out"
    bound, lse2_bound = case.once((way, splits), lambda: bounds_of(case, way, splits))
    error = metrics.difference(found, truth)
    assert_within(error, bound, "out")
    assert_within(metrics.difference(found_lse2, truth_lse2), lse2_bound, "lse2")
    if sharp:
        check_sigma(case, error, way)


def bounds_of(case: Case, way: Way, splits: int):
    """The largest errors that rounding can cause, of out and of lse2."""
    common = dataclasses.asdict(way) | {"scale": case.scale, "splits": splits}
    out_format = common.pop("out_format")
    return (
        bounds.decode_bound(*case.arrays(), out_format=out_format, **common),
        bounds.decode_lse2_bound(*case.arrays(), **common),
    )


def assert_within(error, bound, what: str) -> None:
    inside = np.abs(error) <= bound
    assert inside.all(), (
        f"{what} is {np.abs(error)[~inside].max()} off where {bound[~inside].min()} is allowed,"
        f" at {np.argwhere(~inside)[:3].tolist()} and {np.sum(~inside)} places in all"
    )


def check_sigma(case: Case, error, way: Way) -> None:
    """Hold the errors of rows with two keys or more against the standard deviation to expect.

    A row of one key is exact. Each error counts in units of its own sigma, so that a request of
    15 keys, whose outputs are large, does not hide one of 1000.
    """
    sigma = case.once(way, lambda: sigma_of(case, way))
    many = case.arrays()[-1] > 1
    if not many.any():
        return
    in_sigmas = error[many] / sigma[many]
    rows = in_sigmas.shape[0] * in_sigmas.shape[1]
    model = MODEL_POLY3 if (way.exp2, way.p_format) == ("poly3", "fp32") else MODEL
    allowed = model * (1 + STRAY / np.sqrt(2 * INDEPENDENT_A_ROW * rows))
    rms = metrics.rms(in_sigmas, by="all")
    assert rms <= allowed, f"RMSE is {rms:.3f} sigma, allowed: {allowed:.3f}"
    farthest = np.max(np.abs(in_sigmas))
    assert farthest <= model * FARTHEST, f"an error lies {farthest:.1f} sigma out"


def sigma_of(case: Case, way: Way):
    """The standard deviation to expect of each element of out."""
    rounding = dataclasses.asdict(way)
    del rounding["tensor_cores"], rounding["arch"]
    return error_model.decode_sigma(*case.arrays(), scale=case.scale, **rounding)
