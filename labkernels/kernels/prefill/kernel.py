"""The interface of a prefill kernel, and what the CUDA kernels share."""

from typing import Protocol

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.kernels.cuda_kernel import SWIZZLE_ALIGNMENT, CudaKernel, cpp_function
from labkernels.kernels.kernel import HOPPER, PADDED_DIMS, Architectures, Instance, Kernel, Shape

ADDRESSES = Line(
    "addresses",
    number(2) * 2 + number(2) * 2 + 5,
    "2 pointers and 2 strides of 64 bits, the block's rows and keys, 2 loop counters",
)
FEWEST_ROWS = 128  # fewest rows of a tile for wgmma


class PrefillKernel(Kernel, Protocol):
    """A kernel of many query tokens per request."""

    operation: str = "prefill"
    head_dims: tuple[int, ...] = (64, 128, 192, 256)
    padded_dims: tuple[int, ...] = PADDED_DIMS
    layouts: tuple[str, ...] = ("ragged", "paged")


class CudaPrefillKernel(PrefillKernel, CudaKernel, Protocol):
    """A prefill kernel in CUDA C++."""

    params: str = "lab::PrefillParams"
    launch: str = "..cuda"
    addresses: tuple[Line, ...] = (ADDRESSES,)

    def order(self, instance: Instance) -> str:
        """Return the template argument for the order of a block's work."""
        return f"lab::KeyOrder::{instance.tile.key_order}"

    def template(self, instance: Instance) -> str:
        """Return `kernel::prefill<KernelTraits<T, Dqk, Dvo, ..., order, Paged>, Policy>`."""
        words = (self.order(instance), instance.layout == "paged")
        dims = (instance.width, instance.width_v)
        return cpp_function(instance, "prefill", *dims, *instance.tile.numbers, *words)


class TmaPrefill(CudaPrefillKernel, Protocol):
    """A prefill whose tiles the TMA brings, for wgmma, in 8 or 16 bits."""

    needs: Architectures = HOPPER
    program_in: str = ".launch"
    smem_alignment: int = SWIZZLE_ALIGNMENT

    def refuses(self, shape: Shape) -> str | None:
        """Return a reason for a shape that the kernel or the TMA does not take, or None."""
        if shape.group > FEWEST_ROWS:
            what, allowed = f"{shape.group} query heads per KV head", f"up to {FEWEST_ROWS}"
            return f"{what}, allowed for {self.name}: {allowed}"
        if not shape.positive_strides:
            return f"a stride of 0 in q, k or v, allowed for {self.name}: positive strides"
        return super().refuses(shape)


def step_flops(instance: Instance) -> int:
    """Return the FLOPs of both products of a step, padding counted."""
    return 2 * instance.rows * instance.tile.keys * (instance.width + instance.width_v)


def softmax_ops(instance: Instance) -> int:
    """Return the lanes' instructions in a step's softmax; an exponential counts once.

    Per score: maximum, scale minus maximum in an FMA, exponential, sum, and half a conversion. Per
    element of O: the rescaling.
    """
    scores = instance.rows * instance.tile.keys
    return 4 * scores + scores // 2 + instance.rows * instance.width_v
