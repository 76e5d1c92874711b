#!/usr/bin/env python3
"""Compares the engine with the simulator: random small models and plans, each captured (real ranks over Gloo) and simulated.

    engine_against_simulator.py --bin build/release/bin [--plans 200] [--seed 1] [--jobs 1] [--keep DIR]

In the third step of every rank, these must be equal: every hook event (hook, unit, invocation, recompute, gradients; not where units are
replicated, which have none), every action of the schedule in order (operation, unit, stream, buffer with its generation, event, cause,
axis), and for each group of ranks its collectives in the order in which they ran (kind, unit, dtype, elements in and out, the action that
issued them). Plans that the engine or the simulator refuses by name are drawn again and counted. Exit code 0: all equal; 1: a difference,
or a run that failed. `--keep` keeps the files of plans that differ in DIR.
"""
import argparse
import collections
import concurrent.futures
import gzip
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

TOKENS = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokens.u16.bin"
STEP = 2  # from 0; the step that the simulator writes
REFUSED = ("not supported by the engine yet", "not supported by the simulator yet", "are not supported by the simulator yet")


def draw_model(draw):
    """A config.json, the names of its blocks, and names of parts of a block."""
    layers, heads = draw.randint(1, 4), draw.choice([1, 2, 4])
    hidden, vocab = heads * draw.choice([4, 8, 12]), draw.randint(256, 300)
    family = draw.choice(["llama", "gpt2", "mlp"])
    if family == "llama":
        config = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": draw.randint(5, 40), "num_hidden_layers": layers,
                  "num_attention_heads": heads, "num_key_value_heads": draw.choice([h for h in (1, 2, 4) if heads % h == 0]),
                  "vocab_size": vocab, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": draw.random() < 0.3,
                  "hidden_act": draw.choice(["silu", "gelu", "relu"]), "attention_bias": draw.random() < 0.3, "mlp_bias": draw.random() < 0.3}
        return config, [f"model.layers.{i}" for i in range(layers)], ["self_attn", "mlp", "mlp.down_proj"]
    if family == "gpt2":
        config = {"model_type": "gpt2", "n_embd": hidden, "n_head": heads, "n_layer": layers, "n_positions": 64, "vocab_size": vocab,
                  "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "activation_function": draw.choice(["gelu_new", "relu"]),
                  "layer_norm_epsilon": 1e-5, "tie_word_embeddings": draw.random() < 0.5}
        return config, [f"transformer.h.{i}" for i in range(layers)], ["attn", "mlp", "mlp.c_fc"]
    config = {"model_type": "mlp", "hidden_size": hidden, "intermediate_size": draw.randint(5, 40), "num_hidden_layers": layers,
              "vocab_size": vocab, "max_position_embeddings": 64}
    return config, [f"layers.{i}" for i in range(layers)], ["fc1", "fc2"]


def draw_units(draw, blocks, parts, replicated):
    """Entries of "units"; the root is always one."""
    kind = draw.choice(["blocks", "pairs", "root", "parts", "some"])
    entries = []
    if kind == "blocks":
        entries = [{"modules": block} for block in blocks]
    elif kind == "pairs":
        entries = [{"modules": blocks[i:i + 2]} for i in range(0, len(blocks), 2)]
    elif kind == "parts":
        entries = [{"modules": name} for block in blocks for name in (block, f"{block}.{draw.choice(parts)}")]
    elif kind == "some":
        entries = [{"modules": block} for block in blocks if draw.random() < 0.6]
    entries.append({"modules": ""})
    for entry in entries:
        if draw.random() < replicated:
            entry["api"] = "replicate"
        elif draw.random() < 0.2:
            entry["reshard_after_forward"] = draw.choice([True, False])
    return entries


