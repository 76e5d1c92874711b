#!/usr/bin/env python3
"""Records torch.profiler's traces of PyTorch's own FSDP1, FSDP2 and DDP, each run with a known plan, and of FSDP2 with other parallelism.

    pip install torch==2.11.0 transformers safetensors numpy
    record_pytorch_traces.py --out tests/data/pytorch_traces [--only NAME]

Per setting NAME: NAME/rank<r>.pt.trace.json.gz (Gloo CPU ranks, one thread each, one or two steps after two that are not
recorded) and, where the setting has one, NAME/plan.json, the same setting as a plan of docs/reference/plan.md: what `plan --from-trace` must
recover.
For DDP also ../NAME.expected.json: the buckets that DDP itself reports after the last step (_get_ddp_logging_data), with the names of
their parameters. The model is tests/data/llama-tiny cut to two layers, or gpt2-tiny. Traces are written without parts that no analysis
reads (flows, strides, concrete inputs), so that they stay small.
"""
import argparse
import contextlib
import gzip
import json
import os
import pathlib
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, schedule

from fsdp_reference import blocks

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
WARMUP, BATCH, SEQ = 2, 2, 32

# name: the API, PyTorch's settings, and the same settings as a plan
LAYERS = [{"modules": "model.layers.*"}, {"modules": ""}]
BF16 = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
SETTINGS = {
    "fsdp2-default": dict(api="fsdp2", ranks=2, keep=2, plan=dict(units=LAYERS)),
    "fsdp2-reshard": dict(api="fsdp2", reshard=True, clip=1.0, plan=dict(units=LAYERS, reshard_after_forward=True)),
    "fsdp2-no-reshard": dict(api="fsdp2", reshard=False, plan=dict(units=LAYERS, reshard_after_forward=False)),
    "fsdp2-prefetch": dict(
        api="fsdp2", layers=3, steps=1, reshard=True,
        forward={"": ["model.layers.0", "model.layers.1"], "model.layers.0": ["model.layers.1", "model.layers.2"],
                 "model.layers.1": ["model.layers.2"]},
        backward={"model.layers.2": ["model.layers.1", "model.layers.0"], "model.layers.1": ["model.layers.0"]},
        plan=dict(units=LAYERS, reshard_after_forward=True)),
    "fsdp2-group": dict(api="fsdp2", group=["model.norm", "lm_head"], plan=dict(
        units=[LAYERS[0], {"modules": ["model.norm", "lm_head"], "reshard_after_forward": False}, LAYERS[1]])),
    "fsdp2-bf16": dict(api="fsdp2", model="gpt2-tiny", bf16=True, optimizer="sgd", plan=dict(
        units=[{"modules": "transformer.h.*"}, {"modules": ""}], mixed_precision=BF16)),
    "fsdp2-checkpoint": dict(api="fsdp2", checkpoint=True, nested="mlp", reshard=True, plan=dict(
        units=[{"modules": "model.layers.*.mlp"}, *LAYERS], reshard_after_forward=True, activation_checkpointing=["model.layers.*"])),
    "fsdp2-hybrid": dict(api="fsdp2", ranks=4, mesh=(2, 2), plan=dict(units=LAYERS, mesh={"replicate": 2, "shard": 2})),
    "fsdp1-full": dict(api="fsdp1", keep=2, plan=dict(units=LAYERS, dialect="fsdp1")),
    "fsdp1-grad-op": dict(api="fsdp1", strategy="SHARD_GRAD_OP", clip=1.0, plan=dict(
        units=LAYERS, dialect="fsdp1", reshard_after_forward=False)),
    "fsdp1-post": dict(api="fsdp1", layers=3, steps=1, prefetch="BACKWARD_POST", plan=dict(
        units=LAYERS, dialect="fsdp1", backward_prefetch="post")),
    # With forward prefetch, gradients are ready one hook later, and BACKWARD_POST would prefetch nothing.
    "fsdp1-forward": dict(api="fsdp1", layers=3, steps=1, forward_prefetch=True, plan=dict(
        units=LAYERS, dialect="fsdp1", forward_prefetch=1)),
    "fsdp1-none": dict(api="fsdp1", steps=1, memory=True, prefetch=None, limit=False, plan=dict(
        units=LAYERS, dialect="fsdp1", backward_prefetch="none", limit_all_gathers=False)),
    # Recorded from the first allocation on, so that the allocator's totals are those of the process.
    "fsdp2-memory": dict(api="fsdp2", layers=3, seq=128, memory=True, whole=True, plan=dict(units=LAYERS, reshard_after_forward=True), reshard=True),
    "ddp-buckets": dict(api="ddp", keep=2, ddp=dict(bucket_cap_mb=0.05), plan=dict(
        units=[{"modules": "", "api": "replicate"}], bucket_cap_mb=0.05)),
    "ddp-accumulate": dict(api="ddp", accumulate=2, modules=True, ddp=dict(bucket_cap_mb=0.1, gradient_as_bucket_view=True), plan=dict(
        units=[{"modules": "", "api": "replicate"}], bucket_cap_mb=0.1, gradient_as_bucket_view=True)),
    # Other parallelism in FSDP2's units: tensor parallel MLPs, experts on other ranks, activations gathered while others are computed, an
    # output head that is called twice.
    "fsdp2-tensor": dict(api="fsdp2", ranks=4, mesh=(2, 2), axes=("dp", "tp"), tensor=True, steps=1),
    "fsdp2-experts": dict(api="experts", steps=1),
    "fsdp2-gathers": dict(api="gathers", steps=1),
    "fsdp2-accumulate": dict(api="fsdp2", accumulate=2, steps=1, bf16=True),
    "fsdp2-head-twice": dict(api="head", layers=1, steps=2),
    "fsdp1-bf16": dict(api="fsdp1", model="gpt2-tiny", bf16=True, plan=dict(
        units=[{"modules": "transformer.h.*"}, {"modules": ""}], dialect="fsdp1", mixed_precision=BF16)),
}


