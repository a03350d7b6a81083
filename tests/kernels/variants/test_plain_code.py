"""A plain kernel has the machine code that it had before its source knew any variant."""

import hashlib
import struct
from dataclasses import replace

import pytest

from labkernels.cuda.compiler import nvrtc
from tests.kernels.contract import SPECS

COMPILER = "13.0"  # of NVRTC: another one writes other code
# SHA-256 of the code for sm_90a at commit 882e0a85, the last one without variants: bf16, the first
# tile of 8 query heads per KV head in decode, and of 4 in a long prefill. By kernel, channels and
# layout.
HASHES = {
    ("decode_fma", 64, "paged"): "5ea34f9bf5ce08c5",
    ("decode_fma", 128, "paged"): "e956395d77e6aa07",
    ("decode_mma", 64, "paged"): "d00ca48c7f2b8932",
    ("decode_mma", 128, "paged"): "2eaac229e32e2319",
    ("decode_mma_n8", 64, "paged"): "50f5318e783f69f1",
    ("decode_mma_n8", 128, "paged"): "80f62f9a48180c51",
    ("prefill_fma", 64, "ragged"): "fde4ab8a5f7c7a8b",
    ("prefill_fma", 64, "paged"): "96c3a8d63681b163",
    ("prefill_fma", 128, "ragged"): "1aef6a438cf041dc",
    ("prefill_fma", 128, "paged"): "0156caeb913f9956",
    ("prefill_mma", 64, "ragged"): "533605ebbbe6c316",
    ("prefill_mma", 64, "paged"): "ad0bd60979e309bc",
    ("prefill_mma", 128, "ragged"): "b2fc3796357c1718",
    ("prefill_mma", 128, "paged"): "284028b4c9446127",
    ("prefill_wgmma", 64, "ragged"): "0b0537d7aa92e150",
    ("prefill_wgmma", 64, "paged"): "92f46dcad63e997c",
    ("prefill_wgmma", 128, "ragged"): "c290ab0035148caf",
    ("prefill_wgmma", 128, "paged"): "5b26827e35a284fb",
}
# The same for a backward pass at commit 621790dd: the kernel of dK and dV, the one that prepares
# rows, and the one that finishes dq. By kernel, channels, and how dq is summed or the rung.
OF_BACKWARD = {
    ("backward_mma", 64, "atomic"): ("eda2512943081453", "a688fa3a696c65b0", "a65bd1b9c407906b"),
    ("backward_mma", 64, "ordered"): ("50e4317312fcca81", "ed8a332803f52253", "6d8da4f7249e7f43"),
    ("backward_mma", 128, "atomic"): ("284379a2eb8b202f", "ebd0d623df303385", "a3ad69f41390a008"),
    ("backward_mma", 128, "ordered"): ("c5915b1192c4cb5a", "0f7d05d163ff7551", "d68aaa1d2ac09933"),
    ("backward_mma", 256, "atomic"): ("d4db115b8212ad96", "5956b3f3acc98e9e", "867a186ab58101a5"),
    ("backward_mma", 256, "ordered"): ("a473753e440eaa0d", "4377a4931153d341", "3f59d8c42049893f"),
    ("backward_wgmma", 64, "atomic"): ("6d65fd185c3d10fe", "a688fa3a696c65b0", "a65bd1b9c407906b"),
    ("backward_wgmma", 64, "ordered"): ("fdce9a2f947d5a06", "a688fa3a696c65b0", "a65bd1b9c407906b"),
    ("backward_wgmma", 128, "atomic"): ("136c8cef48615db9", "ebd0d623df303385", "a3ad69f41390a008"),
    ("backward_wgmma", 128, "ordered"): (
        "de03f733e01cb5f3",
        "ebd0d623df303385",
        "a3ad69f41390a008",
    ),
    ("backward_wgmma", 256, "atomic"): ("99b14b0515fb5908", "5956b3f3acc98e9e", "867a186ab58101a5"),
    ("backward_wgmma", 256, "ordered"): (
        "f1941824709c81df",
        "5956b3f3acc98e9e",
        "867a186ab58101a5",
    ),
    ("backward_wgmma", 128, "copies"): ("e7448b73bc67d73a",),
    ("backward_wgmma", 128, "tma"): ("f9bdb18674b6962b",),
    ("backward_wgmma", 128, "registers"): ("2bf777e9a27514a0",),
}
IN_SHORT = ("decode_mma", "prefill_mma", "prefill_wgmma")


def code_hash(cubin):
    """Return the start of the SHA-256 of an ELF file's one section of code."""
    (first,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, first + i * size) for i in range(count)]
    name_of = sections[names][4]
    (code,) = (
        cubin[begin : begin + length]
        for name, _, _, _, begin, length in sections
        if cubin[name_of + name :].startswith(b".text.")
    )
    return hashlib.sha256(code).hexdigest()[:16]


def compiled_hash(one):
    """Return the hash of a specialization's code."""
    if not nvrtc.nvrtc_version().startswith(COMPILER):
        pytest.skip(f"the hashes are of NVRTC {COMPILER}, this is {nvrtc.nvrtc_version()}")
    made = nvrtc.compile_kernel(
        one.header,
        instance=one.instance,
        defines=one.defines,
        arch="sm_90a",
        include_dirs=one.include_dirs,
    )
    return code_hash(made.cubin)


def named(table, in_short):
    """Return the keys of a table as parameters of a test; those not in short are long."""
    marks = {True: (), False: pytest.mark.long}
    return [pytest.param(of, id="-".join(map(str, of)), marks=marks[in_short(of)]) for of in table]


pytestmark = pytest.mark.skipif(nvrtc.available() is not None, reason="no NVRTC")


@pytest.mark.parametrize("of", named(HASHES, lambda of: of[0] in IN_SHORT))
def test_a_plain_kernel_keeps_its_machine_code(of):
    name, head_dim, layout = of
    spec = SPECS[name]
    group, rows = (8, 8) if spec.operation == "decode" else (4, 2**14)
    shape = spec.shape(head_dim=head_dim, group=group, rows=rows, layout=layout)
    assert compiled_hash(spec.specializations(spec.instances(shape)[0])[0]) == HASHES[of]


@pytest.mark.parametrize("of", named(OF_BACKWARD, lambda of: of[1] == 128))
def test_a_plain_backward_pass_keeps_its_machine_code(of):
    name, head_dim, dq = of
    spec = SPECS[name]
    listed = spec.instances(spec.shape(head_dim=head_dim, group=4, rows=2**14))
    listed += [replace(listed[0], tile=tile) for tile in spec.named_tiles(head_dim)]
    (instance, *_) = [one for one in listed if dq in (one.tile.rung or one.tile.dq)]
    found = spec.specializations(instance)
    expected = OF_BACKWARD[of]
    assert tuple(map(compiled_hash, found[: len(expected)])) == expected
