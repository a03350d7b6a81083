"""Time GPU work by CUDA events: actions take turns, and L2 is scrubbed before each run.

A graph time is that of a captured CUDA graph's replay: device time without launch overhead. An
eager time is that of a call on an idle stream, and includes the time in which Python launches it.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCRUB_OVER_L2 = 4
CEILING_BYTES = 2**31

Action = Callable[[], object]


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of repeated times."""

    q25_s: float
    median_s: float
    q75_s: float
    repeats: int


def quartiles(times_s: Sequence[float]) -> Quartiles:
    """Return the quartiles of at least two times.

    Raises: ValueError for fewer than two times, or a time that is NaN or not above zero.
    """
    if len(times_s) < 2:
        raise ValueError(f"times_s has {len(times_s)} entries; allowed: 2 or more")
    for time_s in times_s:
        if not time_s > 0.0:
            raise ValueError(f"times_s holds {time_s}; allowed: seconds above 0")
    low, middle, high = statistics.quantiles(times_s, n=4, method="inclusive")
    return Quartiles(low, middle, high, len(times_s))


def turns(names: Sequence[str], repeats: int) -> Iterator[str]:
    """Yield every name once per repeat; each repeat starts one name later than the one before.

    Over len(names) repeats each name takes each place once, and slow drifts of the clock affect all
    names alike.
    """
    for repeat in range(repeats):
        shift = repeat % len(names)
        yield from (*names[shift:], *names[:shift])


def interleave(
    actions: Mapping[str, Action],
    *,
    repeats: int,
    warmup: int,
    prepare: Action,
    stopwatch: Callable[[Action], Callable[[], float]],
) -> dict[str, list[float]]:
    """Return the times of every action, run in turns; `prepare` runs before each run.

    `stopwatch` runs an action and returns a function, called after all runs, that returns its
    seconds.
    """
    for action in actions.values():
        for _ in range(warmup):
            prepare()
            action()
    readers: dict[str, list[Callable[[], float]]] = {name: [] for name in actions}
    for name in turns(list(actions), repeats):
        prepare()
        readers[name].append(stopwatch(actions[name]))
    return {name: [read() for read in listed] for name, listed in readers.items()}


def time_interleaved(
    actions: Mapping[Any, Action],
    *,
    repeats: int = 50,
    warmup: int = 3,
    eager: bool = False,
) -> dict[Any, Quartiles]:
    """Return the quartiles of each action on the current CUDA device.

    Pass `capture(action).replay` for device time, or plain calls with `eager=True`.
    Units: seconds; L2 is scrubbed before every repeat, outside the timed part.
    """
    import torch

    scrub = l2_scrubber()

    def prepare() -> None:
        scrub()
        if eager:
            torch.cuda.synchronize()

    def stopwatch(action: Action) -> Callable[[], float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()

        def read() -> float:
            end.synchronize()
            return start.elapsed_time(end) * 1e-3

        return read

    times = interleave(
        actions,
        repeats=repeats,
        warmup=warmup,
        prepare=prepare,
        stopwatch=stopwatch,
    )
    return {name: quartiles(times_s) for name, times_s in times.items()}


def l2_scrubber() -> Action:
    """Return a function that evicts everything from L2 and leaves no line to write back.

    The function writes a buffer several times as large as L2, and then reads another one. The next
    kernel finds none of its own data in L2, and no written lines that must go to memory first.
    """
    import torch

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    elements = max(SCRUB_OVER_L2 * l2_bytes, 2**26) // 4
    written, read = (torch.ones(elements, device="cuda") for _ in range(2))
    total = torch.empty((), device="cuda")

    def scrub() -> None:
        written.fill_(1.0)
        torch.sum(read, dim=0, out=total)

    return scrub


def capture(action: Action, capture_error_mode: str = "global"):
    """Return a CUDA graph of one call of the action, warmed up on a side stream first.

    capture_error_mode: as of torch.cuda.graph; "thread_local" where another thread of the process
    asks the GPU meanwhile, as the one that watches NCCL does.
    Raises: RuntimeError if the action allocates, synchronises or does what a graph cannot hold.
    """
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            action()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=capture_error_mode):
        action()
    return graph


def ceilings(*, repeats: int = 20) -> dict[str, tuple[Quartiles, int]]:
    """Return times and bytes of a device-to-device copy and of a read-only sum.

    Units: bytes read plus bytes written.
    """
    import torch

    source = torch.randn(CEILING_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    total = torch.empty((), device="cuda")
    # No graph is captured: it would give the copy to the copy engines, at two thirds of the rate.
    actions = {
        "copy": lambda: target.copy_(source),
        "read": lambda: torch.sum(source, dim=0, out=total),
    }
    times = time_interleaved(actions, repeats=repeats)
    return {"copy": (times["copy"], 2 * CEILING_BYTES), "read": (times["read"], CEILING_BYTES)}
