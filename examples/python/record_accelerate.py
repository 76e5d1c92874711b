#!/usr/bin/env python3
"""Trains a small transformer in a loop with accelerate, and records it by one line after prepare(). On two CPU processes:

    torchrun --nproc-per-node 2 examples/python/record_accelerate.py out/accelerate

On CPUs accelerate has DistributedDataParallel only; on GPUs give it a FullyShardedDataParallelPlugin (fsdp_version=2), and the line is the same.
"""
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

from shardlens.clients import record_accelerate

HIDDEN, STEPS = 64, 7


def train(directory: str | None) -> list[float]:
    """Trains in this process, recorded if there is a directory. Returns the losses."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=HIDDEN, nhead=4, dim_feedforward=4 * HIDDEN, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(256, HIDDEN), nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False), nn.Linear(HIDDEN, 256))
    rows = torch.randint(0, 256, (8 * STEPS, 33), generator=torch.Generator().manual_seed(7))
    model, optimizer, data = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=2))
    if directory is not None:
        record_accelerate(accelerator, directory)
    losses = []
    for (tokens,) in data:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(directory: str) -> None:
    torch.set_num_threads(1)
    train(directory)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
