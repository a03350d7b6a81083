"""The eighteenth held-out set: right outputs are right, its bugs show, and none of it is old."""

import functools
import importlib
import re

import pytest
import torch

from labkernels.experiments.accuracy import strangers as experiment
from labkernels.measure.strangers import bugs as first_bugs
from labkernels.measure.strangers import inputs, looked_at, right, runs, split, wrong
from labkernels.measure.strangers import right as first_right
from labkernels.measure.strangers.held_out import asked as new_asked
from labkernels.measure.strangers.held_out import bugs as new_bugs
from labkernels.measure.strangers.held_out import formats, labels, masks, reads, splits
from labkernels.measure.strangers.held_out import inputs as new_inputs
from labkernels.measure.strangers.held_out import right as new_right
from labkernels.measure.strangers.looked_at.eighth import inputs as eighth_inputs
from labkernels.measure.strangers.looked_at.eleventh import inputs as eleventh_inputs
from labkernels.measure.strangers.looked_at.fifteenth import inputs as fifteenth_inputs
from labkernels.measure.strangers.looked_at.fourteenth import inputs as fourteenth_inputs
from labkernels.measure.strangers.looked_at.ninth import inputs as ninth_inputs
from labkernels.measure.strangers.looked_at.seventeenth import bugs as seventeenth_bugs
from labkernels.measure.strangers.looked_at.seventeenth import inputs as seventeenth_inputs
from labkernels.measure.strangers.looked_at.seventeenth import right as seventeenth_right
from labkernels.measure.strangers.looked_at.sixteenth import frame
from labkernels.measure.strangers.looked_at.sixteenth import inputs as sixteenth_inputs
from labkernels.measure.strangers.looked_at.tenth import inputs as tenth_inputs
from labkernels.measure.strangers.looked_at.thirteenth import inputs as thirteenth_inputs
from labkernels.measure.strangers.looked_at.twelfth import inputs as twelfth_inputs

SEED = split.FIRST_HELD_OUT_SEED
FAMILIES = tuple(new_inputs.FAMILIES)
SHAPES = dict(enumerate(new_inputs.SHAPES))
MODULES = ("asked", "edges", "formats", "loops", "masks", "pages", "reads", "splits")
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
    latest = (fifteenth_inputs, sixteenth_inputs, seventeenth_inputs)
    sets = (inputs, *eighth_to_tenth, *later, *latest)
    assert not {shape for old in sets for shape in old.SHAPES} & set(SHAPES.values())


def test_no_name_is_asked_for_where_tests_ask_for_nothing():
    """A test of all experiments asks for cells named "nothing", which must not judge any."""
    assert not any("nothing" in name for name in (*new_bugs.WRONG, *FAMILIES))


def test_all_of_it_is_held_out_and_the_set_before_it_is_not():
    for name in (*new_bugs.WRONG, *new_right.RIGHT, *FAMILIES):
        assert split.of(name) == split.HELD_OUT, name
    for name in (*seventeenth_inputs.FAMILIES, *seventeenth_right.RIGHT, *seventeenth_bugs.WRONG):
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
        (labels.LOST, "keys at the end left out", "keys left out, as tiles of small weights"),
        (labels.SOME_LOST, "keys left out, other keys in each row", "keys at the end left out"),
        (
            labels.SEEN,
            "another mask: keys that the mask hides",
            "hidden keys take part with score 0",
        ),
        (labels.HIDDEN, "hidden keys take part", "hidden keys take part with score 0"),
        (labels.WIDE, "another window", "another window: keys left out"),
        (labels.TWICE, "keys counted twice", "V counted twice"),
        (labels.READ, "keys read again", "keys read as 0"),
        (labels.REQUEST, "K and V of another request", "V of another request"),
        (labels.V_READ, "V read in another order", "V read as 0"),
        (labels.KV_HEADS, "GQA heads interleaved", "V of another head"),
        (labels.QK_CHANNELS, "channels of Q or K mixed up", "channels mixed up"),
        (labels.V_SQUARES, "V read with its channels mixed up", "P transposed"),
        (labels.K_SCALES, "K with scales of other blocks", "V with scales of other blocks"),
        (labels.V_SCALES, "V by a factor for each key", "V by a factor for each KV head"),
        (labels.V_SCALE, "V by a factor for each KV head", "V by a factor for each key"),
        (labels.ROW, "another row's output", "another row's output is added"),
        (labels.SINKS, "sinks of another head", "sinks once per split"),
        (labels.L, "keys missing in the denominator", "keys twice in the denominator"),
        (labels.L_ROW, "denominator of each row wrong", "keys missing in the denominator"),
        (labels.MERGED, "splits merged with wrong weights in each row", "splits merged unweighted"),
        (labels.ANOTHER_LSE, "splits merged by another split's lse", "splits merged by l alone"),
        (labels.PAST, "keys past the end take part", "padding in the denominator"),
        (labels.PADDING, "padding in the denominator", "denominator left out"),
        (labels.TURNED_K, "RoPE of K by wrong places", "RoPE of Q by wrong places"),
    ],
)
def test_a_word_of_labels_blames_the_right_part(pattern, right_name, wrong_name):
    assert runs.named(right_name, pattern) == runs.RIGHT_NAME
    assert runs.named(wrong_name, pattern) == runs.WRONG_NAME


