"""Compares the memory of expert-parallel steps, by PyTorch's own tracker, with the simulator's.

    expert_memory.py record tests/data/expert_memory.json --torchtitan DIR [--only TEXT]     torch 2.11; DIR: see torchtitan_program.py
    expert_memory.py compare tests/data/expert_memory.json --bin build/release/bin/shardlens [--only TEXT] [--alive]

As memory_tracker.py does with torchtitan's models: rank 0 of a fake process group, fake tensors, the second step. Experts are divided by torchtitan's ExpertParallel, whose numbers
of rows are given instead of exchanged, because fake tensors have no values: those of `simulate --expert-skew`, by which rank 0 has the most. They are units of their own, as in
torchtitan's apply_fsdp. AdamW runs as a loop over the parameters, which are DTensors of two meshes.
"""
import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/tools")]

import memory_tracker
import tensor_memory
import torchtitan_program

DEFAULT = {**torchtitan_program.DEFAULT, "model": "qwen3_moe", "layers": 2, "optimizer": "loop", "expert": 2, "skew": 0}


def configurations():
    """Changes of DEFAULT, by name."""
    out = {}
    for model in ("qwen3_moe", "deepseek_moe", "qwen3_moe-bytes", "deepseek_moe-bytes"):
        for expert in (2, 4, 8):
            out[f"{model} e{expert}"] = {"model": model, "expert": expert}
        out[f"{model} e4 skew"] = {"model": model, "expert": 4, "skew": 1}
        out[f"{model} e2 checkpoint"] = {"model": model, "checkpoint": "all", "layers": 4}
        out[f"{model} e4 checkpoint skew"] = {"model": model, "expert": 4, "checkpoint": "all", "skew": 0.5, "layers": 4}
        out[f"{model} e4 selective"] = {"model": model, "expert": 4, "checkpoint": "selective", "layers": 4}
    return {name: {**DEFAULT, **row} for name, row in out.items()}


def rows_of_experts(rows, experts, skew):
    """As in expert_programs.py, which imports more than is needed here."""
    shares = [(i + 1) ** -float(skew) for i in range(experts)]
    ends = [int(sum(shares[:i + 1]) / sum(shares) * rows + 0.5) for i in range(experts)]
    return [end - begin for begin, end in zip([0, *ends], ends)]


