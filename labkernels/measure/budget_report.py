"""The budget of one kernel instance as text: ledgers, compiler, occupancy, formulas, waves."""

from labkernels import hardware
from labkernels.budget import registers as formulas
from labkernels.budget import roofline
from labkernels.hardware import Gpu
from labkernels.kernels.spec import Instance
from labkernels.kernels.step import Plan
from labkernels.measure import resources
from labkernels.measure.resources import Resources
from labkernels.units import format_bytes, format_time
from labkernels.workload import Decode

DEFAULT_GPU = "h200"
MAX_GROUP = 16


def report(
    kernel: str,
    *,
    head_dim: int,
    dtype: str,
    group: int,
    tile: str = "",
    gpu: str = "",
    arch: str = "",
    workload: Decode | None = None,
) -> str:
    """Return the report on a kernel by names; gpu defaults to the first of arch, or to h200.

    Raises: ValueError naming the argument, its value and what is allowed.
    """
    if not 1 <= group <= MAX_GROUP:
        raise ValueError(f"group = {group}, allowed: 1 to {MAX_GROUP}")
    chosen_gpu = _gpu(gpu, arch)
    spec = resources.find(kernel)
    reason = spec.unsupported(dtype=dtype, head_dim=head_dim, policy=spec.policies[0])
    if reason:
        raise ValueError(reason)
    rows = spec.served_rows(group)
    chosen = spec.tile_named(tile, head_dim=head_dim, rows=rows) if tile else None
    instance = spec.instance(
        dtype=dtype,
        head_dim=head_dim,
        group=group,
        tile=chosen,
        gpu=None if chosen else chosen_gpu,  # a tile that was asked for is shown, even if 0 fit
    )
    return text(resources.resources(instance, gpu=chosen_gpu), workload)


def _gpu(key: str, arch: str) -> Gpu:
    if arch and not key:
        return hardware.by_arch(arch)[0]
    gpu = hardware.gpu(key or DEFAULT_GPU)
    if arch and arch not in (gpu.arch, gpu.compile_arch):
        allowed = ", ".join(dict.fromkeys((gpu.arch, gpu.compile_arch)))
        raise ValueError(f"arch = {arch!r}, allowed for gpu = {gpu.key!r}: {allowed}")
    return gpu


def text(known: Resources, workload: Decode | None = None) -> str:
    """Return the whole report; with a workload also its grid, waves and expected time."""
    instance = known.instance
    spec = resources.find(instance.kernel)
    parts = [
        f"{instance.kernel} for {known.gpu.name}, compiled for {known.gpu.compile_arch}\n"
        f"{instance.dtype}, head_dim {instance.head_dim}, {instance.rows} query rows a block, "
        f"tile {instance.tile.label} ({instance.tile.legend})\n{spec.idea}",
        known.smem.table(),
        known.registers.table(),
        _verdict(known),
    ]
    if spec.family == "decode" and spec.uses_tensor_cores(instance.policy):
        parts.append(_formulas(instance))
    if workload is not None:
        parts.append(_grid(known, workload, plan(instance, workload, known.gpu)))
    return "\n\n".join(parts)


def plan(instance: Instance, workload: Decode, gpu: Gpu) -> Plan:
    """Return how a workload would be cut into blocks on a GPU, which need not be here.

    Raises: ValueError if the instance's dtype or head_dim is not the workload's.
    """
    import torch

    from labkernels.kernels.cuda_decode import plan_decode
    from labkernels.kernels.decode_step import DecodeRequest
    from labkernels.kernels.paged_kv import PagedKV

    for name in ("dtype", "head_dim"):
        ours, theirs = getattr(instance, name), getattr(workload, name)
        if ours != theirs:
            raise ValueError(f"workload.{name} = {theirs!r}, allowed: {ours!r}, as the instance")

    # Planning reads shapes alone, which a meta tensor has without any memory.
    def shaped(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    pages = -(-workload.max_kv_len // workload.page_size)
    pool = shaped(1, workload.page_size, workload.kv_heads, workload.head_dim)
    table = shaped(workload.batch, pages, dtype=torch.int32)
    lengths = shaped(workload.batch, dtype=torch.int32)
    q = shaped(workload.batch, workload.q_heads, workload.head_dim)
    return plan_decode(
        DecodeRequest(
            spec=resources.find(instance.kernel),
            instance=instance,
            q=q,
            cache=PagedKV(pool, pool, table, lengths),
            scale=1.0,
            keys_per_split=None,
            out=q,
            lse2=shaped(workload.batch, workload.q_heads, dtype=torch.float32),
            gpu=gpu,
            checks=False,
        )
    )


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
            f"registers a thread    at least {known.registers.total} predicted, {by_compiler}",
            f"shared memory a block {smem}",
            f"blocks on an SM       {blocks.blocks_per_sm}, limited by {blocks.limit} "
            f"(registers {blocks.by_registers}, shared memory {blocks.by_smem}, "
            f"warps {blocks.by_warps}, blocks {blocks.by_blocks})",
            f"warps on an SM        {blocks.warps} of {gpu.warps_per_sm_max}, "
            f"{100 * blocks.fraction:.0f} %",
        ]
    )


def _traded(instance: Instance) -> str:
    """What a thread that computes takes over from those that fetch, where warps trade registers."""
    traded = resources.find(instance.kernel).thread_registers
    return f"{traded(instance)} once warps have traded theirs, at launch " if traded else ""


def _formulas(instance: Instance) -> str:
    tile, rows, head_dim = instance.tile, instance.rows, instance.head_dim
    keys = tile.warps * tile.keys
    reported = formulas.reported_register_formula(rows, keys, head_dim, tile.threads)
    split = formulas.kv_split_register_formula(rows, head_dim, tile.keys)
    return "\n".join(
        [
            "accumulator registers a thread, by the two formulas of case 000",
            f"  reported_register_formula  ({rows} x {keys} + {rows} x {head_dim}) / "
            f"{tile.threads} = {reported:g}: if the warps shared one O between them",
            f"  kv_split_register_formula  ({rows} x {head_dim} + {rows} x {tile.keys}) / 32 = "
            f"{split}: the warps split the keys, so each keeps a whole O",
        ]
    )


def _grid(known: Resources, workload: Decode, cut: Plan) -> str:
    gpu, instance = known.gpu, known.instance
    on = resources.find(instance.kernel).uses_tensor_cores(instance.policy)
    waves = cut.blocks / (known.occupancy.blocks_per_sm * gpu.sm_count)
    floor = roofline.decode_floor(
        workload,
        gpu,
        tensor_cores=on,
        mma_rows=instance.rows if on else 16,
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
