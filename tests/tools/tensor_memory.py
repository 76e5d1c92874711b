"""Compares the memory of tensor- and context-parallel steps, by PyTorch's own trackers, with the simulator's.

    tensor_memory.py check                                                     the tracker on one layer against the closed form
    tensor_memory.py record tests/data/tensor_memory.json [--only TEXT]        runs the tracker (torch 2.11, transformers 5.23)
    tensor_memory.py compare tests/data/tensor_memory.json --bin build/release/bin/shardlens [--only TEXT] [--alive]

As memory_tracker.py does, with its models and its two changes of the tracker: rank 0 of a fake process group, fake tensors, the second step, the kernels of a GPU. Models are
divided as in tensor_programs.py, `context` gathers keys and values by hand. Where FSDP shards nothing, MemTracker counts instead of FSDPMemTracker, and knows other categories.
"""
import argparse
import collections
import contextlib
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/tools")]

import memory_tracker

DEFAULT = {**memory_tracker.DEFAULT, "optimizer": "fused", "sequence_parallel": True, "loss_parallel": False, "styles": "torchtitan", "gather": "apart"}


def configurations():
    """Changes of DEFAULT, by name."""
    out = {}

    def add(name, mesh, **changes):
        world = 1
        for size in mesh.values():
            world *= size
        row = {**DEFAULT, "mesh": mesh, "world": world, **changes}
        if "shard" not in mesh and "context" not in mesh and "dtype" not in changes:
            row["dtype"] = "fp32"  # mixed precision is FSDP's
        out[name] = row

    t2, t4, t8 = {"tensor": 2}, {"tensor": 4}, {"tensor": 8}
    s2t2, s4t2, s2t4, r2s2t2 = {"shard": 2, "tensor": 2}, {"shard": 4, "tensor": 2}, {"shard": 2, "tensor": 4}, {"replicate": 2, "shard": 2, "tensor": 2}
    whole = {"sequence_parallel": False, "optimizer": "loop"}
    add("llama s4", {"shard": 4})  # without tensor parallelism
    add("llama t2", t2)
    add("llama t4", t4)
    add("llama t8", t8)
    add("llama t2 whole", t2, **whole)
    add("llama t4 whole", t4, **whole)
    add("llama t4 loss", t4, loss_parallel=True)
    add("llama t2 checkpoint", t2, checkpoint="all", layers=4)
    add("llama t8 checkpoint loss", t8, checkpoint="all", layers=4, loss_parallel=True)
    add("llama t2 bf16-only", t2, dtype="bf16-only")
    add("llama s2t2", s2t2)
    add("llama s2t2 fp32", s2t2, dtype="fp32")
    add("llama s2t2 bf16", s2t2, dtype="bf16")
    add("llama s4t2", s4t2, layers=4)
    add("llama s2t4", s2t4, layers=4)
    add("llama s2t4 loss", s2t4, loss_parallel=True)
    add("llama s2t2 checkpoint", s2t2, checkpoint="all", layers=4)
    add("llama s2t4 checkpoint loss", s2t4, checkpoint="all", layers=4, loss_parallel=True)
    add("llama s2t2 keep", s2t2, reshard=False, layers=4, seq=512)
    add("llama s2t2 foreach", s2t2, optimizer="foreach")
    add("llama r2s2t2", r2s2t2, layers=3)
    add("llama r2s2t2 checkpoint loss", r2s2t2, layers=4, checkpoint="all", loss_parallel=True)
    add("llama s2t2 long", s2t2, batch=1, seq=4096, checkpoint="all", loss_parallel=True)
    for model in ("qwen3", "bytes"):
        add(f"{model} t4", t4, model=model)
        add(f"{model} s2t2", s2t2, model=model)
        add(f"{model} s2t4 checkpoint loss", s2t4, model=model, checkpoint="all", layers=4, loss_parallel=True)
    add("llama c2", {"context": 2})
    add("llama s2c2", {"shard": 2, "context": 2})
    add("llama s2c4 checkpoint", {"shard": 2, "context": 4}, checkpoint="all", layers=4, seq=4096)
    add("llama c2t2", {"context": 2, "tensor": 2})
    return out


def names_of(row):
    """The row for tensor_models, whose models have the same names in these families."""
    return {**row, "model": "qwen3-tiny" if row["model"] == "qwen3" else "llama-tiny", "config": {}}


def fake_group(ranks):
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())


def sums_of(snapshots):
    sums = collections.Counter()
    for snapshot in snapshots.values():
        for key, value in snapshot.items():
            if value:
                sums[getattr(key, "value", key)] += value
    return sums


