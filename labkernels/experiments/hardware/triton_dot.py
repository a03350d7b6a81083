"""Compare Triton's Q K^T with the model, bit for bit: tl.dot adds head_dim in ascending chunks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from labkernels.experiments import rows as measured
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.numerics.emulation import tensor_core
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "hardware/triton_dot.csv"

DTYPES, HEAD_DIMS = ("fp16", "bf16"), (64, 128)
TILES = ((16, 64), (64, 64), (128, 128))  # queries, keys
OUTPUTS, QUICK_OUTPUTS = 1 << 22, 1 << 16  # outputs per shape
MODEL = "the model"
_INSTRUCTION = re.compile(r"(?:wgmma\.mma_async\.sync\.aligned|mma\.sync\.aligned)\.(m\d+n\d+k\d+)")


@dataclass(frozen=True)
class Shape:
    """The sizes of a tile of queries and keys, its dtype, and how many outputs are compared."""

    dtype: str
    head_dim: int
    queries: int
    keys: int
    outputs: int = OUTPUTS

    @property
    def label(self) -> str:
        """The shape as text."""
        return f"tl.dot {self.queries}x{self.keys}, d{self.head_dim}, {self.dtype}"


def cells(options: Options) -> Iterator[Cell]:
    """Yield the shapes; `quick` compares fewer outputs of each."""
    for dtype, head_dim, tile in product(DTYPES, HEAD_DIMS, TILES):
        shape = Shape(dtype, head_dim, *tile, QUICK_OUTPUTS if options.quick else OUTPUTS)
        yield Cell(shape.label, shape)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Compare tl.dot with the model on this machine's GPU, and count the differences."""
    shape: Shape = cell.of
    with recording.sampling():
        counts, instructions = _counts(shape, *recording.once(_gpu))
    wrong = counts[f"mismatches, {MODEL}"]
    recording.tell(f"{wrong} outputs differ from the model, {instructions}")
    if wrong:
        recording.fail(f"{shape.label}: {wrong} outputs differ from the model")
    base = measured.no_workload(f"tl.dot {shape.queries}x{shape.keys}", "triton", repeats=1)
    base |= {"tensor_cores": "on", "dtype": shape.dtype, "head_dim": shape.head_dim}
    for metric, value in counts.items():
        row = measured.row(base, metric, "exact", value, "1")
        yield DATA_FILE, row | {"note": instructions}


def _gpu(recording: Recording) -> tuple[str, object]:
    """Return the architecture, and the random generator that all shapes share."""
    import torch

    from labkernels.cuda.gpu.device import planning_gpu

    return planning_gpu().arch, torch.Generator("cuda").manual_seed(recording.options.seed)


def _counts(shape: Shape, arch: str, generator) -> tuple[dict[str, int], str]:
    """Count outputs unlike the model and unlike another order; also return the instructions."""
    import torch

    from labkernels.experiments.hardware.torch_model import tile_products
    from labkernels.experiments.hardware.triton_dot_kernel import scores

    unit = tensor_core.unit_of(arch, shape.dtype)
    queries, keys, head_dim = shape.queries, shape.keys, shape.head_dim
    n = shape.outputs // (queries * keys)
    element = {"fp16": torch.float16, "bf16": torch.bfloat16}[shape.dtype]
    q, k = (
        torch.randn(n, rows, head_dim, generator=generator, device="cuda").to(element)
        for rows in (queries, keys)
    )
    s = torch.full((n, queries, keys), float("nan"), device="cuda")
    compiled = scores[(n,)](q, k, s, queries, keys, head_dim)
    columns, zeros = k.transpose(1, 2), torch.zeros_like(s)
    model = tile_products(q, columns, zeros, unit, shape.dtype)
    backwards = tile_products(q.flip(2), columns.flip(1), zeros, unit, shape.dtype)
    counts = {
        "outputs": s.numel(),
        f"mismatches, {MODEL}": _unlike(s, model),
        "mismatches, head_dim descending": _unlike(s, backwards),
    }
    return counts, " ".join(sorted(set(_INSTRUCTION.findall(compiled.asm["ptx"]))))


def _unlike(s, model) -> int:
    import torch

    return int((s.view(torch.int32) != model.view(torch.int32)).sum())


EXPERIMENT = Experiment(
    "triton_dot",
    "tl.dot(q, k^T) for tiles of queries and keys: outputs that differ from the model",
    {DATA_FILE: schema.MEASUREMENTS},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
