"""The order in which a kernel takes the keys of a request, and which sums it keeps separate."""

import math
from dataclasses import dataclass

import numpy as np

MMA_KEYS = 16  # products that one mma of 16-bit inputs sums


@dataclass(frozen=True)
class SummationOrder:
    """Which keys are added to which sum, and when.

    A request's keys are cut into splits of `keys_per_split`. In a split the warps take steps of
    `keys` each; every warp keeps a State of its own, and the States merge in order at the end.
    groups: how many lanes of a warp share a channel, each with an accumulator for every groups-th
    key; 1 on tensor cores. sum_bits: places in a step that differ in these bits have separate sums
    of l, which are joined bit by bit, in this order. promoted: the tensor cores start from zero for
    every 16 keys, and an fp32 addition joins the results. lane_channels: the number of products of
    a score in one chain of FMAs; the chains' sums are added pairwise.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    keys_per_split: int
    warps: int = 4
    keys: int = MMA_KEYS
    groups: int = 1
    sum_bits: tuple[int, ...] = (0, 1, 2)
    promoted: bool = False
    lane_channels: int = 8

    def __post_init__(self) -> None:
        for name in ("keys_per_split", "warps", "keys", "groups", "lane_channels"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} = {value}, allowed: 1 or more")
        if self.keys % MMA_KEYS:
            raise ValueError(f"keys = {self.keys}, allowed: multiples of {MMA_KEYS}")
        if self.keys % self.groups:
            raise ValueError(f"groups = {self.groups}, allowed: divisors of keys = {self.keys}")
        bits = (self.keys - 1).bit_length()
        if len(set(self.sum_bits)) != len(self.sum_bits) or not set(self.sum_bits) < set(
            range(bits + 1)
        ):
            raise ValueError(f"sum_bits = {self.sum_bits}, allowed: different ones of 0 to {bits}")

    def splits(self, kv_len: int) -> int:
        """Return the number of splits of a request; a request without keys has one."""
        return max(1, math.ceil(kv_len / self.keys_per_split))

    def steps(self, kv_len: int) -> np.ndarray:
        """Return the keys of every step of every warp, -1 in a place without a key.

        Shapes: [splits * warps, steps, keys]
        """
        taken = min(kv_len, self.keys_per_split)
        shape = (max(1, math.ceil(taken / (self.warps * self.keys))), self.warps, self.keys)
        place = np.arange(math.prod(shape)).reshape(shape).swapaxes(0, 1)
        first = np.arange(self.splits(kv_len))[:, None, None, None] * self.keys_per_split
        key = first + place
        inside = key < np.minimum(first + self.keys_per_split, kv_len)
        return np.where(inside, key, -1).reshape(-1, shape[0], self.keys)

    @property
    def lanes(self) -> np.ndarray:
        """The places that each partial sum of l holds, in order. Shapes: [lanes, keys / lanes].

        Lanes 2 i and 2 i + 1 differ in the first of sum_bits, and so on.
        """
        place = np.arange(self.keys)
        lane = np.zeros_like(place)
        for i, bit in enumerate(self.sum_bits):
            lane |= (place >> bit & 1) << i
        return np.argsort(lane, kind="stable").reshape(1 << len(self.sum_bits), -1)


def with_idle_lanes(x: np.ndarray, lane_channels: int) -> np.ndarray:
    """Return rows with zeros for the lanes that a power of two of them has beyond the channels.

    Shapes: [rows, D] -> [rows, at least D]
    """
    lanes = -(-x.shape[1] // lane_channels)
    channels = lane_channels << (lanes - 1).bit_length()
    return np.pad(x, ((0, 0), (0, channels - x.shape[1])))
