"""Shardlens for Python: record a PyTorch training run, and ask the program `shardlens` about it.

    import shardlens

    with shardlens.record("run", model=model, optimizer=optimizer) as rec:
        for batch in data:
            ...                     # forward, backward, optimizer.step()
            rec.step(loss)

    run = shardlens.open("run")
    run.units(), run.steps(), run.collectives()

Only Python's standard library is imported here; torch and pandas are imported by what needs them.
"""
from importlib import import_module

__version__ = "0.2.0"

# name: the module that has it; imported at its first use.
_NAMES = {
    "record": "recorder",
    "Recorder": "recorder",
    "watch": "live_watch",
    "Watch": "live_watch",
    "open": "run",
    "Run": "run",
    "simulate": "run",
    "search": "run",
    "advise": "run",
    "ShardlensError": "program",
}
__all__ = ["__version__", *_NAMES]


def __getattr__(name):
    if name in _NAMES:
        return getattr(import_module(f".{_NAMES[name]}", __name__), name)
    raise AttributeError(f"module 'shardlens' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
