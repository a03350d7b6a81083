"""The compiler's report on every CUDA kernel and tile for every architecture; needs no GPU."""

from collections.abc import Iterator

from labkernels import hardware
from labkernels.cuda.compiler import nvrtc
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.kernels.kernel import Instance
from labkernels.measure import resources
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "performance/compiler_reports.parquet"


def cells(options: Options) -> Iterator[Cell]:
    """Yield every instance of every CUDA kernel; `quick` keeps the first of each kernel."""
    seen = set()
    for instance in resources.all_instances():
        if not (options.quick and instance.kernel in seen):
            seen.add(instance.kernel)
            yield Cell(label_of(instance), instance)


def label_of(instance: Instance) -> str:
    """Return the label of an instance: decode_mma/bf16/d128/paged, 16 rows, tile 4x16x3x4."""
    name = f"{instance.kernel}/{instance.dtype}/d{instance.head_dim}/{instance.layout}"
    return f"{name}, {instance.rows} rows, tile {instance.tile.label}"


def archs(instance: Instance) -> tuple[str, ...]:
    """Return the architectures that have the instance's instructions."""
    spec = resources.find(instance.kernel)
    return tuple(arch for arch in hardware.ARCHS if spec.needs.include(arch))


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Compile an instance for all architectures that have its instructions."""
    found = _compiled(cell.of, recording.origin["started_utc"])
    left_out = [arch for arch in hardware.ARCHS if arch not in archs(cell.of)]
    recording.tell(f"{len(found)} architectures")
    if left_out:
        needs = resources.find(cell.of.kernel).needs
        recording.tell(f"not {', '.join(left_out)}: it needs {needs}")
    yield from ((DATA_FILE, row) for row in found)


def _compiled(instance: Instance, started_utc: str) -> list[Row]:
    how = {"started_utc": started_utc}
    return [resources.compiler_row(instance, arch=arch, **how) for arch in archs(instance)]


EXPERIMENT = Experiment(
    "compiler_reports",
    "Registers and spills of every CUDA kernel, tile and architecture, by NVRTC",
    {DATA_FILE: schema.TABLES["compiler_reports"]},
    cells,
    rows,
    needs_gpu=False,
    missing=lambda: nvrtc.available(),
    renewed=(DATA_FILE,),
    whole=True,
    alone=False,
)
