"""What all wrappers share: `plan` keeps options of a verb, and `run` has what it promised."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from labkernels.compat.arguments import LN2, refusal
from labkernels.kernels.call import Attention
from labkernels.units import require_choice

LAYOUTS = ("NHD", "HND")


class Wrapper:
    """The base of the wrappers; kernels: the lab's kernel for each of FlashInfer's backends."""

    kernels: Mapping[str, str | None]
    run: Callable[..., Any]

    def __init__(self, workspace: torch.Tensor, backend: str, kv_layout: str = "NHD") -> None:
        require_choice("backend", backend, self.kernels)
        require_choice("kv_layout", kv_layout, LAYOUTS)
        self._device, self._layout = workspace.device, kv_layout
        self._options: dict[str, Any] = {"kernel": self.kernels[backend]}
        self._tensors: tuple[torch.Tensor, ...] = ()
        self._promises: dict[str, object] = {}

    def _keep(
        self, *tensors: torch.Tensor, options: dict[str, Any], dtypes: tuple, **promises: object
    ) -> None:
        """Keep a plan: the tensors and options of a call, and numbers that its tensors must have.

        dtypes: of q, K and V, and the output, of which None is that of q.
        """
        q_type, *others = (getattr(torch, x) if isinstance(x, str) else x for x in dtypes)
        for name, dtype in zip(("kv_data_type", "o_data_type"), others, strict=True):
            if dtype not in (None, q_type):
                raise refusal(name, dtype, f"{q_type}, as q_data_type")
        self._tensors = tuple(x.to(self._device) for x in tensors)
        self._options = {"kernel": self._options["kernel"]} | options
        self._promises = promises | {"q_data_type": q_type}

    def _require(self, **found: object) -> None:
        """Raise ValueError unless the tensors of a run are as the plan promised."""
        if not self._promises:
            raise ValueError("run before plan, allowed: run after plan")
        for name, value in found.items():
            if self._promises[name] != value:
                raise refusal(f"{name} of plan", self._promises[name], f"{value}, as run has")

    def run_return_lse(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and lse: `run` with return_lse=True."""
        return self.run(*args, return_lse=True, **kwargs)


def results(
    done: Attention,
    return_lse: bool,
    lse: torch.Tensor | None = None,
    base: str = "log2",
    layout: str = "NH",
) -> Any:
    """Return the output, and if it is asked for lse, in this base and order, in the given tensor.

    base: "log2" or "ln". layout: "NH", [tokens, heads], or "HN".
    """
    require_choice("lse_base", base, ("log2", "ln"))
    require_choice("lse_layout", layout, ("NH", "HN"))
    if not return_lse:
        return done.out
    found = done.lse2 * LN2 if base == "ln" else done.lse2
    found = found.T.contiguous() if layout == "HN" else found
    return done.out, found if lse is None else lse.copy_(found)
