"""Compiles Triton kernels to machine code without a GPU, in a separate process.

Triton decides at the import of a kernel whether to interpret it; that process never interprets.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

from labkernels.cuda.compiler import cache, sass, sources


@dataclass(frozen=True)
class TritonVariant:
    """One instance of a kernel: types ("*fp16", "i32", "fp32") and constants by argument name.

    Pointers, and the integers named in `multiples_of_16`, are compiled as multiples of 16, as
    Triton does for a call with such arguments.
    """

    source: Path
    function: str
    types: Mapping[str, str]
    constants: Mapping[str, int | float | bool]
    arch: str
    warps: int
    stages: int
    multiples_of_16: tuple[str, ...] = ()


@dataclass(frozen=True)
class TritonCompiled:
    """Machine code and its resources: registers and stack per thread, shared memory per block."""

    symbol: str
    cubin: bytes
    registers: int
    stack_bytes: int
    smem_bytes: int


def available() -> str | None:
    """Return None where Triton kernels can be compiled and read, else the reason."""
    if importlib.util.find_spec("triton") is None:
        return "triton cannot be imported: pip install triton (Linux only)"
    return sass.available()


def compile_triton(variants: Iterable[TritonVariant]) -> list[TritonCompiled]:
    """Compile kernels for their architectures, or take them from the lab's cache.

    Triton's own cache is not used, because it loads damaged files.

    Raises: RuntimeError with Triton's words if one does not compile.
    """
    requests = [{**asdict(variant), "source": str(variant.source)} for variant in variants]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    paths = [str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(f"Triton does not compile a kernel:\n{done.stderr.strip()}")
    return [_read(answer) for answer in json.loads(done.stdout.splitlines()[-1])]


def _read(answer: dict) -> TritonCompiled:
    symbol, cubin = answer["symbol"], base64.b64decode(answer["cubin"])
    return TritonCompiled(symbol, cubin, *sass.cubin_usage(cubin)[symbol], answer["smem_bytes"])


def _answer(request: dict) -> dict:
    """Return the cache's entry for a request, compiled if there is none."""
    import triton

    spec = importlib.util.spec_from_file_location("kernel_source", request["source"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The kernel's file, and the modules of the lab that it has imported.
    loaded = [name for name in sys.modules if name.startswith("labkernels")]
    files = {name: getattr(sys.modules[name], "__file__", None) for name in loaded}
    files["kernel_source"] = request["source"]
    texts = {name: Path(file).read_bytes() for name, file in files.items() if file}
    asked = json.dumps({**request, "source": ""}, sort_keys=True)
    key = cache.content_key(triton.__version__, asked, *sources.parts(texts))
    found = cache.entry(f"triton-{key}", lambda work: _compiled(module, request, work))
    return json.loads(found.content)


def _compiled(module: ModuleType, request: dict, work: Path) -> bytes:
    """Compile with an empty Triton cache inside the work folder."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    os.environ["TRITON_CACHE_DIR"] = str(work / "triton")
    function = getattr(module, request["function"])
    types, constants = request["types"], request["constants"]
    whole = [name for name, kind in types.items() if kind.startswith("*")]
    whole += request["multiples_of_16"]
    source = ASTSource(
        function,
        {name: types.get(name, "constexpr") for name in function.arg_names},
        constants,
        {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in whole},
    )
    capability = int(re.fullmatch(r"sm_(\d+)[af]?", request["arch"])[1])
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": request["warps"], "num_stages": request["stages"]},
    )
    answer = {
        "symbol": compiled.metadata.name,
        "smem_bytes": compiled.metadata.shared,
        "cubin": base64.b64encode(compiled.asm["cubin"]).decode(),
    }
    return json.dumps(answer).encode()


if __name__ == "__main__":
    print(json.dumps([_answer(request) for request in json.load(sys.stdin)]))
