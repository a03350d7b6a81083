"""`labkernels budget`: ledgers, compiler, occupancy, formulas and waves of one kernel."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from labkernels import hardware
from labkernels.budget import compiler, published, roofline
from labkernels.budget import registers as formulas
from labkernels.cli.options import (
    DEFAULT_HEAD_DIM,
    DONE,
    add_shape,
    add_tokens,
    head_dim_of,
    kv_dtype_of,
    variant_of,
    workload_of,
)
from labkernels.hardware import Gpu
from labkernels.units import format_bytes, format_time, require_choice
from labkernels.variant import FULL

if TYPE_CHECKING:
    from labkernels.budget.compiler import Prediction
    from labkernels.kernels.call import Plan
    from labkernels.kernels.kernel import Instance
    from labkernels.kernels.workload import Workload
    from labkernels.measure.resources import Resources
    from labkernels.variant import AttentionVariant

HELP = "where a kernel's bytes and registers go"
DESCRIPTION = """\
Show what a CUDA kernel takes: every line of shared memory and registers, what the
compiler says, the blocks that an SM holds, and, for a workload, its grid and waves. With a window,
a soft cap, sinks, slopes or a mask, the last table has the same without them. Needs no GPU.

examples:
  labkernels budget decode_mma --head-dim 128 --gpu h200
  labkernels budget decode_fma --heads 64/8 --arch sm_80   compile for another architecture
  labkernels budget decode_mma --batch 57 --kv-len 8192 with grid, waves and expected time
  labkernels budget prefill_wgmma --batch 4 --kv-len 4096 --heads 16/16 --causal
  labkernels budget prefill_wgmma --causal --window 1023 --head-dim 256 --batch 2 --kv-len 8192
                              Gemma 3's window of 1,024: a token's own key and 1,023 before it
  labkernels budget decode_mma --window 127 --sinks --heads 64/8 --head-dim 64 --gpu h200
                              GPT-OSS: 128 keys, and a sink of each head
  labkernels budget decode_mma --kv-dtype e4m3 --batch 57 --kv-len 8192    a cache of 8 bits
  labkernels budget mla_wgmma --batch 64 --kv-len 4096 --heads 128/1
  labkernels budget decode_mma --tile 4x32x2x1          another tile; a wrong one lists them all
  labkernels budget --published fa2 --head-dim 64       FlashAttention-2's forward kernel
  labkernels budget --published fa2 --head-dim 128 --tile 64x64x4   rows x keys x warps
"""
DEFAULT_GPU = "h200"
PUBLISHED = ("fa2", "flashinfer-decode", "flashinfer-prefill")
_SPILLS = {
    compiler.FITS: "",
    compiler.EDGE: " (at the edge: ptxas would take {need})",
    compiler.SPILLS: " (a few may spill: ptxas would take {need})",
}


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the kernel, the GPU, and perhaps a workload."""
    add_shape(sub, optional=True)
    sub.add_argument("--published", choices=PUBLISHED, help="a kernel by others, from its source")
    sub.add_argument("--gpu", default="", help="h200, a100, ... (default h200, or one of --arch)")
    sub.add_argument("--arch", default="", help="architecture to compile for, such as sm_80")
    sub.add_argument("--batch", type=int, default=0, help="requests, for grid and waves")
    sub.add_argument("--kv-len", type=int, default=0, help="keys per request, with --batch")
    add_tokens(sub)


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    from labkernels.measure import resources

    if bool(options.kernel) == bool(options.published):
        raise ValueError(f"kernel = {options.kernel!r}, allowed: a name, or --published and none")
    group = _group(options)
    if options.published:
        if (variant := variant_of(options)).features or options.kv_dtype:
            asked = options.kv_dtype or variant.label
            raise ValueError(f"--published {options.published} with {asked}, allowed: none")
        print(_of_others(options, group))
        return DONE
    spec = resources.find(options.kernel)
    variant = variant_of(options, spec)
    known = _resources(options, group, variant)
    workload = workload_of(spec, options) if options.kv_len else None
    print(text(known, workload))
    if variant.features:
        print(f"\n{_costs(_resources(options, group, FULL), known, workload)}")
    return DONE


