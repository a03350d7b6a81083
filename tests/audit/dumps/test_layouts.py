"""Tensors are read in the layout that names, options or shapes say, or refused with the option."""

import pytest
import torch

from labkernels.audit.dumps import judge
from tests.measure.strangers import inputs, right

FLASH = right.RIGHT["flash, blocks of 64"]
B, H, HKV, S, D = 2, 4, 2, 24, 32
CALL = inputs.call("normal", inputs.Shape(B, H, HKV, S, S, D, causal=True), "bf16", 1)
MHA = inputs.call("normal", inputs.Shape(B, H, H, S, S, D, causal=True), "bf16", 1)
NAMES = ("q", "k", "v", "out")


def bhsd(call=CALL):
    return {"q": call.q, "k": call.k, "v": call.v, "out": FLASH(call)}


def moved(order, call=CALL):
    return {name: x.permute(*order).contiguous() for name, x in bhsd(call).items()}


def judged(tensors, **more):
    given = tensors | {"causal": True} | more
    found = judge(given, named=False)
    wrong = judge(given | {"out": given["out"].flip(0)}, named=False)
    return found.answer, wrong.answer


SBHD, BSHD = moved((2, 0, 1, 3)), moved((0, 2, 1, 3))
FLAT = {name: x.flatten(0, 1).flatten(1) for name, x in BSHD.items()}
ENDS = {name: torch.arange(B + 1) * S for name in ("cu_seqlens_q", "cu_seqlens")}
PACKED = moved((0, 2, 1, 3), MHA)
QKV = torch.stack([PACKED[name] for name in "qkv"], 2)
HEADS = {"q_heads": H, "kv_heads": HKV}


@pytest.mark.parametrize(
    "tensors",
    [
        SBHD,
        SBHD | {"layout": "sbhd"},
        SBHD | {"layout": "sbhd_sbhd_sbhd"},
        BSHD | {"layout": "bshd"},
        FLAT | ENDS | HEADS,
        {name: x.flatten(2) for name, x in BSHD.items()} | HEADS,
        {"qkv": QKV, "out": PACKED["out"]},
        {"qkv": QKV.flatten(0, 1), "out": PACKED["out"].flatten(0, 1)} | ENDS,
        {"qkv": torch.cat([FLAT[n] for n in "qkv"], -1), "out": FLAT["out"]} | ENDS | HEADS,
        {"kv": torch.stack([BSHD["k"], BSHD["v"]], 2), "q": BSHD["q"], "out": BSHD["out"]},
        {"qkv": QKV.flatten(0, 1), "out": PACKED["out"].flatten(0, 1)}
        | {"cu_seqlens": ENDS["cu_seqlens"]},
        bhsd() | {"out": BSHD["out"]},
        bhsd() | {"out": BSHD["out"].flatten(2)},
        {name: x.flatten(0, 1) for name, x in BSHD.items()} | {"out": FLAT["out"]} | ENDS,
        {"qkv": QKV.transpose(2, 3), "out": PACKED["out"], "layout": "bsh3d"},
        {"kv": torch.cat([BSHD["k"], BSHD["v"]], 2).flatten(2)}
        | {name: BSHD[name].flatten(2) for name in ("q", "out")}
        | HEADS,
        {name: x.flatten(2) for name, x in SBHD.items()} | HEADS | {"layout": "sbhd"},
        {"kv": (CALL.k, CALL.v), "q": CALL.q, "out": FLASH(CALL), "kv_len": S},
    ],
    ids=[
        "sbhd",
        "sbhd told",
        "transformer engine",
        "bshd",
        "flat",
        "flat 3",
        "qkv",
        "thd qkv",
        "GQA qkv",
        "kv",
        "varlen_qkvpacked",
        "transformers",
        "transformers, flat",
        "vLLM",
        "bsh3d",
        "flat kv",
        "flat sbhd of as many requests as KV heads",
        "a pair of K and V",
    ],
)
def test_a_right_output_is_right_in_its_layout_and_a_wrong_one_is_not(tensors):
    assert judged(tensors) == ("ROUNDING", "BUG")


def test_k_and_v_that_may_lie_along_several_axes_are_refused_and_others_are_read():
    first = {"q": CALL.q, "kv": torch.stack([CALL.k, CALL.v]), "out": FLASH(CALL)}
    with pytest.raises(ValueError, match=r"has 2 along several axes, allowed: k and v apart"):
        judge(first | {"causal": True}, named=False)  # B = Hkv = 2
    call = inputs.call("normal", inputs.Shape(3, H, HKV, S, S, D, causal=True), "bf16", 1)
    first = {"q": call.q, "kv": torch.stack([call.k, call.v]), "out": FLASH(call)}
    assert judged(first) == ("ROUNDING", "BUG")


