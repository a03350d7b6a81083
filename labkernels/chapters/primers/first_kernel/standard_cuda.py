"""Launches a kernel that is written in standard CUDA, by the line that a C++ program would have.

The text becomes a kernel of the lab: a pointer to global memory becomes one that is checked, a
`__shared__` array a part of the block's shared memory, and the parameters a structure.
"""

from __future__ import annotations

import ast
import contextlib
import re
from typing import TYPE_CHECKING

import numpy as np

from labkernels.chapters.primers import machine
from labkernels.cuda.compiler import cache

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "your_kernel.cu"  # in messages of the compiler and of the CPU machine
SECTOR_BYTES, WARP_LANES = 32, 32
_SMEM_BYTES = 48 * 1024
_TYPES = {"float": np.float32, "int": np.int32}
_ACCESS = np.dtype("u8, i4, i4, i4, i2, i2")
_ACCESS.names = ("address", "block", "thread", "line", "bytes", "writes")
_KERNEL = re.compile(r"__global__\s+void\s+(\w+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(r"(const\s+)?(float|int)\s*(\*?)\s*(?:__restrict__\s+)?(\w+)")
_POINTER = re.compile(r"\b(const\s+)?(float|int)\s*\*\s*(?:__restrict__\s+)?(?=\w)")
_SHARED = re.compile(r"__shared__\s+(float|int)\s+(\w+)\s*((?:\[[^\]]+\])*)\s*;")
_LAUNCH = re.compile(r"\s*(\w+)\s*<<<(.+)>>>\s*\((.*)\)\s*;?\s*", re.DOTALL)
_LINES = """#pragma once
#include "lab/standard.cuh"
{prints}namespace lab::standard {{
constexpr Size grid_size = {{{grid}}}, block_size = {{{block}}};
}}
namespace yours {{
using lab::standard::Global;
struct Params {{ lab::standard::Access* log; lab::i64* length; int room; {fields} }};
#line 1 "{name}"
{text}
#line 1 "lab/standard.cuh"
LAB_KERNEL({threads}, 1) launched(LAB_GRID_CONSTANT Params p) {{
  lab::standard::listen(p.log, p.length, p.room);
  {kernel}({passed});
}}
}}  // namespace yours
"""


def launch(source: str, call: str, **arguments: np.ndarray | int | float) -> None:
    """Run a kernel of standard CUDA by its launch, such as "add<<<4, 64>>>(x, y, z, n)".

    Arrays are float32 or int32; those whose pointers are not const hold what the kernel wrote. The
    kernel runs on the CPU machine, or on a GPU in a context of `machine.on_gpu`.
    Raises: ValueError for what is no kernel or no launch of it; HostKernelError as the CPU machine.
    """
    _run(source, call, arguments, np.zeros(1, _ACCESS), room=0)


def counted(source: str, call: str, **arguments: np.ndarray | int | float) -> pd.DataFrame:
    """Run a kernel on the CPU machine, and return what each line asks of global memory per warp.

    A warp's access is what its lanes do at one line in the same turn. Columns: line, what ("loads"
    or "stores"), warps (accesses), lanes, bytes (that the lanes want) and sectors (of 32 bytes,
    that memory moves); the last three are means of one access.
    Raises: as `launch`.
    """
    import pandas as pd  # a GPU machine may have none

    log, length = np.zeros(1 << 16, _ACCESS), np.zeros(1, np.int64)
    _run(source, call, arguments, log, room=len(log), length=length)
    if length[0] > len(log):
        raise ValueError(f"{length[0]} accesses, allowed: {len(log)} in a launch that is counted")
    found = pd.DataFrame(log[: length[0]])
    who = ["line", "writes", "block", "thread"]
    found["turn"] = found.groupby(who).cumcount()
    found["warp"], found["sector"] = found.thread // WARP_LANES, found.address // SECTOR_BYTES
    one = found.groupby(["line", "writes", "block", "warp", "turn"])
    each = one.agg(
        lanes=("thread", "nunique"), bytes=("bytes", "sum"), sectors=("sector", "nunique")
    )
    table = each.groupby(["line", "writes"]).agg(
        warps=("lanes", "size"), lanes=("lanes", "mean"), bytes=("bytes", "mean"),
        sectors=("sectors", "mean"),
    )  # fmt: skip
    table = table.reset_index()
    table.insert(1, "what", np.where(table.writes, "stores", "loads"))
    return table.drop(columns="writes")


def _run(source, call, arguments, log, *, room, length=None) -> None:
    kernel, parameters = _kernel(source)
    name, grid, block, passed = _launch(call, arguments)
    if name != kernel:
        raise ValueError(f"the launch names {name}, but the kernel is {kernel}")
    if len(passed) != len(parameters):
        raise ValueError(f"{kernel} has {len(parameters)} parameters, the launch {len(passed)}")
    values, writes, copies = {}, [], {}
    for (const, kind, star, field), value in zip(parameters, passed, strict=True):
        values[field] = value
        if not star:
            continue
        if not isinstance(value, np.ndarray) or value.dtype != _TYPES[kind]:
            raise ValueError(f"{field} is no array of {kind}, which {kernel} takes")
        values[field] = copies[field] = machine.aligned(value, SECTOR_BYTES)
        if not const:
            writes.append(field)
    text = _text(source, kernel, parameters, grid, block)
    folders = (cache.overlay({"first.cuh": text}),)
    noted = {"log": log, "length": np.zeros(1, np.int64) if length is None else length}
    with machine.printed() if "printf" in source else contextlib.nullcontext() as printed:
        machine.run(
            "first.cuh",
            "yours::launched",
            noted | {"room": room} | values,
            grid=grid,
            threads=block[0] * block[1] * block[2],
            smem_bytes=_SMEM_BYTES,
            writes=writes,
            folders=folders,
        )
    if printed:
        print(*printed, sep="\n")
    for (_, _, star, field), value in zip(parameters, passed, strict=True):
        if star and field in writes:
            value[...] = copies[field]


def _kernel(source: str) -> tuple[str, list[tuple[str, ...]]]:
    found = _KERNEL.findall(source)
    if len(found) != 1:
        raise ValueError(f"{len(found)} functions are __global__ void, allowed: 1")
    name, inside = found[0]
    parts = [part.strip() for part in inside.split(",") if part.strip()]
    matches = [_PARAMETER.fullmatch(part) for part in parts]
    for part, match in zip(parts, matches, strict=True):
        if match is None:
            raise ValueError(f"parameter {part!r}, allowed: float or int, or a pointer to them")
    return name, [tuple(group or "" for group in match.groups()) for match in matches if match]


def _launch(call: str, arguments) -> tuple[str, tuple[int, ...], tuple[int, ...], list]:
    match = _LAUNCH.fullmatch(call)
    if match is None:
        raise ValueError(f"{call!r} is no launch, allowed: name<<<blocks, threads>>>(arguments)")
    sizes = [_value(node, arguments) for node in _expressions(match[2])]
    if len(sizes) != 2:
        raise ValueError(f"<<<{match[2]}>>>: {len(sizes)} sizes, allowed: blocks and threads")
    grid, block = ((*(s if isinstance(s, tuple) else (s,)), 1, 1)[:3] for s in sizes)
    return match[1], grid, block, [_value(node, arguments) for node in _expressions(match[3])]


def _expressions(text: str) -> list[ast.expr]:
    """Return the expressions between the commas of a launch."""
    try:
        body = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} in the launch is no list of expressions") from None
    return body.elts if isinstance(body, ast.List) else []


