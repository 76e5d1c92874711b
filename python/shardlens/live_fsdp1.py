"""Records what FSDP1 does with each unit, for ActionLog, by wrappers around the functions of torch.distributed.fsdp._runtime_utils that its hooks call.

They are functions of a module that look each other up there, so they are replaced in that module until the recording ends.
"""
from __future__ import annotations

from typing import Any

from .live_units import fsdp1_units


def install(log: Any, model: Any) -> None:
    """Wraps what FSDP1 instances of the model call. Other instances of the process run as always."""
    names = {id(module._handle): name for name, module in fsdp1_units(model) if getattr(module, "_handle", None) is not None}
    if not names:
        return
    from torch.distributed.fsdp import _runtime_utils, fully_sharded_data_parallel

    def wrap(function: Any, make: Any) -> None:
        original = getattr(_runtime_utils, function, None)
        if original is None:
            log.missing.append(function)
            return
        wrapped = make(original)
        for module in (_runtime_utils, fully_sharded_data_parallel):  # the second imports some by name
            if getattr(module, function, None) is original:
                log.replace(module, function, wrapped)

    wrap("_pre_forward", lambda call: _hook(log, call, names, 1, "pre_forward"))
    wrap("_post_forward", lambda call: _hook(log, call, names, 1, "post_forward"))
    wrap("_pre_backward_hook", lambda call: _hook(log, call, names, 2, "pre_backward"))
    wrap("_post_backward_hook", lambda call: _hook(log, call, names, 1, "grads_ready"))
    wrap("_prefetch_handle", lambda call: log.caused(call, lambda state, handle, mode: "backward_prefetch" if mode.name == "BACKWARD" else "forward_prefetch"))
    wrap("_unshard", lambda call: _unshard(log, call, names))
    wrap("_reshard", lambda call: _reshard(log, call, names))
    for function in ("_reduce_grad", "_reduce_grad_no_shard"):
        wrap(function, lambda call: _reduce(log, call, names))


def _hook(log: Any, call: Any, names: Any, position: int, hook: str) -> Any:
    """A hook whose argument number `position` is its handle."""

    def before(*args: Any) -> Any:
        name = names.get(id(args[position]))
        return None if name is None else log.begin_hook(name)

    def after(index: int, start: int, end: int) -> None:
        if index is not None:
            log.end_hook(index, hook, start, end)

    return log.around(call, before, after)


def _unshard(log: Any, call: Any, names: Any) -> Any:
    """A gather, unless the parameters are whole already."""

    def before(state: Any, handle: Any, *_: Any) -> Any:
        name = names.get(id(handle))
        return name if name is not None and handle.uses_sharded_strategy and handle.needs_unshard() else None

    def after(name: str, start: int, end: int) -> None:
        if name is not None:
            log.add("all_gather", name, "all_gather", "gathered", "shard", start, end)

    return log.around(call, before, after)


def _reshard(log: Any, call: Any, names: Any) -> Any:
    def before(state: Any, handle: Any, free: Any, *_: Any) -> Any:
        name = names.get(id(handle))
        return name if free and name is not None and handle.uses_sharded_strategy and not handle.needs_unshard() else None

    def after(name: str, start: int, end: int) -> None:
        if name is not None:
            log.add("use_shard", name, "compute", None, "none", start, end, "own")
            log.add("free", name, "compute", "unsharded", "none", start, end, "own")

    return log.around(call, before, after)


def _reduce(log: Any, call: Any, names: Any) -> Any:
    def before(state: Any, handle: Any) -> Any:
        name = names.get(id(handle))
        shards = handle.uses_sharded_strategy
        return None if name is None else (name, shards, not shards or handle._sharding_strategy.name in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"))

    def after(seen: Any, start: int, end: int) -> None:
        if seen is not None:
            log.reduced(*seen, start, end)

    return log.around(call, before, after)