def _group(options: argparse.Namespace) -> int:
    if bool(options.batch) != bool(options.kv_len):
        raise ValueError(
            f"batch = {options.batch} and kv_len = {options.kv_len}, allowed: both or neither"
        )
    q_heads, kv_heads = options.heads
    if kv_heads < 1 or q_heads < 1 or q_heads % kv_heads:
        raise ValueError(f"heads = {q_heads}/{kv_heads}, allowed: a multiple of the KV heads")
    return q_heads // kv_heads


def _of_others(options: argparse.Namespace, group: int) -> str:
    """Return the ledgers of a published kernel, and what ptxas makes of FlashAttention-2."""
    head_dim = DEFAULT_HEAD_DIM if options.head_dim is None else options.head_dim
    require_choice("dtype", options.dtype, ("fp16", "bf16"))
    if options.published == "flashinfer-decode":
        return published.flashinfer_decode(head_dim=head_dim, group=group).table()
    fa2 = options.published == "fa2"
    usual = published.FA2_TILES.get(head_dim) if fa2 else (64, 64, 4)
    tile = tuple(map(int, re.findall("[0-9]+", options.tile))) if options.tile else usual
    if tile is None or len(tile) != 3:
        allowed = f"rows x keys x warps, such as {'x'.join(map(str, usual or (128, 64, 4)))}"
        raise ValueError(f"tile = {options.tile!r}, allowed: {allowed}")
    rows, keys, warps = tile
    if not fa2:
        return published.flashinfer_prefill(cta_q=rows, cta_kv=keys, head_dim=head_dim).table()
    sizes = {"block_m": rows, "block_n": keys, "head_dim": head_dim}
    needs = published.flash_attention_2_registers(**sizes, warps=warps)
    most = published.MAX_REGISTERS
    over = needs.total - most
    words = f"{most}, and spills: {over} too many" if over > 0 else f"about {needs.total}"
    smem = published.flash_attention_2(**sizes)
    return f"{smem.table()}\n\n{needs.table()}\n\nregisters per thread, by ptxas: {words}"


def _resources(options: argparse.Namespace, group: int, variant: AttentionVariant) -> Resources:
    """Return what the kernel takes; the GPU defaults to the first of arch, or to h200."""
    from labkernels.kernels.choice import missing
    from labkernels.measure import resources

    gpu = _gpu(options.gpu, options.arch)
    spec = resources.find(options.kernel)
    if lacks := missing(spec, gpu):
        raise ValueError(f"{spec.name} {lacks}, this is {gpu.name} ({gpu.arch})")
    sizes = {"dtype": options.dtype, "head_dim": head_dim_of(spec, options), "group": group}
    kv_dtype = kv_dtype_of(options.kv_dtype, spec.kv_dtypes, spec.name)
    shape = spec.shape(**sizes, variant=variant, kv_dtype=kv_dtype)
    # a requested tile is shown even if it does not fit
    tile = options.tile or None
    instance = spec.instance(shape, tile=tile, gpu=None if tile else gpu)
    return resources.resources(instance, gpu=gpu)


def _gpu(key: str, arch: str) -> Gpu:
    if arch and not key:
        return hardware.by_arch(arch)[0]
    gpu = hardware.gpu(key or DEFAULT_GPU)
    if arch and arch not in (gpu.arch, gpu.compile_arch):
        allowed = ", ".join(dict.fromkeys((gpu.arch, gpu.compile_arch)))
        raise ValueError(f"arch = {arch!r}, allowed for gpu = {gpu.key!r}: {allowed}")
    return gpu


