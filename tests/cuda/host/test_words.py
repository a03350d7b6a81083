"""Every word of the lab's vocabulary does what its definition says."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from labkernels.numerics import rounding
from labkernels.numerics.emulation import exp2, tensor_core
from tests.cuda import cpu_tensor_core, machines
from tests.cuda.host.small_kernels import Params, aligned, build, run

RNG = np.random.default_rng(2026)
NAN_BITS = 0x7FFFFFFF


def random_floats(n):
    """Return floats of random bits, with zeros, infinities, NaN and subnormal numbers."""
    specials = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x80000001, 0x3F800000]
    bits = np.concatenate([specials, RNG.integers(0, 2**32, n - len(specials))])
    return bits.astype(np.uint32).view(np.float32)


def per_element(instance, values, columns=None, dtype=np.float32):
    """Return what a kernel makes of each value or row: one number, or several columns."""
    n = len(values)
    out = np.zeros(n if columns is None else (n, columns), dtype)
    grid = (-(-n // 128), 1, 1)
    return run(build(f"words::{instance}"), values, out, n, grid=grid, threads=128)


def on_machine(machine, instance, x, out, **how):
    """Run a kernel of one warp on the CPU build or the GPU."""
    params, tensors = Params(x.data_ptr(), out.data_ptr(), 0), {"in": x, "out": out}
    how = {"grid": (1, 1, 1), "threads": 32, "smem_bytes": 0, "written": {"out"}, **how}
    machines.launch(machine, "words.cuh", f"words::{instance}", params, tensors, **how)
    return out.cpu()


def test_every_block_and_thread_knows_its_place():
    out = np.zeros(12 * 64, np.int32)
    run(build("words::place"), np.zeros(1), out, grid=(2, 3, 2), threads=64)
    assert (out.reshape(12, 64) == np.arange(64) + 100 * np.arange(12)[:, None]).all()


def test_lanes_exchange_within_their_warp():
    out = run(build("words::exchange"), np.zeros(1), np.zeros((64, 5), np.int32), threads=64)
    t = np.arange(64)
    warp, lane = t & 32, t & 31
    assert (out[:, 0] == warp + (lane * 5 + 3) % 32).all()
    assert (out[:, 1] == (t ^ 9)).all()
    assert (out[:, 2] == warp + 31 - lane).all()
    assert (out[:, 3] == (t >= 32)).all()
    assert (out[:, 4] == (t & ~7) + (lane * 3 + 9) % 8 - 16).all()


@pytest.mark.parametrize("host_threads", [1, 4])
def test_blocks_draw_tickets(host_threads):
    out = aligned(np.zeros((101, 4)), np.float32)
    kernel = build("words::tickets")
    run(kernel, np.zeros(1), out, grid=(100, 1, 1), host_threads=host_threads)
    assert out[0, :1].view(np.int32) == 100
    assert (np.sort(out[1:, 0]) == np.arange(100)).all()
    assert (out[1:] == out[1:, :1]).all()


@pytest.mark.parametrize("addresses", ["false", "true"])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_deals_four_matrices_to_the_lanes(trans, addresses):
    matrices = aligned(RNG.integers(0, 2**16, (4, 8, 8)), np.uint16)
    kernel = build(f"words::matrices<{str(trans).lower()}, {addresses}>")
    out = run(kernel, matrices, np.zeros((32, 4), np.uint32), smem=512)
    dealt = matrices.transpose(0, 2, 1) if trans else matrices
    pairs = dealt.reshape(4, 32, 2).astype(np.uint32)
    assert (out == (pairs[..., 0] | pairs[..., 1] << 16).T).all()


def check_add_global(machine, blocks):
    """Subnormal numbers and sums count as zeros of their sign, in any order of the blocks."""
    tiny = 2.0**-130
    first = np.array([1.0, tiny, -tiny, 2.0**-126, 0.0, -0.0, np.inf, 3.0], np.float32)
    added = np.array([2.0, tiny, 0.0, -(2.0**-126) - tiny, 2.0**-126, -0.0, 1.0, tiny], np.float32)
    total = np.array([1 + 2.0 * blocks, 0, 0, 0, blocks * 2.0**-126, -0.0, np.inf, 3], np.float32)
    total[3] = [0.0, -(2.0**-126) - tiny][blocks > 1]  # 2^-126 - 2^-126 - tiny, then once more
    x, out = (
        torch.from_numpy(np.tile(values, (n * 16, 1)).copy()).to(machine)
        for values, n in ((added, blocks), (first, 1))
    )
    found = on_machine(machine, "additions", x, out, grid=(blocks, 1, 1)).numpy()
    assert np.array_equal(found, np.tile(total, (16, 1)))
    assert not np.signbit(found[:, 4]).any()


@pytest.mark.parametrize("blocks", [1, 2])
def test_four_floats_are_added_to_global_memory(blocks):
    check_add_global(machines.CPU, blocks)


def check_stmatrix(machine):
    """Lane i names row i ^ 5 of the 32 rows of four matrices."""
    matrices = torch.from_numpy(RNG.integers(0, 2**15, (4, 8, 8)).astype(np.int16))
    registers = matrices.view(torch.int32).reshape(4, 32).T.contiguous().to(machine)
    found = torch.zeros(32, 8, dtype=torch.int16, device=machine)
    found = on_machine(machine, "matrices_back", registers, found, smem_bytes=512)
    rows = np.arange(32) ^ 5  # lane's row -> where it lies
    assert torch.equal(found[rows], matrices.reshape(32, 8))


def test_stmatrix_is_ldmatrix_back():
    check_stmatrix(machines.CPU)


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_a_lane_finds_all_chunks_of_its_rows_from_one_address(head_dim):
    chunks = head_dim // 8
    kernel = build(f"words::addresses<{head_dim}>")
    out = run(kernel, np.zeros(1), np.zeros((32, chunks, 3), np.int32), smem=64 * head_dim)
    address, *offs = np.moveaxis(out, -1, 0)
    assert not np.any(offs)
    banks = address.reshape(4, 8, chunks) // 16 % 8  # of the rows that ldmatrix reads at once
    assert (np.sort(banks, axis=1) == np.arange(8)[:, None]).all()


def test_movmatrix_transposes_a_matrix_held_by_the_lanes():
    matrix = RNG.integers(0, 2**16, (8, 8)).astype(np.uint16)
    out = run(build("words::transpose"), matrix, np.zeros((8, 4), np.uint32))
    assert (out.view(np.uint16) == matrix.T).all()


def fragments(a, b, c):
    """Lane 4 g + t holds rows g, g + 8 of a and c, columns 2t, 2t + 1 and 2t + 8, 2t + 9."""
    n = len(a)
    lanes = np.empty((n, 32, 10), np.uint32)
    for lane in range(32):
        g, t = lane // 4, lane % 4 * 2
        halves = [a[:, g, t:], a[:, g + 8, t:], a[:, g, t + 8 :], a[:, g + 8, t + 8 :]]
        halves += [b[:, t:, g], b[:, t + 8 :, g]]
        for i, half in enumerate(halves):
            lanes[:, lane, i] = half[:, 0] | half[:, 1].astype(np.uint32) << 16
        lanes[:, lane, 6:8] = c[:, g, t : t + 2].view(np.uint32)
        lanes[:, lane, 8:] = c[:, g + 8, t : t + 2].view(np.uint32)
    return lanes


@pytest.mark.parametrize(("cpp", "dtype"), [("lab::f16", "fp16"), ("lab::bf16", "bf16")])
def test_mma_multiplies_the_tile_that_the_lanes_hold(cpp, dtype):
    n = 20
    a, b, c = factors("normal", dtype, n)
    out = np.zeros((n, 32, 4), np.float32)
    run(build(f"words::mma<{cpp}>"), fragments(a, b, c), out, grid=(n, 1, 1))
    d = np.empty((n, 16, 8), np.float32)
    for lane in range(32):
        g, t = lane // 4, lane % 4 * 2
        d[:, g, t : t + 2], d[:, g + 8, t : t + 2] = out[:, lane, :2], out[:, lane, 2:]
    want = cpu_tensor_core.matmul(a, b, c, arch="sm_90", fmt=dtype)
    assert (d.view(np.uint32) == want.view(np.uint32)).all()


def bits16(x, dtype):
    """Return the bits of x, cut to bf16 or rounded to fp16."""
    if dtype == "fp16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def values16(bits, dtype):
    if dtype == "fp16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def factors(kind, dtype, n):
    """Return n tiles a, b, c: normals, wide exponents, results near 2^-126, or random bits."""
    shapes = ((n, 16, 16), (n, 16, 8), (n, 16, 8))
    a, b, c = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    if kind == "bits":
        a, b = (RNG.integers(0, 2**16, shape).astype(np.uint16) for shape in shapes[:2])
        return a, b, random_floats(c.size).reshape(c.shape)
    wide = (-20, 15) if dtype == "fp16" else (-60, 60)
    tiny = (-24, -8) if dtype == "fp16" else (-133, -20)
    if kind != "normal":
        low, high = wide if kind == "wide" else tiny
        a, b = (x * np.float32(2) ** RNG.integers(low, high, x.shape) for x in (a, b))
        c = c * np.float32(2) ** RNG.integers(*(wide if kind == "wide" else (-149, -100)), c.shape)
    a[:, 5:9] = 0  # the machine has a shorter path for rows of zeros
    c[0] = -0.0
    return (
        bits16(a.astype(np.float32), dtype),
        bits16(b.astype(np.float32), dtype),
        c.astype(np.float32),
    )


@pytest.mark.parametrize("kind", ["normal", "wide", "tiny", "bits"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90"])
def test_tensor_core_has_the_bits_of_the_numpy_model(arch, dtype, kind):
    a, b, c = factors(kind, dtype, 40)
    d = cpu_tensor_core.matmul(a, b, c, arch=arch, fmt=dtype)
    with np.errstate(all="ignore"):
        want = tensor_core.matmul(values16(a, dtype), values16(b, dtype), c, arch=arch, fmt=dtype)
    assert (d.view(np.uint32) == want.astype(np.float32).view(np.uint32)).all()


@pytest.mark.parametrize("kind", ["normal", "bits"])
@pytest.mark.parametrize(
    ("arch", "fmt"), [("sm_80", "fp16"), ("sm_89", "bf16"), ("sm_90", "fp16"), ("sm_90", "e4m3")]
)
def test_any_format_has_the_bits_of_the_numpy_model(arch, fmt, kind):
    size = 1 if fmt == "e4m3" else 2
    shapes = ((6, 16, 64), (6, 64, 8), (6, 16, 8))
    a, b = (RNG.integers(0, 2 ** (8 * size), shape).astype(f"u{size}") for shape in shapes[:2])
    if kind == "normal":  # exponents near the middle: no infinities, no NaN
        top = {"fp16": 0x3FFF, "bf16": 0x40FF, "e4m3": 0x3F}[fmt]
        a, b = (x & x.dtype.type(top | 1 << (8 * size - 1)) for x in (a, b))
    c = RNG.standard_normal(shapes[2]).astype(np.float32)
    got = cpu_tensor_core.matmul(a, b, c, arch=arch, fmt=fmt)
    with np.errstate(all="ignore"):
        values = (rounding.from_bits(x, fmt) for x in (a, b))
        want = tensor_core.matmul(*values, c, arch=arch, fmt=fmt)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(("cpp", "dtype"), [("lab::f16", "fp16"), ("lab::bf16", "bf16")])
def test_float_rounds_to_16_bits(cpp, dtype):
    x = random_floats(4096)
    x[8:2056] = RNG.standard_normal(2048) * 2.0 ** RNG.integers(-26, 17, 2048)
    got = per_element(f"round<{cpp}>", x, 2, np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):
        one, minus = (
            np.where(np.isnan(x), 0x7FFF, rounding.to_bits(y, dtype)).astype(np.uint32)
            for y in (x, -x)
        )
    assert (got[:, 0] == one).all()
    assert (got[:, 1] == (one | minus << 16)).all()


@pytest.mark.parametrize(("cpp", "dtype"), [("lab::f16", "fp16"), ("lab::bf16", "bf16")])
def test_sixteen_bits_widen_exactly(cpp, dtype):
    bits = np.arange(2**16, dtype=np.uint16).reshape(-1, 2)
    got = per_element(f"unpack<{cpp}>", bits, 2)
    with np.errstate(invalid="ignore"):
        want = values16(bits, dtype).astype(np.float32)
    number = ~np.isnan(want)
    assert (got.view(np.uint32)[number] == want.view(np.uint32)[number]).all()
    assert np.isnan(got[~number]).all()


def test_arithmetic_is_fused_only_where_it_says_so():
    n = 512
    abc = (RNG.standard_normal((n, 3)) * 2.0 ** RNG.integers(-8, 8, (n, 3))).astype(np.float32)
    got = per_element("arithmetic", abc, 4)
    a, b, c = abc.T
    # Rounded once: no neighbour is nearer to the exact sum.
    for x, y, z, fused in zip(a, b, c, got[:, 0], strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(fused)) - exact)
        for end in (np.float32(np.inf), -np.float32(np.inf)):
            neighbour = np.nextafter(fused, end)
            assert error <= abs(Fraction(float(neighbour)) - exact)
    assert (got[:, 1] == a * b + c).all()
    assert (got[:, 1] != got[:, 0]).any()
    assert (got[:, 2] == a / b).all()
    assert (got[:, 3] == np.maximum(a, b)).all()


def test_maximum_knows_nan_and_the_sign_of_zero():
    nan = np.float32(np.nan)
    a = np.array([nan, 1, nan, 0.0, -0.0, -0.0, -np.inf, np.inf], np.float32)
    b = np.array([2, nan, nan, -0.0, 0.0, -0.0, 3, nan], np.float32)
    abc = np.stack([a, b, b], axis=1)
    got = per_element("arithmetic", abc, 4)[:, 3]
    want = np.array([2, 1, nan, 0.0, 0.0, -0.0, 3, np.inf], np.float32).view(np.uint32)
    want[2] = NAN_BITS
    assert (got.view(np.uint32) == want).all()


def test_ex2_has_the_bits_of_the_numpy_model():
    x = random_floats(8192)
    x[8:6008] = RNG.standard_normal(6000) * 2.0 ** RNG.integers(-24, 8, 6000)
    near = [-126, -127, -125.99999, -126.00001, 127.99999, 128]
    x[6008:6020] = [*near, -149, 0.5, -0.5, 1, -1, 2**-24]
    got = per_element("exp2", x)
    with np.errstate(all="ignore"):
        want = exp2.exp2_mufu(x)
    assert (got.view(np.uint32) == np.asarray(want, np.float32).view(np.uint32)).all()


def test_shared_memory_starts_as_nan_and_a_copy_lands_when_waited_for():
    rows = aligned(RNG.integers(0, 2**32, (32, 4)), np.uint32)
    out = run(build("words::copies"), rows, np.zeros((32, 5), np.uint32), smem=1024)
    assert (out[:, 0] == 0xFFFFFFFF).all()
    assert (out[:, 1] == 512 + 16 * np.arange(32)).all()
    assert (out[:, 2] == 0xFFFFFFFF).all()
    assert (out[:, 3] == rows[:, 0]).all()
    assert (out[:, 4] == 0).all()
