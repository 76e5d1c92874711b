#!/usr/bin/env python3
"""Trains a small transformer with Lightning under FSDP2, and records it by one callback. On two CPU processes:

    torchrun --nproc-per-node 2 examples/python/record_lightning.py out/lightning
"""
import sys
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

from shardlens.clients import LightningCallback

HIDDEN, STEPS = 64, 7


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def configure_model(self) -> None:
        """Lightning has started the processes when it calls this."""
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(d_model=HIDDEN, nhead=4, dim_feedforward=4 * HIDDEN, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(nn.Embedding(256, HIDDEN), nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False), nn.Linear(HIDDEN, 256))
        mesh = self.device_mesh["data_parallel"]
        for block in self.model[1].layers:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def training_step(self, batch: tuple[torch.Tensor], index: int) -> torch.Tensor:
        (tokens,) = batch
        loss = nn.functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(callbacks: list[Any]) -> list[float]:
    """The losses of this rank."""
    module = Module()
    rows = torch.randint(0, 256, (64, 33), generator=torch.Generator().manual_seed(7))
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu", devices=2, strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        max_steps=STEPS, accumulate_grad_batches=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks)
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=2))
    return module.losses


def main(directory: str) -> None:
    torch.set_num_threads(1)
    train([LightningCallback(directory)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