@pytest.mark.parametrize(
    ("bug", "right_name", "wrong_name"),
    [
        ("sinks with their sign turned", "sinks with the wrong sign", "sinks of another head"),
        ("the sink in the kernel and in the join", "sinks once per split", "sink left out"),
        ("the cap over ALiBi", "soft cap after the ALiBi slopes", "ALiBi left out"),
        ("odd heads without the window", "window left out, for heads", "keys left out"),
        ("a window halved for two sides", "another window: keys left out", "window left out"),
        ("the chunk's mask transposed", "another mask, read from elsewhere", "another mask"),
        ("K begins eight channels late", "K read some elements off", "K read as 0"),
        ("V taken from K's channels", "K read for V", "K in another layout"),
        ("a workspace of three slots", "last split counted twice", "splits merged unweighted"),
        (
            "log-sum-exps in base 2 taken by exp",
            "mixed log base at the merge of lse: exp for exp2",
            "mixed log base at the merge of lse: exp2 of natural logs",
        ),
        ("parts not divided by their sums", "denominator left out", "splits merged by l alone"),
        ("the rescale turned over", "rescaled by the inverse factor", "o not rescaled"),
        ("a rescale only if all rows of a group move", "o not rescaled", "l not rescaled"),
        ("odd tiles take the weights before", "weights are those of another tile", "V read as 0"),
        ("V in int4 by token", "V in int4", "V in int4, which wraps"),
        ("K in int8 that wraps around", "K in int8, which wraps", "K in int8"),
        ("V turned by a Hadamard matrix for good", "V turned by a Hadamard matrix", "RoPE of V"),
        ("the output through e4m3", "out was rounded to e4m3", "out clipped"),
        ("the mean of a group's outputs", "mean of heads", "Q is a mean of several heads'"),
        ("an old bias of keys left on", "bias by position: ", "a bias of the output"),
    ],
)
def test_a_label_blames_the_right_part(bug, right_name, wrong_name):
    assert runs.named(right_name, labels.PATTERNS[bug]) == runs.RIGHT_NAME
    assert runs.named(wrong_name, labels.PATTERNS[bug]) == runs.WRONG_NAME


@pytest.mark.parametrize("number", SHAPES)
def test_a_join_without_a_mistake_is_right(number):
    of = work(number, inputs.Asked(), SHAPES[number].causal)
    truth = right.exact(of.call)[0]
    one_by_one = frame.joined(16, splits._one_by_one(torch.logaddexp))
    for out in (one_by_one(of), splits._changed()(of)):
        assert in_half_units(out, truth).max() <= RIGHT_HALF_UNITS


@pytest.mark.parametrize("asked", [inputs.Asked(), inputs.Asked(30)])
@pytest.mark.parametrize("number", SHAPES)
def test_a_mask_without_a_mistake_is_right(number, asked):
    of = work(number, asked, SHAPES[number].causal or asked.window_left is not None)
    good = wrong.right_output(of)
    if asked.window_left is None:
        assert masks._causal(lambda w, place, key: key > place)(of).equal(good)
    else:
        assert new_asked._windowed(lambda w, at, key, left: key < at - left)(of).equal(good)


@pytest.mark.parametrize("number", SHAPES)
def test_what_is_asked_for_without_a_mistake_is_right(number):
    causal = SHAPES[number].causal
    capped = new_asked._capped(new_asked._hiding(lambda s, cap: cap * torch.tanh(s / cap)))
    for asked, make in (
        (inputs.Asked(sinks=True), new_asked._sunk(lambda w, sinks: sinks)),
        (inputs.Asked(soft_cap=2.0), capped),
        (inputs.Asked(alibi=True), new_asked._sloped(lambda w, slopes, far: slopes * far)),
    ):
        of = work(number, asked, causal)
        assert make(of).equal(wrong.right_output(of))


@pytest.mark.parametrize("number", SHAPES)
def test_blocks_strides_and_turns_come_back(number):
    of = work(number, inputs.Asked(), SHAPES[number].causal)
    assert formats._by_blocks(of.k, 32, -1, lambda x, dim: x).equal(of.k)
    assert formats._by_blocks(of.v, 48, -2, lambda x, dim: x).equal(of.v)
    assert reads._transposed(of, reads._transposed(of, of.v)).equal(of.v)
    heads = frame.of_kv_heads(of, of.k)
    size = heads[0, 0].numel()
    assert reads._strided(of, heads, size, heads.shape[-1], 1).equal(of.k)
    # A product with a matrix of 1/4 and -1/4 errs by a few units of 1e-16 times numbers below ten.
    turned = formats._hadamard(of, formats._hadamard(of, of.v))
    assert torch.allclose(turned, of.v, rtol=0, atol=1e-13)


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
