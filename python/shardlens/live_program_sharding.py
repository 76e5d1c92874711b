"""The parameters that a program gathers itself: DTensors that no fully_shard manages, as SimpleFSDP has them.

The program, or the compiler that rewrites it, issues one collective for a parameter or for a bucket of several. A trace has no names of them;
`shardlens analyze` finds them by their sizes and the order of this list.
"""
from __future__ import annotations

import math
import re
from typing import Any

from .live_units import clean_name, fsdp1_units, fsdp2_units, unwrap_ddp

# Words in the names of mesh dimensions along which the model itself is divided, not only its parameters.
_OF_MODEL = {"tp", "etp", "tensor", "ep", "expert", "experts", "pp", "pipeline"}


def program_sharded(model: Any) -> list[dict[str, Any]]:
    """[{name, elements, ranks, replicas, trained}] of each such parameter, in the order of named_parameters(). `elements`: of a rank's part, with
    padding; `ranks`: over which it is sharded; `replicas`: over which its gradient is all-reduced."""
    model, ddp = unwrap_ddp(model)
    if ddp is not None or fsdp2_units(model) or fsdp1_units(model):
        return []
    rows = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not hasattr(parameter, "placements"):
            continue
        mesh = parameter.device_mesh
        size, ranks, replicas = list(parameter.shape), 1, 1
        for at, placement in enumerate(parameter.placements):
            words = set(re.split("[^a-z]+", (mesh.mesh_dim_names or [""] * mesh.ndim)[at].lower()))
            of_model = bool(words & _OF_MODEL) and not words & {"dp", "fsdp", "shard"}
            if placement.is_replicate():
                replicas *= 1 if of_model else mesh.size(at)
                continue
            dim = getattr(placement, "dim", None)
            if dim is None:
                return []  # a partial sum: not a parameter that is gathered
            size[dim] = -(-size[dim] // mesh.size(at))
            ranks *= 1 if of_model else mesh.size(at)
        if ranks > 1 or replicas > 1:
            rows.append({"name": clean_name(name), "elements": math.prod(size), "ranks": ranks, "replicas": replicas, "trained": parameter.requires_grad})
    return rows
