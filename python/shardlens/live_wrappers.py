"""Functions of PyTorch that are replaced by wrappers for some steps, and given back."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class Wrappers:
    """Wrappers around methods of objects and classes and functions of modules, until remove()."""

    def __init__(self) -> None:
        self._wrapped: list[tuple[Any, str, Any, Any]] = []  # owner, name, what is there now, what it had of its own or None

    def wrap(self, owner: Any, name: str, make: Callable[[Function], Function]) -> bool:
        """Sets `make(original)` in the place of an attribute. False: there is none of that name. An object gets an attribute of its own."""
        original = getattr(owner, name, None)
        if original is None:
            return False
        own = vars(owner).get(name)  # of an object: the wrapper of another log, or none
        made: Any = make(original)
        if isinstance(own, staticmethod):
            made = staticmethod(made)
        setattr(owner, name, made)
        self._wrapped.append((owner, name, made, own))
        return True

    def remove(self) -> None:
        """Gives everything its own functions back. Never raises."""
        while self._wrapped:
            owner, name, made, own = self._wrapped.pop()
            if vars(owner).get(name) is not made:  # a later log is around it, and it only calls what is inside
                continue
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
