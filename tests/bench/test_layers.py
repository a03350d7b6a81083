"""Published configurations give the workloads of each kind of layer."""

import json
from pathlib import Path

import pytest

from labkernels import Bench
from labkernels.bench.layers import Layers, layers_of
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.variant import AttentionVariant

# What transformers reads of a model, without what says nothing of its attention.
CONFIGS = json.loads(Path(__file__).with_name("configs.json").read_text(encoding="utf-8"))
LLAMA = CONFIGS["Llama 3.1 8B"]
SIZES = {"batch": 2, "kv_len": 4096, "tokens": 2048}


def pair(heads, kv_heads, dim, dtype="bf16", **variant):
    own, asked = (2048,) * 2, AttentionVariant(**variant)
    decode = Decode((4096,) * 2, heads, kv_heads, dim, dtype=dtype, variant=asked)
    return decode, Prefill(own, own, heads, kv_heads, dim, True, dtype, variant=asked)


LATENT = (
    MlaDecode((4096,) * 2, 128),
    Prefill((2048,) * 2, (2048,) * 2, 128, 128, 192, True, "bf16", 128),
)


LAYERS = {
    "Llama 3.1 8B": {"full": Layers(32, None, *pair(32, 8, 128))},
    "Qwen3 8B": {"full": Layers(36, None, *pair(32, 8, 128))},
    "Gemma 3 12B": {
        "window": Layers(40, 1024, *pair(16, 8, 256, window_left=1023)),
        "full": Layers(8, None, *pair(16, 8, 256)),
    },
    "GPT-OSS 20B": {
        "window": Layers(12, 128, *pair(64, 8, 64, window_left=127, sinks=True)),
        "full": Layers(12, None, *pair(64, 8, 64, sinks=True)),
    },
    "Gemma 2 9B": {
        "window": Layers(21, 4096, *pair(16, 8, 256, window_left=4095, soft_cap=50.0)),
        "full": Layers(21, None, *pair(16, 8, 256, soft_cap=50.0)),
    },
    "DeepSeek-V3": {"full": Layers(61, None, *LATENT)},
    "GPT-2": {"full": Layers(12, None, *pair(12, 12, 64))},
    "BLOOM": {"full": Layers(70, None, *pair(112, 112, 128, alibi=True))},
    "BLOOM 7B1": {"full": Layers(30, None, *pair(32, 32, 128, "fp16", alibi=True))},
    "MPT 7B": {"full": Layers(32, None, *pair(32, 32, 128, alibi=True))},
    "Falcon 7B": {"full": Layers(32, None, *pair(71, 1, 64))},
    "Falcon 40B": {"full": Layers(60, None, *pair(128, 8, 64))},
    "Falcon RW 1B": {"full": Layers(24, None, *pair(32, 32, 64, alibi=True))},
    "DBRX": {"full": Layers(40, None, *pair(48, 8, 128))},
    "T5 11B": {"full": Layers(24, None, *pair(128, 128, 128, reach=128))},
}


@pytest.mark.parametrize("model", CONFIGS)
def test_a_published_model_has_these_layers(model):
    assert layers_of(CONFIGS[model], **SIZES) == LAYERS[model]


def test_benches_from_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["Gemma 3 12B"]), encoding="utf-8")
    benches = Bench.from_config(path, batch=2, kernels="decode_fma")
    assert list(benches) == ["window", "full"]
    windows = [bench.workloads[0].variant.window_left for bench in benches.values()]
    assert windows == [1023, None]
    assert list(benches["window"].run().kernel) == ["decode_fma"]


def test_a_window_of_every_layer_and_other_kinds():
    assert list(layers_of(LLAMA | {"sliding_window": 4096}, **SIZES)) == ["window"]
    with pytest.raises(ValueError, match="^layer_types has 'linear_attention', allowed: full_att"):
        layers_of(LLAMA | {"layer_types": ["linear_attention"]}, **SIZES)
    with pytest.raises(ValueError, match=r"^dtype = 'float8', allowed: "):
        layers_of(LLAMA | {"torch_dtype": "float8"}, **SIZES)


MPT = CONFIGS["MPT 7B"]


def test_slopes_and_shared_keys_as_mpt_says():
    def variant(**attn):
        return layers_of(MPT | {"attn_config": attn}, **SIZES)["full"].decode

    assert variant().variant.alibi  # as MptAttentionConfig has by default
    assert not variant(alibi=False).variant.alibi
    assert variant(attn_type="multiquery_attention").kv_heads == 1
    with pytest.raises(ValueError, match="^prefix_lm = True, allowed: False; give Bench a Decode"):
        variant(prefix_lm=True)


def test_a_missing_field_is_named_with_what_to_do():
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
        lacks = {field: value for field, value in LLAMA.items() if field != name}
        with pytest.raises(ValueError, match=f"^{name} is missing, model_type = 'llama', allow"):
            layers_of(lacks, **SIZES)
    with pytest.raises(ValueError, match="^sliding_window is missing.* field, or give Bench a Dec"):
        layers_of(LLAMA | {"layer_types": ["sliding_attention"]}, **SIZES)
    # ChatGLM has some of these names, and shares keys among heads by a field of its own
    own = {"num_layers": 28, "multi_query_attention": True, "multi_query_group_num": 2}
    with pytest.raises(ValueError, match="is missing, model_type = 'chatglm'.* or of gpt2, gptj, "):
        layers_of(own | {"model_type": "chatglm"}, **SIZES)


@pytest.mark.parametrize(("model", "word"), [("BLOOM 7B1", "slopes"), ("T5 11B", "biases to 128")])
def test_a_bench_runs_slopes_and_biases(model, word):
    (bench,) = Bench.from_config(CONFIGS[model], batch=2, kernels=["decode_fma"]).values()
    ran = bench.run()
    assert word in bench.workloads[0].label
    assert list(ran.kernel) == ["decode_fma"]
    assert not ran.note.str.contains("allowed").any()
