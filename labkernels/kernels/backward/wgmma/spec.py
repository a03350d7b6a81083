"""backward_wgmma: wgmma on tiles that the TMA brings, with dQ added in fp32 to global memory."""

from dataclasses import replace
from types import MappingProxyType

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.budget.registers import fragment
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.kernels import cuda_kernel
from labkernels.kernels.backward import kernel
from labkernels.kernels.backward.kernel import (
    BackwardTile,
    CudaBackwardKernel,
    pair_line,
    sums_line,
)
from labkernels.kernels.cuda_kernel import cpp_function
from labkernels.kernels.kernel import HOPPER, Instance, Shape
from labkernels.policy import NumericPolicy

WARPS = 12  # one warpgroup loads, two compute
CONSUMER_WARPS = 8
CONSUMER_REGISTERS = 240  # per thread of the two, after the first gave up some of its own
BARRIER_BYTES = 8
COPIES, TMA, IN_REGISTERS = "copies", "tma", "registers"  # rungs of the ladder above backward_mma
RUNGS = (
    BackwardTile(64, 128, CONSUMER_WARPS, 2, 1, rung=COPIES),
    BackwardTile(64, 128, WARPS, 2, 1, rung=TMA),
    BackwardTile(64, 128, WARPS, 2, 1, rung=IN_REGISTERS),
)
RUNGS_HEAD_DIM, RUNGS_HEADER = 128, "backward/rungs/kernel.cuh"
# Beside dK and dV of more channels, registers have room for S and dP of only so many rows.
MOST_CHANNELS, WIDE_ROWS = 256, 32
TURN_ROWS, TURN_PARTS = 64, 2  # blocks add these rows, in these parts, of an ordered dQ in turn


def _splits_keys(instance: Instance) -> bool:
    """Return whether each warpgroup has separate keys, 64 of which are the rows of a wgmma."""
    return instance.tile.keys == 2 * 64


def _stages_dq(instance: Instance) -> bool:
    """Return whether dQ passes through shared memory, from which another warp adds it."""
    return _splits_keys(instance) or instance.tile.dq == "ordered"


def _is_wide(instance: Instance) -> bool:
    """Return whether dK and dV of separate keys take most registers."""
    return _splits_keys(instance) and instance.width + instance.width_v > MOST_CHANNELS


def adders(instance: Instance) -> int:
    """Return how many threads of a block say that they have added their dQ."""
    return 2 if _stages_dq(instance) else 1


def _rung_smem(instance: Instance) -> tuple[Line, ...]:
    """Return the shared memory of a block of a rung, in bytes."""
    of, rung = cuda_kernel.sizes(instance), instance.tile.rung
    handed = 1 if rung == IN_REGISTERS else 2
    barriers = number(0) if rung == COPIES else 1 + 2 * of.stages
    return (
        pair_line(instance, "K and V", of.keys),
        pair_line(instance, "Q and dO stages", of.stages * of.rows),
        Line("dS" if handed == 1 else "P and dS", handed * of.rows * of.keys * of.width),
        Line("lse2 and delta", 2 * of.stages * of.rows * cuda_kernel.FP32),
        *([] if rung == COPIES else [Line("barriers", barriers * number(BARRIER_BYTES, "B"))]),
    )


