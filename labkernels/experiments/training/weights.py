"""The weights of a very small model, in 8 bits, that a reader can load and let write on a CPU."""

import collections
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import losses, ways
from labkernels.experiments.training.losses import Run
from labkernels.experiments.training.model import Gpt, Size
from labkernels.records import store
from labkernels.records.store import Row

DATA_FILE = "accuracy/weights.npz"
# a CPU trains it in minutes
SMALL = Run(Size(layers=2, q_heads=2, kv_heads=1, hidden=320, context=256), 300, 8, warmup=30)
ORIGIN = ("started_utc", "commit", "device")  # columns of a recording that the file has, too
WAY = "torch fp32"  # that it is trained with: a CPU build of our kernels takes hours


def cells(options: Options) -> Iterator[Cell]:
    """Yield the one training; `quick` takes a few steps."""
    yield Cell("a small model", losses.QUICK if options.quick else SMALL)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Train, and write the file; there are no rows."""
    found = train(cell.of, losses.SEEDS[0], "cpu")
    recording.tell(f"{found['held out']:.3f} nats per byte")
    origin = {name: np.array(recording.origin[name]) for name in ORIGIN}
    np.savez_compressed(recording.path(DATA_FILE), **found, **origin)
    yield from ()


def train(run: Run, seed: int, device: str) -> dict[str, np.ndarray]:
    """Train a model, and return what `load` reads: its weights in 8 bits, and its loss with them.

    A matrix has a scale for each row, so that the largest number of the row becomes 127.
    """
    attend = ways.WAYS[WAY]()
    (last,) = collections.deque(losses.steps(attend, seed, run, device), maxlen=1)
    model = last[0].requires_grad_(requires_grad=False)
    found = {"steps": np.array(run.steps)}
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            scale = weight.abs().amax(1, keepdim=True) / 127
            codes = (weight / scale).round()
            weight.copy_(codes * scale)
            found |= {f"codes.{name}": codes.to(torch.int8).cpu().numpy()}
            found |= {f"scale.{name}": scale.cpu().numpy()}
        else:
            found[name] = weight.cpu().numpy()
    loss = losses.judged(model, attend, run, device)
    return found | {"held out": np.array(loss)}


def load(path: Path | None = None, size: Size = SMALL.size) -> tuple[Gpt, dict[str, str]]:
    """Return the model whose weights are shipped, and what is known of its training.

    What is known: "steps", "held out" (its loss there in nats per byte), and the recording's
    "started_utc", "commit" and "device".
    """
    with np.load(path or store.path_of(DATA_FILE.partition("/")[2])) as file:
        kept = {name: file[name] for name in file.files}
    model = Gpt(size).requires_grad_(requires_grad=False)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            weight.copy_(torch.from_numpy(kept[f"codes.{name}"] * kept[f"scale.{name}"]))
        else:
            weight.copy_(torch.from_numpy(kept[name]))
    known = ("steps", "held out", *ORIGIN)
    return model, {name: str(kept[name]) for name in known}


EXPERIMENT = Experiment(
    "weights",
    "A very small language model, which readers load",
    {},
    cells,
    rows,
    needs_gpu=False,
)
