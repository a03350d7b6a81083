"""Triton's published tutorial kernel (06-fused-attention) as a peer, from a file that you name.

The file belongs to Triton and is not part of the lab: `--peer-path FILE` names it, and without the
option the peer is missing. The kernel takes fp16, one KV head per query head, and requests of one
length.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


def missing(path: Path | None) -> str | None:
    """Return why there is no such peer, or None."""
    if path is None:
        return "no --peer-path names Triton's tutorial file"
    return None if Path(path).is_file() else f"{Path(path).name}: no such file"


def load(path: Path) -> ModuleType:
    """Import and return the tutorial's module, which needs a GPU."""
    spec = importlib.util.spec_from_file_location("triton_tutorial_file", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ways(*, causal: bool) -> tuple[bool, ...]:
    """Return whether to specialise warps: on Hopper the tutorial tries both ways without a mask."""
    return (False,) if causal else (False, True)


def compile_part(job: tuple[str, int, bool, bool, int, int]) -> str | None:
    """Compile every `parts`-th candidate of the tutorial's autotuner, into Triton's cache.

    job: path, head_dim, causal, whether warps are specialised, which part, parts. Returns the text
    of an error, or None: the lab does not fail if a candidate of the tutorial does not compile.
    """
    import torch

    path, head_dim, causal, specialised, part, parts = job
    module = load(Path(path))
    module._attn_fwd.configs = module._attn_fwd.configs[part::parts]
    shape = (1, 1, 4096, head_dim)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in "qkv")
    try:
        module.attention(q, k, v, causal, head_dim**-0.5, specialised)
        torch.cuda.synchronize()
    except Exception as error:  # Triton's errors have classes of their own
        return str(error)
    return None


def compile_jobs(path: Path, head_dims, parts: int) -> Iterator[tuple]:
    """Yield the jobs for `compile_part` that compile all candidates of these head_dims."""
    for head_dim in head_dims:
        for causal in (False, True):
            for specialised in ways(causal=causal):
                for part in range(parts):
                    yield str(path), head_dim, causal, specialised, part, parts


def prepare(module: ModuleType, q, k, v, *, causal: bool, scale: float, specialised: bool):
    """Return a function that runs the tutorial's kernel and returns its output.

    Shapes: q, k, v [batch, heads, length, head_dim], contiguous
    """

    def run() -> object:
        return module.attention(q, k, v, causal, scale, specialised)

    run()  # the autotuner chooses a candidate
    return run
