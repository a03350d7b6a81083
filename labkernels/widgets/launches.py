"""Launches of the CPU build in a form that a page can run: all but the random numbers."""

from __future__ import annotations

import base64
import ctypes
from dataclasses import dataclass
from typing import Any

from labkernels import formats
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.cuda.gpu.tensor_map import TensorMap
from labkernels.cuda.host.build import ex2_coefficients
from labkernels.cuda.launch import Collected, collected, span_bytes
from labkernels.cuda.wasm import compiler
from labkernels.kernels.kernel import Instance
from labkernels.kernels.operation import BitCase, operations
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.numerics.emulation import tensor_core
from labkernels.numerics.error.bounds import EXP2_ERROR
from labkernels.numerics.error.execution import ANY_EXECUTION

DRAWN = ("q", "k", "v")  # in the order in which their numbers are drawn
PAGES = "page_table"  # its pages are drawn after DRAWN
_NAMES = {"k_pool": "k", "v_pool": "v"}
_TARGET = "h200"
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64
_POINTER_BYTES = 4
_TYPES = {
    ctypes.c_longlong: "i64",
    ctypes.c_int: "i32",
    ctypes.c_uint: "u32",
    ctypes.c_float: "f32",
}


@dataclass(frozen=True)
class PageLaunch:
    """One launch of a kernel: what is compiled, and what JavaScript needs to repeat the launch.

    plan: grid, threads, bytes, the parameter's fields at wasm32's offsets, the tensors, and the
    attention that they mean.
    """

    specialization: Specialization
    plan: dict[str, Any]


def page_launch(case: BitCase, *, seed: int = 0) -> PageLaunch:
    """Return the launch of a case, whose kernel's operation makes its inputs.

    Raises: ValueError for a case of several launches, or with a parameter that has no layout.
    """
    operation = next(op for op in operations().values() if isinstance(case.workload, op.workload))
    inputs = operation.inputs(case.workload, ExactNormal(seed))
    with collected() as launches:
        operation.step(inputs, target=_TARGET, **case.asked)
    if len(launches) != 1:
        raise ValueError(f"the case has {len(launches)} launches, allowed: 1")
    made = planned(launches[0])
    return PageLaunch(made.specialization, made.plan | {"attention": _attention(inputs, case)})


def planned(listed: Collected) -> PageLaunch:
    """Return a launch that was listed; its plan does not say what attention it means."""
    memory, launch = _Memory(listed), listed.launch
    made = launch.specialization
    params = type(launch.params).from_buffer_copy(listed.words)
    plan = {
        "grid": list(launch.grid),
        "threads": made.threads,
        "smem_bytes": made.smem_bytes,
        "params_bytes": _layout(type(params))[0],
        "fields": _fields(params, memory),
        "tensors": memory.entries(),
    }
    return PageLaunch(made, plan)


def module(specialization: Specialization, **how: bool) -> dict[str, Any]:
    """Return a kernel as WebAssembly, with the table of exp2; the first call compiles for seconds.

    how: options of `compiler.build`. places: source lines of a checked build's accesses, by number.
    """
    made = compiler.build(specialization, **how)
    ex2 = in_base64(ex2_coefficients().tobytes())
    return {"wasm": in_base64(made.wasm), "ex2": ex2, "places": dict(made.places)}


def in_base64(numbers: bytes) -> str:
    """Return bytes as a page's data has them."""
    return base64.b64encode(numbers).decode()


def _attention(inputs, case: BitCase) -> dict[str, Any]:
    """Return the attention that the launch computes, by the names of a Problem."""
    w, instance = case.workload, case.instance
    kv_lens = list(w.kv_lens)
    paged = getattr(w, "page_size", None)
    return {
        "dtype": instance.dtype,
        "out_dtype": "fp32" if instance.policy.out == "fp32" else instance.dtype,
        "q_lens": list(getattr(w, "q_lens", [1] * len(kv_lens))),
        "kv_lens": kv_lens,
        "q_heads": w.q_heads,
        "kv_heads": w.kv_heads,
        "head_dim": w.head_dim,
        "head_dim_v": getattr(w, "head_dim_v", w.head_dim),
        "page_size": paged or 0,
        "causal": bool(getattr(w, "causal", False)),
        "scale": inputs.scale,
    }


