"""The compiler's report on every CUDA kernel and tile for every architecture; needs no GPU."""

from collections.abc import Iterator
from itertools import chain

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
    """Yield every instance of every CUDA kernel, then those with variants of attention.

    `quick` keeps the first of each kernel.
    """
    seen = set()
    varied = (resources.with_variants(), resources.widest())
    for instance in chain(resources.all_instances(), *varied):
        if not (options.quick and instance.kernel in seen):
            seen.add(instance.kernel)
            yield Cell(label_of(instance), instance)


def label_of(instance: Instance) -> str:
    """Return the label of an instance: decode_mma/bf16/d128/paged, 16 rows, tile 4x16x3x4."""
    name = f"{instance.kernel}/{instance.dtype}/d{instance.head_dim}/{instance.layout}"
    label = f"{name}, {instance.rows} rows, tile {instance.tile.label}"
    return ", ".join((label, *instance.features))


def archs(instance: Instance) -> tuple[str, ...]:
    """Return the architectures that have the instance's instructions; of variants, only Hopper."""
    spec = resources.find(instance.kernel)
    listed = ("sm_90a",) if instance.features else hardware.ARCHS
    return tuple(arch for arch in listed if spec.needs.include(arch))


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Compile an instance for all architectures that have its instructions."""
    found = _compiled(cell.of, recording.origin["started_utc"])
    left_out = [arch for arch in hardware.ARCHS if arch not in archs(cell.of)]
    recording.tell(f"{len(found)} architectures")
    if left_out and not cell.of.features:
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
