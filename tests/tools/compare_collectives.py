"""Compares the collectives of simulated steps with those that PyTorch issued (tests/data/tensor, tests/data/expert).

    compare_collectives.py --bin build/release/bin/shardlens [--data FOLDER] [--ranks] [--show] [NAME…]

Each program is simulated with its own plan, model and step. Compared are the collectives of forward, backward and recomputation of rank 0 (--ranks: of every rank) in the order in which they
are issued: kind, ranks of the group, bytes before and after. Those of the norm and of the optimizer, which simulate does not have, are left out. --show prints both lists where they differ.
Left out are programs that no plan describes: without fully_shard, and with keys and values gathered by hand. Exit code 1 if a program differs or is refused.
"""
import argparse
import gzip
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
SIZES = {"Float": 4, "BFloat16": 2, "Half": 2, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Bool": 1, "Float8_e4m3fn": 1}
KINDS = (("reduce_scatter", "reduce_scatter"), ("reducescatter", "reduce_scatter"), ("allgather", "all_gather"), ("all_gather", "all_gather"), ("allreduce", "all_reduce"),
         ("all_reduce", "all_reduce"), ("all_to_all", "all_to_all"), ("alltoall", "all_to_all"), ("broadcast", "broadcast"),
         ("send_recv", "all_to_all"))  # context_parallel's ring calls all_to_all, all of whose bytes go to one rank
STEP_PHASES = ("forward", "backward", "recompute")


def world_of(program):
    return 1 + max(rank for lists in program["groups"].values() for ranks in lists for rank in ranks)


def kind_of(name):
    return next((kind for part, kind in KINDS if part in name), name)


def expected(program, rank):
    """(kind, ranks of the group, bytes before, after, what it is) of the step's forward and backward."""
    groups = {axis: {member: tuple(ranks) for ranks in lists for member in ranks} for axis, lists in program["groups"].items()}
    rows = []
    for values in program["collectives"]:
        row = dict(zip(program["columns"], values))
        if row["phase"] in STEP_PHASES:
            before, after = (row[key][rank] if isinstance(row[key], list) else row[key] for key in ("in", "out"))
            rows.append((row["kind"], groups[row["group"]][rank], before, after, f"{row['phase']} {row['module']}"))
    return rows


def arguments_of(program, folder):
    """Writes the program's model and plan into `folder`. The arguments of simulate."""
    model = next(each for each in (DATA / program["model"], DATA / "tensor" / program["model"]) if each.exists())
    if (model / "model.json").exists():
        model = model / "model.json"
    else:
        config = json.loads((model / "config.json").read_text()) | program["config"]
        model = folder / "config.json"
        model.write_text(json.dumps(config))
    (folder / "plan.json").write_text(json.dumps(program["plan"]))
    step = program["step"]
    out = ["simulate", "--model", str(model), "--plan", str(folder / "plan.json"), "--hardware", "8xH200", "--world-size", str(world_of(program)), "--batch", str(step["batch"]),
           "--seq", str(step["seq"]), "--stack", "transformers", "--out", str(folder / "out")]
    if step["microbatches"] > 1:
        out += ["--accumulate", str(step["microbatches"])] + (["--no-sync"] if step["accumulate"] else [])
    if step.get("skew"):
        out += ["--expert-skew", str(step["skew"])]
    if step["optimizer"] == "fused":
        out += ["--optimizer-impl", "fused"]
    return out


def simulated(folder, rank):
    """Like expected(), of the trace that simulate has written."""
    path = folder / "out" / f"rank{rank}.pt.trace.json.gz"
    events = [each for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if "Collective name" in each.get("args", {}) and "In msg nelems" in each["args"]]
    events.sort(key=lambda each: (each["args"].get("issued_ns", 0), each["args"].get("correlation", 0)))
    rows = []
    for event in events:
        args = event["args"]
        size = SIZES[args["dtype"]]
        rows.append((kind_of(args["Collective name"].lower()), tuple(json.loads(args["Process Group Ranks"])), args["In msg nelems"] * size, args["Out msg nelems"] * size,
                     f"{args.get('purpose', '')} {args.get('module', args.get('unit', ''))}"))
    return rows


def shown(row):
    return f"{row[0]:14} {str(row[1]):16} {row[2]!s:>8} {row[3]!s:>8} {row[4]:44}"


def first_difference(wanted, found):
    """Index and a sentence, or None."""
    for index, (ours, theirs) in enumerate(zip(found, wanted)):
        if ours[:4] != theirs[:4]:
            return index, f"collective {index}: simulated {ours[0]} over {list(ours[1])}, {ours[2]} -> {ours[3]} bytes ({ours[4].strip()}); PyTorch {theirs[0]} over {list(theirs[1])}, " \
                          f"{theirs[2]} -> {theirs[3]} bytes ({theirs[4].strip()})"
    if len(wanted) != len(found):
        return min(len(wanted), len(found)), f"{len(found)} collectives simulated, {len(wanted)} of PyTorch"
    return None


def compare(path, options):
    """A sentence of what differs, or None."""
    program = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        done = subprocess.run([options.bin, *arguments_of(program, folder)], capture_output=True, text=True)
        if done.returncode != 0:
            return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[0] if done.stderr.strip() else ''}"
        for rank in range(world_of(program) if options.ranks else 1):
            wanted, found = expected(program, rank), simulated(folder, rank)
            different = first_difference(wanted, found)
            if different:
                if options.show:
                    for ours, theirs in itertools.zip_longest(found, wanted, fillvalue=("",) * 5):
                        print(" ", " " if ours[:4] == theirs[:4] else "*", shown(ours), "|", shown(theirs))
                return f"rank {rank}, {different[1]}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bin", default="build/release/bin/shardlens")
    parser.add_argument("--data", type=Path, default=DATA / "tensor")
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    paths = [options.data / f"{name}.json" for name in options.names] or sorted(options.data.glob("*.json"))
    failed = left_out = 0
    for path in paths:
        program = json.loads(path.read_text())
        if not options.names and (program.get("fully_shard") is False or program.get("gather") in ("apart", "joined")):
            left_out += 1
            continue
        different = compare(path, options)
        failed += different is not None
        print(f"{path.stem}: {different or 'equal'}", flush=True)
    print(f"{len(paths) - failed - left_out} of {len(paths) - left_out} programs equal, {left_out} left out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
