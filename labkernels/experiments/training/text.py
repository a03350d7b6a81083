"""Text that every machine with Python has: the sources of the standard library, as bytes."""

import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

VOCABULARY = 256  # a token is a byte
_HELD_OUT = 10  # of this many files, one is not trained on


@functools.cache
def sources() -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes to train on and those held out, uint8, of all modules in order of name.

    Tests and generated tables are left out: they repeat themselves.
    Raises: FileNotFoundError if the standard library lies in an archive.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    kept = [
        path
        for path in sorted(folder.rglob("*.py"))
        if not {"test", "tests", "site-packages", "encodings", "pydoc_data", "idlelib"}
        & set(path.relative_to(folder).parts)
    ]
    if not kept:
        raise FileNotFoundError(f"no module lies in {folder}")
    texts = [np.frombuffer(path.read_bytes(), dtype=np.uint8) for path in kept]
    held = [i % _HELD_OUT == 0 for i in range(len(texts))]
    parts = [
        np.concatenate([text for text, out in zip(texts, held, strict=True) if out is wanted])
        for wanted in (False, True)
    ]
    return parts[0], parts[1]


def batches(
    seed: int, *, batch: int, context: int, device: str, held_out: bool = False
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens and their successors, int64 [batch, context] each, from random places.

    The places depend on the seed alone, not on the device.
    """
    text = torch.from_numpy(sources()[held_out].copy())
    draw = torch.Generator().manual_seed(seed)
    while True:
        places = torch.randint(len(text) - context - 1, (batch,), generator=draw)
        rows = text[places[:, None] + torch.arange(context + 1)].long().to(device)
        yield rows[:, :-1], rows[:, 1:]
