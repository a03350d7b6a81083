"""A small cache for results that are needed again."""

from typing import Any


class Kept(dict[Any, Any]):
    """A dictionary that drops its oldest entry when it would have more than `most`.

    >>> few = Kept(2)
    >>> for number in range(3):
    ...     few[number] = number**2
    >>> few
    {1: 1, 2: 4}
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= self.most and key not in self:
            self.pop(next(iter(self)), None)
        super().__setitem__(key, value)
