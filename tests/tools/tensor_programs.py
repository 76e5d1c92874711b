"""Records the collectives of tensor-, sequence- and context-parallel programs, as PyTorch issues them: tests/data/tensor/NAME.json.

    tensor_programs.py [--out FOLDER] [NAME…]     torch 2.11, transformers 5.23; without NAMEs all programs
    tensor_programs.py --list

Gloo ranks of one machine train the models of tensor_models.py under parallelize_module and, where the mesh has other axes, fully_shard of each layer and the
root. With `context` keys and values are gathered by hand, or PyTorch's context_parallel does it with the kernels of a GPU (gpu_attention.py); FSDP then shards over shard x context.
The second step is recorded.
"""
import argparse
import contextlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

import collective_log
import gpu_attention
import tensor_models

AXES = ("replicate", "shard", "context", "tensor")
# styles: torchtitan's, or those of transformers' tensor parallel plans, which leave the embedding whole. checkpoint: all or every second layer.
# accumulate: whether gradients are reduced only in the last microbatch. gather: how the ranks of a context come to each other's keys and values. By hand: apart, or joined in
# one all-gather. By context_parallel: all_gather or ring. units: fully_shard is applied, over one rank if the mesh has no other axis.
DEFAULT = {"model": "llama-tiny", "config": {"num_hidden_layers": 2}, "mesh": {"tensor": 2}, "batch": 2, "seq": 32, "sequence_parallel": True, "loss_parallel": False,
           "styles": "torchtitan", "microbatches": 1, "accumulate": False, "checkpoint": "none", "optimizer": "foreach", "clip": False, "dtype": "fp32", "reshard": None,
           "gather": "apart", "units": True}
BY_HAND = ("apart", "joined")
HEADS = {"num_hidden_layers": 2, "num_key_value_heads": 4}


