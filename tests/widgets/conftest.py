"""Fixtures of the widgets' tests: one kernel of the pages, compiled once."""

import json

import pytest

from labkernels.cuda.wasm import compiler
from labkernels.widgets import kernels
from labkernels.widgets.steps import broken


@pytest.fixture(scope="session")
def needs_node():
    import node

    if not node.is_available():
        pytest.skip("node is not installed")


@pytest.fixture(scope="session")
def needs_zig():
    if not compiler.is_available():
        pytest.skip("the package ziglang is not installed")


@pytest.fixture(scope="session")
def offer():
    return kernels.offers()[0]


@pytest.fixture(scope="session")
def assets(needs_zig, offer):
    return kernels.assets((offer,))


@pytest.fixture(scope="session")
def broken_asset(needs_node, needs_zig, tmp_path_factory):
    path = tmp_path_factory.mktemp("broken") / "broken.json"
    path.write_text(json.dumps(broken.asset()))
    return path
