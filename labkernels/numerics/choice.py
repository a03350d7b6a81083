"""One wording for an argument that must be one of a few names."""

from collections.abc import Iterable


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raises ValueError naming the argument, its value and what is allowed, unless it is that."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise ValueError(f"{name} = {value!r}, allowed: {', '.join(allowed)}")
