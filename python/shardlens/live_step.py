"""What one watched step issues: its collectives, which unit each gather is of, and where the compute stream waits for them.

Wrappers are around the functions of FSDP that issue collectives or wait for them, and around those collectives, for the watched step only.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from . import live_fsdp1
from .live_collectives import Call, CollectiveLog
from .live_units import fsdp2_units, unwrap_ddp


class Units:
    """The units of a model, found once. `unseen`: collectives of this model that Python does not issue, or None."""

    def __init__(self, model: Any) -> None:
        self.fsdp2 = fsdp2_units(model)
        self.fsdp1 = {} if self.fsdp2 else live_fsdp1.handles(model)  # names by the id of the handle
        self.unseen = None if unwrap_ddp(model)[1] is None else "DDP's buckets"


class StepLog(CollectiveLog):
    """The collectives of FSDP's functions between install() and remove(). `gathers`: how often each unit was gathered, after take()."""

    def __init__(self, units: Units, marks: Any) -> None:
        super().__init__(marks)
        self.gathers: Counter[str] = Counter()
        self._units = units
        self._active = True
        self._last: dict[str, list[Call]] = {}  # calls of the last gather of a unit

    def install(self) -> None:
        super().install()
        for unit in self._units.fsdp2:
            self.wrap(unit.group, "unshard", self._unshard(unit))
            self.wrap(unit.group, "wait_for_unshard", self._wait(unit))
            self.wrap(unit.group, "post_backward", self._reduce)
        if self._units.fsdp1:
            live_fsdp1.wrap(self, "_unshard", self._unshard_handle)
            for function in ("_reduce_grad", "_reduce_grad_no_shard"):
                live_fsdp1.wrap(self, function, self._reduce)

    def remove(self) -> None:
        self._active = False
        super().remove()

    def _gathered(self, names: Any, unit: str, calls: int) -> None:
        self.gathers[unit] += 1
        self._last[unit] = self.calls[-calls:] if calls else []

    def _waited(self, names: Any, unit: str, mark: Any) -> None:
        self.waited(mark, self._last.get(unit, []))

    def _unshard(self, unit: Any) -> Any:
        group, name, notes, gathered = unit.group, unit.name, self.notes, self._gathered
        is_collective = getattr(group.mesh_info, "shard_mesh_size", 1) > 1  # on one rank it is not
        _ = group._all_gather_result  # a version without it is refused here, not while it trains

        def make(call: Any) -> Callable[..., Any]:
            def unshard(*args: Any, **kwargs: Any) -> Any:
                if not self._active or group._all_gather_result is not None:
                    return call(*args, **kwargs)
                first = len(notes)
                self.inside += 1
                try:
                    return call(*args, **kwargs)
                finally:
                    self.inside -= 1
                    if is_collective and group._all_gather_result is not None:
                        notes.append((gathered, name, len(notes) - first))

            return unshard

        return make

    def _wait(self, unit: Any) -> Any:
        group, name, note, waited, mark = unit.group, unit.name, self.notes.append, self._waited, self.mark

        def make(call: Any) -> Callable[..., Any]:
            def wait_for_unshard(*args: Any, **kwargs: Any) -> Any:
                if not self.blocks and self._active and group._all_gather_result is not None:
                    note((waited, name, mark()))
                return call(*args, **kwargs)

            return wait_for_unshard

        return make

    def _reduce(self, call: Any) -> Callable[..., Any]:
        def reduces(*args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return call(*args, **kwargs)
            self.wait_for_reductions()  # FSDP has one at a time
            self.inside += 1
            try:
                return call(*args, **kwargs)
            finally:
                self.inside -= 1

        return reduces

    def _unshard_handle(self, call: Any) -> Callable[..., Any]:
        """Of FSDP1."""

        def unshard(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return call(state, handle, *args, **kwargs)
            self._note_gather(handle)
            self.inside += 1
            try:
                return call(state, handle, *args, **kwargs)
            finally:
                self.inside -= 1

        return unshard

    def _note_gather(self, handle: Any) -> None:
        try:
            name = self._units.fsdp1.get(id(handle))
            if name is not None and live_fsdp1.gathers(handle):
                self.notes.append((self._gathered, name, 0))
        except Exception:  # noqa: BLE001  another version of FSDP1: its gathers are not counted, and training goes on
            self._units.fsdp1.clear()
