"""prefill_wgmma: tensor cores on, by Hopper's wgmma, TMA and warpgroups of different work."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from labkernels import formats
from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.registers import fragment_registers
from labkernels.budget.tile_model import StepWork
from labkernels.kernels import decode_ledger, prefill_ledger
from labkernels.kernels.spec import (
    DENOMINATORS,
    TENSOR_CORES,
    Instance,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
    policies,
)

WARPGROUP_ROWS = 64
CONSUMER_REGISTERS = {12: 232, 16: 160}  # of a thread, by the block's warps
OTHER_REGISTERS = 32  # beside a thread's fragments, and one for every 16 channels of Q
TWO_CONSUMERS = 12  # warps of a block, with the producers' four
OCTET = 8  # keys, over which the swizzle repeats: a box of a page is whole octets
FEWEST_ROWS = 128  # of the tile options
ALIGNMENT = 1024  # of the swizzle's pattern: eight lines of 128 bytes

Q_TWICE_BYTES = 226 * 1024  # with less than this beside K and V, the next tile's Q comes early
ITEM_STAGES, ITEM_BYTES, AHEAD_BYTES = 4, 80, 16  # lab's Item, and its Ahead of a consumer


# rows, keys, warps, stages, overlap: the preferred one first, and measured with another overlap too
SHAPES = {
    64: ((192, 128, 16, 4, "between"), (128, 128, 12, 2, "between")),
    128: ((128, 128, 12, 2, "between"), (128, 176, 12, 2, "between")),
    192: ((128, 128, 12, 2, "between"),),
    256: ((128, 80, 12, 2, "between"),),
}


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
    """Tile options that fit the registers; the first shape's with another overlap are the last."""
    del rows  # all alike
    options = (
        PrefillTile(*numbers, 1, walk="backward", overlap=overlap)
        for *numbers, overlap in SHAPES[head_dim]
    )
    # with three consumers ptxas finds no registers for what a policy asks beyond the least, nor
    # for "none"
    plain = policy.exp2 == "mufu" and policy.denominator == "unrounded"
    first, *others = (t for t in options if plain or t.warps == TWO_CONSUMERS)
    overlaps = ("between", "within", *(("none",) if first.warps == TWO_CONSUMERS else ()))
    rest = (replace(first, overlap=each) for each in overlaps if each != first.overlap)
    return (first, *others, *rest)


def space(head_dim: int) -> Iterator[PrefillTile]:
    """Tiles of two or three consumers, keys of whole wgmmas, walking backward, every overlap."""
    del head_dim  # all alike
    for consumers, keys in product((2, 3), (64, 80, 96, 128, 160, 176, 192)):
        for stages, overlap in product((2, 4), ("between", "within", "none")):
            rows, warps = WARPGROUP_ROWS * consumers, 4 * (consumers + 1)
            yield PrefillTile(rows, keys, warps, stages, 1, "backward", overlap)


