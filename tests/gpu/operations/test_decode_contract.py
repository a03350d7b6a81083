"""Every decode kernel keeps the contract of tests/kernels on a real GPU."""

import pytest

torch = pytest.importorskip("torch")

from labkernels.policy import (  # noqa: E402
    CUDA_CORES,
    TENSOR_CORES,
)
from tests.kernels.contract import (  # noqa: E402
    CUDA,
    DECODERS,
    RAGGED,
    run_checked,
)
from tests.kernels.decode.cases import (  # noqa: E402
    LAYOUTS,
    decode_case,
)

pytestmark = pytest.mark.gpu

GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
SPLITS = (None, 64, 37, 10_000)
every_cuda_kernel = pytest.mark.parametrize("kernel", CUDA)
every_gpu_kernel = pytest.mark.parametrize("kernel", [*CUDA, "triton_decode"])


@every_gpu_kernel
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_group(kernel, group, dtype):
    layout = LAYOUTS[group % len(LAYOUTS)]
    case = decode_case(
        RAGGED, group=group, head_dim=128, layout=layout, dtype=dtype, seed=group, device="cuda"
    )
    for keys_per_split in SPLITS:
        run_checked(case, kernel, keys_per_split=keys_per_split)


@every_gpu_kernel
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_tile(kernel, head_dim, dtype):
    spec = DECODERS[kernel]
    for group in (4, 16):
        case = decode_case(RAGGED, group=group, head_dim=head_dim, dtype=dtype, device="cuda")
        for tile in spec.tiles(spec.shape(head_dim=head_dim, group=group), spec.policies[0]):
            run_checked(case, kernel, tile=tile.label, keys_per_split=300)


@every_cuda_kernel
def test_every_policy(kernel):
    case = decode_case(RAGGED, group=8, seed=11, device="cuda")
    for policy in CUDA[kernel].policies:
        run_checked(case, kernel, policy=policy, keys_per_split=300)


@pytest.mark.parametrize("policy", [TENSOR_CORES, CUDA_CORES], ids=["on", "off"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_triton_with_tensor_cores_on_and_off(policy, dtype, head_dim):
    case = decode_case(RAGGED, group=5, head_dim=head_dim, dtype=dtype, device="cuda")
    tiles = DECODERS["triton_decode"].tiles(
        DECODERS["triton_decode"].shape(head_dim=head_dim, group=16), policy
    )
    for tile in tiles:
        for keys_per_split in (None, 100):
            run_checked(
                case,
                "triton_decode",
                policy=policy,
                tile=tile.label,
                keys_per_split=keys_per_split,
            )


def test_float64_reference():
    case = decode_case(RAGGED, dtype="bf16", device="cuda")
    run_checked(case, "reference", sharp=False)


@every_gpu_kernel
@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 256])
def test_every_page_size_and_layout(kernel, page_size):
    for layout in LAYOUTS:
        case = decode_case(RAGGED, page_size=page_size, layout=layout, dtype="bf16", device="cuda")
        run_checked(case, kernel)


@every_gpu_kernel
@pytest.mark.parametrize("kv_len", [0, 1, 15, 16, 17, 63, 64, 65, 128, 129, 5000])
def test_lengths_around_a_step(kernel, kv_len):
    case = decode_case((kv_len,), kv_heads=1, seed=kv_len, device="cuda")
    for keys_per_split in (16, 64, None):
        run_checked(case, kernel, keys_per_split=keys_per_split)


@every_gpu_kernel
def test_splits_and_requests_without_keys(kernel):
    case = decode_case((1000, 0, 1, 64, 65), seed=5, device="cuda")
    run_checked(case, kernel, keys_per_split=64)
    run_checked(decode_case((0, 0, 0), device="cuda"), kernel, keys_per_split=1)
