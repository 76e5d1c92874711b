"""Compares the families that Shardlens reads from a config.json with transformers' models of the same configs, at full size on meta.

    python tests/tools/model_families.py record tests/data/families [NAME…]   adds the models that expected.json lacks, or NAMEs (torch 2.11, transformers 5.23)
    python tests/tools/model_families.py compare tests/data/families --bin build/release/bin/shardlens [--table] [NAME…]

configs.json has the values of public configs. expected.json has for each model, never written by Shardlens: the number of parameters and
tensors, hashes (FNV-1a, 64 bits) of every parameter's "FQN shape" and of every module's "FQN class", the groups of tied names, the bytes of
each of 8 ranks under fully_shard (every layer, and the root; fp32; the placements of a fake process group), and the FLOPs that FlopCounterMode
counts in forward and backward of one sample of 64 tokens without attention, whose products are replaced by sums. Experts run as batched
products of each token's experts, as many as balanced routing has. The hashes are compared by tests/core/model/families_test.cpp.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

BATCH, SEQ, RANKS = 1, 64, 8


def fnv(lines):
    value = 0xCBF29CE484222325
    for byte in "".join(line + "\n" for line in lines).encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def shape_line(fqn, shape):
    return f"{fqn} {'x'.join(map(str, shape))}"


def no_attention(module, query, key, value, attention_mask, **kwargs):
    """A result of attention's shape with gradients for all three inputs, without a product."""
    groups = query.shape[1] // key.shape[1]
    out = value.repeat_interleave(groups, dim=1) + query.sum(-1, keepdim=True) + key.sum(-1, keepdim=True).repeat_interleave(groups, dim=1)
    return out.transpose(1, 2).contiguous(), None


