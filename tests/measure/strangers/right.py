"""Right implementations, written without a look at ours.

They differ in the order of keys, the splits, the maximum and the denominator. A verdict once called
an output of each of the last ones a bug; `test_false_alarms.py` has the calls.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels.measure.mistakes.attention import Call, exact, grouped, hidden_of

LOG2_E = math.log2(math.e)


def rounded_once(call: Call) -> torch.Tensor:
    """Compute in float64 and round once."""
    return exact(call)[0].to(call.q.dtype)


def rounded_twice(call: Call) -> torch.Tensor:
    """Compute in float64, and round to float32 and then to the output's format."""
    return exact(call)[0].float().to(call.q.dtype)


@dataclass(frozen=True)
class Flash:
    """An online softmax over blocks of keys in float32.

    order: the order of the blocks. p: the format that P is rounded to, "input" for q's format.
    rounded_sum: the denominator is the sum of rounded weights. lag: log2 units that the largest
    score may exceed the running maximum by before that moves. start: log2 units that are subtracted
    from a new maximum, so weights exceed 1. splits: parts of the keys that are merged at the end.
    natural: exp replaces exp2. poly3: exp2 is a cubic. reciprocal: the output is multiplied by
    1 / l. tf32: the operands of products are truncated to tf32.
    """

    block: int = 64
    order: str = "forward"
    p: str = "input"
    rounded_sum: bool = False
    lag: float = 0.0
    start: float = 0.0
    splits: int = 1
    natural: bool = False
    poly3: bool = False
    reciprocal: bool = False
    tf32: bool = False

    def __call__(self, call: Call) -> torch.Tensor:
        q, k, v = grouped(call, torch.float32)
        hidden, n = hidden_of(call), k.shape[2]
        parts = []
        for i in range(self.splits):
            first, last = i * n // self.splits, (i + 1) * n // self.splits
            parts.append(self._part(call, q, k, v, hidden, first, last))
        m = torch.stack([part[0] for part in parts]).amax(0)
        shift = m.masked_fill(m == -math.inf, 0.0)
        weights = [self._exp(part[0] - shift) for part in parts]
        l = sum(w * part[1] for w, part in zip(weights, parts, strict=True))
        o = sum(w * part[2] for w, part in zip(weights, parts, strict=True))
        l = torch.where(l == 0, torch.ones_like(l), l)
        return (o * (1 / l) if self.reciprocal else o / l).to(call.q.dtype)

    def _part(self, call, q, k, v, hidden, first, last):
        m = torch.full((*q.shape[:3], 1), -math.inf)
        l, o = torch.zeros_like(m), torch.zeros(*q.shape[:3], v.shape[-1])
        scale = torch.tensor(call.scale * (1 if self.natural else LOG2_E), dtype=torch.float32)
        blocks = [slice(b, min(b + self.block, last)) for b in range(first, last, self.block)]
        if self.order == "backward":
            blocks = blocks[::-1]
        elif self.order == "shuffled":
            mixed = torch.randperm(
                len(blocks), generator=torch.Generator().manual_seed(len(blocks))
            )
            blocks = [blocks[i] for i in mixed.tolist()]
        p_dtype = {"input": call.q.dtype}.get(self.p) or getattr(torch, self.p)
        for keys in blocks:
            s = self._cut(q) @ self._cut(k[:, :, keys]).mT * scale
            s = s.masked_fill(hidden[:, keys], -math.inf)
            top = torch.maximum(m, s.amax(-1, keepdim=True))
            moved = ~(top - m <= self.lag) | (m == -math.inf)
            new = torch.where(moved, top - self.start, m)
            new = torch.where(top == -math.inf, torch.full_like(new, -math.inf), new)
            shift = new.masked_fill(new == -math.inf, 0.0)
            p, rescale = self._exp(s - shift), self._exp(m - shift)
            used = p.to(p_dtype).float()
            l = l * rescale + (used if self.rounded_sum else p).sum(-1, keepdim=True)
            o = o * rescale + self._cut(used) @ self._cut(v[:, :, keys])
            m = new
        return m, l, o

    def _exp(self, x):
        if self.natural:
            return torch.exp(x)
        if not self.poly3:
            return torch.exp2(x)
        whole = torch.floor(x.clamp(min=-127.0))
        part = x.clamp(min=-127.0) - whole
        cubic = ((0.0771190897 * part + 0.2275643945) * part + 0.6951461434) * part + 1
        return torch.where(x < -126, torch.zeros_like(x), torch.ldexp(cubic, whole.int()))

    def _cut(self, x):
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32) if self.tf32 else x


