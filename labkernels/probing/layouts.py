"""One face over all layouts: dense float64 arrays in, dense float64 arrays out.

Experiments choose q [B, H, M, D], k [B, Hkv, N, D] and v [B, Hkv, N, Dv] as NumPy arrays; a
`Kernel` rounds them to its dtype, lays them out as the caller's function expects them, calls it,
and brings the output and the log-sum-exp back. Whatever goes wrong is a `Refused`, with one line.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

DENSE, RAGGED = ("bhsd", "bshd"), ("ragged",)
DECODE = ("paged_decode", "mla")
PAGED = (*DECODE, "paged_prefill")
LAYOUTS = (*DENSE, *RAGGED, "paged_decode", "paged_prefill", "mla")
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
}


class Refused(Exception):
    """The kernel did not answer with tensors of the right shapes; holds one line that says why."""


@dataclass
class Answer:
    """What a call gave, in float64. Shapes: out [B, H, M, Dv], lse [B, H, M] or None."""

    out: np.ndarray
    lse: np.ndarray | None


@dataclass(frozen=True)
class Memory:
    """What surrounds the keys: values of unused slots, the order of pages, spare pages."""

    k: float = 0.0
    v: float = 0.0
    seed: int = 1


PLAIN = Memory()


def rounded(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return float64 numbers rounded to a dtype of torch."""
    return torch.from_numpy(np.array(x, order="C")).to(dtype).double().numpy()


