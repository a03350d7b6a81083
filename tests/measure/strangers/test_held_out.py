"""The sixteenth held-out set: right outputs are right, its bugs show, and none of it is old."""

import functools
import importlib
import re

import pytest
import torch

from labkernels.experiments.accuracy import strangers as experiment
from labkernels.measure.strangers import bugs as first_bugs
from labkernels.measure.strangers import inputs, looked_at, right, runs, split, wrong
from labkernels.measure.strangers import right as first_right
from labkernels.measure.strangers.held_out import bugs as new_bugs
from labkernels.measure.strangers.held_out import frame, labels
from labkernels.measure.strangers.held_out import inputs as new_inputs
from labkernels.measure.strangers.held_out import right as new_right
from labkernels.measure.strangers.looked_at.eighth import inputs as eighth_inputs
from labkernels.measure.strangers.looked_at.eleventh import inputs as eleventh_inputs
from labkernels.measure.strangers.looked_at.fifteenth import bugs as fifteenth_bugs
from labkernels.measure.strangers.looked_at.fifteenth import inputs as fifteenth_inputs
from labkernels.measure.strangers.looked_at.fifteenth import right as fifteenth_right
from labkernels.measure.strangers.looked_at.fourteenth import inputs as fourteenth_inputs
from labkernels.measure.strangers.looked_at.ninth import inputs as ninth_inputs
from labkernels.measure.strangers.looked_at.tenth import inputs as tenth_inputs
from labkernels.measure.strangers.looked_at.thirteenth import inputs as thirteenth_inputs
from labkernels.measure.strangers.looked_at.twelfth import inputs as twelfth_inputs

SEED = split.FIRST_HELD_OUT_SEED
FAMILIES = tuple(new_inputs.FAMILIES)
SHAPES = dict(enumerate(new_inputs.SHAPES))
MODULES = ("caches", "loops", "merges", "numbers", "scores", "sights")
NO_NAMES = ("", "no name fits", "the weather of yesterday")
# Names of mistakes of every part of a kernel: a pattern that takes many of them is no label.
SOME_NAMES = (
    "wrong scale",
    "scale left out",
    "soft cap left out",
    "soft cap of another number",
    "window left out",
    "another window: keys left out",
    "causal mask left out",
    "causal mask is strict",
    "keys at the end left out",
    "keys counted twice",
    "weights of keys by a factor",
    "padding in the denominator",
    "denominator of each row wrong",
    "sink left out",
    "sinks once per split",
    "ALiBi slopes",
    "RoPE of K by wrong places",
    "K and V of another request",
    "K and V of another head",
    "V of another head",
    "K read at an offset",
    "V read at an offset",
    "keys read at an offset",
    "K read as 0",
    "V read as 0",
    "K in int8",
    "V in int8",
    "V or the output by a factor",
    "V with scales of other blocks",
    "K with wrong zero points",
    "Q of another row",
    "Q less its mean",
    "channels of Q or K mixed up",
    "channels mixed up",
    "another row's output",
    "another row's output is added",
    "out clipped",
    "out was rounded to e4m3",
    "P in e4m3",
    "exp2 by a polynomial of low degree",
    "o not rescaled when the maximum moves",
    "l accumulated in bf16",
    "splits merged with wrong weights",
    "partial outputs of another head",
    "small weights dropped",
    "elements never written: they are 0",
)
MOST_NAMES = 1 / 4
# A right output is within one unit in the last place of the largest of its row: two half units.
# A bug that shows is above four, since nothing that is right comes near.
RIGHT_HALF_UNITS, SHOWN_HALF_UNITS = 2, 4


def half_unit(dtype: torch.dtype) -> float:
    """Return half the distance between 1 and the next number of a format."""
    return torch.finfo(dtype).eps / 2


def in_half_units(out, truth):
    """Return each element's error in half units of the largest of its row; NaN counts as inf."""
    top = truth.double().abs().amax(-1, keepdim=True)
    error = (out.double() - truth.double()).abs() / (half_unit(out.dtype) * top)
    return error.nan_to_num(nan=torch.inf, posinf=torch.inf)


