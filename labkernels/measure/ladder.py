"""The ladder from CUDA cores to the best prefill kernel: each rung is one idea more."""

from dataclasses import dataclass, replace

from labkernels.kernels.spec import MANY_ROWS, Instance, KernelSpec, discover

HEAD_DIM = 128


@dataclass(frozen=True)
class Rung:
    """A kernel and tile that has one idea more than the rung below it."""

    name: str
    kernel: str
    tile: str
    idea: str

    @property
    def spec(self) -> KernelSpec:
        """The kernel as if the rung's tile were its only one."""
        return only(self.kernel, self.tile, HEAD_DIM)

    @property
    def instance(self) -> Instance:
        """What is compiled for the rung: bf16, ragged."""
        return self.spec.instance(dtype="bf16", head_dim=HEAD_DIM, group=1, kv="ragged")


_ALL = (
    Rung(
        "CUDA cores",
        "prefill_fma",
        "128x64x8x1x1",
        "fp32 FMAs, each operand read once for many of them",
    ),
    Rung(
        "mma.sync",
        "prefill_mma",
        "64x32x4x1x2-backward",
        "one instruction for 4096 FLOP; S and P stay in registers",
    ),
    Rung(
        "64 keys a step",
        "prefill_mma",
        "64x64x4x1x2-backward",
        "half as many barriers, maxima and rescales a key",
    ),
    Rung(
        "2 stages",
        "prefill_mma",
        "64x64x4x2x2-backward",
        "K and V are copied a whole step ahead",
    ),
    Rung(
        "32 rows a warp",
        "prefill_mma",
        "128x64x4x2x2-backward",
        "each fragment of K and V is read once for twice the rows",
    ),
    Rung(
        "wgmma and TMA",
        "prefill_wgmma",
        "128x128x12x2x1-backward-none",
        "K and V go from shared memory to the tensor cores, and a warp of its own fetches them",
    ),
    Rung(
        "overlap within",
        "prefill_wgmma",
        "128x128x12x2x1-backward-within",
        "a warpgroup exponentiates while its next products run",
    ),
    Rung(
        "overlap between",
        "prefill_wgmma",
        "128x128x12x2x1-backward-between",
        "two warpgroups take turns: one multiplies while the other exponentiates",
    ),
)


def rungs() -> list[Rung]:
    """Return the rungs whose kernels there are, lowest first."""
    return [rung for rung in _ALL if rung.kernel in discover()]


def only(kernel: str, tile: str, head_dim: int) -> KernelSpec:
    """Return a kernel as if one tile, in its own list or not, were the only one.

    Raises: ValueError if its source cannot be compiled for the tile.
    """
    spec = discover()[kernel]
    tiles = [*spec.tiles(head_dim, MANY_ROWS, spec.policies[0])]
    tiles += [] if spec.space is None else spec.space(head_dim)
    chosen = next((option for option in tiles if option.label == tile), None)
    if chosen is None:
        allowed = ", ".join(dict.fromkeys(option.label for option in tiles))
        raise ValueError(f"tile = {tile!r}, allowed for {kernel}: {allowed}")
    return replace(spec, tiles=lambda *_: (chosen,))
