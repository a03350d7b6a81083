"""The attention layers of a published model, by kind, and their workloads."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.prefill.workload import Prefill
from labkernels.variant import AttentionVariant

KINDS = {"full_attention": "full", "sliding_attention": "window"}
FORMATS = {"float16": "fp16", "bfloat16": "bf16"}
_MODELS = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
BY_TYPE: dict[str, dict[str, Any]] = _MODELS["types"]  # what a file leaves to the model's type
BY_OLDER_TYPE: dict[str, dict[str, Any]] = _MODELS["older_types"]
NAMES: dict[str, list[str]] = _MODELS["names"]  # of fields, in files of older types


@dataclass(frozen=True)
class Layers:
    """Layers of a model that attend alike. window: the keys that a token of theirs sees at most."""

    count: int
    window: int | None
    decode: Decode | MlaDecode
    prefill: Prefill


def layers_of(
    config: Mapping[str, Any] | str | Path, *, batch: int, kv_len: int, tokens: int
) -> dict[str, Layers]:
    """Return the layers of a configuration of transformers by kind: "full" and "window".

    The workloads declare the variant: windows, soft caps, sinks, slopes, and biases by distance.
    Latent attention (MLA) decodes latent rows, and its prefill has the heads before absorption. The
    layers of T5 are those of its decoder, which attend to the decoder's own tokens.
    Raises: ValueError naming a field that is missing, or whose attention has no workload.

    >>> llama = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
    >>> llama |= {"num_key_value_heads": 8, "torch_dtype": "bfloat16"}
    >>> layers_of(llama, batch=8, kv_len=8192, tokens=512)["full"].decode.label
    '8 x 8192, 32/8, d128, page 16, bf16'
    """
    if not isinstance(config, Mapping):
        config = json.loads(Path(config).read_text(encoding="utf-8"))
    config = _with_usual_names(config.get("text_config", config))
    found = {}
    for kind, count in Counter(_kinds(config)).items():
        if kind not in KINDS:
            raise ValueError(f"layer_types has {kind!r}, allowed: {', '.join(KINDS)}")
        window = _field(config, "sliding_window") if KINDS[kind] == "window" else None
        variant = AttentionVariant(
            window_left=None if window is None else window - 1,  # transformers counts the own key
            soft_cap=config.get("attn_logit_softcapping"),
            sinks=config.get("sinks", False),
            alibi=bool(config.get("alibi")),
            # of T5, whose buckets of distances end there
            reach=config.get("relative_attention_max_distance"),
        )
        made = _workloads(config, variant, (kv_len,) * batch, (tokens,) * batch)
        found[KINDS[kind]] = Layers(count, window, *made)
    return found


def _with_usual_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a configuration has or implies, by the names that Llama has.

    Raises: ValueError if tokens of the model see keys after them.
    """
    kind = config.get("model_type")
    of_type = (BY_TYPE | BY_OLDER_TYPE).get(kind, {})
    given = of_type | dict(config.get("attn_config") or {}) | dict(config)
    if given.get("prefix_lm"):
        todo = "give Bench a Decode, and a Prefill whose variant has a mask"
        raise ValueError(f"prefix_lm = True, allowed: False; {todo}")
    if kind is None or kind in BY_OLDER_TYPE:
        for name, others in NAMES.items():
            values = [given[other] for other in (name, *others) if given.get(other) is not None]
            given |= {name: values[0]} if values else {}
    shared = given.get("multi_query") and not given.get("new_decoder_architecture")
    if shared or given.get("attn_type") == "multiquery_attention":
        given["num_key_value_heads"] = 1  # Falcon's own field says something else
    return given


def _field(config: Mapping[str, Any], name: str) -> Any:
    """Return a field.

    Raises: ValueError saying what to do without it.
    """
    if config.get(name) is None:
        kind, older = config.get("model_type"), ", ".join(BY_OLDER_TYPE)
        allowed = f"a configuration with {name}, or of {older} by their names"
        todo = "add the field, or give Bench a Decode and a Prefill"
        raise ValueError(f"{name} is missing, model_type = {kind!r}, allowed: {allowed}; {todo}")
    return config[name]


def _kinds(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer, by transformers' names."""
    n, full = _field(config, "num_hidden_layers"), "full_attention"
    if config.get("layer_types"):
        return config["layer_types"]
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return [full] * n
    pattern = config.get("sliding_window_pattern")
    return ["sliding_attention" if pattern is None or (i + 1) % pattern else full for i in range(n)]


def _workloads(
    config: Mapping[str, Any],
    variant: AttentionVariant,
    keys: tuple[int, ...],
    own: tuple[int, ...],
) -> tuple[Decode | MlaDecode, Prefill]:
    heads = _field(config, "num_attention_heads")
    name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = FORMATS.get(name, name)
    if "kv_lora_rank" in config:
        rope, v_dim = config["qk_rope_head_dim"], config["v_head_dim"]
        dims = config["qk_nope_head_dim"] + rope
        decode = MlaDecode(keys, heads, config["kv_lora_rank"], rope, dtype=dtype)
        return decode, Prefill(own, own, heads, heads, dims, True, dtype, v_dim)
    kv_heads = config.get("num_key_value_heads") or heads
    dims = config.get("head_dim") or _field(config, "hidden_size") // heads
    prefill = Prefill(own, own, heads, kv_heads, dims, True, dtype, variant=variant)
    return Decode(keys, heads, kv_heads, dims, dtype=dtype, variant=variant), prefill
