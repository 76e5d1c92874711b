"""Finds what shards a live model: PyTorch's FSDP2 (`fully_shard`), FSDP1 or DDP, with the names that the model had before.

Nothing here imports torch at the top: `shardlens` itself needs only the standard library.
"""
from __future__ import annotations

import re
from typing import Any

# What wrappers put into the names of the modules that they wrap.
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
# A parameter that a parametrization computes from another one keeps the name that the model knows.
_PARAMETRIZED = re.compile(r"\bparametrizations\.([^.]+)\.original$")


def clean_name(fqn: str) -> Any:
    """The name without the parts that FSDP1, checkpoint wrappers, torch.compile and torch.nn.utils.parametrize add."""
    return _PARAMETRIZED.sub(r"\1", ".".join(part for part in fqn.split(".") if part not in _WRAPPERS))


def is_a(module: Any, *classes: Any) -> bool:
    """Whether the module is of a class with one of these names: fully_shard and others make subclasses with names of their own."""
    return any(base.__name__ in classes for base in type(module).__mro__)


def unwrap_ddp(model: Any) -> Any:
    """The module inside DistributedDataParallel, else the model itself; and DDP's object, else None. torch.compile may be around DDP."""
    from torch.nn.parallel import DistributedDataParallel

    outer = model
    while is_a(outer, "OptimizedModule"):
        outer = outer._orig_mod
    return (outer.module, outer) if isinstance(outer, DistributedDataParallel) else (model, None)


class Fsdp2Unit:
    """Modules that one `fully_shard` call shards together. `group` is PyTorch's FSDPParamGroup, the unit's parameters or some of them.

    `name` is the one that PyTorch's ranges and plans have: the modules' names with ", " between them. If the unit has several groups, there is one
    Fsdp2Unit for each, and `label` tells those after the first of their kind from it: "layers.0" and "layers.0 [expert]".
    """

    def __init__(self, names: Any, modules: Any, state: Any, group: Any, label: str = "") -> None:
        self.names, self.modules, self.state, self.group = names, modules, state, group
        self.name = ", ".join(names) + (f" [{label}]" if label else "")


def _groups_of(state: Any) -> list[Any]:
    """The parameter groups of an FSDPState: one in torch 2.11, a list in later versions, none for a module without parameters of its own."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def fsdp2_units(model: Any) -> Any:
    """The units of `fully_shard`, in the order of named_modules()."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:  # a torch without distributed
        return []
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

    states: dict[Any, Any] = {}  # id(state): (state, {name: module})
    for name, module in model.named_modules():
        # In a list of modules that is one unit, every module has the state.
        state = module._get_fsdp_state() if isinstance(module, FSDPModule) else _get_module_fsdp_state(module)
        if state is not None:
            states.setdefault(id(state), (state, {}))[1][clean_name(name)] = module
    units = []
    for state, modules in states.values():
        groups = _groups_of(state)
        for group, label in zip(groups, _labels(groups)):
            units.append(Fsdp2Unit(list(modules), list(modules.values()), state, group, label))
    return units


def _labels(groups: Any) -> list[Any]:
    """A label for each group of a unit, "" for the one that has the unit's name: the dense one of two, otherwise the first."""
    from .live_mesh import UnknownMesh, has_experts

    try:
        experts = [has_experts(group) for group in groups] if len(groups) == 2 else []
    except UnknownMesh:
        experts = []
    if sorted(experts) == [False, True]:
        return ["expert" if each else "" for each in experts]
    return [str(index) if index else "" for index in range(len(groups))]


def gradient_sync(model: Any) -> Any:
    """A function that says whether the next backward reduces gradients: not within no_sync, nor after set_requires_gradient_sync(False)."""
    model, ddp = unwrap_ddp(model)
    if ddp is not None:
        return lambda: ddp.require_backward_grad_sync
    groups = [unit.group for unit in fsdp2_units(model)]
    if groups:
        return lambda: any(getattr(group, "reduce_grads", True) for group in groups)
    modules = [module for _, module in fsdp1_units(model)]
    return lambda: all(getattr(module, "_sync_gradients", True) for module in modules)


def fsdp1_units(model: Any) -> list[Any]:
    """(name, FullyShardedDataParallel) of each FSDP1 instance, in the order of named_modules()."""
    try:
        from torch.distributed.fsdp import FullyShardedDataParallel
    except ImportError:
        return []
    return [(clean_name(name), module) for name, module in model.named_modules() if isinstance(module, FullyShardedDataParallel)]


def process_groups() -> list[Any]:
    """[{id, description, ranks}] of every process group of this process."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return []
    world = dist.distributed_c10d._world
    return [
        {"id": name, "description": getattr(group, "group_desc", ""), "ranks": sorted(world.pg_group_ranks.get(group, {}))}
        for group, name in world.pg_names.items()
    ]


def axes_of_all_ranks() -> list[Any]:
    """(name, ranks) of each dimension of a DeviceMesh that has all ranks: PyTorch gives it the default group, whose description does not name it."""
    import gc

    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    found = []
    for mesh in [each for each in gc.get_objects() if type(each) is DeviceMesh]:
        for at, name in enumerate(mesh.mesh_dim_names or ()):
            try:
                if mesh.size(at) == dist.get_world_size() and mesh.get_group(at).group_name == dist.group.WORLD.group_name:
                    found.append((name, list(range(dist.get_world_size()))))
            except Exception:  # noqa: BLE001  a mesh whose groups were destroyed
                continue
    return found


def autograd_functions() -> Any:
    """torch._C._autograd, which torch's own type stubs do not name."""
    import torch

    return vars(torch._C)["_autograd"]
