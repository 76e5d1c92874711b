"""How the ranks of a live FSDP2 model are arranged, and how tensor and expert parallelism divide its parameters, in the words of a plan file."""
from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


class UnknownMesh(ValueError):
    """Ranks or parameters are divided in a way that a plan file cannot describe; the text says how."""


class Division:
    """How a parameter was divided before FSDP sharded it: along `dim` over `ranks`; dim None: each of them has the whole parameter."""

    def __init__(self, ranks: Sequence[int], dim: int | None, axis: str) -> None:
        self.ranks, self.dim, self.axis = ranks, dim, axis


def _ranks(group: Any) -> list[Any]:
    import torch.distributed as dist

    return sorted(dist.get_process_group_ranks(group))


def dtensor_spec(parameter: Any) -> Any:
    """The DTensorSpec that one of FSDP2's parameters had before FSDP sharded it; None: it was no DTensor."""
    # `_tp_spec` until torch 2.12, then the other; each has only one of them.
    return getattr(parameter, "_tp_spec", None) or getattr(parameter, "_unsharded_dtensor_spec", None)


def division_of(name: str, parameter: Any) -> Any:
    """The Division of one of FSDP2's parameters; None: it was not a DTensor."""
    if not getattr(parameter, "is_dtensor", False):
        return None
    spec = dtensor_spec(parameter)
    if spec is None:
        raise UnknownMesh(f"the parameter {name!r} was a DTensor, and this version of torch does not say on which mesh")
    # With a mesh of all axes (dp_mesh_dims), those of FSDP itself are among them.
    dims = getattr(parameter.mesh_info, "dp_mesh_dims", None)
    own = {*dims.shard_names, *dims.replicate_names} if dims else ()
    found = None
    for at, placement in enumerate(spec.placements):
        names = spec.mesh.mesh_dim_names
        axis = names[at] if names else ""
        if spec.mesh.size(at) == 1 or axis in own:
            continue
        ranks = _ranks(spec.mesh.get_group(at))
        if not (placement.is_shard() or placement.is_replicate()):
            raise UnknownMesh(f"the parameter {name!r} has the placement {placement}: a plan file has only parts and whole parameters")
        division = Division(ranks, placement.dim if placement.is_shard() else None, axis)
        if found is not None and found.dim is not None and division.dim is not None:
            raise UnknownMesh(f"the parameter {name!r} is divided over two dimensions of its mesh, {found.axis!r} and {axis!r}: a plan file has one")
        if found is None or found.dim is None:
            found = division
    return found


def _is_expert(division: Any, parameter: Any) -> Any:
    """Whether the division is that of experts, by the name of its axis or, if that says nothing, by shape: weights of experts are [expert, …, …]."""
    words = set(re.split("[^a-z]+", division.axis.lower()))
    if words & {"ep", "expert", "experts", "moe"}:
        return True
    if words & {"tp", "tensor"}:
        return False
    return division.dim == 0 and len(parameter._orig_size) == 3


def has_experts(group: Any) -> bool:
    """Whether a group of parameters is on the experts' mesh."""
    for p in group.fsdp_params:
        division = division_of(p._module_info.param_name, p)
        if division is not None and division.dim is not None and _is_expert(division, p):
            return True
    return False


class UnitMesh:
    """The ranks over which one group of a unit's parameters is sharded and replicated, and how these were divided before.

    module_names    by id of a module: its name in the model
    """

    def __init__(self, unit: Any, module_names: Any) -> None:
        mesh = unit.group.mesh_info
        self.unit = unit
        self.shard = _ranks(mesh.shard_process_group) if hasattr(mesh, "shard_process_group") else [0]
        self.replicate = _ranks(mesh.replicate_process_group) if hasattr(mesh, "replicate_process_group") else [0]
        self.divisions = {}  # by name of the parameter
        self.expert = None  # ranks over which its experts are divided
        self.shard_dims = {}
        for p in unit.group.fsdp_params:
            info = p._module_info
            name = ".".join(part for part in (module_names[id(info.module)], info.param_name) if part)
            self.shard_dims[name] = p.fsdp_placement.dim
            division = division_of(name, p)
            if division is None:
                continue
            if division.dim is not None and _is_expert(division, p):
                if division.dim != 0:
                    raise UnknownMesh(f"the experts' parameter {name!r} is divided along dimension {division.dim}: a plan file divides experts along 0")
                self.expert = division.ranks
            else:
                self.divisions[name] = division
        if self.expert and any(each.dim is not None for each in self.divisions.values()):
            raise UnknownMesh(f"the unit {unit.name!r} shards parameters of experts and of tensor parallelism over the same ranks: a plan file has a mesh for each")