def draw_plan(draw, blocks, parts):
    """A plan file and flags of the run."""
    fsdp1 = draw.random() < 0.35
    world = draw.choice([1, 2, 2, 2, 3, 4, 4])
    plan = {"version": 1, "dialect": "fsdp1" if fsdp1 else "fsdp2", "layout": draw.choice(["flat", "flat", "per_parameter"]),
            "views": draw.choice(["fresh", "fresh", "frozen"])}
    if world == 4 and draw.random() < 0.5:
        plan["mesh"] = draw.choice([{"replicate": 2, "shard": 2}, {"replicate": 4, "shard": 1}])
    elif draw.random() < 0.15:
        plan["mesh"] = {"shard": 1}
    # Replicated units have one mesh axis and no casts.
    replicated = draw.choice([0, 0, 0, 0, 0.4, 1.0]) if plan.get("mesh") is None and not fsdp1 else 0
    if draw.random() < 0.8 or replicated > 0:
        plan["units"] = draw_units(draw, blocks, parts, replicated)
    reshard = [None, True, False] if fsdp1 or world < 4 or "mesh" in plan else [None, True, False, 2]
    plan["reshard_after_forward"] = draw.choice(reshard)
    plan["backward_prefetch"] = draw.choice(["pre", "pre", "none", "post"] if fsdp1 else ["pre", "pre", "none"])
    plan["forward_prefetch"] = draw.choice([0, 0, 1] if fsdp1 else [0, 0, 1, 2])
    plan["limit_all_gathers"] = draw.random() < 0.7
    if replicated == 0 and draw.random() < 0.3:
        plan["mixed_precision"] = draw.choice([{"param_dtype": "bf16", "reduce_dtype": "fp32"}, {"param_dtype": "bf16"}])
    if draw.random() < 0.3:
        plan["activation_checkpointing"] = [block for block in blocks if draw.random() < 0.7]
    if replicated > 0:
        plan["bucket_cap_mb"] = draw.choice([None, 0.001, 0.01])
        plan["gradient_as_bucket_view"] = draw.random() < 0.5
    flags = ["--batch", str(draw.randint(1, 2)), "--seq", str(draw.choice([8, 16]))]
    accumulate = draw.choice([1, 1, 1, 2, 3])
    if accumulate > 1:
        flags += ["--accumulate", str(accumulate)] + (["--no-sync"] if draw.random() < 0.5 else [])
    if draw.random() < 0.25:
        plan["cpu_offload"] = True
    elif draw.random() < 0.2:
        for entry in plan.get("units", []):
            if "api" not in entry:
                entry["cpu_offload"] = draw.random() < 0.5
    elif draw.random() < 0.3 and ("--accumulate" not in flags or "--no-sync" in flags):
        plan["optimizer_in_backward"] = True
    plan["separate_reduce_scatter_group"] = draw.random() < 0.3
    return plan, world, flags


