#!/usr/bin/env python3
"""Records the order of FSDP2's hooks and collectives in units with two groups of parameters.

    group_orders.py [--out FILE]      torch 2.13 or later; makes tests/data/meshes/group_orders.json

A model of an embedding, four blocks and a head. Each block is one unit whose parameters are in two groups, one over all four ranks and one over two of
them (ShardPlacementResult). It trains on the "fake" process group, so one process is enough. Methods of FSDPParamGroup and FSDPState are wrapped, nothing
of the control flow changes. Only what happens is written: an unshard that issues no all-gather leaves no event.

Codes, each followed by the unit (r: the root; 0 and 0e: the groups of block 0): F pre-forward, f end of post-forward, B pre-backward and b its end, P
post-backward and p its end, C final callback of backward and c its end; A all-gather, W its wait, R reduce-scatter, S the parameters are freed; | the
end of forward.
"""
import argparse
import functools
import json
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "data/meshes/group_orders.json"
BLOCKS, WORLD = 4, 4
CASES = {
    "default": {},
    "kept": {"keep": True},
    "lists": {"forward": 1, "backward": 1},
    "lists of two": {"forward": 2, "backward": 2},
    "checkpointed": {"checkpoint": True},
}


def wrap(owner, name, before=None, after=None):
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self, *args, **kwargs):
        seen = before(self) if before else None
        result = original(self, *args, **kwargs)
        if after:
            after(self, seen)
        return result

    setattr(owner, name, wrapped)


def watch(events):
    """Lets each method of FSDP append its event."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fsdp_state

    group = _fsdp_param_group.FSDPParamGroup

    def code(letter):
        return lambda self, *_: events.append(letter + self.shown)

    wrap(group, "pre_forward", before=code("F"))
    wrap(group, "post_forward", after=code("f"))
    # Explicit prefetches come after the pre-backwards of all groups: the last one ends with them.
    wrap(group, "pre_backward", before=code("B"), after=lambda self, _: self.last or events.append("b" + self.shown))
    wrap(_fsdp_state.FSDPState, "_pre_backward", after=lambda self, _: events.append("b" + self._fsdp_param_groups[-1].shown))
    wrap(group, "post_backward", before=code("P"), after=code("p"))
    pending = "_all_gather_result"
    wrap(group, "unshard", lambda self: getattr(self, pending), lambda self, was: was is None and getattr(self, pending) is not None and events.append("A" + self.shown))
    wrap(group, "wait_for_unshard", lambda self: getattr(self, pending), lambda self, was: was is not None and events.append("W" + self.shown))
    wrap(group, "reshard", lambda self: self.is_unsharded, lambda self, was: was and not self.is_unsharded and events.append("S" + self.shown))
    wrap(_fsdp_state.FSDPState, "_root_post_backward_final_callback", lambda self: events.append("Cr"), lambda self, _: events.append("cr"))
    reduce = _fsdp_param_group.foreach_reduce

    @functools.wraps(reduce)
    def reduced(params, *args, **kwargs):
        events.append("R" + params[0].shown)
        return reduce(params, *args, **kwargs)

    _fsdp_param_group.foreach_reduce = reduced


def build(case):
    import torch
    import torch.nn as nn
    from torch.distributed._composable import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
    from torch.distributed.tensor import Shard

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.expert = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.expert(torch.tanh(self.dense(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layers, self.head = nn.Embedding(16, 8), nn.ModuleList(Block() for _ in range(BLOCKS)), nn.Linear(8, 16)

        def forward(self, x):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    model = Model()
    meshes = init_device_mesh("cpu", (WORLD,)), init_device_mesh("cpu", (2, 2), mesh_dim_names=("efsdp", "ep"))["efsdp"]
    infos = [FSDPMeshInfo(mesh=mesh, shard_mesh_dim=0) for mesh in meshes]
    experts = {id(p) for layer in model.layers for p in layer.expert.parameters()}
    for layer in model.layers:
        if case.get("checkpoint"):
            checkpoint(layer)
        fully_shard(layer, mesh=meshes[0], reshard_after_forward=not case.get("keep"),
                    shard_placement_fn=lambda p: ShardPlacementResult(placement=Shard(0), mesh_info=infos[id(p) in experts]))
    fully_shard(model, mesh=meshes[0], reshard_after_forward=not case.get("keep") and None)
    for i, layer in enumerate(model.layers):
        if later := list(model.layers[i + 1:i + 1 + case.get("forward", 0)]):
            layer.set_modules_to_forward_prefetch(later)
        if earlier := list(model.layers[max(0, i - case.get("backward", 0)):i])[::-1]:
            layer.set_modules_to_backward_prefetch(earlier)
    for name, module in [("r", model), *((str(i), layer) for i, layer in enumerate(model.layers))]:
        groups = module._get_fsdp_state()._fsdp_param_groups
        for index, group in enumerate(groups):
            group.shown, group.last = name + ("e" if index else ""), index + 1 == len(groups)
            for parameter in group.fsdp_params:
                parameter.shown = group.shown
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    events, cases = [], {}
    watch(events)
    for name, case in CASES.items():
        model = build(case)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for _ in range(3):
            events.clear()
            loss = model(torch.arange(8)).sum()
            events.append("|")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        cases[name] = {"case": case, "events": " ".join(events)}
    options.out.write_text(json.dumps({"torch": torch.__version__, "made_by": "tests/tools/group_orders.py", "cases": cases}, indent=1) + "\n")
    print(f"{len(cases)} cases in {options.out}")


if __name__ == "__main__":
    main()
