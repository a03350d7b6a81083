"""Ledgers of kernels by others for 16-bit elements, from their sources: bytes and registers."""

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.quantity import Quantity, number, symbol
from labkernels.budget.registers import fragment
from labkernels.units import require_int

POINTER_BYTES = 8
VECTOR_BYTES = 16
STAGES = 2
MAX_REGISTERS = 255  # per thread; ptxas spills what does not fit
# What ptxas for sm_80 reports above the other lines: 20 of 180 (64 x 64, 128 channels, four warps),
# 26 of 250 (128 x 64, 64 channels, four warps) and 16 of 240 (128 x 64, 256 channels, eight warps);
# the first two from issue 1630 of flash-attention, the third from issue 340.
_FA2_ADDRESSES = 21
_K_STEP = 16  # channels of one tensor-core product
# Rows, keys and warps of FlashAttention-2's forward tiles by head_dim, without dropout.
FA2_TILES = {32: (128, 128, 4), 64: (128, 128, 4), 96: (128, 64, 4), 128: (128, 64, 4)} | {
    192: (128, 64, 8),
    256: (128, 64, 8),
}
WIDTH = symbol("b", 2, "bytes of an element", "B")  # fp16 or bf16


def flashinfer_decode(*, head_dim: int, group: int) -> Ledger:
    """Return bytes per block of FlashInfer's CUDA-core paged decode, for groups of two or more.

    Raises: ValueError if a size is not an integer in range.
    Source: FlashInfer v0.2.0, include/flashinfer/attention/decode.cuh.
    """
    # below 32 dimensions a row does not fill the vector loads from which the lanes are counted
    require_int("head_dim", head_dim, minimum=32)
    # a group of one loads more rows per lane, by another formula
    require_int("group", group, minimum=2)
    lanes = head_dim // max(VECTOR_BYTES // 2, head_dim // 32)
    threads = max(128, lanes * group)
    heads, key_groups = symbol("g", group, "heads of a group", "heads"), threads // (lanes * group)
    keys = heads * key_groups
    of_stages = symbol("d", STAGES, "stages: the depth of the pipeline", "stages")
    channels = _channels(head_dim)
    lines = (
        Line("K stages", of_stages * keys * channels * WIDTH),
        Line("V stages", of_stages * keys * channels * WIDTH),
        Line(
            "page offsets",
            number(threads, "threads") * number(POINTER_BYTES, "B"),
            shares="tail",
        ),
        Line(
            "merge of m and l",
            2 * heads * key_groups * number(4, "B"),
            note="after the loop",
            shares="tail",
        ),
    )
    return Ledger("FlashInfer v0.2.0 decode, CUDA cores", "bytes", lines)


def flashinfer_prefill(*, cta_q: int, cta_kv: int, head_dim: int, warps_kv: int = 1) -> Ledger:
    """Return the bytes per block of FlashInfer's tensor-core (fa2) kernel, which also decodes.

    Raises: ValueError if a size is not an integer >= 1.
    Source: FlashInfer v0.2.0, include/flashinfer/attention/prefill.cuh.
    """
    require_int("warps_kv", warps_kv, minimum=1)
    lines = list(_q_k_v(cta_q, cta_kv, head_dim, shares="tiles", phase="loop"))
    if warps_kv > 1:
        warps = symbol("W", warps_kv, "warps that split the keys", "warps")
        of_o = warps * _rows(cta_q) * _channels(head_dim) * number(4, "B")
        lines.append(Line("merge of O", of_o, "after the loop", "tiles", "merge"))
    return Ledger("FlashInfer v0.2.0 prefill, tensor cores", "bytes", tuple(lines))


def flash_attention_2(*, block_m: int, block_n: int, head_dim: int) -> Ledger:
    """Return the bytes per block of FlashAttention-2's forward kernel.

    Raises: ValueError if a size is not an integer >= 1.
    Source: FlashAttention, csrc/flash_attn/src/kernel_traits.h, kSmemSize.
    """
    return Ledger("FlashAttention-2 forward", "bytes", _q_k_v(block_m, block_n, head_dim))


def flash_attention_2_registers(
    *, block_m: int, block_n: int, head_dim: int, warps: int = 4
) -> Ledger:
    """Return the registers per thread that FlashAttention-2's forward kernel needs.

    A need above MAX_REGISTERS is spilled.
    Error: 5 registers on the three reports without spills, whose mean rest is the last line.
    Raises: ValueError if a size is not an integer >= 1 or a fragment does not divide evenly.
    Source: csrc/flash_attn/src/flash_fwd_kernel.h, acc_s, acc_o and rP; gemm in utils.h loads the
    fragments of Q and K one step ahead; softmax.h, row_max, row_sum and the factors of a step.

    >>> flash_attention_2_registers(block_m=64, block_n=64, head_dim=128).total  # ptxas: 180
    181
    """
    rows, channels = _rows(block_m), _channels(head_dim)
    keys = symbol("T", require_int("block_n", block_n, minimum=1), "keys of a step", "keys")
    of_warps = symbol("W", require_int("warps", warps, minimum=1), "warps of a block", "warps")
    lines = (
        Line("O, sums", fragment(rows, channels, warps=of_warps)),
        Line("S, sums", fragment(rows, keys, warps=of_warps)),
        Line("P, 16 bits", fragment(rows, keys, bits=16, warps=of_warps)),
        Line("Q, two steps", 2 * fragment(rows, _K_STEP, bits=16, warps=of_warps)),
        Line("K, two steps", 2 * fragment(keys, _K_STEP, bits=16)),
        Line("maxima, sums, factors", 4 * rows / (8 * of_warps), "a thread has 2 of 16 rows"),
        Line("addresses", _FA2_ADDRESSES, "from three reports of ptxas"),
    )
    return Ledger("FlashAttention-2 forward", "registers", lines)


def _q_k_v(rows: int, keys: int, head_dim: int, **where: str) -> tuple[Line, ...]:
    of_keys = symbol("T", require_int("keys", keys, minimum=1), "keys of a step", "keys")
    tiles = {"Q": _rows(rows), "K": of_keys, "V": of_keys}
    channels = _channels(head_dim)
    return tuple(Line(name, size * channels * WIDTH, **where) for name, size in tiles.items())


def _rows(rows: int) -> Quantity:
    return symbol("R", require_int("rows", rows, minimum=1), "query rows", "rows")


def _channels(head_dim: int) -> Quantity:
    require_int("head_dim", head_dim, minimum=1)
    return symbol("D", head_dim, "channels of a head", "channels")
