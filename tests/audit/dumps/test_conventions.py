"""Every name of a dump that changes the mathematics is read as its tool means it, or refused."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from labkernels.audit import meaning
from labkernels.audit.dumps import audit, judge, whole
from labkernels.audit.names import REFUSED, Take
from tests.measure.strangers import inputs, right

B, H, HKV, S, D = 2, 4, 2, 24, 32
CALL = inputs.call("normal", inputs.Shape(B, H, HKV, S, S, D), "bf16", 1)
PLACE, KEY = torch.arange(S)[:, None], torch.arange(S)[None]
DIFF = KEY - PLACE
SLOPES = 2.0 ** -torch.arange(1, H + 1)
BIAS = torch.randn(B, H, S, S, generator=torch.Generator().manual_seed(1))
SEEN = torch.rand(B, 1, S, S, generator=torch.Generator().manual_seed(2)) < 0.7
SEEN[..., 0] = True


def output(added=0.0, cap=None, sinks=None):
    """Return softmax(s + added) V in float64, rounded once as kernels round: P and out in bf16."""
    q, k, v = right.grouped(CALL, torch.float64)
    s = q @ k.mT * CALL.scale
    s = cap * torch.tanh(s / cap) if cap else s
    s = s + added
    top = s.amax(-1, keepdim=True)
    p = torch.exp(s - top)
    total = p.sum(-1, keepdim=True)
    total = total if sinks is None else total + torch.exp(sinks[:, None, None] - top)
    return (p.bfloat16().double() @ v / total).bfloat16()


def hidden(where):
    return torch.zeros(where.shape, dtype=torch.float64).masked_fill(where, -torch.inf)


def dump(out, **names):
    return {"q": CALL.q, "k": CALL.k, "v": CALL.v, "out": out} | names


def judged(given):
    take = Take()
    tensors = {ours: given[theirs] for theirs, ours in take.chosen(given).items()}
    return whole(judge(tensors, named=False), take, "a dump")


CAUSAL = DIFF > 0
LOW = torch.finfo(torch.bfloat16).min
WINDOW = (DIFF < -4) | (DIFF > 2)
# What a tool saves, and what it adds to scores: FlashAttention 2 and 3, FlashInfer, vLLM, SGLang,
# transformers, TransformerEngine, FlashMLA, torch.
NAMED = {
    "window_size": ({"window_size": (4, 2)}, hidden(WINDOW)),
    "window_size of FA4": ({"window_size": (None, 2)}, hidden(DIFF > 2)),
    "window_size_left, _right": ({"window_size_left": 4, "window_size_right": 2}, hidden(WINDOW)),
    "local_window_size of JAX": ({"local_window_size": (4, 2)}, hidden(WINDOW)),
    "sliding_window of a vLLM layer": (
        {"sliding_window": (4, 0), "causal": 1},
        hidden((DIFF < -4) | CAUSAL),
    ),
    "no window": ({"window_size": torch.tensor([-1, -1])}, torch.zeros(S, S)),
    "window_left": ({"window_left": 4, "causal": 1}, hidden((DIFF < -4) | CAUSAL)),
    "sliding_window": ({"sliding_window": 5, "is_causal": True}, hidden((DIFF < -4) | CAUSAL)),
    "sliding_window_size": ({"sliding_window_size": 4, "causal": 1}, hidden((DIFF < -4) | CAUSAL)),
    "attn_mask_type": ({"attn_mask_type": "causal"}, hidden(CAUSAL)),
    "attention_mask of TransformerEngine": (
        {"attn_mask_type": "arbitrary", "attention_mask": ~SEEN},
        hidden(~SEEN),
    ),
    "alibi_slopes of flash-attn": ({"alibi_slopes": SLOPES}, -SLOPES[:, None, None] * DIFF.abs()),
    "alibi_slopes of FlashInfer": ({"alibi_slopes": SLOPES}, SLOPES[:, None, None] * DIFF),
    "bool mask": ({"attn_mask": SEEN}, hidden(~SEEN)),
    "mask of 0 and 1": ({"attention_mask": SEEN.long()}, hidden(~SEEN)),
    "float mask of -inf": ({"attn_mask": hidden(~SEEN)}, hidden(~SEEN)),
    "float mask of finfo.min": ({"attention_mask": (~SEEN).bfloat16() * LOW}, hidden(~SEEN)),
    "mask [S, S]": ({"attn_mask": SEEN[0, 0]}, hidden(~SEEN[0, 0])),
    "mask [1, 1, S, S]": ({"attn_mask": SEEN[:1]}, hidden(~SEEN[:1])),
    "padding mask [B, S]": ({"attention_mask": SEEN[:, 0, 0]}, hidden(~SEEN[:, :, :1])),
    "bias per head": ({"attn_bias": BIAS}, BIAS.double()),
    "bias [1, H, S, S] as mask": ({"attn_mask": BIAS[:1]}, BIAS[:1].double()),
    "core_attention_bias and mask": (
        {"core_attention_bias": BIAS[:1], "mask": SEEN},
        BIAS[:1].double() + hidden(~SEEN),
    ),
    "position_bias of T5": ({"position_bias": BIAS[:1]}, BIAS[:1].double()),
    "custom_mask of FlashInfer": ({"custom_mask": SEEN.flatten()}, hidden(~SEEN)),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_means_what_its_tool_means(name):
    names, added = NAMED[name]
    found = judged(dump(output(added), **names))
    assert found.answer == "ROUNDING", found.summary()
    if added.abs().max() > 0:
        assert judged(dump(output(), **names)).answer == "BUG"


@pytest.mark.parametrize(
    ("names", "added"),
    [
        ({"soft_cap": 2.0}, 0.0),
        ({"sinks": torch.linspace(-1, 3, H)}, 0.0),
        ({"window_left": 4, "causal": 1}, hidden(CAUSAL)),
        ({"alibi": SLOPES, "causal": 1}, hidden(CAUSAL)),
        ({"mask": SEEN[0, 0]}, 0.0),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_was_left_out_is_named(names, added):
    found = judge(dump(output(added), **names))
    assert found.answer == "BUG"
    assert re.search("left out|without its", found.summary(verbose=False)), found.summary()


REFUSALS = [
    ({"dropout_p": 0.1}, "dropout cannot be judged: it is random"),
    ({"attention_chunk": 128}, "attention_chunk cannot be judged"),
    ({"pos_encoding_mode": "ROPE_LLAMA"}, "pos_encoding_mode cannot be judged"),
    ({"out_scale": 0.5}, "out_scale cannot be judged"),
    ({"xai_temperature_len": 8}, "xai_temperature_len cannot be judged"),
    ({"softmax_type": "off-by-one"}, "softmax_type cannot be judged: save softmax_offset, of zer"),
    ({"core_attention_bias_type": "pre_scale_bias"}, "bias_type cannot be judged: save the bias t"),
    ({"q": CALL.q[:, :, :9], "is_causal": True}, "is_causal with other lengths of q than of k"),
    ({"k_scale": torch.full((B, HKV), torch.nan)}, r"k_scale = tensor\(\[\[nan, nan\], \[nan"),
    ({"sliding_window": 5}, "sliding_window = 5 without causal"),
    ({"window_size": 5}, "window_size = 5, allowed: .left, right"),
    ({"window_size": (4, 0), "window_left": 5}, "window_left is 5 and 4 by different names"),
    ({"window_left": 2.5}, "window_left = 2.5, allowed: a whole number"),
    ({"attn_mask": torch.full((S, S), 2)}, "integers other than 0 and 1"),
    ({"attn_mask": torch.full((S, S), torch.nan)}, "mask holds NaN"),
    ({"attn_mask": torch.full((S, S), LOW)}, "hides all keys of 48 rows by a finite number"),
    ({"attn_mask": torch.ones(3, S).bool()}, "mask.shape = .3, 24., allowed: what broadcasts"),
    ({"attn_bias": torch.ones(S, S).bool()}, "bias.dtype = bool"),
    ({"attn_mask": torch.ones(S, S)}, "mask of floats 0 and 1, allowed: bool, 0 and 1, or a bias"),
    ({"mask_mod": "causal", "score_mod": "alibi"}, "score_mod cannot be judged: save a mask or a"),
    ({"cache_batch_idx": torch.tensor([1, 0])}, "save the cache's rows in the order of q"),
    ({"key_padding_mask": torch.ones(B, S).bool()}, "tools differ in what True hides"),
    ({"topk_indices": torch.ones(B, S, 4).int()}, "topk_length cannot be judged"),
    ({"indices": torch.zeros(B, S, 4).int()}, "kv_indices, allowed: .pages of all requests."),
]


@pytest.mark.parametrize(("names", "words"), REFUSALS)
def test_what_cannot_be_judged_is_refused_in_a_line(names, words, tmp_path):
    torch.save(dump(output(), **names), tmp_path / "dump.pt")
    with pytest.raises(ValueError, match=words):
        audit(tmp_path / "dump.pt")


@pytest.mark.parametrize("value", ["no", float("nan"), 2, -1, 0.5])
def test_causal_takes_yes_and_no_alone(value):
    with pytest.raises(ValueError, match="causal = .*, allowed: True, False, 1, 0"):
        judge(dump(output(), causal=value))


def test_refused_names_whose_values_change_nothing_are_read_past(tmp_path):
    plain = {name: row[1][0] for name, row in REFUSED.items() if row[1]}
    torch.save(dump(output(), **plain), tmp_path / "dump.pt")
    found = audit(tmp_path / "dump.pt")
    assert (found.answer, found.note) == ("ROUNDING", "")


def test_what_was_not_read_is_listed(tmp_path):
    torch.save(dump(output(), seed=3, other=torch.ones(2)), tmp_path / "dump.pt")
    assert "read as: without other, seed (not read)" in audit(tmp_path / "dump.pt").summary()


@pytest.mark.parametrize(
    "name", ["attn_window", "k_scales", "k_cache", "cu_seqlens_q_padded", "temperature"]
)
def test_a_bug_is_not_said_without_what_may_explain_it(name, tmp_path):
    """A right output is right without it, too."""
    path, more = tmp_path / "dump.pt", {name: torch.ones(2, 3)}
    torch.save(dump(output()) | more, path)
    assert name in audit(path, named=False).note
    torch.save(dump(2 * output()) | more, path)
    with pytest.raises(ValueError, match=f"out is wrong by what was read, without {name}; allowed"):
        audit(path, named=False)
    with pytest.raises(ValueError, match=f"x: out is wrong by what was read, without {name}"):
        whole(judge(dump(2 * output()), named=False), Take(unread=more), "x")
    torch.save(dump(2 * output(), k_scales=1.0, attn_window=-1, max_seq_lens=S), path)
    assert audit(path, named=False).answer == "BUG"


def test_two_tensors_of_one_name_are_refused(tmp_path):
    found = dump(output())
    torch.save(found | {"output": found["out"], "a.out": 0 * found["out"]}, tmp_path / "dump.pt")
    assert audit(tmp_path / "dump.pt").answer == "ROUNDING"  # out is ours to the letter
    out = found.pop("out")
    torch.save(found | {"a.out": out, "b.out": 0 * out}, tmp_path / "dump.pt")
    with pytest.raises(ValueError, match="2 tensors may be out: a.out, b.out; allowed: one, or"):
        audit(tmp_path / "dump.pt")


@pytest.mark.parametrize("name", ["out", "lse"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_not_finite_are_listed_and_not_fitted_by_a_name(name, value):
    s = np.einsum("bhmd,bhld->bhml", CALL.q.double(), CALL.k.double().repeat_interleave(2, 1))
    given = dump(output(), lse=torch.from_numpy(s * CALL.scale).logsumexp(-1))
    assert judge(given).answer == "ROUNDING"
    given[name] = given[name].clone()
    given[name][1, 2, 3] = value
    found = judge(given)
    words = {"out": "the output"}.get(name, name)
    start = f"NaN or inf in a row of {words}: sample 1, query 3, head 2; "
    assert (found.answer, found.matches) == ("BUG", ())
    assert found.why.startswith(start)


def test_a_row_without_keys_may_have_an_lse_of_either_infinity():
    """FlashAttention-2 stores inf there, and FlashInfer -inf."""
    lens, exact = torch.tensor([0, S]), torch.full((B, H, S), -torch.inf)
    s = CALL.q.double() @ CALL.k.double().repeat_interleave(2, 1).mT * CALL.scale
    exact[1] = s.logsumexp(-1)[1]
    out = output()
    out[0] = 0
    for sign in (1, -1):
        exact[0] = sign * torch.inf
        assert judge(dump(out, kv_len=lens, lse=exact)).answer == "ROUNDING"


def test_a_flag_of_numpy_or_torch_is_a_flag():
    assert meaning.flag("causal", np.bool_(True))
    assert not meaning.flag("causal", torch.tensor(0))


def rows_of_the_page():
    """Return the rows of the table of names: what is saved, and what it is read as."""
    page = (Path(__file__).parents[3] / "book/coming_from.md").read_text(encoding="utf-8")
    table = page.partition("## Names in a dump")[2].partition("\n`labkernels tolerance`")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) >= 10
    return [(saved.strip(" `"), read.strip()) for saved, _, read in rows]


@pytest.mark.parametrize(("saved", "read"), rows_of_the_page())
def test_each_row_of_the_page_on_coming_from_other_tools(saved, read):
    given = eval(f"dict({saved})")  # the page's own text
    ours = {name: given[theirs] for theirs, name in Take().chosen(given).items()}
    assert len(ours) == len(given)
    if read.startswith("refused"):
        with pytest.raises(ValueError, match="cannot be judged|without causal"):
            judge(dump(output()) | ours)
        return
    expected = {} if read == "no window" else eval(f"dict({read.strip('`')})")
    found = meaning.with_one_window(ours)
    assert {name: found[name] for name in expected} == expected
    assert ("window_left" in found) == ("window_left" in expected)
