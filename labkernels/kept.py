"""Results that are needed again: a small cache, and a property that is computed once."""

import functools
import threading
from typing import Any, TypeVar

Value = TypeVar("Value")
_CHANGES = threading.Lock()  # of all dictionaries: one in each could be neither copied nor pickled


class computed_once(functools.cached_property[Value]):
    """A cached property that threads compute at the same time for different instances.

    functools.cached_property of Python 3.11 holds one lock for the property of all instances.

    >>> class Square:
    ...     def __init__(self, side):
    ...         self.side = side
    ...
    ...     @computed_once
    ...     def area(self):
    ...         return self.side**2
    >>> Square(3).area
    9
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self.attrname] = self.func(instance)
        return value


class Kept(dict[Any, Any]):
    """A dictionary that drops its oldest entry when it would have more than `most`.

    Threads may share it: an entry that another thread dropped is missing, no more.

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
        with _CHANGES:
            if len(self) >= self.most and key not in self:
                self.pop(next(iter(self)), None)
            super().__setitem__(key, value)
