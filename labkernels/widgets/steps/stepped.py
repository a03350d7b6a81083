"""Kernels that a page goes through from barrier to barrier: each as a checked, traced module."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkernels.cuda.compiler import cache
from labkernels.cuda.host.compiler import INCLUDE_DIRS
from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.operation import BitCase
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.registry import discover
from labkernels.measure.mutants.mutant import Edit
from labkernels.widgets.launches import module, page_launch, rounding
from labkernels.widgets.steps import smem_map
from labkernels.widgets.steps.softmax_rows import (
    Row,
    accumulator_columns,
    accumulator_rows,
    cuda_core_rows,
)

HEAD_DIM, DTYPE, GROUP = 64, "fp16", 4
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_TOLD = (
    r"\g<0> extern void told(const float*, const float*, const float*) "
    r'__asm__("lab_softmax"); '
)


@dataclass(frozen=True)
class Stepped:
    """A kernel, its launch, and what a stepper quotes and shows of it.

    read: files whose lines are quoted. told: where the kernel tells the softmax of its rows, which
    lies in registers. rows: which of the told numbers are of which query row.
    """

    kernel: str
    workload: Any
    read: tuple[str, ...]
    told: Edit
    rows: Callable[[], Sequence[Row]]
    tile: Callable[[Any], bool] = lambda tile: True

    def case(self, edits: Sequence[Edit] = (), also: str = "") -> BitCase:
        """Return the launch of the kernel with some edits; `also` stands before its namespace.

        Raises: ValueError for a pattern that its file does not have exactly once.
        """
        kernel = self._edited((*edits, self.told), also)
        shape = kernel.shape(dtype=DTYPE, head_dim=HEAD_DIM, group=self.group)
        tile = next(t for t in kernel.tiles(shape, kernel.policies[0]) if self.tile(t))
        kernel = kernel.with_tile(tile)
        instance = kernel.instance(shape, kernel.policies[0])
        return BitCase(instance, self.workload, {"kernel": kernel})

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.workload.q_heads // self.workload.kv_heads

    def whole_asset(self) -> dict[str, Any]:
        """Return the asset of the kernel as it is."""
        return self.asset(self.case())

    def asset(self, case: BitCase) -> dict[str, Any]:
        """Return the checked module, its launch, its shared memory, its rows and its sources."""
        launch = page_launch(case)
        plan = {**launch.plan, "rounding": rounding(case.instance), "sha256": None}
        return {
            "module": module(launch.specialization, checks=True, trace=True),
            "kernel": self.kernel,
            "cases": {"recorded": plan},
            "maps": smem_map.maps(case.instance),
            "barriers": smem_map.barriers(case.instance),
            "rows": [asdict(row) for row in self.rows()],
            "sources": {"/".join(n.split("/")[-2:]): original(n).splitlines() for n in self.read},
        }

    def _edited(self, edits: Sequence[Edit], also: str) -> CudaKernel:
        """Return the kernel whose files have the edits; the changed files lie in the cache."""
        texts = {name: original(name) for name in (*self.read, *(edit.file for edit in edits))}
        for edit in edits:
            texts[edit.file], found = re.subn(edit.pattern, edit.by, texts[edit.file])
            if found != 1:
                raise ValueError(f"pattern = {edit.pattern!r}, found {found} times, allowed: 1")
        source, begin = self.read[0], f"namespace {self.kernel} {{"
        texts[source] = texts[source].replace(begin, f"{also}{begin}", 1)
        made: Any = discover()[self.kernel].with_overlay(cache.overlay(texts))
        return made


def _rows_of_each(warps: range, *, has_o: bool = True) -> list[Row]:
    """Return the 16 rows of each of some warps, which share no row."""
    return [
        row
        for i, warp in enumerate(warps)
        for row in accumulator_rows(16, (warp,), group=GROUP, first=16 * i, has_o=has_o)
    ]


def _stepped(
    kernel: str,
    workload: Decode | Prefill,
    rows: Callable[[], Sequence[Row]],
    tile: Callable[[Any], bool] = lambda tile: True,
) -> Stepped:
    of = _TABLE[kernel]
    told = Edit(of["file"], of["pattern"], f"{_TOLD}{of['told']}")
    return Stepped(kernel, workload, tuple(of["read"]), told, rows, tile)


def _four_warps() -> list[Row]:
    return accumulator_rows(GROUP, (0, 1, 2, 3), group=GROUP)


def _two_warpgroups() -> list[Row]:
    return _rows_of_each(range(4, 12), has_o=False)


_DECODE = Decode((200,), 2 * GROUP, 2, HEAD_DIM, 16, DTYPE)
_PREFILL = Prefill((32,), (300,), 2 * GROUP, 2, HEAD_DIM, True, DTYPE)
DECODE_MMA = _stepped("decode_mma", _DECODE, _four_warps)
_OTHERS = (
    _stepped("decode_mma_n8", _DECODE, lambda: accumulator_columns(GROUP, (0, 1, 2, 3))),
    _stepped("decode_fma", _DECODE, lambda: cuda_core_rows(GROUP, HEAD_DIM, (0, 1, 2, 3))),
    _stepped(
        "prefill_mma",
        replace(_PREFILL, q_lens=(16,), kv_lens=(200,)),
        lambda: _rows_of_each(range(4)),
        lambda tile: (tile.q_rows, tile.keys) == (64, 64),
    ),
    _stepped(
        "prefill_wgmma",
        _PREFILL,
        _two_warpgroups,
        lambda tile: (tile.q_rows, tile.overlap) == (128, "between"),
    ),
)
BASIC = _stepped("prefill_wgmma_basic", _PREFILL, _two_warpgroups)
OTHERS = {of.kernel: of for of in _OTHERS}


def original(name: str) -> str:
    """Return the text of a file of the include path."""
    return next(root / name for root in INCLUDE_DIRS if (root / name).exists()).read_text()
