"""Prefill with tensor cores on and off, ragged and paged: our kernels and their peers."""

from labkernels.experiments.timed import GridCell, Timed
from labkernels.kernels.prefill.operation import OPERATION
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.implementation import Implementation, implementations

TOKENS = 16384  # per batch, with heads x head_dim = 2048, as in FlashAttention's papers
CHANNELS = 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 2048, 8192, 16384)
# Keys per page, by head_dim. Pages of 1, the default of SGLang, 2 and 4 hold no TMA box of 8 keys.
PAGE_SIZES = {64: (1, 16, 64), 128: (1, 2, 4, 8, 16, 64), 256: (1, 16, 64)}
PAGED_LENGTHS = (2048, 16384)
# Lengths in proportion; `_skewed` scales them to the FLOPs of eight equal lengths.
SKEWED = (0.82, 0.46, 0.26, 0.15, 0.1, 0.08, 0.06, 0.05)
CUDA_CORES_LENGTHS = (2048,)  # alone: prefill_fma takes about ten times as long as prefill_mma


def grid(*, quick: bool = False) -> list[GridCell]:
    """Return the cells in the order of measurement; `quick` keeps each kind, with 1024 tokens."""
    tokens, channels = (1024, 256) if quick else (TOKENS, CHANNELS)
    lengths = (512,) if quick else LENGTHS
    cells = [
        GridCell(_uniform(tokens, length, channels, head_dim, causal), f"length {length}")
        for head_dim in HEAD_DIMS
        for causal in (False, True)
        for length in lengths
    ]
    for head_dim in HEAD_DIMS:
        for page_size in PAGE_SIZES[head_dim]:
            for causal in (False, True):
                for length in (512,) if quick else PAGED_LENGTHS:
                    plain = _uniform(tokens, length, channels, head_dim, causal)
                    paged = _uniform(tokens, length, channels, head_dim, causal, page_size)
                    cells.append(GridCell(paged, f"page {page_size}", plain, "ragged"))
    for head_dim in HEAD_DIMS:
        for causal in (False, True):
            cells.append(_skewed(128 if quick else 2048, channels, head_dim, causal))
    cells.append(GridCell(_deepseek(tokens, 512 if quick else 8192), "DeepSeek's prefill"))
    return cells


def _uniform(
    tokens: int,
    length: int,
    channels: int,
    head_dim: int,
    causal: bool,
    page_size: int | None = None,
) -> Prefill:
    lengths, heads = (length,) * (tokens // length), channels // head_dim
    return Prefill(lengths, lengths, heads, heads, head_dim, causal=causal, page_size=page_size)


def _skewed(length: int, channels: int, head_dim: int, causal: bool) -> GridCell:
    """Pair eight requests of very different lengths with eight of one length, of similar FLOPs."""
    wanted = len(SKEWED) * length**2
    scale = (wanted / sum(part**2 for part in SKEWED)) ** 0.5
    lengths = tuple(round(part * scale / 16) * 16 for part in SKEWED)
    heads = channels // head_dim
    skewed = Prefill(lengths, lengths, heads, heads, head_dim, causal=causal)
    same = (length,) * len(SKEWED)
    return GridCell(
        skewed,
        "skewed lengths",
        Prefill(same, same, heads, heads, head_dim, causal=causal),
        "uniform",
    )


def _deepseek(tokens: int, length: int) -> Prefill:
    lengths = (length,) * (tokens // length)
    return Prefill(lengths, lengths, 16, 16, 192, causal=True, head_dim_v=128)


def chosen(cell: GridCell) -> list[Implementation]:
    """Return what is timed; tensor cores are off at some lengths alone."""
    longest = {max(timed.q_lens) for timed in (cell.workload, cell.baseline) if timed is not None}
    slow = longest.isdisjoint(CUDA_CORES_LENGTHS)
    known = implementations(OPERATION.name).values()
    return [item for item in known if not (slow and item.tensor_cores == "off")]


TIMED = Timed(
    OPERATION,
    "performance/prefill.parquet",
    grid,
    chosen,
    built=lambda workloads: {(w.dtype, w.head_dim) for w in workloads},
    by_name=True,
)
EXPERIMENT = TIMED.experiment(
    "Prefill, tensor cores on and off, ragged and paged, beside torch SDPA and FlashInfer"
)
