"""Where the buffers of decode_mma lie in shared memory, as the stepper of a page draws them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from labkernels import formats
from labkernels.kernels.kernel import Instance

CHUNK_BYTES = 16  # what one cp.async and one ldmatrix row move
STATE_PADDING = 4  # numbers, as split_kv.cuh pads a row of o
ROWS = 16
SYNCS_BEFORE_MERGE = 2  # then the warps' States take the place of the stages


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


def maps(instance: Instance) -> list[dict[str, object]]:
    """Return the buffers while the warps go through the keys, and while they merge."""
    tile, dims = instance.tile, instance.head_dim
    row_bytes = dims * formats.named(instance.dtype).bytes
    q = Tile("Q", 0, ROWS, row_bytes // CHUNK_BYTES, 0, instance.dtype, swizzled=True)
    begin = ROWS * row_bytes
    stages, at = [q], begin
    for warp in range(tile.warps):
        names = [f"K{i}" for i in range(tile.stages)] + [f"V{i}" for i in range(tile.stages - 1)]
        for name in names:
            stages.append(
                Tile(
                    f"{name} of warp {warp}",
                    at,
                    tile.keys,
                    row_bytes // CHUNK_BYTES,
                    warp + 1,
                    instance.dtype,
                    swizzled=True,
                )
            )
            at += tile.keys * row_bytes
    states, at = [q], begin
    for warp in range(tile.warps):
        chunks = (dims + STATE_PADDING) * 4 // CHUNK_BYTES
        states.append(Tile(f"o of warp {warp}", at, ROWS, chunks, 1 + warp // 2, "fp32"))
        at += ROWS * chunks * CHUNK_BYTES
    for name in "ml":
        chunks = ROWS * 4 // CHUNK_BYTES
        states.append(Tile(f"{name} of the warps", at, tile.warps, chunks, 3, "fp32"))
        at += tile.warps * chunks * CHUNK_BYTES
    return [
        {"syncs": 0, "tiles": [asdict(tile) for tile in stages]},
        {"syncs": SYNCS_BEFORE_MERGE, "tiles": [asdict(tile) for tile in states]},
    ]