def text(known: Resources, workload: Workload | None = None) -> str:
    """Return the whole report; with a workload also its grid, waves and expected time."""
    from labkernels.measure import resources

    instance = known.instance
    spec, head_dim = resources.find(instance.kernel), f"head_dim {instance.head_dim}"
    if instance.head_dim in spec.padded_dims:
        head_dim += f" in tiles of {instance.width}"
    formats = instance.dtype + (f", {instance.kv_dtype} cache" if instance.kv_dtype else "")
    parts = [
        f"{instance.kernel} for {known.gpu.name}, compiled for {known.gpu.compile_arch}\n"
        f"{formats}, {head_dim}, {instance.rows} query rows per block, "
        f"tile {instance.tile.label} ({instance.tile.legend})\n{spec.idea}",
        known.smem.table(),
        known.predicted.ledger.table(),
        _verdict(known),
    ]
    if spec.operation == "decode" and instance.policy.tensor_cores:
        parts.append(_formulas(instance))
    if workload is not None:
        parts.append(_grid(known, workload, plan(instance, workload, known.gpu)))
    return "\n\n".join(parts)


def plan(instance: Instance, workload: Workload, gpu: Gpu) -> Plan:
    """Return how a workload of the kernel's operation is cut into blocks on a GPU.

    Raises: ValueError if the workload is not one of the instance.
    """
    from labkernels.kernels.operation import operations
    from labkernels.kernels.random_inputs import NoNumbers
    from labkernels.measure import resources

    if instance.dtype != workload.dtype:
        allowed = f"{instance.dtype!r}, as the instance"
        raise ValueError(f"workload.dtype = {workload.dtype!r}, allowed: {allowed}")
    kernel = resources.find(instance.kernel).with_tile(instance.tile)
    operation = operations()[kernel.operation]
    inputs = operation.inputs(workload, NoNumbers())
    return operation.step(inputs, kernel=kernel, target=gpu.key).plan


def _verdict(known: Resources) -> str:
    compiled, blocks, gpu = known.compiled, known.occupancy, known.gpu
    if compiled is None:
        by_compiler = "no compiler here and no recorded report: occupancy is of the prediction"
        smem = f"{format_bytes(known.smem.total)} by the ledger"
    else:
        by_compiler = (
            f"{_traded(known.instance)}{compiled.registers} by ptxas, "
            f"{compiled.spill_bytes} B spilled ({compiled.source})"
        )
        same = "the same" if compiled.smem_bytes == known.smem.total else "NOT the same"
        smem = (
            f"{format_bytes(known.smem.total)} by the ledger, "
            f"{format_bytes(compiled.smem_bytes)} by the compiler: {same}"
        )
    return "\n".join(
        [
            f"registers per thread    {_predicted(known.predicted)}, {by_compiler}",
            f"shared memory per block {smem}",
            f"blocks per SM           {blocks.blocks_per_sm}, limited by {blocks.limit} "
            f"(registers {blocks.by_registers}, shared memory {blocks.by_smem}, "
            f"warps {blocks.by_warps}, blocks {blocks.by_blocks})",
            f"warps per SM            {blocks.warps} of {gpu.warps_per_sm_max}, "
            f"{100 * blocks.fraction:.0f} %",
        ]
    )


def _predicted(made: Prediction) -> str:
    """Return the prediction, and facts that its ledger cannot show: a limit, a spill."""
    limit = ", the limit" if made.registers == made.limit else ""
    need = max(made.ledger.total, made.merge)
    return f"{made.registers} predicted{limit}{_SPILLS[made.answer].format(need=need)}"


def _traded(instance: Instance) -> str:
    """Return the registers per computing thread after a trade between warps; "" without one."""
    from labkernels.measure import resources

    traded = resources.find(instance.kernel).thread_registers(instance)
    moved = "after setmaxnreg has moved registers between warps"
    return f"{traded} {moved}, at launch " if traded else ""


def _formulas(instance: Instance) -> str:
    tile, rows, head_dim = instance.tile, instance.rows, instance.width
    keys = tile.warps * tile.keys
    reported = formulas.reported_register_formula(rows, keys, head_dim, tile.threads)
    split = formulas.kv_split_register_formula(rows, head_dim, tile.keys)
    return "\n".join(
        [
            "accumulator registers per thread, by the two formulas of case 000",
            f"  reported_register_formula  ({rows} x {keys} + {rows} x {head_dim}) / "
            f"{tile.threads} = {reported:g}: if the warps shared one O between them",
            f"  kv_split_register_formula  ({rows} x {head_dim} + {rows} x {tile.keys}) / 32 = "
            f"{split}: the warps split the keys, so each keeps a whole O",
        ]
    )


