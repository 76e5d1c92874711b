#!/usr/bin/env python3
"""Records two trainings on two Gloo ranks under FSDP2 and torch.compile: OUT/wrapper calls a compiled forward, so that the root's hooks
never run; OUT/in_place compiles the model itself."""
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

import shardlens


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(rank, case, out, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(1)
    model = Model()
    if case == "in_place":
        model.compile(backend="eager")
    for unit in (*model.layers, model.head):
        fully_shard(unit)
    fully_shard(model)
    call = model if case == "in_place" else torch.compile(model.forward, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with shardlens.record(out / case, model=model, optimizer=optimizer, warmup=1, steps=2) as run:
            for _ in range(3):
                call(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step()
    if rank == 0:
        (out / f"{case}.warnings").write_text("\n".join(str(each.message) for each in caught))
    dist.destroy_process_group()


def main():
    out = Path(sys.argv[1])
    for case in ("wrapper", "in_place"):
        with tempfile.TemporaryDirectory() as directory:
            mp.spawn(train, args=(case, out, str(Path(directory) / "rendezvous")), nprocs=2)


if __name__ == "__main__":
    main()
