"""A file of llama.cpp becomes our model, and its list of pairs cuts text into tokens."""

import struct

import numpy as np
import pytest

from labkernels.experiments.training import foreign
from labkernels.experiments.training.gguf import Gguf

TOKENS, MERGES = [*"abc \u0120", "ab", "abc", "\u0120abc"], ["a b", "ab c", "\u0120 abc"]
SIZES = {"block_count": 1, "embedding_length": 64, "feed_forward_length": 32, "context_length": 8}
SIZES |= {"attention.head_count": 1, "attention.head_count_kv": 1}
NUMBERS = {"rope.freq_base": 1e5, "attention.layer_norm_rms_epsilon": 1e-5}
Q4_1 = struct.pack("<2e16B", 0.5, -1, *range(16, 32))  # low halves 0 to 15, high halves 1
Q8_0 = struct.pack("<e32b", 0.25, *range(-16, 16))
WIDE = {"attn_q": 64, "attn_k": 64, "attn_v": 64, "attn_output": 64, "ffn_gate": 32, "ffn_up": 32}


def text(words):
    return struct.pack("<Q", len(words.encode())) + words.encode()


@pytest.fixture
def file(tmp_path):
    facts = [text(f"llama.{k}") + struct.pack("<2I", 4, n) for k, n in SIZES.items()]
    facts += [text(f"llama.{k}") + struct.pack("<If", 6, x) for k, x in NUMBERS.items()]
    for name, words in (("tokens", TOKENS), ("merges", MERGES)):
        head = text(f"tokenizer.ggml.{name}") + struct.pack("<2IQ", 9, 8, len(words))
        facts.append(head + b"".join(map(text, words)))
    shapes = {f"blk.0.{name}": (64, rows) for name, rows in WIDE.items()} | {
        **{"token_embd": (64, len(TOKENS)), "blk.0.ffn_down": (32, 64)},
        **{name: (64,) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")},
    }
    places, data = b"", b""
    for name, shape in shapes.items():
        kind, block = (8, Q8_0) if name == "token_embd" else (3, Q4_1)
        kind, block = (0, struct.pack("<32f", *[2] * 32)) if len(shape) == 1 else (kind, block)
        places += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        places += struct.pack("<IQ", kind, len(data))
        data += block * (int(np.prod(shape)) // 32)
    whole = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(facts)) + b"".join(facts) + places
    (tmp_path / "a.gguf").write_bytes(whole + bytes(-len(whole) % 32) + data)
    return Gguf(tmp_path / "a.gguf")


def test_a_file_becomes_a_model(file):
    model = foreign.load(file)
    assert model.layers[0].qkv.weight[100, :20].tolist() == [*np.arange(16) / 2 - 1, *[-0.5] * 4]
    assert model.embedding.weight[3, 32:].tolist() == [n / 4 for n in range(-16, 16)]
    assert set(model.layers[0].norms[1].tolist()) == {2}
    assert (model.size.theta, model.size.hidden, model.size.vocabulary) == (1e5, 32, len(TOKENS))


def test_pairs_are_joined_in_the_order_of_the_list(file):
    assert foreign.Tokens(file).of("abc abcab") == [6, 7, 5]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "b").write_bytes(b"PK" * 9)
    with pytest.raises(ValueError, match="allowed: a file of GGUF"):
        Gguf(tmp_path / "b")
