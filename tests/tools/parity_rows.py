"""The rows of the parity table: options that PyTorch's FSDP1, FSDP2 or DDP has, each as a plan of docs/reference/plan.md and run flags.

parity_record.py runs them in PyTorch, parity_table.py in Shardlens. A row is

    plan    plan file without version and layout; "{blocks}" is replaced by the glob of the model's layers, "{block:2}" by one of them, "{embedding}"
            by a module of the root. Default units: every block, the root. A mesh is given by its number of replicas,
            {"replicate": R} or "all".
    run     accumulate (microbatches), no_sync, clip, norm_type: as capture's flags
    worlds, models, layouts, steps    where they differ from the defaults below (hybrid meshes and sub-meshes of two ranks need four)
    torch                             the first version of PyTorch that has it, if it is not 2.11
    tolerance                         of losses, relative (1e-5; 1e-2 where a dtype is bf16 or fp16)

Layouts. Dialect fsdp1 and replicate (DDP) have the flat layout; fsdp2 runs in both, and its losses and its order of collectives must not depend on it. PyTorch's FSDP2 has
only per-parameter sharding, so the flat layout's bytes are compared with those of a flat parameter of PyTorch's FSDP1 over the same unit (FSDP1 has no
units of several modules: those run in the per-parameter layout).
"""
import re

MODELS = {"llama-tiny": {"blocks": "model.layers.*", "embedding": "model.embed_tokens"},
          "gpt2-tiny": {"blocks": "transformer.h.*", "embedding": "transformer.wpe"}}  # wte is tied
WORLDS = (2, 3, 4)
STEPS = 4

FSDP1 = {"dialect": "fsdp1"}
DDP = {"units": [{"modules": "", "api": "replicate"}]}
TWO_REPLICAS = {"mesh": {"replicate": 2}}
NO_SYNC = {"accumulate": 3, "no_sync": True}
BF16 = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
CHECKPOINTED = {"activation_checkpointing": ["{blocks}"]}
FROZEN_UNIT = {"frozen_parameters": ["{block:1}.**"]}
FROZEN_IN_UNITS = {"frozen_parameters": ["{blocks}.mlp.**"]}
FROZEN_PREFIX = {"frozen_parameters": ["model.embed_tokens.*", "{block:0}.**", "{block:1}.**"]}
IGNORED = {"ignored_modules": ["{block:1}.mlp"], "ignored_parameters": ["{block:2}.*.weight"]}
PARTS = {"units": [{"modules": "{blocks}.mlp"}, {"modules": ""}]}
OFFLOAD = {"cpu_offload": True}
ALL_REPLICAS = {"mesh": {"replicate": "all"}}
WHOLE_BETWEEN = {"units": [{"modules": "{blocks}", "reshard_after_backward": False}, {"modules": ""}]}

