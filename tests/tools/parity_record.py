#!/usr/bin/env python3
"""Records what PyTorch does for rows of the parity table (parity_rows.py): tests/data/parity/<row>.json.

    pip install torch==2.11.0 transformers safetensors numpy
    parity_record.py ROW... | --all

Gloo ranks on the CPU, one thread each, batch 2, seq 64, AdamW, lr 1e-3, weight decay 0.01. Per model and world size: loss (mean over ranks and
microbatches) and grad_norm (before clipping) per step; param_sum and param_norm, the float64 sum and L2 norm of all parameters after the last; and
the collectives of forward and backward in the order in which PyTorch issued them, `sequences` of [kind, dtype, elements of the unsharded side, group size]
and `steps`, the index into `sequences` for each step; `norm`: the collectives of a gradient norm. fsdp2 also has flat_numel: the padded size of each unit's flat parameter in FSDP1.
"""
import argparse
import contextlib
import copy
import functools
import json
import os
import pathlib
import re
import tempfile
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import parity_rows

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
BATCH, SEQ = 2, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, None: None}
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def matches(glob, fqn):
    """docs/reference/plan.md: `*` is one component or a part of one, `**` any number of components, "" the root."""
    pattern = "".join({"**": ".*", "*": "[^.]*"}.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", glob))
    return re.fullmatch(pattern.replace(r".*\.", r"(.*\.)?"), fqn) is not None


def any_matches(globs, fqn):
    return any(matches(glob, fqn) for glob in globs)


def units_of(m, plan):
    """Units as (FQNs, entry of the plan), inner ones first."""
    usable = [n for n, module in m.named_modules() if not isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))]
    units = []
    for entry in plan["units"]:
        globs = entry["modules"]
        if isinstance(globs, str):
            units += [([n], entry) for n in usable if matches(globs, n)]
        else:
            units.append(([n for n in usable if any_matches(globs, n)], entry))
    return sorted(units, key=lambda unit: -min(n.count(".") + (n != "") for n in unit[0]))


def mixed_precision(kind, settings):
    return kind(**{k: DTYPES[v] if k.endswith("dtype") else v for k, v in settings.items()})


def ignored_parameters(m, plan):
    below = [n for n, _ in m.named_modules() if any_matches(plan.get("ignored_modules", []), n)]
    return {p for n, p in m.named_parameters()
            if any_matches(plan.get("ignored_parameters", []), n) or any(n.startswith(b + ".") for b in below)}


def shard_fsdp2(m, plan, world):
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    mesh = plan.get("mesh", {"replicate": 1, "shard": world})
    axes = {axis: mesh[axis] for axis in ("replicate", "shard") if mesh[axis] > 1}
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    units = units_of(m, plan)
    modules = dict(m.named_modules())
    for fqns, entry in units:
        chosen = {**plan, **entry}
        kw = dict(mesh=mesh)
        if "shard" in axes:
            kw["reshard_after_forward"] = chosen.get("reshard_after_forward")
        if chosen.get("mixed_precision"):
            kw["mp_policy"] = mixed_precision(MixedPrecisionPolicy, chosen["mixed_precision"])
        if chosen.get("cpu_offload"):
            kw["offload_policy"] = CPUOffloadPolicy(pin_memory=False)  # nothing to pin for: the ranks compute on the CPU
        if ignored := ignored_parameters(m, plan):
            kw["ignored_params"] = ignored
        members = [modules[n] for n in fqns]
        apply = fully_shard if "shard" in axes else replicate
        apply(members[0] if len(members) == 1 else members, **kw)
        if chosen.get("gradient_divide_factor"):
            members[0].set_gradient_divide_factor(chosen["gradient_divide_factor"])
        if chosen.get("unshard_in_backward") is False:
            members[0].set_unshard_in_backward(False)
    for key in ("separate_reduce_scatter_group", "reduce_scatter_unused_params", "reduce_scatter_max_input_buffers", "keep_unsharded_storage"):  # of later versions
        if plan.get(key):
            getattr(m, f"set_{key}")(plan[key])
    if plan.get("backward_finalization"):
        m.set_manual_backward_finalization(True)
    order = [n for n, _ in m.named_modules() if any(n in fqns for fqns, _ in units)]
    forward = plan.get("forward_prefetch", {})
    if isinstance(forward, int):  # a depth: each unit prefetches the next ones, in the order of their forwards
        inner = [n for n in order if n]
        forward = {n: inner[i:i + forward] for i, n in zip([0] + [i + 1 for i in range(len(inner))], [""] + inner)}
    for fqn, targets in forward.items():
        if targets:
            modules[fqn].set_modules_to_forward_prefetch([modules[t] for t in targets])
    if isinstance(plan.get("backward_prefetch"), dict):
        for fqn, targets in plan["backward_prefetch"].items():
            modules[fqn].set_modules_to_backward_prefetch([modules[t] for t in targets])
    return m


