"""Records what PyTorch's FSDP2 does with each unit, as the actions of docs/trace_format.md.

The methods of FSDPParamGroup that unshard, wait, reshard and reduce are plain Python, so each group gets wrappers of its own
as attributes; taking them away restores the group. A wrapper calls the original and appends one tuple to a list: the times of
its call and what changed. Actions are written when the recording ends.

Fields that PyTorch has no counterpart of are null: `hook_seq` is the number of the hook's own line.
"""
import json
import time

from .live_units import fsdp2_units

# name of the group's method: the hook that it is in the schedule
_HOOKS = {
    "pre_forward": "pre_forward",
    "post_forward": "post_forward",
    "pre_backward": "pre_backward",
    "post_backward": "grads_ready",
}


class ActionLog:
    """The actions of one rank. `missing`: methods that this version of PyTorch does not have, so that their actions are not recorded."""

    def __init__(self, model):
        self.rows = []  # (kind, op or hook, unit, stream, buffer, cause, axis, hook index, step, start, end)
        self.recording = False
        self.step = 0
        self.missing = []
        self.kept = set()  # units whose parameters a backward left unsharded
        self.partly_reduced = set()  # units whose gradients a backward reduced only over the shard axis
        self._wrapped = []  # (object, attribute)
        self._hooks = []  # (row index, unit) of the hooks that are running
        self._cause = None  # of an unshard that a prefetch asked for
        self._class_method = None
        self._install(model)

    def _install(self, model):
        units = fsdp2_units(model)
        for unit in units:
            group = unit.group
            for method, hook in _HOOKS.items():
                self._wrap(group, method, lambda call, unit=unit, hook=hook: self._hook(call, unit, hook))
            self._wrap(group, "unshard", lambda call, unit=unit: self._unshard(call, unit))
            self._wrap(group, "wait_for_unshard", lambda call, unit=unit: self._wait(call, unit))
            self._wrap(group, "reshard", lambda call, unit=unit: self._reshard(call, unit))
        if units:
            self._wrap_prefetch(type(units[0].group))

    def _wrap(self, group, method, make):
        original = getattr(group, method, None)
        if original is None:
            if method not in self.missing:
                self.missing.append(method)
            return
        setattr(group, method, make(original))
        self._wrapped.append((group, method))

    def _wrap_prefetch(self, group_class):
        """`_prefetch_unshard` is a static method that the class itself is asked for; it only sets the cause of the unshard inside."""
        original = group_class.__dict__.get("_prefetch_unshard")
        if original is None:
            self.missing.append("_prefetch_unshard")
            return
        function = original.__func__ if isinstance(original, staticmethod) else original
        log = self

        def prefetch(target, pass_type, *args, **kwargs):
            if not log.recording:
                return function(target, pass_type, *args, **kwargs)
            # A list that the user set, or the order of the forward.
            before, log._cause = log._cause, _prefetch_cause(log, pass_type)
            try:
                return function(target, pass_type, *args, **kwargs)
            finally:
                log._cause = before

        setattr(group_class, "_prefetch_unshard", staticmethod(prefetch))
        self._class_method = (group_class, original)

    def remove(self):
        """Gives every group its own methods back. Never raises."""
        for group, method in self._wrapped:
            group.__dict__.pop(method, None)
        self._wrapped.clear()
        if self._class_method is not None:
            group_class, original = self._class_method
            setattr(group_class, "_prefetch_unshard", original)
            self._class_method = None

    def _add(self, op, unit, stream, buffer, axis, start, end, cause=None):
        hook = self._hooks[-1][0] if self._hooks else None
        self.rows.append((op, unit, stream, buffer, cause or self._cause or "own", axis, hook, self.step, start, end))

    def _hook(self, call, unit, hook):
        group = unit.group

        def wrapped(*args, **kwargs):
            if not self.recording:
                return call(*args, **kwargs)
            start = time.time_ns()
            index = len(self.rows)
            self.rows.append(None)  # its place is before the actions inside
            self._hooks.append((index, unit))
            reduces = hook == "grads_ready"
            before = group.comm_ctx.reduce_scatter_state if reduces else None
            if reduces:
                self._see_settings(unit)
            try:
                return call(*args, **kwargs)
            finally:
                end = time.time_ns()
                self._hooks.pop()
                self.rows[index] = (hook, unit.name, None, None, None, None, None, self.step, start, end)
                if reduces and group.comm_ctx.reduce_scatter_state is not before and group.comm_ctx.reduce_scatter_state is not None:
                    self._reduced(unit, index, start, end)

        return wrapped

    def _see_settings(self, unit):
        """What a program may set anew for each microbatch."""
        group = unit.group
        if not getattr(group, "reshard_after_backward", True):
            self.kept.add(unit.name)
        if getattr(group, "reduce_grads", True) and not getattr(group, "all_reduce_grads", True):
            self.partly_reduced.add(unit.name)

    def _reduced(self, unit, hook, start, end):
        """The collectives that the group's post_backward issued: which ones follow from its mesh and its settings."""
        info, group = unit.group.mesh_info, unit.group
        shards = getattr(info, "shard_mesh_size", 1) > 1
        replicates = getattr(info, "replicate_mesh_size", 1) > 1 and group.all_reduce_grads
        if shards:
            self.rows.append(("reduce_scatter", unit.name, "reduce_scatter", "reduce_output", "own", "shard", hook, self.step, start, end))
        if replicates:
            self.rows.append(("all_reduce", unit.name, "all_reduce", "reduce_output", "own", "replicate", hook, self.step, start, end))

    def _unshard(self, call, unit):
        group = unit.group

        def wrapped(*args, **kwargs):
            if not self.recording:
                return call(*args, **kwargs)
            pending = group._all_gather_result
            start = time.time_ns()
            result = call(*args, **kwargs)
            end = time.time_ns()
            if pending is None and group._all_gather_result is not None and _gathers(group):
                axis = "sub_shard" if group.is_sharded_post_forward else "shard"
                cause = self._cause or ("own" if self._hooks else "user")
                self._add("all_gather", unit.name, "all_gather", "gathered", axis, start, end, cause)
            return result

        return wrapped

    def _wait(self, call, unit):
        group = unit.group

        def wrapped(*args, **kwargs):
            if not self.recording or group._all_gather_result is None:
                return call(*args, **kwargs)
            start = time.time_ns()
            result = call(*args, **kwargs)
            end = time.time_ns()
            self._add("stream_wait", unit.name, "compute", None, "none", start, end, "own")
            if _gathers(group):
                self._add("copy_out", unit.name, "compute", "unsharded", "none", start, end, "own")
            self._add("use_full", unit.name, "compute", None, "none", end, end, "own")
            return result

        return wrapped

    def _reshard(self, call, unit):
        group = unit.group

        def wrapped(*args, **kwargs):
            if not self.recording:
                return call(*args, **kwargs)
            before = group._sharded_state
            start = time.time_ns()
            result = call(*args, **kwargs)
            end = time.time_ns()
            if group._sharded_state != before:
                if group.is_sharded_post_forward:
                    self._add("copy_out", unit.name, "compute", "sub_shard", "none", start, end, "own")
                self._add("use_shard", unit.name, "compute", None, "none", start, end, "own")
                self._add("free", unit.name, "compute", "unsharded", "none", start, end, "own")
            return result

        return wrapped

    def lines(self):
        """JSON lines, in the order in which the host began them."""
        hook_seq = {}  # index of a row: seq of its hook
        hooks = actions = 0
        generations = {}
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


def _gathers(group):
    """Whether the group's unshard is a collective: on one rank it is not."""
    return getattr(group.mesh_info, "shard_mesh_size", 1) > 1


def _prefetch_cause(log, pass_type):
    if pass_type == "backward":
        unit = log._hooks[-1][1] if log._hooks else None
        # The default prefetch runs within pre_backward of the group; lists are read after it, by the state.
        return "backward_prefetch" if unit is not None else "explicit_prefetch"
    return "explicit_prefetch"