ROWS = {
    "fsdp2": {},
    "fsdp2-shard-grad-op": dict(plan={"reshard_after_forward": False}),
    "fsdp2-reshard": dict(plan={"reshard_after_forward": True}),
    "fsdp2-reshard-2": dict(plan={"reshard_after_forward": 2}, worlds=(4,)),
    "fsdp2-reshard-of-units": dict(plan={"units": [
        {"modules": "{blocks}", "reshard_after_forward": False}, {"modules": "", "reshard_after_forward": True}]}),
    "fsdp2-group": dict(models=["llama-tiny"], layouts=["per_parameter"], plan={"units": [
        {"modules": "{blocks}"}, {"modules": ["model.norm", "lm_head"], "reshard_after_forward": False}, {"modules": ""}]}),
    "fsdp2-forward-prefetch-1": dict(plan={"forward_prefetch": 1}),
    "fsdp2-forward-prefetch-2": dict(plan={"forward_prefetch": 2, "reshard_after_forward": True}),
    "fsdp2-prefetch-lists": dict(plan={
        "forward_prefetch": {"": ["{block:0}", "{block:1}"], "{block:1}": ["{block:2}"]},
        "backward_prefetch": {"{block:3}": ["{block:2}", "{block:1}"], "{block:2}": ["{block:1}"]}}),
    "fsdp2-no-shard": dict(plan=ALL_REPLICAS),
    "fsdp2-no-shard-no-sync": dict(plan=ALL_REPLICAS, run=NO_SYNC),
    "fsdp2-no-shard-bf16": dict(plan={**ALL_REPLICAS, "mixed_precision": BF16}),
    "fsdp2-hybrid": dict(plan=TWO_REPLICAS, worlds=(4,)),
    "fsdp2-hybrid-shard-grad-op": dict(plan={**TWO_REPLICAS, "reshard_after_forward": False}, worlds=(4,)),
    "fsdp2-accumulate": dict(run={"accumulate": 3}),
    "fsdp2-no-sync": dict(run=NO_SYNC),
    "fsdp2-shard-grad-op-no-sync": dict(plan={"reshard_after_forward": False}, run=NO_SYNC),
    "fsdp2-hybrid-accumulate": dict(plan=TWO_REPLICAS, run={"accumulate": 3}, worlds=(4,)),
    "fsdp2-hybrid-no-sync": dict(plan=TWO_REPLICAS, run=NO_SYNC, worlds=(4,)),
    "fsdp2-hybrid-bf16": dict(plan={**TWO_REPLICAS, "mixed_precision": BF16}, worlds=(4,)),
    "fsdp2-hybrid-all-reduce-last": dict(plan={**TWO_REPLICAS, "requires_all_reduce": False}, run={"accumulate": 3}, worlds=(4,)),
    "fsdp2-no-shard-all-reduce-last": dict(plan={**ALL_REPLICAS, "requires_all_reduce": False}, run={"accumulate": 3}),
    "fsdp2-whole-between": dict(plan={"reshard_after_backward": False}, run=NO_SYNC),
    "fsdp2-whole-between-of-units": dict(plan={**WHOLE_BETWEEN, "reshard_after_forward": True}, run=NO_SYNC),
    "fsdp2-unshard-in-backward": dict(plan={"reshard_after_forward": True, "units": [
        {"modules": "{blocks}"}, {"modules": "{embedding}", "unshard_in_backward": False}, {"modules": ""}]}),
    "fsdp2-divide-factor": dict(plan={"gradient_divide_factor": 6, "mixed_precision": {"reduce_dtype": "fp16"}}),
    "fsdp2-checkpoint": dict(plan=CHECKPOINTED),
    "fsdp2-checkpoint-inside": dict(plan={"activation_checkpointing": ["{blocks}.mlp"]}),
    "fsdp2-checkpoint-around": dict(plan={**CHECKPOINTED, **PARTS}),
    "fsdp2-bf16": dict(plan={"mixed_precision": BF16}),
    "fsdp2-bf16-no-sync": dict(plan={"mixed_precision": BF16}, run=NO_SYNC),
    "fsdp2-bf16-reduce": dict(plan={"mixed_precision": {"param_dtype": "bf16"}}),
    "fsdp2-bf16-output": dict(plan={"mixed_precision": BF16, "units": [
        {"modules": "{blocks}"}, {"modules": "", "mixed_precision": {**BF16, "output_dtype": "fp32"}}]}),
    "fsdp2-bf16-of-units": dict(tolerance=1e-2, plan={"units": [
        {"modules": "{blocks}", "mixed_precision": {**BF16, "output_dtype": "fp32"}}, {"modules": ""}]}),
    "fsdp2-fp16": dict(plan={"mixed_precision": {"param_dtype": "fp16", "reduce_dtype": "fp32"}}),
    "fsdp2-reduce-bf16": dict(plan={"mixed_precision": {"reduce_dtype": "bf16"}}),
    "fsdp2-clip": dict(run={"clip": 0.5}),
    "fsdp2-clip-1": dict(run={"clip": 0.5, "norm_type": 1}),
    "fsdp2-clip-inf": dict(run={"clip": 0.01, "norm_type": "inf"}),
    "fsdp2-no-shard-clip": dict(plan=ALL_REPLICAS, run={"clip": 0.5}),
    "fsdp2-hybrid-clip-inf": dict(plan=TWO_REPLICAS, run={"clip": 0.01, "norm_type": "inf"}, worlds=(4,)),
    "fsdp2-frozen-unit": dict(plan=FROZEN_UNIT, worlds=(2, 3)),
    "fsdp2-frozen-unit-reshard": dict(plan={**FROZEN_UNIT, "reshard_after_forward": True}, worlds=(2, 3)),
    "fsdp2-frozen-in-units": dict(plan=FROZEN_IN_UNITS, worlds=(2, 3)),
    "fsdp2-frozen-prefix": dict(models=["llama-tiny"], plan=FROZEN_PREFIX, worlds=(2, 3)),
    "fsdp2-frozen-hybrid": dict(plan={**FROZEN_IN_UNITS, **TWO_REPLICAS}, worlds=(4,)),
    "fsdp2-frozen-no-sync": dict(plan={"frozen_parameters": ["{block:1}.**", "{block:2}.mlp.**"]}, run=NO_SYNC, worlds=(2, 3)),
    "fsdp2-frozen-bf16": dict(plan={**FROZEN_IN_UNITS, "mixed_precision": BF16}, worlds=(2, 3)),
    "fsdp2-frozen-checkpoint": dict(plan={**FROZEN_UNIT, **CHECKPOINTED}, worlds=(2, 3)),
    "fsdp2-ignored": dict(plan=IGNORED, worlds=(2, 3)),
    "fsdp2-offload": dict(plan=OFFLOAD, run={"clip": 0.5}),
    "fsdp2-offload-accumulate": dict(plan={**OFFLOAD, "reshard_after_forward": True}, run={"accumulate": 3}, worlds=(2, 3)),
    "fsdp2-offload-bf16-of-units": dict(tolerance=1e-2, worlds=(2, 3), plan={"units": [
        {"modules": "{blocks}", "cpu_offload": True, "mixed_precision": {**BF16, "output_dtype": "fp32"}}, {"modules": ""}]}),
    "fsdp2-offload-hybrid": dict(plan={**OFFLOAD, **TWO_REPLICAS}, worlds=(4,)),
    "fsdp1": dict(plan=FSDP1),
    "fsdp1-shard-grad-op": dict(plan={**FSDP1, "reshard_after_forward": False}),
    "fsdp1-post": dict(plan={**FSDP1, "backward_prefetch": "post"}),
    "fsdp1-none": dict(plan={**FSDP1, "backward_prefetch": "none"}),
    "fsdp1-no-limit": dict(plan={**FSDP1, "limit_all_gathers": False}),
    "fsdp1-forward-prefetch": dict(plan={**FSDP1, "forward_prefetch": 1}),
    "fsdp1-forward-prefetch-post": dict(plan={**FSDP1, "forward_prefetch": 1, "backward_prefetch": "post"}),
    "fsdp1-no-shard": dict(plan={**FSDP1, **ALL_REPLICAS}),
    "fsdp1-no-shard-no-sync": dict(plan={**FSDP1, **ALL_REPLICAS}, run=NO_SYNC),
    "fsdp1-no-shard-bf16": dict(plan={**FSDP1, **ALL_REPLICAS, "mixed_precision": BF16}),
    "fsdp1-hybrid": dict(plan={**FSDP1, **TWO_REPLICAS}, worlds=(4,)),
    "fsdp1-hybrid-shard-grad-op": dict(plan={**FSDP1, **TWO_REPLICAS, "reshard_after_forward": False}, worlds=(4,)),
    "fsdp1-hybrid-no-sync": dict(plan={**FSDP1, **TWO_REPLICAS}, run=NO_SYNC, worlds=(4,)),
    "fsdp1-accumulate": dict(plan=FSDP1, run={"accumulate": 3}),
    "fsdp1-no-sync": dict(plan=FSDP1, run=NO_SYNC),
    "fsdp1-checkpoint": dict(plan={**FSDP1, **CHECKPOINTED}),
    "fsdp1-bf16": dict(plan={**FSDP1, "mixed_precision": BF16}),
    "fsdp1-bf16-reduce": dict(plan={**FSDP1, "mixed_precision": {"param_dtype": "bf16", "buffer_dtype": "fp32"}}),
    "fsdp1-clip": dict(plan=FSDP1, run={"clip": 0.5}),
    "fsdp1-clip-inf": dict(plan=FSDP1, run={"clip": 0.01, "norm_type": "inf"}),
    "fsdp1-frozen-unit": dict(plan={**FSDP1, **FROZEN_UNIT}, worlds=(2, 3)),
    "fsdp1-frozen-unit-post": dict(plan={**FSDP1, **FROZEN_UNIT, "backward_prefetch": "post"}, worlds=(2, 3)),
    "fsdp1-frozen-in-units": dict(plan={**FSDP1, **FROZEN_IN_UNITS}, worlds=(2, 3)),
    "fsdp1-frozen-prefix": dict(models=["llama-tiny"], plan={**FSDP1, **FROZEN_PREFIX}, worlds=(2, 3)),
    "fsdp1-frozen-no-shard": dict(plan={**FSDP1, **FROZEN_IN_UNITS, "mesh": {"replicate": "all"}}, worlds=(2,)),
    "fsdp1-ignored": dict(plan={**FSDP1, **IGNORED}, worlds=(2, 3)),
    "fsdp1-no-sync-shard-grad-op": dict(plan={**FSDP1, "reshard_after_forward": False}, run=NO_SYNC),
    "ddp": dict(plan=DDP),
    "ddp-no-sync": dict(plan=DDP, run=NO_SYNC),
    "ddp-clip": dict(plan=DDP, run={"clip": 0.5}),
    "ddp-bucket-cap": dict(plan={**DDP, "bucket_cap_mb": 0.1}),
    "ddp-bucket-view": dict(plan={**DDP, "gradient_as_bucket_view": True}),
    "ddp-find-unused": dict(plan={**DDP, "find_unused_parameters": True}),
    "ddp-static-graph": dict(plan={**DDP, "static_graph": True}),
}


