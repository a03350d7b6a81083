"""Whether rounded weights bias attention and its training where many logits are equal.

A row of equal logits has one weight for many keys, and so one rounding error of the weight instead
of errors that cancel. Texts of two symbols in a model without rotary positions have such rows: in
its first layer all keys of a symbol are equal. Texts of bytes, with positions, are the control.

The bias of the output is its error along the output itself, summed over all rows; that of delta is
the error of the rows' sums of dO O, which the backward pass takes for the mean of dP.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import losses, text, ways
from labkernels.experiments.training.losses import Run
from labkernels.experiments.training.model import Attend, Gpt, Size
from labkernels.policy import CUDA_CORES, TENSOR_CORES, NumericPolicy
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/bias.parquet"
EQUAL, SPREAD = "two symbols", "bytes"
WHOLE = Run(Size(layers=2), steps=400, every=20)
QUICK = replace(losses.QUICK, every=2)
TEXTS = 16  # of the batch, whose first layer is examined
POLICIES: Mapping[str, NumericPolicy] = {
    "tensor cores": TENSOR_CORES,
    "rounded denominator": NumericPolicy(denominator="rounded"),
    "torch flash": TENSOR_CORES,
    "CUDA cores": CUDA_CORES,
    "torch fp32": CUDA_CORES,
}


class Case(NamedTuple):
    """A way of attention, the texts, and the seed of weights and batches."""

    way: str
    texts: str
    seed: int


def cells(options: Options) -> Iterator[Cell]:
    """Yield every way on texts that provoke the bias, then two ways on the control."""
    seeds = losses.SEEDS[:1] if options.quick else losses.SEEDS
    found = [Case(way, EQUAL, seed) for seed in seeds for way in POLICIES]
    found += [Case(way, SPREAD, seeds[0]) for way in ("tensor cores", "rounded denominator")]
    for case in found:
        yield Cell(f"{case.texts}/{case.way}/seed {case.seed}", case)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Train; yield the biases of the first seed on the way, and every seed's loss at the end."""
    case, run = cell.of, QUICK if recording.options.quick else WHOLE
    base = {"way": case.way, "texts": case.texts, "model_seed": case.seed, "steps": run.steps}
    for step, metric, value in trained(case, run, recording.device):
        row = {"step": step, "metric": metric, "value": float(f"{value:.3g}")}
        if metric == losses.HELD_OUT:
            row["value"] = round(value, 5)
            recording.tell(f"{value:.4f} nats per token")
        yield DATA_FILE, base | row


def trained(case: Case, run: Run, device: str) -> Iterator[tuple[int, str, float]]:
    """Yield what is noted of a training: (step, metric, value)."""
    equal = case.texts == EQUAL
    batches = two_symbols if equal else text.batches
    run = replace(run, size=replace(run.size, rotary=not equal))
    attend = ways.WAYS[case.way]()
    probe = next(batches(1, batch=TEXTS, context=run.size.context, device=device, held_out=True))
    done = losses.steps(attend, case.seed, run, device, batches)
    for step, (model, _) in enumerate(done):
        if case.seed == losses.SEEDS[0] and (step % run.every == 0 or step == run.steps - 1):
            for metric, value in examined(model, attend, probe, POLICIES[case.way]).items():
                yield step, metric, value
    yield run.steps, losses.HELD_OUT, losses.judged(model, attend, run, device, batches)


def two_symbols(seed: int, **how: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of text as `text.batches` does, with 1 for each letter and 0 for the rest."""
    letter = torch.tensor([chr(i).isascii() and chr(i).isalpha() for i in range(256)]).long()
    letter = letter.to(how["device"])
    for tokens, following in text.batches(seed, **how):
        yield letter[tokens], letter[following]


def examined(
    model: Gpt, attend: Attend, probe: tuple[torch.Tensor, torch.Tensor], policy: NumericPolicy
) -> dict[str, float]:
    """Return the biases of the first layer on texts, measured and predicted, and its logits."""
    kept: list[torch.Tensor] = []

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = attend(q, k, v)
        if not kept:
            kept.extend((q, k, v, out))
        return out

    with torch.autocast(probe[0].device.type, torch.bfloat16):
        loss = model.loss(*probe, watched)
    (dout,) = torch.autograd.grad(loss, kept[-1:])
    q, k, v, out = (x.detach().bfloat16().double().transpose(1, 2) for x in kept)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(later, -torch.inf)
    exact, predicted = (attention(scores, v, rounds) for rounds in (CUDA_CORES, policy))
    dout, found = dout.double().transpose(1, 2), {}
    for name, made in (("", out), (", predicted", predicted.bfloat16().double())):
        error, size = made - exact, exact.square().sum()
        found[f"bias of the output{name}"] = (exact * error).sum() / size
        found[f"bias of delta{name}"] = (dout * error).sum() / (dout * exact).sum(-1).abs().sum()
    highest, seen = scores == scores.amax(-1, keepdim=True), ~later
    found["share of keys at the maximum"] = (highest.sum(-1) / seen.sum(-1)).mean()
    found["largest logit"] = scores[..., seen].abs().max()
    return {metric: float(value) for metric, value in found.items()}


def attention(scores: torch.Tensor, values: torch.Tensor, policy: NumericPolicy) -> torch.Tensor:
    """Return attention in float64 that rounds its weights to bf16 as a policy does.

    The weights are those of the row's own maximum, not of a maximum that grows with the keys.
    Shapes: [..., rows, keys], [..., keys, head_dim] -> [..., rows, head_dim].
    """
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = p if policy.p == "fp32" else p.bfloat16().double()
    summed = rounded if policy.denominator == "rounded" else p
    return rounded @ values / summed.sum(-1, keepdim=True)


EXPERIMENT = Experiment(
    "bias",
    "Whether rounded weights bias attention and its training where many logits are equal",
    {DATA_FILE: schema.TABLES["bias"]},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
