#!/usr/bin/env python3
"""Compares what `simulate --workload` predicts for a PyTorch FSDP2 run with what the changed programs take.

    what_if_fsdp2.py OUT [--rounds 4] [--steps 4] [--hidden 384] [--blocks 6] [--json]

A Llama on two Gloo ranks with one thread each, in eight variants: as it is, reshard_after_forward=False, forward prefetch, pairs of blocks as
units, replicated (a mesh of two replicas), one unit, a checkpoint around each block (with --checkpointed, all but this one have them), and twice
the samples. All variants train alternately in one process per rank, a few steps a round, so that a
busy machine slows them alike, in another order each round. The first variant is then recorded with shardlens.record into OUT/run; the program
simulates its own plan and the others, and a table compares the changes. $SHARDLENS_PROGRAM names the program.

A change is measured as the mean over rounds of its median step minus that of the base in the same round; behind ± is the standard error of this
mean. OUT/times.json has the seconds and the page faults of all steps of rank 0, by variant and round. With more than one step a round the first
of each does not count. Page faults are memory that the allocator takes from the system again, which costs time that is not simulated.
"""
import argparse
import gc
import json
import math
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import shardlens  # noqa: E402
from shardlens.program import ask  # noqa: E402

VARIANTS = ("base", "reshard_after_forward=False", "forward prefetch", "pairs of blocks", "replicate", "one unit", "checkpoints", "twice the samples")


def llama(options):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=options.hidden, intermediate_size=options.hidden * 8 // 3, num_hidden_layers=options.blocks, num_attention_heads=6,
        vocab_size=options.vocab, max_position_embeddings=options.seq, use_cache=False))


def sharded(variant, options):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.distributed.fsdp import fully_shard

    model = llama(options)
    layers = model.model.layers
    if (variant == VARIANTS[6]) != options.checkpointed:
        apply_activation_checkpointing(model, check_fn=lambda module: module in list(layers))
        layers = model.model.layers
    keep = {"reshard_after_forward": False} if variant == VARIANTS[1] else {}
    if variant == VARIANTS[4]:
        keep = {"mesh": dist.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))}
    if variant == VARIANTS[3]:
        for first in range(0, len(layers), 2):
            fully_shard(list(layers[first:first + 2]))  # the last one of an odd number alone
    elif variant != VARIANTS[5]:
        for layer in layers:
            fully_shard(layer, **keep)
    fully_shard(model, **keep)
    if variant == VARIANTS[2]:
        for unit, following in zip([model, *layers], layers):
            unit.set_modules_to_forward_prefetch([following])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def plan_of(variant, plan):
    """The plan file of a variant, from that of the recorded run."""
    plan = json.loads(json.dumps(plan))
    blocks = [unit["modules"] for unit in plan["units"] if unit["modules"]]
    if variant == VARIANTS[1]:
        for unit in plan["units"]:
            unit["reshard_after_forward"] = False
    elif variant == VARIANTS[2]:
        plan["forward_prefetch"] = {before: [after] for before, after in zip(["", *blocks], blocks)}
    elif variant == VARIANTS[3]:
        of = {unit["modules"]: unit for unit in plan["units"]}
        pairs = [blocks[first:first + 2] for first in range(0, len(blocks), 2)]
        plan["units"] = [of[""]] + [{**of[pair[0]], "modules": pair if len(pair) > 1 else pair[0]} for pair in pairs]
    elif variant == VARIANTS[4]:
        plan["mesh"] = {"replicate": 2, "shard": 1}
    elif variant == VARIANTS[5]:
        plan["units"] = [unit for unit in plan["units"] if not unit["modules"]]
    elif variant == VARIANTS[6]:
        plan["activation_checkpointing"] = [] if plan.get("activation_checkpointing") else sorted(blocks)
    return plan


def batch_of(variant, options):
    return options.batch * (2 if variant == VARIANTS[7] else 1)


def step(model, optimizer, options, variant=VARIANTS[0]):
    tokens = torch.randint(0, options.vocab, (batch_of(variant, options), options.seq))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def timed(model, optimizer, options, variant):
    """Seconds and page faults of a step."""
    dist.barrier()
    begin, faults = time.perf_counter(), page_faults()
    step(model, optimizer, options, variant)
    dist.barrier()
    return time.perf_counter() - begin, page_faults() - faults


