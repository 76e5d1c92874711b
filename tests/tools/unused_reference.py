"""Writes tests/data/unused.json: what PyTorch's FSDP1 and FSDP2 do on two Gloo ranks with parameters of a unit that no, one or both ranks use.

    python tests/tools/unused_reference.py tests/data                (torch 2.11)
    python tests/tools/unused_reference.py tests/data --zeros        (torch 2.13 or later; writes unused_zeros.json)

The model is one unit with three Linear(5, 5): `a`, `b` and `never`; a case states which of them each rank runs in each step (AdamW, lr 1e-2, weight
decay 0.1). Values come from torch.randn with a generator: parameter i has seed i + 1, the input [3, 5] seed 7. Per step: the elements of each
reduce-scatter's input, and each rank's gradient of its slice of every parameter (null: none); then the parameters after the last step. There is no
case of FSDP2 on ranks that differ: their reduce-scatters have different sizes, and PyTorch hangs or fails. With --zeros, FSDP2 reduces zeros for
parameters without a gradient (set_reduce_scatter_unused_params), and all cases are FSDP2's.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS = 2
CASES = [("fsdp1", ["a", "a"]), ("fsdp1", ["a", "b"]), ("fsdp2", ["a", "a"]), ("fsdp2", ["b", "b"])]
WITH_ZEROS = [("fsdp2", ["a", "a"]), ("fsdp2", ["a", "b"])]


class Fork(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("a", "b", "never"):
            setattr(self, name, torch.nn.Linear(5, 5))
        for i, p in enumerate(self.parameters()):
            p.data.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i + 1)))

    def forward(self, x, branch):
        return getattr(self, branch)(x)


def sharded(api, zeros):
    model = Fork()
    if api == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    if zeros:
        model.set_reduce_scatter_unused_params(True)
    return model


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(model, api):
    if api == "fsdp2":
        return [p.full_tensor().flatten().tolist() for p in model.parameters()]
    from torch.distributed.fsdp import FullyShardedDataParallel
    with FullyShardedDataParallel.summon_full_params(model):
        return [p.detach().flatten().tolist() for p in model.parameters()]


def work(rank, out, zeros):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29673")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"  # FSDP2 of torch 2.15 calls the first
    sizes, reduce_scatter = [], getattr(dist, name)

    def recorded(output, input, *args, **kwargs):
        sizes.append(input.numel())
        return reduce_scatter(output, input, *args, **kwargs)
    setattr(dist, name, recorded)
    cases = []
    for api, branches in WITH_ZEROS if zeros else CASES:
        model = sharded(api, zeros)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        steps = []
        for _ in range(STEPS):
            sizes.clear()
            x = torch.randn((3, 5), generator=torch.Generator().manual_seed(7))
            model(x, branches[rank]).pow(2).mean().backward()
            grads = [None if p.grad is None else local(p.grad).flatten().tolist() for p in model.parameters()]
            both = [None, None]
            dist.all_gather_object(both, grads)
            steps.append({"reduced": list(sizes), "grads": both})
            optimizer.step()
            optimizer.zero_grad()
        cases.append({"api": api, "branches": branches, "steps": steps, "parameters": whole(model, api)})
    if rank == 0:
        with open(os.path.join(out, "unused_zeros.json" if zeros else "unused.json"), "w") as f:
            f.write('{"cases": [\n' + ",\n".join(" " + json.dumps(case) for case in cases) + "\n]}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1], "--zeros" in sys.argv[2:]), nprocs=2)
