"""Which modules a training step runs under activation checkpointing, seen while it runs: calls of torch.utils.checkpoint leave no mark on a module."""
from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CheckpointLog:
    """Watches torch.utils.checkpoint between install() and remove(). Training is not changed, and nothing here raises into it.

    `modules`     by id: the modules that were checkpointed. Of a call with a module, or a method of one, that module; of another function the modules that it called.
    `selective`   whether a call had a policy (context_fn), so that some results were kept
    `failure`     what went wrong while watching, or None; nothing is watched after it
    """

    def __init__(self) -> None:
        self.modules: dict[int, Any] = {}
        self.selective = False
        self.failure: str | None = None
        self._undo: list[Any] = []
        self._depths: list[Any] = []  # for each region that runs: how many modules are running inside it; None: its module is known

    def install(self, compiled: bool = False) -> None:
        """`compiled`: the model is compiled, and hooks on every module would compile it again; then only calls with a module are seen."""
        import torch.utils.checkpoint as checkpoint
        from torch.nn.modules import module

        # All are looked up when checkpoint() is called, however a program imported that.
        for owner in (checkpoint, sys.modules.get("torch.distributed._composable.checkpoint_activation")):
            generator = getattr(owner, "_checkpoint_without_reentrant_generator", None)
            if generator is not None:
                self._replace(owner, "_checkpoint_without_reentrant_generator", self._without_reentrant(generator))
        function = getattr(checkpoint, "CheckpointFunction", None)
        if function is not None:
            self._replace(function, "forward", staticmethod(self._reentrant(function.forward)))
        if not compiled:
            before = module.register_module_forward_pre_hook(self._before_forward)
            after = module.register_module_forward_hook(self._after_forward, always_call=True)
            self._undo += [before.remove, after.remove]

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        original = owner.__dict__[name]
        setattr(owner, name, function)
        self._undo.append(lambda: setattr(owner, name, original))

    def _without_reentrant(self, original: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def generator(fn: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            from torch.utils.checkpoint import noop_context_fn

            policy = kwargs.get("context_fn", args[1] if len(args) > 1 else None)
            self._begin(fn, policy not in (None, noop_context_fn))
            try:
                yield from original(fn, *args, **kwargs)
            finally:
                self._end()

        return generator

    def _reentrant(self, original: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(ctx: Any, run_function: Any, *args: Any) -> Any:
            self._begin(run_function, False)
            try:
                return original(ctx, run_function, *args)
            finally:
                self._end()

        return forward

    def _begin(self, function: Any, selective: bool) -> None:
        try:
            self.selective = self.selective or selective
            module = _module_of(function)
            if module is not None:
                self.modules.setdefault(id(module), module)
            self._depths.append(0 if module is None else None)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            self.failure = self.failure or f"{type(error).__name__}: {error}"
            self._depths.append(None)

    def _end(self) -> None:
        self._depths.pop()

    def _before_forward(self, module: Any, _: Any) -> None:
        if self._depths and self._depths[-1] is not None:
            if self._depths[-1] == 0:
                self.modules.setdefault(id(module), module)
            self._depths[-1] += 1

    def _after_forward(self, *_: Any) -> None:
        if self._depths and self._depths[-1]:
            self._depths[-1] -= 1


def _module_of(function: Any) -> Any:
    """The module that is called, or whose method is; None: another function."""
    import torch

    while isinstance(function, functools.partial):
        function = function.func
    owner = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None