def make_model(s):
    from transformers import AutoConfig, AutoModelForCausalLM
    config = AutoConfig.from_pretrained(DATA / s.get("model", "llama-tiny"))
    config.num_hidden_layers = s.get("layers", 2)
    config.use_cache = False
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()


def shard_fsdp2(m, s):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    kw = dict(reshard_after_forward=s.get("reshard"))
    if "mesh" in s:
        kw["mesh"] = init_device_mesh("cpu", s["mesh"], mesh_dim_names=s.get("axes", ("replicate", "shard")))
    if s.get("tensor"):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        for block in blocks(m):
            parallelize_module(block.mlp, kw["mesh"]["tp"], {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(),
                                                             "down_proj": RowwiseParallel()})
        kw["mesh"] = kw["mesh"]["dp"]
    if s.get("bf16"):
        kw["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if s.get("checkpoint"):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
        chosen = set(blocks(m))
        apply_activation_checkpointing(m, check_fn=lambda module: module in chosen)
    for block in blocks(m):
        if "nested" in s:
            fully_shard(getattr(block, s["nested"]), **kw)
        fully_shard(block, **kw)
    if "group" in s:
        fully_shard([m.get_submodule(name) for name in s["group"]], **{**kw, "reshard_after_forward": False})
    fully_shard(m, **kw)
    for name, targets in s.get("forward", {}).items():
        m.get_submodule(name).set_modules_to_forward_prefetch([m.get_submodule(t) for t in targets])
    for name, targets in s.get("backward", {}).items():
        m.get_submodule(name).set_modules_to_backward_prefetch([m.get_submodule(t) for t in targets])
    return m


def shard_fsdp1(m, s):
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    prefetch = s.get("prefetch", "BACKWARD_PRE")
    return FullyShardedDataParallel(
        m, auto_wrap_policy=ModuleWrapPolicy({type(blocks(m)[0])}), use_orig_params=True, device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy[s.get("strategy", "FULL_SHARD")],
        backward_prefetch=None if prefetch is None else BackwardPrefetch[prefetch],
        forward_prefetch=s.get("forward_prefetch", False), limit_all_gathers=s.get("limit", True),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32) if s.get("bf16") else None)


