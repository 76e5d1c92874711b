"""Figures of one step in every N while a program trains, without a trace: a line in its log, scalars for TensorBoard and OpenTelemetry.

    watch = shardlens.watch(model, every=100)
    for batch in data:
        ...                         # forward, backward, optimizer.step()
        watch.step()
    watch.assert_overlap(min_hidden=0.9)

In other steps the model has no wrappers of it. Training is never changed, and if anything in here fails, one warning says what.
"""
from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from .live_actions import ActionLog
from .live_collectives import Call, CollectiveLog, DeviceMarks, HostMarks, figures
from .shown import complain, shown, warn

_count = 0  # of the watches of this process; ranks make them in the same order


class _StepLog(ActionLog):
    """The actions of a watched step, and which collectives the compute stream waits for where."""

    def __init__(self, model: Any, collectives: CollectiveLog) -> None:
        self.collectives = collectives
        self._gathers: dict[str, list[Call]] = {}  # of a unit, until it waits for them
        super().__init__(model)
        self.recording = True

    def around(self, call: Any, before: Any, after: Any) -> Any:
        """Also says that the call is FSDP's, so that the collectives inside are."""

        def entered(*args: Any) -> Any:
            self.collectives.inside += 1
            return before(*args)

        def left(seen: Any, start: int, end: int) -> None:
            self.collectives.inside -= 1
            after(seen, start, end)

        return super().around(call, entered, left)

    def _unshard(self, unit: Any) -> Any:
        before, after = super()._unshard(unit)

        def issued(*args: Any) -> Any:
            return before(*args), len(self.collectives.calls)

        def gathered(seen: Any, start: int, end: int) -> None:
            after(seen[0], start, end)
            self._gathers.setdefault(unit.name, []).extend(self.collectives.calls[seen[1]:])

        return issued, gathered

    def _wait(self, unit: Any) -> Any:
        before, after = super()._wait(unit)

        def waits(*args: Any) -> Any:
            self.collectives.wait_for(self._gathers.pop(unit.name, ()))
            return before(*args)

        return waits, after

    def _hook(self, unit: Any, hook: str) -> Any:
        before, after = super()._hook(unit, hook)
        if hook != "grads_ready":
            return before, after

        def reduces(*args: Any) -> Any:
            self.wait_for_reductions()  # FSDP2 has one at a time
            return before(*args)

        return reduces, after

    def wait_for_reductions(self) -> None:
        self.collectives.wait_for(call for call in self.collectives.calls if call.kind != "all_gather")


