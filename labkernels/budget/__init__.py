"""Registers, shared memory, occupancy and the least time, as formulas; standard library only."""

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.occupancy import (
    Occupancy,
    occupancy,
    registers_allowed,
    waves,
)
from labkernels.budget.quantity import Quantity, number, symbol
from labkernels.budget.registers import (
    fragment,
    fragment_registers,
    kv_split_register_formula,
    reported_register_formula,
)
from labkernels.budget.roofline import Floor, issue_time, least_time
from labkernels.budget.smem import array_bytes
from labkernels.budget.tile_model import StepWork, TileTime, tile_time

__all__ = [
    "Floor",
    "Ledger",
    "Line",
    "Occupancy",
    "Quantity",
    "StepWork",
    "TileTime",
    "array_bytes",
    "fragment",
    "fragment_registers",
    "issue_time",
    "kv_split_register_formula",
    "least_time",
    "number",
    "occupancy",
    "registers_allowed",
    "reported_register_formula",
    "symbol",
    "tile_time",
    "waves",
]
