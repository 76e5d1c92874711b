"""The collectives of tensor-, sequence- and context-parallel programs, as PyTorch issues them: tests/data/tensor/NAME.json.

    tensor_programs.py [--out FOLDER] [NAME…]     torch 2.11, transformers 5.23; without NAMEs all programs
    tensor_programs.py --list

Gloo ranks of one machine train tests/data/<model> (transformers' modules) under parallelize_module with the styles of torchtitan 0.2.2 (sequence parallel) or
those that transformers' tensor parallel plans name (without), and fully_shard of each layer and the root where the mesh has other axes. The second step is recorded.
"""
import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module

import collective_log

DATA = Path(__file__).resolve().parents[1] / "data"
DEFAULT = {"model": "llama-tiny", "layers": 2, "mesh": {"tensor": 2}, "batch": 2, "seq": 32, "sequence_parallel": True, "loss_parallel": False, "microbatches": 1}
AXES = ("replicate", "shard", "context", "tensor")


def programs():
    rows = {}

    def add(name, **changes):
        rows[name] = {**DEFAULT, **changes}

    add("llama-t2-sp")
    add("llama-t2", sequence_parallel=False)
    return rows


def config_of(row):
    values = json.loads((DATA / row["model"] / "config.json").read_text())
    values["num_hidden_layers"] = row["layers"]
    return values


def make(row):
    values = config_of(row)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config.use_cache = False
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").train()


def styles_of_root(row):
    between = Shard(1) if row["sequence_parallel"] else Replicate()
    logits = Shard(-1) if row["loss_parallel"] else Replicate()
    styles = {"lm_head": ColwiseParallel(input_layouts=between, output_layouts=logits, use_local_output=not row["loss_parallel"])}
    if row["sequence_parallel"]:
        styles["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        styles["model.norm"] = SequenceParallel()
    return styles


def styles_of_layer(row):
    if not row["sequence_parallel"]:
        columns, rows = ColwiseParallel, RowwiseParallel
        return {**{f"self_attn.{name}_proj": columns() for name in "qkv"}, "self_attn.o_proj": rows(),
                "mlp.gate_proj": columns(), "mlp.up_proj": columns(), "mlp.down_proj": rows()}
    return {"input_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": Replicate()}),
            **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            "post_attention_layernorm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1))}


def parallelize(model, row, mesh):
    tensor = mesh["tensor"]
    parallelize_module(model, tensor, styles_of_root(row))
    for layer in model.model.layers:
        parallelize_module(layer, tensor, styles_of_layer(row))


def train(row):
    """The rows of the second step of this rank, and the groups of the mesh."""
    axes = {axis: row["mesh"][axis] for axis in AXES if row["mesh"].get(axis, 1) > 1}
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    model = make(row)
    parallelize(model, row, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    groups = {axis: mesh.get_group(axis) for axis in axes}
    log = collective_log.CollectiveLog(model, groups)
    torch.manual_seed(1)
    positions = torch.arange(row["seq"]).unsqueeze(0)
    for step in range(2):
        with log:
            for microbatch in range(row["microbatches"]):
                tokens = torch.randint(0, model.config.vocab_size, (row["batch"], row["seq"]))
                with log.during("forward", microbatch):
                    logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
                    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
                    del logits
                with log.during("backward", microbatch):
                    loss.backward()
            with log.during("optimizer", row["microbatches"] - 1):
                optimizer.step()
        rows = log.take()
        optimizer.zero_grad()
    return {"rows": rows, "groups": {axis: torch.distributed.get_process_group_ranks(group) for axis, group in groups.items()}}


def plan_of(row):
    plan = {"version": 1, "layout": "per_parameter", "mesh": row["mesh"], "units": [{"modules": "model.layers.*"}, {"modules": ""}],
            "sequence_parallel": row["sequence_parallel"], "loss_parallel": row["loss_parallel"]}
    return plan


def record(name, row):
    world = 1
    for size in row["mesh"].values():
        world *= size
    ranks = collective_log.run_on_ranks(world, lambda: train(row))
    groups = {axis: sorted({tuple(rank["groups"][axis]) for rank in ranks}) for axis in ranks[0]["groups"]}
    values = {"program": name, "origin": f"torch {torch.__version__.split('+')[0]} (Gloo), transformers {transformers.__version__}, by tests/tools/tensor_programs.py",
              "model": row["model"], "config": {"num_hidden_layers": row["layers"]}, "step": {key: row[key] for key in ("batch", "seq", "microbatches")},
              "mesh": row["mesh"], "plan": plan_of(row), "groups": groups}
    return collective_log.document(values, collective_log.merged([rank["rows"] for rank in ranks]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=DATA / "tensor")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    rows = programs()
    if options.list:
        print("\n".join(rows))
        return
    for name in options.names or rows:
        (options.out / f"{name}.json").write_text(record(name, rows[name]))
        print(name, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
