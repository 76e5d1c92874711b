#!/usr/bin/env python3
"""Trains a small transformer under PyTorch's FSDP2 and records it. On two CPU processes:

    torchrun --nproc-per-node 2 examples/python/record_fsdp2.py out/fsdp2-run
"""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import shardlens


def main(directory: str) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(256, 64), encoder, nn.Linear(64, 256))
    for block in encoder.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with shardlens.record(directory, model=model, optimizer=optimizer) as rec:
        for _ in range(6):
            tokens = torch.randint(0, 256, (4, 33))
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.step(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
