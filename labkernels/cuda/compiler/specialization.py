"""The input of a compiler: one kernel of a source, specialised, and its block."""

from dataclasses import dataclass
from pathlib import Path

ATOM_ROWS, ATOM_COLUMNS = 8, 64  # of 16 bits: the swizzle repeats after 8 rows of 128 bytes
STATE_PADDING = 4  # floats after a row of a warp's O, in lab/attention/split_kv.cuh
VOCABULARY = {
    "ATOM_ROWS": ATOM_ROWS,
    "ATOM_COLUMNS": ATOM_COLUMNS,
    "STATE_PADDING": STATE_PADDING,
}  # constants of lab/ that every source gets


@dataclass(frozen=True)
class Specialization:
    """One kernel as a compiler gets it, and the block with which it is launched.

    params: the C++ name of its one parameter. include_dirs: searched before the lab's own.
    numbers: further constants, each of which is a macro of the source: LAB_ and the name.
    """

    header: str
    instance: str
    params: str
    threads: int
    smem_bytes: int
    include_dirs: tuple[Path, ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()

    @property
    def defines(self) -> dict[str, int]:
        """The ledger's bytes, which the source compares with its own, and its constants."""
        block = {"SMEM_BYTES": self.smem_bytes, "THREADS": self.threads}
        numbers = block | VOCABULARY | dict(self.numbers)
        return {f"LAB_{name}": number for name, number in numbers.items()}
