"""The kernels that a call launches on a GPU, with their grids, as torch's profiler saw them."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TORCH_OWN = ("at::", "void at::")  # copies and fills around a library's call


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's demangled name, and its blocks along x, y and z."""

    kernel: str
    grid: tuple[int, ...]


def launches(run: Callable[[], object]) -> tuple[Launch, ...]:
    """Return the launches of run(), in order of time, without those of torch's own kernels.

    Raises: RuntimeError if the profiler saw no kernel at all.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        return of_trace(json.loads(path.read_text(encoding="utf-8")))


def of_trace(trace: dict) -> tuple[Launch, ...]:
    """Return the launches of a Chrome trace, as torch.profiler writes it."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    if not events:
        raise RuntimeError("the profiler saw no kernel; does the driver let it trace kernels?")
    events.sort(key=lambda event: event["ts"])
    return tuple(
        Launch(event["name"], tuple(event["args"]["grid"]))
        for event in events
        if not event["name"].startswith(TORCH_OWN)
    )
