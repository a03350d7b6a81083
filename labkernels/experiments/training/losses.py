"""Train a small model by each way to compute attention, from several seeds.

Rows hold the loss of the training batch, in fp32, every few steps, and the loss on held-out text at
the end, by the way itself and with attention in fp32. A repeat trains twice from one seed and notes
the first step whose loss or weights have other bits.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import text, ways
from labkernels.experiments.training.model import Attend, Gpt, Size
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/training.parquet"
TRAINING, HELD_OUT, PARTED = "training", "held out", "first step that differs"
EXACT = "held out, in fp32"  # the loss of the same weights with attention in fp32
# of a row's weights in the backward pass, over all layers and rows of a held-out batch
LARGEST, MEAN = "sum of weights, largest", "sum of weights, mean"
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
PLAIN, WIDE = "64 channels", "128 channels"
# The second model has no windows: the kernel in 8 bits has none, and would compute half the layers.
WHOLE = {PLAIN: Run(Size()), WIDE: Run(Size(q_heads=4, head_dim=128))}
QUICKS = {PLAIN: QUICK, WIDE: replace(QUICK, size=replace(QUICK.size, head_dim=128))}
WAYS = {
    PLAIN: tuple(way for way in ways.WAYS if "e4m3" not in way),
    WIDE: ("tensor cores", "torch flash", "torch fp32", "e4m3", *ways.CONTROLS),
}
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Case:
    """A way of attention, the seed of weights and batches, how often it trains, and the model."""

    way: str
    seed: int
    runs: int = 1
    model: str = PLAIN


def cells(options: Options) -> Iterator[Cell]:
    """Yield each way of each model from each seed, then the ways that train twice from one."""
    seeds = SEEDS[:1] if options.quick else SEEDS
    for model, of_model in WAYS.items():
        for seed, way in itertools.product(seeds, of_model):
            yield Cell(f"{model}/{way}/seed {seed}", Case(way, seed, model=model))
    for way in ways.REPEATED:
        yield Cell(f"{PLAIN}/{way}/twice", Case(way, SEEDS[0], 2))


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Train, and yield losses; or train twice, and yield where the bits part."""
    case, runs = cell.of, QUICKS if recording.options.quick else WHOLE
    run = runs[case.model]
    base = {"model": case.model, "way": case.way, "model_seed": case.seed, "steps": run.steps}
    if case.runs == 2:
        step = first_difference(case, run, recording.device)
        recording.tell(f"bits part at step {step}" if step < run.steps else "equal bits")
        yield DATA_FILE, base | {"what": PARTED, "step": step, "value": float(step)}
        return
    for what, step, value in trained(case, run, recording.device):
        if what == HELD_OUT:
            recording.tell(f"{value:.4f} nats per byte")
        yield DATA_FILE, base | {"what": what, "step": step, "value": value}


def trained(case: Case, run: Run, device: str) -> Iterator[tuple[str, int, float]]:
    """Yield what is noted of a training: (what, step, value); losses in nats per byte."""
    attend = ways.WAYS[case.way]()
    how = {"batch": run.batch, "context": run.size.context, "device": device, "held_out": True}
    probe, _ = next(text.batches(1, **how))
    for step, (model, loss) in enumerate(steps(attend, case.seed, run, device)):
        if step % run.every == 0 or step == run.steps - 1:
            yield TRAINING, step, float(loss)
            if "e4m3" in case.way:
                sums = weighed(model, attend, probe)
                yield LARGEST, step, float(sums.amax())
                yield MEAN, step, float(sums.mean())
    for what, judge in ((HELD_OUT, attend), (EXACT, ways.WAYS["torch fp32"]())):
        yield what, run.steps, judged(model, judge, run, device)


@torch.no_grad()
def weighed(model: Gpt, attend: Attend, tokens: torch.Tensor) -> torch.Tensor:
    """Return what each row's weights sum to in the backward pass of texts, over all layers."""
    found = []

    def note(q: torch.Tensor, k: torch.Tensor, _v: Any, _out: Any, lse2: torch.Tensor) -> None:
        q, k, lse2 = (x.unflatten(0, tokens.shape).transpose(1, 2) for x in (q, k, lse2[..., None]))
        scores = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        powers = scores * (q.shape[-1] ** -0.5 / math.log(2)) - lse2
        # finite also where a training fails; a row sees no later keys
        found.append(powers.clamp(max=900).exp2().tril().sum(-1))

    with torch.autocast(tokens.device.type, torch.bfloat16):
        model(tokens, partial(attend, note=note))
    return torch.stack(found)


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


def first_difference(case: Case, run: Run, device: str) -> int:
    """Return the first step after which two trainings differ in a bit, or run.steps.

    What torch itself computes is asked to have one order: its gradient of the embedding has none.
    """
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        two = [steps(ways.WAYS[case.way](), case.seed, run, device) for _ in range(2)]
        for step, ((model, loss), (other, again)) in enumerate(zip(*two, strict=True)):
            pairs = zip(model.parameters(), other.parameters(), strict=True)
            same = [(a.view(torch.int32) == b.view(torch.int32)).all() for a, b in pairs]
            if not (bool(torch.stack(same).all()) and torch.equal(loss, again)):
                return step
        return run.steps
    finally:
        torch.use_deterministic_algorithms(mode=False)


EXPERIMENT = Experiment(
    "training",
    "Losses of a small language model by way of attention and seed, and the bits of a repeat",
    {DATA_FILE: schema.TABLES["training"]},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