def new_tracker(model, optimizer, inputs, sharded):
    if sharded:
        tracker = memory_tracker.make_tracker()(model, optimizer)
        tracker.track_inputs(inputs)
    else:
        from torch.distributed._tools.mem_tracker import MemTracker

        tracker = memory_tracker.make_tracker(MemTracker)()
        tracker.track_external(*([model] if optimizer is None else [model, optimizer]), *inputs)
    return tracker


def local_bytes(tensors):
    from torch.distributed.tensor import DTensor

    return sum(t.numel() * t.element_size() for t in ((t.to_local() if isinstance(t, DTensor) else t) for t in tensors if t is not None))


def track(row):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor.parallel import loss_parallel

    import tensor_programs

    started, named = time.monotonic(), names_of(row)
    fake_group(row["world"])
    try:
        meshes = tensor_programs.Meshes(row["mesh"], units=False)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, _ = memory_tracker.make(row)
            model.train()
            if meshes.context is not None:
                tensor_programs.gather_keys_and_values(meshes, named)
                model.config._attn_implementation = "gathered"
            tensor_programs.divide(model, named, meshes, dict(zip(("param_dtype", "reduce_dtype"), memory_tracker.DTYPES.get(row["dtype"]) or ())))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=row["optimizer"] == "fused", foreach=row["optimizer"] == "foreach")
            ids = torch.zeros(row["batch"], row["seq"] // row["mesh"].get("context", 1), dtype=torch.long)
            positions = torch.arange(ids.shape[1]).unsqueeze(0)

            def step(clear):
                with loss_parallel() if row["loss_parallel"] else contextlib.nullcontext():
                    model(input_ids=ids, labels=ids, position_ids=positions, use_cache=False).loss.backward()
                optimizer.step()
                if clear:
                    optimizer.zero_grad()

            step(True)
            tracker = new_tracker(model, optimizer, (ids, positions), meshes.fsdp is not None)
            with tracker:
                step(False)
                end = sums_of(tracker.get_tracker_snapshot("current"))
            peak = sums_of(tracker.get_tracker_snapshot("peak"))
            states = [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value) and value.dim() > 0]
            size = {"parameters": local_bytes(model.parameters()), "gradients": local_bytes(p.grad for p in model.parameters()), "optimizer": local_bytes(states)}
    finally:
        torch.distributed.destroy_process_group()
    total = peak.pop("Total")
    return {**size, "peak": total, "after_step": end["Total"], "at_peak": dict(peak), "alive": tracker.alive(), "whole_seconds": round(time.monotonic() - started, 2)}


def plan_of(row):
    mesh = {**row["mesh"]}
    plan = {**memory_tracker.plan_of(row), "mesh": mesh}
    if "tensor" in mesh:
        plan |= {"sequence_parallel": row["sequence_parallel"], "loss_parallel": row["loss_parallel"]}
    if "context" in mesh:
        plan["context_parallel"] = {"method": "all_gather"}
    return plan


def concatenate_real_ranks():
    """FSDP2 concatenates meshes, and a mesh reads its tensor of ranks, which may not be a fake one."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.device_mesh import DeviceMesh

    concatenate = DeviceMesh._concatenate

    def with_real_ranks(meshes):
        with unset_fake_temporarily():
            return concatenate(meshes)

    DeviceMesh._concatenate = staticmethod(with_real_ranks)


def prepare():
    import torch
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    torch.set_num_threads(1)
    package = memory_tracker.prepare()
    for attention in ("sdpa", "gathered"):
        ALL_MASK_ATTENTION_FUNCTIONS.register(attention, lambda *args, **kwargs: None)
    memory_tracker.gpu_attention()
    concatenate_real_ranks()
    return package


def in_own_process(function, *args):
    """DTensor keeps what it found for a mesh, which has process groups of the row before."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, args)


