"""Without a GPU, every kernel compiles to machine code, and its ledgers hold."""

from dataclasses import replace

import pytest

from labkernels import hardware
from labkernels.budget.occupancy import occupancy
from labkernels.cuda.compiler import nvrtc, sass
from labkernels.kernels.kernel import PADDED_DIMS
from labkernels.measure import resources
from labkernels.measure.resources import cuda_kernels
from labkernels.policy import NumericPolicy

CUDA = cuda_kernels()
# A tile that takes every register may spill a few: on an H200 the tiles that spill 16 bytes are the
# fastest, and a step of a thousand instructions gets two or three more instructions.
ALL_REGISTERS, FULL_SPILL_BYTES = 254, 32
pytestmark = pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))
# A GPU of each architecture, by the architecture.
GPU_OF = {arch: hardware.by_arch(arch)[0] for arch in hardware.ARCHS}


def name_of(instance):
    shape = f"{instance.head_dim}-{instance.rows}-{instance.tile.label}"
    return f"{instance.kernel}-{shape}-{instance.layout}"


def every_instance():
    """Yield every tile, head_dim and number of rows in bf16; decodes of head_dim 128 also in fp16.

    A kernel that reads K and V of two layouts takes the layouts in turn.
    """
    for instance in resources.all_instances():
        spec = CUDA[instance.kernel]
        group = instance.rows if spec.operation == "decode" else 1  # as many rows as its tile has
        shape = spec.shape(head_dim=instance.head_dim, group=group)
        options = spec.tiles(shape, instance.policy)
        turn = sorted(tile.label for tile in options).index(instance.tile.label)
        if instance.layout != spec.layouts[turn % len(spec.layouts)]:
            continue
        if instance.dtype == "bf16" or (spec.operation, instance.head_dim) == ("decode", 128):
            yield pytest.param(instance, id=f"{name_of(instance)}-{instance.dtype}")


def default_instances():
    """Yield what ops would choose on a GPU of each architecture, with the most rows.

    A prefill kernel takes seconds to compile, so only one of its head_dims is compiled.
    """
    for arch, gpu in GPU_OF.items():
        for spec in (spec for spec in CUDA.values() if spec.needs.include(gpu.arch)):
            for head_dim in spec.head_dims if spec.operation == "decode" else (near(spec, 128),):
                instance = instance_of(spec, head_dim, dtype="fp16", group=16, gpu=gpu)
                yield pytest.param(instance, gpu, arch, id=f"{arch}-{name_of(instance)}")


def near(spec, head_dim):
    """Return the head_dim of a kernel that is nearest to `head_dim`; MLA kernels have only one."""
    return min(spec.head_dims, key=lambda known: abs(known - head_dim))


def instance_of(spec, head_dim, policy=None, *, dtype="bf16", group=4, gpu=None):
    shape = spec.shape(dtype=dtype, head_dim=near(spec, head_dim), group=group)
    return spec.instance(shape, policy, gpu=gpu)


def check_report(instance, report):
    spec = CUDA[instance.kernel]
    spills = (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes)
    full = report.registers >= ALL_REGISTERS
    assert max(spills) <= (FULL_SPILL_BYTES if full else 0), f"stores, loads and stack: {spills}"
    assert report.static_smem_bytes == 0, "shared memory that no ledger has"
    assert full or report.warnings == ()
    least, held = spec.registers(instance).total, report.registers
    # the warps that compute may raise their registers to another number
    held = spec.thread_registers(instance) or held
    assert least <= held, f"the ledger has {least}, ptxas needs only {held}"


@pytest.mark.one_in(36)
@pytest.mark.parametrize("instance", list(every_instance()))
def test_every_instance_on_sm_90a(instance):
    compiled = resources.compile_instance(instance, arch="sm_90a")
    check_report(instance, compiled.report)
    promised = instance.tile.blocks_per_sm
    held = occupancy(
        hardware.gpu("h200"),
        threads=instance.tile.threads,
        registers=compiled.report.registers,
        smem_bytes=CUDA[instance.kernel].smem(instance).total,
    )
    assert held.by_registers >= promised, "__launch_bounds__ promises more blocks than fit"


@pytest.mark.one_in(36)
@pytest.mark.parametrize(("instance", "gpu", "arch"), list(default_instances()))
def test_default_tile_on_every_architecture(instance, gpu, arch):
    check_report(instance, resources.compile_instance(instance, arch=arch).report)
    smem_bytes = CUDA[instance.kernel].smem(instance).total
    assert smem_bytes <= gpu.smem_per_block_max_bytes


@pytest.mark.one_in(9)
@pytest.mark.parametrize("head_dim", PADDED_DIMS)
@pytest.mark.parametrize("kernel", [name for name, spec in CUDA.items() if spec.padded_dims])
def test_heads_that_fill_a_part_of_their_tiles(kernel, head_dim):
    for instance in CUDA[kernel].instances(CUDA[kernel].shape(head_dim=head_dim, group=4)):
        check_report(instance, resources.compile_instance(instance, arch="sm_90a").report)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", ["decode_mma", "decode_mma_n8", "decode_fma"])
def test_scales_of_blocks_of_keys_spill_nothing(kernel, arch, head_dim):
    for group in (4, 8):
        sizes = {"head_dim": head_dim, "group": group, "kv_dtype": "e4m3", "of_blocks": True}
        for instance in CUDA[kernel].instances(CUDA[kernel].shape(**sizes)):
            check_report(instance, resources.compile_instance(instance, arch=arch).report)


