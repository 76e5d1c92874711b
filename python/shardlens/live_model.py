"""The module tree of a live model as a model file (`shardlens docs model`), with the shapes of its whole parameters."""
from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from .live_mesh import dtensor_spec
from .live_units import clean_name, fsdp1_units, fsdp2_units, is_a, unwrap_ddp


def _is_wrapper(module: Any) -> Any:
    return is_a(module, "FullyShardedDataParallel", "CheckpointWrapper", "OptimizedModule")


def _class_of(module: Any) -> Any:
    """The class without the mixin that `fully_shard` puts in front of it, and without the subclass that makes properties of its parameters."""
    kind = type(module)
    base = kind.__mro__[1] if len(kind.__mro__) > 1 else kind
    if kind.__name__ in (f"Parametrized{base.__name__}", f"SimpleFSDP{base.__name__}"):
        return base.__name__
    return next((base.__name__ for base in kind.__mro__[2:3]), kind.__name__) if kind.__name__.startswith("FSDP") and len(kind.__mro__) > 2 and kind.__mro__[1].__name__ == "FSDPModule" else kind.__name__


def _flattened(model: Any) -> Any:
    """For FSDP1: name of each original parameter: shape, over all flat parameters."""
    shapes = {}
    for prefix, module in fsdp1_units(model):
        handle = getattr(module, "_handle", None)
        if handle is None:
            continue
        flat = handle.flat_param
        for name, shape in zip(flat._fqns, flat._shapes):
            full = clean_name(f"{prefix}.{name}" if prefix else name)
            shapes[full] = list(shape)
    return shapes


def _whole(model: Any) -> Any:
    """For FSDP2: id of each parameter: the shape that it has when no rank has only a part of it."""
    shapes = {}
    for unit in fsdp2_units(model):
        for p in unit.group.fsdp_params:
            if hasattr(p, "_orig_size"):
                # Tensor and expert parallelism divide a parameter before FSDP2 does.
                spec = dtensor_spec(p)
                whole = spec.shape if spec is not None else p._orig_size
                for tensor in (p.sharded_param, getattr(p, "_unsharded_param", None)):  # the module has one or the other
                    shapes[id(tensor)] = list(whole)
    return shapes


def _dtype(tensor: Any) -> Any:
    return str(tensor.dtype).removeprefix("torch.")


def model_of(model: Any) -> dict[str, Any]:
    """A dict with the contents of model.json, without steps."""
    import torch

    model, _ = unwrap_ddp(model)
    shapes = _flattened(model)
    whole = _whole(model)
    named = model
    while _is_wrapper(named):  # the model's own class
        named = next(child for short, child in named.named_children() if clean_name(short) == "")
    modules: list[dict[str, Any]] = []
    parameters: list[dict[str, Any]] = []
    buffers: list[dict[str, Any]] = []
    first: dict[Any, Any] = {}  # id of a parameter or buffer: its first name
    seen = set()
    computed: list[str] = []  # modules whose parameter their parent's property gives
    base_forwards = (torch.nn.ModuleList.forward, torch.nn.Module.forward)

    def add(full: str, tensor: Any, out: list[dict[str, Any]]) -> None:
        owner = first.setdefault(id(tensor), full)
        shape = whole.get(id(tensor), list(tensor.shape))
        row = {"name": full, "shape": shapes.get(owner, shape), "dtype": _dtype(tensor)}
        if out is parameters:
            row["requires_grad"] = tensor.requires_grad
        if owner != full:
            row["same_as"] = owner
        out.append(row)

    for raw, module in model.named_modules(remove_duplicate=False):
        fqn = clean_name(raw)
        if _is_wrapper(module):
            continue
        if fqn in seen or fqn.startswith(tuple(f"{name}." for name in computed[-1:])):
            continue
        seen.add(fqn)
        if is_a(module, "ParametrizationList") and set(module._parameters) == {"original"}:
            computed.append(fqn)
            add(clean_name(f"{raw}.original"), module._parameters["original"], parameters)
            continue
        modules.append({"fqn": fqn, "class": _class_of(module), "forward": type(module).forward not in base_forwards})
        for table, out in ((module._parameters, parameters), (module._buffers, buffers)):
            for short, tensor in table.items():
                if tensor is not None and not short.startswith("_flat_param"):
                    add(f"{fqn}.{short}" if fqn else short, tensor, out)
    known = {row["name"] for row in parameters}
    for full, shape in shapes.items():  # FSDP1 without use_orig_params: the modules have plain tensors
        if full not in known:
            parameters.append({"name": full, "shape": shape, "dtype": "float32", "requires_grad": True})
    elements: Counter[Any] = Counter()
    for row in parameters:
        if "same_as" not in row:
            elements[row["dtype"]] += math.prod(row["shape"])
    return {
        "shardlens_model": 1,
        "name": _class_of(named),
        "dtype": max(elements, key=lambda dtype: elements[dtype], default="float32"),
        "origin": {"made_by": "shardlens.record", "torch": torch.__version__},
        "modules": modules,
        "parameters": parameters,
        "buffers": buffers,
        "inputs": [],
    }


def config_of(model: Any) -> str | None:
    """The config.json of a model of transformers, as save_pretrained() writes it; None: it is no such model."""
    inner, _ = unwrap_ddp(model)
    config: Any = getattr(inner, "config", None)
    if not isinstance(getattr(config, "model_type", None), str) or not hasattr(config, "to_json_string"):
        return None
    written = json.loads(config.to_json_string())
    owner = next((module for module in inner.modules() if vars(module).get("config") is config), inner)
    written.setdefault("architectures", [_class_of(owner)])
    return json.dumps(written, indent=2) + "\n"
