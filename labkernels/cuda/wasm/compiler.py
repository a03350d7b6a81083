"""One kernel and the CPU machine, compiled to one WebAssembly module by the clang of ziglang.

Modules are cached by the content of all that they are made from, as CPU builds are.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.compiler import cache, sources
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.host.build import TENSOR_CORES
from labkernels.cuda.host.compiler import INCLUDE_DIRS
from labkernels.cuda.wasm import coroutine

_LAB = INCLUDE_DIRS[0] / "lab"
# Files whose functions wait: they are compiled with the kernel, into which they are inlined.
_WAITING = (
    "host/instructions/warp_words.cpp",
    "host/machine/rendezvous.cpp",
    "host/memory/barriers.cpp",
    "host/memory/named_barriers.cpp",
)
# Part of every key: raise it when this file or coroutine.py changes what is made.
_CACHE_VERSION = "1"
_TARGET = ("-target", "wasm32-wasi", "-mcpu=generic+simd128+bulk_memory+sign_ext")
_OPTIMIZED = ("-Os", "-fno-sanitize=all", "-Wno-everything")
_LANGUAGE = (
    "-std=c++20",
    "-g1",
    "-gno-column-info",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)
# These do what -fsanitize=thread does; clang's driver has no -fsanitize=thread for WebAssembly.
_CHECKED = ("-Xclang", "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0")
_CHECKED += ("-mllvm", "-tsan-instrument-atomics=0")  # flags of the machine alone
_UNCHECKED = """#pragma clang attribute push(__attribute__((no_sanitize("thread"))), \
apply_to = function)
{}#pragma clang attribute pop
"""  # what the machine itself does
_INITIAL_MEMORY = 32 << 20

_ENTRY = """#include "{header}"
namespace {{ constexpr void (*kernel)({params}) = &{instance}; }}
extern "C" {{
void* lab_enter();
void lab_end_thread();
void lab_resume(void* frame) {{ __builtin_coro_resume(frame); }}
void* lab_begin(const void* params) {{
  void* frame = lab_enter();
  if (lab::host::lab_suspend()) lab::host::lab_leave();
  kernel(*static_cast<const {params}*>(params));
  lab_end_thread();
  return frame;
}}
__attribute__((export_name("lab_params_bytes"))) unsigned lab_params_bytes() {{
  return sizeof({params});
}}
}}
"""


# A function that coroutine.inline_what_waits has marked, and as a kernel in another file calls it.
_MARKED = re.compile(r"^define internal (.* #1\d{5} )", re.MULTILINE)
_CALLED = r"define linkonce_odr hidden \1"
# The other functions: how they begin, as the machine's object file has to keep them, and whole.
_OTHERS = re.compile(r"^define (internal|linkonce_odr)(?: hidden)? ((?!.* #1\d{5} ))", re.MULTILINE)
_KEPT = {"internal": "hidden", "linkonce_odr": "weak_odr hidden"}
_WHOLE = re.compile(
    r"^define (?:hidden |weak_odr )*((?!.* #1\d{5} ).*?)(?: comdat)?(?: align \d+)?"
    r"(?: !dbg !\d+)? \{\n(?:.*\n)*?\}$",
    re.MULTILINE,
)
_AS_IT_IS = ("-Wno-everything", "-Xclang", "-disable-llvm-passes")
# What a kernel includes by <>: std.hpp has all of it that a kernel needs.
_STANDARD = ("bit", "cstddef", "cstdint", "cstring", "source_location", "type_traits")
# Whatever waits is then inlined at once: one run of the compiler less.
_INLINED = """#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
#include "{header}"
#pragma clang attribute pop
"""


class ZigMissing(RuntimeError):
    """The package ziglang is not installed; the message says how to install it."""


class WasmError(RuntimeError):
    """The compiler refused; the message holds its words."""


@dataclass(frozen=True)
class Module:
    """A kernel as WebAssembly. places: source lines of a checked build's accesses, by number."""

    wasm: bytes
    places: Mapping[str, str]


@dataclass(frozen=True)
class Parts:
    """What a compiler in a page makes a module of.

    text: is compiled with `macros` and with `files`, which it includes. waiting: the machine's
    functions that wait, as LLVM's bitcode. others: what these call in their files, and machine: all
    other files, both as object files.
    """

    text: str
    files: Mapping[str, str]
    macros: Mapping[str, str | int]
    waiting: bytes
    others: bytes
    machine: bytes


