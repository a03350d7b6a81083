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


def pair(heads, kv_heads, dim, **variant):
    own, asked = (2048,) * 2, AttentionVariant(**variant)
    decode = Decode((4096,) * 2, heads, kv_heads, dim, variant=asked)
    return decode, Prefill(own, own, heads, kv_heads, dim, True, variant=asked)


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
