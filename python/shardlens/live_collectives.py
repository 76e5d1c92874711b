"""The collectives that FSDP issues in one step, with when they ran and when the step waited for them. No profiler.

On a CPU a mark is the host's clock. On a GPU it is a timed event on the current stream: two around each collective and one where the compute stream
begins to wait for it. Nothing waits for an event; they are read when a later step finds them complete.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from .live_wrappers import Function, Wrappers

# Functions of torch.distributed: (position of the group among the arguments, kind). FSDP looks them up there at each call.
_FUNCTIONS = {
    "all_gather_single": (2, "all_gather"),  # FSDP of torch 2.15
    "all_gather_into_tensor": (2, "all_gather"),
    "all_gather": (2, "all_gather"),  # FSDP1 on a CPU
    "reduce_scatter_single": (3, "reduce_scatter"),
    "reduce_scatter_tensor": (3, "reduce_scatter"),
    "all_reduce": (2, "all_reduce"),
}


class HostMarks:
    """Marks of the host's clock. `mark()` makes one."""

    mark: Callable[[], Any] = staticmethod(time.perf_counter_ns)

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

    def __init__(self, kind: str, group: str, begin: Any, end: Any, waited: Any = None) -> None:
        self.kind, self.group, self.begin, self.end, self.waited = kind, group, begin, end, waited


class CollectiveLog(Wrappers):
    """Sees the calls between install() and remove(), while `inside` is not 0. Nothing here raises into training.

    A wrapper only notes what is lost otherwise. What was called is in `calls` after take().
    """

    def __init__(self, marks: Any) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.inside = 0  # how many of FSDP's functions are running: calls of others are not FSDP's
        self.marks = marks
        self.mark = marks.mark
        self.notes: list[Any] = []  # tuples: a function, and what it takes
        self._host = isinstance(marks, HostMarks)
        self.blocks = self._host  # calls block the host, so far: nothing is waited for afterwards
        self._reduces = False  # a reduction was issued that the step has not waited for

    def install(self) -> None:
        import torch.distributed as dist

        for name, (position, kind) in _FUNCTIONS.items():
            self.wrap(dist, name, self._around(position, kind))

    def remove(self) -> None:
        self.inside = 0
        super().remove()

    def take(self) -> None:
        """Makes calls of the notes."""
        names: dict[Any, str] = {}
        for make, *what in self.notes:
            make(names, *what)
        self.notes.clear()

    def _around(self, position: int, kind: str) -> Callable[[Function], Function]:
        mark, note, called_it, reduces = self.mark, self.notes.append, self._called, kind != "all_gather"

        def make(original: Function) -> Function:
            def called(*args: Any, **kwargs: Any) -> Any:
                if not self.inside:
                    return original(*args, **kwargs)
                begin = mark()
                work = original(*args, **kwargs)
                end = mark() if work is None else self._end_of(work)
                note((called_it, kind, kwargs["group"] if "group" in kwargs else args[position:position + 1], begin, end, work is None))
                if reduces:
                    self._reduces = True
                return work

            return called

        return make

    def _end_of(self, work: Any) -> Any:
        """A list in which the mark of its end will be. On a device it is not seen."""
        end: list[Any] = []
        self.blocks = False
        if self._host:
            try:
                work.get_future().add_done_callback(lambda _: end.append(self.mark()))
            except Exception:  # noqa: BLE001  a kind of work without a future: its end is not seen
                pass
        return end

    def _called(self, names: dict[Any, str], kind: str, group: Any, begin: Any, end: Any, blocks: bool) -> None:
        if isinstance(group, tuple):  # of positional arguments
            group = group[0] if group else None
        name = names.get(group)
        if name is None:
            name = names[group] = name_of(group)
        if not blocks:
            end = end[0] if end else None
        self.calls.append(Call(kind, name, begin, end, begin if blocks and self._host else None))  # on a CPU the host itself waits in the call

    def wait_for_reductions(self) -> None:
        """The step begins to wait for all reductions so far."""
        if self._reduces and not self.blocks:
            self._reduces = False
            self.notes.append((self._waited_for_reductions, self.mark()))

    def _waited_for_reductions(self, names: dict[Any, str], mark: Any) -> None:
        self.waited(mark, [call for call in self.calls if call.kind != "all_gather"])

    def waited(self, mark: Any, calls: list[Call]) -> None:
        for call in calls:
            if call.waited is None:
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
    whole = _of(calls, marks, origin)
    if len(names) == 1:
        return {**whole, "groups": {names[0]: whole}}
    return {**whole, "groups": {name: _of([call for call in calls if call.group == name], marks, origin) for name in names}}


def _of(calls: list[Call], marks: Any, origin: Any) -> dict[str, Any]:
    busy: int | None = None
    exposed: int | None = None
    if all(call.end is not None for call in calls):
        at = [(marks.between(origin, call.begin), marks.between(origin, call.end)) for call in calls]
        busy = length(at)
        if all(call.waited is not None for call in calls):
            exposed = length((max(begin, waited), end) for (begin, end), waited in zip(at, (marks.between(origin, call.waited) for call in calls)) if end > waited)
    return {"count": len(calls), "busy_ns": busy, "exposed_ns": exposed}
