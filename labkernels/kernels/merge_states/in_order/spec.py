"""merge_states: merges outputs over parts of the keys, in the order of the parts."""

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import symbol
from labkernels.kernels.cuda_kernel import CudaKernel, cpp_policy, cpp_type
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.kernels.tile import WarpTile
from labkernels.policy import CUDA_CORES, NumericPolicy

CHANNELS = 8  # of a thread
# Most calls have two parts. With four in flight, four blocks do not fit an SM without spills.
TILE = WarpTile(warps=8, keys=1, stages=2, blocks_per_sm=4)


class MergeStates(CudaKernel):
    """A kernel that weighs outputs by their log-sum-exps."""

    operation = "merge_states"
    name = "merge_states"
    idea = "Eight channels of a row per thread, all parts of a step in flight, summed in order."
    parent = None
    needs = SINCE_AMPERE
    policies = (CUDA_CORES,)
    dtypes = ("fp16", "bf16", "fp32")
    head_dims = (32, 64, 80, 96, 128, 256, 512)
    layouts = ("states",)
    params = "merge_states::Params"
    launch = "..cuda"

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[WarpTile, ...]:
        """Return the one tile option: the kernel only moves bytes."""
        return (TILE,)

    def rows_of(self, shape: Shape, tile: WarpTile) -> int:
        """Return 1, since rows are merged independently of each other."""
        return 1

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return no line: bytes go through registers."""
        return ()

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the registers that a thread holds while its loads are in flight."""
        stages = symbol("d", instance.tile.stages, "parts in flight", "parts")
        channels = symbol("c", CHANNELS, "channels of a thread", "channels")
        return (
            Line("parts", stages * channels, "loads in flight"),
            Line("weights", stages, "one of each part"),
            Line("o", channels, "the sum"),
            Line("m and l", symbol("2", 2, "of the row", "registers")),
        )

    def template(self, instance: Instance) -> str:
        """Return the C++ name of the instance."""
        tile = instance.tile
        numbers = (instance.head_dim, tile.warps, tile.stages, tile.blocks_per_sm)
        traits = ", ".join([cpp_type(instance.dtype), *map(str, numbers)])
        name = "merge_states"
        return f"{name}::{name}<{name}::KernelTraits<{traits}>, {cpp_policy(instance)}>"


KERNEL = MergeStates()