# Rows of later versions of PyTorch, recorded with torch 2.15.
LATER = {
    "fsdp2-separate-reduce-scatter": dict(torch=(2, 13), worlds=(2,), plan={"separate_reduce_scatter_group": True}),
    "fsdp2-separate-reduce-scatter-hybrid": dict(torch=(2, 13), worlds=(4,), plan={**TWO_REPLICAS, "separate_reduce_scatter_group": True}),
    "fsdp2-zeros-of-unused": dict(torch=(2, 13), worlds=(2,), plan={"reduce_scatter_unused_params": True}),
    "fsdp2-kept-storage": dict(torch=(2, 15), worlds=(2,), layouts=["per_parameter"], plan={"keep_unsharded_storage": True}),
    "fsdp2-two-reduction-inputs": dict(torch=(2, 15), worlds=(2,), plan={"reduce_scatter_max_input_buffers": 2}),
    "fsdp2-backward-ends-later": dict(torch=(2, 15), worlds=(2,), plan={"backward_finalization": "waits"}, run=NO_SYNC),
    "fsdp2-reduced-at-the-end": dict(torch=(2, 15), worlds=(2,), plan={"backward_finalization": "reduces", "units": [
        {"modules": "{blocks}"}, {"modules": "{embedding}"}, {"modules": ""}]}, run=NO_SYNC),
}


