"""Launches the Triton backward pass; on a CPU it runs under Triton's interpreter."""

from types import ModuleType

import torch

from labkernels.kernels import triton_run
from labkernels.kernels.backward_plan import BackwardCut
from labkernels.kernels.backward_step import BackwardRequest, BackwardStep, cut, make_plan
from labkernels.kernels.cuda_run import LOG2_E

DELTA_ROWS = 32  # of a program


def prepare(request: BackwardRequest) -> BackwardStep:
    """List the blocks, allocate delta and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU.
    """
    kernel = triton_run.load(request.spec.name, interpret=not request.on_gpu)
    made = cut(request)
    run = _Run(kernel, request, made)
    plan = make_plan(
        request,
        blocks=len(made.keys),
        blocks_per_sm=request.instance.tile.blocks_per_sm,
        smem_bytes=0,
        registers=None,
        launches=run.launches,
        cpu="Triton's interpreter",
    )
    return BackwardStep(run, request.dq, request.dk, request.dv, plan)


class _Run:
    """Launches delta, then dK and dV, then dq, on the current stream."""

    def __init__(self, kernel: ModuleType, request: BackwardRequest, made: BackwardCut) -> None:
        self._kernel, self._request = kernel, request
        self._delta = torch.empty(request.q.shape[:2], dtype=torch.float32, device=request.q.device)
        # the interpreter's store to bf16 does not round to nearest even; torch's conversion does
        narrow = not request.on_gpu and request.q.dtype == torch.bfloat16
        self._found = {
            name: getattr(request, name).to(torch.float32) if narrow else getattr(request, name)
            for name in ("dq", "dk", "dv")
        }
        device = request.q.device
        self._keys, self._rows = (torch.from_numpy(w).to(device) for w in (made.keys, made.rows))
        self._constants = _constants(request)

    @property
    def launches(self) -> int:
        """How many of the three have blocks."""
        return (len(self._delta) > 0) + (len(self._keys) > 0) + (len(self._rows) > 0)

    def __call__(self) -> None:
        r, constants = self._request, self._constants
        options = {n: constants[n] for n in ("num_warps", "num_stages") if n in constants}
        total, heads, head_dim = r.q.shape
        if total:
            strides = (*r.out.stride()[:2], *r.dout.stride()[:2])
            self._kernel.delta[(-(-total // DELTA_ROWS), heads)](
                *(r.out, r.dout, self._delta, *strides, total, heads),
                D=head_dim,
                ROWS=DELTA_ROWS,
                **options,
            )
        lengths = (r.cu_seqlens_q, r.kv.cu_seqlens)
        given = (r.q, r.kv.k, r.kv.v, r.dout, r.lse2, self._delta, *lengths)
        parts = (r.q, r.kv.k, r.kv.v, r.dout)
        rest = (
            *(stride for part in parts for stride in part.stride()[:2]),
            *(heads, r.group, r.scale, r.scale * LOG2_E),
        )
        found = self._found
        if len(self._keys):
            outputs = (self._keys, found["dk"], found["dv"])
            self._kernel.keys[(len(self._keys),)](*given, *outputs, *rest, **constants)
        if len(self._rows):
            outputs = (self._rows, found["dq"])
            self._kernel.rows[(len(self._rows),)](*given, *outputs, *rest, **constants)
        for name, tensor in found.items():
            if tensor is not getattr(r, name):
                getattr(r, name).copy_(tensor)


def _constants(request: BackwardRequest) -> dict[str, object]:
    instance, tile = request.instance, request.instance.tile
    constants = {
        "D": instance.head_dim,
        "ROWS": tile.q_rows,
        "KEYS": tile.keys,
        "CAUSAL": request.causal,
        "TENSOR_CORES": request.spec.uses_tensor_cores(instance.policy),
        "UPCAST": not request.on_gpu and instance.dtype == "bf16",
    }
    if request.on_gpu:
        constants |= {"num_warps": tile.warps, "num_stages": tile.stages}
    return constants
