"""The plan file (`shardlens docs plan`) of a live model, read from the FSDP2, FSDP1 or DDP objects themselves."""
from __future__ import annotations

from typing import Any

from .live_mesh import UnitMesh, UnknownMesh, groups_of, mesh_of, tensor_parallel_of
from .live_units import axes_of_all_ranks, clean_name, fsdp1_units, fsdp2_units, is_a, process_groups, unwrap_ddp

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class NoPlan(ValueError):
    """The model has no plan that a plan file can describe; the text says why."""


def _dtype(dtype: Any) -> Any:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise NoPlan(f"a plan file has no dtype {name}")
    return _DTYPES[name]


def plan_of(model: Any, log: Any = None, checkpoints: Any = None) -> Any:
    """A dict with the contents of plan.json. Raises NoPlan for a model that nothing shards.

    log            the ActionLog of a recording: it saw settings that the program changes between the microbatches of a step.
    checkpoints    the CheckpointLog of a recording: it saw calls of torch.utils.checkpoint.
    """
    model, ddp = unwrap_ddp(model)
    units = [] if ddp is not None else fsdp2_units(model)
    wrapped = [] if ddp is not None or units else fsdp1_units(model)
    if ddp is not None or units or wrapped:
        plan = _ddp_plan(ddp) if ddp is not None else _fsdp2_plan(model, units, log) if units else _fsdp1_plan(model, wrapped)
        plan["activation_checkpointing"] = _checkpointed(model, checkpoints.modules if checkpoints else {})
        return plan
    raise NoPlan(_otherwise_parallel(model) or
                 "the model is not sharded: neither fully_shard, FullyShardedDataParallel nor DistributedDataParallel was applied to it; if a trainer wraps it, give "
                 "record() the wrapper")


def _otherwise_parallel(model: Any) -> str:
    """What is known of a model that is parallel without the objects that a plan is read from; "": nothing is."""
    from torch.distributed._composable.contract import _get_registry

    inside = [clean_name(name) for name, module in model.named_modules() if is_a(module, "DistributedDataParallel")]
    if inside:
        return (f"DistributedDataParallel is around {', '.join(inside[:4])}{', …' if len(inside) > 4 else ''}, parts of the model: a plan is of one; "
                "give record() the one whose step counts; without plan.json it is recovered from the trace")
    replicated = [clean_name(name) or "the model" for name, module in model.named_modules() if "replicate" in (_get_registry(module) or ())]
    if replicated:
        return (f"replicate() was applied to {', '.join(replicated[:4])}{', …' if len(replicated) > 4 else ''}: it averages gradients as DistributedDataParallel does, "
                "whose plan has one unit, the whole model; without plan.json it is recovered from the trace")
    placed: dict[Any, Any] = {}  # how parameters are placed: how many
    for parameter in model.parameters():
        if hasattr(parameter, "placements"):
            axes = ", ".join(f"{placement} over {size}" for placement, size in zip(parameter.placements, parameter.device_mesh.shape))
            placed[axes] = placed.get(axes, 0) + 1
    if placed:
        axes = max(placed, key=lambda axes: placed[axes])
        return (f"{sum(placed.values())} parameters are DTensors, {placed[axes]} of them {axes} ranks, which no fully_shard gathers: the program itself does, "
                "as SimpleFSDP, or they stay divided, as under tensor parallelism alone; FSDP's hooks, whose order a plan describes, are not there")
    return ""


def _common(values: Any) -> Any:
    """The value that all have, and whether they all have the same."""
    values = list(values)
    return values[0], all(value == values[0] for value in values)


def _spread(plan: Any, units: Any, key: Any, values: Any) -> None:
    """Writes one value for the whole plan if all units have the same, otherwise one for each."""
    value, same = _common(values)
    if same:
        plan[key] = value
    else:
        for unit, each in zip(units, values):
            unit[key] = each


def _unmanaged(model: Any, managed: Any) -> list[Any]:
    """Names of the parameters that no unit has."""
    return sorted(clean_name(name) for name, p in model.named_parameters() if id(p) not in managed)


def _frozen(model: Any) -> list[Any]:
    return [clean_name(name) for name, p in model.named_parameters() if not p.requires_grad]


def _checkpointed(model: Any, seen: Any) -> list[Any]:
    """Modules whose activations are checkpointed: those that ran so (`seen`, by id), and those that an attribute shows, PyTorch's wrapper and transformers' layers."""
    names: dict[Any, Any] = {}  # in order
    for name, module in model.named_modules():
        if is_a(module, "CheckpointWrapper"):
            names[clean_name(f"{name}._checkpoint_wrapped_module")] = None
        elif id(module) in seen or (getattr(module, "gradient_checkpointing", False) is True and is_a(module, "GradientCheckpointingLayer")):
            names[clean_name(name)] = None
    return list(names)


def _reshard_after_forward(group: Any) -> Any:
    """true, false, or the number of ranks over which the parameters stay sharded after forward."""
    after = group.post_forward_mesh_info
    if after is None:
        return False
    size, whole = after.shard_mesh_size, group.mesh_info.shard_mesh_size
    return True if size == whole else size