def test_flat_tensors_without_heads_are_refused_with_the_option():
    with pytest.raises(ValueError, match="allowed with --heads Q/KV"):
        judge(FLAT | ENDS)
    with pytest.raises(ValueError, match="heads = 8, allowed: those of q.shape = .2, 24, 4, 32."):
        judge(BSHD | {"q_heads": 8, "kv_heads": 4})
    with pytest.raises(ValueError, match="heads = 4/3, allowed"):
        judge(FLAT | ENDS | {"q_heads": 4, "kv_heads": 3})
    with pytest.raises(ValueError, match="layout = 'bxsd', allowed: bhsd, bshd, sbhd"):
        judge(BSHD | {"layout": "bxsd"})


def test_flat_tensors_of_three_axes_are_refused_or_taken_as_one_request_which_is_said():
    flat = {name: x.flatten(2) for name, x in BSHD.items()}
    with pytest.raises(ValueError, match="allowed: .T, H, D., or with --heads Q/KV"):
        judge(flat)
    alike = {name: PACKED[name].flatten(2) for name in PACKED}
    assert judge(alike, named=False).note == "one request of q [T, H, D] (else --heads)"


def test_flat_tensors_of_one_shape_are_read_by_the_heads_that_explain_the_output():
    heads, d = 3, 80
    q, k, v = torch.randn(3, 2, 5, heads * d, generator=torch.Generator().manual_seed(1)).half()
    split = (x.unflatten(2, (heads, d)).transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
    found = judge({"q": q, "k": k, "v": v, "out": out}, named=False)
    assert (found.answer, found.note[:28]) == ("ROUNDING", "[B, S, H D] of 3 heads (else")
    wrong = judge({"q": q, "k": k, "v": v, "out": 1.1 * out}, named=False)
    assert wrong.answer == "BUG"


def pages(x, size=8):
    """Return keys [B, Hkv, L, D] as pages in order, with their table."""
    x = x.transpose(1, 2)
    pool = x.reshape(-1, size, *x.shape[2:])
    table = torch.arange(len(pool)).reshape(len(x), -1)
    return pool, {"page_table": table, "kv_len": torch.full((len(x),), x.shape[1])}


LSE = right.exact(CALL)[1].float()


@pytest.mark.parametrize(
    "lse",
    [LSE, LSE[..., None], LSE.transpose(1, 2)],
    ids=["flash-attn", "TransformerEngine", "as q without D"],
)
def test_a_log_sum_exp_lies_as_its_tool_lays_it(lse):
    given = BSHD | {"causal": True, "lse": lse}
    assert judge(given, named=False).answer == "ROUNDING"
    assert judge(given | {"lse": lse + 0.1}, named=False).answer == "BUG"


@pytest.mark.parametrize(
    "way", ["NHD", "HND", "HND unsaid", "FlashInfer's kv", "vLLM's kv", "vLLM's K beside V"]
)
def test_pools_of_keys_and_values(way):
    (k, about), (v, _) = pages(CALL.k), pages(CALL.v)
    pools = {"k": k, "v": v}
    if way.startswith("HND"):
        pools = {name: x.transpose(1, 2) for name, x in pools.items()}
        pools |= {"kv_layout": "HND"} if way == "HND" else {}
    elif way == "vLLM's K beside V":
        pools = {"kv": torch.cat([k, v], -1).transpose(1, 2)}
    elif way.endswith("kv"):
        pools = {"kv": torch.stack([k, v], 1 if way.startswith("Flash") else 0)}
    assert judged({"q": CALL.q, "out": FLASH(CALL)} | pools | about) == ("ROUNDING", "BUG")


@pytest.mark.parametrize("way", ["lengths", "last page", "both", "SGLang's slots"])
def test_lists_of_pages_of_which_the_last_is_not_full(way):
    size, lens = 1 if way.startswith("SGLang") else 8, torch.tensor([13, 20])
    (k, about), (v, _) = pages(CALL.k, size), pages(CALL.v, size)
    counts = -(-lens // size)
    parts = zip(CALL.q, CALL.k, CALL.v, lens.tolist(), strict=True)
    out = [
        FLASH(inputs.Call(q[None, :, :n], k[None, :, :n], v[None, :, :n], True, CALL.scale))[0]
        for q, k, v, n in parts
    ]
    ends = torch.tensor([0, *lens.cumsum(0).tolist()])
    found = {
        "q": torch.cat([q[:, :n] for q, n in zip(CALL.q, lens.tolist(), strict=True)], 1),
        "out": torch.cat(out, 1),
    }
    found = {name: x.transpose(0, 1) for name, x in found.items()} | {"cu_seqlens_q": ends}
    found |= {"k": k, "v": v, "kv_indptr": torch.tensor([0, *counts.cumsum(0).tolist()])}
    rows = zip(about["page_table"], counts.tolist(), strict=True)
    found["kv_indices"] = torch.cat([row[:n] for row, n in rows])
    last = {"kv_last_page_len": (lens - 1) % size + 1}
    if size == 1:
        found |= {name: found[name][:, 0] for name in "kv"}
    else:
        found |= {"last page": last, "lengths": {"kv_len": lens}, "both": last | {"kv_len": lens}}[
            way
        ]
    assert judged(found) == ("ROUNDING", "BUG")
    if way == "both":
        with pytest.raises(ValueError, match="kv_len differs from kv_last_page_len"):
            judge(found | {"kv_len": lens - 1})


def test_a_pool_that_holds_k_and_v_gives_both():
    """FlashMLA's k_cache has one head, whose first channels are V."""
    one = inputs.call("normal", inputs.Shape(2, 4, 1, 1, 48, 40, v_dim=32), "bf16", 5)
    out = FLASH(inputs.Call(one.q, one.k, one.k[..., :32], False, one.scale))
    pool, about = pages(one.k)
    for name, x in (("k", pool), ("kv", pool), ("kv", pool[:, :, 0]), ("kv", pool.swapaxes(1, 2))):
        given = {name: x, "q": one.q, "out": out, "scale": one.scale} | about
        assert judged(given) == ("ROUNDING", "BUG")


ONE = inputs.call("normal", inputs.Shape(3, H, HKV, 1, S, D), "bf16", 1)
_OUT, _LSE = FLASH(ONE), right.exact(ONE)[1]
TOKEN_AXES = {
    "[B, H, 1, D]": lambda x: x,
    "[B, 1, H, D]": lambda x: x.transpose(1, 2),
    "[B, H, D]": lambda x: x[:, :, 0],
}


@pytest.mark.parametrize("of", TOKEN_AXES)
@pytest.mark.parametrize("keys", ["bhsd", "bshd", "packed", "paged"])
def test_an_axis_of_one_token_may_be_there(of, keys):
    given = {"q": TOKEN_AXES[of](ONE.q), "out": TOKEN_AXES[of](_OUT), "k": ONE.k, "v": ONE.v}
    given["lse"] = TOKEN_AXES["[B, 1, H, D]"](_LSE)
    rows = {name: given[name].transpose(1, 2) for name in "kv"}
    if keys == "packed":
        given |= {name: x.flatten(0, 1) for name, x in rows.items()}
        given |= {"cu_seqlens_q": torch.arange(4), "cu_seqlens": torch.arange(4) * S}
    elif keys == "paged":
        (k, about), (v, _) = pages(ONE.k), pages(ONE.v)
        given |= {"k": k, "v": v} | about
    else:
        given |= rows if keys == "bshd" else {}
    assert judge(given, named=False).answer == "ROUNDING"
    assert judge(given | {"out": given["out"].flip(0)}, named=False).answer == "BUG"


def test_one_batch_of_tokens_beside_ends():
    """As transformers hands them on: [1, H, T, D] with the ends of several requests."""
    rows = {name: x.flatten(0, 1)[None] for name, x in BSHD.items()}
    assert judged(rows | ENDS)[0] == "ROUNDING"
    assert judged({name: x.transpose(1, 2) for name, x in rows.items()} | ENDS)[0] == "ROUNDING"
    assert judged(rows | ENDS | {"out": rows["out"].roll(1, 1)})[0] == "BUG"


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("p", ["bf16", "e4m3"])
def test_8_bits_with_descales_of_each_request_and_head(p, paged):
    """As FlashAttention 3 takes them: q, k and v in e4m3, and descales [B, Hkv]."""
    scales = [torch.linspace(0.5, 1.5, B * HKV).reshape(B, HKV) * c for c in (1.0, 2.0, 0.25)]
    stored = [x.to(torch.float8_e4m3fn) for x in (CALL.q, CALL.k, CALL.v)]
    q, k, v = (
        x.double() * s.repeat_interleave(x.shape[1] // HKV, 1)[:, :, None, None]
        for x, s in zip(stored, scales, strict=True)
    )
    k, v = (x.repeat_interleave(H // HKV, 1) for x in (k, v))
    s = (q @ k.mT * CALL.scale).masked_fill(right.hidden_of(CALL), -torch.inf)
    weights = torch.exp(s - s.amax(-1, keepdim=True))
    rounded = weights.to(torch.float8_e4m3fn if p == "e4m3" else torch.bfloat16).double()
    out = (rounded @ v / weights.sum(-1, keepdim=True)).bfloat16()
    given = {"q": stored[0], "k": stored[1], "v": stored[2], "out": out}
    if paged:
        (pool_k, about), (pool_v, _) = (pages(x) for x in stored[1:])
        given |= {"k": pool_k, "v": pool_v} | about
    given |= dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))
    assert judged(given)[0] == "ROUNDING"
    assert judged(given | {"v_scale": scales[2].flip(0)})[0] == "BUG"
    if p == "e4m3":
        assert "P taken to be in e4m3" in judge(given | {"causal": True}, named=False).note


def test_weights_below_the_least_number_of_e4m3_are_lost_by_right_kernels():
    """SGLang's Triton kernels round P between 0 and 1 to V's format."""
    call = inputs.call("v of mean 1", inputs.Shape(2, 4, 4, S, S, D), "bf16", 1)
    q, k, v = (x.to(torch.float8_e4m3fn) for x in (4 * call.q, call.k, call.v))
    s = q.double() @ k.double().mT * call.scale
    p = torch.exp(s - s.amax(-1, keepdim=True))
    given = {"q": q, "k": k, "v": v, "scale": call.scale}
    given["out"] = (p.to(q.dtype).double() @ v.double() / p.sum(-1, keepdim=True)).bfloat16()
    assert judge(given, named=False).answer == "ROUNDING"
    assert judge(given | {"out": 1.1 * given["out"]}, named=False).answer == "BUG"


def test_a_query_saved_in_16_bits_with_its_descale():
    scale = torch.full((B, HKV), 0.5)
    call = inputs.Call(CALL.q * 0.5, CALL.k, CALL.v, True, CALL.scale)
    assert judged(bhsd() | {"q_scale": scale, "out": FLASH(call)}) == ("ROUNDING", "BUG")


def of_codes(fmt, scales):
    """Return K and V as codes and as numbers, and the output of right arithmetic with P in e4m3."""
    g = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(B, HKV, 64, D, generator=g, dtype=torch.float64) for _ in range(3))
    codes = [x.to(fmt) for x in (k, v)]
    k, v = (x.double() * scales for x in codes)
    q = q.bfloat16()
    s = q.double() @ k.mT / D**0.5
    p = torch.exp(s - s.amax(-1, keepdim=True))
    out = p.to(torch.float8_e4m3fn).double() @ v / p.sum(-1, keepdim=True)
    return q, codes, (k, v), out.bfloat16()


def test_p_in_e4m3_of_numbers_that_were_codes_is_named_and_may_be_told():
    q, _, (k, v), out = of_codes(torch.float8_e4m3fn, 0.5)
    given = {"q": q, "k": k.float(), "v": v.float(), "out": out}
    found = judge(given)
    assert (found.answer, found.matches[0].name) == ("LESS EXACT", "less exact: P rounded to e4m3")
    assert judge(given, p_format="e4m3").answer == "ROUNDING"


def test_bytes_have_the_format_that_is_told_or_explains_the_output():
    q, codes, _, out = of_codes(torch.float8_e5m2, 1.0)
    given = dict(zip("kv", (x.view(torch.uint8) for x in codes), strict=True)) | {
        "q": q,
        "out": out,
    }
    assert "bytes taken as e5m2" in judge(given, named=False).note
    assert judge(given | {"kv_dtype": "fp8_e5m2"}, named=False).answer == "ROUNDING"
    assert judge(given | {"kv_dtype": "fp8"}, named=False).answer == "BUG"
    with pytest.raises(ValueError, match="kv_dtype = 'int8' of bytes, allowed: fp8, "):
        judge(given | {"kv_dtype": "int8"}, named=False)
