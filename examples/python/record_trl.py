#!/usr/bin/env python3
"""Trains a small Llama with TRL's SFTTrainer under FSDP2, and records it by the callback of transformers' Trainer. On two CPU processes:

    torchrun --nproc-per-node 2 examples/python/record_trl.py out/trl
"""
import sys
import tempfile
from typing import Any

import pyarrow
import torch
import torch.distributed as dist
from datasets import Dataset
from record_trainer import sharded_llama
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from shardlens.clients import TrainerCallback

STEPS = 7


def train(callbacks: list[Any]) -> list[float]:
    """Trains in this process, and returns the losses that Trainer logged."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, "<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    rows = torch.randint(0, 256, (128, 32), generator=torch.Generator().manual_seed(7)).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        directories = [scratch]
        dist.broadcast_object_list(directories)
        arguments = SFTConfig(
            output_dir=scratch, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS, logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=not torch.cuda.is_available(), dataloader_pin_memory=False, ddp_backend="gloo", max_length=32, bf16=False,
            gradient_checkpointing=False)
        data = Dataset(pyarrow.table({"input_ids": rows}), fingerprint="tokens")  # with a fingerprint, or datasets pickles the rows for one
        trainer = SFTTrainer(model=sharded_llama(directories[0]), args=arguments, train_dataset=data, processing_class=tokenizer, callbacks=callbacks)
        trainer.train()
        dist.barrier()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def main(directory: str) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.set_num_threads(1)
    train([TrainerCallback(directory)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
