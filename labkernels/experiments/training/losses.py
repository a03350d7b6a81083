"""Train a small model from a seed by any way to compute attention; judge it on held-out text."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from labkernels.experiments.training import text
from labkernels.experiments.training.model import Attend, Gpt, Size

HELD_OUT = "held out"
# batches(seed, batch=, context=, device=, held_out=): tokens and those that follow, without an end
Batches = Callable[..., Iterator[tuple[torch.Tensor, torch.Tensor]]]


@dataclass(frozen=True)
class Run:
    """How long and on what a model trains. Units: peak_rate, of AdamW; batch in sequences."""

    size: Size
    steps: int = 500
    batch: int = 32
    peak_rate: float = 2e-3
    warmup: int = 50
    every: int = 10  # steps between two rows
    judged: int = 8  # held-out batches


QUICK = Run(Size(layers=1, q_heads=2, kv_heads=1, context=32, hidden=32), 4, 2, warmup=2, every=2)
SEEDS = (0, 1, 2)


def steps(
    attend: Attend, seed: int, run: Run, device: str, batches: Batches = text.batches
) -> Iterator[tuple[Gpt, torch.Tensor]]:
    """Train from a seed, and yield the model and the loss (on the device) after each step."""
    torch.manual_seed(seed)
    model = Gpt(run.size).to(device)  # weights are drawn on the CPU: the same on every device
    # one weight after the other: a fused step may differ between versions of torch
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    drawn = batches(seed, batch=run.batch, context=run.size.context, device=device)
    for step, (tokens, following) in enumerate(itertools.islice(drawn, run.steps)):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, run)
        with torch.autocast(device, torch.bfloat16):
            loss = model.loss(tokens, following, attend)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield model, loss.detach()


def rate(step: int, run: Run) -> float:
    """Return the learning rate: a linear warm-up, then half a cosine down to a tenth."""
    if step < run.warmup:
        return run.peak_rate * (step + 1) / run.warmup
    done = (step - run.warmup) / max(1, run.steps - run.warmup)
    return run.peak_rate * (0.55 + 0.45 * math.cos(math.pi * done))


@torch.no_grad()
def judged(
    model: Gpt, attend: Attend, run: Run, device: str, batches: Batches = text.batches
) -> float:
    """Return the mean loss on held-out text: for all ways and seeds the same batches."""
    shape = {"batch": run.batch, "context": run.size.context}
    drawn = batches(0, **shape, device=device, held_out=True)
    with torch.autocast(device, torch.bfloat16):
        losses = [model.loss(*two, attend) for two in itertools.islice(drawn, run.judged)]
    return float(torch.stack(losses).double().mean())
