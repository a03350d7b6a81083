"""decode_mma_n8: tensor cores on, keys on M and queries on N = 8, which leaves less padding."""

from types import MappingProxyType

from labkernels.budget.ledger import Line
from labkernels.budget.registers import fragment
from labkernels.kernels import cuda_kernel
from labkernels.kernels.decode import kernel
from labkernels.kernels.decode.kernel import DecodeTile, TensorCoreDecode
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.policy import NumericPolicy, tensor_core_policies

N = 8  # query rows of an mma: its columns
HELD_SIZE = 2048  # a warp keeps Q in registers up to this many rows x channels


class DecodeMmaN8(TensorCoreDecode):
    """A kernel that computes S and O transposed, so that queries lie on N."""

    name = "decode_mma_n8"
    idea = "Keys on M, queries on N = 8: no half of the tensor-core tile is padding."
    parent = "decode_mma"
    numbers = MappingProxyType({"HELD_SIZE": HELD_SIZE})
    needs = SINCE_AMPERE
    policies = tensor_core_policies()
    sum_bits = (0, 1, 2)  # lanes that differ in g hold different keys

    def yields(self, shape: Shape) -> str | None:
        """Return a reason above 8 query heads per KV head, for which 16-row tiles are better."""
        if shape.group <= N:
            return None
        return f"is for up to {N} query heads per KV head, not for {shape.group}"

    def rows_argument(self, instance: Instance) -> tuple[int, ...]:
        """Return the tiles of 8 rows of a block."""
        return (instance.rows // N,)

    def rows(self, group: int) -> int:
        """Return the query rows of a block: one tile of 8, or two."""
        return N if group <= N else 2 * N

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
        """Return tile options that fit the registers; at each head_dim one takes at most 99 KiB."""
        one_row_of_8 = self.rows(shape.group) == N
        if shape.kv_dtype:
            held = {64: 4, 128: 4 if one_row_of_8 else 3, 256: 2}[shape.width]
            # A step of 32 keys has fewer instructions for each key (decision 27 has its times).
            wider = (DecodeTile(4, 32, 2, held),) if shape.width == 128 and one_row_of_8 else ()
            return wider + kernel.narrow_tiles(held)
        return {
            64: (DecodeTile(4, 16, 3, 4), DecodeTile(4, 16, 2, 4)),
            128: (DecodeTile(4, 16, 2, 4 if one_row_of_8 else 3), DecodeTile(4, 16, 3, 2)),
            256: (DecodeTile(4, 16, 2, 2), DecodeTile(2, 16, 3, 2)),
        }[shape.width]

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a thread, in registers."""
        of = cuda_kernel.sizes(instance)
        held = of.dim if instance.rows * instance.width <= HELD_SIZE else 32
        return (
            Line("Q fragments", fragment(of.rows, held, bits=16)),
            Line(
                "O accumulator",
                fragment(of.rows, of.dim),
                note="half of decode_mma's when the group fits in 8",
            ),
            Line("S, then P", fragment(of.rows, of.keys)),
            kernel.rounded_p_line(instance, rows=of.rows),
            Line("K or V fragment", fragment(16, 16, bits=16)),
            *kernel.code_lines(instance),
            *kernel.scale_lines(instance),
            *kernel.chain_lines(instance),
            Line("m and l", 4 * (of.rows / N), "2 of each for queries 2t and 2t + 1 of 8"),
        )


KERNEL = DecodeMmaN8()
