#!/usr/bin/env python3
"""PyTorch FSDP2 on one GPU, to compare with `shardlens capture --device cuda`: same model, tokens, precision and optimizer.

    fsdp2_on_gpu.py --model DIR --tokens FILE [--steps N] [--batch B] [--seq T] [--world-size W] [--trace FILE] [--record DIR]

--trace: as many steps again are recorded by PyTorch's profiler, which writes FILE. --record: the steps are recorded by shardlens.record. W = 1: FSDP2 over one rank. W > 1: rank 0 of W on a fake group, whose collectives do nothing. Needs only torch: the Llama is implemented here, with
the arithmetic of transformers. Prints {"step_ms": […], "loss": […]} as its last line; "recorded_ms" are the steps with the profiler.
"""
import argparse
import contextlib
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class RMSNorm(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(features)), eps

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or c["hidden_size"] // self.heads
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, self.head_dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (r * cos + torch.cat((-r[..., r.shape[-1] // 2:], r[..., :r.shape[-1] // 2]), -1) * sin for r in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.head_dim = self.layers[0].self_attn.head_dim
        self.theta = c["rope_theta"]

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        inverse = self.theta ** -(torch.arange(0, self.head_dim, 2, device=x.device).float() / self.head_dim)
        half = torch.arange(tokens.shape[1], device=x.device).float()[:, None] * inverse[None]
        angles = torch.cat((half, half), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


def batches(path, seq, batch, world_size, rank=0):
    """The batches that docs/reference/cli.md defines for --tokens: sample i is tokens[i·T … i·T+T]."""
    tokens = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint16).to(torch.int64)
    samples = (tokens.numel() - 1) // seq
    step = 0
    while True:
        rows = [((step * world_size + rank) * batch + b) % samples for b in range(batch)]
        yield torch.stack([tokens[i * seq:i * seq + seq + 1] for i in rows])
        step += 1


def start(world_size):
    if world_size == 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)


def record(directory, model, optimizer):
    import shardlens
    return shardlens.record(directory, model=model, optimizer=optimizer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--trace", type=pathlib.Path)
    parser.add_argument("--record", type=pathlib.Path)
    a = parser.parse_args()
    torch.cuda.set_device(0)
    start(a.world_size)
    mesh = dist.init_device_mesh("cuda", (a.world_size,))
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(json.loads((a.model / "config.json").read_text()))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    source, step_ms, losses = batches(a.tokens, a.seq, a.batch, a.world_size), [], []

    def step():
        begin = time.perf_counter()
        tokens = next(source).cuda()
        logits = model(tokens[:, :-1].contiguous())
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])  # reported every step, as Shardlens does
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        return 1e3 * (time.perf_counter() - begin)

    with contextlib.nullcontext() if a.record is None else record(a.record, model, optimizer) as recorder:
        for _ in range(a.steps):
            step_ms.append(step())
            if recorder is not None:
                recorder.step(losses[-1])
    result = {"step_ms": step_ms, "loss": losses}
    if a.trace:
        with torch.profiler.profile(experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)) as profiler:
            result["recorded_ms"] = []
            for _ in range(a.steps):
                result["recorded_ms"].append(step())
                profiler.step()
        profiler.export_chrome_trace(str(a.trace))
    print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