def _value(node: ast.expr, arguments):
    """Return the value of a launch's expression: C's integers, names, and dim3."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if name in arguments:
            return arguments[name]
        case ast.Call(func=ast.Name(id="dim3"), args=parts):
            return tuple(_value(part, arguments) for part in parts)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, arguments), _value(right, arguments)
            signs = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__"}
            signs |= {ast.Div: "__floordiv__" if isinstance(a, int) else "__truediv__"}
            if type(op) in signs:
                return getattr(a, signs[type(op)])(b)
    raise ValueError(f"{ast.unparse(node)!r} is unknown in the launch; give it as an argument")


def _text(source: str, kernel: str, parameters, grid, block) -> str:
    """Return the kernel's text for the lab's compilers, with the lines of `source` kept."""
    taken: list[str] = []

    def array(match: re.Match[str]) -> str:
        kind, at = f"{match[1]}{match[3]}", " + ".join(taken) or "0"
        taken.append(f"(sizeof({kind}) + 15) / 16 * 16")
        return f"auto& {match[2]} = ::lab::standard::block_array<{kind}, {at}>();"

    text = _SHARED.sub(array, source)
    if "__shared__" in text:
        raise ValueError("__shared__ here takes one array of float or int, of a size that is known")
    text = _POINTER.sub(lambda m: f"Global<{m[1] or ''}{m[2]}> ", text)
    text = re.sub(r"\b__global__\b|\b__device__\b", "LAB_DEVICE", text)
    sizes = {"grid": ", ".join(map(str, grid)), "block": ", ".join(map(str, block))}
    fields = " ".join(f"{const}{kind}{star} {name};" for const, kind, star, name in parameters)
    passed = ", ".join(f"p.{name}" for *_, name in parameters)
    threads = block[0] * block[1] * block[2]
    look = {"name": SOURCE, "text": text, "kernel": kernel, "passed": passed, "threads": threads}
    look["prints"] = machine.DECLARES_PRINTF if "printf" in source else ""
    return _LINES.format(**sizes, fields=fields, **look)
