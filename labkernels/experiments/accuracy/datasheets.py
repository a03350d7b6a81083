"""The datasheets of kernels on a GPU: ours, and those of the libraries beside them.

A cell is one kernel in one layout, in one format, with or without a causal mask. What a library
refuses is recorded with its own words. The probe is not told which attention was asked for, so that
what a sheet says of mask, window, cap and sinks was found.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.probing import probe, targets
from labkernels.probing.layouts import DENSE
from labkernels.probing.targets import Target
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.variant import CAUSAL, FULL, AttentionVariant

DATA_FILE = "accuracy/datasheets.parquet"
DTYPES = ("fp16", "bf16")
HEAD_DIM = 128
ONE_QUERY = ("paged_decode", "mla")  # layouts in which a causal mask hides nothing
QUICK = ("decode_mma", "torch:math")


@dataclass(frozen=True)
class Sheet:
    """What one probe asks."""

    target: Target
    layout: str
    dtype: str
    variant: AttentionVariant

    @property
    def asked(self) -> str:
        """The mask that is declared, in a word."""
        return "causal" if self.variant.causal else "full"


def cells(options: Options) -> Iterator[Cell]:
    """Yield every kernel in each layout, format and mask; `quick` has two kernels in one format."""
    for target in targets.targets().values():
        if options.quick and target.name not in QUICK:
            continue
        for layout in target.layouts:
            for variant in (FULL,) if layout in ONE_QUERY else (FULL, CAUSAL):
                for dtype in DTYPES[:1] if options.quick else DTYPES:
                    sheet = Sheet(target, layout, dtype, variant)
                    yield Cell(f"{target.name}/{layout}/{sheet.asked}/{dtype}", sheet)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Probe one kernel, and yield its facts, defects and refusals, and the sheet's verdict."""
    asked: Sheet = cell.of
    target = asked.target
    reason = target.missing(recording.device)
    if reason:
        recording.tell(reason)
        return
    sheet = probe(
        target.function(asked.layout, asked.variant),
        asked.layout,
        asked.dtype,
        device=recording.device,
        head_dim=HEAD_DIM,
        knobs=target.knobs.get(asked.layout),
        gradients=asked.layout in DENSE,
        name=target.name,
    )
    recording.tell(f"{sheet.verdict}, {sheet.calls} calls, {sheet.seconds:.1f} s")
    base = {
        "kernel": target.name,
        "version": target.version(),
        "layout": asked.layout,
        "dtype": asked.dtype,
        "asked": asked.asked,
    }
    for row in sheet.rows():
        yield DATA_FILE, base | row


EXPERIMENT = Experiment(
    "datasheets",
    "Datasheets: what kernels compute and how they round, read off by the probe",
    {DATA_FILE: schema.TABLES["datasheets"]},
    cells,
    rows,
)