class Watch:
    """What `watch` returns. `last`: the figures of the newest watched step that is complete, or None (`shardlens docs python`)."""

    def __init__(self, model: Any, every: int = 100, *, log: Callable[[str], None] | None = None, tensorboard: Any = None, opentelemetry: Any = None) -> None:
        global _count
        if every < 1:
            raise ValueError(f"watch: every={every}, expected a number of steps, at least 1")
        _count += 1
        self.last: dict[str, Any] | None = None
        self._model, self._every, self._log = model, every, log or complain
        self._outputs = [make(target) for make, target in ((_tensorboard, tensorboard), (_opentelemetry, opentelemetry)) if target is not None]
        self._name = f"shardlens/watch/{_count}"
        self._step = 0
        self._failed = False
        self._actions: _StepLog | None = None  # of the step that runs, if it is watched
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
        self._guarded(lambda: self._end(now))

    def begin_step(self) -> None:
        """The next step begins."""
        self._guarded(self._begin)
        self._began = time.perf_counter_ns()

    def close(self) -> None:
        """Reports what is complete, and leaves the model as it was. The watch ends."""
        self._guarded(self._report)
        self._give_back()
        self._failed = True  # no further step

    def assert_overlap(self, min_hidden: float) -> None:
        """Raises AssertionError unless compute hid at least this part of the communication (0 to 1) in the newest watched step. Waits for the device."""
        import sys

        if not self._failed and "torch" in sys.modules and isinstance(self._marks, DeviceMarks):
            sys.modules["torch"].cuda.synchronize()
        self._guarded(self._report)
        # If other ranks have not sent their figures of a step, this rank's own are there.
        seen = next((self._figures(each, []) for each in reversed(self._pending) if "own" in each), self.last)
        if seen is None:
            raise AssertionError(f"no step was watched: watch(model, every={self._every}) watches step {self._every} first, and {self._step} steps ended")
        hidden = seen["hidden"]
        if hidden is None:
            raise AssertionError(f"step {seen['step']} has no measured communication of which a part could be hidden: {line(seen)}")
        if hidden < min_hidden:
            raise AssertionError(f"{100 * hidden:.1f} % of the communication was hidden, expected at least {100 * min_hidden:.1f} %: {line(seen)}")

    def _guarded(self, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._give_back()
        warn(f"shardlens.watch: the watch stopped, training goes on: {reason}", stacklevel=4)

    def _give_back(self) -> None:
        actions, self._actions = self._actions, None
        if actions is not None:
            actions.collectives.remove()
            actions.remove()

    def _begin(self) -> None:
        if self._step == 0 or self._step % self._every != 0:
            return
        import torch

        self._marks = DeviceMarks() if torch.cuda.is_initialized() else HostMarks()  # is_available() asks the driver, which takes milliseconds
        self._actions = _StepLog(self._model, CollectiveLog(self._marks))
        self._actions.collectives.install()
        self._origin = self._marks.mark()

    def _end(self, now: int) -> None:
        actions = self._actions
        if actions is not None:
            actions.wait_for_reductions()
            end = self._marks.mark()
            self._give_back()
            failure = actions.failure or actions.collectives.failure
            if failure:
                self._fail(failure)
                return
            gathers = Counter(row[1] for row in actions.rows if row is not None and row[0] == "all_gather")
            self._pending.append({
                "step": self._step, "step_ns": now - self._began, "calls": actions.collectives.calls, "origin": self._origin, "end": end, "marks": self._marks,
                "gathers": dict(gathers), "memory_bytes": self._marks.memory(), "hidden_calls": None if _is_seen(self._model) else "DDP's buckets"})
        self._step += 1
        self._report()

    def _report(self) -> None:
        """Writes about watched steps whose events are complete. Waits for nothing: the others are for a later step."""
        while self._pending and self._complete(self._pending[0]):
            seen = self._pending.pop(0)
            self.last = self._figures(seen, _told(self._key(seen)))
            if _rank() == 0:
                self._log(line(self.last))
            for output in self._outputs:
                output(self.last)

    def _complete(self, seen: dict[str, Any]) -> bool:
        marks, calls = seen["marks"], seen["calls"]
        if not marks.complete(seen["end"]) or not all(call.end is None or marks.complete(call.end) for call in calls):
            return False
        if "own" not in seen:
            seen["own"] = figures(calls, marks, seen["origin"])
            _tell(self._key(seen), seen["step_ns"], seen["own"]["exposed_ns"])
        return _all_told(self._key(seen))

    def _key(self, seen: dict[str, Any]) -> str:
        return f"{self._name}/{seen['step']}"

    @staticmethod
    def _figures(seen: dict[str, Any], ranks: list[tuple[int, int | None]]) -> dict[str, Any]:
        """The contents of `last`; `ranks`: (step, exposed) of each rank, empty if they are not known."""
        own = seen["own"]
        busy, exposed = own["busy_ns"], own["exposed_ns"]
        return {
            "step": seen["step"], "step_ns": seen["step_ns"], "collectives": own["count"], "busy_ns": busy, "exposed_ns": exposed,
            "hidden": 1 - exposed / busy if busy and exposed is not None else None, "groups": own["groups"], "gathers": seen["gathers"],
            "memory_bytes": seen["memory_bytes"], "straggler": straggler(ranks), "unseen": seen["hidden_calls"]}


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


def _is_seen(model: Any) -> bool:
    """Whether collectives of this model are issued by Python."""
    from .live_units import unwrap_ddp

    return unwrap_ddp(model)[1] is None


def _world() -> tuple[int, int]:
    """(rank, world size)."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def _rank() -> int:
    return _world()[0]


def _store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _tell(key: str, step_ns: int, exposed_ns: int | None) -> None:
    """Leaves this rank's times where rank 0 finds them. No collective, and nothing waits."""
    rank, world = _world()
    if world > 1:
        _store().set(f"{key}/{rank}", json.dumps([step_ns, exposed_ns]))


def _all_told(key: str) -> bool:
    rank, world = _world()
    return rank != 0 or world == 1 or _store().check([f"{key}/{each}" for each in range(world)])


def _told(key: str) -> list[tuple[int, int | None]]:
    """(step, exposed) of each rank; nothing on other ranks than 0, which has the line."""
    rank, world = _world()
    if rank != 0 or world == 1:
        return []
    rows = [tuple(json.loads(_store().get(f"{key}/{each}"))) for each in range(world)]
    for each in range(world):
        _store().delete_key(f"{key}/{each}")
    return rows


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
        for name, value in _scalars(seen).items():
            name, _, group = name.partition("/")
            gauge = gauges.setdefault(name, None) or meter.create_gauge(f"shardlens.{name}")
            gauges[name] = gauge
            gauge.set(value, {"rank": _rank(), **({"group": group} if group else {})})

    return write