def parts(made: Specialization, *, checks: bool, arch: str = "sm_90") -> Parts:
    """Return what `build` makes a kernel of, for a compiler elsewhere; checks bring a trace.

    Raises: ZigMissing; WasmError with the compiler's words.
    """
    folders = (*made.include_dirs, *INCLUDE_DIRS)
    how = _Build(made.defines, arch, checks, checks, folders)
    text = _ENTRY.format(header=made.header, params=made.params, instance=made.instance)
    if checks:
        text += '#include "lab/wasm/bounds.hpp"\n'
    else:
        text = _INLINED.format(header=made.header) + text
    standard = '#include "lab/wasm/std.hpp"\n'
    found = sources.included(standard + text, folders)
    files = {name: content.decode() for name, content in found.items()}
    files |= dict.fromkeys(_STANDARD, standard)
    return Parts(text, files, how.macros, *how.waiting(), how.machine().content)


def build(
    made: Specialization,
    *,
    arch: str = "sm_90",
    checks: bool = False,
    trace: bool = False,
    folders: Sequence[Path] = (),
) -> Module:
    """Compile a kernel with the tensor core of an architecture, or take it from the cache.

    A file in `folders` takes the place of the lab's of the same name. trace: the page is told of
    each word in which threads meet; this needs checks.

    Raises: ZigMissing; WasmError with the compiler's words.
    """
    how = _Build(made.defines, arch, checks, trace, (*folders, *made.include_dirs, *INCLUDE_DIRS))
    text = how.waiting_text + _ENTRY.format(
        header=made.header, params=made.params, instance=made.instance
    )
    machine = how.machine()
    name = f"wasm-{how.key(text, machine.path.name)}.json"

    def make(work: Path) -> bytes:
        kernel, places = how.kernel(text, work)
        linked = work / "linked.wasm"
        options = ["--no-entry", "--strip-all", f"--initial-memory={_INITIAL_MEMORY}"]
        exports = [f"--export={name}" for name in ("lab_set_ex2",)]
        objects = [_written(work / "machine.o", machine.content), kernel]
        _zig(["wasm-ld", *options, *exports, *map(str, objects), "-o", str(linked)], work)
        return json.dumps({"wasm": linked.read_bytes().hex(), "places": places}).encode()

    stored = json.loads(cache.entry(name, make).content)
    return Module(bytes.fromhex(stored["wasm"]), stored["places"])


