"""Inputs that try a tensor core: random families, and tiles made to tell models apart."""

import torch

FAMILIES = ("normal", "wide", "subnormal", "cancellation")
ADVERSARIAL = ("one huge term", "sign pairs", "specials", "overflow", "random bits")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Exponents, first and one past the last: a and b of any size; a's where products are smallest.
_WIDE = {"fp16": (-13, 14), "bf16": (-60, 60)}
_SMALLEST = {"fp16": (-26, -12), "bf16": (-135, -110)}


def draw_tiles(family: str, dtype: str, n: int, generator):
    """Draw a, b and c of n tiles from one family, on the generator's device.

    Shapes: float16 or bfloat16 [n, 16, 16] and [n, 16, 8], float32 [n, 16, 8].
    """
    a, b, c = (_normal(shape, generator) for shape in _shapes(n))
    if family == "random bits":
        return _random_bits(dtype, n, generator)
    if family in _MAKERS:
        a, b, c = _MAKERS[family](a, b, c, dtype, generator)
    a, b = (x.clamp(-_largest(dtype), _largest(dtype)).to(DTYPES[dtype]) for x in (a, b))
    c = c.float()
    return _sprinkle(a, b, c, generator) if family == "specials" else (a, b, c)


def _shapes(n: int):
    return (n, 16, 16), (n, 16, 8), (n, 16, 8)


def _normal(shape, generator):
    x = torch.randn(shape, generator=generator, device=generator.device)
    return x.double()


def _scaled(x, span, generator):
    """x times a random power of two for each element."""
    exponents = torch.randint(*span, x.shape, generator=generator, device=x.device)
    return x * _power(exponents)


def _power(exponents):
    return ((exponents + 1023) << 52).view(torch.float64)


def _largest(dtype: str) -> float:
    return torch.finfo(DTYPES[dtype]).max


def _chosen(shape, share: float, generator):
    return torch.rand(shape, generator=generator, device=generator.device) < share


def _wide(a, b, c, dtype, generator):
    low, high = _WIDE[dtype]
    span_c = (2 * low, 2 * high)
    spans = (_WIDE[dtype], _WIDE[dtype], span_c)
    return tuple(_scaled(x, s, generator) for x, s in zip((a, b, c), spans, strict=True))


def _subnormal(a, b, c, dtype, generator):
    """Products near and below the smallest float32 for bf16; subnormal factors for both."""
    span_b, span_c = ((-26, -12), (-60, -20)) if dtype == "fp16" else ((-40, -12), (-150, -124))
    spans = (_SMALLEST[dtype], span_b, span_c)
    return tuple(_scaled(x, s, generator) for x, s in zip((a, b, c), spans, strict=True))


def _cancellation(a, b, c, dtype, generator):
    """The products of k and k + 8 cancel but for the last bits of a."""
    a[:, :, 8:] = a[:, :, :8] * (1 + 2.0**-9 * a[:, :, 8:].clamp(-1, 1))
    b[:, 8:] = -b[:, :8]
    return a, b, c * 2.0**-8


def _one_huge_term(a, b, c, dtype, generator):
    """One product, or c, so large that the others are a few units below its last kept place."""
    a, b = a.sign() * (1 + (a.abs() / 8).clamp(max=0.99)), b.sign()
    a, b = (_scaled(x, (-7, 1), generator) for x in (a, b))
    n, device = len(a), a.device
    at = torch.randint(17, (n,), generator=generator, device=device)
    rows, size = torch.arange(n, device=device), 2.0**11
    product = at < 16
    a[rows[product], :, at[product]] = size
    b[rows[product], at[product]] = size
    c = torch.where(product[:, None, None], c, c.sign() * 2.0**22)
    return a, b, c


def _sign_pairs(a, b, c, dtype, generator):
    """Large terms that cancel exactly, in random places, and what was cut beside them."""
    a, b = (_scaled(x, (-12, 2), generator) for x in (a, b))
    order = torch.randperm(16, generator=generator, device=a.device)
    first, second = order[:4], order[4:8]
    a[:, :, first] = a[:, :, first].sign() * 2.0**9
    b[:, first] = b[:, first].sign() * 2.0**4
    a[:, :, second], b[:, second] = a[:, :, first], -b[:, first]
    return a, b, _scaled(c, (-14, 12), generator)


def _overflow(a, b, c, dtype, generator):
    """Sums around 2^128 for bf16, and fp16's largest products beside an enormous c."""
    low = (56, 66) if dtype == "bf16" else (10, 16)
    a, b = (_scaled(x, low, generator) for x in (a, b))
    largest = torch.finfo(torch.float32).max
    near = (c.sign() * largest * (1 - 2.0**-24 * (4 * c.abs()).floor())).clamp(-largest, largest)
    return a, b, torch.where(_chosen(c.shape, 0.5, generator), near, c * 2.0**122)


def _sprinkle(a, b, c, generator):
    """Infinities, NaN and zeros of both signs in a few places."""
    kinds = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0], device=a.device)
    spread = []
    for x, share in ((a, 0.02), (b, 0.02), (c, 0.1)):
        kind = kinds[torch.randint(5, x.shape, generator=generator, device=x.device)]
        spread.append(torch.where(_chosen(x.shape, share, generator), kind.to(x.dtype), x))
    return tuple(spread)


def _random_bits(dtype: str, n: int, generator):
    shape_a, shape_b, shape_c = _shapes(n)
    draw = {"generator": generator, "device": generator.device}
    a, b = (
        torch.randint(-(2**15), 2**15, shape, **draw).short().view(DTYPES[dtype])
        for shape in (shape_a, shape_b)
    )
    return a, b, torch.randint(-(2**31), 2**31, shape_c, **draw).int().view(torch.float32)


_MAKERS = {
    "wide": _wide,
    "subnormal": _subnormal,
    "cancellation": _cancellation,
    "one huge term": _one_huge_term,
    "sign pairs": _sign_pairs,
    "overflow": _overflow,
}
