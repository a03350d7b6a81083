"""Workloads of the same kind, small enough for a CPU to compute in a moment."""

from dataclasses import fields, replace

from labkernels.variant import AttentionVariant

REQUESTS, KEYS, TOKENS = 3, 192, 40
KV_HEADS, Q_HEADS = 2, 4  # the least, so that a map of errors has heads to compare
LATENT_HEADS = 16  # heads of an MLA workload, which all share one latent row


def small(workload):
    """Return the workload with fewer requests, heads and tokens; small dimensions are kept.

    Lengths and a window keep their proportions; head_dim, group, page size, the rest of the variant
    and type stay as they are.

    >>> from labkernels import Decode
    >>> small(Decode.uniform(57, 8192, q_heads=32, kv_heads=8)).label
    '3 x 192, 8/2, d128, page 16, bf16'
    """
    names = {field.name for field in fields(workload)}
    chosen = spread(workload.batch, REQUESTS)
    changed = {"kv_lens": _scaled([workload.kv_lens[i] for i in chosen], KEYS)}
    if "q_lens" in names:
        changed["q_lens"] = _scaled([workload.q_lens[i] for i in chosen], TOKENS)
        if workload.q_lens == workload.kv_lens:
            changed["kv_lens"] = changed["q_lens"]
    if "variant" in names:
        sizes = max(changed["kv_lens"]), max(workload.kv_lens[i] for i in chosen)
        changed["variant"] = _with_window(workload.variant, *sizes)
    if "kv_heads" in names:
        kv_heads = min(workload.kv_heads, max(KV_HEADS, Q_HEADS // workload.group))
        changed |= {"kv_heads": kv_heads, "q_heads": kv_heads * workload.group}
    else:
        changed["q_heads"] = min(workload.q_heads, LATENT_HEADS)
    return replace(workload, **changed)


def _with_window(variant: AttentionVariant, most: int, longest: int) -> AttentionVariant:
    """Return the variant with a window scaled as a request of `longest` keys that has `most`."""
    ends = {name: getattr(variant, name) for name in ("window_left", "window_right")}
    scaled = {
        name: end if end is None else -(-end * most // max(1, longest))
        for name, end in ends.items()
    }
    return replace(variant, **scaled)


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below count, from the first to the last."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _scaled(lengths: list[int], most: int) -> tuple[int, ...]:
    """Return lengths scaled so that the longest is at most `most`; those above 0 stay above 0."""
    longest = max(lengths)
    if longest <= most:
        return tuple(lengths)
    return tuple(max(1, round(n * most / longest)) if n else 0 for n in lengths)
