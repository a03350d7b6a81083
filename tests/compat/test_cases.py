"""The scripts of the five cases run on the lab's kernels with their import line changed alone."""

import itertools
import re
from pathlib import Path

import pytest
import torch

from tests.compat.judged import close

SCRIPTS = Path(__file__).parent / "scripts"
CHANGED = {
    r"^import flashinfer$": "import labkernels.compat.flashinfer as flashinfer",
    r"^from flash_attn import": "from labkernels.compat.flash_attn import",
}


@pytest.fixture
def case(capsys):
    """Return a function that runs a script and returns its names, and what it printed."""

    def run(name):
        text, lines = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8"), 0
        for old, new in CHANGED.items():
            text, found = re.subn(old, new, text, flags=re.MULTILINE)
            lines += found
        assert lines == 1
        names = {"__name__": name}
        exec(compile(text, name, "exec"), names)
        return names, capsys.readouterr().out

    return run


def test_tensor_cores_on_and_off(case):
    names, printed = case("tensor_cores_on_and_off")
    assert printed.startswith("Outputs match: False\nmax rel diff: ")
    pages = names["kv_data"][names["kv_indices"].long()].unflatten(0, (names["bs"], -1))
    for out in (names["out_tc"], names["out_no_tc"]):
        for b in range(names["bs"]):
            k, v = (pages[b, :, i].flatten(0, 1)[: names["cl"]] for i in (0, 1))
            close(out[b][None], names["q"][b][None], k, v)


def test_two_roads(case):
    names, printed = case("two_roads")
    assert printed.startswith("mean: ")
    assert names["cache_result"].dtype == torch.bfloat16
    for b, (first, end) in enumerate(itertools.pairwise(names["cu_seqlens"].tolist())):
        q, k, v = names["qkv"][first:end].unbind(1)
        for out in (names["ref_result_last"], names["cache_result"]):
            close(out[b][None], q[-1:], k, v)


def test_the_test_that_could_not_fail(case):
    names, _ = case("the_test_that_could_not_fail")  # passes, as it did: its K is zeros
    harder = names["test_batch_prefill_with_ragged_kv_cache"]
    with pytest.raises(AssertionError, match="Mismatched elements"):
        harder(2, 54, 37, 2, True, "fa2", torch.bfloat16, torch.randn)


def test_a_typo_that_looked_like_rounding(case):
    names, _ = case("a_typo_that_looked_like_rounding")  # asserts 1e-3 in fp16 itself
    with pytest.raises(AssertionError, match="Mismatched elements"):
        names["test_batch_mla_page_attention"](2, 49, 3, 16, True, 16, "fa2", torch.bfloat16)


def test_half_idle_tensor_cores(case):
    names, printed = case("half_idle_tensor_cores")
    assert float(printed.split()[0]) > 0
    close(*(names[name][0] for name in ("out", "q", "k", "v")))
