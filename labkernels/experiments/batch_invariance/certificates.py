"""Certificates: kernels that are called in many ways, and which way changes a request's bits."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.probing import targets
from labkernels.probing.certificate import Sizes, certify
from labkernels.records import schema
from labkernels.records.store import Row
from labkernels.variant import CAUSAL, FULL, AttentionVariant

DATA_FILE = "accuracy/certificates.csv"
QUICK: dict[str, Any] = {"lengths": (40, 600), "batches": (2,)}
INVARIANT: dict[str, Any] = {"batch_invariant": True}
USUAL, MANY, REPEATED = Sizes(), Sizes(queries=64), Sizes(kv_heads=32)


@dataclass(frozen=True)
class Asked:
    """A kernel by name, its layout, the options of each call, and the sizes."""

    kernel: str
    layout: str
    options: dict[str, Any] = field(default_factory=dict)
    variant: AttentionVariant = FULL
    sizes: Sizes = USUAL

    @property
    def words(self) -> str:
        """The options and the variant in words, "" for the plan that is free."""
        asked = [f"{name}={value}" for name, value in self.options.items()]
        return ", ".join([*asked, *filter(None, [self.variant.label])])


ASKED = (
    *(Asked(f"decode_{name}", "paged_decode", INVARIANT) for name in ("fma", "mma", "mma_n8")),
    Asked("decode_mma", "paged_decode", INVARIANT, AttentionVariant(window_left=1023)),
    Asked("triton_decode", "paged_decode", INVARIANT),
    *(Asked(f"prefill_{name}", "ragged", INVARIANT, CAUSAL, MANY) for name in ("mma", "wgmma")),
    Asked("mla_wgmma", "mla", INVARIANT),
    Asked("flashinfer:fa2", "paged_decode", {"fixed_split_size": 64}),
    Asked("decode_mma_n8", "paged_decode"),
    Asked("flashinfer:fa2", "paged_decode"),
    Asked("torch:flash", "bhsd", sizes=REPEATED),
)


def cells(options: Options) -> Iterator[Cell]:
    """Yield the kernels and their options; `quick` makes the requests short."""
    for asked in ASKED:
        yield Cell(f"{asked.kernel}/{asked.layout}/{asked.words or 'free'}", asked)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Certify one kernel, and yield a row for each length."""
    asked: Asked = cell.of
    target, how = targets.find(asked.kernel), QUICK if recording.options.quick else {}
    reason = target.missing(recording.device)
    if reason:
        recording.tell(reason)
        return
    small = Sizes(4, 2, 64, queries=asked.sizes.queries and 9)
    made = certify(
        target.function(asked.layout, asked.variant),
        asked.layout,
        sizes=small if recording.options.quick else asked.sizes,
        device=recording.device,
        causal=asked.variant.causal,
        options=asked.options,
        **how,
    )
    for keys, found in groupby(made.findings, key=lambda each: each.keys):
        judged = [each for each in found if each.heads is not None]
        changed = [each for each in judged if each.heads]
        row: Row = {"kernel": asked.kernel, "version": target.version(), "layout": asked.layout}
        row |= {"dtype": made.dtype, "asked": asked.words, "kv_len": keys, "ways": len(judged)}
        row |= {"changed": len(changed), "first": changed[0].words if changed else ""}
        yield DATA_FILE, row | {"heads": max((each.heads or 0 for each in judged), default=0)}
    recording.tell("the same bits" if made.invariant else str(made).splitlines()[-1])


EXPERIMENT = Experiment(
    "certificates",
    "Certificates: kernels called in many ways, and which of them change a request's bits",
    {DATA_FILE: schema.TABLES["certificates"]},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