def shard_fsdp1(m, plan, world):
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy
    mesh = plan.get("mesh", {"replicate": 1, "shard": world})
    keep = plan.get("reshard_after_forward") is False
    if mesh["replicate"] == 1:
        strategy = "SHARD_GRAD_OP" if keep else "FULL_SHARD"
        device_mesh = init_device_mesh("cpu", (world,))
    elif mesh["shard"] == 1:
        strategy, device_mesh = "NO_SHARD", init_device_mesh("cpu", (world,))
    else:
        strategy = "_HYBRID_SHARD_ZERO2" if keep else "HYBRID_SHARD"
        device_mesh = init_device_mesh("cpu", (mesh["replicate"], mesh["shard"]), mesh_dim_names=("replicate", "shard"))
    modules = dict(m.named_modules())
    wrapped = {id(modules[n]) for fqns, _ in units_of(m, plan) for n in fqns if n}
    prefetch = plan.get("backward_prefetch", "pre")
    settings = dict(plan.get("mixed_precision", {}))
    return FullyShardedDataParallel(
        m, auto_wrap_policy=CustomPolicy(lambda module: id(module) in wrapped), use_orig_params=True, device_id=torch.device("cpu"),
        device_mesh=device_mesh, sharding_strategy=ShardingStrategy[strategy],
        backward_prefetch=None if prefetch == "none" else BackwardPrefetch["BACKWARD_" + prefetch.upper()],
        forward_prefetch=bool(plan.get("forward_prefetch", 0)), limit_all_gathers=plan.get("limit_all_gathers", True),
        mixed_precision=mixed_precision(MixedPrecision, settings) if settings else None,
        ignored_states=list(ignored_parameters(m, plan)) or None)


