"""Records the collectives of expert-parallel programs, as PyTorch and torchtitan issue them: tests/data/expert/NAME.json.

    expert_programs.py --torchtitan DIR [--out FOLDER] [NAME…]     torch 2.11, transformers 5.23; DIR: see torchtitan_program.py
    expert_programs.py --list

Models of transformers whose layers' experts are replaced by torchtitan 0.2.2's MoE with its ExpertParallel, and with tensor parallelism its
ReordererSequenceParallel: the ranks of the axis `tensor` divide the tokens before they go to the experts. In the programs …-gather all tokens go to all ranks of the axis
`expert` instead, by hand, as with Megatron-Core's MoEAllGatherTokenDispatcher. Experts are FSDP2 units of their own over `expert_shard`. Which rows go to which expert is fixed: balanced, or by the skew S the share of expert i is proportional to (i + 1)^-S.
"""
import argparse
import functools
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import PrepareModuleInputOutput, parallelize_module

import collective_log
import tensor_models
import tensor_programs
import torchtitan_program

DEFAULT = {"model": "mixtral-tiny", "config": {"num_hidden_layers": 2}, "mesh": {"shard": 2, "expert": 2}, "batch": 2, "seq": 32, "skew": 0, "dispatch": "all_to_all", "sequence_parallel": True, "loss_parallel": False,
           "styles": "torchtitan", "microbatches": 1, "accumulate": False, "checkpoint": "none", "optimizer": "loop", "clip": False, "dtype": "fp32", "reshard": None, "prefetch": False}
QWEN = {"model": "qwen3-moe-tiny", "config": {}}


def programs():
    rows = {}

    def add(name, shard=1, tensor=1, expert=1, replicate=1, **changes):
        mesh = {"replicate": replicate, "shard": shard, "tensor": tensor, "expert": expert}
        rows[name] = {**DEFAULT, **changes, "mesh": {axis: size for axis, size in mesh.items() if size > 1}}

    add("mixtral-s2e2", 2, expert=2)
    add("mixtral-s4e2", 4, expert=2)
    add("mixtral-s4e4", 4, expert=4)
    add("mixtral-s4e2-skew", 4, expert=2, skew=1)
    add("mixtral-s4e4-skew", 4, expert=4, skew=0.5)
    add("mixtral-s2e2-one", 2, expert=2, skew=100)
    add("mixtral-s2t2e2", 2, 2, 2)
    add("mixtral-s2t2e4", 2, 2, 4)
    add("mixtral-s2t2e2-skew", 2, 2, 2, skew=1)
    add("mixtral-s2t2e4-skew", 2, 2, 4, skew=1)
    add("mixtral-s4e2-checkpoint", 4, expert=2, checkpoint="all", skew=1)
    add("mixtral-s2t2e2-checkpoint", 2, 2, 2, checkpoint="all")
    add("mixtral-s4e2-accumulate", 4, expert=2, microbatches=2, accumulate=True)
    add("mixtral-s4e2-bf16", 4, expert=2, dtype="bf16")
    add("mixtral-s4e2-prefetch", 4, expert=2, prefetch=True)
    add("mixtral-r2s2e2", 2, expert=2, replicate=2)
    add("mixtral-s8e2-columns", 8, expert=2)
    gather = {"dispatch": "all_gather"}
    add("mixtral-s2e2-gather", 2, expert=2, **gather)
    add("mixtral-s4e4-gather-skew", 4, expert=4, skew=1, **gather)
    add("mixtral-s4e2-gather-checkpoint", 4, expert=2, checkpoint="all", **gather)
    add("mixtral-s4e2-gather-bf16", 4, expert=2, dtype="bf16", **gather)
    add("qwen3-s2e2", 2, expert=2, **QWEN)
    add("qwen3-s4e2-skew", 4, expert=2, skew=1, **QWEN)
    add("qwen3-s2t2e2", 2, 2, 2, **QWEN)
    add("qwen3-s4e2-checkpoint", 4, expert=2, checkpoint="all", **QWEN)
    return rows


def experts_of(config):
    return config["num_local_experts"], config["num_experts_per_tok"]