def _of_groups(units: Any, key: Any, value_of: Any) -> Any:
    """What the groups of one unit's parameters have in common."""
    value, same = _common(value_of(unit) for unit in units)
    if not same:
        raise NoPlan(f"the groups of parameters of the unit {units[0].name!r} differ in {key}: a plan file has one value for a unit")
    return value


def _reshard_of_groups(units: Any) -> Any:
    """_reshard_after_forward() of one unit; a number of ranks is the whole of a group that has so many."""
    values = {_reshard_after_forward(unit.group) for unit in units}
    numbers = [value for value in values if type(value) is int]
    if len(numbers) == 1 and all(value in (True, numbers[0]) for value in values):
        return numbers[0]
    return _of_groups(units, "reshard_after_forward", lambda unit: _reshard_after_forward(unit.group))


def _reduces_in_own_group(unit: Any) -> bool:
    """set_separate_reduce_scatter_group() of torch 2.13 and later."""
    return getattr(unit.group.mesh_info, "reduce_scatter_process_group", None) is not None


def left_out(model: Any) -> list[str]:
    """Settings of FSDP2 (torch 2.13 and later) that a plan file does not have, as sentences."""
    model, ddp = unwrap_ddp(model)
    groups = [] if ddp is not None else [unit.group for unit in fsdp2_units(model)]
    found = {
        "set_symm_mem_for_comm: simulate it with --transport symmetric":
            any(type(getattr(group, "_all_gather_comm", None)).__name__ == "SymmMemAllGather" for group in groups),
    }
    return [f"plan.json does not have {setting}" for setting, is_set in found.items() if is_set]


def _later_settings(plan: Any, units: Any, log: Any) -> None:
    """Adds what FSDP2 has from torch 2.13 on, where it is set."""
    groups = [unit.group for unit in units]
    if any(_reduces_in_own_group(unit) for unit in units):
        plan["separate_reduce_scatter_group"] = True
    if any(getattr(group, "reduce_scatter_unused_params", False) for group in groups):
        plan["reduce_scatter_unused_params"] = True
    if (buffers := max(getattr(group, "reduce_scatter_max_input_buffers", 1) for group in groups)) > 1:
        plan["reduce_scatter_max_input_buffers"] = buffers
    if any(getattr(unit.state._state_ctx, "manual_backward_finalization", False) for unit in units):
        only_after = log is not None and log.without_sync and not log.reduced_in_backward
        plan["backward_finalization"] = "reduces" if only_after else "waits"


def _keeps_storage(unit: Any) -> bool:
    """set_keep_unsharded_storage() of torch 2.15 and later."""
    return any(getattr(p, "keep_unsharded_storage", False) for p in unit.group.fsdp_params)


def _mixed_precision(unit: Any) -> dict[str, Any]:
    """The precision of a unit. torch 2.11 keeps it in the group, later versions in each parameter."""
    group = unit.group
    policies = [group.mp_policy] if hasattr(group, "mp_policy") else [p.mp_policy for p in group.fsdp_params]
    policy = policies[0]
    if any((p.param_dtype, p.reduce_dtype) != (policy.param_dtype, policy.reduce_dtype) for p in policies):
        raise NoPlan(f"the parameters of the unit {unit.name!r} have several dtypes in forward: a plan file has one for a unit")
    reduce_dtype = policy.reduce_dtype
    if reduce_dtype is None and policy.param_dtype is not None:
        # From torch 2.15 on, gradients are reduced in the parameters' own dtype; before, and in a plan file, in param_dtype.
        own = {getattr(p, "unsharded_grad_dtype", None) for p in group.fsdp_params}
        reduce_dtype = own.pop() if len(own) == 1 else None
    return {"param_dtype": _dtype(policy.param_dtype), "reduce_dtype": _dtype(reduce_dtype), "output_dtype": _dtype(policy.output_dtype),
            "cast_forward_inputs": policy.cast_forward_inputs}