def record(options):
    import torch

    package, path = prepare(), Path(options.file)
    rows = json.loads(path.read_text())["rows"] if path.exists() and options.only else {}
    for name, row in configurations().items():
        if options.only not in name:
            continue
        rows[name] = {**row, "config": memory_tracker.config_of(row), "plan": plan_of(row), "tracked": in_own_process(track, row)}
        print(f"{name}: {rows[name]['tracked']['peak'] / (1 << 20):.1f} MiB, {rows[name]['tracked']['whole_seconds']} s", file=sys.stderr, flush=True)
    origin = f"torch {torch.__version__.split('+')[0]} (MemTracker, FSDPMemTracker), {package}, by tests/tools/tensor_memory.py record"
    path.write_text(f'{{"origin": {json.dumps(origin)},\n "rows": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()) + "\n}}\n")


# --- one layer


def check():
    """A gated MLP's two products, divided over 2 and 8 ranks with sequence parallelism: what is alive after forward, at the peak of forward, after backward."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

    batch, seq, width, hidden, element, wrong = 2, 512, 256, 1024, 4, 0

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

        def forward(self, x):
            return self.down(F.gelu(self.up(x)))

    for ranks in (2, 8):
        fake_group(ranks)
        try:
            mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",))
            with FakeTensorMode(allow_non_fake_inputs=True):
                layer = parallelize_module(Layer(), mesh, {
                    "": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)), "up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Shard(1))})
                x = torch.zeros(batch, seq // ranks, width, requires_grad=True)
                tracker = new_tracker(layer, None, (x,), False)
                with tracker:
                    out = layer(x)
                    after_forward, peak = (sums_of(tracker.get_tracker_snapshot(each))["Total"] for each in ("current", "peak"))
                    out.sum().backward()
                    del out
                    after_backward = sums_of(tracker.get_tracker_snapshot("current"))["Total"]
        finally:
            torch.distributed.destroy_process_group()
        weights = 2 * width * hidden // ranks * element
        whole, part = batch * seq * width * element, batch * seq * width // ranks * element
        wide = batch * seq * hidden // ranks * element
        kept = weights + part + whole + 2 * wide  # weights, input, gathered input, the products' results before and after gelu
        closed = {
            "after forward": (after_forward, kept + part),  # and the output
            "peak of forward": (peak, kept + 2 * whole + part),  # the partial sums, their parts one after the other, the output
            "after backward": (after_backward, 2 * weights + 2 * part),  # weights and input with their gradients
        }
        for name, (found, expected) in closed.items():
            wrong += found != expected
            print(f"tensor {ranks}, {name}: tracker {found}, closed form {expected}{'' if found == expected else '  DIFFERS'}")
    return 1 if wrong else 0


# --- the simulator

# As memory_tracker.GROUPS, with MemTracker's categories too.
GROUPS = {
    "parameters and optimizer states": (("parameters", "optimizer"), ("Sharded Param", "OptState", "Parameter", "Optstate")),
    "unsharded parameters": (("unsharded",), ("Unsharded Param",)),
    "everything else": (("gradients", "activations", "communication"),
                        ("Sharded Grad", "Unsharded Grad", "Gradient", "Activation", "Temp", "All Gather", "Reduce Scatter", "Inputs", "Buffer")),
}


def compare(options):
    rows = json.loads(Path(options.file).read_text())["rows"]
    errors, parts, refused = [], collections.defaultdict(list), []
    for name, row in rows.items():
        if options.only not in name:
            continue
        tracked = row["tracked"]
        with tempfile.TemporaryDirectory() as scratch:
            try:
                # A loop over parameters has no lists of temporaries, like the fused kernel.
                optimizer = "fused" if row["optimizer"] == "loop" else row["optimizer"]
                found, _, shown = memory_tracker.simulate(options.bin, {**row, "optimizer": optimizer}, Path(scratch), options.alive)
            except SystemExit as error:
                refused.append(name)
                print(f"{name}: {error}")
                continue
        errors.append(found["peak_requested_bytes"] / tracked["peak"] - 1)
        mib = lambda value: f"{value / (1 << 20):.1f}"  # noqa: E731
        print(f"{100 * errors[-1]:+6.1f} %  {mib(found['peak_requested_bytes']):>8} {mib(tracked['peak']):>8}  {name}", flush=True)
        at_peak = tracked["at_peak"]
        for states in ("Optstate", "OptState"):  # the tracker counts as states what the optimizer makes besides them, too
            at_peak["Temp"] = at_peak.get("Temp", 0) + max(0, at_peak.get(states, 0) - tracked["optimizer"])
            at_peak[states] = min(at_peak.get(states, 0), tracked["optimizer"])
        for group, (ours, theirs) in GROUPS.items():
            parts[group].append((sum(found["memory"][key] for key in ours) - sum(at_peak.get(key, 0) for key in theirs)) / tracked["peak"])
        if options.alive:
            print("     ", {k: mib(v) for k, v in found["memory"].items()}, "\n     ", {k: mib(v) for k, v in tracked["at_peak"].items() if v > 1 << 19})
            print(shown, *(f"{mib(value):>14} {key}" for key, value in tracked["alive"].items()), sep="\n")
    if errors:
        print(f"\n{memory_tracker.distribution(errors)}")
        for group, values in parts.items():
            print(f"{group}, of the peak: {memory_tracker.distribution(values)}")
    return 1 if refused else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "record", "compare"])
    parser.add_argument("file", nargs="?", default=str(ROOT / "tests/data/tensor_memory.json"))
    parser.add_argument("--bin", default="build/release/bin/shardlens")
    parser.add_argument("--only", default="")
    parser.add_argument("--alive", action="store_true")
    options = parser.parse_args()
    sys.exit({"check": check, "record": lambda: record(options), "compare": lambda: compare(options)}[options.what]())
