"""From an error of attention to its effect: logits, next tokens, texts, and the ratios that
reinforcement learning takes between the model that wrote a text and the model that is trained.

Two small models are trained once. Then attention alone is replaced, way by way.
"""

import collections
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn.functional import kl_div

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import generation, losses, text, ways
from labkernels.experiments.training.losses import Run
from labkernels.experiments.training.model import Attend, Gpt, Size
from labkernels.measure.peers import flashinfer
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/effects.parquet"
SEED = 0
REFERENCE = "rounded inputs"
PASSES = {way: of for way, of in ways.WAYS.items() if way not in ways.CONTROLS + ways.BY_DECODE}
PASSES |= ways.FORWARD_ONLY
PLAIN, WINDOWED = losses.PLAIN, "128 channels, windows"
WHOLE_MODEL = "torch fp32, model in bf16"
DRAWS = 4  # of random errors, for a prediction


@dataclass(frozen=True)
class Plan:
    """The training, how much text is judged, and how long the written texts are.

    lacks: the ways that do not compute the model's attention.
    """

    run: Run
    lacks: tuple[str, ...] = ()
    judged: int = 16
    prompts: int = 64
    prompt: int = 512
    tokens: int = 256


WITH_WINDOWS = Size(context=1024, q_heads=4, head_dim=128, window=256)
_NARROW = replace(losses.QUICK.size, layers=2, head_dim=128, window=7)
_QUICK = Plan(losses.QUICK, judged=2, prompts=2, prompt=20, tokens=6)
WHOLE = {
    PLAIN: Plan(Run(Size(context=1024), steps=1500, batch=16), ("e4m3",)),
    WINDOWED: Plan(Run(WITH_WINDOWS, steps=1500, batch=16), ("torch flash", "torch cuDNN")),
}
QUICK = {
    PLAIN: _QUICK,
    WINDOWED: replace(_QUICK, run=replace(losses.QUICK, size=_NARROW)),
}


