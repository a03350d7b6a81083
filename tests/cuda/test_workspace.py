"""The workspace of a launch belongs to that launch alone, and its counters begin at 0."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from labkernels.cuda import workspace
from labkernels.cuda.workspace import Workspace, blank

CPU = torch.device("cpu")
ARRAYS, COUNTERS = {"o": 1000, "m": 256, "l": 0}, {"semaphores": 3, "ticket": 1}


@pytest.fixture(autouse=True)
def no_chunks(monkeypatch):
    monkeypatch.setattr(workspace, "_CHUNKS", {})


def spans(space):
    """Return where each part of a space begins and ends."""
    return {n: (a, a + space.sizes_bytes[n]) for n, a in space.addresses.items()}


def test_arrays_and_counters_lie_apart_where_a_copy_of_16_bytes_can_begin():
    space = Workspace(CPU, ARRAYS, COUNTERS).take()
    found = spans(space)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(sorted(found.values())))
    first = space.arrays.data_ptr()
    assert all((space.addresses[name] - first) % workspace.ARRAY_BYTES == 0 for name in ARRAYS)
    assert max(found[name][1] for name in ARRAYS) <= first + space.arrays.nbytes


def counters_of(space):
    return space.counters[space.first_counter :][: space.n_counters]


def test_no_two_steps_have_a_counter_in_common():
    made = Workspace(CPU, {}, COUNTERS)
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: made.take(), range(200)))
    for i, space in enumerate(taken):
        assert (counters_of(space) == 0).all()
        counters_of(space).fill_(i + 1)
    assert all((counters_of(space) == i + 1).all() for i, space in enumerate(taken))
    taken[0].clear()
    assert not counters_of(taken[0]).any()
    assert (counters_of(taken[1]) == 2).all()


def test_a_full_chunk_gives_way_to_a_clean_one(monkeypatch):
    monkeypatch.setattr(workspace, "_CHUNK", 64)
    made = Workspace(CPU, {}, {"ticket": 1})
    taken = [made.take() for _ in range(100)]
    for space in taken:
        counters_of(space).add_(1)
    assert all((counters_of(space) == 1).all() for space in taken)
    many = Workspace(CPU, {}, {"ticket": 65}).take()
    assert not counters_of(many).any()
    assert counters_of(many).numel() >= 65


def test_a_captured_step_has_counters_that_its_graph_clears(monkeypatch):
    monkeypatch.setattr(workspace, "stream_of", lambda device: None)
    made = Workspace(CPU, {}, COUNTERS)
    first, second = made.take(), made.take()
    assert first.counters is not second.counters
    assert not workspace._CHUNKS, "others would find counters that only a replay clears"


@pytest.mark.parametrize("shape", [(4, 32), (0, 3, 8), (5,)])
def test_what_is_made_after_a_blank_is_contiguous(shape):
    like = blank(shape, torch.float16, CPU)
    assert like.untyped_storage().nbytes() <= 2
    made = torch.empty_like(like)
    assert (made.shape, made.stride()) == (shape, torch.empty(shape).stride())
