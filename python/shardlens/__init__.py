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
from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # see program.py
if TYPE_CHECKING:  # the names below, for type checkers
    from typing import Any

    from .program import ShardlensError as ShardlensError
    from .recorder import Recorder as Recorder
    from .recorder import record as record
    from .run import Run as Run
    from .run import advise as advise
    from .run import open as open  # noqa: A004
    from .run import search as search
    from .run import simulate as simulate

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
__all__ = ["__version__", *_NAMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f".{_NAMES[name]}", __name__), name)
    raise AttributeError(f"module 'shardlens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
