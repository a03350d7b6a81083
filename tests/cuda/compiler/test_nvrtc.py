"""NVRTC makes machine code, a report and a cache entry, without a GPU."""

import re
import shutil
import sys

import pytest

from labkernels.cuda.compiler import nvrtc, sass
from labkernels.hardware import ARCHS

SMEM_BYTES = 65536


def compile_add(header, instance="add::add<128>", *, arch="sm_90a", smem_bytes=SMEM_BYTES):
    defines = {"LAB_SMEM_BYTES": smem_bytes}
    return nvrtc.compile_kernel(header, instance=instance, defines=defines, arch=arch)


def entries(cache):
    return sorted((cache / "entries").glob("cubin-*"))


def needs_disassembler():
    reason = sass.available()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("arch", ARCHS)
def test_kernel_compiles_for_every_architecture(add_header, private_cache, arch):
    compiled = compile_add(add_header, "add::add_through_smem<128>", arch=arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.arch == arch
    assert "add_through_smem" in compiled.symbol
    report = compiled.report
    assert 1 <= report.registers <= 32
    assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0)
    # The compiler does not report dynamic shared memory.
    assert (report.static_smem_bytes, report.barriers, report.warnings) == (0, 1, ())


def test_everything_that_matters_is_in_the_key(add_header, private_cache, tmp_path):
    header = tmp_path / "kernel" / "add.cuh"
    header.parent.mkdir()
    shutil.copy(add_header, header)
    compile_add(header)
    compile_add(header, "add::add<64>")
    compile_add(header, smem_bytes=1024)
    compile_add(header, arch="sm_80")
    neighbour = header.parent / "neighbour.cuh"
    neighbour.write_text("// not yet included\n")
    compile_add(header)
    assert len(entries(private_cache)) == 4
    header.write_text(header.read_text() + '#include "neighbour.cuh"\n')
    compile_add(header)
    assert len(entries(private_cache)) == 5
    neighbour.write_text("// what the kernel includes is a part of it\n")
    compile_add(header)
    assert len(entries(private_cache)) == 6


def test_the_compiler_gets_the_very_bytes_that_were_hashed(add_header, private_cache, tmp_path):
    header = tmp_path / "kernel" / "add.cuh"
    header.parent.mkdir()
    header.write_text(add_header.read_text())
    files = nvrtc.device_sources("add.cuh", (header.parent, nvrtc.INCLUDE))
    first = compile_add(header)
    header.write_text("this does not compile")  # an edit after the hashing
    macros = [("LAB_SMEM_BYTES", str(SMEM_BYTES))]
    again = nvrtc._compile("add.cuh", files, instance=first.instance, macros=macros, arch="sm_90a")
    assert (again.cubin, again.report) == (first.cubin, first.report)


def test_a_warm_cache_needs_no_compiler_and_a_cold_one_names_it(
    add_header, private_cache, monkeypatch
):
    first = compile_add(add_header)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert re.search(r"cuda\.bindings cannot be imported.*labkernels\[gpu\]", nvrtc.available())
    assert compile_add(add_header) == first
    with pytest.raises(nvrtc.CompileError, match=r"cannot compile add::add<64>: cuda\.bindings"):
        compile_add(add_header, "add::add<64>")


def test_spills_are_reported_with_the_compilers_warning(add_header):
    compiled = compile_add(add_header, "add::spill<256>")
    report = compiled.report
    assert report.registers == 64
    assert min(report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) > 0
    assert any("Registers are spilled" in warning for warning in report.warnings)
    needs_disassembler()
    usage = sass.cubin_usage(compiled.cubin)[compiled.symbol]  # what the machine code claims
    assert usage == (report.registers, report.stack_bytes)


def test_serialised_wgmma_is_a_warning_though_ptxas_calls_it_info():
    slow = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are"
    log = (
        f"{slow} serialized due to insufficient register resources in function 'f'\n"
        "ptxas info    : Compiling entry function 'f' for 'sm_90a'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers\n"
    )
    (warning,) = nvrtc.parse_log(log, symbol="f").warnings
    assert "serialized" in warning


