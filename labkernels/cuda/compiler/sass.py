"""Reads machine code: instructions counted by name, and the resources that a kernel claims."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from labkernels.cuda.compiler import cache

# Part of the counts' key: raise it when _counted reads a listing in another way.
_COUNTED = "2"
# An address, a predicate such as @!P0, and the instruction's name up to its first modifier.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_USAGE = re.compile(r"Function (\S+):\s*REG:(\d+) STACK:(\d+)")


def available() -> str | None:
    """Return None where machine code can be read, else the reason."""
    if disassembler() is not None:
        return None
    return "cuobjdump is neither in Triton's wheel nor on the PATH: pip install triton (Linux only)"


def instruction_mix(cubin: bytes) -> dict[str, int]:
    """Count the instructions of all kernels of a file, most frequent first.

    Names lose their modifiers: HMMA.16816.F32 is HMMA. NOP is left out: it pads the end. The
    disassembler takes half a second to start, so that the lab's cache keeps the counts.

    Raises: RuntimeError if there is no disassembler, or it fails.
    """
    tool = disassembler()
    if tool is None:
        raise RuntimeError(available())
    about = f"{_COUNTED} {Path(tool).stat().st_size}"
    name = f"sass-{cache.content_key(about, cubin)}"
    found = cache.entry(name, lambda work: json.dumps(_counted(_run(cubin, "-sass"))).encode())
    return json.loads(found.content)


def cubin_usage(cubin: bytes) -> dict[str, tuple[int, int]]:
    """Read every kernel's registers and bytes of stack per thread out of machine code, by symbol.

    Raises: RuntimeError if there is no disassembler, or it fails.
    """
    found = _USAGE.findall(_run(cubin, "-res-usage"))
    return {symbol: (int(registers), int(stack)) for symbol, registers, stack in found}


def _counted(listing: str) -> dict[str, int]:
    names = (match[1] for line in listing.splitlines() if (match := _INSTRUCTION.match(line)))
    return dict(Counter(name for name in names if name != "NOP").most_common())


def disassembler() -> str | None:
    """Return the path of cuobjdump, beside which nvdisasm lies, or None."""
    # find_spec does not import Triton, which takes a second.
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        bundled = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        if bundled.is_file():
            return str(bundled)
    return shutil.which("cuobjdump") or shutil.which("/usr/local/cuda/bin/cuobjdump")


def _run(cubin: bytes, option: str) -> str:
    tool = disassembler()
    if tool is None:
        raise RuntimeError(available())
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, option, file.name], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} {option} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
