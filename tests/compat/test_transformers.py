"""Models of transformers run on the lab's kernels; what these cannot serve is refused by name."""

from types import SimpleNamespace

import pytest
import torch

from labkernels.compat import transformers as ours
from tests.compat.judged import close, normal

SMALL = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # so large that attention moves the logits
}
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
ALL_EXPERTS = {"num_experts_per_tok": 2}  # a router that may choose would turn rounding into jumps
CONFIGS = {
    "LlamaConfig": {},
    "Qwen3Config": {},
    "Gemma3TextConfig": WINDOWS | {"query_pre_attn_scalar": 32},
    "GptOssConfig": WINDOWS | ALL_EXPERTS | {"num_local_experts": 2},
    "DeepseekV3Config": {
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 2,
    },
}


@pytest.fixture
def library():
    found = pytest.importorskip("transformers")
    ours.register()
    return found


def logits(model, ids, attention):
    model.set_attn_implementation(attention)
    with torch.no_grad():
        return model(ids).logits.float()


def rms(x):
    return x.square().mean().sqrt().item()


def model_of(library, name, **changed):
    torch.manual_seed(0)
    config = getattr(library, name)(**SMALL | CONFIGS[name] | changed)
    model = library.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter, value in model.named_parameters():
        if parameter.endswith("sinks"):
            value.data.uniform_(0, 3)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_as_exact_as_those_of_eager_attention(name, library):
    model, ids = model_of(library, name), torch.arange(48).view(2, 24) % 41
    exact = logits(model, ids, "eager")
    model = model.bfloat16()
    eager = rms(logits(model, ids, "eager") - exact)
    # Both models round their weights and activations to bf16; the lab's attention rounds less than
    # eager attention, which rounds its scores too, and the rest of the model rounds differently.
    assert rms(logits(model, ids, "labkernels") - exact) <= 1.25 * eager
    assert eager < 0.1 * rms(exact)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("Gemma3TextConfig", "scaling"),
        ("Gemma3TextConfig", "sliding_window"),
        ("GptOssConfig", "sliding_window"),
        ("GptOssConfig", "s_aux"),
    ],
)
def test_each_part_of_a_variant_moves_the_logits(name, without, library, monkeypatch):
    model, ids = model_of(library, name), torch.arange(48).view(2, 24) % 41
    model = model.bfloat16()
    eager, right = (logits(model, ids, attention) for attention in ("eager", "labkernels"))

    def part_left_out(*given, **how):
        return ours.attend(*given, **how | {without: None})

    library.AttentionInterface.register("part left out", part_left_out)
    library.AttentionMaskInterface.register("part left out", ours.no_mask)
    wrong = logits(model, ids, "part left out")
    assert rms(wrong - eager) > 3 * rms(right - eager)


@pytest.mark.parametrize("name", ["LlamaConfig", "Gemma3TextConfig"])
def test_tokens_are_generated_over_a_growing_cache(name, library):
    model = model_of(library, name).bfloat16()
    model.set_attn_implementation("labkernels")
    ids = torch.arange(1, 13).view(2, 6)  # 0 pads
    how = {"do_sample": False, "max_new_tokens": 4, "pad_token_id": 0}
    found = model.generate(ids, output_logits=True, return_dict_in_generate=True, **how)
    whole = logits(model, found.sequences[:, :-1], "labkernels")[:, 5:]
    cached = torch.stack(found.logits, 1).float()
    # each step rounds activations of one token as a call of all tokens does, in other sums
    assert rms(cached - whole) < 0.05 * rms(whole)


def test_a_model_trains(library):
    model, ids = model_of(library, "LlamaConfig"), torch.arange(48).view(2, 24) % 41
    gradients = []
    half = torch.bfloat16
    for attention, dtype in (("eager", torch.float32), ("eager", half), ("labkernels", half)):
        model.set_attn_implementation(attention)
        model = model.to(dtype)
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad.double())
    exact, eager, ours = gradients
    # all is rounded to bf16 in both, and the lab rounds P and dS once where eager attention does
    assert rms(ours - exact) <= 1.25 * rms(eager - exact)
    assert rms(eager - exact) < 0.2 * rms(exact)


