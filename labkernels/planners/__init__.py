"""How libraries cut attention into tiles and splits, from shapes and the GPU's facts alone.

A request's bits can change with its batch only if the library cuts the request differently there.
"""

from labkernels.planners.cut import Batch, Cut, NotKnown, changed

__all__ = ["Batch", "Cut", "NotKnown", "changed"]
