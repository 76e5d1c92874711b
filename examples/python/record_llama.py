#!/usr/bin/env python3
"""Trains a small Llama of transformers under PyTorch's FSDP2 and records it. On two CPU processes:

    torchrun --nproc-per-node 2 examples/python/record_llama.py out/llama

look_at_run.ipynb shows the run, and test_overlap.py asserts on it:

    pytest -p shardlens.pytest_plugin --shardlens-run out/llama examples/python/test_overlap.py
"""
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import shardlens


def main(directory: str) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
        tie_word_embeddings=False))
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model.lm_head, reshard_after_forward=False)  # backward needs it first
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with shardlens.record(directory, model=model, optimizer=optimizer) as rec:
        for _ in range(6):
            tokens = torch.randint(0, 256, (4, 32))
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.step(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
