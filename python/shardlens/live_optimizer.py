"""The optimizer of a recorded program as step settings, and the bytes that it keeps for each parameter on this rank.

AdamW keeps two values for each parameter, SGD with momentum one, SGD without momentum none."""
from __future__ import annotations

from collections import Counter
from typing import Any

from .live_units import clean_name, fsdp1_units, unwrap_ddp

_KNOWN = {"Adam": "adamw", "AdamW": "adamw", "SGD": "sgd"}


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside wrappers such as accelerate's AcceleratedOptimizer and ZeroRedundancyOptimizer."""
    from torch.optim import Optimizer

    while True:
        inside = getattr(optimizer, "optimizer", None)
        if inside is None and isinstance(getattr(optimizer, "optim", None), Optimizer):
            inside = optimizer.optim
        if inside is None:
            return optimizer
        optimizer = inside


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers of torch.optim that it consists of: itself, those of a list, or those that an object of the program's own has."""
    from torch.optim import Optimizer

    optimizer = unwrapped(optimizer)
    inside = getattr(optimizer, "optimizers", None)  # torchtitan's container is an optimizer, too, without a state
    if inside is None and isinstance(optimizer, Optimizer):
        return [optimizer]
    if inside is None:
        inside = optimizer if isinstance(optimizer, (list, tuple)) else list(getattr(optimizer, "__dict__", {}).values())
    elif isinstance(inside, dict):
        inside = list(inside.values())
    return [each for each in map(unwrapped, inside) if isinstance(each, Optimizer)]


def in_backward(model: Any, optimizer: Any) -> Any:
    """The optimizer of a program, where `optimizer` is that which record() was given or None, and a note if it steps in backward or may do so."""
    parameters = list(model.parameters())
    # Of torch.distributed.optim._apply_optimizer_in_backward: a list for each parameter.
    applied = [each for p in parameters for each in getattr(p, "_in_backward_optimizers", ())]
    if applied:
        return applied, "the optimizer steps in backward (_apply_optimizer_in_backward), so its time is that of backward"
    if any(getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters):
        return optimizer, ("parameters have hooks that run when their gradients are complete: if the optimizer steps in them (optimizer in backward), "
                           "its time is that of backward, and its states are taken to be those of the optimizer that record() was given, else AdamW's")
    return optimizer, None


def settings_of(optimizer: Any) -> Any:
    """(step settings, note or None). An optimizer that is neither of the two counts as the one that keeps as many values for each parameter."""
    parts = parts_of(optimizer)
    if len({type(each) for each in parts}) != 1:
        return _settings_of_several(type(unwrapped(optimizer)).__name__, parts)
    optimizer = parts[0]
    name = type(optimizer).__name__
    settings = {"optimizer": _KNOWN.get(name, name)}
    if name == "SGD":
        settings["momentum"] = optimizer.param_groups[0].get("momentum", 0.0)
    if name in _KNOWN:
        return settings, None
    states = states_of(parts)
    if states is None or states > 2:
        return settings, f"the optimizer {name} is simulated as AdamW, with two values for each parameter" + (f"; it keeps {states}" if states else "")
    settings, alike = _alike(states)
    return settings, f"the optimizer {name} keeps {_KEPT[states]} for each parameter, so its step takes as long as that of {alike}"


_KEPT = {0: "no value", 1: "one value", 2: "two values"}


def _alike(states: int) -> Any:
    """The step settings and the name of an optimizer with so many values for each parameter."""
    if states == 2:
        return {"optimizer": "adamw"}, "AdamW"
    return {"optimizer": "sgd", "momentum": 0.9 if states else 0.0}, "SGD with momentum" if states else "SGD"


def _settings_of_several(name: str, parts: Any) -> Any:
    """The same of an object that is several optimizers of different kinds, or none of torch.optim."""
    states = states_of(parts)
    kinds = ", ".join(sorted({type(each).__name__ for each in parts}))
    inside = f"{name}, which has {kinds}," if parts else f"{name}, which is none of torch.optim,"
    if states is None or states > 2:
        return {"optimizer": "adamw"}, f"the optimizer {inside} is simulated as AdamW, with two values for each parameter"
    settings, alike = _alike(states)
    return settings, f"the optimizer {inside} keeps {_KEPT[states]} for most parameters, so its step is simulated as that of {alike}"


def states_of(parts: Any) -> Any:
    """How many values the optimizers keep for most elements of the parameters; None: none has stepped."""
    elements: Counter[Any] = Counter()
    for optimizer in parts:
        for parameter, state in optimizer.state.items():
            kept = sum(1 for value in state.values() if getattr(value, "shape", None) == parameter.shape and parameter.dim() > 0)
            elements[kept] += parameter.numel()
    return max(elements, key=lambda states: elements[states]) if elements else None


def states_by_parameter(model: Any, optimizer: Any) -> Any:
    """([{parameters, elements, bytes}], note or None): what the optimizer keeps on this rank for each parameter that it may train, on the device of the parameter.

    `elements`: of the rank's part of the parameter. A flat parameter of FSDP1 is one row with the names of those in it. None if no optimizer has stepped yet,
    or if it keeps states for tensors that are no parameters of the model.
    """
    model, _ = unwrap_ddp(model)
    names: dict[Any, Any] = {}  # id of a parameter: the names of those in it
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            names.setdefault(id(parameter), (parameter, [clean_name(name)]))
    for prefix, module in fsdp1_units(model):
        handle = getattr(module, "_handle", None)
        if handle is not None and id(handle.flat_param) in names:
            inside = [clean_name(f"{prefix}.{name}" if prefix else name) for name in handle.flat_param._fqns]
            names[id(handle.flat_param)] = (handle.flat_param, inside)
    sizes = dict.fromkeys(names, 0)
    seen: set[Any] = set()
    stepped = False
    for each in parts_of(optimizer):
        for parameter, state in each.state.items():
            if id(parameter) not in names:
                if _size_of(state, None, set()):
                    return None, "the optimizer keeps states for tensors that are no parameters of the model, so memory has those of its kind"
                continue
            stepped = True
            sizes[id(parameter)] += _size_of(state, _local(parameter).device, seen)
    if not stepped:
        return None, None
    return [{"parameters": inside, "elements": _local(parameter).numel(), "bytes": sizes[key]} for key, (parameter, inside) in names.items()], None


def _local(tensor: Any) -> Any:
    """The part of a DTensor that this rank has, else the tensor."""
    return getattr(tensor, "_local_tensor", tensor)


def _size_of(value: Any, device: Any, seen: Any) -> Any:
    """Bytes of the tensors in a state, which may be in lists and dicts, on the device (None: on any); those in `seen` are counted already."""
    import torch

    if isinstance(value, dict):
        return sum(_size_of(each, device, seen) for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_size_of(each, device, seen) for each in value)
    if not isinstance(value, torch.Tensor):
        return 0
    value = _local(value)
    if hasattr(type(value), "__tensor_flatten__"):  # a tensor of several, as of 8 bits with scales
        return sum(_size_of(getattr(value, name), device, seen) for name in value.__tensor_flatten__()[0])
    if (device is not None and value.device != device) or value.numel() == 0:
        return 0
    key = (value.data_ptr(), value.numel())
    if key in seen:
        return 0
    seen.add(key)
    return value.numel() * value.element_size()
