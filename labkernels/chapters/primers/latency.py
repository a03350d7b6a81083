"""How warps hide waiting: one arithmetic unit, and warps that load and compute in turn."""


def schedule(n_warps: int, *, wait: int, work: int, rounds: int) -> list[dict]:
    """Return what each warp does when, if a load takes `wait` turns and its work `work` turns.

    All warps start their first load at once. The unit serves the warp that has been ready for
    longest, and a warp starts its next load when its work is done.
    Units: turns of the unit. Each row has warp, start, end and what, "waits" or "works".
    """
    ready = dict.fromkeys(range(n_warps), wait)
    asked = dict.fromkeys(range(n_warps), 0)
    left = dict.fromkeys(range(n_warps), rounds)
    free, rows = 0, []
    while ready:
        warp = min(ready, key=lambda number: (ready[number], number))
        start = max(free, ready[warp])
        free = start + work
        rows.append({"warp": warp, "start": asked[warp], "end": start, "what": "waits"})
        rows.append({"warp": warp, "start": start, "end": free, "what": "works"})
        asked[warp], ready[warp] = free, free + wait
        left[warp] -= 1
        if not left[warp]:
            del ready[warp]
    return rows