@functools.cache
def work(number: int, asked: inputs.Asked, causal: bool) -> wrong.Work:
    """Return the work of a shape, in fp16, on a family that goes with it."""
    family = FAMILIES[(5 * number + 1) % len(FAMILIES)]
    call = split.call(family, SHAPES[number], "fp16", SEED + number)
    return wrong.Work.of(inputs.Call(call.q, call.k, call.v, causal, call.scale, asked))


def work_of(number: int, bug: str) -> wrong.Work:
    """Return the work of a shape with the options that a bug needs."""
    asked = split.ASKED.get(bug, inputs.Asked())
    return work(number, asked, SHAPES[number].causal or asked.window_left is not None)


def test_the_set_is_large_enough():
    assert 100 <= len(new_bugs.WRONG) <= 130
    assert len(FAMILIES) >= 12
    assert len(SHAPES) >= 8
    assert len(new_right.RIGHT) >= 10


def test_no_name_and_no_shape_is_old():
    assert not set(new_bugs.WRONG) & {*first_bugs.WRONG, *looked_at.WRONG}
    assert not set(new_right.RIGHT) & {*first_right.RIGHT, *looked_at.RIGHT}
    assert not set(FAMILIES) & {*inputs.FAMILIES, *looked_at.FAMILIES}
    eighth_to_tenth = (eighth_inputs, ninth_inputs, tenth_inputs)
    later = (eleventh_inputs, twelfth_inputs, thirteenth_inputs, fourteenth_inputs)
    sets = (inputs, *eighth_to_tenth, *later, fifteenth_inputs)
    assert not {shape for old in sets for shape in old.SHAPES} & set(SHAPES.values())


def test_no_name_is_asked_for_where_tests_ask_for_nothing():
    """A test of all experiments asks for cells named "nothing", which must not judge any."""
    assert not any("nothing" in name for name in (*new_bugs.WRONG, *FAMILIES))


def test_all_of_it_is_held_out_and_the_set_before_it_is_not():
    for name in (*new_bugs.WRONG, *new_right.RIGHT, *FAMILIES):
        assert split.of(name) == split.HELD_OUT, name
    for name in (*fifteenth_inputs.FAMILIES, *fifteenth_right.RIGHT, *fifteenth_bugs.WRONG):
        assert split.of(name) == split.DEVELOPMENT, name


@pytest.mark.parametrize("module", MODULES)
def test_no_bug_of_a_module_is_lost_to_another_of_its_name(module):
    part = importlib.import_module(f"{new_bugs.__package__}.{module}").BUGS
    assert all(new_bugs.WRONG[name][0] is bug for name, bug in part.items())


def test_options_belong_to_bugs():
    assert set(new_bugs.ASKED) <= set(new_bugs.WRONG)
    assert all(asked != inputs.Asked() for asked in new_bugs.ASKED.values())


@pytest.mark.parametrize("bug", new_bugs.WRONG)
def test_a_pattern_of_right_names_takes_few_names(bug):
    _, pattern = new_bugs.WRONG[bug]
    assert not any(re.search(pattern, name) for name in NO_NAMES)
    taken = [name for name in SOME_NAMES if re.search(pattern, name)]
    assert len(taken) <= MOST_NAMES * len(SOME_NAMES), taken


def test_every_bug_has_one_pattern():
    listed = [bug for bugs in labels._OF.values() for bug in bugs.split("; ")]
    assert sorted(listed) == sorted(new_bugs.WRONG)


@pytest.mark.parametrize("bug", new_bugs.WRONG)
def test_a_bug_shows_on_most_shapes_or_leaves_every_bit(bug):
    make, _ = new_bugs.WRONG[bug]
    shown = 0
    for number in SHAPES:
        of = work_of(number, bug)
        out, good = make(of), wrong.right_output(of)
        assert (out.shape, out.dtype) == (good.shape, good.dtype)
        largest = float(in_half_units(out, good).max())
        assert largest == 0 or largest > SHOWN_HALF_UNITS, (number, largest)
        shown += largest > 0
    assert shown > len(SHAPES) / 2