def make(config_values):
    import torch
    import transformers
    from transformers import masking_utils
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("sums", no_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("sums", lambda *args, **kwargs: None)
    masking_utils.find_packed_sequence_indices = lambda position_ids: None  # reads positions, which meta tensors do not have
    values = dict(config_values)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config._attn_implementation = "sums" if config.model_type != "mpt" else "eager"
    if hasattr(config, "num_experts_per_tok"):
        config._experts_implementation = "batched_mm"
    with torch.device("meta"):
        if config.model_type == "vit":
            return transformers.ViTForImageClassification(config), config
        return transformers.AutoModelForCausalLM.from_config(config), config


def flops(model, config):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    if config.model_type == "vit":
        inputs = {"pixel_values": torch.empty(BATCH, 3, config.image_size, config.image_size, device="meta"),
                  "labels": torch.empty(BATCH, dtype=torch.long, device="meta")}
    else:
        tokens = torch.empty(BATCH, SEQ, dtype=torch.long, device="meta")
        inputs = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    # MPT has its own attention; its products are the only batched ones.
    skipped = [torch.ops.aten.bmm] if config.model_type == "mpt" else []
    out = []
    model.train()
    loss = None
    for part in ("forward", "backward"):
        with FlopCounterMode(display=False) as counter:
            if part == "forward":
                loss = model(**inputs).loss
            else:
                loss.backward()
        counts = counter.get_flop_counts()["Global"]
        out.append(sum(count for op, count in counts.items() if op not in skipped))
    return out


def rank_bytes(model):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    layers = next(m for m in model.modules() if type(m).__name__ == "ModuleList")
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    out = [0] * RANKS
    for parameter in model.parameters():
        placement = parameter.placements[0]
        assert isinstance(placement, Shard) and placement.dim == 0, placement
        rows = parameter.shape[0]
        elements = parameter.numel() // rows
        for rank in range(RANKS):
            size = Shard.local_shard_size_and_offset(rows, RANKS, rank)[0]
            out[rank] += max(size, 0) * elements * 4
            if rank == 0:
                assert parameter.to_local().numel() == size * elements
    return out


def describe(values):
    model, config = make(values)
    tied, first = {}, {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied.setdefault(first[id(parameter)], []).append(fqn)
        first.setdefault(id(parameter), fqn)
    parameters = [(fqn, tuple(p.shape)) for fqn, p in model.named_parameters()]
    out = {
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tensors": len(parameters),
        "names": fnv(shape_line(fqn, shape) for fqn, shape in parameters),
        "modules": fnv(f"{fqn} {type(m).__name__}" for fqn, m in model.named_modules()),
        "tied": tied,
    }
    out["forward_flops"], out["backward_flops"] = flops(model, config)
    out["rank_bytes"] = rank_bytes(model)
    return out


def record(folder, names):
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    torch.cuda.is_available = lambda: False
    path = os.path.join(folder, "expected.json")
    expected = json.load(open(path)) if os.path.exists(path) else {}
    configs = json.load(open(os.path.join(folder, "configs.json")))
    for name, values in configs.items():
        if (names and name not in names) or (not names and name in expected):
            continue
        started = time.monotonic()
        expected[name] = describe(values)
        print(f"{name}: {expected[name]['parameters']} parameters, {time.monotonic() - started:.1f} s", file=sys.stderr)
        with open(path + ".new", "w") as f:
            f.write("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(expected[k])}" for k in configs if k in expected) + "\n}\n")
        os.replace(path + ".new", path)


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def held_bytes(parameters):
    out = [0] * RANKS
    for parameter in parameters:
        for part in parameter["held"]:
            for rank in part["ranks"]:
                out[rank] += (part["elements"][1] - part["elements"][0]) * 4
    return out


def found_by_shardlens(program, config, folder):
    plan = os.path.join(folder, "plan.json")
    with open(plan, "w") as f:
        json.dump({"version": 1, "layout": "per_parameter"}, f)
    path = os.path.join(folder, "config.json")
    with open(path, "w") as f:
        json.dump(config, f)
    started = time.monotonic()
    answer = json.loads(run(program, "plan", "--model", path, "--plan", plan, "--world-size", str(RANKS), "--json", "--parameters"))
    seconds = time.monotonic() - started
    out = os.path.join(folder, "out")
    run(program, "simulate", "--model", path, "--plan", plan, "--hardware", "8xH200", "--batch", str(BATCH), "--seq", str(SEQ), "--out", out)
    counted = {"forward": 0, "backward": 0}
    for each in json.load(open(os.path.join(out, "workload.json")))["operators"]:
        if each["kind"] == "gemm":
            counted[each["phase"]] += each["flops"]
    parameters = [(each["fqn"], each["shape"]) for each in answer["parameters"]]
    numel = 0
    for _, shape in parameters:
        size = 1
        for each in shape:
            size *= each
        numel += size
    return {
        "parameters": numel,
        "tensors": len(parameters),
        "forward_flops": counted["forward"],
        "backward_flops": counted["backward"],
        "rank_bytes": held_bytes(answer["parameters"]),
    }, seconds


def compare(folder, program, table, names):
    configs = json.load(open(os.path.join(folder, "configs.json")))
    expected = json.load(open(os.path.join(folder, "expected.json")))
    different = 0
    for name, wanted in expected.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            found, seconds = found_by_shardlens(program, configs[name], scratch)
        wrong = [f"{key} {value}, transformers {wanted[key]}" for key, value in found.items() if wanted[key] != value]
        different += bool(wrong)
        if table:
            print(f"| `{configs[name]['model_type']}` | {name} | {wanted['parameters']:,} | {wanted['tensors']:,} | "
                  f"{wanted['forward_flops'] + wanted['backward_flops']:,} | {'; '.join(wrong) or 'equal'} |")
        else:
            print(f"{name}: {'; '.join(wrong) or 'equal'} ({seconds:.2f} s)")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bin", default="build/release/bin/shardlens")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.what == "record":
        record(options.folder, options.names)
    else:
        compare(options.folder, options.bin, options.table, options.names)