def replicate_ddp(m, s):
    return torch.nn.parallel.DistributedDataParallel(m, **s["ddp"])


class Logits:
    def __init__(self, logits):
        self.logits = logits


class Expert(torch.nn.Module):
    """Half of the tokens go to each rank's expert and come back."""

    def __init__(self, width):
        super().__init__()
        self.gate, self.up, self.down = torch.nn.Linear(width, width), torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        from torch.distributed.nn.functional import all_to_all_single
        shape, x = x.shape, (x * self.gate(x).sigmoid()).flatten(0, 1)
        sent = all_to_all_single(torch.empty_like(x), x.contiguous())
        done = self.down(F.gelu(self.up(sent)))
        return all_to_all_single(torch.empty_like(done), done.contiguous()).view(shape)


class Gather(torch.nn.Module):
    """Gathers what both ranks computed, and computes more meanwhile."""

    def __init__(self, width):
        super().__init__()
        self.shared, self.up, self.down = torch.nn.Linear(width, width), torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        from torch.distributed._functional_collectives import all_gather_tensor_autograd
        both = all_gather_tensor_autograd(self.shared(x), 0, dist.group.WORLD)
        own = self.down(F.gelu(self.up(x)))
        return own + both.unflatten(0, (-1, x.shape[0])).mean(0)


class Layers(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256)
        self.layers = torch.nn.ModuleList({"experts": Expert, "gathers": Gather}[s["api"]](64) for _ in range(3))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return Logits(self.head(x))


class HeadTwice(torch.nn.Module):
    """The head is a unit of its own and is called for each half of the sequence, so that FSDP gathers it twice."""

    def __init__(self, s):
        super().__init__()
        self.lm = make_model(s)

    def forward(self, input_ids):
        hidden = self.lm.model(input_ids=input_ids)[0]
        return Logits(torch.cat([self.lm.lm_head(half) for half in hidden.chunk(2, dim=1)], dim=1))


def shard_custom(m, s):
    from torch.distributed.fsdp import fully_shard
    for unit in [*blocks(m.lm), m.lm.lm_head] if s["api"] == "head" else list(m.layers):
        fully_shard(unit)
    return fully_shard(m)


SHARD = {"fsdp1": shard_fsdp1, "fsdp2": shard_fsdp2, "ddp": replicate_ddp, "experts": shard_custom, "gathers": shard_custom, "head": shard_custom}
MODEL = {"experts": Layers, "gathers": Layers, "head": HeadTwice}


def buckets_of(ddp):
    """The buckets that DDP reports, with names instead of indices."""
    said = ddp._get_ddp_logging_data()
    names = [name for name, _ in ddp.module.named_parameters()]
    indices = said["rebuilt_per_bucket_param_indices"]
    return {"bytes": [int(size) for size in said["rebuilt_bucket_sizes"].split(",")],
            "parameters": [[names[int(i)] for i in bucket.split()] for bucket in indices.split(",")]}


def work(rank, s, store, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=s["ranks"])
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=s.get("memory", False), with_stack=s.get("modules", False),
                 schedule=schedule(wait=0, warmup=0, active=WARMUP + s["steps"], repeat=1) if s.get("whole") else
                 schedule(wait=1, warmup=WARMUP - 1, active=s["steps"]),
                 on_trace_ready=lambda p: p.export_chrome_trace(str(out / f"{rank}.json"))) as profiler:
        train(rank, s, out, profiler)
    dist.destroy_process_group()


