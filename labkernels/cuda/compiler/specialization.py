"""The input of a compiler: one kernel of a source, specialised, and its block."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Specialization:
    """One kernel as a compiler gets it, and the block with which it is launched.

    params: the C++ name of its one parameter. include_dirs: searched before the lab's own.
    """

    header: str
    instance: str
    params: str
    threads: int
    smem_bytes: int
    include_dirs: tuple[Path, ...] = ()

    @property
    def defines(self) -> dict[str, int]:
        """The ledger's bytes, which the source compares with its own."""
        return {"LAB_SMEM_BYTES": self.smem_bytes}
