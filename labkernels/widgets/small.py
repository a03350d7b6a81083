"""The kernels of the primers in the editor of a page: their launches, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkernels.chapters.primers import fragments, machine, pipeline, small_attention
from labkernels.chapters.primers.machine import SmallKernel
from labkernels.widgets import ledgers
from labkernels.widgets.launches import in_base64, module, rounding

REQUEST = small_attention.Request("of the page", 200, 3, 2, 2, causal=True)
_DRAWN = {"q": "q", "k_pool": "k", "v_pool": "v"}
_STATES = ["partial_o", "partial_l", "partial_m"]
_A, _K, _B = (np.random.default_rng(n).integers(-3, 4, (16, n)) for n in (16, 16, 8))


@dataclass(frozen=True)
class Small:
    """A kernel, what launches it, and the names of its results.

    Of `attend`, which gives the states of its rows, a page draws the inputs and divides O by l. The
    others get whole numbers, of which each sum is exact: right is what the unchanged kernel gives.
    """

    idea: str
    kernel: SmallKernel
    run: Callable[[], object]
    outputs: list[str]
    dtype: str = "fp32"

    @property
    def asset_name(self) -> str:
        """The name of the page's file."""
        return f"small.{self.kernel.name}"

    def plan(self) -> dict[str, Any]:
        """Return the launch as a page makes it again, and what its result is compared with."""
        with machine.watched() as launches:
            self.run()
        launch = launches[0]
        fields = machine.fields(launch["before"])
        made = {name: launch[name] for name in ("grid", "threads", "smem_bytes")}
        made |= {"params_bytes": 4 * len(fields), "fields": fields, "sha256": None}
        tensors = [
            {"name": name, "bytes": value.nbytes, "written": name in launch["written"]}
            | self._content(name, value)
            for name, value in launch["before"].items()
            if isinstance(value, np.ndarray)
        ]
        made |= {"tensors": tensors, "outputs": self.outputs}
        if self.outputs == _STATES:
            policy = SimpleNamespace(policy=small_attention.POLICY, dtype=self.dtype)
            return made | {"attention": _attention(), "rounding": rounding(policy)}
        result = launch["after"][self.outputs[0]]
        width = result.nbytes // (2 if self.dtype == "fp16" else 4)
        a: dict[str, Any] = {
            "dtype": self.dtype,
            "out_dtype": self.dtype,
            "q_lens": [1],
            "kv_lens": [1],
        }
        a |= {"q_heads": 1, "kv_heads": 1, "head_dim": width, "head_dim_v": width}
        return made | {"attention": a, "right": in_base64(result.tobytes())}

    def _content(self, name: str, value: np.ndarray) -> dict[str, Any]:
        """Return what a tensor holds at first: drawn numbers, drawn pages, or these."""
        if self.outputs == _STATES and name in _DRAWN:
            return {"drawn": _DRAWN[name]}
        if name == "page_table":
            return {"columns": value.size}
        return {"data": in_base64(value.tobytes())}

    def asset(self) -> dict[str, Any]:
        """Return all that a page needs to run the unchanged kernel."""
        made = module(self.kernel.made((machine.FOLDER,)))
        return {"module": made, "cases": {"recorded": self.plan()}}

    def entry(self) -> dict[str, Any]:
        """Return what the editor knows of the kernel; see `editing`."""
        kernel, text = self.kernel, (machine.FOLDER / self.kernel.header).read_text()
        budget = {"kernel": kernel.instance, "threads": kernel.threads, "promised": 1}
        thread, smem = map(ledgers.ledger, (kernel.registers, kernel.smem))
        nothing = {"told": None, "rows": [], "barriers": [], "plants": [], "reported": None}
        return nothing | {
            "offer": self.asset_name,
            "idea": self.idea,
            "files": {kernel.header: text},
            "launch": self.plan(),
            "maps": [{"syncs": 0, "tiles": tiles(kernel)}],
            "budget": budget | {"thread": thread, "smem": smem},
        }


def _attention() -> dict[str, Any]:
    r, heads = REQUEST, REQUEST.kv_heads * REQUEST.group
    shape = {"q_lens": [r.n_queries], "kv_lens": [r.kv_len], "q_heads": heads}
    shape |= {"kv_heads": r.kv_heads, "head_dim": small_attention.DIM, "page_size": r.page_size}
    shape |= {"head_dim_v": small_attention.DIM, "causal": r.causal}
    return shape | {"dtype": "fp32", "out_dtype": "fp32", "scale": small_attention.DIM**-0.5}


def tiles(kernel: SmallKernel) -> list[dict[str, Any]]:
    """Return the buffers of a kernel's ledger as rows of 128 bytes, which a stepper draws."""
    made, at = [], 0
    dtype = "fp16" if kernel.header == fragments.HEADER else "fp32"
    for line in kernel.smem.lines:
        name = line.name.partition(",")[0].removeprefix("the ")
        look = {"line": 0, "rows": line.amount // 128, "chunks": 8, "format": dtype}
        made.append({"name": name, "byte": at, **look, "swizzled": False})
        at += line.amount
    return made


OFFERED = (
    Small(
        "A warp computes one row of attention, in fp32. The page divides O by l.",
        small_attention.ATTEND,
        lambda: small_attention.attend(REQUEST),
        _STATES,
    ),
    Small(
        "Two stages: while a tile is summed, the next tile is copied.",
        pipeline.SUM_UP,
        lambda: pipeline.run(5),
        ["sums"],
    ),
    Small(
        "A tile goes through shared memory, and its swizzle avoids bank conflicts.",
        fragments.SWIZZLED,
        fragments.swizzled,
        ["held"],
        "fp16",
    ),
    Small(
        "One mma of a warp, whose A comes by ldmatrix.",
        fragments.PRODUCT,
        lambda: fragments.product(_A, _B),
        ["out"],
    ),
    Small(
        "S = Q K^T, then P V without a softmax: an accumulator becomes a fragment.",
        fragments.TWO_PRODUCTS,
        lambda: fragments.two_products(_A, _K, _B),
        ["out"],
    ),
)
