#!/usr/bin/env python3
"""The parity table: runs every row of parity_rows.py in Shardlens and compares it with PyTorch (tests/data/parity, see parity_record.py).

    parity_table.py [ROW…] [--bin build/release/bin] [--fast [--later]] [--worlds 2,3] [--models llama-tiny] [--layouts flat] [--jobs N] [--json]

A line per row, layout, model and world size: the worst relative error of a loss, of a gradient norm, and of the parameters' norm after the last
step; the collectives of one step; and whether kind, dtype, elements, group size and order of each are PyTorch's in every step, including those
of the gradient norm. In addition, every action that the engine issues in its third step must be the one that `shardlens plan` lists.
Exit code 0: all equal; 1: a mismatch, or a run that failed; 2: usage.
"""
import argparse
import array
import concurrent.futures
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
NORM_TOLERANCE = 10  # of a gradient norm, in multiples of the loss's tolerance: its squares are summed in another order


def capture_flags(run):
    flags = []
    for key, value in run.items():
        flags.append("--" + key.replace("_", "-"))
        if value is not True:
            flags.append(str(value))
    return flags


def capture(binaries, spec, model, world, layout, out):
    """Runs the row; returns the message of a failed run, or None."""
    plan = out / "row.json"
    plan.write_text(json.dumps(parity_rows.plan_of(spec, model, world, layout)))
    command = [binaries / "shardlens", "capture", "--model", DATA / model, "--tokens", DATA / "tokens.u16.bin", "--out", out / "run",
               "--save", out / "saved", "--save-format", "full", "--plan", plan, "--nproc", world, "--steps", spec["steps"], *capture_flags(spec["run"])]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    return None if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"


def metrics(out):
    lines = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


class Trace:
    """Rank 0's trace."""

    def __init__(self, out):
        self.events = json.loads(gzip.decompress((out / "run" / "rank0.pt.trace.json.gz").read_bytes()))["traceEvents"]
        self.windows = sorted((e["ts"], e["ts"] + e["dur"]) for e in self.events if e["ph"] == "X" and e["name"].startswith("ProfilerStep#"))

    def step_of(self, ts):
        return next(i for i, (begin, end) in enumerate(self.windows) if begin <= ts < end)

    def instants(self, key):
        """Hooks or actions by sequence number: (time, args)."""
        return {e["args"]["seq"]: (e["ts"], e["args"]) for e in self.events if e.get("cat") == "shardlens" and key in e.get("args", {})}


def issued_actions(trace, step):
    hooks, actions = trace.instants("hook"), trace.instants("op")
    found = []
    for _, (ts, a) in sorted(actions.items()):
        if trace.step_of(ts) == step:
            hook = hooks[a["hook_seq"]][1]
            found.append([hook["hook"], hook["unit"], a["op"], a["unit"], a["stream"], a["cause"]])
    return found


