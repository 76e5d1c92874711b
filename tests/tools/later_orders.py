#!/usr/bin/env python3
"""Orders of hooks and collectives under settings that FSDP2 has from torch 2.13 and 2.15 on, as torch records them.

    later_orders.py [--out FILE]      torch 2.15 or later; makes tests/data/later_orders.json

A model of an embedding, four blocks and a head; each block is a unit, and so is the embedding where a case says so. It trains on the "fake" process
group, so one process is enough. The codes are those of group_orders.py, with u for the embedding's unit, E for the begin and e for the end of
finalize_backward(). Besides, for each case

    inputs     the most inputs of reductions that FSDP keeps at the same time
    stored     bytes of unsharded parameters that have storage between two steps, and `whole`: that they have unsharded
"""
import argparse
import json
from pathlib import Path

import group_orders

OUT = Path(__file__).resolve().parents[1] / "data/later_orders.json"
BLOCKS, WORLD = 4, 2
# finalize: the program ends the backward; microbatches; no_sync: only the last one reduces, or none before finalize_backward(); unused: a block
# whose output the loss does not depend on.
CASES = {
    "default": {},
    "two inputs": {"inputs": 2},
    "three inputs": {"inputs": 3},
    "kept storage": {"keep_storage": True},
    "waits": {"finalize": "waits"},
    "waits, embedding": {"finalize": "waits", "embedding": True},
    "waits, microbatches": {"finalize": "waits", "embedding": True, "microbatches": 2},
    "waits, no sync": {"finalize": "waits", "embedding": True, "microbatches": 3, "no_sync": True},
    "reduces": {"finalize": "reduces", "no_sync": True},
    "reduces, microbatches": {"finalize": "reduces", "embedding": True, "microbatches": 2, "no_sync": True},
    "unused": {"unused": 1},
    "unused, zeros": {"unused": 1, "zeros": True},
}


def watch(events, most):
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fully_shard

    group_orders.watch(events)
    group_orders.wrap(_fully_shard.FSDPModule, "finalize_backward", lambda self: events.append("Er"), lambda self, _: events.append("er"))
    group_orders.wrap(_fsdp_param_group.FSDPParamGroup, "post_backward",
                      after=lambda self, _: most.append(len(self.comm_ctx.reduce_scatter_states)))


def build(case):
    import torch
    import torch.nn as nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layers, self.head = nn.Embedding(16, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(BLOCKS)), nn.Linear(8, 16)

        def forward(self, x):
            x = self.embed(x)
            for index, layer in enumerate(self.layers):
                y = torch.tanh(layer(x))
                x = x if index == case.get("unused") else y
            return self.head(x)

    model = Model()
    mesh = init_device_mesh("cpu", (WORLD,))
    named = [(str(i), layer) for i, layer in enumerate(model.layers)] + ([("u", model.embed)] if case.get("embedding") else []) + [("r", model)]
    for name, module in named:
        fully_shard(module, mesh=mesh)
        for group in module._get_fsdp_state()._fsdp_param_groups:
            group.shown, group.last = name, True
            for parameter in group.fsdp_params:
                parameter.shown = name
    model.set_reduce_scatter_max_input_buffers(case.get("inputs", 1))
    model.set_keep_unsharded_storage(case.get("keep_storage", False))
    model.set_reduce_scatter_unused_params(case.get("zeros", False))
    model.set_manual_backward_finalization("finalize" in case)
    return model


def step(model, case, events):
    import torch

    microbatches = case.get("microbatches", 1)
    for microbatch in range(microbatches):
        last = microbatch + 1 == microbatches
        model.set_requires_gradient_sync(not case.get("no_sync") or (last and case.get("finalize") != "reduces"))
        loss = model(torch.arange(8)).sum()
        events.append("|")
        loss.backward()
    if "finalize" in case:
        model.set_requires_gradient_sync(True)
        model.finalize_backward()


def bytes_of(model):
    """Of all unsharded parameters: what their storages have, and what they have when they are unsharded."""
    outputs = [tensor for module in model.modules() if hasattr(module, "_get_fsdp_state") for group in module._get_fsdp_state()._fsdp_param_groups
               for parameter in group.fsdp_params for tensor in parameter.all_gather_outputs]
    return sum(tensor.untyped_storage().size() for tensor in outputs), sum(tensor.numel() * tensor.itemsize for tensor in outputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    events, most, cases = [], [], {}
    watch(events, most)
    for name, case in CASES.items():
        model = build(case)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for _ in range(3):
            events.clear()
            most.clear()
            step(model, case, events)
            optimizer.step()
            optimizer.zero_grad()
        stored, whole = bytes_of(model)
        cases[name] = {"case": case, "events": " ".join(events), "inputs": max(most), "stored": stored, "whole": whole}
    options.out.write_text(json.dumps({"torch": torch.__version__, "made_by": "tests/tools/later_orders.py", "cases": cases}, indent=1) + "\n")
    print(f"{len(cases)} cases in {options.out}")


if __name__ == "__main__":
    main()
