"""The fifteenth held-out set: right outputs are right, its bugs show, and none of it is old."""

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
from labkernels.measure.strangers.looked_at.fourteenth import bugs as fourteenth_bugs
from labkernels.measure.strangers.looked_at.fourteenth import inputs as fourteenth_inputs
from labkernels.measure.strangers.looked_at.fourteenth import right as fourteenth_right
from labkernels.measure.strangers.looked_at.ninth import inputs as ninth_inputs
from labkernels.measure.strangers.looked_at.tenth import inputs as tenth_inputs
from labkernels.measure.strangers.looked_at.thirteenth import inputs as thirteenth_inputs
from labkernels.measure.strangers.looked_at.twelfth import inputs as twelfth_inputs

SEED = split.FIRST_HELD_OUT_SEED
FAMILIES = tuple(new_inputs.FAMILIES)
SHAPES = dict(enumerate(new_inputs.SHAPES))
MODULES = ("asks", "caches", "heads", "loops", "merges", "numbers", "stores")
NO_NAMES = ("", "no name fits")
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
    sets = (inputs, *eighth_to_tenth, *later)
    assert not {shape for old in sets for shape in old.SHAPES} & set(SHAPES.values())


def test_no_name_is_asked_for_where_tests_ask_for_nothing():
    """A test of all experiments asks for cells named "nothing", which must not judge any."""
    assert not any("nothing" in name for name in (*new_bugs.WRONG, *FAMILIES))


def test_all_of_it_is_held_out_and_the_set_before_it_is_not():
    for name in (*new_bugs.WRONG, *new_right.RIGHT, *FAMILIES):
        assert split.of(name) == split.HELD_OUT, name
    for name in (*fourteenth_inputs.FAMILIES, *fourteenth_right.RIGHT, *fourteenth_bugs.WRONG):
        assert split.of(name) == split.DEVELOPMENT, name


@pytest.mark.parametrize("module", MODULES)
def test_no_bug_of_a_module_is_lost_to_another_of_its_name(module):
    part = importlib.import_module(f"{new_bugs.__package__}.{module}").BUGS
    assert all(new_bugs.WRONG[name][0] is bug for name, bug in part.items())


def test_options_belong_to_bugs():
    assert set(new_bugs.ASKED) <= set(new_bugs.WRONG)
    assert all(asked != inputs.Asked() for asked in new_bugs.ASKED.values())


@pytest.mark.parametrize("bug", new_bugs.WRONG)
def test_a_pattern_of_right_names_does_not_match_everything(bug):
    _, pattern = new_bugs.WRONG[bug]
    assert not any(re.search(pattern, name) for name in NO_NAMES)
    assert not re.search(pattern, "the weather of yesterday")


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
        (labels.LOST, "keys at the end left out", "keys counted twice"),
        (labels.LOST, "weights of keys by a factor", "denominator with keys by a factor"),
        (labels.OWN_LOST, "causal mask is strict", "causal mask left out"),
        (labels.SEEN, "another mask: keys that the mask hides", "causal mask left out"),
        (labels.MASK, "another window", "custom mask left out"),
        (labels.ALIBI, "ALiBi slopes of another head", "ALiBi left out"),
        (labels.ROW, "denominator of each row wrong", "denominator left out"),
        (labels.SUM, "denominator with keys by a factor", "keys by a factor for each block"),
        (labels.READ, "keys read again", "K and V read as 0"),
        (labels.READ, "K and V read at an offset", "V read at an offset"),
        (labels.REQUEST, "K and V of another request", "V of another request"),
        (labels.K_READ, "K read in another order", "V read in another order"),
        (labels.V_READ, "V read at an offset", "K and V read at an offset"),
        (labels.V_READ, "V of the key before", "V read as 0"),
        (labels.ZERO_V, "V with wrong zero points", "K and V with wrong zero points"),
        (labels.ZERO_V, "with a constant added", "K with a constant added"),
        (labels.OWN, "weights by a factor of each row's own", "weights of keys by a factor"),
        (labels.TURNED_K, "RoPE of K by wrong places", "RoPE of Q by wrong places"),
        (labels.TWICE, "keys counted 3 times", "V counted twice"),
        (labels.SPLITS, "splits merged with wrong weights", "splits merged unweighted"),
        (labels.K_FACTOR, "K with scales of other blocks", "channels of Q or K by a factor"),
        (labels.K_SCALE, "wrong scale, another for each head", "V in e4m3 with a wrong scale"),
        (labels.ROWS, "another row's output", "another row's output is added"),
        (labels.ADDED, "another row's output is added", "a constant is added to V"),
        (labels.UNWRITTEN, "row never written", "another row's output"),
    ],
)
def test_words_of_right_names_blame_the_right_tensor(pattern, right_name, wrong_name):
    assert re.search(pattern, right_name)
    assert not re.search(pattern, wrong_name)


