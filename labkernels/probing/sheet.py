"""The order of the experiments, from a callable to its datasheet."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.defects import INDEX_K, INDEX_V, MASK, MEMORY, NONDETERMINISTIC, WEIGHTS
from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.probing.arithmetic import accumulator, p_format, rescales
from labkernels.probing.case import Case, Model, Sizes
from labkernels.probing.diagnosis import diagnose, pointers
from labkernels.probing.experiments import (
    batch,
    discover,
    edges,
    inputs,
    latent,
    lengths,
    lse,
    memory,
    repeats,
)
from labkernels.probing.experiments import gradients as backward
from labkernels.probing.experiments import knobs as knob_values
from labkernels.probing.layouts import DECODE, DTYPES, LAYOUTS, Kernel, Refused
from labkernels.probing.observed import Observed
from labkernels.probing.report import Datasheet, Defect, Fact, defect
from labkernels.units import require_choice
from labkernels.variant import AttentionVariant

# Experiments that read a fact and find no defect: the sheet is judged without them.
FACTS_ALONE = ("format of P", "rescales", "exponential", "accumulator", "special numbers")


class _Probe:
    """A sheet being filled: experiments add facts and defects; a refusal ends one experiment."""

    def __init__(self, sheet: Datasheet, kernel: Kernel, progress: Callable[[str], None] | None):
        self.sheet, self.kernel, self.progress = sheet, kernel, progress

    def run(self, name: str, experiment: Callable, *arguments) -> Any:
        """Run an experiment; note what it returns, or that the kernel refused."""
        if self.progress is not None:
            self.progress(name)
        try:
            found = experiment(*arguments)
        except Refused as why:
            self.sheet.refused.append(f"{name}: {why}")
            return None
        except (ArithmeticError, LookupError, ValueError, np.linalg.LinAlgError) as error:
            # Numbers that no reading foresees: they are noted, and nothing is raised.
            self.sheet.failed.append(f"{name} is not read: {type(error).__name__}: {error}"[:160])
            return None
        finally:
            self.sheet.calls = self.kernel.calls
        return found

    def note(self, name: str, experiment: Callable, *arguments) -> bool:
        """Run an experiment, add its facts and its defect; return whether it was not refused."""
        found = self.run(name, experiment, *arguments)
        if found is not None:
            facts, mistake = found
            self.add(facts if isinstance(facts, list) else [facts], mistake)
        return found is not None

    def add(self, facts: list[Fact], mistake: Defect | None) -> None:
        """Add facts, the first of a name stays unless it is a better one, and a defect."""
        for fact in facts:
            old = self.sheet.facts.get(fact.name)
            if old is None or (old.value == "yes" and fact.value != "yes"):
                self.sheet.facts[fact.name] = fact
        # What follows a cause is its consequence: only a cause is listed.
        if mistake is not None and not self.sheet.defects:
            self.sheet.defects.append(mistake)


def _sizes(layout: str, heads, dim: int, dim_v: int) -> list[tuple[str, Sizes]]:
    """Return the cases of a layout: decode, and prefill where it takes several queries."""
    hq, hkv = heads or ((16, 1) if layout == "mla" else (8, 4))
    lens = None if layout in ("bhsd", "bshd") else (277, 250, 131)
    decode = ("decode", Sizes(3, hq, hkv, 1, 277, dim, dim_v, lens))
    hq, hkv = heads or (4, 2)
    lens = lens and (168, 139)
    prefill = ("prefill", Sizes(2, hq, hkv, 40, 168, dim, dim_v, lens))
    return [decode] if layout in DECODE else [decode, prefill]


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
    kernel = Kernel(fn, layout, DTYPES[dtype], device, page_size)
    dims, usual = (head_dim, head_dim_v or head_dim), head_dim**-0.5
    if layout == "mla":
        dims, usual = (ROPE_DIM, LATENT_DIM), LatentKV.default_scale
    slopes, sink = (None if x is None else np.asarray(x, float) for x in (alibi_slopes, sinks))
    asked = Model(variant or AttentionVariant(), scale or usual, sink, slopes)
    p = _Probe(sheet, kernel, progress)
    how = {"knobs": {key: values[0] for key, values in (knobs or {}).items()}}
    made = [Case(kernel, x, asked, label, **how) for label, x in _sizes(layout, heads, *dims)]
    cases = [c for c in made if p.run(_words(c.s), c.call, c.zero, c.k, c.v) is not None]
    sheet.reason = sheet.refused[0] if sheet.refused else sheet.reason
    if cases:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # outputs may be NaN or infinite
            _examine(p, cases, variant is None, quick)
            if sheet.judged:
                _extras(p, cases, knobs or {}, gradients)
    for text in sheet.failed:
        if not text.startswith(FACTS_ALONE):  # a defect might be where nothing could be read
            sheet.judged, sheet.reason = False, text
    sheet.calls, sheet.seconds = kernel.calls, time.perf_counter() - start
    return sheet


def _words(sizes: Sizes) -> str:
    return f"{sizes.queries} queries, {sizes.keys} keys, {sizes.q_heads} heads"


def _examine(p: _Probe, cases: list[Case], find: bool, quick: bool) -> None:
    """Run the experiments on the cases that the kernel takes."""
    sheet = p.sheet
    for c in cases:
        p.note(f"equal calls, {c.label}", repeats.repeats, c)
        p.note(f"unused memory, {c.label}", memory.unused, c)
    if sheet.defects and sheet.defects[0].kind == NONDETERMINISTIC:
        return
    p.note("pointers", _pointers, cases[0])
    if sheet.defects and sheet.defects[0].kind in (INDEX_K, INDEX_V):
        sheet.judged = True
        return
    if not p.note("model", _model, p, cases, find):
        sheet.reason = f"its attention is not read: {[*sheet.failed, *sheet.refused][-1]}"
        return
    read = False
    for c in cases:
        before = list(sheet.defects)
        if before and before[0].kind == MEMORY:
            sheet.defects.clear()  # unless another request's pages explain it, it stays
        fresh = not sheet.defects
        read = p.note(f"readings, {c.label}", _isolated, Observed(c, sheet)) or read
        if fresh and sheet.defects:
            _by_batch(p, c)
        if before and not (sheet.defects and sheet.defects[0].kind in (INDEX_K, INDEX_V)):
            sheet.defects[:] = before
    if not read:
        sheet.reason = f"its weights are not read: {[*sheet.failed, *sheet.refused][-1]}"
    if not read or (sheet.defects and sheet.defects[0].kind == MEMORY):
        return
    compared: list[tuple[Case, list[inputs.Compared]]] = []
    for c in cases:
        if not quick:
            found = p.run(f"special inputs, {c.label}", inputs.run, c)
            if found is not None:
                compared.append((c, found))
    for c, found in compared:
        p.note("special inputs", lambda c, x: ([], inputs.diagnosed(c, x)), c, found)
        p.note("LSE", lse.judged, found)
    if sheet.facts.get("deterministic", Fact("", "no", "", 0)).value == "yes":
        for c in cases:
            p.note(f"batch invariance, {c.label}", batch.invariance, c)
    plain = cases[-1] if cases[0].model.top_left else cases[0]
    p.note("format of P", p_format.policy, plain)
    p.note("rescales", rescales.tiles, plain, sheet.facts["P"].value if "P" in sheet.facts else "")
    p.note("exponential", rescales.exponential, plain)
    if cases[0].kernel.layout == "mla":
        p.note("product with the latent", latent.nope, cases[0])
    of_first = [x for c, some in compared if c is cases[0] for x in some]
    p.note("accumulator", accumulator.bits, cases[0], of_first)
    p.note("special numbers", edges.special_numbers, cases[0])
    p.note("empty requests", edges.empty, cases[0])
    if not quick:
        for c in cases:
            _lengths(p, c)
    p.note("spoilt", memory.spoilt, sheet.facts)
    sheet.judged = True


def _extras(p: _Probe, cases: list[Case], knobs, gradients: bool) -> None:
    """Try further values of knobs, and the backward pass."""
    sheet = p.sheet
    for c in cases if knobs else ():
        for said, one, bad in p.run(f"knobs, {c.label}", knob_values.turned, c, knobs, sheet) or ():
            if bad is None or sheet.defects:
                continue
            p.note(f"readings with {said}", _isolated, Observed(one, sheet))
            if not sheet.defects:
                p.add([], inputs.diagnosed(one, [bad]))
            if sheet.defects:
                d = sheet.defects[0]
                sheet.defects[0] = replace(d, sentence=f"{d.sentence} (with {said} alone)")
    for c in cases[::-1] if gradients else ():
        p.note(f"gradients, {c.label}", backward.gradients, c)


def _model(p: _Probe, cases: list[Case], find: bool) -> tuple[list[Fact], Defect | None]:
    """Find the model, or take the one asked for, and state it."""
    before, how = p.kernel.calls, "as asked"
    model = cases[0].model
    if find:
        scale = model.scale
        found, factor = discover.discover(cases, scale)
        sinks = model.sinks if model.sinks is not None else found.sinks
        slopes = model.slopes if model.slopes is not None else found.slopes
        model = replace(found, sinks=sinks, slopes=slopes)
        how = f"found; scores by {factor:.5g} of those of the scale {scale:.4g}"
    else:
        discover.curve(cases, model)
    for c in cases:
        c.judge_by(model)
    v, calls = model.variant, p.kernel.calls - before
    mask = f"causal, {'top left' if model.top_left else 'bottom right'}" if v.causal else "none"
    many = {
        "mask": mask,
        "window": _window(v),
        "scale": f"{model.scale:.6g}",
        "soft cap": "none" if v.soft_cap is None else f"{v.soft_cap:.4g}",
        "sinks": _numbers(model.sinks),
        "slopes": _numbers(model.slopes),
    }
    return [Fact(k, x, how, calls if k == "mask" else 0) for k, x in many.items()], None


def _window(v: AttentionVariant) -> str:
    ends = ((v.window_left, "left"), (v.window_right, "right"))
    return ", ".join(f"{n} keys to the {side}" for n, side in ends if n is not None) or "none"


def _pointers(c: Case) -> tuple[list[Fact], Defect | None]:
    return [], pointers.of_pointers(c)


def _numbers(x: np.ndarray | None) -> str:
    return "none" if x is None else ", ".join(f"{y:.3g}" for y in np.asarray(x)[:8])


def _isolated(o: Observed) -> tuple[list[Fact], Defect | None]:
    """Run the isolating experiments of a case, and diagnose what failed."""
    before = o.c.kernel.calls
    o.run()
    mistake = diagnose(o) or (o.failed and _unknown(o)) or None
    calls = o.c.kernel.calls - before
    value = "as asked" if not o.failed else f"wrong: {o.failed[0]}"
    heads = f"query head h reads KV head h // {o.c.group}"
    ev = "V constant for each request and head"
    return [
        Fact(
            f"weights, {o.c.label}", value, "all weights of all rows, four kinds of scores", calls
        ),
        Fact("GQA map", "wrong" if o.map_wrong.any() else heads, ev, 1),
    ], mistake


def _unknown(o: Observed) -> Defect:
    """Say that experiments fail in no way that is known, and where."""
    rows = np.logical_or.reduce([r.rows for r in o.reads.values()])
    return defect(WEIGHTS, "experiments fail in no pattern that is known", o.failed[0], rows)


def _by_batch(p: _Probe, c: Case) -> None:
    """Say that a defect depends on the batch, if each request alone shows so."""
    found = p.run("requests alone", batch.explains, c, p.sheet.defects[0]) if p.sheet.defects else 0
    if found:
        p.sheet.defects[0] = found


def _lengths(p: _Probe, base: Case) -> None:
    """Try lengths around the edges of tiles; read the case of one that is wrong."""
    some = lengths.EDGES if base.s.queries == 1 else lengths.EDGES[1::2]
    tried, before, bad = [*some, *lengths.LONG], p.kernel.calls, []
    for c, found in lengths.cases(base, (*some, *lengths.LONG), p.sheet):
        if found.rows.any():
            bad.append((c, found))
    value = "right" if not bad else f"wrong at {[c.s.keys for c, _ in bad]}"
    name, calls = f"lengths, {base.label}", p.kernel.calls - before
    p.add([Fact(name, value, f"{len(tried)} lengths, {tried[0]} to {tried[-1]}", calls)], None)
    if not bad or p.sheet.defects:
        return
    c, found = bad[0]
    p.note("foreign pages", memory.foreign, c)
    p.note(f"readings at {c.s.keys} keys", _isolated, Observed(c, p.sheet))
    _by_batch(p, c)
    at = f"(at {[x.s.keys for x, _ in bad]} keys alone, of {len(tried)} lengths)"
    if p.sheet.defects:
        d = p.sheet.defects[0]
        p.sheet.defects[0] = replace(d, sentence=f"{d.sentence} {at}")
        return
    mistake = inputs.diagnosed(c, [found])
    if mistake is not None:
        kind = mistake.kind if c.s.keys > 1000 else MASK
        p.add([], replace(mistake, kind=kind, sentence=f"{mistake.sentence} {at}"))
