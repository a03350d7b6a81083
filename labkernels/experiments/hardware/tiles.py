"""Inputs that test a tensor core: random families, and tiles made to distinguish models."""

from dataclasses import dataclass

import torch

FAMILIES = ("normal", "wide", "subnormal", "cancellation")
ADVERSARIAL = ("one huge term", "sign pairs", "specials", "overflow", "random bits")
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,  # the unit does not read the lowest 13 bits
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "fp32": torch.float32,
}


@dataclass(frozen=True)
class _Exponents:
    """Ranges of exponents, without their ends, for the families that need them."""

    wide: tuple[int, int]  # exponents of a and b
    smallest: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # exponents of a, b and c
    huge: int  # one term is 2^(2 huge); the others are near the last bit that is kept
    large: tuple[int, int]  # exponents of a and b whose products overflow or nearly do


_BF16 = _Exponents((-60, 60), ((-135, -110), (-40, -12), (-150, -124)), 11, (56, 66))
_EXPONENTS = {
    "fp16": _Exponents((-13, 14), ((-26, -12), (-26, -12), (-60, -20)), 11, (10, 16)),
    "bf16": _BF16,
    "tf32": _BF16,
    "e4m3": _Exponents((-6, 8), ((-10, -3), (-10, -3), (-40, -6)), 6, (5, 9)),
    "e5m2": _Exponents((-13, 15), ((-17, -10), (-17, -10), (-50, -20)), 6, (10, 16)),
}


