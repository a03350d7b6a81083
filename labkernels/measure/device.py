"""Facts of the live GPU for provenance: name, versions, and its clock and power while it works."""

import platform
from importlib import metadata

from labkernels.cuda import device


def facts() -> dict[str, object]:
    """Return the provenance facts of the current CUDA device and its software, sensors apart."""
    import torch

    gpu = device.live(torch.cuda.current_device())
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": gpu.driver_version if gpu else "unknown",
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": version("triton"),
    }


def sensors() -> dict[str, float]:
    """Return the SM clock in MHz and the board power in W at this moment; 0 where not told."""
    import torch

    gpu = device.live(torch.cuda.current_device())
    reading = device.read_sensors(gpu) if gpu else None
    if reading is None:
        return {"sm_clock_mhz": 0.0, "power_w": 0.0}
    return {"sm_clock_mhz": reading.sm_clock_hz / 1e6, "power_w": reading.power_w}


def version(package: str) -> str:
    """Return the installed version of a package, or an empty text."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def host() -> str:
    """Return the operating system, processor and Python of this machine in words."""
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