def dialect_of(plan):
    return "ddp" if any(unit.get("api") == "replicate" for unit in plan.get("units", [])) else plan.get("dialect", "fsdp2")


def row(name):
    """A row with its defaults filled in."""
    spec = {"plan": {}, "run": {}, "worlds": WORLDS, "models": list(MODELS), "steps": STEPS, **{**ROWS, **LATER}[name]}
    flat_only = dialect_of(spec["plan"]) != "fsdp2"
    spec.setdefault("layouts", ["flat"] if flat_only else ["per_parameter", "flat"])
    mixed = spec["plan"].get("mixed_precision", {})
    low = {mixed.get("param_dtype"), mixed.get("reduce_dtype")} & {"bf16", "fp16"}
    spec.setdefault("tolerance", 1e-2 if low else 1e-5)
    return spec


def plan_of(spec, model, world, layout):
    """The plan file of a row for one model, world size and layout."""
    def filled(value):
        if isinstance(value, dict):
            return {filled(k): filled(v) for k, v in value.items()}
        if isinstance(value, list):
            return [filled(v) for v in value]
        if isinstance(value, str):
            for name, fqn in MODELS[model].items():
                value = value.replace(f"{{{name}}}", fqn)
            return re.sub(r"{block:(\d+)}", lambda match: MODELS[model]["blocks"].replace("*", match[1]), value)
        return value

    plan = {"version": 1, "units": [{"modules": "{blocks}"}, {"modules": ""}], "layout": layout, **spec["plan"]}
    if "mesh" in plan:
        replicas = world if plan["mesh"]["replicate"] == "all" else plan["mesh"]["replicate"]
        plan["mesh"] = {"replicate": replicas, "shard": world // replicas}
    return filled(plan)
