"""The blocks of keys that each tile of query rows goes through, and those that it skips."""

import numpy as np

from labkernels.variant import AttentionVariant


def blocks(
    variant: AttentionVariant, q_len: int, kv_len: int, *, rows: int, keys: int
) -> list[dict[str, int | str]]:
    """Say of each tile of rows and block of keys how much of the block the tile's rows see.

    Each pair has tile, block, and seen: "all", "some" (the block needs a mask) or "none" (the tile
    skips the block).
    """
    query, key = np.arange(q_len)[:, None], np.arange(kv_len)[None]
    ends = variant.begin(query, q_len, kv_len), variant.end(query, q_len, kv_len)
    seen = (ends[0] <= key) & (key < ends[1])
    found: list[dict[str, int | str]] = []
    for tile in range(-(-q_len // rows)):
        for block in range(-(-kv_len // keys)):
            part = seen[tile * rows : (tile + 1) * rows, block * keys : (block + 1) * keys]
            words = "all" if part.all() else "some" if part.any() else "none"
            found.append({"tile": tile, "block": block, "seen": words})
    return found
