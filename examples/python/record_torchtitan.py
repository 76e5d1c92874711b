#!/usr/bin/env python3
"""Trains a small Llama of torchtitan 0.2.2 with torchtitan's own sharding and optimizers in a loop, and records it by one line. On two CPU processes:

    torchrun --nproc-per-node 2 examples/python/record_torchtitan.py out/torchtitan

torchtitan's own Trainer needs GPUs: there, call record_loop() with trainer.model_parts[0] and trainer.optimizers before trainer.train().
"""
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.models.llama3.infra.parallelize import apply_fsdp
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer

from shardlens.clients import record_loop

HIDDEN, STEPS = 64, 7


def train(directory: str | None) -> list[float]:
    """Trains in this process, recorded if there is a directory. Returns the losses."""
    torch.manual_seed(0)
    model = Transformer(TransformerModelArgs(dim=HIDDEN, n_layers=3, n_heads=4, n_kv_heads=2, vocab_size=256, max_seq_len=32))
    apply_fsdp(model, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",)), param_dtype=torch.float32, reduce_dtype=torch.float32, pp_enabled=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # Gloo has no reduction that also multiplies
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    optimizers = OptimizersContainer([model], torch.optim.AdamW, {"lr": 1e-3})
    if directory is not None:
        record_loop(directory, model=model, optimizer=optimizers)
    generator, losses = torch.Generator().manual_seed(7 + dist.get_rank()), []
    for _ in range(STEPS):
        tokens = torch.randint(0, 256, (2, 33), generator=generator)
        optimizers.zero_grad()
        loss = cross_entropy_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizers.step()
        losses.append(loss.item())
    return losses


def main(directory: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(directory)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
