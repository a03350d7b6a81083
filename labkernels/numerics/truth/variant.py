"""The variants of attention: a cap, slopes, a window, a mask, a bias or a sink on the scores."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from labkernels.numerics.arrays import Array, float64, moved, namespace
from labkernels.units import LOG2_E


@dataclass(frozen=True, eq=False)
class VariantTensors:
    """The variant besides the causal mask, with its tensors; a field that is None is not used.

    window_left: a row sees no key more than window_left before its own place, with a causal mask or
    without; query i of n, in a request of L keys, has place L - n + i. window_right: nor a key more
    than window_right after its place. soft_cap: scores s become c tanh(s / c). alibi: slopes [Hq];
    a score gets slope times (key - place of the query) added, as in FlashInfer, or with
    both_sides minus slope times |key - place|, as in FlashAttention. sinks [Hq]: one logit per head
    that counts in the denominator alone. mask [total_q, longest request]: True where a row sees a
    key. bias [1 or Hq, total_q, longest request]: is added to scores; -inf hides a key. by_distance
    [Hq, 2 r + 1]: the number in column r + key - place, or in the nearest one, is added to a score.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    window_left: int | None = None
    window_right: int | None = None
    soft_cap: float | None = None
    alibi: np.ndarray | None = None
    both_sides: bool = False
    sinks: np.ndarray | None = None
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    by_distance: np.ndarray | None = None

    def check(self, total_q: int, q_heads: int, longest: int) -> None:
        """Raise unless the tensors fit a problem."""
        for name in ("window_left", "window_right"):
            size = getattr(self, name)
            if size is not None and size < 0:
                raise ValueError(f"{name} = {size}, allowed: 0 or more")
        if self.soft_cap is not None and not 0 < self.soft_cap < np.inf:
            raise ValueError(f"soft_cap = {self.soft_cap}, allowed: a positive number")
        shapes = {"alibi": (q_heads,), "sinks": (q_heads,), "mask": (total_q, longest)}
        for name, allowed in shapes.items():
            found = getattr(self, name)
            if found is not None and tuple(found.shape) != allowed:
                raise ValueError(f"{name}.shape = {tuple(found.shape)}, allowed: {allowed}")
        table = self.by_distance
        if table is not None and (len(table.shape) != 2 or table.shape[1] % 2 == 0):
            raise ValueError(f"by_distance.shape = {tuple(table.shape)}, allowed: [Hq, 2 r + 1]")
        if self.bias is not None and self.bias.shape not in (
            (1, total_q, longest),
            (q_heads, total_q, longest),
        ):
            wanted = f"[1 or {q_heads}, {total_q}, {longest}]"
            raise ValueError(f"bias.shape = {tuple(self.bias.shape)}, allowed: {wanted}")

    def part(self, tokens: Array, heads: Array, longest: int) -> Self:
        """Return the variant of some tokens and query heads, with up to `longest` keys each."""
        of_heads = {
            name: np.asarray(getattr(self, name))[heads]
            for name in ("alibi", "sinks", "by_distance")
            if getattr(self, name) is not None
        }
        mask, bias = self.mask, self.bias
        if mask is not None:
            mask = np.asarray(mask)[tokens, :longest]
        if bias is not None:
            of_bias = heads if len(bias) > 1 else np.zeros(1, np.int64)
            bias = np.asarray(bias)[np.ix_(of_bias, tokens, np.arange(longest))]
        return replace(self, **of_heads, mask=mask, bias=bias)

    def biased(self, score: Array, tokens: Array, heads: Array, keys: slice) -> Array:
        """Return scores in log2 units with the bias added.

        Shapes: score [..., R, n]; tokens [R] and heads [..., R], of each row.
        """
        if self.bias is None:
            return score
        of_head = heads if len(self.bias) > 1 else 0 * heads
        added = np.asarray(self.bias, np.float64)[of_head, tokens, keys]
        return score + LOG2_E * moved(added, score)

    def shaped(self, score: Array, heads: Array, places: Array, keys: Array) -> Array:
        """Return scores in log2 units after the cap, the slopes and the biases by distance.

        Shapes: score [..., R, n]; heads [..., R] and places [R, 1], of each row; keys [n].
        """
        xp = namespace(score)
        if self.soft_cap is not None:
            cap = self.soft_cap * LOG2_E
            score = cap * xp.tanh(score / cap)
        if self.alibi is not None:
            slopes = float64(moved(np.asarray(self.alibi), score))[heads]
            distance = -abs(keys - places) if self.both_sides else keys - places
            score = score + LOG2_E * slopes[..., None] * distance
        if self.by_distance is not None:
            table = float64(moved(np.asarray(self.by_distance), score))
            reach, of = table.shape[1] // 2, moved(np.asarray(heads), score)[..., None]
            column = (keys - places).clip(-reach, reach) + reach
            score = score + LOG2_E * table[of, xp.asarray(column, dtype=xp.int64)]
        return score

    def steepness(self, score: Array) -> Array | float:
        """Return the derivative of the cap at scores in log2 units; 1 without a cap."""
        if self.soft_cap is None:
            return 1.0
        return 1 - namespace(score).tanh(score / (self.soft_cap * LOG2_E)) ** 2

    def hides(
        self, tokens: slice | Array, group: int, places: Array, keys: slice, like: Array
    ) -> Array | None:
        """Return True where the window or the mask hides a key; None where there is neither.

        Shapes: places, of each row, [R, 1] -> [R, n].
        """
        xp, found = namespace(like), None
        if self.window_left is not None:
            number = xp.arange(keys.start, keys.stop, device=like.device)
            found = number < places - self.window_left
        if self.mask is not None:
            seen = np.repeat(np.asarray(self.mask)[tokens, keys].astype(bool), group, 0)
            unseen = moved(~seen, like)
            found = unseen if found is None else found | unseen
        return found