class _Memory:
    """The tensors of a launch, and its workspace: where each begins, and what it holds at first."""

    def __init__(self, made: Collected) -> None:
        self._written, self._space = made.launch.written, made.space
        self._tensors = {**made.tensors, **made.launch.own}
        self._places = {
            name: (tensor.data_ptr(), span_bytes(tensor)) for name, tensor in self._tensors.items()
        }
        for name, address in made.space.addresses.items():
            self._places[name] = (address, made.space.sizes_bytes[name])

    def entries(self) -> list[dict[str, Any]]:
        """Return every tensor, as launches.mjs makes it again."""
        return [self._entry(name, n_bytes) for name, (_, n_bytes) in self._places.items()]

    def pointee(self, address: int | None) -> dict[str, Any]:
        """Return the tensor and the byte that an address names; nothing for a null pointer."""
        if not address:
            return {}
        for name, (begin, n_bytes) in self._places.items():
            if 0 <= address - begin < max(n_bytes, 1):
                return {"tensor": name, "byte": address - begin}
        raise ValueError(f"address {address:#x} lies in no tensor of the launch")

    def _entry(self, name: str, n_bytes: int) -> dict[str, Any]:
        entry = {"name": name, "bytes": n_bytes, "written": name in self._written}
        role = _NAMES.get(name, name)
        if role in DRAWN:
            return entry | {"drawn": role}
        if role == PAGES:
            return entry | {"columns": self._tensors[name].shape[1]}
        if entry["written"]:
            return entry | {"filled": 0 if self._counts(name) else 0xFF}
        data = self._tensors[name].contiguous().view(-1).numpy().tobytes()
        return entry | {"data": in_base64(data)}

    def _counts(self, name: str) -> bool:
        """Return whether a tensor is in the workspace's counters, which are 0 between launches."""
        counters = self._space.counters
        if name not in self._space.addresses or counters is None:
            return False
        return 0 <= self._space.addresses[name] - counters.data_ptr() < span_bytes(counters)


def _layout(kind: type) -> tuple[int, int]:
    """Return bytes and alignment of a ctypes type on wasm32, whose pointers have 4 bytes."""
    if kind is ctypes.c_void_p:
        return _POINTER_BYTES, _POINTER_BYTES
    if kind is TensorMap:
        return _TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT
    if not issubclass(kind, ctypes.Structure):
        return ctypes.sizeof(kind), ctypes.alignment(kind)
    end, alignment = 0, 1
    for _, at, inner in _members(kind):
        size, align = _layout(inner)
        end, alignment = at + size, max(alignment, align)
    return -(-end // alignment) * alignment, alignment


def _members(kind: Any) -> list[tuple[str, int, type]]:
    """Return name, offset and type of a structure's members, without those called padding."""
    members, at = [], 0
    for name, inner, *_ in kind._fields_:
        if name == "padding":
            continue
        size, alignment = _layout(inner)
        at = -(-at // alignment) * alignment
        members.append((name, at, inner))
        at += size
    return members


def _fields(value, memory: _Memory, at: int = 0, name: str = "") -> list[dict[str, Any]]:
    """Return every number of a parameter, with its offset on wasm32."""
    kind = type(value)
    if kind is TensorMap:
        return _map_fields(value, memory, at, name)
    rows = []
    for member, offset, inner in _members(kind):
        place, found = at + offset, getattr(value, member)
        if inner is ctypes.c_void_p:
            rows.append({"name": member, "at": place, "type": "pointer"} | memory.pointee(found))
        elif issubclass(inner, ctypes.Structure):
            rows += _fields(found, memory, place, member)
        elif inner in _TYPES:
            number = {"type": _TYPES[inner], "value": repr(found)}
            rows.append({"name": member, "at": place, **number})
        else:
            raise ValueError(f"{member} is a {inner.__name__}, allowed: numbers and pointers")
    return rows


def _map_fields(value: TensorMap, memory: _Memory, at: int, name: str) -> list[dict[str, Any]]:
    """Return the words of a tensor map of the CPU build, the first of which is an address."""
    if not any(value.words):
        return []
    rows = [
        {"name": f"{name}[{i}]", "at": at + 8 * i, "type": "u64", "value": str(word)}
        for i, word in list(enumerate(value.words))[1:]
    ]
    address = {"name": name, "at": at, "type": "pointer64"}
    return [*rows, address | memory.pointee(value.words[0])]


def rounding(instance: Instance) -> dict[str, Any]:
    """Return the constants of out_bound for an instance: what attention.mjs calls Rounding."""
    policy = instance.policy.of(instance.dtype)
    part, out = formats.named(policy.p.removesuffix("x2")), formats.named(policy.out)
    unit = tensor_core.unit_of(ANY_EXECUTION.arch, "bf16")  # fp16 has the same
    return {
        "p_parts": policy.p_parts,
        "p_error": part.unit_roundoff**policy.p_parts,
        "p_underflow": 2.0**-25 if policy.p.startswith("fp16") else 2.0**-125,
        "exp2_error": EXP2_ERROR[policy.exp2],
        "tensor_cores": policy.tensor_cores,
        "chunk": unit.chunk,
        "step_error": 2.0**-23 + (unit.chunk + 1) * 2.0**-unit.fraction_bits,
        "rounded_denominator": policy.denominators[-1] == "rounded",
        "splits": ANY_EXECUTION.splits,
        "out_roundoff": out.unit_roundoff,
        "out_subnormal": out.smallest_subnormal,
    }