def cells(_: Options) -> Iterator[Cell]:
    """Yield, for each model, the ways of a full pass, of writing, and of judging a text."""
    for model, plan in WHOLE.items():
        passes = [way for way in PASSES if way not in plan.lacks]
        every = {
            "logits": (REFERENCE, *passes, WHOLE_MODEL),
            "greedy text": generation.DECODES,
            "ratio": generation.DECODES,
            "ratio of a full pass": passes,
        }
        for what, ways_of in every.items():
            for way in ways_of:
                yield Cell(f"{model}/{what}/{way}", (model, what, way))


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Measure what one way does to the model."""
    model, what, way = cell.of
    if way == "FlashInfer" and (reason := flashinfer.missing()):
        recording.tell(reason)
        return
    judge = recording.once(JUDGES[model])
    base = {"model": model, "way": way, "steps": judge.plan.run.steps}
    values_of = {
        "logits": judge.logits,
        "greedy text": judge.greedy_text,
        "ratio": judge.ratio_of_decode,
        "ratio of a full pass": judge.ratio_of_full_pass,
    }[what]
    digits = 5 if what == "logits" else 3  # only logits have small differences of large numbers
    for metric, values in values_of(way):
        recording.tell(f"{metric} {values.mean():.3g}")
        for sample, value in enumerate(values.tolist()):
            row = {"what": what, "metric": metric, "sample": sample}
            row["value"] = float(f"{value:.{digits}g}")
            yield DATA_FILE, base | row


Found = Iterator[tuple[str, torch.Tensor]]  # metric, and its value for each sample


class Judge:
    """A trained model, texts that it never saw, and the measurements on it."""

    def __init__(self, model_name: str, recording: Recording) -> None:
        self.plan = (QUICK if recording.options.quick else WHOLE)[model_name]
        self.device, run = recording.device, self.plan.run
        attend = ways.WAYS["tensor cores"]()
        (last,) = collections.deque(losses.steps(attend, SEED, run, self.device), maxlen=1)
        model, loss = last
        self.model: Gpt = model.requires_grad_(requires_grad=False)
        recording.progress(f"trained, {float(loss):.3f} nats per byte")
        how = {"context": run.size.context, "device": self.device, "held_out": True}
        self.tokens, self.following = next(text.batches(1, batch=self.plan.judged, **how))
        self.prompts = next(text.batches(2, batch=self.plan.prompts, **how))[0]
        self.prompts = self.prompts[:, : self.plan.prompt]
        self.want = self._pass(REFERENCE)
        self.wrote, self.rollout = generation.generated(
            self.model, self.prompts, "tensor cores", self.plan.tokens, self._draws()
        )

    def _draws(self) -> generation.Choose:
        return generation.drawn(SEED, self.device)

    @torch.no_grad()
    def _pass(self, way: str) -> torch.Tensor:
        """Return the logits of the judged text; all but attention is in fp32."""
        if way == WHOLE_MODEL:
            with torch.autocast(self.device, torch.bfloat16):
                return self.model(self.tokens, ways.WAYS["torch fp32"]()).float()
        return self.model(self.tokens, _attend(way))

    def logits(self, way: str) -> Found:
        """Compare logits with those of attention in fp32 on the same rounded inputs."""
        found, want = self._pass(way), self.want
        yield from _apart(found, want)
        yield "loss, nats per byte", -_of(found, self.following).mean(-1)
        yield "RMSE of logits", (found - want).square().mean((1, 2)).sqrt()
        if way in (WHOLE_MODEL, "torch fp32", REFERENCE):
            return  # their errors are not those of attention's output alone
        sigmas = self._errors_of(way)
        moved = self._with_errors(sigmas) - want
        yield "RMSE of logits, random errors", moved.square().mean((1, 2)).sqrt()
        moved = self._propagated(sigmas)
        yield "RMSE of logits, predicted", moved.square().mean((0, 2, 3)).sqrt()
        top = want.topk(2, dim=-1)
        of_top = moved.gather(-1, top.indices.expand(DRAWS, -1, -1, -1))
        spread = (of_top[..., 0] - of_top[..., 1]).square().mean(0).sqrt()
        gap = top.values[..., 0] - top.values[..., 1]
        flips = torch.special.ndtr(-gap / spread)
        yield "other next bytes, predicted", flips.mean(-1)

    @torch.no_grad()
    def _errors_of(self, way: str) -> list[torch.Tensor]:
        """Return the RMSE of the way's output, for each layer, text and head, on equal inputs."""
        attend, found = _attend(way), []

        def both(*qkv: torch.Tensor, **seen: int) -> torch.Tensor:
            want = ways.rounded_inputs(*qkv, **seen)
            found.append((attend(*qkv, **seen) - want).square().mean((1, 3), keepdim=True).sqrt())
            return want

        self.model(self.tokens, both)
        return found

    @torch.no_grad()
    def _with_errors(self, sigmas: list[torch.Tensor]) -> torch.Tensor:
        """Return logits where each output of attention has a random error of these sizes.

        The errors are propagated as a kernel's own are: the next layers round Q, K and V again.
        """
        each = iter(sigmas)
        generator = torch.Generator(self.device).manual_seed(SEED + 1)

        def attend(*qkv: torch.Tensor, **seen: int) -> torch.Tensor:
            errors = torch.randn(qkv[0].shape, generator=generator, device=self.device)
            return ways.rounded_inputs(*qkv, **seen) + errors * next(each)

        found: torch.Tensor = self.model(self.tokens, attend)
        return found

    def _propagated(self, sigmas: list[torch.Tensor]) -> torch.Tensor:
        """Return how random errors of these sizes move the logits, to first order.

        Shapes: [DRAWS, batch, context, VOCABULARY].
        """
        size, (batch, context) = self.plan.run.size, self.tokens.shape
        shape = (batch, context, size.q_heads, size.head_dim)
        zero = [torch.zeros(shape, device=self.device) for _ in sigmas]

        def logits(*errors: torch.Tensor) -> torch.Tensor:
            each = iter(errors)
            made: torch.Tensor = self.model(
                self.tokens, lambda *qkv, **seen: exact(*qkv, **seen) + next(each)
            )
            return made

        moved = []
        generator = torch.Generator(self.device).manual_seed(SEED)
        for _ in range(DRAWS):
            errors = [
                torch.randn(shape, generator=generator, device=self.device) * sigma
                for sigma in sigmas
            ]
            moved.append(torch.func.jvp(logits, tuple(zero), tuple(errors))[1])
        return torch.stack(moved)

    def greedy_text(self, way: str) -> Found:
        """Find the byte at which a greedy text parts from that of the tensor cores."""
        texts, how = (self.model, self.prompts), (self.plan.tokens, generation.greedy)
        wrote, _ = generation.generated(*texts, way, *how)
        want, logits = generation.generated(*texts, "tensor cores", *how)
        same = (wrote == want).cumprod(-1).sum(-1)
        yield "bytes until the texts part", same.float()
        top = logits.topk(2, dim=-1).values
        gap = top[..., 0] - top[..., 1]
        there = same.clamp_max(gap.shape[1] - 1)[:, None]
        yield "gap of the top two there", gap.gather(-1, there)[:, 0]

    def ratio_of_decode(self, way: str) -> Found:
        """Compare what a second decode says of the written bytes with what the first one said."""
        again = generation.forced(self.wrote)
        _, logits = generation.generated(self.model, self.prompts, way, self.plan.tokens, again)
        yield from self._ratios(logits)

    @torch.no_grad()
    def ratio_of_full_pass(self, way: str) -> Found:
        """Compare what a training's forward pass says of the written bytes with the rollout."""
        given = torch.cat((self.prompts, self.wrote[:, :-1]), 1)
        with torch.autocast(self.device, torch.bfloat16):
            logits = self.model(given, PASSES[way]())[:, -self.plan.tokens :].float()
        yield from self._ratios(logits)

    def _ratios(self, logits: torch.Tensor) -> Found:
        yield from _apart(logits, self.rollout)
        logs = _of(logits, self.wrote) - _of(self.rollout, self.wrote)
        yield "mean |log ratio|", logs.abs().mean(-1)
        yield "largest |log ratio|", logs.abs().amax(-1)
        yield "log ratio of the text", logs.sum(-1)


JUDGES = {name: partial(Judge, name) for name in WHOLE}


def _attend(way: str) -> Attend:
    return ways.rounded_inputs if way == REFERENCE else PASSES[way]()


def _apart(found: torch.Tensor, want: torch.Tensor) -> Found:
    """Compare what two logits say of the next bytes. Shapes: [batch, n, VOCABULARY] each."""
    logs = found.log_softmax(-1), want.log_softmax(-1)
    apart = kl_div(*logs, reduction="none", log_target=True)
    yield "KL, nats per byte", apart.sum(-1).mean(-1)
    yield "other next bytes", (found.argmax(-1) != want.argmax(-1)).float().mean(-1)


def exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """Return causal attention in fp32, step by step, so that torch can derive it forwards."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    unseen = ~ways.seen(q.shape[1], window, q.device)
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(unseen, -torch.inf).softmax(-1), v)


def _of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log probability of each token. Shapes: [batch, n, VOCABULARY], [batch, n]."""
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


EXPERIMENT = Experiment(
    "effects",
    "What attention's errors do to a small language model's logits, texts and ratios",
    {DATA_FILE: schema.TABLES["effects"]},
    cells,
    rows,
    renewed=(DATA_FILE,),
)
