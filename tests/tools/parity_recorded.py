#!/usr/bin/env python3
"""Records FSDP2 rows of the parity table with shardlens.record and compares what Shardlens says of each with what PyTorch did.

    parity_recorded.py [ROW…] [--out DIR]        without rows: all FSDP2 rows that run on llama-tiny

Needs torch 2.11, transformers and $SHARDLENS_PROGRAM. Per row (llama-tiny, the smallest world of the row, two recorded steps), on every rank:
  order   planned, issued and started order agree, collective by collective
  c10d    the collectives of the trace are those that torch.distributed was called with: kind and bytes, in order
  plan    counts and bytes that `shardlens plan --model model.json --plan plan.json` lists for a step are those of c10d
A line per row; exit code 1 if one differs.
"""
import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import parity_record
import parity_rows
import shardlens
from shardlens.program import ShardlensError, ask

MODEL = "llama-tiny"
WARMUP, STEPS = 2, 2
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}


def rows():
    """The rows of FSDP2 that this version of PyTorch has."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    later = [name for name, row in parity_rows.LATER.items() if row["torch"] <= version]
    return [name for name in parity_rows.ROWS if name.startswith("fsdp2") and MODEL in parity_rows.row(name)["models"]] + later


def train(name, rank, world, collectives, out):
    spec = parity_rows.row(name)
    plan = parity_rows.plan_of(spec, MODEL, world, "per_parameter")
    model = parity_record.shard_fsdp2(parity_record.prepared(MODEL, plan), plan, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.from_numpy(np.fromfile(parity_record.DATA / "tokens.u16.bin", dtype="<u2").astype(np.int64))
    microbatches, seen = spec["run"].get("accumulate", 1), []
    with shardlens.record(out / name, model=model, optimizer=optimizer, warmup=WARMUP, steps=STEPS) as rec:
        for step in range(WARMUP + STEPS):
            for microbatch in range(microbatches):
                x = torch.stack([tokens[i * 64:i * 64 + 65] for i in range(2)])
                last = microbatch + 1 == microbatches
                sync = not spec["run"].get("no_sync") or last
                with collectives.recording(), parity_record.begin_microbatch(model, plan, sync, last):
                    logits = model(input_ids=x[:, :-1]).logits.float()
                    (F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()) / microbatches).backward()
                    if last:
                        parity_record.end_backward(model, plan)
            optimizer.step()
            optimizer.zero_grad()
            taken = collectives.take()
            if step >= WARMUP:
                seen.append([[kind, elements * SIZES[dtype]] for kind, dtype, elements, _ in taken])
            rec.step()
    (out / f"{name}.c10d.{rank}.json").write_text(json.dumps(seen))


def worker(rank, names, scratch, out):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    collectives = parity_record.Collectives()
    for name in names:
        world = min(parity_rows.row(name)["worlds"])
        if rank < world:
            dist.init_process_group("gloo", init_method=f"file://{scratch}/{name}", rank=rank, world_size=world)
            train(name, rank, world, collectives, out)
            dist.barrier()
            dist.destroy_process_group()


def totals(collectives):
    out = {}
    for kind, size in collectives:
        count, total = out.get(kind, (0, 0))
        out[kind] = (count + 1, total + size)
    return out


def differences(name, out):
    """The differences, as a list of words."""
    path, found = out / name, []
    run = shardlens.open(path)
    settings = json.loads((path / "run.json").read_text())["step_settings"]
    for rank in run.analysis["ranks"]:
        order = rank["order"]["planned_vs_issued"]
        if order["compared"] == 0 or order["first_difference"]:
            found.append(f"rank {rank['rank']}: order {order['first_difference'] or 'not compared'}")
    if run.analysis["diagnostics"]:
        found += [d["message"] for d in run.analysis["diagnostics"] if d["severity"] == "warning"]
    for rank in range(len(run.analysis["ranks"])):
        c10d = json.loads((out / f"{name}.c10d.{rank}.json").read_text())
        rows = [row for row in run.collectives() if row["rank"] == rank and row["kind"] in ("all_gather", "reduce_scatter", "all_reduce")]
        rows.sort(key=lambda row: row["issued_ns"])
        traced = [[row["kind"], row["bytes"]] for row in rows]
        called = [each for step in c10d for each in step]
        if traced != called:
            at = next((i for i, (a, b) in enumerate(zip(traced, called)) if a != b), min(len(traced), len(called)))
            found.append(f"rank {rank}: c10d's call {at}: {called[at:at + 1]}, the trace has {traced[at:at + 1]} ({len(called)} and {len(traced)} in all)")
    flags = ["--accumulate", settings["accumulate"]] + ([] if settings["sync_every_microbatch"] else ["--no-sync"])
    planned = ask(["plan", "--model", path / "model.json", "--plan", path / "plan.json", *flags])["collectives"]
    planned = {kind: (each["count"], each["bytes"]) for kind, each in planned.items() if each["count"]}
    for step in c10d:
        if planned != totals(step):
            found.append(f"the plan has {planned}, c10d {totals(step)}")
            break
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare-only", action="store_true", help="use the runs that OUT has")
    options = parser.parse_args()
    names = options.rows or rows()
    if set(names) - set(rows()):
        parser.error(f"expected rows among {', '.join(rows())}")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch) / "runs"
        out.mkdir(parents=True, exist_ok=True)
        if not options.compare_only:
            mp.spawn(worker, (names, scratch, out), nprocs=max(min(parity_rows.row(name)["worlds"]) for name in names))
        for name in names:
            try:
                found = differences(name, out)
            except ShardlensError as error:
                found = [str(error)]
            failed += bool(found)
            print(f"{name}: {'; '.join(found) or 'agrees'}", flush=True)
    print(f"{len(names) - failed} of {len(names)} rows agree")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
