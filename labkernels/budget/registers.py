"""Registers per thread, from the matrix fragments that a thread keeps."""

from labkernels.budget.quantity import Quantity, number, quantity
from labkernels.units import require_int

WARP_THREADS = 32


def fragment_registers(rows: int, cols: int, *, bits: int = 32, threads: int = WARP_THREADS) -> int:
    """Return registers per thread of a rows x cols fragment that `threads` threads share.

    An m16n8 fp32 accumulator takes 4, a 16 x 16 operand of 16-bit numbers 4, a 16 x 8 one 2.
    Raises: ValueError if a size is not an integer >= 1, or the fragment does not divide evenly.

    >>> fragment_registers(64, 128, threads=128)  # fp32 sums of a warpgroup
    64
    """
    for name, value in (("rows", rows), ("cols", cols), ("threads", threads)):
        require_int(name, value, minimum=1)
    if bits not in (8, 16, 32, 64):
        raise ValueError(f"bits = {bits!r}, allowed: 8, 16, 32, 64")
    whole, rest = divmod(rows * cols * bits, 32 * threads)
    if rest:
        allowed = f"a multiple of {32 * threads} bits, whole registers of {threads} threads"
        raise ValueError(f"rows * cols * bits = {rows * cols * bits}, allowed: {allowed}")
    return whole


def fragment(
    rows: Quantity | int, columns: Quantity | int, *, bits: int = 32, warps: Quantity | int = 1
) -> Quantity:
    """Return `fragment_registers` with its formula, for a fragment that `warps` warps hold.

    >>> fragment(16, 128).words, fragment(16, 128, bits=16).value
    ('16 x 128 / 32 lanes', 32)
    """
    rows, columns, threads = quantity(rows), quantity(columns), lanes_of(warps)
    held = fragment_registers(rows.value, columns.value, bits=bits, threads=threads.value)
    per_register = 32 // bits
    made = rows * columns / (threads if per_register == 1 else per_register * threads)
    assert made.value == held  # the quantity has the formula of the registers
    return made


def lanes_of(warps: Quantity | int) -> Quantity:
    """Return the threads of `warps` warps; one warp has no factor."""
    warps = quantity(warps)
    return number(WARP_THREADS, "lanes") if warps.value == 1 else warps * WARP_THREADS


def reported_register_formula(cta_q: int, cta_kv: int, head_dim: int, threads: int) -> float:
    """Return accumulator registers per thread if the block's threads share both S and O.

    The formula holds if the warps tile the queries. It is too small if the warps split the keys:
    every warp then keeps a whole O, which `kv_split_register_formula` counts.
    Raises: ValueError if a size is not an integer >= 1.
    Source: reported in flashinfer issue 703.

    >>> reported_register_formula(64, 64, 128, 128)
    96.0
    """
    for name, value in (("cta_q", cta_q), ("cta_kv", cta_kv), ("head_dim", head_dim)):
        require_int(name, value, minimum=1)
    require_int("threads", threads, minimum=1)
    return (cta_q * cta_kv + cta_q * head_dim) / threads


def kv_split_register_formula(rows: int, head_dim: int, keys_per_warp: int) -> int:
    """Return accumulator registers per thread of a warp with a whole O and the S of its keys.

    Raises: ValueError if a size is not an integer >= 1, or a fragment does not divide evenly.
    Source: derived here; equals 8 NUM_MMA_D + 8 NUM_MMA_KV of FlashInfer's fa2 kernel traits.

    >>> kv_split_register_formula(16, 128, 32)  # O takes 64, S takes 16
    80
    """
    return fragment_registers(rows, head_dim) + fragment_registers(rows, keys_per_warp)