def meshes_of(row):
    """The mesh of all ranks, and the experts' mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    ranks, world = row["expert"], row["world"]
    return init_device_mesh("cpu", (world,)), init_device_mesh("cpu", (world // ranks, ranks), mesh_dim_names=("efsdp", "ep"))


def divide(model, row, config, dense, mesh):
    import torch
    from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import parallelize_module
    from torchtitan.config.job_config import ActivationCheckpoint
    from torchtitan.distributed import expert_parallel
    from torchtitan.distributed.activation_checkpoint import _apply_op_sac
    from torchtitan.models.llama4.infra.parallelize import _op_sac_save_list

    ranks, world = row["expert"], row["world"]
    count = config.get("n_routed_experts") or config["num_experts"]
    sent = rows_of_experts(row["batch"] * row["seq"] * config["num_experts_per_tok"], count, row["skew"])
    of_rank = count // ranks
    splits = [sum(sent[i * of_rank:(i + 1) * of_rank]) for i in range(ranks)]

    class Given(expert_parallel.ExpertParallel):
        def _token_dispatch(self, mod, inputs, device_mesh):
            routed, counts = inputs
            counts = torch.ops._c10d_functional.wait_tensor(all_to_all_single(counts, None, None, group=device_mesh.get_group()))
            self.input_splits, self.output_splits = splits, [splits[0]] * ranks
            routed = all_to_all_single_autograd(routed, self.output_splits, self.input_splits, device_mesh.get_group())
            self.input_shape, routed, self.permuted_indices, counts = expert_parallel._permute(routed, counts, ranks, of_rank)
            return routed, counts

    dtypes = memory_tracker.DTYPES[row["dtype"]]
    given = {"mp_policy": MixedPrecisionPolicy(param_dtype=getattr(torch, dtypes[0]), reduce_dtype=getattr(torch, dtypes[1]))}
    blocks = [(name, layer) for name, layer in model.layers.items()]
    for _, layer in blocks:
        if layer.moe_enabled:
            parallelize_module(layer.moe.experts, mesh["ep"], Given())
    for i, (name, layer) in enumerate(blocks):
        if i in torchtitan_program.checkpointed(row):
            settings = ActivationCheckpoint(mode="selective", selective_ac_option="op")
            wrapped = (_apply_op_sac(layer, settings, base_fqn=f"layers.{i}", op_sac_save_list=_op_sac_save_list) if row["checkpoint"] == "selective" else
                       checkpoint_wrapper(layer, preserve_rng_state=False, early_stop=False))
            model.layers.register_module(name, wrapped)
    fully_shard(model.tok_embeddings, mesh=dense, **given)
    columns = (lambda parameter: Shard(1)) if world > count else None
    for name, layer in blocks:
        if layer.moe_enabled:
            fully_shard(layer.moe.experts, mesh=mesh["efsdp"], shard_placement_fn=columns, **given)
        fully_shard(model.layers[name], mesh=dense, **given)
    fully_shard([model.norm, model.output], mesh=dense, reshard_after_forward=False, **given)
    fully_shard(model, mesh=dense, **given)


def track(row):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    started = time.monotonic()
    tensor_memory.fake_group(row["world"])
    try:
        meshes = meshes_of(row)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, forward_and_backward = torchtitan_program.make(row)
            model.train()
            divide(model, row, memory_tracker.config_of(row), *meshes)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
            ids = torch.zeros(row["batch"], row["seq"], dtype=torch.long)
            memory_tracker.train_step(forward_and_backward, optimizer, ids)
            optimizer.zero_grad()
            tracker = tensor_memory.new_tracker(model, optimizer, (ids,), True)
            with tracker:
                memory_tracker.train_step(forward_and_backward, optimizer, ids)
                end = tensor_memory.sums_of(tracker.get_tracker_snapshot("current"))
            peak = tensor_memory.sums_of(tracker.get_tracker_snapshot("peak"))
            states = [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value) and value.dim() > 0]
            size = {"parameters": tensor_memory.local_bytes(model.parameters()), "gradients": tensor_memory.local_bytes(p.grad for p in model.parameters()),
                    "optimizer": tensor_memory.local_bytes(states)}
    finally:
        torch.distributed.destroy_process_group()
    total = peak.pop("Total")
    return {**size, "peak": total, "after_step": end["Total"], "at_peak": dict(peak), "alive": tracker.alive(), "whole_seconds": round(time.monotonic() - started, 2)}


def plan_of(row):
    plan = memory_tracker.plan_of(row)
    config = memory_tracker.config_of(row)
    count = config.get("n_routed_experts") or config["num_experts"]
    group = {"parameters": ["**"], "mesh": "expert", "shard_dim": 1 if row["world"] > count else 0}
    plan["units"].insert(1, {"modules": "model.layers.*.mlp.experts", "groups": [group]})
    return {**plan, "mesh": {"shard": row["world"], "expert": row["expert"]}}


def record(options):
    import torch

    torch.set_num_threads(1)
    package, path = torchtitan_program.prepare(options.torchtitan), Path(options.file)
    memory_tracker.gpu_attention()
    tensor_memory.concatenate_real_ranks()
    rows = json.loads(path.read_text())["rows"] if path.exists() and options.only else {}
    for name, row in configurations().items():
        if options.only in name:
            with multiprocessing.get_context("fork").Pool(1) as pool:  # DTensor keeps what it found for a mesh
                tracked = pool.apply(track, (row,))
            rows[name] = {**row, "config": memory_tracker.config_of(row), "plan": plan_of(row), "tracked": tracked}
            print(f"{name}: {tracked['peak'] / (1 << 20):.1f} MiB, {tracked['whole_seconds']} s", file=sys.stderr, flush=True)
    origin = f"torch {torch.__version__.split('+')[0]} (FSDPMemTracker), {package}, by tests/tools/expert_memory.py record"
    path.write_text(f'{{"origin": {json.dumps(origin)},\n "rows": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()) + "\n}}\n")


def compare(options):
    rows, errors = json.loads(Path(options.file).read_text())["rows"], []
    mib = lambda value: f"{value / (1 << 20):.1f}"  # noqa: E731
    for name, row in rows.items():
        if options.only not in name:
            continue
        tracked = row["tracked"]
        with tempfile.TemporaryDirectory() as scratch:
            found, _, shown = memory_tracker.simulate(options.bin, {**row, "optimizer": "fused"}, Path(scratch), options.alive)
        errors.append(found["peak_requested_bytes"] / tracked["peak"] - 1)
        print(f"{100 * errors[-1]:+6.1f} %  {mib(found['peak_requested_bytes']):>8} {mib(tracked['peak']):>8}  {name}", flush=True)
        if options.alive:
            print("     ", {k: mib(v) for k, v in found["memory"].items()}, "\n     ", {k: mib(v) for k, v in tracked["at_peak"].items() if v > 1 << 19})
            print(shown, *(f"{mib(value):>14} {key}" for key, value in tracked["alive"].items()), sep="\n")
    if errors:
        print(f"\n{memory_tracker.distribution(errors)}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", nargs="?", default=str(ROOT / "tests/data/expert_memory.json"))
    parser.add_argument("--bin", default="build/release/bin/shardlens")
    parser.add_argument("--torchtitan", metavar="DIR")
    parser.add_argument("--only", default="")
    parser.add_argument("--alive", action="store_true")
    options = parser.parse_args()
    sys.exit(record(options) if options.what == "record" else compare(options))
