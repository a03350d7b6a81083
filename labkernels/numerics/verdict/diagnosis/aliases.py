"""Other words for a mistake: what makes the same outputs of this call, in another tensor or step.

A factor on all scores is a scale, or a factor on Q or K; keys that both sums lack may be hidden by
a mask. No output tells such mistakes apart, so that the line names them together, the likelier ones
first. What is equal on some inputs alone is tried in `whole_kernel` instead.

Of 23 wrong names of three held-out sets, 16 were the right mistake in other words. What they left
of the errors, 0.06 to 1.3 in rms of z, is what right names leave: no margin tells them apart.
Nor did anything else of a match tell 14 wrong names from 195 right ones: how much of the errors it
explains, how late it was found, how many names it lists, or whether it names a place.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.one_row import Match

_MERGED = "splits merged with wrong weights"
_ROUND = 0.004  # relative distance from the count of keys
MOST = 3  # names of a line: a longer list does not tell a reader where to look
_OR = ", or "
_TENSOR = re.compile(r"^(K and V|Q and K|Q or K|keys|[QKV]) (?=read|of|in|is|with|by)")
_OF_KEYS = re.compile(r"\bkeys?\b|\btiles\b")

Holds = Callable[[Problem, Match], bool]


def _always(problem: Problem, match: Match) -> bool:
    return True


def _hides(problem: Problem, match: Match) -> bool:
    """Whether a mask or a window hides keys of some row, and the line names none yet."""
    if re.search(r"\b(mask|window)\b", match.name):
        return False
    variant = problem.variant
    if variant is not None and (variant.window_left is not None or variant.mask is not None):
        return True
    return bool((problem.n_keys < problem.kv_lens[problem.request_of]).any())


def _of_all_keys(problem: Problem, match: Match) -> bool:
    return not _OF_KEYS.search(match.where)


def _of_some_keys(problem: Problem, match: Match) -> bool:
    return not _of_all_keys(problem, match)


def _has_sinks(problem: Problem, match: Match) -> bool:
    return problem.variant is not None and problem.variant.sinks is not None


def _of_some_heads(problem: Problem, match: Match) -> bool:
    return bool(re.search(r"\bonly .*\bheads?\b", match.where))


def _without_sinks(problem: Problem, match: Match) -> bool:
    """Whether the weights of keys add up to 1, so that what V has more, the output has more."""
    return not _has_sinks(problem, match)


def _of_the_same_keys(problem: Problem, match: Match) -> bool:
    """Whether all rows of a request see the same keys, so that a window is the same run of them."""
    return not problem.causal or int(np.diff(problem.q_ends).max()) == 1


def _of_rows(problem: Problem, match: Match) -> bool:
    """Whether other rows of the same keys explain the output: they differ in Q alone."""
    return match.name.startswith("another row's output")


def _taken_off(problem: Problem, match: Match) -> bool:
    return match.where.startswith("times -1") and "right output times" not in match.where


def _is_sum(problem: Problem, match: Match) -> bool:
    """Whether an output is the mean of V times the count of keys: each key has the weight 1."""
    times = re.match(r"times (\S+?)(;|$)", match.where)
    n = np.unique(problem.kv_lens)
    return times is not None and len(n) == 1 and abs(float(times[1]) - n[0]) <= _ROUND * n[0]


# The whole name, another name of the same outputs, and for which calls they are the same.
_SAME: tuple[tuple[str, str, Holds], ...] = (
    (r"wrong scale(: .+)?", "Q or K by a factor", _of_all_keys),
    (r"wrong scale", "K by a factor", _of_some_keys),
    (r"wrong scale, another for each (\w+)", r"Q or K by a factor for each \1", _of_all_keys),
    (r"V or the output by a factor", "the denominator by a factor", _always),
    (r"factor for each (.+)", r"V or the output by a factor for each \1", _always),
    (r"denominator of each row( wrong: the row.*)?", "sinks of other numbers", _has_sinks),
    (r"denominator of each row( wrong: the row.*)?", "o rescaled wrongly in each row", _always),
    (r"out was rounded to (steps, as )?(\w+)", r"partial outputs in \2, of one split", _always),
    (r"keys?( at the end)? left out(, other keys .*)?", "another mask that hides them", _hides),
    (r"window that was not asked for", "keys left out", _of_the_same_keys),
    (r"an offset of V for each (.+)", r"a constant is added to each \1 of the output", _always),
    (r"a constant is added to V, of each (.+)", "a constant is added to the output", _always),
    (r"sinks of another head", "sinks of other numbers", _of_some_heads),
    (r"the mean of V in place of the output", "softmax over another axis, of one number", _is_sum),
    (r"the mean of V is added", "V less its mean", _taken_off),
    (r"channels mixed up", "V read with its channels mixed up", _always),
    (r"Q of another row", "weights are those of another row", _of_rows),
    (r"a constant is added", "a constant is added to V, as a zero point is", _without_sinks),
    (r"partial outputs of another row", "another row's output in some splits", _always),
    (r"l accumulated in (\w+)", r"denominator of each row in \1", _always),
    (r"V read at an offset(, as of .*)?", "weights are those of other keys", _always),
    (r"GQA heads interleaved", "K and V of another head", _always),
    (r"K read as 0", "scores of these keys are 0", _of_some_keys),
    (r"K is a sum of several keys'", "scores added to those of other keys", _always),
    (r"([KV]) with a constant added", r"\1 with its zero point not taken off", _always),
    (r"V by a factor for each block", "V with scales of other blocks", _always),
    (r"splits merged (unweighted|by)( .*)?|mixed log base .*", _MERGED, _always),
    (r"(first|last) split counted twice at the merge", "keys counted twice", _always),
    (r"Q read with two registers .*", "Q of another row, in some channels", _always),
    (r"([KV]) read with two registers .*", r"channels of \1 read from other keys", _always),
    (r"(.+) read from other tokens, across requests", r"\1 of another request", _always),
    (r"out stored some elements off", "channels mixed up with those of the row beside", _always),
    (r"RoPE some places off", "RoPE of K by wrong places", _of_some_keys),
)


_TWO_CAPS = "soft cap by another function than tanh: two caps"
# A name that says what was not asked for, the field of the variant that the call may have asked for
# after all, and the name then.
_ASKED_FOR: tuple[tuple[str, str, str], ...] = (
    (r"ALiBi that was not asked for(.*)", "alibi", r"ALiBi slopes of other numbers\1"),
    (r"a bias that falls .* not asked for", "alibi", "ALiBi slopes of other numbers"),
    (r"soft cap that was not asked for", "soft_cap", _TWO_CAPS),
    (r"window that was not asked for", "window_left", "another window"),
)


def _as_asked(problem: Problem, name: str) -> str:
    """Return the name; what the call does ask for is not called a thing that it did not ask for."""
    for pattern, field, other in _ASKED_FOR:
        found = re.fullmatch(pattern, name)
        if found and getattr(problem.variant, field, None) is not None:
            return found.expand(other)
    return name


def _others(problem: Problem, match: Match, names: list[str]) -> Iterator[str]:
    for name in names:
        for pattern, other, holds in _SAME:
            found = re.fullmatch(pattern, name)
            if found and holds(problem, match):
                yield found.expand(other)


def named(problem: Problem, matches: list[Match]) -> list[Match]:
    """Return the matches, the first with the other names of its outputs, at most three in all.

    >>> scaled = Match("wrong scale", "scores times 1.3", 1.0, 9.0)
    >>> named(None, [scaled])[0].name
    'wrong scale, or Q or K by a factor'
    """
    if not matches:
        return []
    names = [_as_asked(problem, name) for name in matches[0].name.split(_OR)]
    more = [other for other in _others(problem, matches[0], names) if other not in names]
    if len(names) + len(more) > MOST:  # another word tells more than the same of another tensor
        told: dict[str, str] = {}
        for name in names:
            word = _TENSOR.sub("", name)
            told[word] = name if name.startswith("K and V") else told.get(word, name)
        names = list(told.values())
    kept = [*names, *dict.fromkeys(more)][: max(MOST, len(names))]
    return [replace(matches[0], name=_OR.join(kept)), *matches[1:]]
