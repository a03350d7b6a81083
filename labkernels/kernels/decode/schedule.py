"""How a decode is cut into blocks: a function of its shapes, so that a step need not plan."""

import math

from labkernels.kernels.checks import MAX_SPLITS

MIN_KEYS_PER_SPLIT = 256  # keys per split at least: a shorter split costs more than idle SMs
# One block merges all splits of a request and KV head. For each of the rows of a split that fall to
# one warp it takes as long as a block takes for so many keys. Splits that just balance the two have
# sqrt(this x rows x keys) keys; longer ones leave SMs idle, shorter ones wait for the merge.
KEYS_PER_MERGED_ROW = 4
# Two blocks per SM use an H200's whole memory rate: a decode of fewer blocks is cut into one wave
# of that size. A block of a cache of 8 bits also converts what it copies, while other blocks of its
# SM copy: such a decode is cut into as many blocks as the GPU holds at once, but a request never
# into more than two splits per SM. A decode of more blocks that the GPU still holds at once is not
# cut. A larger decode is cut until its waves are nearly full on average, but never into short
# splits.
FULL_BLOCKS_PER_SM = 2
FULL_WAVE = 0.97  # blocks of a decode per place in its waves
MIN_KEYS_TO_FILL_WAVES = 1024
# Splits that must not depend on the batch have SHORTEST_SPLIT keys, and twice as many in a request
# of more keys than each of DOUBLED_ABOVE. Short splits keep SMs busy when a request is alone; in a
# long request each further split adds a partial state to write, read and merge.
SHORTEST_SPLIT = 256
DOUBLED_ABOVE = (2048, 16384, 65536, 262144)
# The same for the CUDA source, which reads each request's length.
_LIMITS = ((f"SPLIT_DOUBLED_ABOVE_{i}", limit) for i, limit in enumerate(DOUBLED_ABOVE))
SPLIT_NUMBERS = (("SPLIT_KEYS", SHORTEST_SPLIT), *_LIMITS)


def invariant_keys_per_split(n_keys: int) -> int:
    """Return the keys per split of a request of so many keys, whatever its batch is.

    >>> [invariant_keys_per_split(n) for n in (2048, 2049, 16385, 131072, 2**20)]
    [256, 512, 1024, 2048, 4096]
    """
    return SHORTEST_SPLIT << sum(n_keys > limit for limit in DOUBLED_ABOVE)


def most_invariant_splits(max_keys: int) -> int:
    """Return the splits of the request, of up to so many keys, that has the most."""
    lengths = (*(limit for limit in DOUBLED_ABOVE if limit < max_keys), max_keys)
    return max(math.ceil(n / invariant_keys_per_split(n)) for n in lengths)


def keys_per_split(
    *,
    units: int,
    max_kv_len: int,
    slots: int,
    sm_count: int,
    step: int,
    merged_rows: int = 1,
    converts: bool = False,
) -> int:
    """Return the keys per split, so that the blocks of a decode keep all SMs busy to the end.

    units: blocks of an unsplit decode. slots: blocks that the GPU holds at once. step: keys that a
    block takes at a time; a split has a whole number of steps. merged_rows: rows of a split that
    one warp merges. converts: the cache has 8 bits.
    """
    most = FULL_BLOCKS_PER_SM * sm_count
    one_wave = max(slots, most) if converts else most
    if units <= one_wave:
        splits = min(one_wave // units, most)
        balanced = math.isqrt(KEYS_PER_MERGED_ROW * merged_rows * max_kv_len)
        least = min(max(MIN_KEYS_PER_SPLIT, balanced), max_kv_len)
    elif units <= slots:
        splits = least = 1
    else:
        most = max(1, max_kv_len // MIN_KEYS_TO_FILL_WAVES)
        splits = _fewest_full_waves(units, slots, most)
        least = 1
    keys = max(math.ceil(max_kv_len / splits), math.ceil(max_kv_len / MAX_SPLITS), least, 1)
    return math.ceil(keys / step) * step


def _fewest_full_waves(units: int, slots: int, most: int) -> int:
    """Return the fewest splits, up to `most`, with waves nearly full on average, else fullest."""

    def fullness(splits: int) -> float:
        waves = units * splits / slots
        return waves / math.ceil(waves)

    for splits in range(1, most + 1):
        if fullness(splits) >= FULL_WAVE:
            return splits
    return max(range(1, most + 1), key=fullness)
