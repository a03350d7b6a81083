import pytest

from labkernels.numerics.verdict.diagnosis import search
from labkernels.numerics.verdict.diagnosis.match import Region


@pytest.fixture
def unnamed(monkeypatch):
    """Let the search for a name, which takes longest, find none."""
    none = search.Diagnosis(Region(), ())
    monkeypatch.setattr(search, "of_output", lambda *_, **__: none)
