"""Where the buffers of a kernel lie in shared memory, as the stepper of a page draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labkernels import formats
from labkernels.cuda.compiler.specialization import STATE_PADDING
from labkernels.kernels.kernel import Instance
from labkernels.kernels.prefill.wgmma.spec import Q_TWICE_BYTES, TILE_STAGES
from labkernels.units import COPY_BYTES

SYNCS_BEFORE_MERGE = {"decode_mma": 2, "decode_mma_n8": 2, "decode_fma": 1}
BARRIER_BYTES = 8
BASIC = "prefill_wgmma_basic"


@dataclass(frozen=True)
class Tile:
    """A buffer: its first byte, and its rows of 16-byte chunks. line: tiles drawn side by side.

    swizzled: chunk c of row r lies at chunk c ^ (r & 7).
    """

    name: str
    byte: int
    rows: int
    chunks: int
    line: int
    format: str
    swizzled: bool = False

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.byte + self.rows * self.chunks * COPY_BYTES


def maps(instance: Instance) -> list[dict[str, Any]]:
    """Return the buffers of each phase, which begins after `syncs` barriers of the block."""
    phases = {0: _LOOPS[instance.kernel](instance)}
    if instance.kernel in SYNCS_BEFORE_MERGE:
        # From then on the warps' States take the place of the stages.
        phases[SYNCS_BEFORE_MERGE[instance.kernel]] = _merge(instance)
    return [
        {"syncs": syncs, "tiles": [asdict(tile) for tile in tiles]}
        for syncs, tiles in phases.items()
    ]


def barriers(instance: Instance) -> list[str]:
    """Return the names of the block's mbarriers, in the order in which they are initialised."""
    if instance.kernel not in ("prefill_wgmma", BASIC):
        return []
    keys, q = dict.fromkeys("KV", instance.tile.stages), {"Q": _q_stages(instance)}
    is_basic = instance.kernel == BASIC
    rings = q | keys if is_basic else keys | q | {"work tile": TILE_STAGES}
    names = [
        f"{what} {stage} {state}"
        for what, n in rings.items()
        for stage in range(n)
        for state in ("full", "empty")
    ]
    return [*names, *([] if is_basic else ["work tile wanted"]), "tail of V full"]


def _whole(instance: Instance, name: str, rows: int, byte: int, line: int) -> Tile:
    """Return a tile of whole rows of head_dim elements, swizzled."""
    chunks = instance.head_dim * formats.named(instance.dtype).bytes // COPY_BYTES
    return Tile(name, byte, rows, chunks, line, instance.dtype, swizzled=True)


def _row_of(instance: Instance, names: Mapping[str, int], byte: int, line: int) -> Iterator[Tile]:
    """Yield tiles of some rows each, one after the other."""
    for name, rows in names.items():
        tile = _whole(instance, name, rows, byte, line)
        yield tile
        byte = tile.end


def _decode(instance: Instance) -> list[Tile]:
    """Return the warps' stages, behind Q; decode_fma has P behind them, and Q in registers."""
    tile, tiles = instance.tile, []
    fma = instance.kernel == "decode_fma"
    if not fma:
        tiles.append(_whole(instance, "Q", instance.rows, 0, 0))
    for warp in range(tile.warps):
        names = [f"K{i}" for i in range(tile.stages)] + [f"V{i}" for i in range(tile.stages - 1)]
        keys = {f"{name} of warp {warp}": tile.keys for name in names}
        tiles += _row_of(instance, keys, tiles[-1].end if tiles else 0, warp + 1)
    if fma:
        for warp in range(tile.warps):
            chunks = instance.rows * 4 // COPY_BYTES
            end, name = tiles[-1].end, f"P of warp {warp}"
            tiles.append(Tile(name, end, tile.keys, chunks, tile.warps + 1, "fp32"))
    return tiles


def _merge(instance: Instance) -> list[Tile]:
    """Return the warps' States, behind Q; decode_fma has Q in registers."""
    fma, rows, warps = instance.kernel == "decode_fma", instance.rows, instance.tile.warps
    tiles = [] if fma else [_whole(instance, "Q", rows, 0, 0)]
    chunks = (instance.head_dim + STATE_PADDING) * 4 // COPY_BYTES
    for warp in range(warps):
        end = tiles[-1].end if tiles else 0
        tiles.append(Tile(f"o of warp {warp}", end, rows, chunks, 1 + warp // 2, "fp32"))
    for name in "ml":
        chunks = rows * 4 // COPY_BYTES
        tiles.append(Tile(f"{name} of the warps", tiles[-1].end, warps, chunks, 3, "fp32"))
    return tiles


def _prefill_mma(instance: Instance) -> list[Tile]:
    """Return the block's stages, then Q."""
    tile = instance.tile
    keys = {f"{name}{i}": tile.keys for name in "KV" for i in range(tile.stages)}
    stages = list(_row_of(instance, keys, 0, 0))
    return [*stages, _whole(instance, "Q", instance.rows, stages[-1].end, 1)]


def _q_stages(instance: Instance) -> int:
    """Return how many stages of Q fit beside K and V, as in tile.cuh."""
    if instance.kernel == BASIC:
        return 1
    tile, row_bytes = instance.tile, instance.head_dim * formats.named(instance.dtype).bytes
    twice = 2 * instance.rows * row_bytes + 2 * tile.stages * tile.keys * row_bytes
    return 2 if twice <= Q_TWICE_BYTES else 1


def _prefill_wgmma(instance: Instance) -> list[Tile]:
    """Return the stages of Q, of K and of V, then the mbarriers."""
    tile = instance.tile
    q = {f"Q{i}": instance.rows for i in range(_q_stages(instance))}
    keys = {f"{name}{i}": tile.keys for name in "KV" for i in range(tile.stages)}
    stages = list(_row_of(instance, q | keys, 0, 0))
    n_barriers = len(barriers(instance))
    rows = n_barriers * BARRIER_BYTES // COPY_BYTES
    return [*stages, Tile("memory of mbarriers", stages[-1].end, 1, rows, 1, "u64")]


_LOOPS: dict[str, Callable[[Instance], list[Tile]]] = {
    "decode_mma": _decode,
    "decode_mma_n8": _decode,
    "decode_fma": _decode,
    "prefill_mma": _prefill_mma,
    BASIC: _prefill_wgmma,
    "prefill_wgmma": _prefill_wgmma,
}