def eager_fp32(call: Call) -> torch.Tensor:
    """Compute scores and softmax in float32, round the normalised P, and sum P V in float32."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf)
    p = torch.softmax(s, -1).nan_to_num().to(call.q.dtype).float()
    return (p @ v).to(call.q.dtype)


def all_fp32(call: Call) -> torch.Tensor:
    """Compute eager attention in float32, and round the output."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf)
    return (torch.softmax(s, -1).nan_to_num() @ v).to(call.q.dtype)


def key_by_key(call: Call) -> torch.Tensor:
    """Add one key after the other in float32, as a naive CUDA kernel does."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    o, l = torch.zeros(*q.shape[:3], v.shape[-1]), torch.zeros(*q.shape[:3], 1)
    for j in range(k.shape[2]):
        o = o + p[..., j, None] * v[:, :, None, j]
        l = l + p[..., j, None]
    return (o / l).to(call.q.dtype)


def _sdpa(backend: str) -> Callable[[Call], torch.Tensor]:
    def run(call: Call) -> torch.Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        k, v = (x.repeat_interleave(call.group, 1) for x in (call.k, call.v))
        square = call.q.shape[2] == k.shape[2]
        mask = None if square or not call.causal else ~hidden_of(call)
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(
                call.q, k, v, attn_mask=mask, scale=call.scale, is_causal=call.causal and square
            )

    return run


def _scores(
    call: Call, keys: slice = slice(None), factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores times a factor, -inf where hidden, and V, of some keys, in float32."""
    q, k, v = grouped(call, torch.float32)
    scale = torch.tensor(call.scale * factor, dtype=torch.float32)
    s = q @ k[:, :, keys].mT * scale
    return s.masked_fill(hidden_of(call)[:, keys], -math.inf), v[:, :, keys]


