"""On a real GPU, heads of 32, 80 and 96 channels have the bits of copies that zeros widen."""

import pytest

torch = pytest.importorskip("torch")

from labkernels.kernels.kernel import PADDED_DIMS  # noqa: E402
from tests.kernels.variants import test_channels as on_cpu  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("head_dim", PADDED_DIMS)
@pytest.mark.parametrize("kernel", on_cpu.PADDED)
def test_the_bits_of_widened_copies(kernel, head_dim):
    """Every layout and tile, one and several splits, a variant, and caches of 8 bits."""
    on_cpu.check_kernel(kernel, head_dim, "cuda", tiles=99, dtypes=("bf16", "fp16"))


@pytest.mark.parametrize("head_dim", PADDED_DIMS)
def test_a_cache_of_flash_attn_grows(head_dim):
    on_cpu.check_kvcache(head_dim, "cuda")