def test_padding_and_fp32_are_refused(library):
    model, ids = model_of(library, "LlamaConfig"), torch.arange(1, 13).view(2, 6)
    padded = torch.ones(2, 6).int()
    padded[0, 0] = 0
    model.set_attn_implementation("labkernels")
    with pytest.raises(ValueError, match=r"^query.dtype = torch.float32, allowed: torch.float16"):
        model(ids)
    model = model.bfloat16()
    with pytest.raises(ValueError, match=r"^attention_mask = shape \(2, 6\), allowed: a mask of"):
        model(ids, attention_mask=padded)
    with pytest.raises(ValueError, match="^mask_function = .* allowed: causal, sliding or full"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)
    with pytest.raises(ValueError, match="^mask_function = "):
        model.generate(ids, cache_implementation="static", max_new_tokens=2, pad_token_id=0)


def see(*rules):
    """Return a mask function as transformers makes it: all rules hold."""

    def mask(request, head, q, k):
        request, q, k = torch.broadcast_tensors(request, q, k)
        return torch.stack([rule(request, q, k) for rule in rules]).all(0)

    return mask


def causal(request, q, k):
    return k <= q


def window(request, q, k):
    return k > q - 4


def chunk(request, q, k):
    return k // 4 == q // 4


def everything(request, q, k):
    return k == k


LATER = {"q_length": 2, "kv_length": 5}


@pytest.mark.parametrize(
    ("mask", "how"),
    [
        (see(causal), {}),
        (see(causal), {"q_length": 1, "q_offset": 8}),
        (see(causal), {"q_length": 3, "q_offset": 6}),
        (see(causal, window), {"local_size": 4}),
        (see(causal, window), {"local_size": 4, "q_offset": 7, "kv_offset": 4, **LATER}),
        (see(everything), {"q_length": 4}),
    ],
)
def test_masks_that_the_layers_tell(mask, how):
    sizes = {"batch_size": 2, "q_length": 9, "kv_length": 9}
    assert ours.no_mask(**sizes | how, mask_function=mask) is None


@pytest.mark.parametrize(
    ("mask", "how"),
    [
        (see(causal, chunk), {"local_size": 4}),
        (see(causal, window), {}),
        (see(causal, window), {"local_size": 5}),
        (see(causal, window), {"local_size": 3}),
        (see(causal), {"kv_length": 16}),
        (see(lambda request, q, k: (k <= q) | (k < 3) & (request == 1)), {}),
        (see(causal, lambda request, q, k: (k > 4) == (q > 4)), {}),
    ],
)
def test_masks_of_other_kinds_are_refused(mask, how):
    sizes = {"batch_size": 2, "q_length": 9, "kv_length": 9}
    with pytest.raises(ValueError, match="^mask_function = "):
        ours.no_mask(**sizes | how, mask_function=mask)


def test_a_layer_without_transformers():
    query, key, value = normal(2, 4, 8, 64), normal(2, 2, 8, 64), normal(2, 2, 8, 64).flip(0)
    for is_causal in (False, True):
        module = SimpleNamespace(is_causal=is_causal)
        out, weights = ours.attend(module, query, key, value, None, scaling=0.1, position_ids=None)
        assert weights is None
        for b in range(2):
            rows = (x[b].transpose(0, 1) for x in (query, key, value))
            close(out[b], *rows, causal=is_causal, scale=0.1)
    with pytest.raises(ValueError, match="^sliding_window = 4, allowed: None without a causal"):
        ours.attend(SimpleNamespace(is_causal=False), query, key, value, sliding_window=4)
    with pytest.raises(ValueError, match="^dropout = 0.1, allowed: 0.0"):
        ours.attend(module, query, key, value, None, 0.1)
    with pytest.raises(ValueError, match="^position_bias = shape "):
        ours.attend(module, query, key, value, position_bias=torch.zeros(8, 8))
