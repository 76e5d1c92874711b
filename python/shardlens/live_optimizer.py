"""The optimizer of a recorded program as step settings: AdamW keeps two values for each parameter, SGD with momentum one, without momentum none."""
from collections import Counter

_KNOWN = {"Adam": "adamw", "AdamW": "adamw", "SGD": "sgd"}


def unwrapped(optimizer):
    """The optimizer inside wrappers such as accelerate's AcceleratedOptimizer."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def settings_of(optimizer):
    """(step settings, note or None). An optimizer that is neither of the two counts as the one that keeps as many values for each parameter."""
    optimizer = unwrapped(optimizer)
    name = type(optimizer).__name__
    settings = {"optimizer": _KNOWN.get(name, name)}
    if name == "SGD":
        settings["momentum"] = optimizer.param_groups[0].get("momentum", 0.0)
    if name in _KNOWN:
        return settings, None
    states = states_of(optimizer)
    if states is None or states > 2:
        return settings, f"the optimizer {name} is simulated as AdamW, with two values for each parameter" + (f"; it keeps {states}" if states else "")
    settings = {"optimizer": "adamw"} if states == 2 else {"optimizer": "sgd", "momentum": 0.9 if states else 0.0}
    kept = {0: "no value", 1: "one value", 2: "two values"}[states]
    return settings, f"the optimizer {name} keeps {kept} for each parameter, so its step is simulated as that of {'AdamW' if states == 2 else 'SGD' + (' with momentum' if states else '')}"


def states_of(optimizer):
    """How many values the optimizer keeps for most elements of the parameters; None: it has not stepped."""
    elements = Counter()
    for parameter, state in optimizer.state.items():
        kept = sum(1 for value in state.values() if getattr(value, "shape", None) == parameter.shape and parameter.dim() > 0)
        elements[kept] += parameter.numel()
    return max(elements, key=elements.get) if elements else None
