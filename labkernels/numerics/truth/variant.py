"""The variants of attention: a cap, slopes, a window, a mask or a sink on the scores."""

from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import Array, float64, moved, namespace
from labkernels.units import LOG2_E


@dataclass(frozen=True, eq=False)
class VariantTensors:
    """The variant besides the causal mask, with its tensors; a field that is None is not used.

    window_left: a row sees no key more than window_left before its own place, with a causal mask or
    without; query i of n, in a request of L keys, has place L - n + i. soft_cap: scores s become c
    tanh(s / c). alibi: slopes [Hq]; a score gets slope times (key - place of the query) added.
    sinks [Hq]: one logit per head that counts in the denominator alone. mask [total_q, longest
    request]: True where a row sees a key.
    Raises: ValueError naming the field, its value and what is allowed.
    """

    window_left: int | None = None
    soft_cap: float | None = None
    alibi: np.ndarray | None = None
    sinks: np.ndarray | None = None
    mask: np.ndarray | None = None

    def check(self, total_q: int, q_heads: int, longest: int) -> None:
        """Raise unless the tensors fit a problem."""
        if self.window_left is not None and self.window_left < 0:
            raise ValueError(f"window_left = {self.window_left}, allowed: 0 or more")
        if self.soft_cap is not None and not 0 < self.soft_cap < np.inf:
            raise ValueError(f"soft_cap = {self.soft_cap}, allowed: a positive number")
        shapes = {"alibi": (q_heads,), "sinks": (q_heads,), "mask": (total_q, longest)}
        for name, allowed in shapes.items():
            found = getattr(self, name)
            if found is not None and tuple(found.shape) != allowed:
                raise ValueError(f"{name}.shape = {tuple(found.shape)}, allowed: {allowed}")

    def shaped(self, score: Array, heads: Array, places: Array, keys: Array) -> Array:
        """Return scores in log2 units after the cap and the slopes.

        Shapes: score [..., R, n]; heads [..., R] and places [R, 1], of each row; keys [n].
        """
        xp = namespace(score)
        if self.soft_cap is not None:
            cap = self.soft_cap * LOG2_E
            score = cap * xp.tanh(score / cap)
        if self.alibi is not None:
            slopes = float64(moved(np.asarray(self.alibi), score))[heads]
            score = score + LOG2_E * slopes[..., None] * (keys - places)
        return score

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