def programs():
    rows = {}

    def add(name, **changes):
        rows[name] = {**DEFAULT, **changes}

    t2, t4, s2t2, r2s2t2 = {"tensor": 2}, {"tensor": 4}, {"shard": 2, "tensor": 2}, {"replicate": 2, "shard": 2, "tensor": 2}
    # Norms are plain tensors then, which operators over many tensors do not take together with DTensors.
    whole = {"sequence_parallel": False, "optimizer": "loop"}
    # The same programs without tensor parallelism, so that a comparison shows what is equal without it.
    add("llama-s4", mesh={"shard": 4})
    add("llama-r2s2-checkpoint", mesh={"replicate": 2, "shard": 2}, dtype="bf16", checkpoint="all")
    add("decoder-s2", model="decoder", config={}, mesh={"shard": 2})
    add("llama-t2-sp")
    add("llama-t2-sp-plain", units=False)
    add("llama-t2-sp-plain-fused", units=False, optimizer="fused")
    add("llama-t2", **whole)
    add("llama-t2-transformers", styles="transformers", **whole)
    add("llama-t4-sp", mesh=t4, config=HEADS)
    add("llama-t4", mesh=t4, config=HEADS, **whole)
    add("llama-t4-sp-uneven", mesh=t4, config={**HEADS, "vocab_size": 250})
    add("llama-t2-sp-loss", loss_parallel=True)
    add("llama-t2-loss", loss_parallel=True, **whole)
    add("llama-t4-sp-loss", mesh=t4, config=HEADS, loss_parallel=True)
    add("llama-t2-sp-checkpoint", checkpoint="all")
    add("llama-t2-checkpoint", checkpoint="all", **whole)
    add("llama-t2-sp-loss-second", checkpoint="second", loss_parallel=True)
    add("llama-t2-sp-accumulate", microbatches=2)
    add("llama-t2-sp-fused", optimizer="fused")
    add("llama-t2-sp-clip", clip=True, optimizer="fused")
    add("llama-t2-sp-tied", config={"num_hidden_layers": 2, "tie_word_embeddings": True})
    add("llama-s2t2-sp", mesh=s2t2)
    add("llama-s2t2", mesh=s2t2, **whole)
    add("llama-s2t2-sp-loss", mesh=s2t2, loss_parallel=True)
    add("llama-s2t2-sp-checkpoint", mesh=s2t2, checkpoint="all")
    add("llama-s2t2-sp-accumulate", mesh=s2t2, microbatches=2)
    add("llama-s2t2-sp-no-sync", mesh=s2t2, microbatches=2, accumulate=True)
    add("llama-s2t2-sp-clip", mesh=s2t2, clip=True)
    add("llama-s2t2-sp-bf16", mesh=s2t2, dtype="bf16")
    add("llama-s2t2-sp-keep", mesh=s2t2, reshard=False)
    add("llama-s2t2-sp-tied", mesh=s2t2, config={"num_hidden_layers": 2, "tie_word_embeddings": True})
    add("llama-r2s2t2-sp", mesh=r2s2t2)
    add("llama-r2s2t2", mesh=r2s2t2, **whole)
    add("llama-r2s2t2-sp-checkpoint", mesh=r2s2t2, checkpoint="all", loss_parallel=True, dtype="bf16", clip=True)
    for name in ("qwen2", "qwen3", "phi3", "glm4"):
        given = {"model": f"{name}-tiny", "config": {}}
        add(f"{name}-t2-sp", **given)
        add(f"{name}-t2", **given, **whole)
        add(f"{name}-s2t2-sp-loss-checkpoint", **given, mesh=s2t2, loss_parallel=True, checkpoint="all")
    add("qwen3-t4-sp", model="qwen3-tiny", mesh=t4, config={"num_key_value_heads": 4})
    for name, changes in (("t2-sp", {}), ("t2", whole), ("t2-sp-checkpoint", {"checkpoint": "all"}), ("s2t2-sp", {"mesh": s2t2}), ("s2t2-loss", {"mesh": s2t2, "loss_parallel": True, **whole}),
                          ("r2s2t2-sp", {"mesh": r2s2t2, "dtype": "bf16"})):
        add(f"decoder-{name}", model="decoder", config={}, **changes)
    c2, s2c2 = {"context": 2}, {"shard": 2, "context": 2}
    add("llama-c2", mesh=c2)
    add("llama-c4", mesh={"context": 4})
    add("llama-c2-joined", mesh=c2, gather="joined")
    add("llama-c2-checkpoint", mesh=c2, checkpoint="all")
    add("llama-s2c2", mesh=s2c2)
    add("llama-s2c2-bf16", mesh=s2c2, dtype="bf16", microbatches=2)
    add("llama-c2t2-sp", mesh={"context": 2, "tensor": 2})
    add("llama-r2c2t2-sp", mesh={"replicate": 2, "context": 2, "tensor": 2})
    for gather in ("all_gather", "ring"):
        name = gather.replace("_", "-")
        for title, mesh in (("c2", c2), ("c4", {"context": 4}), ("c2t2-sp", {"context": 2, "tensor": 2})):
            add(f"llama-{title}-{name}", mesh=mesh, gather=gather)
        add(f"llama-s2c2-{name}-bf16", mesh=s2c2, gather=gather, dtype="bf16")
        add(f"llama-c4-{name}-checkpoint", mesh={"context": 4}, gather=gather, checkpoint="all")
    add("qwen3-s2c2-checkpoint", model="qwen3-tiny", config={}, mesh=s2c2, checkpoint="all")
    return rows


