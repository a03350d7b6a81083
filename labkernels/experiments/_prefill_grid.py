"""The workloads of the prefill experiment, and which contenders meet on each."""

from dataclasses import dataclass

from labkernels.workload import Prefill

TOKENS = 16384  # of a batch, and heads x head_dim = 2048: the shapes of FlashAttention's papers
CHANNELS = 2048
HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 2048, 8192, 16384)
PAGE_SIZES = (16, 64)
PAGED_LENGTHS = (2048, 16384)
SKEWED = (
    0.82,
    0.46,
    0.26,
    0.15,
    0.1,
    0.08,
    0.06,
    0.05,
)  # times what makes their squares' sum right
CUDA_CORES_LENGTHS = (2048,)  # prefill_fma takes ten times as long


@dataclass(frozen=True)
class Cell:
    """One workload of the grid, and why it is there.

    twin: the same FLOPs laid out plainly, to be timed in turn with it: ragged where the workload is
    paged, of one length where it is skewed; and the word that a contender's name gets on it.
    """

    workload: Prefill
    why: str
    twin: Prefill | None = None
    twin_word: str = ""


def grid(*, quick: bool = False) -> list[Cell]:
    """Return the cells in the order of measurement; `quick` keeps their kinds, at 1024 tokens."""
    tokens, channels = (1024, 256) if quick else (TOKENS, CHANNELS)
    lengths = (512,) if quick else LENGTHS
    cells = [
        Cell(_uniform(tokens, length, channels, head_dim, causal), f"length {length}")
        for head_dim in HEAD_DIMS
        for causal in (False, True)
        for length in lengths
    ]
    for head_dim in HEAD_DIMS:
        for page_size in PAGE_SIZES:
            for causal in (False, True):
                for length in (512,) if quick else PAGED_LENGTHS:
                    plain = _uniform(tokens, length, channels, head_dim, causal)
                    paged = _uniform(tokens, length, channels, head_dim, causal, page_size)
                    cells.append(Cell(paged, f"page {page_size}", plain, "ragged"))
    for head_dim in HEAD_DIMS:
        for causal in (False, True):
            cells.append(_skewed(128 if quick else 2048, channels, head_dim, causal))
    cells.append(Cell(_deepseek(tokens, 512 if quick else 8192), "DeepSeek's prefill"))
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


def _skewed(length: int, channels: int, head_dim: int, causal: bool) -> Cell:
    """Eight requests of very different lengths, and eight of one length with as many FLOPs."""
    wanted = len(SKEWED) * length**2
    scale = (wanted / sum(part**2 for part in SKEWED)) ** 0.5
    lengths = tuple(round(part * scale / 16) * 16 for part in SKEWED)
    heads = channels // head_dim
    skewed = Prefill(lengths, lengths, heads, heads, head_dim, causal=causal)
    same = (length,) * len(SKEWED)
    return Cell(
        skewed,
        "skewed lengths",
        Prefill(same, same, heads, heads, head_dim, causal=causal),
        "uniform",
    )


def _deepseek(tokens: int, length: int) -> Prefill:
    lengths = (length,) * (tokens // length)
    return Prefill(lengths, lengths, 16, 16, 192, causal=True, head_dim_v=128)
