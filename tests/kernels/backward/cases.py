"""Backward passes over the prefills of tests/kernels/prefill/cases.py, and checks of them."""

import functools
from dataclasses import dataclass, field

import numpy as np
import torch

from labkernels import ops
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.registry import discover
from labkernels.numerics.error import gradient_bounds
from labkernels.numerics.error.execution import Execution
from labkernels.numerics.truth import gradients, oracle
from tests.kernels.contract import NAMES, assert_within, hosted, poisoned_workspaces
from tests.kernels.decode.cases import GUARD_ROWS, Remembers, bits
from tests.kernels.prefill.cases import PrefillCase, padded, prefill_case
from tests.kernels.variants.cases import varied

BACKWARDS = {name: spec for name, spec in discover().items() if spec.operation == "backward"}
CUDA_BACKWARDS = {name: spec for name, spec in BACKWARDS.items() if spec.language == "cuda"}
GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True, eq=False)
class BackwardCase(Remembers):
    """A prefill, its output and log-sum-exp rounded once, and the gradient of the output."""

    forward: PrefillCase
    dout: torch.Tensor
    out: torch.Tensor
    lse2: torch.Tensor
    storage: tuple[torch.Tensor, ...]
    known: dict = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """Return the arguments that every backward verb takes, in order."""
        forward = self.forward
        tensors = (self.dout, forward.q, forward.kv.k, forward.kv.v, self.out, self.lse2)
        return (*tensors, forward.cu_seqlens_q, forward.kv.cu_seqlens)

    def step(self, kernel, **options):
        """Prepare the backward pass at the case's scale and mask, and of its variant."""
        how = {"scale": self.forward.scale, "causal": self.forward.causal, **self.forward.variant}
        options = {**how, **options}
        return ops.backward_step(*self.arguments, kernel=kernel, **options)

    def given(self) -> gradients.Given:
        """Return the pass as labkernels.numerics takes it."""
        wide = (x.double() for x in (self.dout, self.out, self.lse2))
        on_gpu = self.dout.device.type == "cuda"
        return gradients.Given(self.forward.problem(), *(x if on_gpu else x.numpy() for x in wide))


@functools.lru_cache(maxsize=24)
def backward_case(q_lens, kv_lens, *, scale=None, **how) -> BackwardCase:
    """Return a backward pass of a ragged prefill; options as in prefill_case."""
    forward = prefill_case(q_lens, kv_lens, **how)
    if scale is not None:
        forward = forward.changed(scale=scale)
    return of_forward(forward, how.get("seed", 0) + 1)


def varied_backward(case: BackwardCase, kernel: str = "", *, seed: int = 0, **variant):
    """Return a case of a variant, whose forward pass is `varied`."""
    return of_forward(varied(case.forward, kernel, seed=seed, **variant), seed + 1)


def of_forward(forward: PrefillCase, seed: int) -> BackwardCase:
    """Return the backward pass of a prefill, with a random gradient of the output."""
    out, lse2 = (torch.as_tensor(x) for x in oracle.attention(forward.problem()))
    generator = torch.Generator().manual_seed(seed)
    dout = torch.randn(out.shape, generator=generator)
    wide, inner = zip(*(padded(x.to("cpu", forward.q.dtype)) for x in (dout, out)), strict=True)
    device = forward.q.device
    storage = [x.to(device) for x in wide]
    views = [
        x.as_strided(view.shape, view.stride(), view.storage_offset())
        for x, view in zip(storage, inner, strict=True)
    ]
    lse2 = lse2.to(device, torch.float32)
    return BackwardCase(forward, *views, lse2, (*storage, *forward.storage, lse2))


def run_checked(case: BackwardCase, kernel: str | Kernel, **options):
    """Run into poisoned outputs, check the gradients and all else, and return the step."""
    spec = kernel if not isinstance(kernel, str) else BACKWARDS[kernel]
    before = [bits(x).clone() for x in case.storage]
    outputs, whole = _poisoned(case)
    with poisoned_workspaces(spec):
        step = case.step(kernel, **outputs, **options)
        step.run()
    for name, storage in whole.items():
        edges = torch.cat([storage[:GUARD_ROWS], storage[-GUARD_ROWS:]])
        assert edges.isnan().all(), f"something was written beside {name}"
    for left, right in zip(before, case.storage, strict=True):
        assert torch.equal(left, bits(right)), "an input was changed"
    check(case, step, spec, options.get("policy"))
    return step


def check(case: BackwardCase, step, spec: Kernel, policy=None) -> None:
    """Assert that the gradients differ from float64 by no more than their bounds."""
    told = (policy or spec.policies[0]).of(NAMES[case.dout.dtype])
    truth = case.once("truth", lambda: hosted(*gradients.gradients(case.given())))
    allowed = case.once(
        ("bounds", told),
        lambda: hosted(
            *gradient_bounds.gradient_bounds(case.given(), told, Execution(tanh="exp2"))
        ),
    )
    names = gradients.names_of(case.forward.problem())
    for name, exact, bound in zip(names, truth, allowed, strict=True):
        found = getattr(step, name).double().cpu().numpy()
        assert np.isfinite(found).all(), f"NaN or infinity in {name}"
        assert_within(found - exact, bound, name)


def _poisoned(case: BackwardCase):
    outputs, whole = {}, {}
    likes = (case.forward.q, case.forward.kv.k, case.forward.kv.v)
    names = gradients.names_of(case.forward.problem())
    for name, like in zip(names, (*likes, case.forward.variant.get("sinks")), strict=False):
        shape = (len(like) + 2 * GUARD_ROWS, *like.shape[1:])
        whole[name] = torch.full(shape, torch.nan, dtype=like.dtype, device=like.device)
        outputs[name] = whole[name][GUARD_ROWS : GUARD_ROWS + len(like)]
    return outputs, whole
