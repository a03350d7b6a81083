"""Triton's published tutorial kernel (06-fused-attention) as a peer, from a file that you name.

The file belongs to Triton and is not part of the lab: `--peer-path FILE` names it, and without the
option the peer is missing. The kernel takes fp16, one KV head per query head, and requests of one
length.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from labkernels.kernels.call import Attention, Step
from labkernels.kernels.prefill.inputs import PrefillInputs
from labkernels.measure.peers.dense import dense, dense_batch, tokens
from labkernels.measure.peers.peer import PEER_POLICY, Peer, Refused, one_line

NAME = "triton_tutorial"


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


def peers_from(path: Path | None, *, causal: bool) -> list[Peer]:
    """Return the tutorial's kernel as peers, one for each way that it tries under this mask."""
    return [
        Peer(
            NAME + ", warps specialised" * specialised,
            NAME,
            "The fused attention that Triton publishes as a tutorial.",
            PEER_POLICY,
            {"prefill": lambda inputs, way=specialised: _prefill(path, inputs, specialised=way)},
            lambda: missing(path),
        )
        for specialised in ways(causal=causal)
    ]


def _prefill(path: Path, inputs: PrefillInputs, *, specialised: bool) -> Step[Attention]:
    """Return a step of the tutorial's kernel, whose autotuner has chosen a candidate."""
    batch, newest = dense_batch(inputs.workload), []
    q, k, v = (dense(x, batch).contiguous() for x in (inputs.q, inputs.kv.k, inputs.kv.v))
    attention, causal = load(path).attention, inputs.variant.causal

    def run() -> None:
        newest[:] = [attention(q, k, v, causal, inputs.scale, specialised)]

    try:
        run()
    except Exception as error:  # Triton's errors have classes of their own
        raise Refused(one_line(error)) from error
    return Step(run, lambda: Attention(tokens(newest[0])))