class Meshes:
    """Views of one world: the dense mesh, and the one whose axis `shard` has the ranks of shard x context. Axes of one rank are left out, `units`: but for `shard`, so that
    fully_shard has a mesh."""

    def __init__(self, sizes, units=True):
        size = {axis: sizes.get(axis, 1) for axis in AXES}
        shards = {"replicate": size["replicate"], "shard": size["shard"] * size["context"], "tensor": size["tensor"]}
        world = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("world",))
        self.sharded = self.view(world, shards, "shard" if units and size["replicate"] == 1 else None)
        outer = size["replicate"] * size["shard"]
        self.context = self.view(world, {"outer": outer, "context": size["context"], "inner": size["tensor"]}) if size["context"] > 1 else None
        names = {axis: "shard_context" if axis == "shard" and size["context"] > 1 else axis for axis in self.sharded.mesh_dim_names}
        self.groups = {names[axis]: self.sharded.get_group(axis) for axis in self.sharded.mesh_dim_names}
        if self.context is not None:
            self.groups["context"] = self.context.get_group("context")
        self.tensor = self.sharded["tensor"] if size["tensor"] > 1 else None
        axes = tuple(axis for axis in ("replicate", "shard") if axis in self.sharded.mesh_dim_names)
        self.fsdp = self.sharded[axes] if axes else None

    @staticmethod
    def view(world, sizes, kept=None):
        sizes = {axis: size for axis, size in sizes.items() if size > 1 or axis == kept}
        return world._unflatten(0, tuple(sizes.values()), tuple(sizes))


def gather_keys_and_values(meshes, row):
    """Registers the attention `gathered`, which gathers keys and values of all parts of the sequence. The parts are consecutive."""
    from torch.distributed._functional_collectives import all_gather_tensor_autograd
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    group = meshes.context.get_group("context")
    rank = meshes.context.get_local_rank("context")

    def attention(module, query, key, value, mask, scaling=None, **kwargs):
        if row["gather"] == "joined":
            key, value = all_gather_tensor_autograd(torch.stack([key, value]), 3, group).unbind()
        else:
            key, value = (all_gather_tensor_autograd(each.contiguous(), 2, group) for each in (key, value))
        seq = query.shape[2]
        visible = torch.arange(key.shape[2]) <= torch.arange(rank * seq, (rank + 1) * seq).unsqueeze(1)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling, enable_gqa=key.shape[1] != query.shape[1])
        return out.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register("gathered", attention)


def context_of(row, meshes, buffers):
    """A context in which `buffers`, whole sequences along dimension 1, are this rank's parts."""
    if meshes.context is None:
        return contextlib.nullcontext()
    mesh = meshes.context["context"]
    if row["gather"] in BY_HAND:
        part = row["seq"] // mesh.size()
        for buffer in buffers:
            own = buffer[:, mesh.get_local_rank() * part:][:, :part].clone()
            buffer.resize_(own.shape).copy_(own)
        return contextlib.nullcontext()
    set_rotate_method("allgather" if row["gather"] == "all_gather" else "alltoall")
    return context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set(buffers))


def divide(model, row, meshes, dtypes):
    """Applies the mesh: tensor parallel, checkpoints, FSDP, as torchtitan does in this order. `dtypes`: names, of MixedPrecisionPolicy."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    layers = tensor_models.layers_of(model, row)
    if meshes.tensor is not None:
        tied = row["model"] != "decoder" and tensor_models.config_of(row)["tie_word_embeddings"]
        parallelize_module(model, meshes.tensor, tensor_models.styles_of_root(row))
        for layer in layers:
            parallelize_module(layer, meshes.tensor, tensor_models.styles_of_layer(row))
        if tied:
            model.lm_head.weight = model.model.embed_tokens.weight
    for index in checkpointed(row, len(layers)):
        layers[index] = checkpoint_wrapper(layers[index])
    if meshes.fsdp is not None:
        given = {"mesh": meshes.fsdp, "reshard_after_forward": row["reshard"]}
        if dtypes:
            given["mp_policy"] = MixedPrecisionPolicy(**{key: getattr(torch, name) for key, name in dtypes.items()})
        for layer in layers:
            fully_shard(layer, **given)
        fully_shard(model, **given)


def checkpointed(row, layers):
    return [index for index in range(layers) if row["checkpoint"] == "all" or (row["checkpoint"] == "second" and index % 2 == 1)]


def prepared(row):
    """The meshes of a program, its divided model, its function of tokens and positions that returns logits, and its vocabulary."""
    meshes = Meshes(row["mesh"], row["units"])
    if meshes.context is not None and row["gather"] in BY_HAND:
        gather_keys_and_values(meshes, row)
    elif meshes.context is not None:
        gpu_attention.use()
    model, forward, vocabulary = tensor_models.make(row)
    divide(model, row, meshes, {"param_dtype": "bfloat16", "reduce_dtype": "float32"} if row["dtype"] == "bf16" else {})
    return meshes, model, forward, vocabulary


def train(row):
    """Rows of the second step on this rank, and of each axis the ranks of this rank's group."""
    meshes, model, forward, vocabulary = prepared(row)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=row["optimizer"] == "foreach", fused=row["optimizer"] == "fused")
    log = collective_log.CollectiveLog(model, meshes.groups)
    for step in range(2):
        with log:
            for microbatch in range(row["microbatches"]):
                if row["accumulate"]:
                    model.set_requires_gradient_sync(microbatch + 1 == row["microbatches"])
                torch.manual_seed(microbatch)
                tokens, positions = torch.randint(0, vocabulary, (row["batch"], row["seq"])), torch.arange(row["seq"]).unsqueeze(0)
                with context_of(row, meshes, [tokens, positions]), loss_parallel() if row["loss_parallel"] else contextlib.nullcontext():
                    with log.during("forward", microbatch):
                        logits = forward(tokens, positions)
                        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
                        del logits
                    with log.during("backward", microbatch):
                        loss.backward()
            with log.during("norm", microbatch):
                if row["clip"]:
                    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
                    norm = norm.full_tensor()
                    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
            with log.during("optimizer", microbatch):
                optimizer.step()
        rows = log.take()
        optimizer.zero_grad()
    return {"rows": rows, "groups": {axis: dist.get_process_group_ranks(group) for axis, group in meshes.groups.items()}}


