"""Figures of one step in every N while a program trains, without a trace: a line in its log, scalars for TensorBoard and OpenTelemetry.

    watch = shardlens.watch(model, every=100)
    for batch in data:
        ...                         # forward, backward, optimizer.step()
        watch.step()
    watch.assert_overlap(min_hidden=0.9)

In other steps the model has no wrappers of it. Training is never changed, and if anything in here fails, one warning says what.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .live_collectives import DeviceMarks, HostMarks, figures
from .live_rank_times import SLOTS, RankTimes, rank_and_world
from .live_step import StepLog, Units
from .shown import complain, shown, warn

_count = 0  # of the watches of this process; ranks make them in the same order


class Watch:
    """What `watch` returns. `last`: the figures of the newest watched step that is complete, or None (`shardlens docs python`)."""

    def __init__(self, model: Any, every: int = 100, *, log: Callable[[str], None] | None = None, tensorboard: Any = None, opentelemetry: Any = None) -> None:
        global _count
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"watch: every={every!r}, expected a number of steps, at least 1")
        if not hasattr(model, "named_modules"):
            raise TypeError(f"watch: model is of type {type(model).__name__}, expected the sharded torch.nn.Module: watch(model, every=100)")
        for name, target, method, example in (("tensorboard", tensorboard, "add_scalar", "a SummaryWriter of torch.utils.tensorboard"),
                                              ("opentelemetry", opentelemetry, "create_gauge", "a Meter of OpenTelemetry: get_meter('training')"),
                                              ("log", log, "__call__", "a function of a line of text, such as logger.info")):
            if target is not None and not hasattr(target, method):
                raise TypeError(f"watch: {name} is of type {type(target).__name__}, expected {example}")
        _count += 1
        self.last: dict[str, Any] | None = None
        self._model, self._every, self._log = model, every, log or complain
        self._outputs = [make(target) for make, target in ((_tensorboard, tensorboard), (_opentelemetry, opentelemetry)) if target is not None]
        self._name = f"shardlens/watch/{_count}"
        self._step = 0
        self._failed = False
        self._units: Units | None = None  # found after the first step, before any that is watched
        self._seen: StepLog | None = None  # of the step that runs, if it is watched
        self._ranks: Any = None
        self._pending: list[dict[str, Any]] = []  # watched steps of this rank that are not complete, or whose figures other ranks have not sent
        self._began = 0
        self._marks: Any = None
        self._origin: Any = None
        self.begin_step()

    def step(self) -> None:
        """An optimizer step has ended, and the next one begins."""
        self.end_step()
        self.begin_step()

    def end_step(self) -> None:
        """The step has ended. What follows until begin_step() is of no step."""
        now = time.perf_counter_ns()
        self._guarded(self._end, now)

    def begin_step(self) -> None:
        """The next step begins."""
        self._guarded(self._begin)
        self._began = time.perf_counter_ns()

    def close(self) -> None:
        """Reports what is complete, and leaves the model as it was. The watch ends."""
        self._guarded(self._report, True)
        self._give_back()
        self._failed = True  # no further step

    def assert_overlap(self, min_hidden: float) -> None:
        """Raises AssertionError unless compute hid at least this part of the communication (0 to 1) in the newest watched step. Waits for the device."""
        import sys

        if not 0 <= min_hidden <= 1:
            raise ValueError(f"assert_overlap: min_hidden={min_hidden}, expected a part from 0 to 1, such as 0.9")
        if not self._failed and "torch" in sys.modules and isinstance(self._marks, DeviceMarks):
            sys.modules["torch"].cuda.synchronize()
        for each in self._pending:
            self._guarded(self._complete, each)
        # If other ranks have not sent their figures of a step, this rank's own are there.
        seen = next((self._figures(each, []) for each in reversed(self._pending) if "own" in each), self.last)
        if seen is None:
            raise AssertionError(f"no step was watched: watch(model, every={self._every}) watches step {self._every} first, and {self._step} steps ended")
        hidden = seen["hidden"]
        if hidden is None:
            raise AssertionError(f"step {seen['step']} has no measured communication of which a part could be hidden: {line(seen)}")
        if hidden < min_hidden:
            raise AssertionError(f"{100 * hidden:.1f} % of the communication was hidden, expected at least {100 * min_hidden:.1f} %: {line(seen)}")

    def _guarded(self, call: Callable[..., object], *args: Any) -> None:
        if self._failed:
            return
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._give_back()
        warn(f"shardlens.watch: the watch stopped, training goes on: {reason}", stacklevel=4)

    def _give_back(self) -> None:
        seen, self._seen = self._seen, None
        if seen is not None:
            seen.remove()

    def _begin(self) -> None:
        if self._step == 0:
            return
        if self._units is None:
            self._units, self._ranks = Units(self._model), RankTimes(self._name)
        if self._step % self._every != 0:
            return
        import torch

        self._marks = DeviceMarks() if torch.cuda.is_initialized() else HostMarks()  # is_available() asks the driver, which takes milliseconds
        self._seen = StepLog(self._units, self._marks)
        self._seen.install()
        self._origin = self._marks.mark()

    def _end(self, now: int) -> None:
        seen = self._seen
        if seen is not None:
            seen.wait_for_reductions()
            end = self._marks.mark()
            self._give_back()
        if self._pending:
            self._report()
        if seen is not None:
            self._pending.append({
                "step": self._step, "step_ns": now - self._began, "log": seen, "origin": self._origin, "end": end, "marks": self._marks,
                "memory_bytes": self._marks.memory(), "unseen": self._units and self._units.unseen})
            if self._ranks.rank_count == 1:
                self._report()
        self._step += 1

    def _report(self, closing: bool = False) -> None:
        """Writes about watched steps whose events are complete. Waits for nothing: the others are for a later step, the last one if the watch closes.

        A step's figures are told to rank 0 when the next step has ended, and read there when the one after it has, because by then other ranks have told theirs.
        """
        while self._pending:
            first = self._pending[0]
            if "own" not in first:
                if not self._complete(first):
                    return
                if self._ranks.rank_count > 1 and not closing:
                    return
            ranks = self._ranks.told(first["step"] // self._every)
            if ranks is None:
                if len(self._pending) < SLOTS and not closing:
                    return
                ranks = []  # a rank has stopped, or is far behind
            self.last = self._figures(self._pending.pop(0), ranks)
            if self._ranks.rank == 0:
                self._log(line(self.last))
            for output in self._outputs:
                output(self.last)

    def _complete(self, seen: dict[str, Any]) -> bool:
        """Whether all marks of the step can be read. Then its figures are made, and told to rank 0."""
        if "own" in seen:
            return True
        marks, log = seen["marks"], seen["log"]
        log.take()
        if not marks.complete(seen["end"]) or not all(call.end is None or marks.complete(call.end) for call in log.calls):
            return False
        seen["own"], seen["gathers"] = figures(log.calls, marks, seen["origin"]), dict(log.gathers)
        self._ranks.tell(seen["step"] // self._every, seen["step_ns"], seen["own"]["exposed_ns"])
        return True

    @staticmethod
    def _figures(seen: dict[str, Any], ranks: list[tuple[int, int | None]]) -> dict[str, Any]:
        """The contents of `last`; `ranks`: (step, exposed) of each rank, empty if they are not known."""
        own = seen["own"]
        busy, exposed = own["busy_ns"], own["exposed_ns"]
        return {
            "step": seen["step"], "step_ns": seen["step_ns"], "collectives": own["count"], "busy_ns": busy, "exposed_ns": exposed,
            "hidden": 1 - exposed / busy if busy and exposed is not None else None, "groups": own["groups"], "gathers": seen["gathers"],
            "memory_bytes": seen["memory_bytes"], "straggler": straggler(ranks), "unseen": seen["unseen"]}


def watch(model: Any, every: int = 100, *, log: Callable[[str], None] | None = None, tensorboard: Any = None, opentelemetry: Any = None) -> Watch:
    """Watches one step in `every`. Call step() of what it returns once per optimizer step, on every rank.

    model          the sharded model: after fully_shard or FullyShardedDataParallel. Of DistributedDataParallel, whose buckets compiled code reduces, the
                   collectives are not seen.
    log            what rank 0 calls with the line; by default it goes to stderr. With a logger: logger.info.
    tensorboard    a SummaryWriter, which gets scalars.
    opentelemetry  a Meter of OpenTelemetry, which gets gauges.
    """
    return Watch(model, every, log=log, tensorboard=tensorboard, opentelemetry=opentelemetry)


def straggler(ranks: list[tuple[int, int | None]]) -> dict[str, int] | None:
    """The rank that others waited for, from (step, exposed) nanoseconds of each: the one that waited least, and how much less than the median. None: unknown."""
    waits = [exposed for _, exposed in ranks if exposed is not None]
    if len(waits) < 2 or len(waits) < len(ranks):
        return None
    middle = sorted(waits)[len(waits) // 2]
    slowest = min(range(len(waits)), key=lambda rank: waits[rank])
    return {"rank": slowest, "ahead_ns": middle - waits[slowest]}


def line(seen: dict[str, Any]) -> str:
    """The figures of a step as one line."""
    parts = [f"step {seen['step']}: {_ms(seen['step_ns'])}"]
    if seen["exposed_ns"] is not None and seen["collectives"]:
        parts.append(f"exposed communication {_ms(seen['exposed_ns'])} of {_ms(seen['busy_ns'])}")
    for name, group in seen["groups"].items():
        exposed = "exposed ?" if group["exposed_ns"] is None else f"exposed {_ms(group['exposed_ns'])}"
        parts.append(f"group {name}: {group['count']} collectives, {exposed}")
    if seen["unseen"]:
        parts.append(f"{seen['unseen']} are not seen")
    by_count: dict[int, list[str]] = {}
    for unit, count in seen["gathers"].items():
        by_count.setdefault(count, []).append(unit or "(root)")
    if by_count:
        parts.append("gathers a unit: " + ", ".join(f"{count} × {_shortened(units)}" for count, units in sorted(by_count.items())))
    parts.append(f"peak memory {seen['memory_bytes'] / 2**30:.2f} GiB")
    if seen["straggler"]:
        parts.append(f"others waited for rank {seen['straggler']['rank']} (it waited {_ms(seen['straggler']['ahead_ns'])} less)")
    return shown("shardlens: " + "; ".join(parts))


def _shortened(units: list[str]) -> str:
    return " ".join(units) if len(units) <= 3 else f"{units[0]} … {units[-1]} ({len(units)} units)"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"


def _scalars(seen: dict[str, Any]) -> dict[str, float]:
    """The figures by name, for a chart: milliseconds, fractions, GiB, counts."""
    found = {"step_ms": seen["step_ns"] / 1e6, "memory_gib": seen["memory_bytes"] / 2**30}
    if seen["exposed_ns"] is not None:
        found["exposed_ms"] = seen["exposed_ns"] / 1e6
    if seen["hidden"] is not None:
        found["hidden"] = seen["hidden"]
    for name, group in seen["groups"].items():
        if group["exposed_ns"] is not None:
            found[f"exposed_ms/{name}"] = group["exposed_ns"] / 1e6
    if seen["gathers"]:
        found["gathers_of_a_unit_at_most"] = max(seen["gathers"].values())
    return found


def _tensorboard(writer: Any) -> Callable[[dict[str, Any]], None]:
    def write(seen: dict[str, Any]) -> None:
        for name, value in _scalars(seen).items():
            writer.add_scalar(f"shardlens/{name}", value, seen["step"])

    return write


def _opentelemetry(meter: Any) -> Callable[[dict[str, Any]], None]:
    gauges: dict[str, Any] = {}

    def write(seen: dict[str, Any]) -> None:
        rank = rank_and_world()[0]
        for name, value in _scalars(seen).items():
            name, _, group = name.partition("/")
            gauge = gauges.setdefault(name, None) or meter.create_gauge(f"shardlens.{name}")
            gauges[name] = gauge
            gauge.set(value, {"rank": rank, **({"group": group} if group else {})})

    return write
