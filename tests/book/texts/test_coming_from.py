"""The listings of the page for users of another library run, and give what the page says."""

import inspect
import math
import operator
import re

import pytest
import torch

import labkernels
from labkernels.kernels.decode.api import DecodeOptions
from labkernels.kernels.packed_gqa.call import PackedOptions
from labkernels.measure.peers.flashinfer import page_lists
from tests.repo.files import ROOT

PAGE = (ROOT / "book/coming_from.md").read_text(encoding="utf-8")


@pytest.fixture
def section():
    """Return a generator that runs a section's listings in order and yields their names."""

    def run(title):
        torch.manual_seed(0)
        (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
        names = {}
        for listing in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(listing, names)
            yield names

    return run


def exact(q, k, v, causal):
    """Return attention of [tokens, heads, head_dim] in float64, and its natural lse."""
    q, k, v = (x.detach().double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(scores.shape[1:]).triu(1 + len(k) - len(q)).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


def close(found, wanted):
    # half an fp16 ulp at 2 for out, and as much for P; a wrong row differs by tenths
    assert torch.allclose(found.detach().double(), wanted, atol=2e-3, rtol=0)


def test_lists_of_pages_become_a_table(section):
    names = next(section("FlashInfer"))
    cache, step = names["cache"], names["step"]
    for theirs, told in zip(("indptr", "indices", "last_page_len"), page_lists(cache), strict=True):
        assert torch.equal(names[theirs], told)
    for request in range(2):
        page, slot = cache.places(request)
        close(
            step.out[request][None],
            exact(names["q"][request][None], cache.k[page, slot], cache.v[page, slot], False)[0],
        )
    turned = names["pool"].transpose(2, 3).contiguous()  # layout HND
    views = (turned[:, i].transpose(1, 2) for i in (0, 1))
    again = labkernels.decode(
        names["q"], labkernels.PagedKV(*views, cache.page_table, cache.kv_len)
    )
    assert torch.equal(again.out, step.out)
    empty = labkernels.PagedKV(cache.k, cache.v, cache.page_table, torch.zeros(2).int())
    step = labkernels.decode(names["q"], empty)
    assert not step.out.any()
    assert torch.all(step.lse2 == -torch.inf)


def test_ragged_prefill(section):
    *_, names = section("FlashInfer")
    for rows in (slice(0, 3), slice(3, 8)):
        given = (names[name][rows] for name in ("q", "k", "v"))
        close(names["step"].out[rows], exact(*given, True)[0])


def test_attention_as_flash_attn_calls_it(section):
    names = next(section("flash-attn"))
    for b in range(names["batch"]):
        q, k, v = (names[name][b] for name in ("q", "k", "v"))
        out, lse = exact(q, k, v, True)
        close(names["out"][b], out)
        rows = slice(b * names["tokens"], (b + 1) * names["tokens"])
        # fp32 sums of at most 24 weights
        assert torch.allclose(names["softmax_lse"][:, rows].double(), lse, atol=1e-5, rtol=0)
    given = [names[name].detach().double().requires_grad_() for name in ("q", "k", "v")]
    heads_first = (x.transpose(1, 2) for x in given)
    torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).sum().backward()
    for name, wanted in zip(("q", "k", "v"), given, strict=True):
        # P and dS are rounded to fp16, and up to 24 of them are summed
        assert torch.allclose(names[name].grad.double(), wanted.grad, atol=1e-2, rtol=0)


def test_a_cache_without_a_block_table(section):
    *_, names = section("flash-attn")
    lengths = names["cache_seqlens"].tolist()
    assert lengths == [40, 9]
    for b, length in enumerate(lengths):
        k, v = (names[name][b, : length + 1] for name in ("k_cache", "v_cache"))
        assert torch.equal(k[-1], names["k_new"][b, 0])
        close(names["out"][b], exact(names["q"][b], k, v, True)[0])


def test_the_same_calls(section):
    names = next(section("The same calls"))
    for b in range(2):
        q, k, v = (names[name][b] for name in ("q", "k", "v"))
        out, lse = exact(q, k, v, True)
        rows = slice(24 * b, 24 * (b + 1))
        for found in (names["out"][b], names["sdpa"][b].transpose(0, 1), names["rows"][rows]):
            close(found, out)
        # fp32 sums of at most 24 weights
        found = names["lse"][rows].T.double() * math.log(2)
        assert torch.allclose(found, lse, atol=1e-5, rtol=0)


def test_a_kernel_of_ones_own(section, capsys):
    *_, names = section("Triton")
    assert capsys.readouterr().out.startswith("ROUNDING")
    with pytest.raises(AssertionError, match="BUG"):
        names["assert_attention_close"](-names["out"], names["q"], names["k"], names["v"])


def test_what_the_page_says_of_defaults():
    for verb, causal in (
        (labkernels.attention, False),
        (labkernels.ops.prefill_step, False),
        (labkernels.ops.mla_decode_step, True),
        (labkernels.with_kvcache, True),
    ):
        assert inspect.signature(verb).parameters["causal"].default is causal


def test_every_operation_but_the_append_has_a_triton_kernel():
    kernels = labkernels.discover()
    assert kernels["triton_decode"].language == "triton"
    folders = (ROOT / "labkernels/kernels").glob("*/operation.py")
    without = [p.parent.name for p in folders if not (p.parent / "triton/kernel.py").is_file()]
    assert without == ["append"]


ROWS = [
    right
    for title in ("FlashInfer", "flash-attn")
    for right in re.findall(
        r"^\| `.*? \| (.*) \|$", PAGE.partition(f"## {title}\n")[2].partition("```")[0], re.M
    )
]
ROLE = r"{func}`labkernels\.(.*?)`"
THEIRS = {"not is_neox"}  # words of another library that stand right


def arguments():
    """Return the arguments, options and outputs of the verbs that the rows name."""
    verbs = [labkernels.attention, labkernels.merge_states, labkernels.PagedKV]
    verbs += [labkernels.with_kvcache, labkernels.ops.append, labkernels.ops.prefill_step]
    names = {name for verb in verbs for name in inspect.signature(verb).parameters}
    return names | {*PackedOptions.__optional_keys__, *DecodeOptions.__optional_keys__, "lse2"}


def test_what_stands_right_in_the_tables_is_the_labs():
    known = arguments()
    assert len(ROWS) > 20
    for row in ROWS:
        for name in re.findall(ROLE, row):
            assert callable(operator.attrgetter(name)(labkernels)), row
        for word in set(re.findall("`(.*?)`", re.sub(ROLE, "", row))) - THEIRS:
            name = word.partition("=")[0].rpartition(".")[2]
            assert name in known or hasattr(labkernels, name), word
