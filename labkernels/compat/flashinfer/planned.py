"""What all wrappers share: `plan` keeps options of a verb, and `run` has what it promised."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from labkernels.compat.arguments import LN2, refusal
from labkernels.kernels.caches.mask import WORD_BYTES, pack_mask
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

    def _mask(
        self, mask: Any, packed: Any, qo_indptr: torch.Tensor, kv_lens: torch.Tensor
    ) -> dict[str, Any]:
        """Return the options of a plan's mask, on the device of its runs."""
        if mask is None and packed is None:
            return {}
        options = mask_options(mask, packed, qo_indptr.diff().tolist(), kv_lens.tolist())
        return options | {"mask": options["mask"].to(self._device)}

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


def mask_options(
    mask: torch.Tensor | None, packed: torch.Tensor | None, q_lens: list[int], kv_lens: list[int]
) -> dict[str, Any]:
    """Return the options for a custom mask, or for its bits; a causal mask then does not count.

    >>> mask_options(torch.tensor([True, False, True]), None, [1, 1], [1, 2])["mask"]
    tensor([1, 2, 0, 0], dtype=torch.uint8)
    """
    if packed is not None:
        padded = torch.nn.functional.pad(packed.flatten(), (0, -packed.numel() % WORD_BYTES))
        return {
            "mask": padded.clone() if padded.data_ptr() % WORD_BYTES else padded,
            "causal": False,
        }
    if mask is None:
        return {}
    sizes = [n * keys for n, keys in zip(q_lens, kv_lens, strict=True)]
    if mask.dtype != torch.bool or mask.numel() != sum(sizes):
        allowed = f"{sum(sizes)} of torch.bool, each query's keys"
        raise refusal("custom_mask", mask, f"{allowed}; its dtype is {mask.dtype}")
    parts = zip(mask.flatten().split(sizes), q_lens, kv_lens, strict=True)
    return {"mask": pack_mask([x.reshape(n, keys) for x, n, keys in parts]), "causal": False}


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