@pytest.mark.parametrize("arch", ARCHS)
def test_instructions_are_counted(add_header, arch):
    needs_disassembler()
    compiled = compile_add(add_header, "add::one_mma<lab::f16>", arch=arch)
    mix = sass.instruction_mix(compiled.cubin)
    assert (mix["HMMA"], mix["MUFU"], mix["LDG"], mix["STG"]) == (1, 4, 4, 4)
    assert "NOP" not in mix
    assert list(mix.values()) == sorted(mix.values(), reverse=True)
    spilled = sass.instruction_mix(compile_add(add_header, "add::spill<256>", arch=arch).cubin)
    assert min(spilled["STL"], spilled["LDL"]) > 0
    apart = sass.instruction_mix(compile_add(add_header, "add::multiply_add<128>", arch=arch).cubin)
    assert (apart["FMUL"], apart["FADD"], apart.get("FFMA")) == (1, 1, None)  # not fused


def test_disassembler_names_what_is_wrong(add_header, monkeypatch):
    needs_disassembler()
    compiled = compile_add(add_header)
    with pytest.raises(RuntimeError, match="cuobjdump"):
        sass.instruction_mix(b"not machine code")
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    with pytest.raises(RuntimeError, match="pip install triton"):
        sass.instruction_mix(compiled.cubin)


def test_wrong_ledger_does_not_compile(add_header):
    with pytest.raises(nvrtc.CompileError) as info:
        compile_add(add_header, "add::add_through_smem<32>", smem_bytes=SMEM_BYTES + 1)
    text = str(info.value)
    assert "add::add_through_smem<32> does not compile for sm_90a with LAB_SMEM_BYTES=65537" in text
    assert "the ledger's bytes are the compiler's" in text
    with pytest.raises(nvrtc.CompileError, match='identifier "subtract" is undefined'):
        compile_add(add_header, "subtract<128>")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arch": "sm_75"}, r"arch = 'sm_75', allowed: sm_80, .*sm_90, "),
        ({"arch": "hopper"}, "arch = 'hopper', allowed: sm_80"),
        ({"header": "no_such/kernel.cuh"}, r"header = 'no_such/kernel.cuh', allowed: a file"),
    ],
)
def test_unknown_request_is_named(add_header, change, words):
    arguments = {"header": add_header, "arch": "sm_90a", **change}
    with pytest.raises(ValueError, match=words):
        nvrtc.compile_kernel(**arguments, instance="add::add<128>", defines={})


def test_log_of_several_kernels_and_functions_is_told_apart():
    log = """\
ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compiling entry function '_Z1bv' for 'sm_90a'
ptxas info    : Function properties for _Z1bv
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 4096+0 bytes smem, 384 bytes cmem[0]
ptxas info    : Function properties for helper
ptxas         .     24 bytes stack frame, 1 bytes spill stores, 2 bytes spill loads
"""
    assert nvrtc.parse_log(log, symbol="_Z1bv") == nvrtc.ResourceReport(40, 5, 10, 24, 4096, 2, ())
    assert nvrtc.parse_log(log, symbol="_Z1av").registers == 10
    with pytest.raises(nvrtc.CompileError, match="no resources of _Z3addv"):
        nvrtc.parse_log(log, symbol="_Z3addv")


@pytest.mark.parametrize("version", [(12, 8), (12, 9), (13, 0)])
def test_only_an_nvrtc_that_has_a_cache_is_told_to_use_none(
    add_header, private_cache, monkeypatch, version
):
    from cuda.bindings import nvrtc as bindings

    def compile_program(program, number, options):
        given.extend(options)
        return before(program, number, options)

    given, before = [], bindings.nvrtcCompileProgram
    monkeypatch.setattr(bindings, "nvrtcCompileProgram", compile_program)
    monkeypatch.setattr(bindings, "nvrtcVersion", lambda: (0, *version))
    compile_add(add_header)
    assert (b"--no-cache" in given) == (version >= (12, 9))  # 12.8 refuses unknown options


def test_missing_nvrtc_is_named(add_header, monkeypatch):
    from cuda.bindings import nvrtc as bindings

    def missing():
        raise RuntimeError("Failure finding libnvrtc.so\nwhere it looked")

    monkeypatch.setattr(bindings, "nvrtcVersion", missing)
    assert nvrtc.available() == (
        "NVRTC cannot be loaded (Failure finding libnvrtc.so): pip install nvidia-cuda-nvrtc"
    )