@dataclass(frozen=True)
class _Build:
    """How one module is compiled."""

    defines: Mapping[str, str | int]
    arch: str
    checks: bool
    trace: bool
    folders: tuple[Path, ...]

    @property
    def flags(self) -> list[str]:
        """The flags of every file."""
        own = [f"-DLAB_ARCH={TENSOR_CORES[self.arch]}"]
        own += ["-DLAB_CHECKS"] if self.checks else []
        own += ["-DLAB_TRACE"] if self.trace else []
        return [*_TARGET, *_OPTIMIZED, *_LANGUAGE, *own]

    @property
    def macros(self) -> dict[str, str | int]:
        """The macros of the kernel's own file."""
        chosen = {"LAB_CHECKS": self.checks, "LAB_TRACE": self.trace}
        own = {name: 1 for name, wanted in chosen.items() if wanted}
        return {"LAB_ARCH": TENSOR_CORES[self.arch], **own, **self.defines}

    @property
    def waiting_text(self) -> str:
        """The source of the functions that wait."""
        text = "".join(f'#include "lab/{name}"\n' for name in _WAITING)
        return _UNCHECKED.format(text) if self.checks else text

    def key(self, text: str, *made_from: str) -> str:
        """Return a hash of all that a compile of this text depends on."""
        parts = sources.parts(sources.included(text, self.folders))
        own = [f"{name}={value}" for name, value in self.defines.items()]
        return cache.content_key(
            _CACHE_VERSION, _zig_version(), *self.flags, *own, "", text, *made_from, *parts
        )

    def machine(self) -> cache.Entry:
        """Return the object file of the machine without _WAITING; kernels share the file."""
        in_place = {path.name: path for path in (_LAB / "wasm").glob("*.cpp")}
        files = [in_place.pop(p.name, p) for p in sorted((_LAB / "host").rglob("*.cpp"))]
        names = [str(path.relative_to(_LAB)) for path in (*files, *in_place.values())]
        text = "".join(f'#include "lab/{n}"\n' for n in names if n not in _WAITING)
        shared = _Build({}, self.arch, self.checks, self.trace, self.folders)

        def make(work: Path) -> bytes:
            source, made = shared.source(text, work), work / "machine.o"
            _zig(["c++", *shared.flags, *source, "-c", "-o", str(made)], work)
            return made.read_bytes()

        return cache.entry(f"wasmmachine-{shared.key(text)}.o", make)

    def waiting(self) -> tuple[bytes, bytes]:
        """Return the bitcode of the functions that wait, and an object file of their files' others.

        Each function that waits is to be inlined, and only these are compiled with a kernel.
        """
        shared = _Build({}, self.arch, self.checks, self.trace, self.folders)
        text, flags = self.waiting_text, list(shared.flags)
        if not self.checks:  # which name lines
            flags.remove("-g1")

        def make(work: Path) -> bytes:
            compiled, waiting, others = (work / name for name in ("a.ll", "waiting.bc", "others.o"))
            source = shared.source(text, work)
            _zig(["c++", *flags, *source, "-S", "-emit-llvm", "-o", str(compiled)], work)
            ir = coroutine.inline_what_waits(compiled.read_text())
            ir = _OTHERS.sub(lambda found: f"define {_KEPT[found[1]]} ", _MARKED.sub(_CALLED, ir))
            whole = _written(work / "whole.ll", ir.encode())
            _zig(["c++", *_TARGET, *_OPTIMIZED, "-c", str(whole), "-o", str(others)], work)
            alone = _written(work / "alone.ll", _WHOLE.sub(r"declare \1", ir).encode())
            emit = ["-c", str(alone), "-emit-llvm", "-o", str(waiting)]
            _zig(["c++", *_TARGET, *_AS_IT_IS, *emit], work)
            return json.dumps([waiting.read_bytes().hex(), others.read_bytes().hex()]).encode()

        made_by = (_MARKED.pattern, _CALLED, _OTHERS.pattern, _WHOLE.pattern, *_AS_IT_IS)
        key = shared.key(text, *flags, *made_by)
        made = json.loads(cache.entry(f"wasmwaiting-{key}.json", make).content)
        waiting, others = map(bytes.fromhex, made)
        return waiting, others

    def source(self, text: str, work: Path) -> list[str]:
        """Return the arguments that name a source and the folder of what it includes."""
        include = sources.write(sources.included(text, self.folders), work / "kernels")
        mapped = f"-ffile-prefix-map={work}=/labkernels"
        source = _written(work / "source.cpp", text.encode())
        return [mapped, f"-I{include}", str(source)]

    def kernel(self, text: str, work: Path) -> tuple[Path, dict[str, str]]:
        """Return the object file of the kernel as a coroutine, and the lines of its accesses."""
        own = [f"-D{name}={value}" for name, value in self.defines.items()]
        own += _CHECKED if self.checks else ()
        compiled, inlined, made = (work / name for name in ("a.ll", "b.ll", "kernel.o"))
        emit = ["-S", "-emit-llvm"]
        source = self.source(text, work)
        _zig(["c++", *self.flags, *own, *source, *emit, "-o", str(compiled)], work)
        ir, places = coroutine.inline_what_waits(compiled.read_text()), {}
        if self.checks:
            ir, places = coroutine.numbered_accesses(ir)
        again = ["c++", *_TARGET, *_OPTIMIZED]
        whole = _written(work / "whole.ll", ir.encode())
        _zig([*again, *emit, str(whole), "-o", str(inlined)], work)
        ir = coroutine.suspendable(inlined.read_text())
        _zig([*again, "-c", str(_written(work / "c.ll", ir.encode())), "-o", str(made)], work)
        return made, places


def is_available() -> bool:
    """Return whether the compiler is installed."""
    try:
        return bool(_zig_version())
    except ZigMissing:
        return False


@functools.cache
def _zig_version() -> str:
    try:
        return importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        raise ZigMissing(
            "kernels cannot be compiled to WebAssembly without the package ziglang: "
            "pip install ziglang"
        ) from None


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _zig(arguments: Sequence[str], work: Path) -> None:
    """Run the compiler, whose own cache lies in the work folder."""
    caches = {f"ZIG_{kind}_CACHE_DIR": str(work / "zig") for kind in ("GLOBAL", "LOCAL")}
    answer = subprocess.run(
        [sys.executable, "-m", "ziglang", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **caches},
        cwd=work,
        check=False,
    )
    if answer.returncode != 0:
        raise WasmError(f"zig {arguments[0]} fails: {answer.stderr[:4000]}")
