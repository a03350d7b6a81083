"""For all tests: GPU tests say why they are skipped; random examples are the same everywhere."""

import gc
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest

# Each pytest worker has one core. NumPy's products are small here, and a second OpenBLAS thread
# spins while it waits for each product: with two threads, a verdict takes three times the CPU time.
# NumPy and torch read this variable when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    from hypothesis import settings
except ImportError:  # tests/gpu run on GPU machines without hypothesis
    settings = None

if settings is not None:
    settings.register_profile("labkernels", derandomize=True, deadline=None, database=None)
    settings.load_profile("labkernels")

# Marks of tests that run only if -m names them, and what to do for that.
ASKED_FOR = {
    "long": "runs in make test-all: -m long",
    "site": "needs the built book: make book, then -m site",
}
GPU_TESTS = Path(__file__).parent / "gpu"


def reason_without_gpu() -> str | None:
    """Return why the GPU tests cannot run here, None where they can."""
    try:
        import torch
    except ImportError:
        return "needs a GPU, and torch to reach it"
    if not torch.cuda.is_available():
        return "needs a GPU: torch sees none here"
    capability = torch.cuda.get_device_capability()
    if capability < (8, 0):
        major, minor = capability
        return f"needs a GPU of compute capability 8.0 or newer: this one has {major}.{minor}"
    return None


def pytest_configure():
    # Triton decides when it is imported whether it interprets, and which test imports it first
    # depends on the order of the tests.
    if reason_without_gpu():
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if not config.getoption("keyword"):  # who asks for something by -k gets all of its cases
        leave_cases_for_long_runs(items)
    for item in items:
        for mark, reason in ASKED_FOR.items():
            if item.get_closest_marker(mark) and mark not in config.getoption("markexpr"):
                item.add_marker(pytest.mark.skip(reason=reason))
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.gpu)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    reason = reason_without_gpu() if gpu_items else None
    for item in gpu_items:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def leave_cases_for_long_runs(items):
    """Mark the cases of a test as long, but for those that `one_in` and `few_of_each` leave.

    `one_in` leaves the first of every n cases. `few_of_each` leaves n cases of each value of one
    argument: the first one, the last one, and what lies evenly between them.
    """
    seen, groups = Counter(), defaultdict(list)
    for item in items:
        test = item.path, item.originalname
        if one_in := item.get_closest_marker("one_in"):
            if seen[test] % one_in.args[0]:
                item.add_marker(pytest.mark.long)
            seen[test] += 1
        if few := item.get_closest_marker("few_of_each"):
            argument, n = few.args
            groups[*test, n, str(item.callspec.params[argument])].append(item)
    for (*_, n, _), cases in groups.items():
        left = {round(i * (len(cases) - 1) / max(1, n - 1)) for i in range(n)}
        for number, item in enumerate(cases):
            if number not in left:
                item.add_marker(pytest.mark.long)


def pytest_collection_finish():
    """Let no later collection of garbage look at the tests and modules, which live to the end.

    A recording collects after each of its cells, which would take half a second otherwise.
    """
    gc.collect()
    gc.freeze()