def shard_ddp(m, plan, world):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    settings = ("bucket_cap_mb", "find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    replicated = torch.nn.parallel.DistributedDataParallel(m, **{key: plan[key] for key in settings if key in plan})
    replicated.register_comm_hook(None, allreduce_hook)  # as the Reducer does, but through a function that Collectives records
    return replicated


def flat_numels(m, plan, world):
    """Padded flat sizes of the units, by FQN, as FSDP1 would make them."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    shard = plan.get("mesh", {"shard": world})["shard"]
    numels = {}
    for name, module in shard_fsdp1(m, {**plan, "mesh": {"replicate": 1, "shard": world}, "backward_prefetch": "pre", "forward_prefetch": 0},
                                    world).named_modules():
        if isinstance(module, FSDP) and module._handle is not None:
            numel = module._handle.flat_param._unpadded_unsharded_size.numel()
            numels[name.replace("_fsdp_wrapped_module.", "").replace("_fsdp_wrapped_module", "")] = -(-numel // shard) * shard
    return numels


class Collectives:
    """Wraps torch.distributed's collectives; records those issued while `on`."""

    def __init__(self):
        self.seen, self.on = [], False
        for name, kind, unsharded in (("all_gather_into_tensor", "all_gather", 0), ("all_gather", "all_gather", 0),
                                      ("reduce_scatter_tensor", "reduce_scatter", 1), ("all_reduce", "all_reduce", 0),
                                      # FSDP2 of torch 2.15 calls these two
                                      ("all_gather_single", "all_gather", 0), ("reduce_scatter_single", "reduce_scatter", 1)):
            if hasattr(dist, name):
                setattr(dist, name, self.wrapped(getattr(dist, name), kind, unsharded))

    def wrapped(self, function, kind, unsharded):
        parameters = ["output_tensor" if kind == "all_gather" else "output" if kind == "reduce_scatter" else "tensor", "input"]

        @functools.wraps(function)
        def call(*args, **kwargs):
            if self.on:
                tensor = args[unsharded] if len(args) > unsharded else kwargs[parameters[unsharded]]
                tensors = tensor if isinstance(tensor, list) else [tensor]
                self.seen.append([kind, NAMES[tensors[0].dtype], sum(t.numel() for t in tensors),
                                  dist.get_world_size(kwargs.get("group"))])
            return function(*args, **kwargs)
        return call

    def take(self):
        seen, self.seen = self.seen, []
        return seen

    @contextlib.contextmanager
    def recording(self):
        self.on = True
        yield
        self.on = False


@functools.cache
def loaded(model):
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar
    disable_progress_bar()
    m = AutoModelForCausalLM.from_pretrained(DATA / model, attn_implementation="sdpa", dtype=torch.float32)
    m.config.use_cache = False
    return m.train()


def prepared(model, plan):
    m = copy.deepcopy(loaded(model))
    for name, parameter in m.named_parameters():
        parameter.requires_grad_(not any_matches(plan.get("frozen_parameters", []), name))
    if plan.get("activation_checkpointing"):
        from torch.distributed._composable import checkpoint
        for name, module in list(m.named_modules()):
            if any_matches(plan["activation_checkpointing"], name):
                checkpoint(module)
    return m


class FunctionalAllReduces(TorchDispatchMode):
    """Records all-reduces of DTensors, which do not call torch.distributed's functions."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        if function is torch.ops._c10d_functional.all_reduce.default:
            tensor, _, group = args
            self.seen.append(["all_reduce", NAMES[tensor.dtype], tensor.numel(), dist.distributed_c10d._resolve_process_group(group).size()])
        return function(*args, **(kwargs or {}))


def begin_microbatch(m, plan, sync, last):
    """A context for one microbatch."""
    if parity_rows.dialect_of(plan) != "fsdp2":
        return contextlib.nullcontext() if sync else m.no_sync()
    m.set_requires_gradient_sync(sync and plan.get("backward_finalization") != "reduces")
    modules = dict(m.named_modules())
    for fqns, entry in units_of(m, plan):
        chosen = {**plan, **entry}
        if chosen.get("reshard_after_backward") is False:
            modules[fqns[0]].set_reshard_after_backward(last, recurse=False)
        if chosen.get("requires_all_reduce") is False:
            modules[fqns[0]].set_requires_all_reduce(last, recurse=False)
    return contextlib.nullcontext()


def end_backward(m, plan):
    """After the last microbatch of a step."""
    if plan.get("backward_finalization"):
        m.set_requires_gradient_sync(True)
        m.finalize_backward()


def clip_grad_norm(m, clip, norm_type):
    """torch.nn.utils.clip_grad_norm_, which cannot mix sharded parameters with ignored ones."""
    groups = [[], []]
    for p in m.parameters():
        if p.grad is not None:
            groups[hasattr(p, "full_tensor")].append(p)
    parts = [torch.nn.utils.get_total_norm([p.grad for p in group], norm_type) for group in groups]
    parts = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in parts]
    total = torch.linalg.vector_norm(torch.stack(parts), norm_type)
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, clip, total)
    return total


def clip(m, spec, plan, collectives):
    limit, norm_type = spec["run"].get("clip", float("inf")), float(spec["run"].get("norm_type", 2))
    if plan.get("dialect") == "fsdp1":
        with collectives.recording():
            return m.clip_grad_norm_(limit, norm_type)
    with FunctionalAllReduces(collectives.seen):
        return clip_grad_norm(m, limit, norm_type)


def train(model, spec, plan, rank, world, collectives):
    dialect = parity_rows.dialect_of(plan)
    m = {"fsdp1": shard_fsdp1, "fsdp2": shard_fsdp2, "ddp": shard_ddp}[dialect](prepared(model, plan), plan, world)
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.01)
    data = torch.from_numpy(np.fromfile(DATA / "tokens.u16.bin", dtype="<u2").astype(np.int64))
    samples = (data.numel() - 1) // SEQ
    run, out = spec["run"], dict(loss=[], grad_norm=[], sequences=[], steps=[])
    microbatches = run.get("accumulate", 1)
    for step in range(spec["steps"]):
        total = torch.zeros(())
        for microbatch in range(microbatches):
            first = (step * microbatches + microbatch) * world + rank
            x = torch.stack([data[i * SEQ:i * SEQ + SEQ + 1] for i in ((first * BATCH + b) % samples for b in range(BATCH))])
            last = microbatch + 1 == microbatches
            with collectives.recording(), begin_microbatch(m, plan, not run.get("no_sync") or last, last):
                logits = m(input_ids=x[:, :-1]).logits.float()
                loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()) / microbatches
                loss.backward()
                if last:
                    end_backward(m, plan)
            total += loss.detach()
        sequence = collectives.take()
        if sequence not in out["sequences"]:
            out["sequences"].append(sequence)
        out["steps"].append(out["sequences"].index(sequence))
        norm = clip(m, spec, plan, collectives)
        out["norm"] = collectives.take()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        out["loss"].append(total.item() / world)
        out["grad_norm"].append(float(norm))
    values = whole_parameters(m, dialect == "fsdp1")
    out["param_sum"] = sum(v.double().sum().item() for v in values)
    out["param_norm"] = sum(v.double().square().sum().item() for v in values) ** 0.5
    if dialect == "fsdp2":
        out["flat_numel"] = flat_numels(prepared(model, plan), plan, world)
    return out


def whole_parameters(m, fsdp1):
    """All parameters, unsharded; tied ones once."""
    if fsdp1:
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        with FSDP.summon_full_params(m):
            return [p.detach().clone() for p in m.parameters()]
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in m.parameters()]


def readable(recorded):
    """JSON with each sequence, and every other list, on a line of its own."""
    def one_line(match):
        return re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]")
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", one_line, json.dumps(recorded, indent=1))
    return re.sub(r"\[\s+(\[[^][{}]*\],?\s*)+\]", one_line, text)


def worker(rank, names, scratch):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    collectives = Collectives()
    for name in names:
        spec, recorded = parity_rows.row(name), {}
        for model in spec["models"]:
            for world in spec["worlds"]:
                if rank >= world:
                    continue
                dist.init_process_group("gloo", init_method=f"file://{scratch}/{name}.{model}.{world}", rank=rank, world_size=world)
                plan = parity_rows.plan_of(spec, model, world, "flat")
                out = train(model, spec, plan, rank, world, collectives)
                recorded.setdefault(model, {})[world] = out
                dist.barrier()
                dist.destroy_process_group()
                if rank == 0:
                    print(f"{name} {model} W={world}: loss {out['loss'][0]:.6f} -> {out['loss'][-1]:.6f}, "
                          f"{[len(s) for s in out['sequences']]} collectives", flush=True)
        if rank == 0:
            (DATA / "parity").mkdir(exist_ok=True)
            (DATA / "parity" / f"{name}.json").write_text(readable(recorded) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {**parity_rows.ROWS, **parity_rows.LATER}
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(known))
    parser.add_argument("--all", action="store_true", help="those of torch 2.11")
    options = parser.parse_args()
    names = list(parity_rows.ROWS) if options.all else options.rows
    if not names or set(names) - set(known):
        parser.error(f"expected rows among {', '.join(known)}")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(worker, args=(names, scratch), nprocs=max(parity_rows.WORLDS))


if __name__ == "__main__":
    main()
