"""A recording's work uses all cores, and leaves the environment as it was."""

import os

import pytest

from labkernels.experiments import workers


class Pool:
    """Notes what processes would be started with, and starts none."""

    def __init__(self, cores, mp_context):
        self.cores, self.method = cores, mp_context.get_start_method()
        self.threads = {name: os.environ[name] for name in workers._ONE_THREAD}

    def shutdown(self, cancel_futures):
        self.cancelled = cancel_futures


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    first, *others = workers._ONE_THREAD
    monkeypatch.setenv(first, "6")
    for name in others:
        monkeypatch.delenv(name, raising=False)


def test_each_of_many_cores_gets_one_thread_and_the_environment_comes_back(pool):
    def interrupted():
        with workers.all_cores() as found:
            begun.append(found)
            raise KeyboardInterrupt

    begun, before = [], dict(os.environ)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (found,) = begun
    assert (found.cores, found.method) == (8, "spawn")
    assert set(found.threads.values()) == {"1"}
    assert found.cancelled
    assert dict(os.environ) == before


def test_two_cores_work_in_turn(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with workers.all_cores() as found:
        late = found.submit(lambda a, b: a - b, 5, b=3)
        assert late.cancel()
        assert late.result() == 2
