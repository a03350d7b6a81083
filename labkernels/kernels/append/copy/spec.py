"""append: copies new keys and values into the pages of a cache and writes the new lengths."""

from labkernels.budget.ledger import Line
from labkernels.kernels.append.kernel import AppendKernel
from labkernels.kernels.cuda_kernel import cpp_type, sizes
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.kernels.tile import WarpTile
from labkernels.policy import CUDA_CORES, NumericPolicy

# Eight 16-byte loads per lane on full SMs hide the latency of memory; more loads are not faster.
TILE = WarpTile(warps=8, keys=16, stages=8, blocks_per_sm=4)
# Beside the divisions for a cache of 8 bits, more than four loads do not fit in the registers.
NARROW = WarpTile(warps=8, keys=16, stages=4, blocks_per_sm=4)
# A rotation holds the partners of its channels, cosines and sines as well.
ROTARY = WarpTile(warps=8, keys=16, stages=2, blocks_per_sm=4)


class Append(AppendKernel):
    """A kernel that rounds nothing, unless keys are rotated or the cache has 8 bits."""

    name = "append"
    idea = (
        "16 bytes per lane from new rows to their pages, and the lengths advanced, in one launch."
    )
    parent = None
    needs = SINCE_AMPERE
    policies = (CUDA_CORES,)  # a cache of 16 bits gets the bytes
    head_dims = (32, 64, 80, 96, 128, 192, 256)

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[WarpTile, ...]:
        """Return the one tile option."""
        return (ROTARY if shape.rotary else NARROW if shape.kv_dtype else TILE,)

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return no line: bytes go from registers to the pages."""
        return ()

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the registers that a thread holds while its loads are in flight."""
        stages = sizes(instance).stages
        moved = Line("moved", 4 * stages, "a load of 16 B each")
        partners = Line("partners", 4 * stages, "the channels that rotate with them")
        places = Line("places", 2 * stages, "an offset of 64 bits each")
        scales = Line("scales", 2 * stages, "an offset of 64 bits each")
        lines = (moved, partners, places) if instance.rotary else (moved, places)
        return (*lines, scales) if instance.of_blocks else lines

    def template(self, instance: Instance) -> str:
        """Return the C++ name of the instance."""
        words = [*map(str, instance.tile.numbers)]
        if instance.kv_dtype or instance.rotary:
            words += [cpp_type(x) for x in (instance.dtype, instance.kv_dtype or instance.dtype)]
        if instance.rotary or instance.of_blocks:
            pairs, table = instance.rotary or ("none", "fp32")
            words += [f"append::Pairs::{pairs}", cpp_type(table)]
        words += ["true"] if instance.of_blocks else []
        return f"append::append<append::KernelTraits<{', '.join(words)}>>"


KERNEL = Append()