@pytest.mark.parametrize(
    ("arch", "head_dim", "registers"), [("sm_80", 128, 3), ("sm_80", 256, 9), ("sm_90a", 256, 9)]
)
def test_what_the_costliest_policy_spills_is_what_its_spec_says(arch, head_dim, registers):
    policy = NumericPolicy(p="input_x2", accumulate="promoted", out="fp32")
    instance = instance_of(CUDA["decode_mma"], head_dim, policy, gpu=GPU_OF[arch])
    report = resources.compile_instance(instance, arch=arch).report
    assert report.spill_store_bytes <= 4 * registers


@pytest.mark.parametrize("kernel", CUDA)
@pytest.mark.parametrize("off_by", [-16, 2])
def test_a_wrong_ledger_does_not_compile(kernel, off_by):
    made = CUDA[kernel].specialization(instance_of(CUDA[kernel], 64))
    wrong = made.defines | {"LAB_SMEM_BYTES": made.smem_bytes + off_by}
    how = {"instance": made.instance, "defines": wrong, "arch": "sm_90a"}
    with pytest.raises(nvrtc.CompileError, match="the ledger's bytes are the compiler's"):
        nvrtc.compile_kernel(made.header, **how)


TWO_P_BUFFERS = """#include "prefill/wgmma/tile.cuh"
template <class Traits, bool Expected> LAB_KERNEL(32, 1) p_buffers() {
  static_assert(Traits::two_p_buffers == Expected, "the ledger's steps of P are the tile's");
}
"""


@pytest.mark.parametrize("head_dim", CUDA["prefill_wgmma"].head_dims)
def test_where_p_is_rounded_a_step_ahead_is_in_the_ledger_as_in_the_tile(head_dim, tmp_path):
    spec, header = CUDA["prefill_wgmma"], tmp_path / "p_buffers.cuh"
    header.write_text(TWO_P_BUFFERS)
    for tile in spec.tiles(spec.shape(head_dim=head_dim), spec.policies[0]):
        instance = replace(instance_of(spec, head_dim, group=1), tile=tile)
        ledger = {line.name: line.formula for line in spec.registers(instance).lines}
        both = ledger["P rounded"].startswith("2 steps")
        cpp_tile = spec.template(instance).removeprefix("prefill_wgmma::prefill<")
        cpp_tile = cpp_tile[: cpp_tile.index(">") + 1]
        check = f"p_buffers<{cpp_tile}, {'true' if both else 'false'}>"
        defines = spec.specialization(instance).defines
        nvrtc.compile_kernel(header, instance=check, defines=defines, arch="sm_90a")


@pytest.mark.few_of_each("kernel", 1)
@pytest.mark.parametrize("kernel", CUDA)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_tensor_cores_are_in_the_machine_code_or_not(kernel, dtype):
    if sass.available() is not None:
        pytest.skip(sass.available())
    spec = CUDA[kernel]
    instance = instance_of(spec, 128, dtype=dtype)
    cubin = resources.compile_instance(instance, arch="sm_90a").cubin
    mix = sass.instruction_mix(cubin)
    tensor = sum(count for name, count in mix.items() if "MMA" in name)
    if instance.policy.tensor_cores:
        assert tensor >= least_products(spec, instance), "S and O take more products than that"
    else:
        assert tensor == 0
        assert mix.get("FFMA", 0) >= least_fmas(spec, instance)


def least_products(spec, instance):
    """Return the HMMA per step of a warp, or the HGMMA, of 16 channels or keys, of a warpgroup."""
    tile = instance.tile
    if spec.needs.alone:
        return (128 + tile.keys) // 16
    if spec.operation == "mla":  # HMMA of 16 x 16 x 8, for S and O of all rows
        channels = instance.head_dim + instance.head_dim_v
        return tile.q_rows * tile.keys * channels // (16 * 16 * 8) // tile.warps
    columns = 16 if spec.name == "decode_mma_n8" else 8  # keys or channels per HMMA
    return 2 * tile.keys * 128 // (16 * columns)


def least_fmas(spec, instance):
    """Return the FMAs per thread in what a kernel unrolls, at 128 channels."""
    products = instance.rows * instance.tile.keys
    if spec.operation == "append":  # which only moves rows
        return 0
    if spec.operation == "decode":  # those of a step; the first product of a sum is no FMA
        return products * 128 // 8 // 32 * (7 + 8)
    # four channels of S and four keys of O are unrolled
    return 4 * (products + instance.rows * 128) // instance.tile.threads


def policies_with_an_fp32_output():
    """Yield policies with an fp32 output, which have each switch; 16-bit outputs add no code.

    They compile at 64 channels, and those that hold more registers than the default also at 128, as
    in the chapters.
    """
    for name, spec in CUDA.items():
        for policy in [policy for policy in spec.policies if policy.out == "fp32"]:
            more = policy.p_parts > 1 or policy.accumulate == "promoted"
            for head_dim in (64, 128) if more else (near(spec, 64),):
                yield pytest.param(name, policy, head_dim, id=f"{name}-{head_dim}-{policy.label}")


@pytest.mark.one_in(36)
@pytest.mark.parametrize(("kernel", "policy", "head_dim"), list(policies_with_an_fp32_output()))
def test_policies_compile(kernel, policy, head_dim):
    instance = instance_of(CUDA[kernel], head_dim, policy)
    check_report(instance, resources.compile_instance(instance, arch="sm_90a").report)