class Kernel:
    """The callable behind one face; counts its calls."""

    def __init__(self, fn: Callable, layout: str, dtype: torch.dtype, device: str, page: int):
        self.fn, self.layout, self.dtype, self.device, self.page = fn, layout, dtype, device, page
        self.calls = 0
        self.out_dtype: torch.dtype | None = None
        self.has_lse = False

    @property
    def pages(self) -> bool:
        """Whether keys and values lie in pages, so that each request has its own length."""
        return self.layout in PAGED

    @property
    def lengths(self) -> bool:
        """Whether requests of one call may have other numbers of keys."""
        return self.layout not in DENSE

    def __call__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        lens: tuple[int, ...] | None = None,
        memory: Memory = PLAIN,
        knobs: Mapping[str, Any] | None = None,
        nope: np.ndarray | None = None,
    ) -> Answer:
        """Call the function. nope: MLA's q_nope [B, H, M, 512], zeros if None."""
        self.calls += 1
        tensors = self._tensors(q, k, v, lens or (k.shape[2],) * k.shape[0], memory, nope)
        try:
            result = self.fn(*tensors, **(knobs or {}))
            out, lse = answer_of(result)
            return self._dense(out, lse, (*q.shape[:3], v.shape[-1]))
        except KeyboardInterrupt:
            raise
        except Refused:
            raise
        except BaseException as error:  # a kernel may end in anything, SystemExit too
            raise Refused(_line(error)) from None

    def backward(self, q, k, v, do, lens=None, knobs=None) -> tuple[np.ndarray, ...]:
        """Return dQ, dK, dV of dense layouts through autograd, for a gradient of the output."""
        if self.layout not in DENSE:
            raise Refused(f"gradients of the layout {self.layout} are not read")
        self.calls += 1
        leaves = [x.requires_grad_() for x in self._tensors(q, k, v, lens, Memory(), None)]
        try:
            out, _ = answer_of(self.fn(*leaves, **(knobs or {})))
            do = np.swapaxes(do, 1, 2) if self.layout == "bshd" else do
            grads = torch.autograd.grad(out, leaves, self.tensor(do).to(out.dtype))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Refused(_line(error)) from None
        found = [x.double().cpu().numpy() for x in grads]
        return tuple(x.swapaxes(1, 2) if self.layout == "bshd" else x for x in found)

    def tensor(self, x: np.ndarray, tail: float | None = None) -> torch.Tensor:
        """Return x on the device; with a tail, the storage goes on behind it, filled with that."""
        t = torch.from_numpy(np.array(x, order="C")).to(self.dtype).to(self.device)
        if tail is None or not t.numel():
            return t
        store = torch.full((t.numel() + 4096,), tail, device=self.device).to(self.dtype)
        store[: t.numel()] = t.reshape(-1)
        return store[: t.numel()].view(t.shape)

    def _tensors(self, q, k, v, lens, memory, nope) -> tuple[torch.Tensor, ...]:
        b, h, m, d = q.shape
        fill = (memory.k, memory.v)
        if self.layout == "bhsd":
            return self.tensor(q), self.tensor(k, fill[0]), self.tensor(v, fill[1])
        if self.layout == "bshd":
            q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))
            return self.tensor(q), self.tensor(k, fill[0]), self.tensor(v, fill[1])
        rows = self.tensor(np.swapaxes(q, 1, 2).reshape(b * m, h, d))
        cu_q = self._ints(np.arange(b + 1) * m)
        if self.layout == "ragged":
            flat = [
                np.concatenate([x[r, :, :n].swapaxes(0, 1) for r, n in enumerate(lens)])
                for x in (k, v)
            ]
            cu_k = self._ints(np.cumsum([0, *lens]))
            kv = (self.tensor(x, f) for x, f in zip(flat, fill, strict=True))
            return rows, *kv, cu_q, cu_k
        pools, table = self._pools(k, v, lens, memory)
        ints = (self._ints(table), self._ints(np.array(lens)))
        if self.layout == "paged_decode":
            return self.tensor(q[:, :, 0]), *pools, *ints
        if self.layout == "paged_prefill":
            return rows, *pools, *ints, cu_q
        nope = np.zeros((b, h, 1, v.shape[-1])) if nope is None else nope
        pe, c = pools
        return self.tensor(nope[:, :, 0]), self.tensor(q[:, :, 0]), c[:, :, 0], pe[:, :, 0], *ints

    def _ints(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(x, np.int32)).to(self.device)

    def _pools(self, k, v, lens, memory):
        """Return pools of pages in a random order, and the table; unused entries name a spare."""
        b, h, n, _ = k.shape
        pages = -(-max(n, 1) // self.page)
        order = np.random.default_rng(memory.seed).permutation(b * pages + 5)
        table = order[: b * pages].reshape(b, pages).copy()
        pools = []
        for x, fill in ((k, memory.k), (v, memory.v)):
            pool = np.full((len(order), self.page, h, x.shape[-1]), fill)
            for r in range(b):
                of = np.arange(lens[r])
                pool[table[r, of // self.page], of % self.page] = x[r, :, : lens[r]].swapaxes(0, 1)
            pools.append(self.tensor(pool))
        for r in range(b):
            table[r, -(-lens[r] // self.page) :] = order[b * pages]
        return pools, table

    def _dense(self, out: torch.Tensor, lse: torch.Tensor | None, shape) -> Answer:
        b, h, m, d = shape
        want = {
            "bhsd": (b, h, m, d),
            "bshd": (b, m, h, d),
            "paged_decode": (b, h, d),
            "mla": (b, h, d),
        }.get(self.layout, (b * m, h, d))
        if tuple(out.shape) != want:
            raise Refused(f"the output has shape {tuple(out.shape)}, not {want}")
        if not out.dtype.is_floating_point:
            raise Refused(f"the output is of {out.dtype}, not of a floating-point dtype")
        self.out_dtype = out.dtype
        dense = out.detach().double().cpu().numpy()
        if self.layout == "bshd":
            dense = dense.swapaxes(1, 2)
        elif self.layout in DECODE:
            dense = dense[:, :, None]
        elif self.layout != "bhsd":
            dense = dense.reshape(b, m, h, d).swapaxes(1, 2)
        return Answer(dense, self._lse(lse, b, h, m))

    def _lse(self, lse: torch.Tensor | None, b: int, h: int, m: int) -> np.ndarray | None:
        if lse is None:
            return None
        x, shape = lse.detach().double().cpu().numpy(), tuple(lse.shape)
        self.has_lse = True
        if self.layout in DENSE:
            ways: dict = {(b, h, m): lambda: x, (b, m, h): lambda: x.swapaxes(1, 2)}
        elif self.layout in DECODE:
            ways = {(b, h): lambda: x[:, :, None], (b, h, 1): lambda: x}
        else:
            ways = {
                (b * m, h): lambda: x.reshape(b, m, h).swapaxes(1, 2),
                (h, b * m): lambda: x.reshape(h, b, m).swapaxes(0, 1),
            }
        if shape not in ways:
            raise Refused(
                f"the log-sum-exp has shape {shape}, allowed: {', '.join(map(str, ways))}"
            )
        return ways[shape]()


def _line(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}"[:160]


def answer_of(result: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return output and log-sum-exp of whatever a kernel returned."""
    if hasattr(result, "out") and not torch.is_tensor(result):
        lse = getattr(result, "lse2", getattr(result, "lse", None))
        result = (result.out, lse)
    out, lse = result, None
    if isinstance(result, tuple | list) and result:
        out, lse = result[0], result[1] if len(result) > 1 else None
    with contextlib.suppress(TypeError, ValueError):
        out = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
        lse = torch.from_numpy(lse) if isinstance(lse, np.ndarray) else lse
    if not torch.is_tensor(out):
        raise Refused(f"the function returned {type(out).__name__}, not a tensor")
    return out, lse if torch.is_tensor(lse) else None


def unit(dtype: torch.dtype) -> float:
    """Return the largest relative error of rounding to a dtype."""
    return float(torch.finfo(dtype).eps) / 2


def smallest(dtype: torch.dtype) -> float:
    """Return a number below which a weight may be lost in a dtype."""
    of = {torch.float16: -24, torch.float8_e4m3fn: -9}
    return math.ldexp(1.0, of[dtype]) if dtype in of else 1e-30
