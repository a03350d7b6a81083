"""The workloads of the decode experiment, and which contenders meet on each."""

from collections.abc import Iterable
from dataclasses import dataclass

from labkernels.workload import Decode

DTYPES = ("fp16", "bf16")
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
PAGE_SIZES = (1, 16, 64)
KV_HEADS = 8
# Each head_dim costs six more builds of FlashInfer, minutes that the targets do not ask for.
PEER_HEAD_DIMS = (128,)


@dataclass(frozen=True)
class Cell:
    """One workload of the grid, why it is there, and whether each sample and head is recorded."""

    workload: Decode
    why: str
    accuracy_map: bool = False

    @property
    def with_flashinfer(self) -> bool:
        """Whether FlashInfer's three ways are measured too."""
        return self.workload.head_dim in PEER_HEAD_DIMS


def grid(*, quick: bool = False) -> list[Cell]:
    """Return the cells in the order of measurement, each workload once.

    `quick` keeps the kinds of cells but shrinks the batch to 4 and the lengths to 1024 keys.
    """
    cells = [cell for dtype in DTYPES for cell in _of_dtype(dtype)]
    if quick:
        cells = [Cell(_shrunk(cell.workload), cell.why, cell.accuracy_map) for cell in cells]
    once: dict[Decode, Cell] = {}
    for cell in cells:
        once.setdefault(cell.workload, cell)
    return list(once.values())


def keep(cells: Iterable[Cell], contenders: Iterable[str], only: str) -> list[tuple[Cell, list]]:
    """Return the cells and contender names whose `name/label` holds the text `only`.

    Raises: ValueError if nothing is left.
    """
    names = list(contenders)
    kept = []
    for cell in cells:
        chosen = [name for name in names if only in f"{name}/{cell.workload.label}"]
        if chosen:
            kept.append((cell, chosen))
    if not kept:
        examples = f"decode_mma, fp16, '57 x 8192', 'decode_fma/1 x 131072'; kernels: {names}"
        raise ValueError(f"only is {only!r} and matches nothing; allowed: parts such as {examples}")
    return kept


def _of_dtype(dtype: str) -> list[Cell]:
    def cell(batch, kv_len, q_heads, why, *, page_size=16, head_dim=128, accuracy_map=False):
        workload = Decode.uniform(
            batch,
            kv_len,
            q_heads=q_heads,
            kv_heads=KV_HEADS,
            head_dim=head_dim,
            page_size=page_size,
            dtype=dtype,
        )
        return Cell(workload, why, accuracy_map)

    return [
        cell(57, 8192, 32, "case 000", accuracy_map=True),
        *(cell(57, 8192, KV_HEADS * group, f"group {group}") for group in GROUPS),
        cell(1, 131072, 32, "one long request"),
        cell(256, 1024, 32, "many short requests"),
        cell(32, 4096, 32, "a middling batch"),
        *(cell(57, 8192, 32, f"page {size}", page_size=size) for size in PAGE_SIZES),
        cell(32, 8192, 32, "head_dim 64", head_dim=64),
        cell(32, 8192, 32, "head_dim 256", head_dim=256),
    ]


def _shrunk(workload: Decode) -> Decode:
    return Decode.uniform(
        min(workload.batch, 4),
        min(workload.max_kv_len, 1024),
        q_heads=workload.q_heads,
        kv_heads=workload.kv_heads,
        head_dim=workload.head_dim,
        page_size=workload.page_size,
        dtype=workload.dtype,
    )