def planned_actions(binaries, spec, model, world, out):
    flags = capture_flags({key: value for key, value in spec["run"].items() if key in ("accumulate", "no_sync")})
    command = [binaries / "shardlens", "plan", "--model", DATA / model, "--plan", out / "row.json", "--world-size", world, *flags, "--actions", "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True, timeout=60)
    return [[a[key] for key in ("hook", "hook_unit", "op", "unit", "stream", "cause")] for a in json.loads(done.stdout)["actions"]]


def plan_difference(issued, planned, replicated):
    """The first action of the engine that differs from the plan, or None. Hooks of replicated units are not compared: they are the Reducer's own."""
    if replicated:
        issued, planned = [a[2:] for a in issued], [a[2:] for a in planned]
    for i, (found, expected) in enumerate(itertools.zip_longest(issued, planned)):
        if found != expected:
            return f"action {i} of the third step: {found}, planned {expected}"
    return None


def collectives(trace):
    """Collectives on units as [unit, kind, dtype, elements of the unsharded side, group size], in issue order, per step; and the last other
    one of a step in fp32, [kind, dtype, elements, group size]: that of the gradient norm. (Losses are fp64; a scaler looks for infinities before.)"""
    actions = trace.instants("op")
    steps, norms = [[] for _ in trace.windows], [[] for _ in trace.windows]
    all_of_them = [(e["ts"], e["args"]) for e in trace.events if "Collective name" in e.get("args", {})]
    for _, a in sorted((each for each in all_of_them if "action" in each[1]), key=lambda each: each[1]["action"]):
        steps[trace.step_of(actions[a["action"]][0])].append(
            [a["unit"], KINDS[a["Collective name"]], DTYPES[a["dtype"]], max(a["In msg nelems"], a["Out msg nelems"]), a["Group size"]])
    for ts, a in sorted(all_of_them, key=lambda each: each[0]):
        if a["Collective name"] == "allreduce" and "unit" not in a and a["dtype"] == "Float":
            norms[trace.step_of(ts)] = [["all_reduce", "fp32", a["In msg nelems"], a["Group size"]]]
    return steps, norms


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


def norm_difference(found, recorded, layout):
    """Where the collectives of the gradient norm differ from PyTorch's, or None."""
    expected = [[kind, dtype, 1 if layout == "flat" else elements, size] for kind, dtype, elements, size in recorded["norm"]]  # FSDP1's is one
    for step, norm in enumerate(found):
        if norm != expected:
            return f"step {step}, gradient norm: {norm}, PyTorch {expected}"
    return None


def compare(binaries, spec, recorded, model, world, layout):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch)
        if failure := capture(binaries, spec, model, world, layout, out):
            return {"failure": failure}
        mesh = parity_rows.plan_of(spec, model, world, layout).get("mesh", {})
        loss, norm = metrics(out)
        trace = Trace(out)
        found, norms = collectives(trace)
        planned = plan_difference(issued_actions(trace, 2), planned_actions(binaries, spec, model, world, out), parity_rows.dialect_of(spec["plan"]) == "ddp")
        return {"loss": worst(loss, recorded["loss"]), "grad_norm": worst(norm, recorded["grad_norm"]),
                "parameters": worst([parameter_norm(out)], [recorded["param_norm"]]),
                "collectives": len(found[-1]) if found else 0, "failure": (order_difference(found, recorded, layout, mesh.get("shard", world))
                                                                           or norm_difference(norms, recorded, layout) or planned)}


def result_of(binaries, name, model, world, layout):
    recorded = json.loads((DATA / "parity" / f"{name}.json").read_text())[model][str(world)]
    return compare(binaries, parity_rows.row(name), recorded, model, world, layout)


def runs(options):
    """(row, model, world size, layout) of every selected run."""
    later = parity_rows.LATER if options.later or not options.fast else {}
    for number, name in enumerate(options.rows or {**parity_rows.ROWS, **later}):
        spec = parity_rows.row(name)
        models, worlds, layouts = spec["models"], spec["worlds"], spec["layouts"]
        if options.fast:
            models, layouts, worlds = [models[number % len(models)]], [layouts[number // 2 % len(layouts)]], [min(worlds)]
        yield from itertools.product([name], [m for m in models if not options.models or m in options.models.split(",")],
                                     [w for w in worlds if not options.worlds or str(w) in options.worlds.split(",")],
                                     [l for l in layouts if not options.layouts or l in options.layouts.split(",")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {**parity_rows.ROWS, **parity_rows.LATER}
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(known))
    parser.add_argument("--bin", type=pathlib.Path, default=TESTS.parent / "build" / "release" / "bin")
    parser.add_argument("--fast", action="store_true", help="each row of torch 2.11 once: with its smallest world size, and models and layouts alternately")
    parser.add_argument("--later", action="store_true", help="with --fast, also the rows that need a later torch to be recorded")
    parser.add_argument("--worlds", help="only these world sizes, as 2,3")
    parser.add_argument("--models", help="only these models")
    parser.add_argument("--layouts", help="only these layouts")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--json", action="store_true", help="one object per line")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(known):
        parser.error(f"no row {', '.join(sorted(unknown))}; expected {', '.join(known)}")
    if not options.json:
        print(f"{'row':32} {'dialect':7} {'layout':13} {'model':10} {'W':>2} {'loss':>8} {'grad norm':>9} {'parameters':>10} {'collectives':>11}  as PyTorch")
    failed = compared = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (name, model, world, layout), result in zip(runs(options), pool.map(lambda run: result_of(options.bin, *run), runs(options))):
            spec = parity_rows.row(name)
            limit = spec["tolerance"]
            equal = (not result["failure"] and result["loss"] <= limit and result["parameters"] <= limit
                     and result["grad_norm"] <= NORM_TOLERANCE * limit)
            compared += 1
            failed += not equal
            dialect = parity_rows.dialect_of(spec["plan"])
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
