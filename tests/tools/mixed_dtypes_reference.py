"""Writes tests/data/mixed_dtypes.json: what PyTorch's FSDP2 does on Gloo ranks with units whose frozen parameters have other dtypes than the trained ones.

    python tests/tools/mixed_dtypes_reference.py tests/data        (torch 2.11)

The model has two adapters, each a unit, and a root with parameters of its own. Values come from torch.randn with a generator: parameter i has seed
i + 1, the input [3, 5] of rank r in step s seed 100 + 10 s + r. Trained with SGD, lr 0.1. Per step: dtype and bytes of each all-gather's output and of
each reduce-scatter's input, in order, and the whole gradient of every parameter (null: frozen). `refused`: the type of the exception when trained
parameters have two dtypes.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STEPS = 2
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASES = [(2, {}, None), (3, {}, None), (3, {"param_dtype": "bf16", "reduce_dtype": "fp32"}, BF16)]


class Adapter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Parameter(torch.zeros(5, 5, dtype=torch.bfloat16), requires_grad=False)
        self.gain = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64), requires_grad=False)
        self.down = torch.nn.Parameter(torch.zeros(3, 5))
        self.up = torch.nn.Parameter(torch.zeros(5, 3))

    def forward(self, x):
        frozen = (x @ self.base.to(x.dtype).t()) * self.gain.to(x.dtype)
        return torch.tanh(frozen + x @ self.down.t() @ self.up.t())


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(5, dtype=torch.float16), requires_grad=False)
        self.first, self.second = Adapter(), Adapter()
        self.head = torch.nn.Parameter(torch.zeros(2, 5))
        for i, p in enumerate(self.parameters()):
            p.data.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i + 1)) * 0.4)

    def forward(self, x):
        return self.second(self.first(x + self.shift.to(x.dtype))) @ self.head.t()


def sharded(mesh, policy):
    model = Adapted()
    options = {"mesh": mesh} | ({} if policy is None else {"mp_policy": policy})
    for unit in (model.first, model.second, model):
        fully_shard(unit, **options)
    return model


def refusal(mesh):
    model = Adapted()
    model.first.down.data = model.first.down.data.double()
    fully_shard(model, mesh=mesh)
    try:
        model(torch.zeros(3, 5))
    except Exception as error:
        return type(error).__name__
    return None


def run(rank, ranks, mixed, policy, case):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29680 + case))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    seen = {"gathered": [], "reduced": []}
    gather, reduce = dist.all_gather_into_tensor, dist.reduce_scatter_tensor

    def gathered(output_tensor, *args, **kwargs):
        seen["gathered"].append([str(output_tensor.dtype).removeprefix("torch."), output_tensor.nbytes])
        return gather(output_tensor, *args, **kwargs)

    def reduced(output, input, *args, **kwargs):
        seen["reduced"].append([str(input.dtype).removeprefix("torch."), input.nbytes])
        return reduce(output, input, *args, **kwargs)
    model = sharded(mesh, policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for step in range(STEPS):
        dist.all_gather_into_tensor, dist.reduce_scatter_tensor = gathered, reduced
        x = torch.randn((3, 5), generator=torch.Generator().manual_seed(100 + 10 * step + rank))
        model(x).float().pow(2).mean().backward()
        dist.all_gather_into_tensor, dist.reduce_scatter_tensor = gather, reduce
        grads = [None if p.grad is None else p.grad.full_tensor().flatten().tolist() for p in model.parameters()]
        steps.append({"gathered": list(seen["gathered"]), "reduced": list(seen["reduced"]), "grads": grads})
        for each in seen.values():
            each.clear()
        optimizer.step()
        optimizer.zero_grad()
    refused = refusal(mesh)
    if rank == 0:
        with open(f"{sys.argv[1]}/mixed_dtypes.{case}", "w") as f:
            json.dump({"ranks": ranks, "mixed_precision": mixed, "refused": refused, "steps": steps}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    cases = []
    for index, (world, keys, chosen) in enumerate(CASES):
        mp.spawn(run, args=(world, keys, chosen, index), nprocs=world)
        part = f"{sys.argv[1]}/mixed_dtypes.{index}"
        with open(part) as f:
            cases.append(f.read())
        os.remove(part)
    with open(f"{sys.argv[1]}/mixed_dtypes.json", "w") as f:
        f.write('{"cases": [\n ' + ",\n ".join(cases) + "\n]}\n")
