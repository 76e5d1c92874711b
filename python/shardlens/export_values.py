"""Values of small tensors on FakeTensorMode.

Fake tensors have shapes and no values. Code that makes a mask, counts tokens per expert or asks how long a tensor is needs some values, all of
which follow from constants (arange, zeros, …) or from the declared routing. They are computed here on small real tensors next to the fake ones.
"""
from __future__ import annotations

import math
from typing import Any

MOST_ELEMENTS = 1 << 24  # of integers and booleans
MOST_FLOATS = 1 << 16

_FACTORIES = ("arange", "zeros", "ones", "full", "scalar_tensor", "linspace", "eye", "tril_indices", "triu_indices", "logspace")


class Unknown(RuntimeError):
    """An operator's result depends on values that are not known."""


def _key(tensor: Any) -> Any:
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


class Values:
    """The known values of fake tensors, by their place in memory. Keeps every storage that it has values of."""

    def __init__(self, experts: tuple[int, int] | None = None) -> None:
        self.experts = experts  # (count, chosen per token) or None
        self.routed = False  # the declared routing was used
        self._known: dict[Any, Any] = {}  # storage: {place: real tensor}
        self._storages: list[Any] = []

    def clear(self) -> None:
        self._known.clear()
        self._storages.clear()

    def of(self, tensor: Any) -> Any:
        from torch._subclasses.fake_tensor import FakeTensor

        if not isinstance(tensor, FakeTensor):
            return tensor
        if tensor.constant is not None:
            return tensor.constant
        return self._known.get(tensor.untyped_storage()._cdata, {}).get(_key(tensor))

    def set(self, tensor: Any, real: Any) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._storages.append(storage)
        self._known.setdefault(storage._cdata, {})[_key(tensor)] = real

    def forget(self, tensor: Any) -> None:
        self._known.pop(tensor.untyped_storage()._cdata, None)

    def wanted(self, func: Any, tensors: Any) -> bool:
        """Whether the operator's values follow from known ones."""
        import torch

        if torch.Tag.nondeterministic_seeded in func.tags:
            return False
        if tensors:
            return all(self.of(t) is not None for t in tensors)
        return func._schema.name.removeprefix("aten::") in _FACTORIES

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result on the known values."""
        import torch
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.utils._pytree import tree_map_only

        args, kwargs = tree_map_only(torch.Tensor, self.of, (args, kwargs))
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        with unset_fake_temporarily(), torch.no_grad():
            return func(*args, **kwargs)

    @staticmethod
    def is_small(out: Any) -> bool:
        """Whether the values of a result are kept."""
        import torch
        from torch.utils._pytree import tree_leaves

        tensors = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        return all(t.numel() <= (MOST_FLOATS if t.dtype.is_floating_point else MOST_ELEMENTS) and not t.is_complex() for t in tensors)

    def note(self, out: Any, real: Any) -> None:
        """Keeps the values of a result."""
        import torch
        from torch.utils._pytree import tree_leaves

        for fake, value in zip(tree_leaves(out), tree_leaves(real)):
            if isinstance(fake, torch.Tensor) and isinstance(value, torch.Tensor):
                self.set(fake, value)

    def route(self, name: str, args: Any, out: Any) -> None:
        """The declared routing: each expert is chosen equally often. Applies to a choice of the best among as many as there are experts."""
        import torch
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        if self.experts is None or name not in ("topk", "argmax", "max"):
            return
        count, chosen = self.experts
        scores = args[0]
        if scores.dim() == 0 or scores.shape[-1] != count:
            return
        picks = out if name == "argmax" else out[1] if isinstance(out, (tuple, list)) and len(out) > 1 else None
        if picks is None or math.prod(picks.shape) != math.prod(scores.shape[:-1]) * chosen:
            return
        with unset_fake_temporarily():
            real = torch.arange(picks.numel()).remainder(count).reshape(picks.shape)
        self.set(picks, real)
        self.routed = True
