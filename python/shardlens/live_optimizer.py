"""The optimizer of a recorded program as step settings: AdamW keeps two values for each parameter, SGD with momentum one, without momentum none."""
from collections import Counter

_KNOWN = {"Adam": "adamw", "AdamW": "adamw", "SGD": "sgd"}


def unwrapped(optimizer):
    """The optimizer inside wrappers such as accelerate's AcceleratedOptimizer."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def parts_of(optimizer):
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


def in_backward(model, optimizer):
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


def settings_of(optimizer):
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
    return settings, f"the optimizer {name} keeps {_KEPT[states]} for each parameter, so its step is simulated as that of {alike}"


_KEPT = {0: "no value", 1: "one value", 2: "two values"}


def _alike(states):
    """The step settings and the name of an optimizer with so many values for each parameter."""
    if states == 2:
        return {"optimizer": "adamw"}, "AdamW"
    return {"optimizer": "sgd", "momentum": 0.9 if states else 0.0}, "SGD with momentum" if states else "SGD"


def _settings_of_several(name, parts):
    """The same of an object that is several optimizers of different kinds, or none of torch.optim."""
    states = states_of(parts)
    kinds = ", ".join(sorted({type(each).__name__ for each in parts}))
    inside = f"{name}, which has {kinds}," if parts else f"{name}, which is none of torch.optim,"
    if states is None or states > 2:
        return {"optimizer": "adamw"}, f"the optimizer {inside} is simulated as AdamW, with two values for each parameter"
    settings, alike = _alike(states)
    return settings, f"the optimizer {inside} keeps {_KEPT[states]} for most parameters, so its step is simulated as that of {alike}"


def states_of(parts):
    """How many values the optimizers keep for most elements of the parameters; None: none has stepped."""
    elements = Counter()
    for optimizer in parts:
        for parameter, state in optimizer.state.items():
            kept = sum(1 for value in state.values() if getattr(value, "shape", None) == parameter.shape and parameter.dim() > 0)
            elements[kept] += parameter.numel()
    return max(elements, key=elements.get) if elements else None