def _fsdp2_plan(model: Any, units: Any, log: Any) -> Any:
    from torch.distributed.fsdp import CPUOffloadPolicy

    of_state: dict[Any, Any] = {}  # id(state): its units, one for each group of parameters
    for unit in units:
        of_state.setdefault(id(unit.state), []).append(unit)
    groups = list(of_state.values())
    try:
        module_names = {id(module): clean_name(name) for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
        meshes = {id(unit): UnitMesh(unit, module_names) for unit in units}
        mesh = mesh_of(list(meshes.values()), [(each["description"], each["ranks"]) for each in process_groups()] + axes_of_all_ranks())
        parameter_groups = [groups_of([meshes[id(unit)] for unit in of], "expert" in mesh) for of in groups]
    except UnknownMesh as error:
        raise NoPlan(str(error)) from None
    plan = {"version": 1, "mesh": mesh, "dialect": "fsdp2", "layout": "per_parameter"}
    if styles := tensor_parallel_of(list(meshes.values()), model):
        plan["tensor_parallel"] = styles
    entries = [{"modules": of[0].names[0] if len(of[0].names) == 1 else of[0].names} for of in groups]
    for entry, own in zip(entries, parameter_groups):
        if own:
            entry["groups"] = own
    kept, partly = (log.kept, log.partly_reduced) if log is not None else ((), ())

    def each(key: Any, value_of: Any) -> list[Any]:
        return [_of_groups(of, key, value_of) for of in groups]

    _spread(plan, entries, "reshard_after_forward", [_reshard_of_groups(of) for of in groups])
    _spread(plan, entries, "reshard_after_backward", each("reshard_after_backward", lambda u: u.group.reshard_after_backward and u.name not in kept))
    _spread(plan, entries, "requires_all_reduce", each("requires_all_reduce", lambda u: u.group.all_reduce_grads and u.name not in partly))
    _spread(plan, entries, "gradient_divide_factor", each("gradient_divide_factor", lambda u: u.group.gradient_divide_factor))
    if any(_keeps_storage(u) for u in units):
        _spread(plan, entries, "keep_unsharded_storage", each("keep_unsharded_storage", _keeps_storage))
    _later_settings(plan, units, log)
    _spread(plan, entries, "cpu_offload", each("cpu_offload", lambda u: isinstance(u.group.offload_policy, CPUOffloadPolicy)))
    for of, entry in zip(groups, entries):
        if not _of_groups(of, "unshard_in_backward", lambda u: getattr(u.group, "unshard_in_backward", True)):
            entry["unshard_in_backward"] = False
    _spread(plan, entries, "mixed_precision", each("mixed_precision", _mixed_precision))
    by_state = {key: ", ".join(of[0].names) for key, of in of_state.items()}
    for key, attribute in (("forward_prefetch", "_states_to_forward_prefetch"), ("backward_prefetch", "_states_to_backward_prefetch")):
        lists = {by_state[id(u.state)]: [by_state[id(s)] for s in getattr(u.state, attribute) if id(s) in by_state] for u in units if getattr(u.state, attribute)}
        if lists:
            plan[key] = lists
    managed = {id(p.sharded_param) for u in units for p in u.group.fsdp_params}
    plan["ignored_parameters"] = _unmanaged(model, managed)
    plan["frozen_parameters"] = _frozen(model)
    plan["units"] = entries
    return plan


def _fsdp1_plan(model: Any, wrapped: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

    root = wrapped[0][1]
    strategies = {module.sharding_strategy for _, module in wrapped}
    if len(strategies) > 1:
        raise NoPlan("FSDP1 instances with several sharding strategies: " + ", ".join(sorted(s.name for s in strategies)))
    strategy = root.sharding_strategy
    hybrid = strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
    world = root.process_group.size()
    if strategy == ShardingStrategy.NO_SHARD:
        mesh = {"replicate": world, "shard": 1}
    else:
        mesh = {"replicate": root._inter_node_pg.size() if hybrid else 1, "shard": world}
    precision = root.mixed_precision
    prefetch = {None: "none", BackwardPrefetch.BACKWARD_PRE: "pre", BackwardPrefetch.BACKWARD_POST: "post"}
    managed: set[Any] = set()
    for _, module in wrapped:
        managed.update(id(p) for p in module.parameters())
    return {
        "version": 1,
        "mesh": mesh,
        "dialect": "fsdp1",
        "layout": "flat",
        "reshard_after_forward": strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD),
        "backward_prefetch": prefetch[root.backward_prefetch],
        "forward_prefetch": 1 if root.forward_prefetch else 0,
        "limit_all_gathers": root.limit_all_gathers,
        "cpu_offload": bool(root.cpu_offload.offload_params),
        "mixed_precision": {
            "param_dtype": _dtype(precision.param_dtype), "reduce_dtype": _dtype(precision.reduce_dtype),
            "buffer_dtype": _dtype(precision.buffer_dtype), "cast_forward_inputs": precision.cast_forward_inputs},
        "ignored_parameters": _unmanaged(model, managed),
        "frozen_parameters": _frozen(model) if root._use_orig_params else [],
        "units": [{"modules": name} for name, _ in wrapped],
    }


def _ddp_plan(ddp: Any) -> dict[str, Any]:
    cap = None if getattr(ddp, "bucket_bytes_cap_default", False) else ddp.bucket_bytes_cap / 2**20
    ignored = set(ddp.parameters_to_ignore)
    return {
        "version": 1,
        "mesh": {"replicate": ddp.process_group.size(), "shard": 1},
        "bucket_cap_mb": cap,
        "find_unused_parameters": ddp.find_unused_parameters,
        "static_graph": ddp.static_graph,
        "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
        "ignored_parameters": sorted(clean_name(name) for name, _ in ddp.module.named_parameters() if name in ignored),
        "frozen_parameters": _frozen(ddp.module),
        "units": [{"modules": "", "api": "replicate"}],
    }
