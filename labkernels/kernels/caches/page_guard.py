"""Checks lengths, page numbers and scales of a cache before each run of a step."""

import ctypes
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.launch import Launch, with_numbers
from labkernels.hardware import Gpu
from labkernels.kernels.caches.paged import Paged, QuantizedKV, wrong_length, wrong_page
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import Call, Step

POINTERS = ("page_table", "kv_len", "cu_seqlens_new", "planned", "found", "scale")
STRIDES = ("page_stride", "block_stride", "head_stride")
SIZES = ("page_table_stride", "max_pages", "page_size", "pages", "heads", "keys_per_scale", "kind")
THREADS = 128
NO_SLOT = -1
SCALES = {2: "k_scale", 3: "v_scale"}  # kinds of findings
KERNEL = Specialization(
    "caches/page_guard.cuh",
    "page_guard::guard",
    "page_guard::Params",
    THREADS,
    smem_bytes=0,
    numbers=(("NO_SLOT", NO_SLOT),),
)


class Params(ctypes.Structure):
    """page_guard::Params, by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_longlong) for name in STRIDES),
        *((name, ctypes.c_int) for name in SIZES),
    )


class Guard:
    """Launches a small kernel that checks what a step trusts of a cache, and reads its findings.

    planned: the lengths that the step was prepared for, if it depends on them. cu_seqlens_new: the
    cumulative lengths of rows that the step appends; their pages are checked too.
    On a GPU the launch writes its findings into page-locked memory of the host, which can be read
    without waiting for the GPU. A finding is therefore reported late, by the next run or by
    `check`. On a CPU the launch ends before it is asked for its findings.
    """

    def __init__(
        self,
        cache: Paged,
        step: Step,
        gpu: Gpu,
        planned: np.ndarray | None = None,
        cu_seqlens_new: torch.Tensor | None = None,
    ) -> None:
        device = cache.pool.device
        self._cache, self._planned, self._clear = cache, planned, step.clear
        self._is_late = device.type == "cuda"
        found = torch.zeros(4, dtype=torch.int32, pin_memory=self._is_late)
        tensors = {"page_table": cache.page_table, "kv_len": cache.kv_len, "found": found}
        if cu_seqlens_new is not None:
            tensors["cu_seqlens_new"] = cu_seqlens_new
        if planned is not None:
            tensors["planned"] = torch.from_numpy(planned.astype(np.int32)).to(device)
        table = cache.page_table
        sizes = (table.stride(0), table.shape[1], cache.page_size, len(cache.pool))
        self._found, self._launches = found.numpy(), []
        for of_scale, strides, numbers in _scales(cache):
            launch = Launch(
                specialization=KERNEL,
                gpu=gpu,
                device=device,
                grid=(cache.batch, 1, 1),
                params=with_numbers(Params, *strides, *sizes, *numbers),
                written=frozenset(("found",)),
                checks=False,
            )
            self._launches.append(launch.on(tensors | of_scale))

    def before_run(self) -> None:
        """Report what was found until now, and on a GPU enqueue the next check.

        Raises: ValueError as `check`.
        """
        self.check()
        for launch in self._launches if self._is_late else ():
            launch()

    def check(self) -> None:
        """Report what was found until now, without waiting for a GPU.

        Raises: ValueError naming request, slot and page, request and length, or a scale; the
        counters that the step keeps at zero are then cleared after the runs under way, so that the
        step can be used again.
        """
        for launch in () if self._is_late else self._launches:
            launch()
        if self._found[0]:
            kind, *where = self._found.tolist()
            self._found[:] = 0
            self._clear()
            raise self.refusal(*where, kind)

    def refusal(self, request: int, slot: int, value: int, kind: int = 1) -> ValueError:
        """Return the error for a page, for a length if the slot is NO_SLOT, or for a scale.

        Of a scale, request is the page, slot the block and head in it, and value has its bits.
        """
        if isinstance(self._cache, QuantizedKV) and kind in SCALES:
            shape = getattr(self._cache, SCALES[kind]).shape
            at = (request, *divmod(slot, self._cache.kv_heads))[3 - len(shape) :]
            at = [min(i, n - 1) for i, n in zip(at, shape, strict=True)]  # heads may share one
            number = f"{SCALES[kind]}{at or ''} = {np.int32(value).view(np.float32)}"
            return ValueError(f"{number}, allowed: positive and finite numbers")
        if slot != NO_SLOT:
            return wrong_page(request, slot, value, len(self._cache.pool))
        if self._planned is None:
            return wrong_length(request, value, self._cache.max_kv_len)
        return ValueError(
            f"kv_len[{request}] = {value}, allowed: {self._planned[request]}, for which the step"
            " was prepared"
        )


def _scales(cache: Paged) -> Iterator[tuple]:
    """Yield the scale of each launch, its strides, and heads, keys of a scale and kind."""
    if not isinstance(cache, QuantizedKV):
        yield {}, (0, 0, 0), (0, cache.page_size, 0)
        return
    keys = cache.keys_per_scale or cache.page_size
    for kind, scale in zip(SCALES, cache.scales(), strict=True):
        of = scale.expand(len(cache.k), cache.page_size // keys, cache.kv_heads)
        yield {"scale": scale}, of.stride(), (cache.kv_heads, keys, kind)


def guarded(
    step: Step,
    call: Call,
    cache: Paged | RaggedKV,
    planned: np.ndarray | None = None,
    cu_seqlens_new: torch.Tensor | None = None,
) -> Step:
    """Return the step, which checks the contents at each run if the call has checks and pages."""
    if not call.checks or cache.layout != "paged" or call.device.type == "meta":
        return step
    guard = Guard(cache, step, call.gpu, planned, cu_seqlens_new)

    def run() -> None:
        guard.before_run()
        step.run()

    return replace(step, run=run, check_contents=guard.check)
