#!/usr/bin/env python3
"""The parity table: runs every row of parity_rows.py in Shardlens and holds it against what PyTorch did (tests/data/parity, see parity_record.py).

    parity_table.py [ROW…] [--bin build/release/bin] [--fast] [--worlds 2,3] [--models llama-tiny] [--layouts flat] [--json]

A line per row, layout, model and world size: the worst relative error of a loss, of a gradient norm, and of the parameters' norm after the last
step; the collectives of one step; and whether kind, dtype, elements, group size and order of each were PyTorch's in every step.
Exit code 0: all equal; 1: a mismatch, or a run that failed; 2: usage.
"""
import argparse
import array
import gzip
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import parity_rows

TESTS = pathlib.Path(__file__).resolve().parent.parent
DATA = TESTS / "data"
DTYPES = {"Float": "fp32", "BFloat16": "bf16", "Half": "fp16"}
KINDS = {"_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter", "allreduce": "all_reduce"}
NORM_TOLERANCE = 10  # of a gradient norm, in tolerances of the loss: a sum of squares in another order


def capture_flags(run):
    flags = []
    for key, value in run.items():
        flags.append("--" + key.replace("_", "-"))
        if value is not True:
            flags.append(str(value))
    return flags


def capture(binaries, spec, model, world, layout, out):
    """Runs the row; what a failed run said, or None."""
    plan = out / "row.json"
    plan.write_text(json.dumps(parity_rows.plan_of(spec, model, world, layout)))
    command = [binaries / "shardlens", "capture", "--model", DATA / model, "--tokens", DATA / "tokens.u16.bin", "--out", out / "run",
               "--save", out / "saved", "--plan", plan, "--nproc", world, "--steps", spec["steps"], *capture_flags(spec["run"])]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    return None if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"


def metrics(out):
    lines = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


def collectives(out):
    """Rank 0's collectives on units as [unit, kind, dtype, elements of the unsharded side, group size], in issue order, per step."""
    events = json.loads(gzip.decompress((out / "run" / "rank0.pt.trace.json.gz").read_bytes()))["traceEvents"]
    windows = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["name"].startswith("ProfilerStep#"))
    issued = {e["args"]["seq"]: e["ts"] for e in events if e.get("cat") == "shardlens" and "op" in e.get("args", {})}
    steps = [[] for _ in windows]
    for e in sorted((e for e in events if "action" in e.get("args", {}) and "Collective name" in e["args"]), key=lambda e: e["args"]["action"]):
        a = e["args"]
        step = next(i for i, (begin, end) in enumerate(windows) if begin <= issued[a["action"]] < end)
        steps[step].append([a["unit"], KINDS[a["Collective name"]], DTYPES[a["dtype"]], max(a["In msg nelems"], a["Out msg nelems"]), a["Group size"]])
    return steps


def parameter_norm(out):
    total = 0.0
    for file in sorted((out / "saved").glob("*.safetensors")):
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        values = array.array("f")
        values.frombytes(content[start:])
        total += math.fsum(v * v for v in values)
    return math.sqrt(total)


def worst(found, expected):
    if len(found) != len(expected):
        return math.inf
    return max(abs(f - e) / abs(e) for f, e in zip(found, expected))


def order_difference(found, recorded, layout, shard):
    """Where the collectives differ from PyTorch's, or None."""
    if len(found) != len(recorded["steps"]):
        return f"{len(found)} steps, PyTorch {len(recorded['steps'])}"
    flat = recorded.get("flat_numel") if layout == "flat" else None
    for step, which in enumerate(recorded["steps"]):
        expected = recorded["sequences"][which]
        for i, (unit, *collective) in enumerate(found[step]):
            wanted = list(expected[i]) if i < len(expected) else None
            if wanted and flat:
                wanted[2] = flat[unit] // shard if wanted[0] == "all_reduce" else flat[unit]  # of the reduced shard, or of all under no_shard
            if collective != wanted:
                return f"step {step}, collective {i}: {collective} of unit '{unit}', PyTorch {wanted}"
        if len(found[step]) < len(expected):
            return f"step {step}: {len(found[step])} collectives, PyTorch {len(expected)}, the next is {expected[len(found[step])]}"
    return None


def compare(binaries, spec, recorded, model, world, layout):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch)
        if failure := capture(binaries, spec, model, world, layout, out):
            return {"failure": failure}
        mesh = parity_rows.plan_of(spec, model, world, layout).get("mesh", {})
        loss, norm = metrics(out)
        found = collectives(out)
        return {"loss": worst(loss, recorded["loss"]), "grad_norm": worst(norm, recorded["grad_norm"]),
                "parameters": worst([parameter_norm(out)], [recorded["param_norm"]]),
                "collectives": len(found[-1]) if found else 0, "failure": order_difference(found, recorded, layout, mesh.get("shard", world))}


def runs(options):
    """(row, model, world size, layout) of every run that was asked for."""
    for number, name in enumerate(options.rows or parity_rows.ROWS):
        spec = parity_rows.row(name)
        models, worlds, layouts = spec["models"], spec["worlds"], spec["layouts"]
        if options.fast:
            models, worlds = [models[number % len(models)]], [min(worlds)]
        yield from itertools.product([name], [m for m in models if not options.models or m in options.models.split(",")],
                                     [w for w in worlds if not options.worlds or str(w) in options.worlds.split(",")],
                                     [l for l in layouts if not options.layouts or l in options.layouts.split(",")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(parity_rows.ROWS))
    parser.add_argument("--bin", type=pathlib.Path, default=TESTS.parent / "build" / "release" / "bin")
    parser.add_argument("--fast", action="store_true", help="each row once per layout: its smallest world, one of its models")
    parser.add_argument("--worlds", help="of these sizes only, as 2,3")
    parser.add_argument("--models", help="of these models only")
    parser.add_argument("--layouts", help="of these layouts only")
    parser.add_argument("--json", action="store_true", help="one object per line")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(parity_rows.ROWS):
        parser.error(f"no row {', '.join(sorted(unknown))}; expected {', '.join(parity_rows.ROWS)}")
    if not options.json:
        print(f"{'row':32} {'dialect':7} {'layout':13} {'model':10} {'W':>2} {'loss':>8} {'grad norm':>9} {'parameters':>10} {'collectives':>11}  as PyTorch")
    failed = compared = 0
    for name, model, world, layout in runs(options):
        spec = parity_rows.row(name)
        recorded = json.loads((DATA / "parity" / f"{name}.json").read_text())[model][str(world)]
        result = compare(options.bin, spec, recorded, model, world, layout)
        limit = spec["tolerance"]
        equal = (not result["failure"] and result["loss"] <= limit and result["parameters"] <= limit
                 and result["grad_norm"] <= NORM_TOLERANCE * limit)
        compared += 1
        failed += not equal
        dialect = spec["plan"].get("dialect", "fsdp2")
        if options.json:
            print(json.dumps({"row": name, "dialect": dialect, "layout": layout, "model": model, "world_size": world, "equal": equal, **result}),
                  flush=True)
            continue
        figures = (f"{result['loss']:8.1e} {result['grad_norm']:9.1e} {result['parameters']:10.1e} {result['collectives']:11}"
                   if "loss" in result else " " * 41)
        verdict = "yes" if equal else "NO " + (result["failure"] or "numbers differ")
        print(f"{name:32} {dialect:7} {layout:13} {model:10} {world:2} {figures}  {verdict}", flush=True)
    print(f"{compared - failed} of {compared} equal what PyTorch recorded", file=sys.stderr)
    return 1 if failed or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
