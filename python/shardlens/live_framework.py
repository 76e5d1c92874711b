"""Finds the framework that drives a training loop, so that advice can name its settings."""
from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

_TITAN = "torchtitan.train"


def _runs_torchtitan(modules: Any) -> Any:
    spec = getattr(modules.get("__main__"), "__spec__", None)  # of `python -m torchtitan.train`
    return _TITAN in modules or getattr(spec, "name", None) == _TITAN


def _name(modules: Any) -> Any:
    if _runs_torchtitan(modules):
        return "torchtitan"
    state = modules.get("accelerate.state")
    # Whether an Accelerator was made: transformers imports accelerate without using it.
    if state is None or not state.AcceleratorState._shared_state:
        return None
    # Trainer and its subclasses make an Accelerator of their own.
    return "transformers" if "transformers.trainer" in modules else "accelerate"


def framework(modules: Any = None) -> dict[str, Any] | None:
    """The name and version for run.json, or None: PyTorch alone. Never raises."""
    try:
        name = _name(sys.modules if modules is None else modules)
        if name is None:
            return None
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # run from its sources
            version = None
        return {"name": name, "version": version}
    except Exception:  # noqa: BLE001: another version of a framework
        return None
