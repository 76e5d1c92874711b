"""Records what PyTorch's FSDP2 and FSDP1 do with each unit, as the actions of `shardlens docs formats`.

The methods of FSDPParamGroup that unshard, wait, reshard and reduce are plain Python, so each group gets wrappers of its own
as attributes; taking them away restores the group. A wrapper calls the original and notes its times and what changed, in one flat list: while a step runs,
nothing else is made, because the code and the objects that it takes have to come from memory after each operator of the model. Rows are made of the
notes after the recorded steps, actions when the recording ends. FSDP1's functions are in live_fsdp1.py.

Fields that PyTorch has no counterpart of are null: `hook_seq` is the number of the hook's own line.
"""
from __future__ import annotations

import json
import time
import weakref
from typing import TYPE_CHECKING, Any

from . import live_fsdp1
from .live_units import fsdp2_units
from .live_wrappers import Wrappers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_now = time.time_ns
_FIELDS = 5  # of a note: a function that makes rows of the others; start and end; two of its own


class ActionLog(Wrappers):
    """The actions of one rank. `missing`: methods that this version of PyTorch does not have, so that their actions are not recorded.

    `failure`: what went wrong inside a wrapper, or None. Nothing is recorded after it; the wrapped function runs as always.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.recording = False
        self.missing: list[Any] = []
        self.failure: str | None = None
        self.kept: set[Any] = set()  # units whose parameters a backward left unsharded
        self.without_sync = False  # a backward did not reduce the gradients of a unit
        self.reduced_in_backward = False  # and not only in finalize_backward() of torch 2.15
        self.partly_reduced: set[Any] = set()  # units whose gradients a backward reduced only over the shard axis
        self._notes: list[Any] = []
        self.note = self._notes.extend  # takes a note
        self._rows: list[Any] = []
        # Of the note of which rows are made:
        self._step = 0
        self._hooks: list[Any] = []  # (row index, unit name) of the hooks that are running
        self._causes: list[Any] = []  # of unshards that a prefetch asked for
        self._install(model)

    def _install(self, model: Any) -> None:
        units = fsdp2_units(model)
        for unit in units:
            self._wrap(unit, "pre_forward", self._pre_forward(unit))
            self._wrap(unit, "post_forward", self._hook(unit.name, "post_forward"))
            self._wrap(unit, "pre_backward", self._hook(unit.name, "pre_backward"))
            self._wrap(unit, "post_backward", self._post_backward(unit))
            self._wrap(unit, "unshard", self._unshard(unit))
            self._wrap(unit, "wait_for_unshard", self._wait(unit))
            self._wrap(unit, "reshard", self._reshard(unit))
        if not units:
            live_fsdp1.install(self, model)
        # A static method that the class itself is asked for; it only sets the cause of the unshard inside.
        elif not self.wrap(type(units[0].group), "_prefetch_unshard", lambda call: self.caused(call, lambda target, pass_type: _prefetch_cause(self, pass_type))):
            self.missing.append("_prefetch_unshard")

    def _wrap(self, unit: Any, method: str, make: Any) -> None:
        if not self.wrap(unit.group, method, make) and method not in self.missing:
            self.missing.append(method)

    def fail(self, error: Any) -> None:
        """Keeps the first fault and stops recording. Never raises."""
        self.recording = False
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"

    def remove(self) -> None:
        """Gives everything its own functions back. Never raises."""
        self.recording = False
        super().remove()

    def begin_step(self, step: int) -> None:
        """What is noted from here on is of this step, and recorded."""
        self.note((self._begin_step, step, 0, None, None))
        self.recording = True

    def _begin_step(self, step: int, *_: Any) -> None:
        self._step = step

    @property
    def rows(self) -> list[Any]:
        """(op or hook, unit, stream, buffer, cause, axis, index of the hook's row, step, start, end) of what was noted. None: a hook that did not end."""
        notes = self._notes[:]
        self._notes.clear()
        for make, start, end, first, second in zip(*[iter(notes)] * _FIELDS):
            make(start, end, first, second)
        return self._rows

    # What a note becomes.

    def add(self, op: str, unit: Any, stream: str | None, buffer: str | None, axis: str | None, start: int, end: int, cause: Any = None) -> None:
        """Appends an action of the hook that is running."""
        hook = self._hooks[-1][0] if self._hooks else None
        self._rows.append((op, unit, stream, buffer, cause or self._cause() or "own", axis, hook, self._step, start, end))

    def _cause(self) -> Any:
        return self._causes[-1] if self._causes else None

    def begin_hook(self, start: int, end: int, unit: Any, _: Any) -> None:
        """A hook of the unit begins: its row is before those of the actions inside."""
        self._hooks.append((len(self._rows), unit))
        self._rows.append(None)

    def end_hook(self, start: int, end: int, hook: str, _: Any) -> None:
        """The hook that is running ends."""
        index, unit = self._hooks.pop()
        self._rows[index] = (hook, unit, None, None, None, None, None, self._step, start, end)

    def running_hook(self) -> Any:
        """The unit of the hook that is running, or None."""
        return self._hooks[-1][1] if self._hooks else None

    def reduced(self, unit: Any, shards: Any, replicates: Any, start: int, end: int) -> None:
        """The collectives of a reduction over the axes."""
        if shards:
            self.add("reduce_scatter", unit, "reduce_scatter", "reduce_output", "shard", start, end, "own")
        if replicates:
            self.add("all_reduce", unit, "all_reduce", "reduce_output", "replicate", start, end, "own")

    def _begin_cause(self, start: int, end: int, cause_of: Any, args: Any) -> None:
        self._causes.append(cause_of(*args))

    def _end_cause(self, *_: Any) -> None:
        self._causes.pop()

    # What takes notes: a function of the original, which returns the wrapper.

    def caused(self, call: Any, cause_of: Any) -> Callable[..., Any]:
        """`call`, whose actions inside have the cause `cause_of(*arguments)`."""
        note, begins, ends = self.note, self._begin_cause, self._end_cause

        def asks(*args: Any, **kwargs: Any) -> Any:
            if not self.recording:
                return call(*args, **kwargs)
            note((begins, 0, 0, cause_of, args))
            try:
                return call(*args, **kwargs)
            finally:
                note((ends, 0, 0, None, None))

        return asks

    def around(self, call: Any, before: Any, after: Any) -> Callable[..., Any]:
        """`call` with observations: `before(*arguments)`, and if its result is not None, `after(result, start, end)`. A fault in either is kept, not raised."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.recording:
                return call(*args, **kwargs)
            try:
                seen = before(*args)
            except Exception as error:  # noqa: BLE001  whatever it is, training goes on
                self.fail(error)
                seen = None
            if seen is None:
                return call(*args, **kwargs)
            start = _now()
            try:
                return call(*args, **kwargs)
            finally:
                try:
                    after(seen, start, _now())
                except Exception as error:  # noqa: BLE001
                    self.fail(error)

        return wrapped

    def _hook(self, unit: str, hook: str) -> Any:
        note, begins, ends = self.note, self.begin_hook, self.end_hook

        def make(call: Any) -> Callable[..., Any]:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not self.recording:
                    return call(*args, **kwargs)
                start = _now()
                note((begins, start, 0, unit, None))
                try:
                    return call(*args, **kwargs)
                finally:
                    note((ends, start, _now(), hook, None))

            return hooked

        return make

    def _pre_forward(self, unit: Any) -> Any:
        """torch 2.15 calls it for each module of a unit; the forward begins with the first."""
        group, note, begins, ends = unit.group, self.note, self.begin_hook, self.end_hook
        forward = type(group._training_state).FORWARD

        def make(call: Any) -> Callable[..., Any]:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not self.recording or group._training_state is forward:
                    return call(*args, **kwargs)
                start = _now()
                note((begins, start, 0, unit.name, None))
                try:
                    return call(*args, **kwargs)
                finally:
                    note((ends, start, _now(), "pre_forward", None))

            return hooked

        return make

    def _post_backward(self, unit: Any) -> Any:
        """The hook grads_ready. Which collectives its reduction issued follows from the mesh and the settings."""
        group, note, begins, ends = unit.group, self.note, self.begin_hook, self.end_hook
        shards, replicates = _gathers(group), getattr(group.mesh_info, "replicate_mesh_size", 1) > 1

        def reduced(start: int, end: int, all_reduced: Any, _: Any) -> None:
            self.reduced(unit.name, shards, replicates and all_reduced, start, end)

        def make(call: Any) -> Callable[..., Any]:
            def hooked(*args: Any, **kwargs: Any) -> Any:
                if not self.recording:
                    return call(*args, **kwargs)
                last = self._before_reduction(unit)
                start = _now()
                note((begins, start, 0, unit.name, None))
                try:
                    return call(*args, **kwargs)
                finally:
                    end = _now()
                    if self._has_reduced(unit, last):
                        note((reduced, start, end, group.all_reduce_grads, None))
                    note((ends, start, end, "grads_ready", None))

            return hooked

        return make

    def _before_reduction(self, unit: Any) -> Any:
        """Notes the settings that a program may change for each microbatch. Returns what _has_reduced() takes."""
        try:
            group = unit.group
            reduces = getattr(group, "reduce_grads", True)
            if not reduces:
                self.without_sync = True
            elif not getattr(group, "all_reduce_grads", True):
                self.partly_reduced.add(unit.name)
            if not getattr(group, "reshard_after_backward", True):
                self.kept.add(unit.name)
            last = _last_reduction(group)
            return None if last is None else weakref.ref(last)  # weak, so that its memory is freed as early as ever
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            self.fail(error)

    def _has_reduced(self, unit: Any, last: Any) -> bool:
        """Whether the unit has another last reduction than it had."""
        try:
            found = _last_reduction(unit.group)
            if found is None or (last is not None and found is last()):
                return False
            if not self.reduced_in_backward:
                self.reduced_in_backward = unit.state._state_ctx.post_backward_final_callback_queued
            return True
        except Exception as error:  # noqa: BLE001
            self.fail(error)
            return False

    def _unshard(self, unit: Any) -> Any:
        group, note, gathers = unit.group, self.note, _gathers(unit.group)
        _ = group._all_gather_result, group._sharded_state  # a version without them is refused here, not while it trains

        def gathered(start: int, end: int, state: Any, _: Any) -> None:
            axis = f"sub_shard{group.post_forward_mesh_info.shard_mesh_size}" if state.name == "SHARDED_POST_FORWARD" else "shard"
            self.add("all_gather", unit.name, "all_gather", "gathered", axis, start, end, self._cause() or ("own" if self._hooks else "user"))

        def make(call: Any) -> Callable[..., Any]:
            def unshard(*args: Any, **kwargs: Any) -> Any:
                if not self.recording or group._all_gather_result is not None:
                    return call(*args, **kwargs)
                start = _now()
                result = call(*args, **kwargs)
                if gathers and group._all_gather_result is not None:
                    note((gathered, start, _now(), group._sharded_state, None))
                return result

            return unshard

        return make

    def _wait(self, unit: Any) -> Any:
        group, note, gathers = unit.group, self.note, _gathers(unit.group)

        def waited(start: int, end: int, *_: Any) -> None:
            self.add("stream_wait", unit.name, "compute", None, "none", start, end, "own")
            if gathers:
                self.add("copy_out", unit.name, "compute", "unsharded", "none", start, end, "own")
            self.add("use_full", unit.name, "compute", None, "none", end, end, "own")

        def make(call: Any) -> Callable[..., Any]:
            def wait_for_unshard(*args: Any, **kwargs: Any) -> Any:
                if not self.recording or group._all_gather_result is None:
                    return call(*args, **kwargs)
                start = _now()
                result = call(*args, **kwargs)
                note((waited, start, _now(), None, None))
                return result

            return wait_for_unshard

        return make

    def _reshard(self, unit: Any) -> Any:
        group, note = unit.group, self.note

        def resharded(start: int, end: int, state: Any, _: Any) -> None:
            if state.name == "SHARDED_POST_FORWARD":
                self.add("copy_out", unit.name, "compute", "sub_shard", "none", start, end, "own")
            self.add("use_shard", unit.name, "compute", None, "none", start, end, "own")
            self.add("free", unit.name, "compute", "unsharded", "none", start, end, "own")

        def make(call: Any) -> Callable[..., Any]:
            def reshard(*args: Any, **kwargs: Any) -> Any:
                if not self.recording:
                    return call(*args, **kwargs)
                before, start = group._sharded_state, _now()
                result = call(*args, **kwargs)
                if group._sharded_state is not before:
                    note((resharded, start, _now(), group._sharded_state, None))
                return result

            return reshard

        return make

    def lines(self) -> Iterator[Any]:
        """JSON lines, in the order in which the host began them."""
        hook_seq = {}  # index of a row: seq of its hook
        hooks = actions = 0
        generations: dict[Any, Any] = {}
        for index, row in enumerate(self.rows):
            if row is None:
                continue
            name, unit, stream, buffer, cause, axis, hook, step, start, end = row
            if stream is None:
                hooks += 1
                hook_seq[index] = hooks
                yield json.dumps({"seq": hooks, "hook": name, "unit": unit, "step": step, "t_ns": start, "end_ns": end})
                continue
            actions += 1
            generation = None
            if buffer is not None:
                generation = generations.get((buffer, unit), -1)
                if name in ("all_gather", "reduce_scatter") or (name == "copy_out" and buffer == "unsharded"):
                    generation += 1
                    generations[(buffer, unit)] = generation
                generation = max(generation, 0)
            yield json.dumps({
                "seq": actions, "hook_seq": hook_seq.get(hook), "op": name, "unit": unit, "stream": stream, "buffer": buffer,
                "generation": generation, "event": None, "cause": cause, "axis": axis, "step": step, "t_ns": start, "end_ns": end})


def _last_reduction(group: Any) -> Any:
    """The input of the last reduction that is still kept, or None. Later versions than torch 2.11 have a list of them."""
    context = group.comm_ctx
    states = getattr(context, "reduce_scatter_states", None)
    if states is not None:
        last = states[-1] if states else None
    else:
        last = context.reduce_scatter_state
    return None if last is None else last.reduce_scatter_input


def _gathers(group: Any) -> bool:
    """Whether the group's unshard is a collective: on one rank it is not."""
    return bool(getattr(group.mesh_info, "shard_mesh_size", 1) > 1)


def _prefetch_cause(log: ActionLog, pass_type: Any) -> str:
    # The default prefetch runs within pre_backward of the group; lists that the user set are read after it, by the state.
    return "backward_prefetch" if pass_type == "backward" and log.running_hook() is not None else "explicit_prefetch"
