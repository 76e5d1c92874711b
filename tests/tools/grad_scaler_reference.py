"""Writes tests/data/grad_scaler.json: what PyTorch's ShardedGradScaler does on two Gloo ranks.

    python tests/tools/grad_scaler_reference.py tests/data        (torch 2.11)

Per step: the gradient that each rank sees (already multiplied by the scale; "inf" and "nan" as text), the scale before and
after the step, whether the optimizer stepped, and the parameter after it (SGD, lr 1, no momentum).
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

INITIAL, INTERVAL = 8.0, 3
# The loss's derivative on ranks 0 and 1, before scaling.
STEPS = [(1.0, 2.0), ("inf", 1.0), (0.5, 0.25), (1.0, "nan"), (1.0, 1.0), (1.0, 1.0), (2.0, -1.0), (1.0, 1.0), ("-inf", "inf"), (0.125, 4.0),
         (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]


def work(rank, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29671")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    p = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=1.0)
    scaler = ShardedGradScaler(device="cpu", init_scale=INITIAL, growth_interval=INTERVAL, process_group=dist.group.WORLD)
    rows = []
    for step in STEPS:
        before = scaler.get_scale()
        derivative = torch.tensor([1.0, float(step[rank])])
        p.grad = scaler.scale(derivative)
        kept = p.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        rows.append({"derivative": list(step), "scale": before, "next_scale": scaler.get_scale(), "stepped": not torch.equal(kept, p.detach()),
                     "parameter": p.tolist()})
    both = [None, None]
    dist.all_gather_object(both, rows)
    if rank == 0:
        steps = [{**a, "parameter": [a["parameter"], b["parameter"]]} for a, b in zip(*both)]
        with open(os.path.join(out, "grad_scaler.json"), "w") as f:
            f.write('{"initial": %s, "interval": %d, "steps": [\n' % (INITIAL, INTERVAL) + ",\n".join(" " + json.dumps(s) for s in steps) + "\n]}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