def _dq_stages(instance: Instance) -> Line:
    channels = number(instance.width // 2 if _is_wide(instance) else 64, "channels")
    rows = number(CONSUMER_WARPS, "warps") * number(16, "rows")
    return Line("dQ on its way", rows * channels * cuda_kernel.FP32)


class BackwardWgmma(CudaBackwardKernel):
    """Blocks add their dq in fp32 to global memory; for an ordered dq they take turns."""

    name = "backward_wgmma"
    idea = "Two warpgroups keep dK and dV; P and dS stay in registers; the TMA loads and adds."
    parent = "backward_mma"
    params = "backward_wgmma::Params"
    program_in = ".launch"
    smem_alignment = cuda_kernel.SWIZZLE_ALIGNMENT
    numbers = MappingProxyType(
        kernel.NUMBERS
        | {"CONSUMER_REGISTERS": CONSUMER_REGISTERS, "CONSUMER_WARPS": CONSUMER_WARPS}
        | {"TURN_ROWS": TURN_ROWS, "TURN_PARTS": TURN_PARTS, "MOST_CHANNELS": MOST_CHANNELS}
        | {"WIDE_ROWS": WIDE_ROWS}
    )
    needs = HOPPER

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[BackwardTile, ...]:
        """Return a head_dim's tile: registers limit its keys (by dK and dV) and its rows (by S)."""
        atomic = {
            64: BackwardTile(128, 128, WARPS, 2, 1),
            128: BackwardTile(64, 128, WARPS, 2, 1),
            192: BackwardTile(64, 128, WARPS, 2, 1),
            256: BackwardTile(64, 64, WARPS, 2, 1),
        }[shape.width]
        return (atomic, replace(atomic, dq="ordered"))

    def named_tiles(self, head_dim: int) -> tuple[BackwardTile, ...]:
        """Return the rungs of the ladder below this kernel, which have one head_dim."""
        return RUNGS if head_dim == RUNGS_HEAD_DIM else ()

    def params_of(self, instance: Instance) -> str:
        """Return the C++ name of an instance's parameter."""
        if not instance.features:
            return self.params
        return f"backward_wgmma::ParamsWith<{cuda_kernel.cpp_variant(instance)}>"

    def specialization(self, instance: Instance) -> Specialization:
        """Return what is compiled; rungs have a separate source."""
        made, rung = super().specialization(instance), instance.tile.rung
        if not rung:
            return made
        return replace(made, header=RUNGS_HEADER, params="backward_rungs::Params")

    def template(self, instance: Instance) -> str:
        """Return the C++ name of the instance; a rung's name has the rung as its last argument."""
        tile = instance.tile
        if not tile.rung:
            return super().template(instance)
        words = (instance.head_dim, *tile.numbers, f"backward_rungs::Rung::{tile.rung}")
        return cpp_function(instance, "backward", *words).replace(self.name, "backward_rungs")

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        if instance.tile.rung:
            return _rung_smem(instance)
        of, handed = cuda_kernel.sizes(instance), 1 if _splits_keys(instance) else 2
        one = _is_wide(instance) or (_stages_dq(instance) and handed == 2)
        dout_stages = number(1) if one else of.stages
        both = of.stages + dout_stages
        return (
            pair_line(instance, "K and V", of.keys),
            Line("Q stages", of.stages * of.rows * of.dim * of.width),
            Line("dO stages", dout_stages * of.rows * of.dim_v * of.width),
            Line(
                "dS" if handed == 1 else "dS and P",
                2 * handed * of.rows * of.keys * of.width,
                note="of this step and the one before",
            ),
            *([_dq_stages(instance)] if _stages_dq(instance) else []),
            Line("lse2 and delta", both * of.rows * cuda_kernel.FP32),
            Line("barriers", (6 + 2 * both) * number(BARRIER_BYTES, "B"), "full and empty"),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return fragments and addresses of a thread that computes, where S and dP are alive."""
        of, warps = cuda_kernel.sizes(instance), number(CONSUMER_WARPS, "warps")
        rows = number(WIDE_ROWS, "rows") if _is_wide(instance) else of.rows
        scores = fragment(of.keys, rows, warps=warps)
        return (
            sums_line(instance, warps),
            Line("S and dP", 2 * scores),
        )

    def thread_registers(self, instance: Instance) -> int | None:
        """Return a computing thread's registers, after the first warpgroup gave up some."""
        return None if instance.tile.rung == COPIES else CONSUMER_REGISTERS


KERNEL = BackwardWgmma()
