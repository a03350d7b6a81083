"""The memory through which the blocks of a launch, and the launches of a step, communicate."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from labkernels.kept import Kept

ARRAY_BYTES = 256  # arrays begin at multiples of this
SECTOR_BYTES = 32  # a name's counters begin at multiples of this, the unit in which L2 adds
COUNTER_BYTES = 4
_CHUNK = 1 << 16  # counters that are cleared together
_LOCK = threading.Lock()


@dataclass(eq=False, slots=True)
class Space:
    """One step's own memory: where each array and counter begins, and how many bytes it has.

    arrays, and counters from `first_counter` on: the tensors that hold the memory.
    """

    addresses: Mapping[str, int]
    sizes_bytes: Mapping[str, int]
    arrays: torch.Tensor | None = None
    counters: torch.Tensor | None = None
    first_counter: int = 0
    n_counters: int = 0

    def clear(self) -> None:
        """Set the counters to 0, as a launch does when it ends normally.

        On a GPU this is needed only after contents out of range: after an error the context is
        lost, and every later launch of the process is refused.
        """
        if self.counters is not None:
            self.counters[self.first_counter :][: self.n_counters].zero_()


NO_SPACE = Space({}, {})


class Workspace:
    """The arrays and counters that each launch of the same facts needs separately.

    Arrays are not initialised. Counters are int32 and 0, and a kernel leaves them at 0.
    Units: arrays in bytes, counters in numbers, by name.
    """

    def __init__(
        self, device: torch.device, arrays: Mapping[str, int], counters: Mapping[str, int]
    ) -> None:
        in_bytes = {name: COUNTER_BYTES * n for name, n in counters.items()}
        self._arrays, size_bytes = _side_by_side(arrays, ARRAY_BYTES)
        self._counters, counters_bytes = _side_by_side(in_bytes, SECTOR_BYTES)
        self._device, self._n_counters = device, counters_bytes // COUNTER_BYTES
        self._sizes_bytes = dict(arrays) | in_bytes
        self._like = blank((size_bytes,), torch.uint8, device)

    def take(self) -> Space:
        """Return memory for one more step."""
        arrays = counters = None
        addresses, first = {}, 0
        if self._arrays:
            arrays = torch.empty_like(self._like)
            base = arrays.data_ptr()
            addresses = {name: base + offset for name, offset in self._arrays.items()}
        if self._n_counters:
            counters, first = counters_at_rest(self._n_counters, self._device)
            base = counters.data_ptr() + COUNTER_BYTES * first
            for name, offset in self._counters.items():
                addresses[name] = base + offset
        return Space(addresses, self._sizes_bytes, arrays, counters, first, self._n_counters)


def stream_of(device: torch.device) -> int | None:
    """Return the current stream: later work on it sees earlier writes.

    None while the stream is captured into a CUDA graph, since only replays then write.
    """
    if device.type != "cuda":
        return 0
    if torch._C._cuda_isCurrentStreamCapturing():
        return None
    return torch._C._cuda_getCurrentRawStream(device.index)


def _side_by_side(sizes: Mapping[str, int], unit: int) -> tuple[dict[str, int], int]:
    """Return where each array begins and all end, in bytes: multiples of a unit, with gaps."""
    begins, end = {}, 0
    for name, size in sizes.items():
        begins[name] = end
        end += (size // unit + 1) * unit
    return begins, end


def blank(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor without memory, from which torch.empty_like makes contiguous tensors.

    This halves the time to make a tensor, because torch reads no sizes.
    """
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty(1, dtype=dtype, device=device).expand(shape)


class _Chunk:
    """Counters that are cleared together; each is given to one launch only."""

    def __init__(self, n: int, device: torch.device) -> None:
        self.counters, self.taken = torch.zeros(n, dtype=torch.int32, device=device), 0

    def take(self, n: int) -> tuple[torch.Tensor, int]:
        """Return the next counters: their tensor, and the index of the first."""
        first, self.taken = self.taken, self.taken + n
        return self.counters, first


_CHUNKS = Kept(64)  # by device and stream; a dropped chunk lives as long as a step uses it


def counters_at_rest(n: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return fresh counters, all 0, as their tensor and the index of the first.

    Clearing takes longer than a launch, so many are cleared at once, on the current stream.
    Each counter is given to one launch only: a launch that failed, or runs on another stream, can
    spoil only its own counters. What is captured into a CUDA graph gets counters of the graph's own
    memory, which each replay clears.
    """
    stream = stream_of(device)
    if stream is None or n > _CHUNK // 16:
        return _Chunk(n, device).take(n)
    with _LOCK:
        chunk = _CHUNKS.get((device, stream))
        if chunk is None or chunk.taken + n > _CHUNK:
            chunk = _CHUNKS[device, stream] = _Chunk(_CHUNK, device)
        return chunk.take(n)