@functools.cache
def family_work(number: int, asked: inputs.Asked) -> tuple[wrong.Work, torch.Tensor]:
    """Return the work of a family and the right output, with shapes and formats in turn."""
    dtype = list(inputs.DTYPES)[number % len(inputs.DTYPES)]
    shape = number % len(SHAPES)
    call = split.call(FAMILIES[number], SHAPES[shape], dtype, SEED + shape)
    causal = call.causal or asked.window_left is not None
    of = wrong.Work.of(inputs.Call(call.q, call.k, call.v, causal, call.scale, asked))
    return of, wrong.right_output(of)


@pytest.mark.parametrize("bug", new_bugs.WRONG)
def test_a_bug_shows_in_most_families(bug):
    make, _ = new_bugs.WRONG[bug]
    asked = split.ASKED.get(bug, inputs.Asked())
    shown = 0
    for number in range(len(FAMILIES)):
        of, good = family_work(number, asked)
        shown += float(in_half_units(make(of), good).max()) > SHOWN_HALF_UNITS
    assert shown > len(FAMILIES) / 2


@pytest.mark.parametrize("bug", new_bugs.WRONG)
def test_a_recording_judges_an_output_that_shows_the_bug(bug):
    shown = 0
    for family, dtype, seed, part in experiment.cases(bug, SEED):
        call = split.asking(split.call(family, runs.shape_of(seed), dtype, seed), bug)
        out = wrong.run(new_bugs.WRONG[bug][0], call, part)
        good = wrong.run(wrong.right_output, call)
        shown += float(in_half_units(out, good).max()) > SHOWN_HALF_UNITS
    assert shown


@pytest.mark.parametrize(
    ("queries", "keys", "dim"), [(1, 1, 64), (1, 3, 64), (5, 20, 20), (3, 40, 7)]
)
def test_every_bug_takes_a_few_keys_and_any_channels(queries, keys, dim):
    shape = inputs.Shape(1, 2, 1, queries, keys, dim)
    call = inputs.drawn_call(inputs.FAMILIES["normal"], [keys], shape, "bf16")
    for name, (make, _) in new_bugs.WRONG.items():
        out = wrong.run(make, split.asking(call, name))
        assert (out.shape, out.dtype) == (call.q.shape, call.q.dtype), name


@pytest.mark.parametrize(
    ("pattern", "right_name", "wrong_name"),
    [
        (labels.LOST, "keys at the end left out", "keys left out, other keys in each row"),
        (labels.LOST, "weights of keys by a factor", "denominator with keys by a factor"),
        (labels.ROWS_LOST, "keys left out, other keys in each row", "causal mask left out"),
        (labels.MASK, "another window", "window left out"),
        (labels.SEEN, "another mask: keys that the mask hides", "a query sees one key more"),
        (labels.TWICE, "keys counted 3 times", "V counted twice"),
        (labels.TWICE, "keys by a factor for each block", "denominator with keys by a factor"),
        (labels.READ, "keys read again", "keys read as 0"),
        (labels.READ, "K and V read at an offset", "V read at an offset"),
        (labels.REQUEST, "K and V of another request", "K of another request"),
        (labels.K_READ, "K read in another order", "channels of K read from other keys"),
        (labels.K_READ, "K read from the key before", "K read as 0"),
        (labels.V_ZERO, "V read as 0", "K and V read as 0"),
        (labels.V_SCALES, "V with scales of other blocks", "V or the output by a factor"),
        (labels.V_FACTOR, "V or the output by a factor", "K and V by a factor"),
        (labels.O, "o rescaled by a stale maximum", "o and l not rescaled"),
        (labels.L, "denominator of each row wrong", "denominator left out"),
        (labels.L, "the output by a factor for each row", "V or the output by a factor"),
        (labels.SPLITS, "splits merged with wrong weights", "splits merged unweighted"),
        (labels.LANES, "lanes merged by l alone", "lanes merged by their maxima alone"),
        (labels.ROW, "another row's output", "another row's output is added"),
        (labels.ADDED, "another row's output is added", "another row's output"),
        (labels.CHANNELS, "channels of V mixed up", "channels of Q or K mixed up"),
        (labels.QK, "K read with another swizzle", "V read with another swizzle"),
        (labels.QK_FACTOR, "channels of Q or K by a factor", "channels of Q or K mixed up"),
        (labels.SCALE, "wrong scale, another for each head", "V in e4m3 with a wrong scale"),
        (labels.SMALL, "small weights dropped", "small moves of the maximum skipped"),
        (labels.PADDING, "padding in the denominator", "denominator left out"),
    ],
)
def test_a_word_of_labels_blames_the_right_part(pattern, right_name, wrong_name):
    assert runs.named(right_name, pattern) == runs.RIGHT_NAME
    assert runs.named(wrong_name, pattern) == runs.WRONG_NAME


