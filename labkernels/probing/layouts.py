"""One face over all layouts: dense float64 arrays in, dense float64 arrays out.

Experiments choose q [B, H, M, D], k [B, Hkv, N, D] and v [B, Hkv, N, Dv] as NumPy arrays; a
`Kernel` rounds them to its dtype, lays them out as the caller's function expects them, calls it,
and brings the output and the log-sum-exp back. Whatever goes wrong is a `Refused`, with one line.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
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
# The axes of rows in queries and outputs: b requests, h heads, m queries of each, t tokens of all.
ROWS = {"bhsd": "bhm", "bshd": "bmh"} | dict.fromkeys(DECODE, "bh")
PACKED = "th"  # of the other layouts
LSE_ROWS = {"bhm": ("bhm", "bmh"), "bmh": ("bhm", "bmh"), "bh": ("bh", "bhm"), "th": ("th", "ht")}


class Refused(Exception):
    """The kernel did not answer with tensors of the right shapes; holds one line that says why."""


Answer = tuple[np.ndarray, np.ndarray | None]  # out [B, H, M, Dv], LSE [B, H, M], in float64


@dataclass(frozen=True)
class Memory:
    """What surrounds the keys: values of unused slots, the order of pages, spare pages."""

    k: float = 0.0
    v: float = 0.0
    seed: int = 1


PLAIN = Memory()


class Kernel:
    """The callable behind one face; counts its calls."""

    def __init__(self, fn: Callable, layout: str, name: str, device: str, page: int):
        self.fn, self.layout, self.format, self.device, self.page = fn, layout, name, device, page
        self.dtype = self.out_dtype = DTYPES[name]
        self.calls = 0
        self.axes = ROWS.get(layout, PACKED)

    def __call__(self, q, k, v, lens=None, memory=PLAIN, knobs=None, nope=None) -> Answer:
        """Call the function. lens: of requests, all keys if None. nope: MLA's q_nope, or zeros.

        Shapes: q [B, H, M, D], k [B, Hkv, N, D], v [B, Hkv, N, Dv], nope [B, H, M, 512].
        """
        self.calls += 1
        tensors = self._tensors(q, k, v, lens or (k.shape[2],) * k.shape[0], memory, nope)
        with refusals():
            out, lse = answer_of(self.fn(*tensors, **(knobs or {})))
            return self._answer(out, lse, *q.shape[:3], v.shape[-1])

    def backward(self, q, k, v, do, lens=None, knobs=None) -> tuple[np.ndarray, ...]:
        """Return dQ, dK, dV of dense layouts through autograd, for a gradient of the output."""
        if self.layout not in DENSE:
            raise Refused(f"gradients of the layout {self.layout} are not read")
        self.calls += 1
        leaves = [x.requires_grad_() for x in self._tensors(q, k, v, lens, PLAIN, None)]
        with refusals():
            out, _ = answer_of(self.fn(*leaves, **(knobs or {})))
            do = self._tensor(_laid(do, self.axes)).to(out.dtype)
            grads = torch.autograd.grad(out, leaves, do)
        return tuple(_laid(x.double().cpu().numpy(), self.axes) for x in grads)

    def _tensor(self, x: np.ndarray, tail: float | None = None) -> torch.Tensor:
        """Return x on the device; with a tail, the storage goes on behind it, filled with that."""
        t = torch.from_numpy(np.array(x, order="C")).to(self.dtype).to(self.device)
        if tail is None or not t.numel():
            return t
        store = torch.full((t.numel() + 4096,), tail, device=self.device).to(self.dtype)
        store[: t.numel()] = t.reshape(-1)
        return store[: t.numel()].view(t.shape)

    def _ints(self, x) -> torch.Tensor:
        return torch.from_numpy(np.array(x, np.int32)).to(self.device)

    def _tensors(self, q, k, v, lens, memory, nope) -> tuple[torch.Tensor, ...]:
        """Return the function's arguments."""
        rows, surroundings = self._tensor(_laid(q, self.axes)), (memory.k, memory.v)
        if self.layout in DENSE:
            laid = (_laid(x, self.axes) for x in (k, v))
            return rows, *(self._tensor(x, y) for x, y in zip(laid, surroundings, strict=True))
        cu_q = self._ints(np.arange(len(q) + 1) * q.shape[2])
        if self.layout in RAGGED:
            flat = (np.concatenate([x[r, :, :n] for r, n in enumerate(lens)], 1) for x in (k, v))
            flat = (x.swapaxes(0, 1) for x in flat)
            kv = (self._tensor(x, y) for x, y in zip(flat, surroundings, strict=True))
            return rows, *kv, cu_q, self._ints(np.cumsum([0, *lens]))
        pools, table = self._pools(k, v, lens, memory)
        ints = (self._ints(table), self._ints(lens))
        if self.layout == "paged_decode":
            return rows, *pools, *ints
        if self.layout == "paged_prefill":
            return rows, *pools, *ints, cu_q
        nope = np.zeros((*q.shape[:3], v.shape[-1])) if nope is None else nope
        pe, latent = (x[:, :, 0] for x in pools)
        return self._tensor(_laid(nope, self.axes)), rows, latent, pe, *ints

    def _pools(self, k, v, lens, memory):
        """Return pools of pages in a random order, and the table; unused entries name a spare."""
        b, h, n, _ = k.shape
        pages = -(-max(n, 1) // self.page)
        order = np.random.default_rng(memory.seed).permutation(b * pages + 5)
        table = order[: b * pages].reshape(b, pages).copy()
        shape, fills = (len(order), self.page, h), (memory.k, memory.v)
        pools = [np.full((*shape, x.shape[-1]), y) for x, y in zip((k, v), fills, strict=True)]
        for r, length in enumerate(lens):
            page, slot = np.divmod(np.arange(length), self.page)
            for pool, x in zip(pools, (k, v), strict=True):
                pool[table[r, page], slot] = x[r, :, :length].swapaxes(0, 1)
            table[r, -(-length // self.page) :] = order[b * pages]
        return [self._tensor(pool) for pool in pools], table

    def _answer(self, out: torch.Tensor, lse: torch.Tensor | None, b, h, m, d) -> Answer:
        """Return what the function gave in dense arrays; Refused for other shapes than asked."""
        size = {"b": b, "h": h, "m": m, "t": b * m}
        want = (*(size[axis] for axis in self.axes), d)
        if tuple(out.shape) != want:
            raise Refused(f"the output has shape {tuple(out.shape)}, not {want}")
        if not out.dtype.is_floating_point:
            raise Refused(f"the output is of {out.dtype}, not of a floating-point dtype")
        self.out_dtype = out.dtype
        dense = _dense(out, self.axes, size)
        if lse is None:
            return dense, None
        ways = {axes: tuple(size[axis] for axis in axes) for axes in LSE_ROWS[self.axes]}
        for axes, shape in ways.items():
            if shape == tuple(lse.shape):
                return dense, _dense(lse, axes, size)
        listed = ", ".join(map(str, ways.values()))
        raise Refused(f"the log-sum-exp has shape {tuple(lse.shape)}, allowed: {listed}")


def _laid(x: np.ndarray, axes: str) -> np.ndarray:
    """Return dense rows [B, H, M, D] laid out in these axes; twice, dense layouts are as before."""
    b, h, m, d = x.shape
    turned = np.einsum(f"bhm...->{_apart(axes)}...", x)
    return turned.reshape(*({"b": b, "h": h, "m": m, "t": b * m}[axis] for axis in axes), d)


def _dense(x: torch.Tensor, axes: str, size: Mapping[str, int]) -> np.ndarray:
    """Return rows of these axes, in float64, as [B, H, M] and what follows."""
    shape = [size[axis] for axis in _apart(axes)]
    rows = x.detach().double().cpu().numpy().reshape(*shape, *x.shape[len(axes) :])
    return np.einsum(f"{_apart(axes)}...->bhm...", rows)


def _apart(axes: str) -> str:
    """Return axes in which tokens are requests and queries, and one query is an axis."""
    apart = axes.replace("t", "bm")
    return apart if "m" in apart else f"{apart}m"


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Make a refusal of one line of whatever a kernel ends in, SystemExit too."""
    try:
        yield
    except (KeyboardInterrupt, Refused):
        raise
    except BaseException as error:
        line = next(iter(str(error).strip().splitlines()), "")
        raise Refused(f"{type(error).__name__}: {line}"[:160]) from None


def answer_of(result: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return output and log-sum-exp of whatever a kernel returned."""
    if hasattr(result, "out") and not torch.is_tensor(result):
        result = (result.out, getattr(result, "lse2", getattr(result, "lse", None)))
    parts = [*result[:2], None] if isinstance(result, tuple | list) and result else [result, None]
    with contextlib.suppress(TypeError, ValueError):
        parts = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in parts]
    out, lse, *_ = parts
    if not torch.is_tensor(out):
        raise Refused(f"the function returned {type(out).__name__}, not a tensor")
    return out, lse if torch.is_tensor(lse) else None


def rounded(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return float64 numbers rounded to a dtype of torch."""
    return torch.from_numpy(np.array(x, order="C")).to(dtype).double().numpy()


def unit(dtype: torch.dtype) -> float:
    """Return the largest relative error of rounding to a dtype."""
    return float(torch.finfo(dtype).eps) / 2


def smallest(dtype: torch.dtype) -> float:
    """Return a number below which a weight may be lost in a dtype: its smallest, or 1e-30."""
    info = torch.finfo(dtype)
    return max(info.smallest_normal * info.eps, 1e-30)
