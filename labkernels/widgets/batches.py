"""The data of the explorer of batches in a page: how libraries cut them, and who parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from labkernels import hardware
from labkernels.planners import Batch, Cut, NotKnown, changed, named
from labkernels.probing.our_cuts import labkernels

GPUS = ("rtx4090", "a100", "h100", "h200", "b200")
LENGTHS = (512, 2048, 8192, 32768, 131072)
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
# How long the requests of a batch are, as parts of the longest: request n has part n % len(parts).
MIXES = {"all as long": (1,), "whole, half and quarter": (1, 2, 4)}
WAYS: dict[str, named.Planner] = {
    "labkernels": labkernels,
    "labkernels, batch_invariant": partial(labkernels, batch_invariant=True),
    **named.WAYS,
}
ONE = Batch((1,), 32, 8, 128, page_size=16)


def data() -> dict[str, Any]:
    """Return every cut as JSON: cuts[GPU][library] is a list by mix, length and size.

    An entry has for each part of the mix the numbers of two labels, alone and in the batch, and
    whether the cut is another one; or it is the number of the reason why the cut is not known.
    """
    labels: dict[str, int] = {}
    cuts = {hardware.gpu(key).name: {name: _of(name, key, labels) for name in WAYS} for key in GPUS}
    head = {"mixes": list(MIXES), "lengths": LENGTHS, "sizes": SIZES, "labels": list(labels)}
    parts = {name: list(of) for name, of in MIXES.items()}
    heads = f"{ONE.q_heads} query and {ONE.kv_heads} KV heads of {ONE.head_dim}"
    rules = "computed from the libraries' sources and from our plans"
    said = f"decode, bf16, {heads}, pages of {ONE.page_size}; {rules}"
    return {**head, "parts": parts, "cuts": cuts, "said": said}


def _of(name: str, key: str, labels: dict[str, int]) -> Any:
    gpu, planner = hardware.gpu(key), WAYS[name]

    def number(cut: Cut, request: int) -> int:
        return labels.setdefault(cut.label(request), len(labels))

    def entry(parts: tuple[int, ...], length: int, size: int) -> Any:
        lengths = tuple(length // parts[i % len(parts)] for i in range(size))
        try:
            cut = planner(replace(ONE, kv_lens=lengths), gpu)
            alone = [planner(replace(ONE, kv_lens=(length // part,)), gpu) for part in parts]
        except (NotKnown, ValueError) as reason:
            return labels.setdefault(str(reason), len(labels))
        pairs = enumerate(alone[:size])
        return [
            [number(of, 0), number(cut, i), int(bool(changed(of, cut, (i,))))] for i, of in pairs
        ]

    return [
        [[entry(parts, length, size) for size in SIZES] for length in LENGTHS]
        for parts in MIXES.values()
    ]