@pytest.mark.parametrize(
    ("bug", "right_name", "wrong_name"),
    [
        ("V of the new tokens not yet written", "value of a key read as 0", "new keys hold 0"),
        ("V of the head modulo the KV heads", "V of another head", "K and V of another head"),
        ("blocks of V not turned", "blocks of V transposed", "K read in another order"),
        ("zero keys up to a tile of 64", "keys past the end", "keys counted twice"),
        ("log2 sums joined by exp", "mixed log base: exp for exp2", "log2(e) left out"),
        ("the length before the append", "key left out", "new keys hold 0"),
        ("K's scale of the next KV head", "K in e4m3 with a wrong scale", "wrong page"),
        ("zero points of K off twice", "K with wrong zero points", "V with wrong zero points"),
        ("V without its mean", "V less its mean", "Q less its mean"),
        ("P of at most 1 in e4m3", "P in e4m3", "P truncated"),
        ("the output by way of e4m3", "out was rounded to e4m3", "out in another layout"),
        ("upper halves of sums over channels", "scores rounded to bf16", "Q and K in bf16"),
        ("Q normed once more", "wrong scale, another for each row", "wrong scale"),
        ("Q turned by its place once more", "RoPE applied once more", "RoPE of V"),
        ("the mean key of each tile taken off", "K less its tile's mean", "Q less its mean"),
        ("a clamp for the cap", "soft cap by another function", "soft cap left out"),
        ("slopes by KV head", "ALiBi slopes of another head", "ALiBi left out"),
        ("a sink in each split", "sinks once per split", "sink left out"),
        ("half of the last head of a group unwritten", "elements never written", "V read as 0"),
    ],
)
def test_a_label_blames_the_right_part(bug, right_name, wrong_name):
    assert runs.named(right_name, labels.PATTERNS[bug]) == runs.RIGHT_NAME
    assert runs.named(wrong_name, labels.PATTERNS[bug]) == runs.WRONG_NAME


@pytest.mark.parametrize("number", SHAPES)
def test_a_loop_and_a_join_without_a_mistake_are_right(number):
    of = work(number, inputs.Asked(), SHAPES[number].causal)
    truth, good = right.exact(of.call)[0], wrong.right_output(of)
    joined = frame.joined(32, lambda w, lse, part: frame.blended(lse, part))(of)
    walked = frame.looped(32, frame.stepped)(of)
    once = frame.summed(lambda w, p: (frame.kept(w, p) @ w.v, p.sum(-1, keepdim=True)))(of)
    for out in (walked, joined, once):
        assert in_half_units(out, truth).max() <= RIGHT_HALF_UNITS
    assert once.equal(good)


