"""Records what PyTorch's FSDP2 and FSDP1 do with each unit, as the actions of `shardlens docs formats`.

The methods of FSDPParamGroup that unshard, wait, reshard and reduce are plain Python, so each group gets wrappers of its own
as attributes; taking them away restores the group. A wrapper calls the original and appends one tuple to a list: the times of
its call and what changed. Actions are written when the recording ends. FSDP1's functions are in live_fsdp1.py.

Fields that PyTorch has no counterpart of are null: `hook_seq` is the number of the hook's own line.
"""
from __future__ import annotations

import json
import time
import weakref
from typing import TYPE_CHECKING, Any

from . import live_fsdp1
from .live_units import fsdp2_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# name of the group's method: the hook that it is in the schedule
_HOOKS = {
    "pre_forward": "pre_forward",
    "post_forward": "post_forward",
    "pre_backward": "pre_backward",
    "post_backward": "grads_ready",
}


class ActionLog:
    """The actions of one rank. `missing`: methods that this version of PyTorch does not have, so that their actions are not recorded.

    `failure`: what went wrong inside a wrapper, or None. Nothing is recorded after it; the wrapped function runs as always.
    """

    def __init__(self, model: Any) -> None:
        self.rows: list[Any] = []  # (kind, op or hook, unit, stream, buffer, cause, axis, hook index, step, start, end)
        self.recording = False
        self.step = 0
        self.missing: list[Any] = []
        self.failure: str | None = None
        self.kept: set[Any] = set()  # units whose parameters a backward left unsharded
        self.without_sync = False  # a backward did not reduce the gradients of a unit
        self.reduced_in_backward = False  # and not only in finalize_backward() of torch 2.15
        self.partly_reduced: set[Any] = set()  # units whose gradients a backward reduced only over the shard axis
        self._undo: list[Any] = []  # functions that give an object or a module its own function back
        self._hooks: list[Any] = []  # (row index, unit name) of the hooks that are running
        self._cause = None  # of an unshard that a prefetch asked for
        self._install(model)

    def _install(self, model: Any) -> None:
        units = fsdp2_units(model)
        for unit in units:
            for method, hook in _HOOKS.items():
                self._wrap(unit.group, method, *self._hook(unit, hook))
            self._wrap(unit.group, "unshard", *self._unshard(unit))
            self._wrap(unit.group, "wait_for_unshard", *self._wait(unit))
            self._wrap(unit.group, "reshard", *self._reshard(unit))
        if units:
            self._wrap_prefetch(type(units[0].group))
        else:
            live_fsdp1.install(self, model)

    def fail(self, error: Any) -> None:
        """Keeps the first fault and stops recording. Never raises."""
        self.recording = False
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"

    def around(self, call: Any, before: Any, after: Any) -> Callable[..., Any]:
        """`call` with observations: `before(*arguments)`, whose result `after(result, start, end)` gets. A fault in either is kept, not raised."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.recording:
                return call(*args, **kwargs)
            try:
                seen = before(*args)
            except Exception as error:  # noqa: BLE001  whatever it is, training goes on
                self.fail(error)
                return call(*args, **kwargs)
            start = time.time_ns()
            try:
                return call(*args, **kwargs)
            finally:
                try:
                    after(seen, start, time.time_ns())
                except Exception as error:  # noqa: BLE001
                    self.fail(error)

        return wrapped

    def _wrap(self, group: Any, method: str, before: Any, after: Any) -> None:
        original = getattr(group, method, None)
        if original is None:
            if method not in self.missing:
                self.missing.append(method)
            return
        own, wrapped = group.__dict__.get(method), self.around(original, before, after)  # own: of another log
        setattr(group, method, wrapped)

        def undo() -> None:
            if group.__dict__.get(method) is not wrapped:  # a later log is around it, and it only calls what is inside
                return
            if own is None:
                group.__dict__.pop(method)
            else:
                setattr(group, method, own)

        self._undo.append(undo)

    def replace(self, owner: Any, name: str, function: Any) -> None:
        """Sets an attribute of a class or module until remove()."""
        original = owner.__dict__[name]
        setattr(owner, name, function)
        self._undo.append(lambda: setattr(owner, name, original) if owner.__dict__.get(name) is function else None)

    def _wrap_prefetch(self, group_class: Any) -> None:
        """`_prefetch_unshard` is a static method that the class itself is asked for; it only sets the cause of the unshard inside."""
        original = group_class.__dict__.get("_prefetch_unshard")
        if original is None:
            self.missing.append("_prefetch_unshard")
            return
        function = original.__func__ if isinstance(original, staticmethod) else original
        # A list that the user set, or the order of the forward.
        self.replace(group_class, "_prefetch_unshard", staticmethod(self.caused(function, lambda target, pass_type: _prefetch_cause(self, pass_type))))

    def caused(self, call: Any, cause_of: Any) -> Any:
        """`call`, whose actions inside have the cause `cause_of(*arguments)`."""

        def before(*args: Any) -> Any:
            previous, self._cause = self._cause, cause_of(*args)
            return previous

        def after(previous: Any, start: int, end: int) -> None:
            self._cause = previous

        return self.around(call, before, after)

    def remove(self) -> None:
        """Gives everything its own functions back. Never raises."""
        self.recording = False
        while self._undo:
            self._undo.pop()()

    def add(self, op: str, unit: Any, stream: str | None, buffer: str | None, axis: str | None, start: int, end: int, cause: Any = None) -> None:
        """Appends an action of the hook that is running."""
        hook = self._hooks[-1][0] if self._hooks else None
        self.rows.append((op, unit, stream, buffer, cause or self._cause or "own", axis, hook, self.step, start, end))

    def begin_hook(self, unit: Any) -> Any:
        """A hook of the unit begins: its row is before those of the actions inside. Returns what end_hook() takes."""
        index = len(self.rows)
        self.rows.append(None)
        self._hooks.append((index, unit))
        return index

    def end_hook(self, index: int, hook: str, start: int, end: int) -> None:
        _, unit = self._hooks.pop()
        self.rows[index] = (hook, unit, None, None, None, None, None, self.step, start, end)

    def running_hook(self) -> Any:
        """The unit of the hook that is running, or None."""
        return self._hooks[-1][1] if self._hooks else None

    def reduced(self, unit: Any, shards: Any, replicates: Any, start: int, end: int) -> None:
        """The collectives of a reduction over the axes."""
        if shards:
            self.add("reduce_scatter", unit, "reduce_scatter", "reduce_output", "shard", start, end, "own")
        if replicates:
            self.add("all_reduce", unit, "all_reduce", "reduce_output", "replicate", start, end, "own")

    def _hook(self, unit: Any, hook: str) -> Any:
        group, reduces = unit.group, hook == "grads_ready"

        def before(*_: Any) -> Any:
            if hook == "pre_forward" and group._training_state.name == "FORWARD":
                return None, None  # torch 2.15 calls it for each module of a unit; the forward has begun with the first
            if reduces:
                self._see_settings(unit)
            last = _last_reduction(group) if reduces else None
            # Weak, so that its memory is freed as early as ever.
            return self.begin_hook(unit.name), (lambda: None) if last is None else weakref.ref(last)

        def after(seen: Any, start: int, end: int) -> None:
            index, last = seen
            if index is None:
                return
            # Which collectives a reduction issued follows from the mesh and the settings.
            found = _last_reduction(group) if reduces else None
            if found is not None and found is not last():
                info = group.mesh_info
                self.reduced_in_backward = self.reduced_in_backward or unit.state._state_ctx.post_backward_final_callback_queued
                self.reduced(unit.name, getattr(info, "shard_mesh_size", 1) > 1, getattr(info, "replicate_mesh_size", 1) > 1 and group.all_reduce_grads, start, end)
            self.end_hook(index, hook, start, end)

        return before, after

    def _see_settings(self, unit: Any) -> None:
        """Notes the settings that a program may change for each microbatch."""
        group = unit.group
        if not getattr(group, "reduce_grads", True):
            self.without_sync = True
        if not getattr(group, "reshard_after_backward", True):
            self.kept.add(unit.name)
        if getattr(group, "reduce_grads", True) and not getattr(group, "all_reduce_grads", True):
            self.partly_reduced.add(unit.name)

    def _unshard(self, unit: Any) -> Any:
        group = unit.group

        def after(pending: Any, start: int, end: int) -> None:
            if not pending and group._all_gather_result is not None and _gathers(group):
                axis = f"sub_shard{group.post_forward_mesh_info.shard_mesh_size}" if group.is_sharded_post_forward else "shard"
                cause = self._cause or ("own" if self._hooks else "user")
                self.add("all_gather", unit.name, "all_gather", "gathered", axis, start, end, cause)

        return lambda *_: group._all_gather_result is not None, after

    def _wait(self, unit: Any) -> Any:
        group = unit.group

        def after(pending: Any, start: int, end: int) -> None:
            if not pending:
                return
            self.add("stream_wait", unit.name, "compute", None, "none", start, end, "own")
            if _gathers(group):
                self.add("copy_out", unit.name, "compute", "unsharded", "none", start, end, "own")
            self.add("use_full", unit.name, "compute", None, "none", end, end, "own")

        return lambda *_: group._all_gather_result is not None, after

    def _reshard(self, unit: Any) -> Any:
        group = unit.group

        def after(before: Any, start: int, end: int) -> None:
            if group._sharded_state != before:
                if group.is_sharded_post_forward:
                    self.add("copy_out", unit.name, "compute", "sub_shard", "none", start, end, "own")
                self.add("use_shard", unit.name, "compute", None, "none", start, end, "own")
                self.add("free", unit.name, "compute", "unsharded", "none", start, end, "own")

        return lambda *_: group._sharded_state, after

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
    states = context.reduce_scatter_states if hasattr(context, "reduce_scatter_states") else [context.reduce_scatter_state]
    return states[-1].reduce_scatter_input if states and states[-1] is not None else None


def _gathers(group: Any) -> bool:
    """Whether the group's unshard is a collective: on one rank it is not."""
    return getattr(group.mesh_info, "shard_mesh_size", 1) > 1


def _prefetch_cause(log: Any, pass_type: Any) -> Any:
    # The default prefetch runs within pre_backward of the group; lists are read after it, by the state.
    return "backward_prefetch" if pass_type == "backward" and log.running_hook() is not None else "explicit_prefetch"
