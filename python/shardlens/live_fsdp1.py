"""Records what FSDP1 does with each unit, for ActionLog, by wrappers around the functions of torch.distributed.fsdp._runtime_utils that its hooks call.

They are functions of a module that look each other up there, so they are replaced in that module until the recording ends.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .live_units import fsdp1_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from .live_actions import ActionLog
    from .live_wrappers import Function, Wrappers


def handles(model: Any) -> dict[int, str]:
    """The names of the model's units by the id of their handle. Other instances of the process are not the model's."""
    return {id(module._handle): name for name, module in fsdp1_units(model) if getattr(module, "_handle", None) is not None}


def wrap(wrappers: Wrappers, function: str, make: Callable[[Function], Function]) -> bool:
    """Wraps a function that FSDP1's hooks call. False: this version of PyTorch does not have it."""
    from torch.distributed.fsdp import _runtime_utils, fully_sharded_data_parallel

    original = getattr(_runtime_utils, function, None)
    if original is None:
        return False
    for module in (_runtime_utils, fully_sharded_data_parallel):  # the second imports some by name
        if getattr(module, function, None) is original:
            wrappers.wrap(module, function, make)
    return True


def install(log: ActionLog, model: Any) -> None:
    """Wraps what FSDP1 instances of the model call."""
    names = handles(model)
    if not names:
        return
    made = {
        "_pre_forward": lambda call: _hook(log, call, names, 1, "pre_forward"),
        "_post_forward": lambda call: _hook(log, call, names, 1, "post_forward"),
        "_pre_backward_hook": lambda call: _hook(log, call, names, 2, "pre_backward"),
        "_post_backward_hook": lambda call: _hook(log, call, names, 1, "grads_ready"),
        "_prefetch_handle": lambda call: log.caused(call, lambda state, handle, mode: "backward_prefetch" if mode.name == "BACKWARD" else "forward_prefetch"),
        "_unshard": lambda call: _unshard(log, call, names),
        "_reshard": lambda call: _reshard(log, call, names),
        "_reduce_grad": lambda call: _reduce(log, call, names),
        "_reduce_grad_no_shard": lambda call: _reduce(log, call, names)}
    log.missing += [function for function, make in made.items() if not wrap(log, function, make)]


def gathers(handle: Any) -> bool:
    """Whether _unshard() of a unit with this handle is a collective: not if the parameters are whole already."""
    return bool(handle.uses_sharded_strategy and handle.needs_unshard())


def _hook(log: ActionLog, call: Any, names: Any, position: int, hook: str) -> Any:
    """A hook whose argument number `position` is its handle."""

    def before(*args: Any) -> Any:
        name = names.get(id(args[position]))
        if name is not None:
            log.note((log.begin_hook, 0, 0, name, None))
        return name

    def after(name: str, start: int, end: int) -> None:
        log.note((log.end_hook, start, end, hook, None))

    return log.around(call, before, after)


def _unshard(log: ActionLog, call: Any, names: Any) -> Any:
    def gathered(start: int, end: int, name: str, _: Any) -> None:
        log.add("all_gather", name, "all_gather", "gathered", "shard", start, end)

    def before(state: Any, handle: Any, *_: Any) -> Any:
        name = names.get(id(handle))
        return name if name is not None and gathers(handle) else None

    return log.around(call, before, lambda name, start, end: log.note((gathered, start, end, name, None)))


def _reshard(log: ActionLog, call: Any, names: Any) -> Any:
    def resharded(start: int, end: int, name: str, _: Any) -> None:
        log.add("use_shard", name, "compute", None, "none", start, end, "own")
        log.add("free", name, "compute", "unsharded", "none", start, end, "own")

    def before(state: Any, handle: Any, free: Any, *_: Any) -> Any:
        name = names.get(id(handle))
        return name if free and name is not None and handle.uses_sharded_strategy and not handle.needs_unshard() else None

    return log.around(call, before, lambda name, start, end: log.note((resharded, start, end, name, None)))


def _reduce(log: ActionLog, call: Any, names: Any) -> Any:
    def reduced(start: int, end: int, name: str, handle: Any) -> None:
        shards = handle.uses_sharded_strategy
        log.reduced(name, shards, not shards or handle._sharding_strategy.name in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"), start, end)

    def before(state: Any, handle: Any) -> Any:
        name = names.get(id(handle))
        return None if name is None else (name, handle)

    return log.around(call, before, lambda seen, start, end: log.note((reduced, start, end, *seen)))
