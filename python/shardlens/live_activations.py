"""Counts what autograd keeps for backward in one training step, by module: the activations of the first step, which is not recorded.

The hooks of saved tensors return what they get, so training's numbers are the same.
"""
from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from .live_units import autograd_functions, clean_name, fsdp1_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ActivationLog:
    """Counts saved tensors between install() and remove(). Nothing here raises into training.

    `rows`         [module, saved, recomputed] in the order of the first microbatch's forward: bytes kept from forward to backward, and bytes that
                   an activation checkpoint saves when it runs the forward again. Each storage counts once, for the module that saves it first;
                   parameters, buffers and their views do not count.
    `seconds`      how long the counting took
    `failure`      what went wrong, or None; nothing is counted after it
    """

    def __init__(self, model: Any) -> None:
        self.rows: list[list[Any]] = []
        self.seconds = 0.0
        self.failure: str | None = None
        self._model = model
        self._names = {id(module): clean_name(name) for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
        self._running = [""]  # modules whose forward runs
        self._owned: set[int] = set()  # storages of parameters and buffers
        self._owned_for: tuple[str, ...] | None = None  # the state for which they were found
        self._saved: dict[int, Any] = {}  # storage: a weak reference to it
        self._again: dict[int, Any] = {}
        self._in_backward = self._done = False  # done: a forward after the first backward has begun
        self._undo: list[Any] = []

    def install(self) -> None:
        import torch.utils.checkpoint as checkpoint
        from torch.autograd import graph
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.nn.modules import module

        self._weak = StorageWeakRef
        before = module.register_module_forward_pre_hook(self._before_forward)
        after = module.register_module_forward_hook(self._after_forward, always_call=True)
        self._undo += [before.remove, after.remove]
        self._replace(checkpoint, "_checkpoint_hook", self._seen_checkpoint)
        self._replace(graph, "disable_saved_tensors_hooks", self._standing_aside)
        self._hooks = (self._pack, self._unpack)
        autograd_functions()._push_saved_tensors_default_hooks(*self._hooks)
        self._undo.append(self._pop)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._saved, self._again, self._owned = {}, {}, set()

    def json(self) -> list[Any] | None:
        """The rows for run.json, or None if nothing was counted."""
        if self.failure or not self.rows:
            return None
        return [{"module": module, "saved": saved, "recomputed": again} for module, saved, again in self.rows]

    def _replace(self, owner: Any, name: str, make: Any) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, make(original))
            self._undo.append(lambda: setattr(owner, name, original))

    def _pop(self) -> None:
        if self._is_on_top():
            autograd_functions()._pop_saved_tensors_default_hooks()
        else:
            self.failure = self.failure or "other hooks of saved tensors were left behind"

    def _is_on_top(self) -> bool:
        top = autograd_functions()._top_saved_tensors_default_hooks(True)
        return top is not None and top[0] == self._hooks[0]

    def _seen_checkpoint(self, original: Any) -> Callable[..., Any]:
        """PyTorch's hook of a checkpoint's forward gets what the recomputation will save."""

        def hook(frame: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(frame, *args, **kwargs)
            pack = made.pack_hook

            def seen(tensor: Any) -> Any:
                self._count(tensor, True)
                return pack(tensor)

            made.pack_hook = seen
            return made

        return hook

    def _standing_aside(self, original: Any) -> Callable[..., Any]:
        """torch.func refuses to run while hooks of saved tensors are set, even those of the recorder."""

        @contextlib.contextmanager
        def disabled(*args: Any, **kwargs: Any) -> Iterator[Any]:
            aside = self._is_on_top()
            if aside:
                autograd_functions()._pop_saved_tensors_default_hooks()
            try:
                with original(*args, **kwargs):
                    yield
            finally:
                if aside:
                    autograd_functions()._push_saved_tensors_default_hooks(*self._hooks)

        return disabled

    def _before_forward(self, module: Any, _: Any) -> None:
        self._running.append(self._names.get(id(module), self._running[-1]))

    def _after_forward(self, *_: Any) -> None:
        if len(self._running) > 1:
            self._running.pop()

    def _pack(self, tensor: Any) -> Any:
        import torch

        self._count(tensor, torch._C._current_graph_task_id() != -1)
        return tensor

    def _unpack(self, tensor: Any) -> Any:
        self._in_backward = True
        return tensor

    def _count(self, tensor: Any, again: bool) -> None:
        import torch

        self._done = self._done or (self._in_backward and torch._C._current_graph_task_id() == -1)
        if self.failure or self._done:
            return
        began = time.perf_counter()
        try:
            self._add(tensor, again)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            self.failure = f"{type(error).__name__}: {error}"
        self.seconds += time.perf_counter() - began

    def _add(self, tensor: Any, again: bool) -> None:
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        key = storage._cdata
        for known in (self._saved, self._again) if again else (self._saved,):
            if key in known and not known[key].expired():
                return
        if self._is_owned(key):
            return
        # While there is a weak reference, no other storage gets the address.
        (self._again if again else self._saved)[key] = self._weak(storage)
        module = self._running[-1]
        row = self.rows[-1] if self.rows and self.rows[-1][0] == module else None
        if row is None and self._in_backward:
            row = next((each for each in reversed(self.rows) if each[0] == module), None)
        if row is None:
            row = [module, 0, 0]
            self.rows.append(row)
        row[2 if again else 1] += storage.nbytes()

    def _is_owned(self, key: Any) -> bool:
        """Whether it is the storage of a parameter or buffer. Parameters get new ones when a unit is gathered, so they are read when another module runs."""
        state = tuple(self._running)
        if key not in self._owned and state != self._owned_for:
            self._owned_for = state
            tensors = [*self._model.parameters(), *self._model.buffers()]
            tensors += [module._handle.flat_param for _, module in fsdp1_units(self._model) if getattr(module, "_handle", None) is not None]
            self._owned.update(getattr(each, "_local_tensor", each).untyped_storage()._cdata for each in tensors)
        return key in self._owned
