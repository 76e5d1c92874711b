"""The part that all clients share: it records and watches a loop that calls begin(), step() and end()."""
from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from ..live_watch import Watch
from ..recorder import Recorder, record
from ..shown import quoted

_SETTINGS = ("accumulate", "memory", "stacks", "force")  # of shardlens.record, that are passed on


class Session:
    """Records `steps` steps of a loop into `directory`, and writes a line of figures for one step in `watch`.

    directory   of the recording; None: only watch.
    warmup      steps before the recording; None: until no rank compiles anything any more.
    watch       one step in so many is watched; None: none.
    log, tensorboard, opentelemetry   those of shardlens.watch.
    settings    accumulate, memory, stacks and force of shardlens.record.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, warmup: int | None = None, steps: int = 3, watch: int | None = None, log: Any = None,
                 tensorboard: Any = None, opentelemetry: Any = None, **settings: Any) -> None:
        if directory is None and watch is None:
            raise ValueError("give a directory to record into, watch=N for a line of figures every N steps, or both")
        if watch is not None and (not isinstance(watch, int) or watch < 1):
            raise ValueError(f"watch={watch!r}, expected a number of steps, at least 1: one step in so many is watched")
        if steps < 1 or (warmup is not None and warmup < 1):
            raise ValueError(f"steps={steps}, warmup={warmup}: expected at least 1, because torch.profiler needs a step to start")
        unknown = [name for name in settings if name not in _SETTINGS or directory is None]
        if unknown:
            known = f"expected {', '.join(_SETTINGS)}" if directory is not None else "it is for recordings, and there is no directory"
            raise TypeError(f"unexpected argument {quoted(unknown[0])}: {known}")
        self._directory, self._warmup, self._steps, self._settings = directory, warmup, steps, settings
        self._every, self._outputs = watch, {"log": log, "tensorboard": tensorboard, "opentelemetry": opentelemetry}
        self.recorder: Recorder | None = None  # while it records
        self.watch: Watch | None = None

    def begin(self, model: Any, optimizer: Any = None) -> None:
        """The loop begins. `model`: the outermost sharded one. A loop that begins again is not recorded again, but watched."""
        if self.recorder is not None:
            self.end()
        if self._every is not None:
            self.watch = Watch(model, self._every, **self._outputs)
        if self._directory is not None:
            self.recorder = record(self._directory, model=model, optimizer=optimizer, warmup=self._warmup, steps=self._steps, **self._settings)
            self._directory = None
            self.recorder.__enter__()
            atexit.register(self.end)  # of a loop that ends by an exception, which no callback gets

    def step(self, loss: Any = None) -> None:
        """An optimizer step has ended."""
        if self.watch is not None:
            self.watch.end_step()
        if self.recorder is not None:
            self.recorder.step(loss)
            if self.recorder.finished:
                self._stop_recording()
        if self.watch is not None:
            self.watch.begin_step()  # inside of the recorder's step, so that both have the same collectives

    def end(self) -> None:
        """The loop has ended. What was recorded is written; a recording that is not complete says so."""
        self._stop_recording()
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.close()

    def _stop_recording(self) -> None:
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            atexit.unregister(self.end)
            recorder.__exit__(None, None, None)


def outermost(model: Any) -> Any:
    """The DistributedDataParallel or FullyShardedDataParallel around a model, or the model: callbacks get the one inside."""
    import gc

    from torch.nn.parallel import DistributedDataParallel

    wrappers: tuple[type, ...] = (DistributedDataParallel,)
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        wrappers += (fsdp.FullyShardedDataParallel,)
    if isinstance(model, wrappers):
        return model
    holders: list[Any] = [model]
    for _ in range(3):  # its dict of modules, the wrapper's dict of attributes, the wrapper
        # type() and not isinstance(): an object of the program may do anything when it is asked for its class.
        found = [each for each in gc.get_referrers(*holders) if each is not holders and issubclass(type(each), (dict, *wrappers))]
        for each in found:
            if issubclass(type(each), wrappers) and each.module is model:
                return each
        holders = found or [model]
    return model


def sharded_root(model: Any) -> Any:
    """The module to which `fully_shard` was applied last, where only a part of the model is sharded; else the model.

    A LightningModule's own forward is never called, so its hooks say nothing, and PyTorch names units after the outermost sharded module.
    """
    from ..live_units import fsdp2_units, is_a

    units = fsdp2_units(model)
    if not units or is_a(model, "FSDPModule"):
        return model
    root = min((module for unit in units for module in unit.modules), key=lambda module: -sum(1 for _ in module.modules()))
    inside = {id(module) for module in root.modules()}
    return root if all(id(module) in inside for unit in units for module in unit.modules) else model
