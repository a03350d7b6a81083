"""The order of the experiments, from a callable to its datasheet."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels.defects import INDEX_K, INDEX_V, MASK, MEMORY, NONDETERMINISTIC, WEIGHTS
from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.probing.arithmetic import accumulator, p_format, rescales
from labkernels.probing.case import Case, Model, Sizes
from labkernels.probing.diagnosis import diagnose, maps
from labkernels.probing.experiments import batch, discover, inputs, lengths, memory, repeats
from labkernels.probing.experiments.gradients import of_gradients
from labkernels.probing.experiments.knobs import turned
from labkernels.probing.layouts import DECODE, DENSE, DTYPES, LAYOUTS, Kernel, Refused
from labkernels.probing.observed import Observed
from labkernels.probing.report import Datasheet, Fact, Findings, defect
from labkernels.units import require_choice
from labkernels.variant import AttentionVariant

# Experiments that read a fact and find no defect: the sheet is judged without them.
FACTS_ALONE = ("format of P", "rescales", "exponential", "accumulator", "special numbers")


@dataclass
class _Probe:
    """A sheet being filled: experiments add facts and defects; a refusal ends one experiment."""

    sheet: Datasheet
    kernel: Kernel
    progress: Callable[[str], None] | None

    @property
    def cause(self) -> str:
        """The class of the defect that was found, or no word."""
        return self.sheet.defects[0].kind if self.sheet.defects else ""

    def run(self, name: str, experiment: Callable, *arguments) -> Any:
        """Return what an experiment found; None, and a note, if it is refused or not read."""
        if self.progress is not None:
            self.progress(name)
        try:
            return experiment(*arguments)
        except Refused as why:
            self.sheet.refused.append(f"{name}: {why}")
        except (ArithmeticError, LookupError, ValueError, np.linalg.LinAlgError) as error:
            # Numbers that no reading foresees: they are noted, and nothing is raised.
            self.sheet.failed.append(f"{name} is not read: {type(error).__name__}: {error}"[:160])
        return None

    def note(self, name: str, experiment: Callable, *arguments) -> bool:
        """Run an experiment, add what it found, and return whether it could be read."""
        found = self.run(name, experiment, *arguments)
        self.add(found or [])
        return found is not None

    def add(self, findings: Findings) -> None:
        """Add facts (the first of a name stays unless it is a better one) and the first defect."""
        for found in findings:
            if isinstance(found, Fact):
                old = self.sheet.facts.get(found.name)
                if old is None or (old.value == "yes" and found.value != "yes"):
                    self.sheet.facts[found.name] = found
            elif found is not None and not self.sheet.defects:
                # What follows a cause is its consequence: only a cause is listed.
                self.sheet.defects.append(found)

    def said(self, fact: str) -> str:
        """The value of a fact, or no word."""
        return self.sheet.facts[fact].value if fact in self.sheet.facts else ""

    def only(self, words: str) -> None:
        """Say in the defect's sentence, if there is one, that it shows in some calls alone."""
        for d in self.sheet.defects:
            self.sheet.defects = [replace(d, sentence=f"{d.sentence} ({words})")]

    def unread(self, what: str) -> None:
        """Give the last note as the reason why nothing is judged."""
        self.sheet.reason = f"its {what} not read: {[*self.sheet.failed, *self.sheet.refused][-1]}"


def _sizes(layout: str, heads, dim: int, dim_v: int) -> dict[str, Sizes]:
    """Return the cases of a layout: decode, and prefill where it takes several queries."""
    lens = ((277, 250, 131), (168, 139)) if layout not in DENSE else (None, None)
    few, many = heads or (4, 2), heads or ((16, 1) if layout == "mla" else (8, 4))
    decode = {"decode": Sizes(3, *many, 1, 277, dim, dim_v, lens[0])}
    prefill = {"prefill": Sizes(2, *few, 40, 168, dim, dim_v, lens[1])}
    return decode if layout in DECODE else decode | prefill