def read_step(path):
    """Hooks and actions in order, and the collectives of each group in the order in which they ran."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    window = next(e for e in events if e.get("name") == f"ProfilerStep#{STEP}")
    inside = [e for e in events if "ts" in e and window["ts"] <= e["ts"] < window["ts"] + window["dur"]]
    host, seen = [], {}  # events; action's seq -> index of the action in the step
    for e in inside:
        args = e.get("args", {})
        if e.get("cat") == "shardlens" and ("op" in args or "hook" in args):
            host.append({k: v for k, v in args.items() if k not in ("seq", "hook_seq")})
            if "op" in args:
                seen[args["seq"]] = len(seen)
    groups = collections.defaultdict(list)
    # Only those that an action issued: collectives of the training loop itself (loss, gradient norm) have none.
    for e in sorted((e for e in events if "Collective name" in e.get("args", {})), key=lambda e: e["ts"]):
        args = e["args"]
        if args.get("action") in seen:
            own = args["Process Group Name"] == "reduce_scatter"  # the other names are not the same in both
            groups[args["Process Group Ranks"], own].append((args["Collective name"], args["unit"], args["dtype"], args["In msg nelems"],
                                                        args["Out msg nelems"], seen[args["action"]]))
    return host, groups


def first_difference(found, expected):
    for i in range(max(len(found), len(expected))):
        one, other = (x[i] if i < len(x) else None for x in (found, expected))
        if one != other:
            return f"{i}: the engine did {one}, the simulator {other}"
    return None


def compare(run, simulated, world, replicated):
    for rank in range(world):
        name = f"rank{rank}.pt.trace.json.gz"
        (host, groups), (planned, expected) = read_step(run / name), read_step(simulated / name)
        if replicated:  # replicated units have no hooks in the engine, but buckets have hooks in the simulator
            host, planned = ([e for e in events if "op" in e] for events in (host, planned))
        if not host and groups:
            return f"rank {rank}: no actions in the capture"
        if difference := first_difference(host, planned):
            return f"rank {rank}, event {difference}"
        if sorted(groups) != sorted(expected):
            return f"rank {rank}: collectives of the groups {sorted(groups)}, simulated {sorted(expected)}"
        for group, collectives in groups.items():
            if difference := first_difference(collectives, expected[group]):
                return f"rank {rank}, ranks {group}, collective {difference}"
    return None


def count(run):
    host, groups = read_step(run / "rank0.pt.trace.json.gz")
    return sum("op" in e for e in host), sum(map(len, groups.values()))


class Trial:
    """One model and plan: what was drawn, and the result of the comparison."""

    def __init__(self, binaries, seed, directory):
        draw = random.Random(seed)
        self.seed, self.directory, self.binaries = seed, directory, binaries
        config, blocks, parts = draw_model(draw)
        self.plan, self.world, self.flags = draw_plan(draw, blocks, parts)
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        (directory / "plan.json").write_text(json.dumps(self.plan, indent=1))
        self.family = config["model_type"]
        self.replicated = any("api" in unit for unit in self.plan.get("units", []))
        self.offloads = any(part.get("cpu_offload") for part in [self.plan, *self.plan.get("units", [])])
        self.problem, self.refused, self.actions, self.collectives = None, None, 0, 0

    def command(self, *arguments):
        done = subprocess.run([str(self.binaries / "shardlens"), *arguments[:1], "--model", str(self.directory), "--plan",
                               str(self.directory / "plan.json"), *self.flags, *arguments[1:]], capture_output=True, text=True, timeout=300)
        if done.returncode == 0:
            return True
        said = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        if done.returncode == 3 and said.endswith(REFUSED):
            self.refused = said
        else:
            self.problem = f"{arguments[0]} exited with {done.returncode}: {said}"
        return False

    def run(self):
        run, simulated = self.directory / "run", self.directory / "simulated"
        if self.command("simulate", "--hardware", "8xH100", "--world-size", str(self.world), "--host", "compute", "--out", str(simulated)) and \
           self.command("capture", "--tokens", str(TOKENS), "--nproc", str(self.world), "--steps", str(STEP + 1), "--warmup", str(STEP),
                        "--out", str(run)):
            self.problem = compare(run, simulated, self.world, self.replicated)
            self.actions, self.collectives = count(run)
        return self


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    if not (options.bin / "shardlens").is_file():
        parser.error(f"--bin {options.bin}: expected a directory with shardlens, found none there")
    equal, drawn, actions, collectives, different = 0, 0, 0, 0, []
    kinds, refused = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        while equal + len(different) < options.plans:
            missing = min(options.plans - equal - len(different), 4 * options.jobs)
            trials = [Trial(options.bin, f"{options.seed}.{drawn + i}", pathlib.Path(folder) / str(drawn + i)) for i in range(missing)]
            drawn += missing
            for trial in pool.map(Trial.run, trials):
                if trial.refused:
                    refused[trial.refused.partition("#")[2]] += 1
                elif trial.problem:
                    different.append(trial.seed)
                    print(f"plan {trial.seed} ({trial.world} ranks, {' '.join(trial.flags)}): {trial.problem}", flush=True)
                    if options.keep:
                        shutil.copytree(trial.directory, options.keep / trial.seed)
                else:
                    equal, actions, collectives = equal + 1, actions + trial.actions, collectives + trial.collectives
                    plan = trial.plan
                    for kind in (trial.family, plan["dialect"], plan["layout"], f"{plan['views']} views", f"{trial.world} ranks",
                                 "mesh" if "mesh" in plan else "", "mixed precision" if "mixed_precision" in plan else "",
                                 "checkpoints" if plan.get("activation_checkpointing") else "",
                                 "accumulation" if "--accumulate" in trial.flags else "",
                                 "replicate" if trial.replicated else "", "offload" if trial.offloads else "",
                                 "optimizer in backward" if "optimizer_in_backward" in plan else ""):
                        kinds[kind] += kind != ""
                shutil.rmtree(trial.directory)
            if sum(refused.values()) > options.plans + 20:
                sys.exit("too many plans were refused: " + ", ".join(refused))
            print(f"\r{equal} equal, {len(different)} differ, {sum(refused.values())} refused ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{equal} of {options.plans} plans equal: {actions} actions and {collectives} collectives of rank 0's third steps")
    print("of them " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common() if n))
    for what, n in refused.items():
        print(f"refused and drawn again, {n} times: {what}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
