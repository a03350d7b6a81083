"""wgmma on the GPU reads its tiles where the descriptors say, and gives the model's bits."""

import numpy as np
import pytest

from labkernels.experiments._tensor_core_instructions import HEADER, MmaParams, wgmma_probe
from labkernels.numerics import rounding, tensor_core
from tests.cuda.host.test_warpgroup import LAYOUTS, tile

pytestmark = pytest.mark.gpu
STEPS, TILES = 4, 8


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize(("majors", "swizzle", "a_in_registers"), LAYOUTS)
def test_every_layout(fmt, majors, swizzle, a_in_registers):
    torch = pytest.importorskip("torch")
    from labkernels.cuda import compile as nvrtc
    from labkernels.cuda.device import planning_gpu
    from labkernels.cuda.launch import load

    gpu = planning_gpu()
    if gpu.arch != "sm_90":
        pytest.skip(f"wgmma is of sm_90; this GPU is of {gpu.arch}")
    probe = wgmma_probe(
        fmt, majors=majors, swizzle=swizzle, a_in_registers=a_in_registers, steps=STEPS
    )
    kernel = load(nvrtc.compile_kernel(HEADER, instance=probe, defines={}, arch=gpu.compile_arch))
    a, b = tile(fmt, (TILES, 64, 16 * STEPS)), tile(fmt, (TILES, 64, 16 * STEPS))
    c = np.random.default_rng(1).standard_normal((TILES, 64, 64)).astype(np.float32)
    stored = [
        np.ascontiguousarray(x if major == "k" else x.swapaxes(1, 2)).view(np.int16)
        for x, major in zip((a, b), majors, strict=True)
    ]
    tensors = [torch.from_numpy(x).cuda() for x in (*stored, c)]
    d = torch.full_like(tensors[2], float("nan"))
    kernel.launch(
        grid=(TILES, 1, 1),
        threads=128,
        smem_bytes=2 * 64 * 32 * STEPS,
        params=MmaParams(*(x.data_ptr() for x in (*tensors, d))),
        stream=torch.cuda.current_stream().cuda_stream,
    )
    values = (rounding.from_bits(x, fmt) for x in (a, b.swapaxes(1, 2)))
    want = tensor_core.matmul(*values, c, arch="sm_90", fmt=fmt)
    assert np.array_equal(d.cpu().numpy().view(np.uint32), want.view(np.uint32))