def plan_of(row):
    layers = tensor_models.NAMES[row["model"]]["layers"]
    count = tensor_models.BLOCKS if row["model"] == "decoder" else tensor_models.config_of(row)["num_hidden_layers"]
    plan = {"version": 1, "layout": "per_parameter", "mesh": row["mesh"], "units": [{"modules": f"{layers}.*"}, {"modules": ""}], "reshard_after_forward": row["reshard"],
            "activation_checkpointing": [f"{layers}.{index}" for index in checkpointed(row, count)]}
    if row["dtype"] == "bf16":
        plan["mixed_precision"] = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    if row["mesh"].get("context", 1) > 1:
        plan["context_parallel"] = {"method": "ring" if row["gather"] == "ring" else "all_gather"}
    if row["mesh"].get("tensor", 1) > 1:
        plan |= {"sequence_parallel": row["sequence_parallel"], "loss_parallel": row["loss_parallel"]}
        if styles := tensor_models.tensor_parallel_of(row):
            plan["tensor_parallel"] = styles
    return plan


def record(name, row):
    world = 1
    for size in row["mesh"].values():
        world *= size
    ranks = collective_log.run_on_ranks(world, lambda: train(row))
    groups = {axis: sorted({tuple(rank["groups"][axis]) for rank in ranks}) for axis in ranks[0]["groups"]}
    step = {key: row[key] for key in ("batch", "seq", "microbatches", "accumulate", "optimizer", "clip")}
    values = {"program": name, "origin": f"torch {torch.__version__.split('+')[0]} (Gloo), transformers {transformers.__version__}, by tests/tools/tensor_programs.py",
              "model": row["model"], "config": row["config"], "step": step, "plan": plan_of(row), "groups": groups}
    if not row["units"]:
        values["fully_shard"] = False
    if row["mesh"].get("context", 1) > 1:
        values["gather"] = row["gather"]
    return collective_log.document(values, collective_log.merged([rank["rows"] for rank in ranks]))


def record_all(names, folder, recorded):
    failed = []
    for name in names:
        try:
            (folder / f"{name}.json").write_text(recorded(name))
            print(name, file=sys.stderr, flush=True)
        except torch.multiprocessing.ProcessRaisedException as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    if failed:
        raise SystemExit(f"not recorded: {', '.join(failed)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=tensor_models.DATA / "tensor")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    rows = programs()
    if options.list:
        print(json.dumps(rows, indent=1))
        return
    record_all(options.names or rows, options.out, lambda name: record(name, rows[name]))


if __name__ == "__main__":
    main()
