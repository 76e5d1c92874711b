"""The collectives that FSDP issues in one step, with when they ran and when the step waited for them. No profiler.

On a CPU a mark is the host's clock. On a GPU it is a timed event on the current stream: two around each collective and one where the compute stream
begins to wait for it. Nothing waits for an event; they are read when a later step finds them complete.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

# Functions of torch.distributed: (position of the group among the arguments, kind). FSDP looks them up there at each call.
_FUNCTIONS = {
    "all_gather_single": (2, "all_gather"),  # FSDP of torch 2.15
    "all_gather_into_tensor": (2, "all_gather"),
    "_all_gather_base": (2, "all_gather"),
    "all_gather": (2, "all_gather"),  # FSDP1 on a CPU
    "reduce_scatter_single": (3, "reduce_scatter"),
    "reduce_scatter_tensor": (3, "reduce_scatter"),
    "_reduce_scatter_base": (3, "reduce_scatter"),
    "all_reduce": (2, "all_reduce"),
}


class HostMarks:
    """Marks of the host's clock."""

    def mark(self) -> Any:
        return time.perf_counter_ns()

    def complete(self, mark: Any) -> bool:
        return True

    def between(self, first: Any, second: Any) -> int:
        """Nanoseconds from one to the other."""
        return int(second - first)

    def memory(self) -> int:
        """The largest number of bytes that the process has had."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux has KiB


class DeviceMarks:
    """Marks of a CUDA device: events that its streams record."""

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def complete(self, mark: Any) -> bool:
        return bool(mark.query())

    def between(self, first: Any, second: Any) -> int:
        return int(round(first.elapsed_time(second) * 1e6))

    def memory(self) -> int:
        """The largest number of bytes that the caching allocator has had in use."""
        import torch

        return int(torch.cuda.max_memory_allocated())


class Call:
    """A collective. `begin`, `end`: marks around it; `waited`: the mark where the step began to wait for it, None if that was not seen."""

    __slots__ = ("kind", "group", "begin", "end", "waited")

    def __init__(self, kind: str, group: str, begin: Any) -> None:
        self.kind, self.group, self.begin = kind, group, begin
        self.end: Any = None
        self.waited: Any = None


class CollectiveLog:
    """Sees the calls between install() and remove(), while `inside` is not 0. Nothing here raises into training; `failure` has the first fault."""

    def __init__(self, marks: Any) -> None:
        self.calls: list[Call] = []
        self.inside = 0  # how many of FSDP's functions are running: calls of others are not FSDP's
        self.failure: str | None = None
        self.marks = marks
        self._host = isinstance(marks, HostMarks)
        self._removed = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        import torch.distributed as dist

        for name, (position, kind) in _FUNCTIONS.items():
            original = getattr(dist, name, None)
            if original is not None:
                self._replace(dist, name, original, self._around(original, position, kind))

    def _replace(self, owner: Any, name: str, original: Any, wrapped: Any) -> None:
        setattr(owner, name, wrapped)
        self._undo.append(lambda: setattr(owner, name, original) if getattr(owner, name) is wrapped else None)

    def remove(self) -> None:
        self._removed = True
        while self._undo:
            self._undo.pop()()

    def _around(self, original: Callable[..., Any], position: int, kind: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self._removed or not self.inside:
                return original(*args, **kwargs)
            call = None
            try:
                group = kwargs.get("group", args[position] if len(args) > position else None)
                call = Call(kind, name_of(group), self.marks.mark())
            except Exception as error:  # noqa: BLE001  whatever it is, training goes on
                self._fail(error)
            result = original(*args, **kwargs)
            if call is not None:
                self._issued(call, result)
            return result

        return called

    def _issued(self, call: Call, work: Any) -> None:
        try:
            if work is None:
                call.end = self.marks.mark()
                call.waited = call.begin if self._host else None  # the host itself waits in the call
            elif self._host:
                work.get_future().add_done_callback(lambda _: setattr(call, "end", self.marks.mark()))
            self.calls.append(call)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"

    def wait_for(self, calls: Iterable[Call]) -> None:
        """The step begins to wait for these calls, if it did not before."""
        calls = [call for call in calls if call.waited is None]
        if calls:
            mark = self.marks.mark()
            for call in calls:
                call.waited = mark


def name_of(group: Any) -> str:
    """What PyTorch calls the process group: its description, or its number."""
    import torch.distributed as dist

    group = dist.group.WORLD if group is None else group
    return str(getattr(group, "group_desc", "") or group.group_name)


def length(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union."""
    total, until = 0, None
    for begin, end in sorted(intervals):
        if until is None or begin > until:
            total, until = total + max(0, end - begin), end
        elif end > until:
            total, until = total + end - until, end
    return total


def figures(calls: list[Call], marks: Any, origin: Any) -> dict[str, Any]:
    """Counts, busy and exposed nanoseconds: of all calls, and "groups" by name. Times are None where a mark of a call is missing."""
    names = list(dict.fromkeys(call.group for call in calls))
    return {**_of(calls, marks, origin), "groups": {name: _of([call for call in calls if call.group == name], marks, origin) for name in names}}


def _of(calls: list[Call], marks: Any, origin: Any) -> dict[str, Any]:
    busy: int | None = None
    exposed: int | None = None
    if all(call.end is not None for call in calls):
        at = [(marks.between(origin, call.begin), marks.between(origin, call.end)) for call in calls]
        busy = length(at)
        if all(call.waited is not None for call in calls):
            exposed = length((max(begin, waited), end) for (begin, end), waited in zip(at, (marks.between(origin, call.waited) for call in calls)) if end > waited)
    return {"count": len(calls), "busy_ns": busy, "exposed_ns": exposed}