def is_sparse(config, layer):
    return layer not in config.get("mlp_only_layers", [])


def rows_of_experts(rows, experts, skew):
    """Rows of each expert: as many as its end of the cumulative shares has more than the one before."""
    shares = [(i + 1) ** -float(skew) for i in range(experts)]
    ends = [int(sum(shares[:i + 1]) / sum(shares) * rows + 0.5) for i in range(experts)]
    return [end - begin for begin, end in zip([0, *ends], ends)]


def fixed_routing(router, scores, parts, skew):
    """Instead of TokenChoiceTopKRouter's choice: the rows of each of `parts` parts of the tokens go to experts as rows_of_experts says."""
    tokens, experts = scores.shape[0] // parts, router.num_experts
    counts = torch.tensor(rows_of_experts(tokens * router.top_k, experts, skew))
    chosen = torch.repeat_interleave(torch.arange(experts), counts).view(router.top_k, tokens).t().repeat(parts, 1)
    return chosen, scores.gather(1, chosen)


def gathering_experts(moe, hidden, inner):
    """The same layer whose experts take their rows out of the tokens of all ranks of `expert`."""
    from torch.distributed._functional_collectives import all_gather_tensor, all_gather_tensor_autograd, reduce_scatter_tensor_autograd
    from torchtitan.models.moe.moe import GroupedExperts

    class Experts(GroupedExperts):
        def forward(self, x, weights, chosen):
            """x [tokens, hidden]; weights and chosen [tokens, experts]."""
            chosen = all_gather_tensor(chosen, 0, self.group)
            weights = all_gather_tensor_autograd(weights, 0, self.group)
            x = all_gather_tensor_autograd(x, 0, self.group)
            w1, w2, w3 = (each.to_local() for each in (self.w1, self.w2, self.w3))
            first = dist.get_rank(self.group) * len(w1)
            own = chosen[:, first:first + len(w1)].t()
            of_expert, rows = own.nonzero(as_tuple=True)
            parts = x[rows].split(torch.bincount(of_expert, minlength=len(w1)).tolist())
            done = torch.cat([(F.silu(part @ up.t()) * (part @ gate.t())) @ down.t() for part, up, down, gate in zip(parts, w1, w2, w3)])
            done = done * weights[:, first:first + len(w1)].t()[own].unsqueeze(1).to(done.dtype)
            return reduce_scatter_tensor_autograd(torch.zeros_like(x).index_add_(0, rows, done), "sum", 0, self.group)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = moe.router, Experts(hidden, inner, moe.experts.num_experts, False)

        def forward(self, x):
            rows = x.flatten(0, 1)
            scores, indices, _ = self.router(rows, None)
            weights = torch.zeros(len(rows), self.experts.num_experts, dtype=scores.dtype).scatter(1, indices, scores)
            return self.experts(rows, weights, torch.zeros(weights.shape, dtype=torch.bool).scatter(1, indices, True)).view(x.shape)

    return Layer()


def use_experts(model, row, config):
    """Replaces the experts of transformers by torchtitan's MoE, which has the same sizes."""
    from torchtitan.models.moe import MoE, MoEArgs

    count, per_token = experts_of(config)
    hidden = config.get("moe_intermediate_size", config["intermediate_size"])
    arguments = MoEArgs(num_experts=count, num_shared_experts=0, score_func="softmax", route_norm=True, score_before_experts=False, top_k=per_token, use_grouped_mm=False,
                        load_balance_coeff=None, _debug_force_load_balance=True)
    for index, layer in enumerate(model.model.layers):
        if is_sparse(config, index):
            layer.mlp = MoE(arguments, config["hidden_size"], hidden)
            if row["dispatch"] == "all_gather":
                layer.mlp = gathering_experts(layer.mlp, config["hidden_size"], hidden)
            for parameter in layer.mlp.parameters():
                torch.nn.init.normal_(parameter, std=0.02)
            parts = row["mesh"].get("tensor", 1)
            layer.mlp.router._debug_force_load_balance_routing = functools.partial(fixed_routing, layer.mlp.router, parts=parts, skew=row["skew"])


