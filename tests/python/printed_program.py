#!/usr/bin/env python3
"""Runs the lines of `shardlens plan --pytorch` on four Gloo ranks: printed_program.py LINES OUT.json

LINES: the printed lines, for a model with the names of tests/data/llama-tiny. OUT: the loss and the largest difference of a gradient from those of the same model on one rank, and the
placements of some parameters.
"""
import copy
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

RANKS, WIDTH, INNER, HEADS, KEYS, HEAD, VOCABULARY, LAYERS = 4, 64, 172, 4, 2, 16, 256, 4


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = linear(WIDTH, HEADS * HEAD), linear(WIDTH, KEYS * HEAD), linear(WIDTH, KEYS * HEAD), linear(HEADS * HEAD, WIDTH)

    def forward(self, hidden_states):
        q, k, v = (each(hidden_states).unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), MLP()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x):
        x = x + self.self_attn(hidden_states=self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.layers, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS)), nn.RMSNorm(WIDTH)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.lm_head = Decoder(), linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))


def loss_of(model):
    tokens = torch.arange(32).reshape(2, 16) * 7 % VOCABULARY
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1).flatten())
    loss.backward()
    return loss.item()


def train(rank, lines, out, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = Model()
    whole = copy.deepcopy(model)
    exec(lines, {**globals(), "model": model, "device": "cpu"})
    losses = [loss_of(each) for each in (whole, model)]
    full = lambda each: each.full_tensor() if isinstance(each, DTensor) else each  # noqa: E731
    different = max((full(a.grad) - b.grad).abs().max().item() for a, b in zip(model.parameters(), whole.parameters()))
    if rank == 0:
        placements = {name: [str(mesh) for mesh in zip(p.device_mesh.mesh_dim_names, p.placements)] for name, p in model.named_parameters()}
        out.write_text(json.dumps({"losses": losses, "different": different, "placements": placements}))
    dist.destroy_process_group()


def main():
    lines, out = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(RANKS):
            child = os.fork()  # before this process has threads: torch is imported once
            if child == 0:
                code = 1
                try:
                    train(rank, lines, out, f"{folder}/rendezvous")
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
