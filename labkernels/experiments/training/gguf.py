"""Reads GGUF, the file of llama.cpp: its facts, and its weights in fp32, Q8_0 and Q4_1."""

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}
_NUMBERS |= {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_BLOCK = 32  # weights that share a scale


def _of_q8_0(blocks: np.ndarray) -> np.ndarray:
    """A scale in fp16, then 32 codes in int8."""
    return blocks[:, :2].view("<f2").astype("f4") * blocks[:, 2:].view("i1")


def _of_q4_1(blocks: np.ndarray) -> np.ndarray:
    """A scale and a least value in fp16, then 32 codes of 4 bits: the low halves come first."""
    scale, least = blocks[:, :4].view("<f2").astype("f4").T[..., None]
    return np.hstack((blocks[:, 4:] & 15, blocks[:, 4:] >> 4)) * scale + least


# By the file's number of the type: bytes of a block, and what makes its weights.
_TYPES: Mapping[int, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    0: (4 * _BLOCK, lambda blocks: blocks.view("<f4")),
    3: (20, _of_q4_1),
    8: (34, _of_q8_0),
}


class Gguf:
    """A file whose facts were read; a weight is read when it is asked for.

    Raises: ValueError for another kind of file, and for weights of other types.
    """

    def __init__(self, path: Path) -> None:
        self._bytes, self._at = np.memmap(path, mode="r"), 0
        if self._bytes[:4].tobytes() != b"GGUF":
            raise ValueError(f"path = {path}, allowed: a file of GGUF")
        self._at = 4
        _, n_weights, n_facts = (self._number(kind) for kind in "IQQ")
        self.facts = {self._text(): self._value(self._number("I")) for _ in range(n_facts)}
        self._places = dict(self._place() for _ in range(n_weights))
        aligned = self.facts.get("general.alignment", 32)
        self._begin = -(-self._at // aligned) * aligned

    def weight(self, name: str) -> np.ndarray:
        """Return a weight in fp32, with the rows first."""
        shape, kind, at = self._places[name]
        if kind not in _TYPES:
            raise ValueError(f"{name} has type {kind}, allowed: {', '.join(map(str, _TYPES))}")
        block_bytes, made = _TYPES[kind]
        n, first = math.prod(shape) // _BLOCK, self._begin + at
        blocks = self._bytes[first : first + n * block_bytes].reshape(n, block_bytes)
        return made(np.asarray(blocks)).reshape(shape[::-1]).astype("f4")

    def _number(self, kind: str) -> Any:
        (found,) = struct.unpack_from(f"<{kind}", self._bytes, self._at)
        self._at += struct.calcsize(kind)
        return found

    def _text(self) -> str:
        n_bytes = self._number("Q")
        self._at += n_bytes
        return self._bytes[self._at - n_bytes : self._at].tobytes().decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, n = self._number("I"), self._number("Q")
            return [self._value(inner) for _ in range(n)]
        return self._number(_NUMBERS[kind])

    def _place(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name, n = self._text(), self._number("I")
        shape = tuple(self._number("Q") for _ in range(n))
        return name, (shape, self._number("I"), self._number("Q"))