def _stride(ranks: Sequence[int]) -> Any:
    """The distance between the ranks; None: they are not at equal distances."""
    steps = {b - a for a, b in zip(ranks, ranks[1:])}
    return steps.pop() if len(steps) == 1 else 1 if not steps else None


def _require(ranks: Sequence[int], stride: int, what: str) -> None:
    if len(ranks) > 1 and _stride(ranks) != stride:
        raise UnknownMesh(f"{what} is over the ranks {', '.join(map(str, ranks))}; a plan file needs ranks that are {stride} apart")


def mesh_of(units: Any, groups: Any) -> Any:
    """The "mesh" of a plan file, and for each unit whether it is on the experts' mesh.

    units     UnitMesh of each unit
    groups    (name, ranks) of every process group of this process, and of axes that have the default group
    """
    dense = [each for each in units if each.expert is None]
    tensor = next((d.ranks for each in dense for d in each.divisions.values()), [0])
    first = dense[0] if dense else units[0]
    for each in dense:
        if (each.shard, each.replicate) != (first.shard, first.replicate):
            raise UnknownMesh(f"the unit {each.unit.name!r} is sharded over other ranks than {first.unit.name!r}: a plan file has one mesh, and one for experts")
        for name, division in each.divisions.items():
            if division.ranks != tensor:
                raise UnknownMesh(f"the parameter {name!r} is divided over other ranks than the first one that is divided: a plan file has one axis 'tensor'")
    experts = [each for each in units if each.expert is not None]
    shard, replicate = first.shard, first.replicate
    expert = experts[0].expert if experts else [0]
    for each in experts:
        if (each.shard, each.replicate, each.expert) != (experts[0].shard, replicate, expert):
            raise UnknownMesh(f"the experts of {each.unit.name!r} are on other ranks than those of {experts[0].unit.name!r}: a plan file has one mesh for experts")
        _require(each.expert, 1, f"the expert parallelism of {each.unit.name!r}")
        _require(each.shard, len(expert), f"the sharding of {each.unit.name!r}")
    _require(tensor, 1, "tensor parallelism")
    if not dense:
        # All parameters are those of experts: the ranks that shard and divide them are one replica.
        shard = list(range(len(shard) * len(expert)))
    else:
        _require(shard, len(tensor), f"the sharding of {first.unit.name!r}")
    replica = len(shard) * len(tensor)
    _require(replicate, replica, "the replication")
    if experts and len(experts[0].shard) * len(expert) != replica:
        raise UnknownMesh(f"experts are on {len(experts[0].shard)} x {len(expert)} ranks, and the other parameters on {replica}: a plan file needs as many")
    context = max((len(ranks) for description, ranks in groups if _is_context(description) and set(ranks) <= set(shard)), default=1)
    mesh = {"replicate": len(replicate), "shard": len(shard) // context}
    for axis, size in (("context", context), ("tensor", len(tensor)), ("expert", len(expert))):
        if size > 1:
            mesh[axis] = size
    return mesh


def _is_context(description: str) -> Any:
    """Whether a process group is that of context parallelism only: torchtitan's "dp_shard_cp" shards."""
    words = set(re.split("[^a-z]+", description.lower()))
    return bool(words & {"cp", "context"}) and not words & {"dp", "shard", "fsdp", "replicate"}


def _style(kind: Any, dims: Any) -> Any:
    """The style of a module whose own parameters are divided along these dimensions (by short name), or None."""
    weight, bias = dims.get("weight"), dims.get("bias")
    if set(dims) <= {"weight", "bias"}:
        if kind == "Linear" and weight == 0 and bias in (0, None):
            return "column" if "bias" not in dims or bias == 0 else None
        if kind == "Linear" and weight == 1 and bias is None:
            return "row"
        if kind == "Embedding" and weight is not None:
            return "vocabulary" if weight == 0 else "column"
    return None


def _pattern(name: str) -> Any:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _shortened(entries: Any, names: Collection[str]) -> Any:
    """{glob: value} of {name: value}: numbers in names become * where all names that then match have the same value."""
    by_pattern = defaultdict(set)
    for name in names:
        by_pattern[_pattern(name)].add(name)
    short = {}
    for name, value in entries.items():
        alike = by_pattern[_pattern(name)]
        same = all(entries.get(other) == value for other in alike)
        short[_pattern(name) if same and len(alike) > 1 else name] = value
    return short


def tensor_parallel_of(units: Any, model: Any) -> dict[str, Any]:
    """The "tensor_parallel" of a plan file: styles of modules, and dimensions of parameters whose module has no style's."""
    from .live_units import clean_name

    modules = {clean_name(name): module for name, module in model.named_modules()}
    parameters = [clean_name(name) for name, _ in model.named_parameters(remove_duplicate=False)]
    of_module: defaultdict[Any, dict[Any, Any]] = defaultdict(dict)
    for each in units:
        for name in each.shard_dims:
            division = each.divisions.get(name)
            module, _, short = name.rpartition(".")
            of_module[module][short] = division.dim if division else None
    styles, dims = {}, {}
    for module, own in of_module.items():
        if all(dim is None for dim in own.values()):
            continue
        kind = next((base.__name__ for base in type(modules.get(module)).__mro__ if base.__name__ in ("Linear", "Embedding")), "")
        style = _style(kind, own)
        if style:
            styles[module] = style
        else:
            dims.update({f"{module}.{short}" if module else short: dim for short, dim in own.items() if dim is not None})
    return {**_shortened(styles, modules), **_shortened(dims, parameters)}


def _globs(names: Iterable[str], others: Any) -> list[Any]:
    """Globs that match the parameters `names` and none of `others`: modules with all of their parameters, where these are among them."""
    globs: dict[Any, Any] = {}  # in order
    for name in names:
        parts = name.split(".")
        prefixes = [".".join(parts[:length]) + "." for length in range(1, len(parts))]
        module = next((prefix for prefix in prefixes if not any(other.startswith(prefix) for other in others)), None)
        globs[f"{module}**" if module else name] = None
    return list(globs)


def groups_of(meshes: Any, any_experts: bool) -> Any:
    """The "groups" of a unit in a plan file; None: those that it has by default.

    meshes         UnitMesh of each group of the unit's parameters
    any_experts    whether the plan's mesh divides experts: parameters of modules named "experts" are then a group of their own by default
    """
    kinds: dict[Any, Any] = {}  # (whether of experts, dimension): names of parameters
    for each in meshes:
        for name, dim in each.shard_dims.items():
            kinds.setdefault((each.expert is not None, dim), []).append(name)
    # The group with most parameters is last: its glob matches all that no other group has.
    ordered = sorted(kinds, key=lambda kind: len(kinds[kind]))
    named = any_experts and any("experts" in name.split(".") for each in meshes for name in each.shard_dims)
    if ordered == [] or (ordered == [(False, 0)] and not named):
        return None
    groups = []
    for kind in ordered:
        others = [name for other in ordered[ordered.index(kind) + 1:] for name in kinds[other]]
        groups.append({"parameters": _globs(kinds[kind], others) if others else ["**"], "mesh": "expert" if kind[0] else "dense", "shard_dim": kind[1]})
    return groups