@pytest.mark.parametrize("asked", [inputs.Asked(), inputs.Asked(30)])
@pytest.mark.parametrize("number", SHAPES)
def test_a_mask_and_a_read_without_a_mistake_are_right(number, asked):
    causal = SHAPES[number].causal or asked.window_left is not None
    of = work(number, asked, causal)
    good = wrong.right_output(of)
    assert frame.seeing(lambda w: right.hidden_of(w.call))(of).equal(good)
    assert frame.both(lambda w, x: x.clone())(of).equal(good)
    if causal and of.q.shape[2] > 1:
        assert (frame.unmasked(of) != of.s).any()


@pytest.mark.parametrize("number", SHAPES)
def test_pools_heads_and_places_come_back(number):
    of = work(number, inputs.Asked(), SHAPES[number].causal)
    keys, group = of.k.shape[2], of.call.group
    pool = frame.pages(of.k, 16)
    assert pool.shape[2] == 16
    table = torch.arange(len(pool)).reshape(len(of.k), -1)
    assert frame.from_pages(of.k, pool, table).equal(of.k)
    assert frame.for_queries(of, frame.of_kv_heads(of, of.v)).equal(of.v)
    assert frame.in_group(of, of.q, range(group)).equal(of.q)
    assert not frame.in_group(of, of.q, [0] * group).equal(of.q)
    assert frame.keys_where(of.k, torch.arange(keys) < keys, of.v.new_zeros(())).eq(0).all()
    steps = torch.arange(keys)
    back = frame.turned(frame.turned(of.k, steps), -steps)
    assert torch.allclose(back, of.k, rtol=0, atol=1e-12)  # two rotations in float64


@pytest.mark.parametrize("number", SHAPES)
def test_the_output_without_a_bug_is_right(number):
    of = work(number, inputs.Asked(), SHAPES[number].causal)
    truth = right.exact(of.call)[0]
    assert in_half_units(wrong.right_output(of), truth).max() <= RIGHT_HALF_UNITS


def honest_half_units(call: inputs.Call, truth):
    """Return how far a right output may lie from float64, in half units of a row's largest.

    P in 16 bits errs by half a unit at most, and so does the output. In fp32 the scores err as
    well: a product of D channels by about two half units of scale |q| |k|, which exp passes on. All
    of it is relative to the mean of |V| under P, which is larger than the output if V cancels.
    """
    q, k, v = right.grouped(call, torch.float64)
    s = (q @ k.mT * call.scale).masked_fill(right.hidden_of(call), -torch.inf)
    mean = (torch.softmax(s, -1) @ v.abs()).amax(-1, keepdim=True)
    units = RIGHT_HALF_UNITS * mean / truth.abs().amax(-1, keepdim=True)
    if call.q.dtype != torch.float32:
        return units
    lengths = q.norm(dim=-1, keepdim=True) * k.norm(dim=-1).amax(-1)[..., None, None]
    return units * (2 + 2 * call.scale * lengths)


@pytest.mark.parametrize("dtype", inputs.DTYPES)
@pytest.mark.parametrize("kind", new_right.RIGHT)
def test_a_right_implementation_is_right(kind, dtype):
    for number, family in enumerate(FAMILIES):
        shape = SHAPES[number % len(SHAPES)]
        call = split.call(family, shape, dtype, SEED + number)
        truth = right.exact(call)[0]
        out = new_right.RIGHT[kind](call)
        assert (out.shape, out.dtype) == (truth.shape, call.q.dtype)
        excess = in_half_units(out, truth) / honest_half_units(call, truth)
        assert not (excess > 1).any(), (family, number, float(excess.max()))


@pytest.mark.parametrize("dtype", inputs.DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_hides_no_bug(family, dtype):
    """Its numbers are finite, and neither all keys nor all values are equal."""
    for number, shape in SHAPES.items():
        call = split.call(family, shape, dtype, SEED + number)
        again = split.call(family, shape, dtype, SEED + number)
        for x, same in ((call.q, again.q), (call.k, again.k), (call.v, again.v)):
            assert x.isfinite().all()
            assert x.equal(same)
            assert (x.double().std(-1) > 0).all()
        for x in (call.k, call.v):
            assert (x.double().std(2) > 0).any(-1).all()