def _grid(known: Resources, workload: Workload, cut: Plan) -> str:
    gpu, instance = known.gpu, known.instance
    on, many_tokens = instance.policy.tensor_cores, hasattr(workload, "q_lens")
    waves = cut.blocks / (known.occupancy.blocks_per_sm * gpu.sm_count)
    floor = roofline.least_time(
        workload,
        gpu,
        tensor_cores=on,
        mma_rows=min(instance.rows, max(roofline.MMA_ROWS)) if on and not many_tokens else None,
        bytes_per_s=gpu.measured_copy_bytes_per_s,
    )
    ceiling = "vendor's peak" if gpu.measured_copy_bytes_per_s is None else "measured copy rate"
    return "\n".join(
        [
            workload.label,
            f"grid   {cut.blocks} blocks, {cut.splits} split(s) of {cut.keys_per_split} keys, "
            f"{cut.launches} launch(es)",
            f"waves  {waves:.2f} of {known.occupancy.blocks_per_sm} x {gpu.sm_count} blocks",
            f"time   {format_time(floor.time_s)} expected, set by {floor.bound}: memory "
            f"{format_time(floor.memory_s)} at the {ceiling}, products "
            f"{format_time(floor.math_s)}, exponentials {format_time(floor.exp_s)}",
        ]
    )


def _costs(plain: Resources, known: Resources, workload: Workload | None) -> str:
    """Return what a kernel takes without a variant and with it, side by side."""
    work: Any = workload
    plain_work = work and replace(work, variant=replace(FULL, causal=work.variant.causal))
    without, varied = _facts(plain, plain_work), _facts(known, work)
    rows = {"what the variant changes": "without"} | without
    width = max(map(len, rows.values()))
    lines = zip(rows.items(), ("with", *varied.values()), strict=True)
    return "\n".join(f"{name:<26}{each:<{width}}  {other}" for (name, each), other in lines)


def _facts(known: Resources, workload: Workload | None) -> dict[str, str]:
    """Return what a kernel takes, and how it cuts a workload, by name."""
    compiled, instance = known.compiled, known.instance
    registers = f"{known.predicted.registers} predicted"
    if compiled is not None:
        registers = f"{compiled.registers}, {compiled.spill_bytes} B spilled"
    facts = {
        "tile": instance.tile.label,
        "registers per thread": registers,
        "shared memory per block": format_bytes(known.smem.total),
        "blocks per SM": str(known.occupancy.blocks_per_sm),
    }
    if workload is not None:
        cut = plan(instance, workload, known.gpu)
        facts["grid"] = f"{cut.blocks:,} blocks, {cut.splits} split(s)"
        facts["steps of all blocks"] = f"{steps(instance, workload):,}"
        facts["bytes to move"] = format_bytes(workload.bytes)
    return facts


def steps(instance: Instance, work: Any) -> int:
    """Return how many steps of a tile's keys, or rows in a backward pass, all blocks take."""
    from labkernels.kernels.backward.schedule import steps_of_keys
    from labkernels.kernels.packed_gqa.schedule import lengths_of, steps_of_tiles
    from labkernels.measure import resources

    tile, spec = instance.tile, resources.find(instance.kernel)
    if not hasattr(work, "q_lens"):
        seen = (work.variant.seen(0, 1, length) for length in work.kv_lens)
        slices = -(-work.group // instance.rows)
        return work.kv_heads * slices * sum(-(-n // tile.keys) for n in seen)
    if spec.operation == "backward":
        taken = steps_of_keys(lengths_of(work), tile, work.variant)
        return work.q_heads * sum(of.sum() for of in taken)
    whole = spec.needs.alone  # the TMA copies all heads of a token
    rows = tile.q_rows // work.group * work.group if whole else tile.q_rows
    return work.kv_heads * steps_of_tiles(work, rows, tile.keys).sum()