def train(rank, s, out, profiler):
    torch.manual_seed(0)
    m = SHARD[s["api"]](MODEL.get(s["api"], make_model)(s), s)
    kind = torch.optim.SGD if s.get("optimizer") == "sgd" else torch.optim.AdamW
    opt = kind(m.parameters(), lr=1e-3)
    data = torch.from_numpy(np.fromfile(DATA / "tokens.u16.bin", dtype="<u2").astype(np.int64))
    seq = s.get("seq", SEQ)
    for step in range(WARMUP + s["steps"]):
        first = (step * s["ranks"] + rank) * BATCH
        x = torch.stack([data[i * seq:i * seq + seq + 1] for i in range(first, first + BATCH)])
        for microbatch in range(s.get("accumulate", 1)):
            last = microbatch + 1 == s.get("accumulate", 1)
            if s["api"] == "fsdp2" and "accumulate" in s:
                m.set_requires_gradient_sync(last)
            with contextlib.nullcontext() if last or s["api"] == "fsdp2" else m.no_sync():
                logits = m(input_ids=x[:, :-1]).logits.float()
                F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).backward()
        if "clip" in s and s["api"] == "fsdp1":
            m.clip_grad_norm_(s["clip"])
        elif "clip" in s:
            torch.nn.utils.clip_grad_norm_(m.parameters(), s["clip"])
        opt.step()
        opt.zero_grad()
        profiler.step()
    if rank == 0 and s["api"] == "ddp":
        (out / "buckets.json").write_text(json.dumps(buckets_of(m), indent=1) + "\n")


def last_steps(trace):
    """The trace without what ended before the first step that is kept."""
    begin = min(e["ts"] for e in trace["traceEvents"] if e.get("name") == f"ProfilerStep#{WARMUP}")
    trace["traceEvents"] = [e for e in trace["traceEvents"] if "ts" not in e or e["ph"] == "M" or e["ts"] >= begin]
    return trace


def slim(trace):
    """The trace without flows, Python frames other than those of modules, and arguments that nothing reads."""
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") not in ("fwdbwd", "ac2g") and
                            (e.get("cat") != "python_function" or e["name"].startswith("nn.Module: "))]
    for e in trace["traceEvents"]:
        for key in ("Input Strides", "Concrete Inputs", "Ev Idx", "Record function id", "Fwd thread id", "Python id",
                    "Python parent id", "Python module id", "Call stack"):
            e.get("args", {}).pop(key, None)
    for key in ("ERROR", "traceName", "trace_id"):
        trace.pop(key, None)
    return trace


def plan_of(s):
    """The plan file of a setting."""
    plan = {"version": 1, "layout": "per_parameter" if s["api"] == "fsdp2" else "flat", **s["plan"]}
    for key, value in (("forward", "forward_prefetch"), ("backward", "backward_prefetch")):
        if key in s:
            plan[value] = s[key]
    return plan


def record(name, s, out):
    s = {"ranks": 2, "keep": 1, "steps": 2, **s}
    target = out / name
    target.mkdir(parents=True, exist_ok=True)
    if "plan" in s:
        (target / "plan.json").write_text(json.dumps(plan_of(s), indent=1) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        mp.spawn(work, args=(s, scratch / "store", scratch), nprocs=s["ranks"])
        for rank in range(s["keep"]):
            trace = slim(json.loads((scratch / f"{rank}.json").read_text()))
            if s.get("whole"):
                trace = last_steps(trace)
            with gzip.GzipFile(target / f"rank{rank}.pt.trace.json.gz", "wb", 9, mtime=0) as f:
                f.write(json.dumps(trace, separators=(",", ":")).encode())
        if s["api"] == "ddp":
            (out.parent / f"{name}.expected.json").write_text((scratch / "buckets.json").read_text())
    sizes = [p.stat().st_size for p in sorted(target.glob("*.gz"))]
    print(name, len(trace["traceEvents"]), "events", sizes, "bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--only")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name, setting in SETTINGS.items():
        if options.only in (None, name):
            record(name, setting, options.out)


if __name__ == "__main__":
    main()