@dataclass(frozen=True)
class Draw:
    """The formats and shapes of n tiles of c + a b, and the random generator."""

    fmt: str
    out: str
    shapes: tuple[tuple[int, int, int], ...]
    generator: torch.Generator

    @property
    def device(self) -> torch.device:
        """The device of the drawn tensors."""
        return self.generator.device

    def normal(self, shape):
        """Draw standard normal numbers in float64."""
        return torch.randn(shape, generator=self.generator, device=self.device).double()

    def scaled(self, x, span):
        """Multiply each element of x by a random power of two."""
        exponents = self.integers(*span, x.shape)
        return x * ((exponents + 1023) << 52).view(torch.float64)

    def integers(self, low: int, high: int, shape):
        """Draw uniform integers, without high."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device)

    def chosen(self, shape, share: float):
        """Draw True for a share of the elements."""
        return torch.rand(shape, generator=self.generator, device=self.device) < share


def draw_tiles(family: str, fmt: str, n: int, generator, *, mnk=(16, 8, 16), out="fp32"):
    """Draw a, b and c of n tiles from one family, on the generator's device.

    Shapes: a [n, M, K] and b [n, K, N] in fmt; c [n, M, N] in float32 or float16.
    """
    m, columns, k = mnk
    draw = Draw(fmt, out, ((n, m, k), (n, k, columns), (n, m, columns)), generator)
    if family == "random bits":
        return tuple(_random_bits(draw, *x) for x in zip((fmt, fmt, out), draw.shapes, strict=True))
    a, b, c = (draw.normal(shape) for shape in draw.shapes)
    if family in _MAKERS:
        a, b, c = _MAKERS[family](a, b, c, draw)
    tiles = (
        x.clamp(-largest(name), largest(name)).to(DTYPES[name])
        for x, name in ((a, fmt), (b, fmt), (c, out))
    )
    return _sprinkle(*tiles, draw) if family == "specials" else tuple(tiles)


def largest(fmt: str) -> float:
    """Return the largest finite number of the dtype that holds a format."""
    return torch.finfo(DTYPES[fmt]).max


def _wide(a, b, c, draw: Draw):
    low, high = _EXPONENTS[draw.fmt].wide
    spans = ((low, high), (low, high), (2 * low, 2 * high))
    return tuple(draw.scaled(x, s) for x, s in zip((a, b, c), spans, strict=True))


def _subnormal(a, b, c, draw: Draw):
    """Scale a, b and c to subnormals; 8-bit exponents have products near the smallest float32."""
    spans = _EXPONENTS[draw.fmt].smallest
    if draw.out == "fp16":
        spans = (*spans[:2], (-26, -12))
    return tuple(draw.scaled(x, s) for x, s in zip((a, b, c), spans, strict=True))


def _cancellation(a, b, c, draw: Draw):
    """Make the products of k and k + K / 2 cancel, except for the last bits of a."""
    half = a.shape[2] // 2
    near = 2.0**-9 if draw.fmt not in ("e4m3", "e5m2") else 2.0**-2
    a[:, :, half:] = a[:, :, :half] * (1 + near * a[:, :, half:].clamp(-1, 1))
    b[:, half:] = -b[:, :half]
    return a, b, c * 2.0**-8


def _one_huge_term(a, b, c, draw: Draw):
    """Make one product, or c, so large that the other terms are near its last kept bit."""
    a, b = a.sign() * (1 + (a.abs() / 8).clamp(max=0.99)), b.sign()
    a, b = (draw.scaled(x, (-7, 1)) for x in (a, b))
    n, k, huge = a.shape[0], a.shape[2], _EXPONENTS[draw.fmt].huge
    at = draw.integers(0, k + 1, (n,))
    rows, product = torch.arange(n, device=a.device), at < k
    a[rows[product], :, at[product]] = 2.0**huge
    b[rows[product], at[product]] = 2.0**huge
    c = torch.where(product[:, None, None], c, c.sign() * 2.0 ** (2 * huge))
    return a, b, c


def _sign_pairs(a, b, c, draw: Draw):
    """Put large terms that cancel exactly in random places, among small terms that are cut."""
    a, b = (draw.scaled(x, (-12, 2)) for x in (a, b))
    k = a.shape[2]
    order = torch.randperm(k, generator=draw.generator, device=a.device)
    first, second = order[: k // 4], order[k // 4 : k // 2]
    a[:, :, first] = a[:, :, first].sign() * 2.0**8
    b[:, first] = b[:, first].sign() * 2.0**5
    a[:, :, second], b[:, second] = a[:, :, first], -b[:, first]
    return a, b, draw.scaled(c, (-14, 12))


def _overflow(a, b, c, draw: Draw):
    """Make sums near or beyond the largest finite result, from large products and a large c."""
    span = (2, 7) if draw.out == "fp16" else _EXPONENTS[draw.fmt].large
    a, b = (draw.scaled(x, span) for x in (a, b))
    top, ulp = largest(draw.out), 2.0**-11 if draw.out == "fp16" else 2.0**-24
    near = c.sign() * top * (1 - ulp * (4 * c.abs()).floor())
    far = c * 2.0 ** (14 if draw.out == "fp16" else 122)
    return a, b, torch.where(draw.chosen(c.shape, 0.5), near, far)


def _sprinkle(a, b, c, draw: Draw):
    """Put infinities, NaN and zeros of both signs in a few places."""
    kinds = torch.tensor(
        [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 0.0], device=a.device
    )
    if draw.fmt == "tf32":
        kinds.view(torch.int32)[5] = 0x7F801FFF  # NaN in float32, infinity without the lowest bits
    spread = []
    for x, share in ((a, 0.02), (b, 0.02), (c, 0.1)):
        kind = kinds[draw.integers(0, 6, x.shape)].to(x.dtype)
        # where() does not support 8-bit floats
        word = {1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()]
        mixed = torch.where(draw.chosen(x.shape, share), kind.view(word), x.view(word))
        spread.append(mixed.view(x.dtype))
    return tuple(spread)


def _random_bits(draw: Draw, fmt: str, shape):
    dtype = DTYPES[fmt]
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    info = torch.iinfo(word)
    return draw.integers(info.min, info.max + 1, shape).to(word).view(dtype)


_MAKERS = {
    "wide": _wide,
    "subnormal": _subnormal,
    "cancellation": _cancellation,
    "one huge term": _one_huge_term,
    "sign pairs": _sign_pairs,
    "overflow": _overflow,
}
