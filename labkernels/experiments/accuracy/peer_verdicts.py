"""The verdict on outputs of other libraries on a GPU: the backends of torch SDPA and FlashInfer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.measure.peers import flashinfer, peer
from labkernels.measure.peers.peer import Backend, Tensors
from labkernels.numerics import arrays, metrics
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import verdict
from labkernels.policy import NumericPolicy
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/peer_verdicts.parquet"
Q_HEADS, KV_HEADS, HEAD_DIM = 16, 4, 128
DTYPES = ("fp16", "bf16")
_SPREAD = "spread of z by all"


@dataclass(frozen=True)
class Shape:
    """Requests with n_q query tokens and kv_len keys each; mean is that of V."""

    batch: int
    n_q: int
    kv_len: int
    causal: bool
    mean: float

    @property
    def label(self) -> str:
        """The shape as text, for the note of a row."""
        kind = "decode" if self.n_q == 1 else "causal" if self.causal else "full"
        return f"{kind}, {self.n_q} queries, V of mean {self.mean:g}"


SHAPES = (
    Shape(4, 1, 2033, False, 0.0),
    Shape(1, 1, 8177, False, 0.0),
    Shape(2, 305, 305, True, 0.0),
    Shape(2, 64, 1009, False, 1.0),
)
QUICK = (Shape(2, 1, 305, False, 0.0),)


def cells(options: Options) -> Iterator[Cell]:
    """Yield each shape with each dtype; `quick` has one small shape."""
    for shape in QUICK if options.quick else SHAPES:
        for dtype in DTYPES:
            yield Cell(f"{shape.batch} x {shape.kv_len}, {shape.label}, {dtype}", (shape, dtype))


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Judge every backend twice, with fp32 and with the input's format as the format of P."""
    missing = recording.once(_build_peers)
    chosen = [item for item in peer.backends().values() if item.library not in missing]
    with recording.sampling():
        how = {"seed": recording.options.seed, "device": recording.device}
        outputs = list(_outputs(*cell.of, chosen, **how))
    made = [output for output in outputs if output.out is not None]
    recording.tell(f"{len(made)} outputs judged")
    judgements = product(made, ("fp32", cell.of[1]))  # each is a job, since some take minutes
    found = recording.pool.map(_judged_rows, *zip(*judgements, strict=True))
    refused = [[_refused_row(output)] for output in outputs if output.out is None]
    for listed in chain(found, refused):
        yield from ((DATA_FILE, row | {"repeats": 1}) for row in listed)


def _build_peers(recording: Recording) -> dict[str, str]:
    """Compile the libraries' own modules; return why a library cannot run here, by library."""
    return recording.build_peers("decode", [(dtype, HEAD_DIM) for dtype in DTYPES])


def tensors(shape: Shape, dtype: str, *, seed: int, device: str) -> Tensors:
    """Draw normal inputs of a shape."""
    import torch

    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    generator = torch.Generator().manual_seed(seed)
    sizes = ((shape.n_q, Q_HEADS), (shape.kv_len, KV_HEADS), (shape.kv_len, KV_HEADS))
    q, k, v = (
        torch.randn(shape.batch, *size, HEAD_DIM, generator=generator).to(device, kind)
        for size in sizes
    )
    return Tensors(q, k, v + shape.mean, HEAD_DIM**-0.5, shape.causal)


@dataclass(frozen=True, eq=False)
class Output:
    """A backend's output for a shape [B, M, Hq, D], moved to the CPU, or why it has none."""

    shape: Shape
    base: Row
    inputs: Tensors
    out: object | None
    reason: str


def _outputs(
    shape: Shape, dtype: str, chosen: Iterable[Backend], *, seed: int, device: str
) -> Iterator[Output]:
    given = tensors(shape, dtype, seed=seed, device=device)
    on_cpu = replace(given, q=given.q.cpu(), k=given.k.cpu(), v=given.v.cpu())
    for item in chosen:
        base = _base(item, shape, dtype)
        try:
            yield Output(shape, base, on_cpu, item.run(given).cpu(), "")
        except Exception as error:  # each library has its own error classes
            yield Output(shape, base, on_cpu, None, peer.one_line(error))


def judged(given: Tensors, out, *, p_format: str, dtype: str) -> tuple[verdict.Verdict, float]:
    """Return the verdict on an output [B, M, Hq, D], and its mean error along the truth's sign."""
    problem = Problem.dense(
        *(arrays.as_float64(x.transpose(1, 2)) for x in (given.q, given.k, given.v)),
        scale=given.scale,
        causal=given.causal,
    )
    numbers = arrays.as_float64(out).reshape(problem.out_shape)
    found = verdict.decide(
        problem, numbers, policy=NumericPolicy(p=p_format, denominator=None, out=dtype)
    )
    table = metrics.error_table(numbers, numbers - found.error, by="all")
    return found, float(table["mean_signed"])


def _refused_row(output: Output) -> Row:
    reason = f"{output.shape.label}: {output.reason}"
    return output.base | {"metric": "refused", "value": 0, "note": reason}


def _judged_rows(output: Output, p_format: str) -> list[Row]:
    shape, base = output.shape, output.base | {"policy": f"p={p_format}"}
    found, bias = judged(output.inputs, output.out, p_format=p_format, dtype=base["dtype"])
    return list(_verdict_rows(base, shape, found, bias))


def _base(item: Backend, shape: Shape, dtype: str) -> Row:
    return {
        "kernel": item.name,
        "backend": item.library,
        "tensor_cores": item.tensor_cores,
        "tile": "",
        "policy": "",
        "batch": shape.batch,
        "kv_len": shape.kv_len,
        "q_heads": Q_HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "page_size": flashinfer.PAGE_SIZE,
        "dtype": dtype,
        "statistic": "exact",
        "unit": "1",
    }


def _verdict_rows(base: Row, shape: Shape, found: verdict.Verdict, bias: float) -> Iterator[Row]:
    """Yield the answer, 1 for BUG or LESS EXACT, with its reason, and three numbers behind it."""
    tests = {test.name: test.value for test in found.findings}
    why = f"{shape.label}: {found.answer}: {found.why}"
    refused = found.answer in (verdict.BUG, verdict.LESS_EXACT)
    yield base | {"metric": "bug", "value": int(refused), "note": why}
    numbers = {
        ("bound_ratio", "max"): tests["error / bound"],
        ("z_spread", "exact"): tests.get(_SPREAD, 0.0),
        ("bias", "mean"): bias,
    }
    for (metric, statistic), value in numbers.items():
        if np.isfinite(value):
            row = {"metric": metric, "statistic": statistic, "value": float(value)}
            yield base | row | {"note": shape.label}


EXPERIMENT = Experiment(
    "peer_verdicts",
    "Rounding or bug: the verdict on torch SDPA and FlashInfer, decode and prefill",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
)
