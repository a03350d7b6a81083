"""Registers per thread that the compiler uses for a growing number of sums; needs no GPU."""

from collections.abc import Iterator

from labkernels import hardware
from labkernels.chapters.primers import small_product
from labkernels.cuda.compiler import nvrtc
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "performance/register_growth.csv"
STAGES = 2


def cells(options: Options) -> Iterator[Cell]:
    """Yield the numbers of sums per thread; `quick` keeps the first."""
    for sums in small_product.SUMS[:1] if options.quick else small_product.SUMS:
        yield Cell(f"{sums} sums", sums)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Compile the kernel for all architectures."""
    for arch in hardware.ARCHS:
        report = small_product.compiled(cell.of, STAGES, arch).report
        yield (
            DATA_FILE,
            {
                "sums": cell.of,
                "stages": STAGES,
                "arch": arch,
                "registers": report.registers,
                "spill_bytes": report.spill_store_bytes,
                "compiler": f"NVRTC {nvrtc.nvrtc_version()}",
                "started_utc": recording.origin["started_utc"],
            },
        )


EXPERIMENT = Experiment(
    "register_growth",
    "Registers of the ten-line kernel against the sums that a thread keeps, by NVRTC",
    {DATA_FILE: schema.TABLES["register_growth"]},
    cells,
    rows,
    needs_gpu=False,
    missing=lambda: nvrtc.available(),
    renewed=(DATA_FILE,),
    whole=True,
)
