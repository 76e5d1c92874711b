"""Finds units of FSDP2 whose hooks did not run although the program trained them: a compiled wrapper called the modules past them.

Hooks run where a module is called. A wrapper that calls a compiled `forward` instead leaves them out. Without the root's hooks, each unit inside
becomes a root of its own, and no unit knows which one comes next.
"""
from __future__ import annotations

from typing import Any

from .live_units import clean_name, fsdp2_units

REMEDY = "compile in place, `module.compile()`, before fully_shard"


class TrainedUnits:
    """The units of a model, and how often their parameters had been changed when the recording began."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._units = fsdp2_units(model)
        self._before = [_changes(unit) for unit in self._units]

    def bypassed(self, log: Any) -> str | None:
        """A sentence about the units whose hooks did not run; None: all ran, or nothing was trained."""
        if "pre_forward" in log.missing:
            return None
        called = {row[1] for row in log.rows if row[0] == "pre_forward"}
        trained = {unit.name for unit, before in zip(self._units, self._before) if _changes(unit) != before}
        outer = _outer_without_hooks(self._model)
        missed = (trained - called) | outer
        units = trained | outer
        if not missed or not trained:
            return None
        what = "nothing" if outer or missed == units else f"nothing of {', '.join(sorted(missed)[:3])}"
        return f"FSDP's hooks did not run in {len(missed)} of {len(units)} units: {what} is prefetched; {REMEDY}"


def _changes(unit: Any) -> Any:
    """How often the optimizer and others changed the unit's parameters in place. A step without gradients changes none."""
    return sum(parameter.sharded_param._version for parameter in unit.group.fsdp_params)


def _outer_without_hooks(model: Any) -> Any:
    """Modules of fully_shard inside which a unit became a root: PyTorch makes a root of the outermost module whose hook runs first."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:  # a torch without distributed
        return set()
    states = {name: module._get_fsdp_state() for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    roots = [name for name, state in states.items() if getattr(state, "_is_root", None)]
    return {clean_name(outer) for outer, state in states.items()
            if getattr(state, "_is_root", True) is None and any(outer == "" or name.startswith(outer + ".") for name in roots if name != outer)}