def _finite(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _top(s):
    return _finite(s.amax(-1, keepdim=True))


def _stored(p, call: Call):
    """Return weights in the format in which the second product takes them."""
    return p.to(call.q.dtype).float()


def _divided(o, l, call: Call) -> torch.Tensor:
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _relative_to(reference: Callable[[torch.Tensor], torch.Tensor]):
    """Return attention whose weights are relative to reference(scores), with P stored."""

    def run(call: Call) -> torch.Tensor:
        s, v = _scores(call)
        p = torch.exp(s - reference(s))
        return _divided(_stored(p, call) @ v, p.sum(-1, keepdim=True), call)

    return run


def _second_largest(s):
    top = torch.topk(s, min(2, s.shape[-1]), -1).values
    return torch.maximum(top[..., -1:], top[..., :1] - 7)


def _median(s):
    n = (s > -math.inf).sum(-1, keepdim=True)
    middle = s.sort(-1, descending=True).values.gather(-1, (n - 1) // 2)
    return torch.maximum(middle, s.amax(-1, keepdim=True) - 6)


def kept_normalised(call: Call) -> torch.Tensor:
    """Keep the output a mean at every step, moved toward each block of 32 keys by its share."""
    s, v = _scores(call)
    lse = torch.full((*s.shape[:3], 1), -math.inf)
    o = torch.zeros(*s.shape[:3], v.shape[-1])
    for first in range(0, s.shape[-1], 32):
        part = s[..., first : first + 32]
        m = _top(part)
        p = torch.exp(part - m)
        new = torch.logaddexp(lse, m + p.sum(-1, keepdim=True).log())
        mean = _stored(p, call) @ v[:, :, first : first + 32]
        o = torch.exp(lse - _finite(new)) * o + torch.exp(m - _finite(new)) * mean
        lse = new
    return o.to(call.q.dtype)


def whole_maxima(call: Call) -> torch.Tensor:
    """Round the maximum up to a whole power of two, so that rescales are exact."""
    s, v = _scores(call)
    s = s * LOG2_E
    p = torch.exp2(s - _top(s).ceil())
    return _divided(_stored(p, call) @ v, p.sum(-1, keepdim=True), call)


def strided_splits(call: Call, n: int = 4) -> torch.Tensor:
    """Give split i the keys i, i + n, i + 2 n, as warps that take keys in turn do."""
    s, v = _scores(call)
    top = _top(s)
    o, l = 0.0, 0.0
    for i in range(min(n, s.shape[-1])):
        part, values = s[..., i::n], v[:, :, i::n]
        m = _top(part)
        p, back = torch.exp(part - m), torch.exp(m - top)
        o = o + back * (_stored(p, call) @ values)
        l = l + back * p.sum(-1, keepdim=True)
    return _divided(o, l, call)


def ring(call: Call) -> torch.Tensor:
    """Merge the divided outputs of three devices by a share of their differences."""
    n = call.k.shape[2]
    out, lse = None, None
    for i in (1, 2, 0):
        s, v = _scores(call, slice(i * n // 3, (i + 1) * n // 3), LOG2_E)
        m = s.amax(-1, keepdim=True)
        p = torch.exp2(s - _finite(m))
        l = p.sum(-1, keepdim=True)
        new = _stored(p, call) @ v / l.clamp(min=1e-37)
        new_lse = (m + torch.log2(l)) / LOG2_E
        if out is None:
            out, lse = new, new_lse
            continue
        both = torch.logaddexp(lse, new_lse)
        out = out + torch.exp(new_lse - _finite(both)) * (new - out)
        lse = both
    return out.to(call.q.dtype)


def centred_values(call: Call) -> torch.Tensor:
    """Take the mean of V off before the products, and add it to the quotient."""
    q, k, v = grouped(call, torch.float32)
    s = ((q * float(call.scale)) @ k.mT).masked_fill(hidden_of(call), -math.inf)
    mean = v.mean(2, keepdim=True)
    used = _stored(torch.exp(s - _top(s)), call)
    return (used @ (v - mean) / used.sum(-1, keepdim=True) + mean).to(call.q.dtype)


def rotated_values(call: Call, size: int = 44) -> torch.Tensor:
    """Turn V by a rotation in float64, and turn the sum over tiles back."""
    s, v = _scores(call)
    n = v.shape[-1]
    noise = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    turn = torch.linalg.qr(noise)[0]
    v = (v.double() @ turn).float()
    m = torch.full((*s.shape[:3], 1), -math.inf)
    l, o = torch.zeros_like(m), torch.zeros(*s.shape[:3], n)
    for keys in torch.arange(s.shape[-1]).split(size):
        part = s[..., keys].amax(-1, keepdim=True)
        p = torch.exp(s[..., keys] - _finite(part))
        new = torch.maximum(m, part)
        old, come = torch.exp(m - _finite(new)), torch.exp(part - _finite(new))
        l = old * l + come * p.sum(-1, keepdim=True)
        o = old * o + come * (_stored(p, call) @ v[:, :, keys])
        m = new
    return _divided(o.double() @ turn.T, l, call)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "float64, rounded once": rounded_once,
    "float64, rounded twice": rounded_twice,
    "flash, blocks of 64": Flash(),
    "flash, blocks of 128 from the last": Flash(block=128, order="backward"),
    "flash, blocks of 16 shuffled, l of rounded P": Flash(16, "shuffled", rounded_sum=True),
    "flash, lag of 8": Flash(block=32, lag=8.0),
    "flash, lag of 8 from the last, l of rounded P": Flash(
        block=64, order="backward", lag=8.0, rounded_sum=True
    ),
    "flash, weights up to 2^4.5": Flash(start=4.5),
    "flash, 4 splits": Flash(block=32, splits=4),
    "flash, 7 splits, natural exp": Flash(block=16, splits=7, natural=True, rounded_sum=True),
    "flash, P in fp32": Flash(p="float32"),
    "flash, cubic exp2": Flash(block=128, poly3=True, reciprocal=True),
    "eager, P normalised": eager_fp32,
    "eager, all in fp32": all_fp32,
    "key by key in fp32": key_by_key,
    "torch math": _sdpa("MATH"),
    "torch flash": _sdpa("FLASH_ATTENTION"),
    "output kept normalised": kept_normalised,
    "maxima that are whole": whole_maxima,
    "splits that take keys in turn": strided_splits,
    "a ring of three": ring,
    "V less its mean, which is added back": centred_values,
    "the second largest score for a reference": _relative_to(_second_largest),
    "the median for a reference": _relative_to(_median),
    "V turned, the output turned back": rotated_values,
}
"""By name: functions that return a call's output in the dtype of q."""
