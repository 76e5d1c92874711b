"""Record the loop of a trainer with one line: it is recorded after compile and warm-up, and watched if that is asked for.

    Trainer(…, callbacks=[TrainerCallback("run")])              transformers, TRL
    lightning.Trainer(…, callbacks=[LightningCallback("run")])
    record_accelerate(accelerator, "run")                       after accelerator.prepare()
    record_loop("run", model=model, optimizer=optimizer)        torchtitan's modules, or your own loop

Each client imports its package when it is first used, and none is needed for the others.
"""
from importlib import import_module
from typing import Any

# name: (module that has it, package that it needs or None)
_NAMES = {
    "TrainerCallback": ("trainer", "transformers"),
    "LightningCallback": ("lightning", "lightning"),
    "record_accelerate": ("accelerate", "accelerate"),
    "record_loop": ("loop", None),
    "Session": ("session", None),
}
__all__ = [*_NAMES]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'shardlens.clients' has no attribute {name!r}")
    module, package = _NAMES[name]
    try:
        return getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if package is None or not (error.name or "").startswith(package):
            raise
        # No ImportError: `from shardlens.clients import …` shows this text as it is.
        raise ModuleNotFoundError(f"shardlens.clients.{name} needs the package {package}: pip install {package}", name=error.name) from None


def __dir__() -> list[str]:
    return sorted(__all__)
