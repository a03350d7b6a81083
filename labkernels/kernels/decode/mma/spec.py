"""decode_mma: tensor cores on, the query group packed in a 16-row tile."""

from types import MappingProxyType

from labkernels.budget.ledger import Line
from labkernels.budget.registers import fragment
from labkernels.kernels import cuda_kernel
from labkernels.kernels.decode import kernel
from labkernels.kernels.decode.kernel import DecodeTile, TensorCoreDecode
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.policy import NumericPolicy, tensor_core_policies

ROWS = 16
HELD_DIM = 128  # a warp keeps Q in registers up to this head_dim


class DecodeMma(TensorCoreDecode):
    """A kernel that pads the query group to the 16 rows of an mma."""

    name = "decode_mma"
    idea = "The query group fills a 16-row tensor-core tile; the warps split the keys."
    parent = "decode_fma"
    numbers = MappingProxyType({"HELD_DIM": HELD_DIM})
    needs = SINCE_AMPERE
    policies = tensor_core_policies()
    sum_bits = (1, 2)  # lanes that differ in t hold different keys

    def rows(self, group: int) -> int:
        """Return the query rows of a block: always the rows of a tile."""
        return ROWS

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
        """Return tile options that fit the registers; at each head_dim one takes at most 99 KiB.

        P in two parts with promoted sums spills up to 9 registers at head_dim 256, and 3 at 128
        before sm_90.
        """
        if shape.kv_dtype:
            return kernel.narrow_tiles({64: 4, 128: 3, 256: 2}[shape.width])
        return {
            64: (DecodeTile(4, 16, 3, 4), DecodeTile(4, 32, 2, 3), DecodeTile(4, 16, 2, 4)),
            128: (DecodeTile(4, 16, 2, 3), DecodeTile(4, 16, 3, 2), DecodeTile(4, 32, 2, 1)),
            256: (DecodeTile(4, 16, 2, 2), DecodeTile(2, 16, 3, 2)),
        }[shape.width]

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the fragments and addresses of a thread, in registers."""
        of = cuda_kernel.sizes(instance)
        held = of.dim if instance.width <= HELD_DIM else 16
        return (
            Line("Q fragments", fragment(of.rows, held, bits=16)),
            Line(
                "O accumulator",
                fragment(of.rows, of.dim),
                note="whole in every warp: the warps split the keys",
            ),
            Line("S, then P", fragment(of.rows, of.keys)),
            kernel.rounded_p_line(instance, rows=of.rows),
            Line("K or V fragment", fragment(16, 16, bits=16)),
            *kernel.code_lines(instance),
            *kernel.scale_lines(instance),
            *kernel.chain_lines(instance),
            Line("m and l", 4, "2 of each, for rows g and g + 8"),
        )


KERNEL = DecodeMma()
