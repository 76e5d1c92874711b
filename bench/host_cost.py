#!/usr/bin/env python3
"""Compares the host time of sharding in Shardlens and in PyTorch FSDP2.

    bench/host_cost.py [--units 32] [--steps 200] [--rounds 5] [--bin build/release/bin]
    bench/host_cost.py --recorded traces/fsdp2-h200 traces/fsdp2-h200-compile

One process, a world of 8 whose collectives take no time (Shardlens: the emulated group with ab:0:inf; FSDP2: the fake process group), a chain
of units of two Linear(16, 16) each, batch 4. Cost per unit and step = (median step sharded - median step plain) / units. The two programs run
alternately; the result is the median over rounds. The target is a tenth of FSDP2's cost.

--recorded prints for each run of PyTorch FSDP2 how long the host spent in the hooks of a unit in a step, the median over units and steps: on the machine
that ran it, with the profiler on. These figures are the sources of pytorch_unit_us in sim/hardware/specs.
"""
import argparse
import collections
import gzip
import json
import pathlib
import re
import statistics
import subprocess
import sys

import ratios

ROOT = pathlib.Path(__file__).resolve().parent.parent


def fsdp2(units, steps):
    import time

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())

    def chain():
        return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)) for _ in range(units)))

    def median_ms(model):
        x, times = torch.randn(4, 16), []
        for i in range(-10, steps):
            begin = time.perf_counter()
            model(x).sum().backward()
            model.zero_grad()
            if i >= 0:
                times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)

    plain_ms = median_ms(chain())
    sharded = chain()
    mesh = dist.device_mesh.init_device_mesh("cpu", (8,))
    for unit in sharded:
        fully_shard(unit, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    print(json.dumps({"units": units, "plain_ms": plain_ms, "sharded_ms": median_ms(sharded)}))


def hooks_us(run):
    """Host time in FSDP2's hooks by (step, unit), in microseconds. The ranges of a unit with a name; those inside of another one count once."""
    with gzip.open(run / "rank0.pt.trace.json.gz") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "user_annotation"]
    begins = sorted(e["ts"] for e in events if e["name"].startswith("ProfilerStep"))
    spent, ends = collections.Counter(), collections.Counter()
    for event in sorted(events, key=lambda e: e["ts"]):
        unit = re.fullmatch(r"FSDP::\w+ \((.+)\)", event["name"])
        end, step = event["ts"] + event["dur"], sum(begin <= event["ts"] for begin in begins)
        if unit and step and end > ends[event["tid"]]:
            spent[step, unit[1]] += end - max(event["ts"], ends[event["tid"]])
            ends[event["tid"]] = end
    return spent


def measure(command):
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {**figures, "per_unit_us": (figures["sharded_ms"] - figures["plain_ms"]) * 1e3 / figures["units"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--fsdp2", action="store_true", help=argparse.SUPPRESS)  # measures FSDP2, in its own process
    parser.add_argument("--recorded", type=pathlib.Path, nargs="+", metavar="RUN")
    args = parser.parse_args()
    if args.recorded:
        for run in args.recorded:
            spent = sorted(hooks_us(run).values())
            if not spent:
                parser.error(f"{run}/rank0.pt.trace.json.gz: expected ranges of FSDP2 such as 'FSDP::pre_forward (layers.0)'")
            print(f"{run}: {statistics.median(spent):.0f} us a unit and step ({len(spent)} from {spent[0]:.0f} to {spent[-1]:.0f})")
        return None
    if args.fsdp2:
        return fsdp2(args.units, args.steps)
    sizes = [str(args.units), str(args.steps)]
    sides = {
        "Shardlens": [str(args.bin / "host_cost"), *sizes],
        "Shardlens, per parameter": [str(args.bin / "host_cost"), *sizes, "per_parameter"],
        "PyTorch FSDP2": [sys.executable, __file__, "--fsdp2", "--units", sizes[0], "--steps", sizes[1]],
    }
    if not (args.bin / "host_cost").exists():
        parser.error(f"{args.bin}/host_cost does not exist: configure with -DSHARDLENS_BENCH=ON and build it, or give --bin")
    rounds = {side: [] for side in sides}
    for _ in range(args.rounds):
        for side, command in sides.items():
            rounds[side].append(measure(command))
    print(f"{args.units} units of two Linear(16, 16), batch 4, world of 8 without delay, one thread; {args.rounds} rounds of {args.steps} steps\n")
    print("| | plain step (ms) | sharded step (ms) | cost per unit and step (us) | rounds, min to max (us) |\n|---|---|---|---|---|")
    cost = {}
    for side, figures in rounds.items():
        middle = {key: statistics.median(f[key] for f in figures) for key in ("plain_ms", "sharded_ms", "per_unit_us")}
        spread = [f["per_unit_us"] for f in figures]
        cost[side] = middle["per_unit_us"]
        print(f"| {side} | {middle['plain_ms']:.3f} | {middle['sharded_ms']:.3f} | {cost[side]:.1f} | {min(spread):.1f} to {max(spread):.1f} |")
    parts = {side: cost[side] / cost["PyTorch FSDP2"] for side in sides if side != "PyTorch FSDP2"}
    print("\n" + "; ".join(f"{side} / FSDP2: {ratio:.3f}" for side, ratio in parts.items()) + " (target 0.1)")
    costs = {side: [f["per_unit_us"] for f in figures] for side, figures in rounds.items()}
    ratios.report("host/FSDP2", ratios.by_round(costs["Shardlens"], costs["PyTorch FSDP2"]))
    ratios.report("host/FSDP2-per-parameter", ratios.by_round(costs["Shardlens, per parameter"], costs["PyTorch FSDP2"]))
    sys.exit(0 if max(parts.values()) <= 0.1 else 1)


if __name__ == "__main__":
    main()
