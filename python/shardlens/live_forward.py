"""Calls of a module's forward, watched from outside of what torch.compile made of it.

A hook of a compiled module is compiled with it: what it counts becomes a condition of the compiled code, which is then compiled again in every step.
"""
from __future__ import annotations

from typing import Any, Callable

Watcher = Callable[[Any, "tuple[Any, ...]", "dict[str, Any]"], None]


class ForwardWatch:
    """Calls `before(module, args, kwargs)` before each forward of the module, until remove()."""

    def __init__(self, module: Any, before: Watcher) -> None:
        self._module = module
        compiled = getattr(module, "_compiled_call_impl", None)  # of module.compile()
        self._compiled = compiled
        self._handle: Any = None
        if compiled is None:
            self._handle = module.register_forward_pre_hook(before, with_kwargs=True)
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            before(module, args, kwargs)
            return compiled(*args, **kwargs)

        self._call = call
        module._compiled_call_impl = call

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        elif self._module._compiled_call_impl is self._call:  # not compiled again by the program
            self._module._compiled_call_impl = self._compiled