def probe(
    fn: Callable,
    layout: str = "bhsd",
    dtype: str = "bf16",
    variant: AttentionVariant | None = None,
    *,
    device: str = "cpu",
    heads: tuple[int, int] | None = None,
    head_dim: int = 64,
    head_dim_v: int | None = None,
    page_size: int = 16,
    scale: float | None = None,
    sinks: Sequence[float] | None = None,
    alibi_slopes: Sequence[float] | None = None,
    knobs: Mapping[str, Sequence[Any]] | None = None,
    gradients: bool = False,
    name: str = "",
    progress: Callable[[str], None] | None = None,
    quick: bool = False,
) -> Datasheet:
    """Return the datasheet of an attention kernel: its facts and defects, read from outside.

    fn takes tensors of torch on `device`, and returns the output, or (output, log-sum-exp); layout
    says which tensors, as `labkernels.probing.layouts` lists. variant: the attention that was asked
    for; None: it is found. scale: 1 / sqrt(head_dim) if None (MLA: 1 / sqrt(192)). knobs: values of
    keywords of fn, each of which is tried. gradients: also read dQ, dK and dV through autograd.
    progress: called with each experiment's name. quick: leave out lengths and special inputs.
    Raises: ValueError naming an argument that is not allowed. Whatever fn raises is a refusal.

    >>> from torch.nn.functional import scaled_dot_product_attention
    >>> sheet = probe(scaled_dot_product_attention, heads=(2, 2), dtype="fp32", quick=True)
    >>> sheet.verdict, sheet.facts["mask"].value
    ('no defect', 'none')
    """
    start = time.perf_counter()
    require_choice("layout", layout, LAYOUTS)
    require_choice("dtype", dtype, tuple(DTYPES))
    sheet = Datasheet(name or getattr(fn, "__name__", ""), layout, dtype)
    kernel = Kernel(fn, layout, dtype, device, page_size)
    dims, usual = (head_dim, head_dim_v or head_dim), head_dim**-0.5
    if layout == "mla":
        dims, usual = (ROPE_DIM, LATENT_DIM), LatentKV.default_scale
    asked = _asked_model(variant, scale or usual, sinks, alibi_slopes)
    p = _Probe(sheet, kernel, progress)
    how = {key: values[0] for key, values in (knobs or {}).items()}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # outputs may be NaN or infinite
        sizes = _sizes(layout, heads, *dims).items()
        cases = [Case(kernel, s, asked, label, knobs=how) for label, s in sizes]
        cases = [c for c in cases if _answers(p, c)]
        sheet.reason = sheet.refused[0] if sheet.refused else sheet.reason
        if cases:
            _examine(p, cases, variant is None, quick)
        if sheet.judged:
            _extras(p, cases, knobs or {}, gradients)
    for text in sheet.failed:
        if not text.startswith(FACTS_ALONE):  # a defect might be where nothing could be read
            sheet.judged, sheet.reason = False, text
    sheet.calls, sheet.seconds = kernel.calls, time.perf_counter() - start
    return sheet


def _asked_model(variant: AttentionVariant | None, scale: float, sinks, slopes) -> Model:
    sinks, slopes = (None if x is None else np.asarray(x, float) for x in (sinks, slopes))
    return Model(variant or AttentionVariant(), scale, sinks, slopes)


def _answers(p: _Probe, c: Case) -> bool:
    """Return whether the kernel takes a case's shapes; if not, the sheet has the refusal."""
    name = f"{c.s.queries} queries, {c.s.keys} keys, {c.s.q_heads} heads"
    return p.run(name, c.call, c.zero, c.k, c.v) is not None


def _examine(p: _Probe, cases: list[Case], find: bool, quick: bool) -> None:
    """Run the experiments on the cases that the kernel takes."""
    sheet, first = p.sheet, cases[0]
    for c in cases:
        p.note(f"equal calls, {c.label}", repeats.repeats, c)
        p.note(f"unused memory, {c.label}", memory.unused, c)
    if p.cause == NONDETERMINISTIC:
        return
    p.note("pointers", maps.of_pointers, first)
    if p.cause in (INDEX_K, INDEX_V):
        sheet.judged = True
        return
    if not p.note("model", _model, p, cases, find):
        p.unread("attention is")
        return
    if not any([_read(p, c) for c in cases]):
        p.unread("weights are")
        return
    if p.cause == MEMORY:
        return
    for c in () if quick else cases:
        p.note(f"special inputs, {c.label}", inputs.special, c)
    for c in cases if p.said("deterministic") == "yes" else ():
        p.note(f"batch invariance, {c.label}", batch.invariance, c)
    plain = cases[-1] if first.model.top_left else first
    p.note("format of P", p_format.policy, plain)
    p.note("rescales", rescales.tiles, plain, p.said("P"))
    p.note("exponential", rescales.exponential, plain)
    if p.kernel.layout == "mla":
        p.note(inputs.LATENT, inputs.of_latent, first)
    p.note("accumulator", accumulator.bits, first)
    p.note("special numbers", batch.special_numbers, first)
    p.note("empty requests", lengths.empty, first)
    for c in () if quick else cases:
        _lengths(p, c)
    p.note("spoilt", memory.spoilt, sheet.facts)
    sheet.judged = True