def prepare(folder):
    """Makes torchtitan's experts run on a CPU. Returns its version."""
    import importlib.metadata

    sys.path.append(str(folder))
    torchtitan_program.importable()
    from torchtitan.models.moe import utils

    utils.generate_permute_indices = functools.partial(utils.generate_permute_indices, use_cpu=True)
    # Of integers, which a CPU's histc refuses.
    torch.histc = lambda values, bins, min, max: torch.bincount(values, minlength=bins)  # noqa: A002
    return importlib.metadata.version("torchtitan")


class Meshes(tensor_programs.Meshes):
    """And the mesh of the experts."""

    def __init__(self, sizes):
        super().__init__({axis: size for axis, size in sizes.items() if axis != "expert"})
        ranks, replicate = dist.get_world_size(), sizes.get("replicate", 1)
        experts = {"replicate": replicate, "expert_shard": ranks // replicate // sizes["expert"], "expert": sizes["expert"]}
        names = [axis for axis in experts if experts[axis] > 1 or axis == "expert_shard"]
        self.experts = self.sharded._get_root_mesh()._unflatten(0, tuple(experts[axis] for axis in names), tuple(names))
        self.groups |= {axis: self.experts.get_group(axis) for axis in ("expert_shard", "expert")}
        self.expert_units = self.experts[("replicate", "expert_shard") if replicate > 1 else ("expert_shard",)]


def divide(model, row, config, meshes):
    """Divides the model as torchtitan's parallelize_qwen3 does, with units that are the layers, their experts and the root."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torchtitan.distributed import NoParallel
    from torchtitan.distributed.expert_parallel import ExpertParallel, ReordererSequenceParallel

    layers = model.model.layers
    if meshes.tensor is not None:
        parallelize_module(model, meshes.tensor, tensor_models.styles_of_root(row))
    for index, layer in enumerate(layers):
        sparse = is_sparse(config, index)
        if meshes.tensor is not None:
            styles = tensor_models.styles_of_layer(row)
            if sparse:
                styles = {name: style for name, style in styles.items() if not name.startswith("mlp")}
                styles |= {"mlp": PrepareModuleInputOutput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_input=True, output_layouts=(Partial(),),
                                                           desired_output_layouts=(Shard(1),)),
                           "mlp.router.gate": NoParallel(), "mlp.reorderer": ReordererSequenceParallel()}
            parallelize_module(layer, meshes.tensor, styles)
        if sparse and row["dispatch"] == "all_gather":
            of_ranks = meshes.experts["expert"]
            layer.mlp.experts.group = of_ranks.get_group()
            distribute_module(layer.mlp.experts, of_ranks, ExpertParallel()._partition_fn)
        elif sparse:
            parallelize_module(layer.mlp.experts, meshes.experts["expert"], ExpertParallel())
    experts = {index: layer.mlp.experts for index, layer in enumerate(layers) if is_sparse(config, index)}
    for index in tensor_programs.checkpointed(row, len(layers)):
        layers[index] = checkpoint_wrapper(layers[index])
    given = {"reshard_after_forward": row["reshard"]}
    if row["dtype"] == "bf16":
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    columns = (lambda parameter: Shard(1)) if by_columns(row, config) else None
    for index, layer in enumerate(layers):
        if index in experts:
            fully_shard(experts[index], mesh=meshes.expert_units, shard_placement_fn=columns, **given)
        fully_shard(layer, mesh=meshes.fsdp, **given)
    fully_shard(model, mesh=meshes.fsdp, **given)
    if row["prefetch"]:
        units = [[layer, *([experts[index]] if index in experts else [])] for index, layer in enumerate(layers)]
        for unit, later in zip(units, units[1:]):
            unit[0].set_modules_to_forward_prefetch(later)
            later[0].set_modules_to_backward_prefetch(unit)


def by_columns(row, config):
    """Whether torchtitan shards along dimension 1: where FSDP would cut the experts' first dimension into more parts than there are experts."""
    mesh = row["mesh"]
    return mesh.get("shard", 1) * mesh.get("tensor", 1) > experts_of(config)[0]


def train(row, config):
    """Rows of the second step on this rank, and of each axis the ranks of this rank's group."""
    meshes = Meshes(row["mesh"])
    model, forward, vocabulary = tensor_models.make(row)
    use_experts(model, row, config)
    divide(model, row, config, meshes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # DTensors of several meshes
    log = collective_log.CollectiveLog(model, meshes.groups)
    positions = torch.arange(row["seq"]).unsqueeze(0)
    for step in range(2):
        with log:
            for microbatch in range(row["microbatches"]):
                if row["accumulate"]:
                    model.set_requires_gradient_sync(microbatch + 1 == row["microbatches"])
                tokens = torch.randint(0, vocabulary, (row["batch"], row["seq"]))
                with log.during("forward", microbatch):
                    logits = forward(tokens, positions)
                    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
                    del logits
                with log.during("backward", microbatch):
                    loss.backward()
            with log.during("optimizer", microbatch):
                optimizer.step()
        rows = log.take()
        optimizer.zero_grad()
    for each in rows:
        each[7] = each[7].replace("mlp.router.gate", "mlp.gate").replace("mlp.router", "mlp.gate")
    return {"rows": rows, "groups": {axis: dist.get_process_group_ranks(group) for axis, group in meshes.groups.items()}}


def plan_of(row, config):
    count = config["num_hidden_layers"]
    experts = [f"model.layers.{index}.mlp.experts" if is_sparse(config, index) else None for index in range(count)]
    group = {"parameters": ["**"], "mesh": "expert", "shard_dim": 1 if by_columns(row, config) else 0}
    plan = {"version": 1, "layout": "per_parameter", "mesh": row["mesh"],
            "units": [{"modules": "model.layers.*.mlp.experts", "groups": [group]}, {"modules": "model.layers.*"}, {"modules": ""}], "reshard_after_forward": row["reshard"],
            "activation_checkpointing": [f"model.layers.{index}" for index in tensor_programs.checkpointed(row, count)]}
    if row["dispatch"] != "all_to_all":
        plan["expert_parallel"] = {"dispatch": row["dispatch"]}
    if row["dtype"] == "bf16":
        plan["mixed_precision"] = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    if row["prefetch"]:
        units = [[f"model.layers.{index}", *([experts[index]] if experts[index] else [])] for index in range(count)]
        plan["forward_prefetch"] = {unit[0]: later for unit, later in zip(units, units[1:])}
        plan["backward_prefetch"] = {later[0]: unit for unit, later in zip(units, units[1:])}
    return plan


def record(name, row, titan):
    config = tensor_models.config_of(row)
    ranks = row["mesh"].get("replicate", 1) * row["mesh"].get("shard", 1) * row["mesh"].get("tensor", 1)
    found = collective_log.run_on_ranks(ranks, lambda: train(row, config))
    groups = {axis: sorted({tuple(rank["groups"][axis]) for rank in found}) for axis in found[0]["groups"]}
    count, per_token = experts_of(config)
    step = {key: row[key] for key in ("batch", "seq", "microbatches", "accumulate", "optimizer", "clip", "skew")}
    routed = row["batch"] * row["seq"] * per_token // row["mesh"].get("tensor", 1)
    values = {"program": name, "origin": f"torch {torch.__version__.split('+')[0]} (Gloo), transformers {transformers.__version__}, torchtitan {titan}, by tests/tools/expert_programs.py",
              "model": row["model"], "config": row["config"], "step": step, "rows_of_experts": rows_of_experts(routed, count, row["skew"]), "plan": plan_of(row, config), "groups": groups}
    return collective_log.document(values, collective_log.merged([rank["rows"] for rank in found]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--torchtitan", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, default=tensor_models.DATA / "expert")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    rows = programs()
    if options.list:
        print(json.dumps(rows, indent=1))
        return
    titan = prepare(options.torchtitan)
    tensor_programs.record_all(options.names or rows, options.out, lambda name: record(name, rows[name], titan))


if __name__ == "__main__":
    main()