def work(rank, store, options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    trained = {variant: sharded(variant, options) for variant in VARIANTS}
    times, faults = ({variant: [] for variant in VARIANTS} for _ in range(2))
    for round in range(options.rounds + 1):
        for variant in random.Random(round).sample(VARIANTS, len(VARIANTS)):  # the same order on both ranks
            taken = [timed(*trained[variant], options, variant) for _ in range(options.steps)]
            if round > 0:  # the first round warms up
                times[variant].append([seconds for seconds, _ in taken])
                faults[variant].append([count for _, count in taken])
    model, optimizer = trained[VARIANTS[0]]
    del trained  # with all models in memory the recorded steps of the widest took twice their time
    gc.collect()
    with shardlens.record(options.out / "run", model=model, optimizer=optimizer, warmup=2, steps=options.recorded) as rec:
        for _ in range(2 + options.recorded):
            rec.step(step(model, optimizer, options))
    if rank == 0:
        (options.out / "times.json").write_text(json.dumps({"seconds": times, "page_faults": faults}))
    dist.destroy_process_group()


def simulated(options, variant, recorded):
    command = ["simulate", "--workload", str(options.out / "run")]
    if variant != VARIANTS[0]:
        path = options.out / "changed.json"
        path.write_text(json.dumps(plan_of(variant, recorded)))
        command += ["--plan", str(path), "--batch", str(batch_of(variant, options))]
    return ask(command)


def by_round(rounds):
    """The median step of each round."""
    return [statistics.median(steps[1:] or steps) for steps in rounds]


def difference(base, other):
    """By how much the other variant's step is longer than the base's, and the standard error, as shares of the base's step. Of what slows a round,
    both have their part, so differences are taken within rounds."""
    differences = [b - a for a, b in zip(by_round(base), by_round(other))]
    step = statistics.median(by_round(base))
    return statistics.mean(differences) / step, statistics.stdev(differences) / math.sqrt(len(differences)) / step


def compared(options):
    """The run's own plan and each variant, measured and predicted: what --json prints."""
    measured = json.loads((options.out / "times.json").read_text())
    times = measured["seconds"]
    recorded = json.loads((options.out / "run" / "plan.json").read_text())
    own = simulated(options, VARIANTS[0], recorded)
    rows = []
    for variant in VARIANTS:
        change, error = difference(times[VARIANTS[0]], times[variant])
        predicted = own if variant == VARIANTS[0] else simulated(options, variant, recorded)
        rows.append({
            "variant": variant, "measured_ms": statistics.median(by_round(times[variant])) * 1e3, "measured_change": change, "measured_error": error,
            "predicted_change": predicted["step_ns"] / own["step_ns"] - 1, "predicted": predicted, "base_ns": own["step_ns"]})
    return {"baseline": own["baseline"], "rows": rows, **measured}


def measure(options):
    """Trains all variants and records the first, into options.out."""
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (os.path.join(directory, "store"), options), nprocs=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    for name, default in (("rounds", 4), ("steps", 4), ("recorded", 6), ("hidden", 384), ("blocks", 6), ("vocab", 4096), ("batch", 4), ("seq", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--checkpointed", action="store_true", help="each block of the recorded program is in a checkpoint")
    parser.add_argument("--compare-only", action="store_true", help="use the run and the times that OUT has")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.compare_only:
        measure(options)
    result = compared(options)
    own, rows = result["rows"][0]["predicted"], result["rows"]
    if options.json:
        json.dump(result, sys.stdout, indent=1)
        return
    print(f"own plan: {own['baseline']['measured_step_ns'] / 1e6:.1f} ms recorded, {own['baseline']['simulated_step_ns'] / 1e6:.1f} ms simulated: "
          f"{own['baseline']['error']:+.1%}")
    for row in rows:
        p = row["predicted"]
        print(f"{row['variant']:30} {row['measured_ms']:8.1f} ms  measured {row['measured_change']:+6.1%} ± {row['measured_error']:.1%}  predicted "
              f"{row['predicted_change']:+6.1%}   compute {p['compute_ns'] / 1e6:.1f}  exposed {p['exposed_comm_ns'] / 1e6:.1f}  "
              f"copies {p['exposed_copy_ns'] / 1e6:.1f}  idle {p['idle_ns'] / 1e6:.1f} ms")


if __name__ == "__main__":
    main()
