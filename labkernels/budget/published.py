"""Shared-memory ledgers of kernels by others for 16-bit elements, from their sources."""

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.quantity import Quantity, number, symbol
from labkernels.units import require_int

POINTER_BYTES = 8
VECTOR_BYTES = 16
STAGES = 2
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
