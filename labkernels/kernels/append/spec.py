"""append: new keys and values into the pages of a cache, bit for bit, and the new lengths."""

from pathlib import Path

from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels.spec import CUDA_CORES, DecodeTile, Instance, KernelSpec, NumericPolicy

# Eight 16-byte loads a lane on full SMs cover the memory's latency. More keys a warp do not gain.
TILE = DecodeTile(warps=8, keys=16, stages=8, blocks_per_sm=4)


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block, in bytes: none."""
    return Ledger(f"{instance.kernel}: shared memory", "bytes", ())


def registers(instance: Instance) -> Ledger:
    """What a thread holds while its loads are in flight, in registers."""
    stages = instance.tile.stages
    return Ledger(
        f"{instance.kernel}: registers",
        "registers",
        (
            Line("moved", 4 * stages, f"{stages} loads of 16 B"),
            Line("places", 2 * stages, f"{stages} offsets of 64 bits"),
        ),
    )


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
    """The one tile option."""
    del head_dim, rows, policy  # a row is moved whatever it holds
    return (TILE,)


def template(instance: Instance) -> str:
    """The C++ name of the instance."""
    tile = instance.tile
    numbers = (tile.warps, tile.keys, tile.stages, tile.blocks_per_sm)
    return f"append::append<append::Tile<{', '.join(map(str, numbers))}>>"


SPEC = KernelSpec(
    name="append",
    family="append",
    language="cuda",
    idea="16 bytes a lane from new rows to their pages, and the lengths advanced, in one launch.",
    parent=None,
    folder=Path(__file__).parent,
    min_arch=80,
    policies=(CUDA_CORES,),  # nothing is rounded
    rows=lambda group: 1,
    tiles=tiles,
    smem=smem,
    registers=registers,
    template=template,
    runner="labkernels.kernels.append.run",
    head_dims=(64, 128, 192, 256),
)
