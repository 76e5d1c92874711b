#!/usr/bin/env python3
"""Trains a small Llama with transformers' Trainer under FSDP2, and records it by one callback. On two CPU processes:

    torchrun --nproc-per-node 2 examples/python/record_trainer.py out/trainer

--watch N also writes a line of figures every N steps.
"""
import argparse
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

from shardlens.clients import TrainerCallback

HIDDEN, STEPS = 64, 7


def sharded_llama(directory: str) -> LlamaForCausalLM:
    """transformers shards a model with FSDP2 while it loads it."""
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(
            hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=256, max_position_embeddings=64,
            tie_word_embeddings=False)).save_pretrained(directory)
    dist.barrier()
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, distributed_config=DistributedConfig(fsdp_size=dist.get_world_size()))


def train(callbacks: list[Any]) -> list[float]:
    """Trains in this process, and returns the losses that Trainer logged."""
    with tempfile.TemporaryDirectory() as scratch:
        directories = [scratch]
        dist.broadcast_object_list(directories)
        model = sharded_llama(directories[0])
        rows = torch.randint(0, 256, (128, 32), generator=torch.Generator().manual_seed(7))
        arguments = TrainingArguments(
            output_dir=scratch, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS, logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=not torch.cuda.is_available(), dataloader_pin_memory=False, ddp_backend="gloo")
        trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows], callbacks=callbacks)
        trainer.train()
        dist.barrier()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="of the run")
    parser.add_argument("--watch", type=int, help="a line of figures every so many steps")
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.set_num_threads(1)
    train([TrainerCallback(options.directory, watch=options.watch)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
