"""Sizes in bytes and in copies, log2(e) and ln(2), quantities as text, and checks of values."""

import math
import operator
from collections.abc import Iterable

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

KB = 1000
MB = 1000 * KB
GB = 1000 * MB
TB = 1000 * GB

COPY_BYTES = 16  # bytes per copy of a kernel: rows of K, V and Q start at multiples of this
CHUNK = COPY_BYTES // 2  # elements of 16 bits in one copy
SCALES = (2.0**-64, 2.0**64)  # in fp32, products of 2^63 times these neither vanish nor overflow


def require_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise ValueError naming the argument, its value and what is allowed, if it is not allowed."""
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} = {value!r}, allowed: {', '.join(allowed)}")


def require_int(name: str, value: object, *, minimum: int = 0, maximum: int | None = None) -> int:
    """Return the whole number that `value` is, once it is known to lie in the allowed range.

    Raises: ValueError if it is not an integer (a bool is not) or is out of range.
    """
    allowed = f"an integer >= {minimum}" if maximum is None else f"{minimum} to {maximum}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = minimum - 1
    too_large = maximum is not None and number > maximum
    if isinstance(value, bool) or number < minimum or too_large:
        raise ValueError(f"{name} = {value!r}, allowed: {allowed}")
    return number


def require_finite(name: str, value: float) -> float:
    """Return the value, once it is known to be a finite number that is not negative.

    Raises: ValueError for NaN, infinities, negative numbers and what is not a number.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} = {value!r}, allowed: a finite number >= 0")
    return value


def format_bytes(n_bytes: int) -> str:
    """Return a byte count as text, exact and in the binary unit that fits: "69,632 B (68.0 KiB)".

    Raises: ValueError if n_bytes is not an integer >= 0.
    """
    n_bytes = require_int("n_bytes", n_bytes)
    for size, unit in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if n_bytes >= size:
            return f"{n_bytes:,} B ({n_bytes / size:.1f} {unit})"
    return f"{n_bytes:,} B"


def format_rate(bytes_per_s: float) -> str:
    """Return a transfer rate as text in decimal units, three significant digits: "4.36 TB/s".

    Raises: ValueError if bytes_per_s is not a finite number >= 0.
    """
    rate = require_finite("bytes_per_s", bytes_per_s)
    for size, unit in ((TB, "TB/s"), (GB, "GB/s"), (MB, "MB/s"), (KB, "KB/s")):
        # 999.5 GB/s would print as 1000 GB/s, so it moves up to the next unit
        if rate >= 0.9995 * size:
            return f"{_three_digits(rate / size)} {unit}"
    return f"{_three_digits(rate)} B/s"


def format_time(t_s: float) -> str:
    """Return a duration as text, in s, ms or us with three decimals: "0.439 ms".

    Raises: ValueError if t_s is not a finite number >= 0.
    """
    t_s = require_finite("t_s", t_s)
    if t_s >= 1:
        return f"{t_s:.3f} s"
    if t_s >= 1e-4:
        return f"{t_s * 1e3:.3f} ms"
    return f"{t_s * 1e6:.3f} us"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
