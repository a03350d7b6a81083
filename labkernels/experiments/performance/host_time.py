"""The host time of a call: microseconds of Python, compared with torch's SDPA.

A repeat is CALLS calls in a row, none of which waits for the GPU. The GPU is idle when the first
call begins and its queue holds all of them, so only host time is measured. Every call is warm:
calls with the same shapes have run for half a second before.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from labkernels import ops
from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.operation import operations
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.timing import Quartiles, quartiles
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.units import format_time

DATA_FILE = "performance/host_time.parquet"
REQUESTS, TOKENS, QUICK_TOKENS = 4, 512, 32
CALLS = 50
WARMUP_S = 0.5  # until the host's clock has settled
SPAN_S = 3.0  # a host that others share has slow seconds; the median then covers several of them
KEYS_PER_SPLIT = 256
ONE_THREAD = "forward and backward in one thread"

Action = Callable[[], object]


@dataclass(frozen=True)
class Call:
    """A public function, used as by a caller, and its workload.

    make(workload, seed, device) prepares tensors and returns the function that is timed.
    """

    name: str
    backend: str
    workload: Decode | Prefill
    make: Callable[..., Action]


def calls(tokens: int = TOKENS) -> list[Call]:
    """Return the calls, on requests of `tokens` tokens."""
    decode = Decode.uniform(REQUESTS, tokens, q_heads=32, kv_heads=8)
    lengths = (tokens,) * REQUESTS
    prefill = Prefill(lengths, lengths, 16, 16, 128, causal=True)
    split = partial(_prefill, keys_per_split=KEYS_PER_SPLIT)
    return [
        Call("decode", "cuda", decode, _decode),
        Call("decode_step.run", "cuda", decode, _decode_run),
        Call("prefill", "cuda", prefill, _prefill),
        Call(f"prefill, {KEYS_PER_SPLIT} keys per split", "cuda", prefill, split),
        Call("attention", "cuda", prefill, _attention),
        Call("backward", "cuda", prefill, _backward),
        Call("attention, forward and backward", "cuda", prefill, _attention_backward),
        Call(
            f"attention, {ONE_THREAD}", "cuda", prefill, partial(_one_thread, _attention_backward)
        ),
        Call("torch_sdpa", "torch", prefill, _sdpa),
        Call("torch_sdpa, forward and backward", "torch", prefill, _sdpa_backward),
        Call(f"torch_sdpa, {ONE_THREAD}", "torch", prefill, partial(_one_thread, _sdpa_backward)),
        Call("autograd alone, forward and backward", "torch", prefill, _nothing),
        Call(f"autograd alone, {ONE_THREAD}", "torch", prefill, partial(_one_thread, _nothing)),
    ]


def cells(options: Options) -> Iterator[Cell]:
    """Yield the calls; `quick` gives them few tokens."""
    for call in calls(QUICK_TOKENS if options.quick else TOKENS):
        yield Cell(f"{call.name}: {call.workload.label}", call)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Time a function on the host."""
    call, options = cell.of, recording.options
    action = call.make(call.workload, options.seed, recording.device)
    with recording.sampling():
        how = {"repeats": options.repeats, "span_s": 0 if options.quick else SPAN_S}
        wait = torch.cuda.synchronize if recording.device == "cuda" else lambda: None
        times = host_times(action, wait=wait, **how)
    recording.tell(format_time(times.median_s))
    base = measured.base_row(call.workload, kernel=call.name, backend=call.backend)
    base = {"q_len": 1, "causal": False, **base, "repeats": times.repeats}
    for row in measured.quartile_rows(base, "host_time", times):
        yield DATA_FILE, row | {"note": f"of {CALLS} calls in a row, none synchronised"}


def host_times(
    action: Action, *, repeats: int, wait: Action, calls: int = CALLS, span_s: float = 0
) -> Quartiles:
    """Return the quartiles of one call's host time; each repeat averages many calls in a row.

    repeats, span_s: at least this many, for at least this long. wait: waits until the GPU has
    finished, outside the timed part.
    Units: seconds per call.
    """
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < WARMUP_S:
        action()
        wait()
    times_s: list[float] = []
    first_s = time.perf_counter()
    while len(times_s) < repeats or time.perf_counter() - first_s < span_s:
        wait()
        began_s = time.perf_counter()
        for _ in range(calls):
            action()
        times_s.append((time.perf_counter() - began_s) / calls)
    wait()
    return quartiles(times_s)


def _tensors(workload: Decode | Prefill, seed: int, device: str):
    operation = operations()["decode" if isinstance(workload, Decode) else "prefill"]
    return operation.inputs(workload, Normal(seed, device)).arguments


def _decode(*given) -> Action:
    tensors = _tensors(*given)
    return lambda: ops.decode(*tensors)


def _decode_run(*given) -> Action:
    return ops.decode_step(*_tensors(*given)).run


def _prefill(*given, **options) -> Action:
    tensors = _tensors(*given)
    return lambda: ops.prefill(*tensors, causal=True, **options)


def _attention(*given) -> Action:
    q, kv, ends = _tensors(*given)
    q, k, v = (x.requires_grad_() for x in (q, kv.k, kv.v))
    return lambda: ops.attention(q, k, v, ends, kv.cu_seqlens, causal=True)


def _backward(*given) -> Action:
    q, kv, ends = _tensors(*given)
    saved = (q, kv.k, kv.v, *ops.prefill(q, kv, ends, causal=True).outputs(), ends, kv.cu_seqlens)
    dout = torch.ones_like(q)
    return lambda: ops.backward(dout, *saved, causal=True)


def _attention_backward(*given) -> Action:
    q, kv, ends = _tensors(*given)

    def forward(*leaves) -> object:
        return ops.attention(*leaves, ends, kv.cu_seqlens, causal=True)[0]

    return _with_gradients(forward, q, kv.k, kv.v)


def _with_gradients(forward: Callable, *leaves) -> Action:
    leaves = tuple(x.requires_grad_() for x in leaves)
    dout = torch.ones_like(leaves[0])
    return lambda: torch.autograd.grad(forward(*leaves), leaves, dout)


def _one_thread(make: Callable[..., Action], *given) -> Action:
    """Return an action whose backward pass does not go to torch's thread for the GPU and back."""
    action = make(*given)

    def alone() -> object:
        with torch.autograd.set_multithreading_enabled(False):
            return action()

    return alone


def _sdpa(*given) -> Action:
    q, k, v = _batched(*given)
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=True)


def _sdpa_backward(*given) -> Action:
    return _with_gradients(partial(scaled_dot_product_attention, is_causal=True), *_batched(*given))


def _nothing(*given) -> Action:
    """Return what autograd itself takes: outputs and gradients are made, and nothing else."""

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return torch.empty_like(q)

        @staticmethod
        def backward(ctx, dout):
            return tuple(map(torch.empty_like, ctx.saved_tensors))

    return _with_gradients(Nothing.apply, *_batched(*given))


def _batched(workload: Prefill, seed: int, device: str) -> list:
    """Return q, k and v [batch, heads, tokens, head_dim]."""
    q, kv, _ = _tensors(workload, seed, device)
    shape = (workload.batch, -1, workload.q_heads, workload.head_dim)
    return [x.view(shape).transpose(1, 2) for x in (q, kv.k, kv.v)]


EXPERIMENT = Experiment(
    "host_time",
    "Host time of a warm call, compared with torch's SDPA",
    {DATA_FILE: schema.PREFILL_MEASUREMENTS},
    cells,
    rows,
)
