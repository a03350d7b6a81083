"""decode_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from collections.abc import Mapping
from typing import Any

from labkernels.budget.compiler import Asked, generation
from labkernels.budget.ledger import Line
from labkernels.budget.quantity import least, number
from labkernels.budget.registers import WARP_THREADS
from labkernels.kernels import cuda_kernel
from labkernels.kernels.decode import kernel
from labkernels.kernels.decode.kernel import CudaDecodeKernel, DecodeTile
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.policy import CUDA_CORES, NumericPolicy, policies
from labkernels.units import CHUNK

MAX_ROWS = 8  # q and o take 8 registers per row each; more rows do not fit beside the reduction


class DecodeFma(CudaDecodeKernel):
    """Every lane multiplies 8 channels of a key; shuffles add the products."""

    name = "decode_fma"
    idea = "fp32 FMAs on CUDA cores; P is never rounded."
    parent = "reference"
    needs = SINCE_AMPERE
    policies = policies(CUDA_CORES, denominators=("unrounded",))

    def rows_argument(self, instance: Instance) -> tuple[int, ...]:
        """Return the rows of a block."""
        return (instance.rows,)

    def rows(self, group: int) -> int:
        """Return the query rows of a block: the power of two that holds the group, at most 8."""
        return min(MAX_ROWS, 1 << (group - 1).bit_length())

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
        """Return tile options that fit the registers; at each head_dim one takes at most 99 KiB."""
        wide = self.rows(shape.group) == MAX_ROWS
        if shape.kv_dtype:
            return kernel.narrow_tiles(2 if wide else {64: 4, 128: 3, 256: 2}[shape.width])
        return {
            64: (DecodeTile(4, 16, 3, 2 if wide else 3), DecodeTile(4, 16, 2, 2 if wide else 4)),
            128: (DecodeTile(4, 16, 3, 2), DecodeTile(4, 16, 2, 2))
            if wide
            else (DecodeTile(4, 16, 2, 3), DecodeTile(4, 16, 3, 2)),
            256: (DecodeTile(4, 16, 2, 2), DecodeTile(2, 16, 3, 2)),
        }[shape.width]

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of = cuda_kernel.sizes(instance)
        p = Line(
            "P",
            of.warps * of.keys * of.rows * cuda_kernel.FP32,
            note="read by all lanes as a broadcast",
            shares=cuda_kernel.OVERLAY,
            phase="loop",
        )
        return (kernel.stage_line(instance), p, *cuda_kernel.states_lines(instance))

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the operands and addresses of a thread, in registers."""
        of = cuda_kernel.sizes(instance)
        lanes = of.dim / CHUNK
        scores = of.rows * (of.keys * lanes / WARP_THREADS)
        values = least(scores, lanes)
        return (
            Line("Q", of.rows * CHUNK, "8 channels of each row"),
            Line("O", of.rows * CHUNK, "8 channels of each row"),
            Line("dot products", values, f"of one reduction over {lanes.value} lanes"),
            Line("K or V", CHUNK, "8 channels of a key"),
            Line("scores", scores / values, "one finished score per reduction"),
            Line("m and l", 2, "of the lane's own row"),
            *kernel.scale_lines(instance),
        )

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features; before sm_100, ptxas widens bf16 by separate instructions."""
        features = {"shuffles": number(1)}
        if instance.dtype == "bf16" and generation(arch) < 10:
            features["bf16 widened"] = cuda_kernel.sizes(instance).rows
        return Asked(features, merges_splits=True)

    def summation_order(self, instance: Instance) -> Mapping[str, Any] | None:
        """Return the order of sums in which lanes that share a key take 8 channels each."""
        lanes = instance.width // CHUNK
        groups = WARP_THREADS // lanes
        turns = {"warps": instance.tile.warps, "keys": instance.tile.keys}
        return turns | {"groups": groups, "sum_bits": _sum_bits(instance, lanes, groups)}


def _sum_bits(instance: Instance, lanes: int, groups: int) -> tuple[int, ...]:
    """Return bits of a key's number that differ between lanes, in the order of the shuffles."""
    rows, rounds = instance.rows, instance.tile.keys // groups
    same_key = lanes // min(rounds * rows, lanes) * rows  # lanes that hold scores of one key
    bits = []
    for mask in (16, 8, 4, 2, 1):
        if mask >= lanes:
            bits.append((mask // lanes).bit_length() - 1)
        elif mask >= same_key:
            bits.append((groups * mask // same_key).bit_length() - 1)
    return tuple(bits)


KERNEL = DecodeFma()
