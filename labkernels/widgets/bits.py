"""The data of the explorer of number formats: the formats, and the tensor cores' units."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labkernels import formats
from labkernels.numerics.emulation import tensor_core

SHOWN = ("fp32", "tf32", "bf16", "fp16", "e4m3", "e5m2")


def data() -> dict[str, Any]:
    """Return all that bits.mjs shows, as JSON."""
    shown = {
        name: {
            **asdict(formats.named(name)),
            "emin": formats.named(name).emin,
            "max": formats.named(name).max,
        }
        for name in SHOWN
    }
    units = {
        arch: {fmt: asdict(unit) for fmt, unit in of.items()}
        for arch, of in tensor_core.UNITS.items()
    }
    return {"formats": shown, "units": units}
