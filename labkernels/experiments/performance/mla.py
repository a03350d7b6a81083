"""MLA decode with tensor cores on and off: our kernels, and FlashInfer's fa2 and fa3."""

from collections.abc import Iterator

from labkernels.experiments.timed import GridCell, Timed
from labkernels.kernels.caches.latent import LATENT_DIM
from labkernels.kernels.mla.operation import OPERATION
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.measure.implementation import Implementation, implementations, on_and_off

SPEED = ((64, 4096, 128), (128, 8192, 16), (16, 32768, 128))  # requests, keys, heads
SMALL = ((32, 1024, 128), (4, 16384, 16), (1, 65536, 128))  # fewer tiles than an H200 has SMs
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
SWEEP = (64, 4096)  # requests and keys of the sweep over heads
PAGE_SIZES = (1, 16, 64)
MANY_TOKENS = (17, 37, 77)  # per request: FlashInfer's test has these numbers above one
MANY_BATCH, MANY_KEYS = 17, 1024  # the test has 1, 17 or 37 requests, and at most 1024 keys
PEER_DTYPE = "bf16"  # another dtype would need two more builds of FlashInfer, which take minutes
SLOWEST_FLOPS = 1e11  # kernels without tensor cores would take too long on larger workloads
# Lengths of a ragged batch relative to their mean.
SKEWED = (3.3, 1.6, 1.0, 0.7, 0.5, 0.4, 0.3, 0.2)


def grid(*, quick: bool = False) -> Iterator[GridCell]:
    """Yield each workload and why it is there; `quick` keeps each kind, with fewer keys."""
    short = 16 if quick else 1
    for batch, keys, heads in SPEED:
        for dtype in ("bf16", "fp16"):
            yield GridCell(MlaDecode((keys // short,) * batch, heads, dtype=dtype), "speed")
    for batch, keys, heads in SMALL:
        yield GridCell(MlaDecode((keys // short,) * batch, heads), "small batch")
    batch, keys = SWEEP
    for q_len in (1, 2):
        for heads in HEADS[::4] if quick else HEADS:
            yield GridCell(
                MlaDecode((keys // short,) * batch, heads, q_len=q_len), f"heads, {q_len} tokens"
            )
    for page_size in PAGE_SIZES:
        yield GridCell(
            MlaDecode((keys // short,) * batch, 16, page_size=page_size), f"page {page_size}"
        )
    lengths = [int(keys * share) // short for share in SKEWED] * (batch // len(SKEWED))
    yield GridCell(MlaDecode(lengths, 128), "ragged lengths")
    for q_len in MANY_TOKENS:
        many = (MANY_KEYS // short,) * (1 if quick else MANY_BATCH)
        yield GridCell(MlaDecode(many, 128, q_len=q_len, page_size=16), f"{q_len} tokens")


def chosen(cell: GridCell) -> Iterator[Implementation]:
    """Yield what is timed; tensor cores are off for little work."""
    work = cell.workload
    for item in implementations(OPERATION.name, on_and_off).values():
        built = item.library != "flashinfer" or work.dtype == PEER_DTYPE
        if built and not (item.tensor_cores == "off" and work.flops > SLOWEST_FLOPS):
            yield item


TIMED = Timed(
    OPERATION,
    "performance/mla.parquet",
    grid,
    chosen,
    built=lambda workloads: [(PEER_DTYPE, LATENT_DIM)],  # of one dtype, whatever cells are chosen
    graph=True,
)
EXPERIMENT = TIMED.experiment(
    "MLA decode, tensor cores on and off, beside FlashInfer's fa2 and fa3"
)
