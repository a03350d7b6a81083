"""Facts of the present GPU for provenance: name, versions, and clock and power under load."""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

_QUERY = ("clocks.sm", "power.draw", "driver_version")


@dataclass
class Reading:
    """A reading by nvidia-smi; 0 or `unknown` for a value that it could not give."""

    sm_clock_mhz: float = 0.0
    power_w: float = 0.0
    driver: str = "unknown"

    @property
    def sensors(self) -> dict[str, float]:
        """The provenance columns of this reading."""
        return {"sm_clock_mhz": self.sm_clock_mhz, "power_w": self.power_w}


def facts() -> dict[str, Any]:
    """Return the provenance facts of the current CUDA device and its software, without sensors."""
    import torch

    with sampling() as reading:
        name = torch.cuda.get_device_name()
    return {
        "gpu": name,
        "driver": reading.driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": version("triton"),
    }


@contextmanager
def sampling() -> Iterator[Reading]:
    """Read clock and power of the current CUDA device while the body runs.

    The reading is filled in when the body ends.
    """
    process, reading = _start(_identity()), Reading()
    try:
        yield reading
    finally:
        if process is not None:
            _fill(reading, _answer(process))


def version(package: str) -> str:
    """Return the installed version of a package, or an empty string."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def host() -> str:
    """Return the operating system, processor and Python of this machine in words."""
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _identity() -> str:
    import torch

    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def _start(identity: str) -> subprocess.Popen | None:
    command = ["nvidia-smi", f"--id={identity}", f"--query-gpu={','.join(_QUERY)}"]
    try:
        return subprocess.Popen(
            [*command, "--format=csv,noheader,nounits"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except FileNotFoundError:
        return None


def _answer(process: subprocess.Popen) -> str:
    try:
        return process.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return ""


def _fill(reading: Reading, text: str) -> None:
    cells = [cell.strip() for cell in text.strip().split(",")]
    if len(cells) == len(_QUERY):
        reading.sm_clock_mhz, reading.power_w = _number(cells[0]), _number(cells[1])
        reading.driver = cells[2] or "unknown"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