def test_every_bug_has_a_label_and_every_label_a_bug():
    assert set(labels.PATTERNS) == set(new_bugs.WRONG)


@pytest.mark.parametrize(
    ("bug", "right_name", "wrong_name"),
    [
        ("V clipped by a scale too small", "V clipped", "K and V clipped"),
        ("K's heads by modulo, V's by groups", "K of another head", "K and V of another head"),
        ("V's heads all the first", "V of another head", "K and V of another head"),
        ("K not yet written, V written", "K read as 0", "K and V read as 0"),
        ("a page of zeros in the table", "keys read as 0", "value of a key read as 0"),
        ("scale of V forgotten for cached tokens", "V by a factor", "K and V by a factor"),
        ("l rescaled twice at a new maximum", "l rescaled twice", "o and l rescaled twice"),
        ("a vote of one row on the rescale of 8", "o not rescaled", "o and l not rescaled"),
        ("last tile missing in l", "keys missing in the denominator", "keys left out"),
        ("cap by a quotient", "scores capped by a quotient", "K through another function"),
        ("halves of V's pairs exchanged", "channels mixed up", "channels of Q or K mixed up"),
        ("two registers of Q exchanged", "Q read with another swizzle", "Q read as 0"),
        ("scales of V's channels one off", "V or the output by a factor", "K and V by a factor"),
    ],
)
def test_a_label_blames_the_right_part(bug, right_name, wrong_name):
    assert runs.named(right_name, labels.PATTERNS[bug]) == runs.RIGHT_NAME
    assert runs.named(wrong_name, labels.PATTERNS[bug]) == runs.WRONG_NAME


@pytest.mark.parametrize("number", SHAPES)
def test_a_loop_and_a_merge_without_a_mistake_are_right(number):
    of = work(number, inputs.Asked(), SHAPES[number].causal)
    truth, good = right.exact(of.call)[0], wrong.right_output(of)
    merged = frame.merging(lambda w, lse, part: (frame.shares(lse) * part).sum(0))(of)
    walked = frame.looped(32, frame.stepped)(of)
    once = frame.summed(lambda w, p: (frame.kept(w, p) @ w.v, p.sum(-1, keepdim=True)))(of)
    for out in (walked, merged, once):
        assert in_half_units(out, truth).max() <= RIGHT_HALF_UNITS
    assert once.equal(good)


@pytest.mark.parametrize("asked", [inputs.Asked(), inputs.Asked(30), inputs.Asked(sinks=True)])
@pytest.mark.parametrize("number", SHAPES)
def test_a_mask_and_scores_without_a_mistake_are_right(number, asked):
    causal = SHAPES[number].causal or asked.window_left is not None
    of = work(number, asked, causal)
    good = wrong.right_output(of)
    assert frame.showing(lambda w: right.hidden_of(w.call))(of).equal(good)
    assert frame.scoring(lambda w: w.scores())(of).equal(good)
    assert frame.storing(lambda w, out: out)(of).equal(good)
    if causal and of.q.shape[2] > 1:
        assert (frame.unmasked(of) != of.s).any()


@pytest.mark.parametrize("number", SHAPES)
def test_pools_rows_and_places_come_back(number):
    of = work(number, inputs.Asked(), SHAPES[number].causal)
    assert frame.pooled(frame.tokens)(of, of.k).equal(of.k)
    assert frame.unpacked(of, frame.packed(of, of.q)).equal(of.q)
    assert frame.for_groups(of, frame.of_kv_heads(of, of.v)).equal(of.v)
    assert torch.cat(frame.spans(of)).equal(frame.keys(of))
    angles = frame.keys(of)[:, None] * frame.speeds(of.k)
    back = frame.turned(frame.turned(of.k, angles), -angles)
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
