"""Writes the compiler that runs in a page: clang, the machine, and the texts of the kernels."""

import base64
import gzip
import json
import lzma
import re
from pathlib import Path
from typing import Any

import npm
import numpy as np
import page_assignments

from labkernels.cuda.compiler import cache
from labkernels.cuda.wasm import compiler
from labkernels.places import WIDGETS
from labkernels.widgets import editing, kernels
from labkernels.widgets.launches import page_launch

KERNELS = editing.EDITED
NAME = "compiler"  # of the asset, and before the names of its parts
_CLANG = "@yowasp/clang/gen/llvm.core.wasm"
# What suits WebAssembly, whose code has no alignment. xz-embedded allows 64 MiB of memory.
_LZMA2 = {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26, "nice_len": 273}
_LZMA2 |= {"lc": 4, "lp": 0, "pb": 0}
_PARTS = 16  # a page tells how many have come
# A reader may change a kernel's own files and the phases that kernels share.
_MACHINE = ("lab/core/", "lab/host/", "lab/ampere/", "lab/hopper/", "lab/wasm/")
_OBJECTS = ("waiting", "others", "machine")
_BITS = 7  # in each character


def write(folder: Path) -> int:
    """Writes the assets of compile/compiler.mjs into a folder; returns their bytes.

    Raises: RuntimeError with npm's words; what the compiler of the machine raises.
    """
    clang = (npm.installed() / _CLANG).read_bytes()
    small = squeezed(clang)
    text, step = packed(small), -(-packed_length(small) // _PARTS)
    parts = [text[at : at + step] for at in range(0, len(text), step)]
    worker = npm.bundle(WIDGETS / "compile" / "worker.mjs")
    assets = {f"{NAME}.{i}": literal(part) for i, part in enumerate(parts)}
    given = {"parts": [len(p) for p in parts], "key": cache.content_key(clang)[:16]}
    assets[NAME] = written(given | {"worker": worker, "decoder": decoder(), **sources()})
    for name, value in assets.items():
        line = f"(globalThis.lab_assets ??= {{}})[{name!r}] = {value};\n"
        (folder / f"{name}.js").write_text(line, encoding="utf-8", newline="\n")
    return sum(len(value) for value in assets.values())


def sources(names: tuple[str, ...] = KERNELS) -> dict[str, Any]:
    """Returns the files that a reader may change, and the `Sources` of toolchain.mjs."""
    first = {offer.kernel.name: offer for offer in reversed(kernels.offers())}
    wanted = {name: page_launch(first[name].recorded).specialization for name in names}
    made: dict[str, Any] = {"kernels": {}, "files": {}}
    editable = {}
    for name, specialization in (wanted | page_assignments.kernels()).items():
        plain, checked = (compiler.parts(specialization, checks=c) for c in (False, True))
        made["kernels"][name] = {
            "plain": {"text": plain.text, "macros": plain.macros},
            "checked": {"text": checked.text, "macros": checked.macros},
            "files": list(checked.files),
        }
        made["files"] |= checked.files
        for kind, parts in (("plain", plain), ("checked", checked)):
            objects = {what: getattr(parts, what) for what in _OBJECTS}  # of all kernels alike
            made[kind] = made.get(kind) or {what: zipped(of) for what, of in objects.items()}
        own = [path for path in plain.files if "/" in path and not path.startswith(_MACHINE)]
        editable[name] = sorted(own, key=lambda path: path != specialization.header)
    return {"editable": editable, "sources": made}


def written(value: Any) -> str:
    """Returns JavaScript that makes a value, in which bytes are packed."""
    if isinstance(value, dict):
        rows = (f"{json.dumps(key)}: {written(inner)}" for key, inner in value.items())
        return f"{{{', '.join(rows)}}}"
    return literal(packed(value)) if isinstance(value, bytes) else json.dumps(value)


def zipped(data: bytes) -> bytes:
    """Returns the bytes as gzip's smallest, without a date."""
    return gzip.compress(data, 9, mtime=0)


def squeezed(data: bytes) -> bytes:
    """Returns the bytes as xz, which takes a third less than gzip; the cache keeps them."""

    def make(_: Path) -> bytes:
        how = {"check": lzma.CHECK_CRC32, "filters": [_LZMA2]}
        return lzma.compress(data, lzma.FORMAT_XZ, **how)

    return cache.entry(f"squeezed-{cache.content_key(data, repr(_LZMA2))}.xz", make).content


def decoder() -> bytes:
    """Returns the WebAssembly that undoes `squeezed`, gzipped.

    Raises: RuntimeError with npm's words.
    """
    script = (npm.installed() / npm.XZ).read_text()
    found = re.search(r"data:application/wasm;base64,([\w+/=]+)", script)
    if found is None:
        raise RuntimeError(f"{npm.XZ} holds no WebAssembly")
    return zipped(base64.b64decode(found[1]))


def packed(data: bytes) -> str:
    """Returns the bytes as text of 7-bit characters, which compile/pack.mjs reads."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    bits = np.pad(bits, (0, -len(bits) % _BITS)).reshape(-1, _BITS)
    return (np.packbits(bits, axis=1) >> (8 - _BITS)).tobytes().decode("ascii")


def packed_length(data: bytes) -> int:
    """Returns the number of characters of `packed`."""
    return -(-8 * len(data) // _BITS)


def literal(text: str) -> str:
    """Returns a JavaScript string of 7-bit characters, almost all of which stand for themselves."""
    for sign, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(sign, escaped)
    return f'"{text}"'