def work(instance: Instance) -> StepWork:
    """What a step of a block asks of an SM: each consumer reads Q, and all of K and V, by wgmma."""
    tile, consumers = instance.tile, instance.rows // WARPGROUP_ROWS
    width = formats.named(instance.dtype).bytes
    kv_bytes = tile.keys * (instance.head_dim + instance.head_dim_v) * width
    # a warpgroup whose softmax has products of its own behind it counts twice
    halves = 1 if tile.overlap == "none" else 2
    return StepWork(
        flops=prefill_ledger.step_flops(instance),
        instruction="wgmma",
        exps=instance.rows * tile.keys,
        smem_bytes=(consumers + 1) * kv_bytes + instance.rows * instance.head_dim * width,
        lane_ops=prefill_ledger.softmax_ops(instance),
        streams=consumers * halves,
    )


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block, in bytes."""
    tile, width = instance.tile, formats.named(instance.dtype).bytes
    channels = instance.head_dim + instance.head_dim_v
    tile_of_q = decode_ledger.query_line(instance)
    keys = Line(
        "K and V stages",
        tile.stages * tile.keys * channels * width,
        f"{tile.stages} stages x {tile.keys} keys x {channels} x {width} B",
    )
    q_stages = 2 if 2 * tile_of_q.amount + keys.amount <= Q_TWICE_BYTES else 1
    query = replace(
        tile_of_q,
        amount=q_stages * tile_of_q.amount,
        formula=f"{q_stages} stages x {tile_of_q.formula}",
    )
    rings = 2 * tile.stages + q_stages + ITEM_STAGES
    barriers = Line("barriers", (2 * rings + 2) * 8, f"(2 x {rings} stages + 2) x 8 B")
    consumers = instance.rows // WARPGROUP_ROWS
    items = Line(
        "items",
        ITEM_STAGES * (ITEM_BYTES + consumers * AHEAD_BYTES),
        f"{ITEM_STAGES} x ({ITEM_BYTES} + {consumers} x {AHEAD_BYTES}) B",
    )
    verdict = Line("verdict of a split", 4, "1 x 4 B")
    lines = (query, keys, barriers, items, verdict)
    used = sum(line.amount for line in lines)
    padding = Line("padding", -used % ALIGNMENT, f"to a multiple of {ALIGNMENT:,} B")
    return prefill_ledger.smem_ledger(instance, *lines, padding)


def registers(instance: Instance) -> Ledger:
    """Fragments and addresses of a consumer's thread, in registers."""
    rows, keys, head_dim_v = WARPGROUP_ROWS // 4, instance.tile.keys, instance.head_dim_v
    output, scores = fragment_registers(rows, head_dim_v), fragment_registers(rows, keys)
    probabilities = fragment_registers(rows, keys, bits=16)
    # where they fit, those of the next step too: tile.cuh's is_roomy
    others = OTHER_REGISTERS + instance.head_dim // 16
    room = CONSUMER_REGISTERS[instance.tile.warps] - others
    roomy = instance.tile.overlap != "none" and output + scores + 2 * probabilities <= room
    steps = 2 if roomy else 1
    return prefill_ledger.register_ledger(
        instance,
        Line("O accumulator", output, f"{rows} x {head_dim_v} of 32 bits"),
        Line("S, then P", scores, f"{rows} x {keys} of 32 bits"),
        Line("P rounded", steps * probabilities, f"{steps} steps x {rows} x {keys} of 16 bits"),
        Line("m and l", rows // 4, f"of {rows // 8} of the warp's {rows} rows"),
    )


def template(instance: Instance) -> str:
    """`prefill_wgmma::prefill<prefill_wgmma::Tile<T, Dqk, Dvo, ..., Overlap, Paged>, Policy>`."""
    overlap = f"{instance.kernel}::Overlap::{instance.tile.overlap}"
    return prefill_ledger.cpp_instance(instance, overlap)


def declines(q, kv) -> str | None:
    """What of a prefill's tensors the TMA cannot bring, in words, or None."""
    group = q.shape[1] // kv.kv_heads
    if group > FEWEST_ROWS:
        return f"takes up to {FEWEST_ROWS} query heads a KV head, these are {group}"
    for name, tensor in (("q", q), ("k", kv.k), ("v", kv.v)):
        if any(n > 1 and s <= 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)):
            return f"takes positive strides, those of {name} are {tuple(tensor.stride())}"
    return None


def yields(kv) -> str | None:
    """Why another kernel is faster on a prefill's keys, in words, or None."""
    if kv.layout == "paged" and kv.page_size % OCTET:
        return f"has boxes from {OCTET} keys on; pages of {kv.page_size} are copied, by two warps"
    return None


SPEC = KernelSpec(
    name="prefill_wgmma",
    family="prefill",
    language="cuda",
    idea="Warps ask the TMA for tiles; warpgroups multiply, each while another exponentiates.",
    parent="prefill_mma",
    folder=Path(__file__).parent,
    min_arch=90,
    only_arch=True,
    declines=declines,
    yields=yields,
    from_rows=17,  # of 128 or more: up to 16 have a tile of their own in prefill_mma
    policies=policies(TENSOR_CORES, denominators=DENOMINATORS),
    rows=None,
    tiles=tiles,
    smem=smem,
    registers=registers,
    thread_registers=lambda instance: CONSUMER_REGISTERS[instance.tile.warps],
    template=template,
    runner="labkernels.kernels.cuda_prefill_wgmma",
    space=space,
    work=work,
    head_dims=(64, 128, 192, 256),
    kv=("ragged", "paged"),
)