def _read(p: _Probe, c: Case) -> bool:
    """Read the weights of a case, and diagnose what is wrong; whether they could be read."""
    sheet, before = p.sheet, list(p.sheet.defects)
    if p.cause == MEMORY:
        sheet.defects = []  # unless another request's pages explain it, it stays
    read = p.note(f"readings, {c.label}", _isolated, Observed(c, sheet))
    if before and p.cause not in (INDEX_K, INDEX_V):
        sheet.defects = before
    return read


def _extras(p: _Probe, cases: list[Case], knobs, gradients: bool) -> None:
    """Try further values of knobs, and the backward pass."""
    for c in cases if knobs else ():
        for said, one, bad in p.run(f"knobs, {c.label}", turned, c, knobs, p) or ():
            if not p.sheet.defects:
                p.note(f"readings with {said}", _isolated, Observed(one, p.sheet))
                p.add([] if p.sheet.defects else inputs.diagnosed(one, [bad]))
                p.only(f"with {said} alone")
    for c in cases[::-1] if gradients else ():
        p.note(f"gradients, {c.label}", of_gradients, c)


def _model(p: _Probe, cases: list[Case], find: bool) -> Findings:
    """Find the model, or take the one asked for, and state it."""
    before, how = p.kernel.calls, "as asked"
    asked = model = cases[0].model
    if find:
        model, factor, bend = discover.discover(cases, asked.scale)
        given = {"sinks": asked.sinks, "slopes": asked.slopes}
        model = replace(model, **{name: x for name, x in given.items() if x is not None})
        how = f"found; scores by {factor:.5g} of those of the scale {asked.scale:.4g}"
    else:
        _, bend = discover.curve(cases, model)
    for c in cases:
        c.bend = bend
        c.judge_by(model)
    v, calls = model.variant, p.kernel.calls - before
    ends = ((v.window_left, "left"), (v.window_right, "right"))
    window = ", ".join(f"{n} keys to the {side}" for n, side in ends if n is not None)
    many = {
        "mask": f"causal, {'top left' if model.top_left else 'bottom right'}" if v.causal else "",
        "window": window,
        "scale": f"{model.scale:.6g}",
        "soft cap": "" if v.soft_cap is None else f"{v.soft_cap:.4g}",
        "sinks": _numbers(model.sinks),
        "slopes": _numbers(model.slopes),
    }
    return [Fact(k, x or "none", how, calls if k == "mask" else 0) for k, x in many.items()]


def _numbers(x: np.ndarray | None) -> str:
    return "" if x is None else ", ".join(f"{y:.3g}" for y in x[:8])


def _isolated(o: Observed) -> Findings:
    """Run the isolating experiments of a case, and diagnose what failed."""
    before = o.c.kernel.calls
    o.run()
    mistake = diagnose(o)
    if o.failed and mistake is None:
        rows = np.logical_or.reduce([r.rows for r in o.reads.values()])
        mistake = defect(WEIGHTS, "experiments fail in no pattern that is known", o.failed[0], rows)
    value = f"wrong: {o.failed[0]}" if o.failed else "as asked"
    ev, calls = "all weights of all rows, four kinds of scores", o.c.kernel.calls - before
    heads = "wrong" if o.map_wrong.any() else f"query head h reads KV head h // {o.c.group}"
    weights = Fact(f"weights, {o.c.label}", value, ev, calls)
    return [weights, Fact("GQA map", heads, "V constant for each request and head", 1), mistake]


def _lengths(p: _Probe, base: Case) -> None:
    """Try lengths around the edges of tiles; read the case of one that is wrong."""
    before, tried = p.kernel.calls, lengths.tried(base)
    bad = list(lengths.wrong(base, p.run))
    where = [c.s.keys for c, _ in bad]
    ev, calls = f"{len(tried)} lengths, {tried[0]} to {tried[-1]}", p.kernel.calls - before
    p.add([Fact(f"lengths, {base.label}", f"wrong at {where}" if bad else "right", ev, calls)])
    if not bad or p.sheet.defects:
        return
    c, found = bad[0]
    p.note(f"readings at {c.s.keys} keys", _isolated, Observed(c, p.sheet))
    if not p.sheet.defects:
        for d in inputs.diagnosed(c, [found]):
            p.add([d if c.s.keys in lengths.LONG else replace(d, kind=MASK)])
    p.only(f"at {where} keys alone, of {len(tried)} lengths")
