#!/usr/bin/env python3
"""Records a PyTorch FSDP2 program, asks `advise`, pastes the lines of its first changes into the program, and measures both.

    measure_advice.py OUT [--changes 3] [--rounds 12] [--hidden 384] [--blocks 6] … [--json]

A Llama on two Gloo ranks with one thread each. Recorded are 8 steps of it with each block as a unit. Then the program as it is and each of the
first changes that `advise` lists train alternately, one step a round, in one process per rank and in another order each round, so that other
programs on the machine slow them alike. A change is the median over rounds of its step less the base's of the same round, in parts of the base's
median step; behind ± is that median's standard error (1.25 · deviation / root of rounds). A changed program is made by running the lines that
`advise` prints; changes whose lines are for several edits together are left out. $SHARDLENS_PROGRAM names the program.

Exit code 1 if a change that is said to pay for certain is measured to lose beyond two standard errors.
"""
import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import what_if_fsdp2 as program_of

import shardlens
from shardlens.program import run as run_program


def applied(change, options):
    """The program with a change, made by its lines. None: it is the program as it is."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    key, lines = ("", []) if change is None else (change["id"].partition("=")[0], change["lines"])
    names = {"model": program_of.llama(options), "device": "cpu", "fully_shard": fully_shard, "FSDPModule": FSDPModule,
             "init_device_mesh": init_device_mesh, "DistributedDataParallel": DistributedDataParallel,
             "apply_activation_checkpointing": apply_activation_checkpointing}
    settings = {}
    if key == "mesh":  # a line that makes the mesh, and one that says where it goes
        exec(lines[0], names)
        settings["mesh"] = names["mesh"]
    elif key in ("units", "sharding", "checkpoints"):
        exec("\n".join(lines), names)
    if key not in ("units", "sharding"):
        for layer in names["model"].model.layers:
            fully_shard(layer, **settings)
        fully_shard(names["model"], **settings)
    if key not in ("", "mesh", "units", "sharding", "checkpoints"):
        exec("\n".join(lines), names)
    return names["model"], torch.optim.AdamW(names["model"].parameters(), lr=1e-4)


def advised(options):
    done = run_program(["advise", options.out / "run", "--json", "--top", 50], exit_codes=(0, 5))
    advice = json.loads(done.stdout)
    single = [change for change in advice["changes"] if "+" not in change["id"] and not change["id"].startswith(("microbatches", "communicators"))]
    return {"exit_code": done.returncode, "baseline": advice["baseline"], "changes": single[:options.changes],
            "listed": [[change["id"], change["verdict"], change["odds"], change["change_ns"]] for change in advice["changes"] + advice["others"]]}


def work(rank, store, options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model, optimizer = applied(None, options)
    with shardlens.record(options.out / "run", model=model, optimizer=optimizer, warmup=2, steps=options.recorded) as rec:
        for _ in range(2 + options.recorded):
            rec.step(program_of.step(model, optimizer, options))
    dist.barrier()  # the files are complete
    told = [advised(options) if rank == 0 else None]
    dist.broadcast_object_list(told)
    changes = told[0]["changes"]
    trained = [(model, optimizer), *(applied(change, options) for change in changes)]
    times = [[] for _ in trained]
    for turn in range(options.rounds + 1):
        for at in random.Random(turn).sample(range(len(trained)), len(trained)):  # the same order on both ranks
            seconds, _ = program_of.timed(*trained[at], options)
            if turn > 0:  # the first round warms up
                times[at].append(seconds)
    if rank == 0:
        (options.out / "measured.json").write_text(json.dumps({**told[0], "seconds": times}, indent=1))
    dist.destroy_process_group()


def compared(result):
    """The measured change of each change and its standard error, as shares of the base's median step."""
    base, *others = result["seconds"]
    step = statistics.median(base)
    out = []
    for change, seconds in zip(result["changes"], others):
        differences = [after - before for before, after in zip(base, seconds)]
        error = 1.25 * statistics.stdev(differences) / math.sqrt(len(differences))
        own = change["step_ns"] - change["change_ns"]
        out.append({"id": change["id"], "title": change["title"], "verdict": change["verdict"], "odds": change["odds"], "predicted": change["change_ns"] / own,
                    "interval": [end / own for end in change["interval_ns"]], "measured": statistics.median(differences) / step, "error": error / step})
    return step, out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    for name, default in (("changes", 3), ("rounds", 12), ("recorded", 8), ("hidden", 384), ("blocks", 6), ("vocab", 4096), ("batch", 4), ("seq", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (str(Path(directory) / "store"), options), nprocs=2)
    result = json.loads((options.out / "measured.json").read_text())
    step, rows = compared(result)
    if options.json:
        json.dump({"step_ms": step * 1e3, "baseline": result["baseline"], "rows": rows}, sys.stdout, indent=1)
    else:
        print(f"step {step * 1e3:.0f} ms; recorded {result['baseline']['measured_step_ns'] / 1e6:.0f} ms, own plan {result['baseline']['error']:+.1%}")
        print("| change | verdict | predicted | 90 % | measured |\n|---|---|---:|---|---:|")
        for row in rows:
            verdict = row["verdict"] + ("" if row["odds"] is None else f", odds {row['odds']} in 100")
            low, high = row["interval"]
            print(f"| {row['title']} | {verdict} | {row['predicted']:+.1%} | {low:+.1%} to {high:+.1%} | {row['measured']:+.1%} ± {row['error']:.1%} |")
    sys.exit(any(row["verdict"] == "pays" and row["measured"] > 2 * row["error"] for row in rows))


if __name__ == "__main__":
    main()
