"""Published configurations give the workloads of each kind of layer."""

import json

import pytest

from labkernels import Bench
from labkernels.bench.layers import Layers, layers_of
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.variant import AttentionVariant

LLAMA_3_1_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 4096,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
}
GEMMA_3_12B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 3840,
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 64,
    "hidden_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "sliding_window": 128,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
}
SIZES = {"batch": 2, "kv_len": 4096, "tokens": 2048}


GEMMA_2_9B = {
    "attn_logit_softcapping": 50.0,
    "head_dim": 256,
    "model_type": "gemma2",
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}


def pair(heads, kv_heads, dim, **variant):
    own, asked = (2048,) * 2, AttentionVariant(**variant)
    decode = Decode((4096,) * 2, heads, kv_heads, dim, variant=asked)
    return decode, Prefill(own, own, heads, kv_heads, dim, True, variant=asked)


LATENT = (
    MlaDecode((4096,) * 2, 128),
    Prefill((2048,) * 2, (2048,) * 2, 128, 128, 192, True, "bf16", 128),
)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (LLAMA_3_1_8B, {"full": Layers(32, None, *pair(32, 8, 128))}),
        (QWEN3_8B, {"full": Layers(36, None, *pair(32, 8, 128))}),
        (
            GEMMA_3_12B,
            {
                "window": Layers(40, 1024, *pair(16, 8, 256, window_left=1023)),
                "full": Layers(8, None, *pair(16, 8, 256)),
            },
        ),
        (
            GPT_OSS_20B,
            {
                "window": Layers(12, 128, *pair(64, 8, 64, window_left=127, sinks=True)),
                "full": Layers(12, None, *pair(64, 8, 64, sinks=True)),
            },
        ),
        (
            GEMMA_2_9B,
            {
                "window": Layers(21, 4096, *pair(16, 8, 256, window_left=4095, soft_cap=50.0)),
                "full": Layers(21, None, *pair(16, 8, 256, soft_cap=50.0)),
            },
        ),
        (DEEPSEEK_V3, {"full": Layers(61, None, *LATENT)}),
    ],
    ids=["Llama 3.1 8B", "Qwen3 8B", "Gemma 3 12B", "GPT-OSS 20B", "Gemma 2 9B", "DeepSeek-V3"],
)
def test_a_published_model_has_these_layers(config, wanted):
    assert layers_of(config, **SIZES) == wanted


def test_benches_from_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA_3_12B), encoding="utf-8")
    benches = Bench.from_config(path, batch=2, kernels="decode_fma")
    assert list(benches) == ["window", "full"]
    windows = [bench.workloads[0].variant.window_left for bench in benches.values()]
    assert windows == [1023, None]
    assert list(benches["window"].run().kernel) == ["decode_fma"]


def test_a_window_of_every_layer_and_other_kinds():
    assert list(layers_of(LLAMA_3_1_8B | {"sliding_window": 4096}, **SIZES)) == ["window"]
    with pytest.raises(ValueError, match="^layer_types has 'linear_attention', allowed: full_att"):
        layers_of(LLAMA_3_1_8B | {"layer_types": ["linear_attention"]}, **SIZES)
    with pytest.raises(ValueError, match=r"^dtype = 'float8', allowed: "):
        layers_of(LLAMA_3_1_8B | {"torch_dtype": "float8"}, **SIZES)
