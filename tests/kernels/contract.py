"""The contract that every kernel must keep, with the same checks on the CPU build and the GPU."""

from contextlib import contextmanager

import numpy as np
import torch

from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import discover
from labkernels.numerics import metrics
from labkernels.numerics.error import bounds
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.execution import ANY_EXECUTION, Execution
from labkernels.numerics.truth import oracle
from labkernels.numerics.verdict.significance import RIGHT_RMS
from labkernels.policy import NumericPolicy
from tests.kernels.decode.cases import DTYPES, Case, bits, poisoned
from tests.kernels.mla.cases import MlaCase
from tests.kernels.prefill.cases import PrefillCase

AnyCase = Case | PrefillCase | MlaCase
NAMES = {kind: name for name, kind in DTYPES.items()}
RAGGED = (0, 1, 15, 16, 17, 1000)
SPECS = discover()
DECODERS, PREFILLS, MLAS = (
    {name: spec for name, spec in SPECS.items() if spec.operation == operation}
    for operation in ("decode", "prefill", "mla")
)
CUDA, CUDA_PREFILLS, CUDA_MLAS = (
    {name: spec for name, spec in kernels.items() if spec.language == "cuda"}
    for kernels in (DECODERS, PREFILLS, MLAS)
)
PAGED_PREFILLS = {name: spec for name, spec in CUDA_PREFILLS.items() if "paged" in spec.layouts}

MODEL = RIGHT_RMS  # numerics.error.sigma claims 15 % with P or the output in 16 bits
# The RMSE of n independent errors has a relative standard deviation of 1 / sqrt(2 n), and exceeds
# four of these once in 30000 tests. The channels of a row share the errors of its P, so a row
# counts as only 8 errors: about 8 keys carry most of its weight.
STRAY = 4.0
INDEPENDENT_PER_ROW = 8
# No element of a right kernel lies this far out: of a million normal errors, at most one or two
# pass 5 sigma, and the store's rounding error, which is uniform, ends at 1.7.
FARTHEST = 6.0


def run_checked(
    case: AnyCase,
    kernel: str | Kernel,
    *,
    sharp: bool = True,
    arch: str = "sm_90",
    **options,
):
    """Run into poisoned outputs, check all of the contract, and return the result."""
    spec = kernel if not isinstance(kernel, str) else SPECS[kernel]
    policy = options.get("policy") or spec.policies[0]
    before = [bits(x).clone() for x in case.storage]
    outputs = poisoned(case, dtype=None if policy.out == "input" else policy.out)
    with poisoned_workspaces(spec):
        result = case.run(kernel, out=outputs.out, lse2=outputs.lse2, **options)
    assert result.out is outputs.out
    assert result.lse2 is outputs.lse2
    outputs.check_guards()
    for left, right in zip(before, case.storage, strict=True):
        assert torch.equal(left, bits(right)), "an input was changed"
    told, execution = (
        policy.of(NAMES[case.q.dtype]),
        Execution(arch, result.plan.splits, tanh="exp2"),
    )
    check(case, result.out, result.lse2, told, execution, sharp=sharp)
    return result


@contextmanager
def poisoned_workspaces(spec: Kernel):
    """Make torch.empty give NaN, as it does when torch is asked to be deterministic.

    torch.use_deterministic_algorithms would import Triton before Triton is told to interpret.
    """
    torch.set_deterministic_debug_mode("default" if spec.language == "torch" else "error")
    try:
        if spec.language != "torch":
            assert torch.empty(1000).isnan().all()
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def check(
    case: AnyCase,
    out,
    lse2,
    policy: NumericPolicy,
    execution: Execution = ANY_EXECUTION,
    *,
    sharp: bool = True,
) -> None:
    """Compare an output with float64: empty rows, the bounds and, if sharp, the error model."""
    found, found_lse2 = (x.double().cpu().numpy() for x in (out, lse2))
    truth, truth_lse2 = case.once("truth", lambda: hosted(*oracle.attention(case.problem())))
    empty, how = case.problem().n_keys == 0, (policy, execution)
    assert not found[empty].any(), "a row without keys is not zero"
    if "sinks" not in case.variant:
        assert (found_lse2[empty] == -np.inf).all(), "the lse2 of a row without keys is not -inf"
    assert np.isfinite(found).all(), "NaN or infinity in out"
    bound, lse2_bound = case.once(
        ("bounds", *how), lambda: hosted(*bounds.both_bounds(case.problem(), *how))
    )
    error = metrics.difference(found, truth)
    assert_within(error, bound, "out")
    assert_within(metrics.difference(found_lse2, truth_lse2), lse2_bound, "lse2")
    if sharp:
        check_sigma(case, error, *how)


def hosted(*arrays) -> list[np.ndarray]:
    """Return NumPy's arrays, also for tensors that a GPU has computed."""
    return [x.cpu().numpy() if torch.is_tensor(x) else x for x in arrays]


def assert_within(error, bound, what: str) -> None:
    inside = np.abs(error) <= bound
    assert inside.all(), (
        f"{what} is {np.abs(error)[~inside].max()} off where {bound[~inside].min()} is allowed,"
        f" at {np.argwhere(~inside)[:3].tolist()} and {np.sum(~inside)} places in all"
    )


def check_sigma(
    case: AnyCase, error, policy: NumericPolicy, execution: Execution = ANY_EXECUTION
) -> None:
    """Compare the errors of rows with two keys or more with their expected standard deviation.

    A row of one key is exact. Each error counts in units of its own sigma, so that a request of
    15 keys, whose outputs are large, does not hide one of 1000.
    """
    how = (policy, execution)
    (sigma,) = case.once(("sigma", *how), lambda: hosted(error_sigma.sigma(case.problem(), *how)))
    many = (case.problem().n_keys > 1) & sigma.any((1, 2))  # a mask may leave a row no key
    if not many.any():
        return
    in_sigmas = error[many] / sigma[many]
    rows = in_sigmas.shape[0] * in_sigmas.shape[1]
    allowed = MODEL * (1 + STRAY / np.sqrt(2 * INDEPENDENT_PER_ROW * rows))
    rms = metrics.rms(in_sigmas, by="all")
    assert rms <= allowed, f"RMSE is {rms:.3f} sigma, allowed: {allowed:.3f}"
    farthest = np.max(np.abs(in_sigmas))
    assert farthest <= MODEL * FARTHEST, f"an error lies {farthest:.1f} sigma out"
