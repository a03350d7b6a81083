"""Reads machine code: instructions counted by name, and the resources that a kernel claims."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.compiler import cache

# Part of the counts' key: raise it when _functions reads a listing in another way.
_COUNTED = "1"
_FUNCTION = re.compile(r"^\s*Function\s*:\s*(\S+)")
# An address, a predicate such as @!P0, and the instruction's name up to its first modifier.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_USAGE = re.compile(
    r"Function (\S+):\s*REG:(?P<registers>\d+) STACK:(?P<stack_bytes>\d+) "
    r"SHARED:(?P<static_smem_bytes>\d+) LOCAL:(?P<local_bytes>\d+)"
)


@dataclass(frozen=True)
class Usage:
    """Resources of machine code: registers and stack per thread, shared memory per block."""

    registers: int
    stack_bytes: int
    static_smem_bytes: int
    local_bytes: int


def available() -> str | None:
    """Return None where machine code can be read, else the reason."""
    if disassembler() is not None:
        return None
    return "cuobjdump is neither in Triton's wheel nor on the PATH: pip install triton (Linux only)"


def instruction_mix(cubin: bytes, *, symbol: str | None = None) -> dict[str, int]:
    """Count the instructions of a kernel, or of all kernels of a file, most frequent first.

    Names lose their modifiers: HMMA.16816.F32 is HMMA. NOP is left out: it pads the end. The
    disassembler takes half a second to start, so that the lab's cache keeps the counts.

    Raises: RuntimeError if there is no disassembler or it fails, ValueError for a foreign symbol.
    """
    tool = disassembler()
    if tool is None:
        raise RuntimeError(available())
    about = f"{_COUNTED} {Path(tool).stat().st_size}"
    name = f"sass-{cache.content_key(about, cubin)}"
    found = cache.entry(name, lambda work: json.dumps(_functions(_run(cubin, "-sass"))).encode())
    functions = {of: Counter(counts) for of, counts in json.loads(found.content).items()}
    if symbol is not None and symbol not in functions:
        raise ValueError(f"symbol = {symbol!r}, allowed: {', '.join(functions)}")
    chosen = functions.values() if symbol is None else [functions[symbol]]
    return dict(sum(chosen, Counter()).most_common())


def cubin_usage(cubin: bytes) -> dict[str, Usage]:
    """Read every kernel's registers and bytes out of machine code, by symbol.

    Raises: RuntimeError if there is no disassembler, or it fails.
    """
    return {
        match[1]: Usage(**{name: int(value) for name, value in match.groupdict().items()})
        for match in _USAGE.finditer(_run(cubin, "-res-usage"))
    }


def _functions(listing: str) -> dict[str, Counter[str]]:
    functions: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            counts = functions.setdefault(match[1], Counter())
        elif (match := _INSTRUCTION.match(line)) and match[1] != "NOP":
            counts[match[1]] += 1
    return functions


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
