#!/usr/bin/env python3
"""Compares what `shardlens analyze` finds in steps that ran as CUDA graphs with what it finds in the same steps before.

    check_graphs.py --shardlens BIN shapes [--seeds N] [--only NAME]    all shapes of graph_traces.py
    check_graphs.py --shardlens BIN recorded TRACE…                      eager traces of GPUs
    check_graphs.py --shardlens BIN replayed RUN…                        recorded runs whose first step was not captured

Each eager trace is analyzed, its steps but the first are made into replays by graph_traces.py, and that is analyzed: with an uncaptured step
before, with annotations and without. Collectives of the replays must belong to the same unit and part, or be ambiguous; compute of each unit
must be equal but for what jitter moves. With all steps captured and the shape's plan, collectives must be right, or ambiguous where other parallelism
is among them. Of a recorded graph, each replayed step is compared with the uncaptured one. Exit 0: so it is, 1: the first differences are printed.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import graph_traces

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "other")


def analyze(shardlens, path, *flags):
    done = subprocess.run([shardlens, "analyze", "--json", *flags, str(path)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"{path}: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def collectives(rank, steps):
    """By step: duration -> (unit, section, kind). Jitter moves starts, but no collective's duration."""
    out = {}
    for span in rank["spans"]:
        if span["kind"] in COLLECTIVES and span["step"] in steps:
            out.setdefault((span["step"], span["end_ns"] - span["start_ns"]), []).append((span["fqn"], span["section"], span["kind"]))
    return out


def compare(where, expected, found, steps, compute_within, of_units_only, wrong):
    """Counts of collectives: all, ambiguous. `compute_within`: None, compute is not compared."""
    total = ambiguous = 0
    for truth, rank in zip(expected["ranks"], found["ranks"], strict=True):
        was, now = collectives(truth, steps), collectives(rank, steps)
        if was.keys() != now.keys():
            wrong.append(f"{where}: {len(was.keys() ^ now.keys())} collectives are in one of the two only")
        for key in was.keys() & now.keys():
            for one, other in zip(sorted(was[key]), sorted(now[key])):
                if one[0].startswith("<"):
                    continue  # not captured: where clipping is follows from the ranges of the backward before it
                total += 1
                ambiguous += other[0] == "<ambiguous>"
                if other[0] != "<ambiguous>" and one != other:
                    wrong.append(f"{where} rank {truth['rank']} step {key[0]}: expected {one}, found {other}")
        for unit in truth["units"] if compute_within is not None else ():
            if unit["fqn"].startswith("<") and of_units_only:
                continue
            same = [u for u in rank["units"] if u["fqn"] == unit["fqn"]]
            # Nothing shows where the root's work of one microbatch ends and that of the next begins.
            whole = of_units_only and unit["fqn"] == ""
            for key in ("compute_ns",) if whole else ("compute_forward_ns", "compute_backward_ns", "compute_ns"):
                if unit.get(key, 0) == 0:
                    continue
                value = same[0].get(key, 0) if same else 0
                if abs(value - unit[key]) > compute_within * unit[key]:
                    wrong.append(f"{where} rank {truth['rank']}: {key} of '{unit['fqn']}' expected {unit[key]}, found {value}")
    return total, ambiguous


def bases(found):
    count = Counter()
    for rank in found["ranks"]:
        for row in rank.get("attribution", []):
            if row["what"] == "communication":
                count[row["basis"]] += row["count"]
    return count


def check(shardlens, where, documents, directory, wrong, graphs=1, alone=False, several=False):
    """`alone`: also with all steps captured, which needs copies that names show, and no collectives but FSDP's. `several`: microbatches in one
    graph, between which only annotations of backward show the turn."""
    eager, captured = directory / "eager", directory / "captured"
    for each in (eager, captured):
        each.mkdir(exist_ok=True)
    for rank, document in enumerate(documents):
        graph_traces.write(graph_traces.without_owners(document), eager / f"rank{rank}.json")
    truth = analyze(shardlens, eager, "--by", "span")
    numbers = sorted(step["step"] for step in truth["ranks"][0]["steps"])
    if any("attribution" in rank for rank in truth["ranks"]):
        wrong.append(f"{where}: the eager trace has an attribution")
    shares = []
    cases = [(None, numbers[1:], 0.05), ("phase", numbers[1:], 0.01), ("module_fqn", numbers[1:], 0.01)]
    if alone:
        cases += [("phase", numbers, 0.01)]
        cases += [] if several else [("module_fqn", numbers, 0.01)]
    for annotations, steps, within in cases:
        for rank, document in enumerate(documents):
            changed = graph_traces.capture(document, steps, seed=rank + 1, annotations=annotations, graphs=graphs)
            graph_traces.write(changed, captured / f"rank{rank}.json")
        found = analyze(shardlens, captured, "--by", "span")
        name = f"{where}, {annotations or 'no annotations'}, {len(steps)} captured"
        total, ambiguous = compare(name, truth, found, set(steps), within, len(steps) == len(numbers), wrong)
        basis = bases(found)
        # The eager trace has no collective that nothing shows the unit of, so the replay has none either.
        if total > 0 and ambiguous * 100 > total * (0 if annotations else 1):
            wrong.append(f"{name}: {ambiguous} of {total} collectives are ambiguous")
        if total > 0 and basis["order"] + basis["annotation"] == 0:
            wrong.append(f"{name}: no collective was attributed: {dict(basis)}")
        shares.append(f"{ambiguous}/{total}")
    return shares


def compare_compute(where, expected, found, wrong):
    """No unit has more compute than it ran, but for what jitter moves, and what it has less is ambiguous."""
    for truth, rank in zip(expected["ranks"], found["ranks"], strict=True):
        less = 0
        for unit in truth["units"]:
            if not unit["fqn"].startswith("<"):
                value = sum(u["compute_ns"] for u in rank["units"] if u["fqn"] == unit["fqn"])
                less += max(0, unit["compute_ns"] - value)
                if value > 1.01 * unit["compute_ns"]:
                    wrong.append(f"{where} rank {truth['rank']}: compute of '{unit['fqn']}' expected {unit['compute_ns']}, found {value}")
        ambiguous = sum(u["compute_ns"] for u in rank["units"] if u["fqn"].startswith("<"))
        if less > 1.01 * ambiguous:
            wrong.append(f"{where} rank {truth['rank']}: units lack {less} of their compute, of which {ambiguous} is ambiguous")


def check_planned(shardlens, name, documents, directory, wrong):
    """All steps captured, without annotations: collectives have the units of the plan, or are ambiguous."""
    shape = graph_traces.SHAPES[name]
    eager, captured = directory / "planned-eager", directory / "planned"
    for each in (eager, captured):
        each.mkdir(exist_ok=True)
    plan, model, ranks = graph_traces.plan_of(name)
    for file, content in (("plan.json", plan), ("model.json", model)):
        (directory / file).write_text(json.dumps(content))
    for rank, document in enumerate(documents):
        graph_traces.write(graph_traces.without_owners(document), eager / f"rank{rank}.json")
        numbers = sorted(graph_traces.steps_of(document["traceEvents"]))
        changed = graph_traces.capture(document, numbers, seed=rank + 1, graphs=shape.get("graphs", 1))
        changed["distributedInfo"] = dict(changed["distributedInfo"], world_size=ranks)
        graph_traces.write(changed, captured / f"rank{rank}.json")
    truth = analyze(shardlens, eager, "--by", "span")
    flags = ("--by", "span", "--model", str(directory / "model.json"), "--plan", str(directory / "plan.json"))
    found = analyze(shardlens, captured, *flags)
    for file in ("plan.json", "model.json"):
        (captured / file).write_text((directory / file).read_text())
    if analyze(shardlens, captured, "--by", "span") != found:
        wrong.append(f"{name}: the plan next to the traces gives another analysis than --model and --plan")
    total, ambiguous = compare(f"{name}, planned", truth, found, set(numbers), None, True, wrong)
    compare_compute(f"{name}, planned", truth, found, wrong)
    if any(span["cause"] == "late_host" for rank in found["ranks"] for span in rank["spans"]):
        wrong.append(f"{name}, planned: the host was late for a collective of a graph")
    said = [d for d in found["diagnostics"] if "does not fit" in d["message"]]
    other = any(key.startswith("tensor") for key in shape)
    if other != (ambiguous > 0) or other != bool(said):
        wrong.append(f"{name}, planned: {ambiguous} of {total} collectives are ambiguous; {[d['message'] for d in said]}")
    return f"{ambiguous}/{total}"


def check_slower(shardlens, name, documents, directory, wrong):
    """Gathers that take twice as long in the graph as outside are named, and only they."""
    slow = directory / "slow"
    slow.mkdir(exist_ok=True)
    for factor, expected in ((1, []), (2, ["all_gather"])):
        for rank, document in enumerate(documents):
            numbers = sorted(graph_traces.steps_of(document["traceEvents"]))
            changed = graph_traces.capture(document, numbers[1:], seed=rank + 1)
            for row in changed["traceEvents"]:
                if "AllGather" in row["name"] and "graph node id" in row.get("args", {}):
                    row["dur"] *= factor
            graph_traces.write(changed, slow / f"rank{rank}.json")
        for rank in analyze(shardlens, slow)["ranks"]:
            found = [waste["where"].split(" ")[0] for waste in rank["waste"] if waste["kind"] == "slow_in_graph"]
            if found != expected:
                wrong.append(f"{name}, gathers {factor} times as long, rank {rank['rank']}: slower in the graph: {found}, not {expected}")


def check_replayed(shardlens, path, wrong):
    """The same kernels on one quiet GPU take the same time, but for its clock: within 5 % of each unit, and 50 us."""
    numbers = sorted(step["step"] for step in analyze(shardlens, path)["ranks"][0]["steps"])
    by_step = []
    for number in numbers:
        units = analyze(shardlens, path, "--steps", f"{number}:{number + 1}")["ranks"][0]["units"]
        by_step.append({unit["fqn"]: unit for unit in units})
    for number, units in zip(numbers[1:], by_step[1:]):
        for name, unit in by_step[0].items():
            if name == "<none>":
                continue
            for key in ("compute_forward_ns", "compute_backward_ns", "compute_ns"):
                was, now = unit.get(key, 0), units.get(name, {}).get(key, 0)
                if abs(was - now) > 0.05 * was + 50_000:
                    wrong.append(f"{path} step {number}: {key} of '{name}' expected {was}, found {now}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardlens", required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    shapes = commands.add_parser("shapes")
    shapes.add_argument("--seeds", type=int, default=1)
    shapes.add_argument("--only")
    recorded = commands.add_parser("recorded")
    recorded.add_argument("traces", nargs="+", type=Path)
    replayed = commands.add_parser("replayed")
    replayed.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    wrong, seen = [], 0
    if options.command == "shapes":
        for name, shape in graph_traces.SHAPES.items():
            if options.only not in (None, name):
                continue
            for seed in range(1, options.seeds + 1):
                with tempfile.TemporaryDirectory() as directory:
                    documents = graph_traces.generate(name, ranks=2, seed=seed)
                    shares = check(options.shardlens, f"{name} seed {seed}", documents, Path(directory), wrong, shape.get("graphs", 1), alone=not any(key.startswith("tensor") for key in shape), several=shape.get("microbatches", 1) > 1)
                    shares.append("planned " + check_planned(options.shardlens, name, documents, Path(directory), wrong))
                    if name == "plain":
                        check_slower(options.shardlens, name, documents, Path(directory), wrong)
                print(f"{name}: ambiguous collectives {', '.join(shares)}")
                seen += 1
    elif options.command == "replayed":
        for path in options.runs:
            check_replayed(options.shardlens, path, wrong)
            seen += 1
    else:
        for path in options.traces:
            with tempfile.TemporaryDirectory() as directory:
                shares = check(options.shardlens, path.parent.name, [graph_traces.read(path)], Path(directory), wrong)
            print(f"{path.parent.name}: ambiguous collectives {', '.join(shares)}")
            seen += 1
    for each in wrong[:40]:
        print(each)
    print(f"{seen} traces, {len(wrong)} differences")
    return 1 if wrong or seen == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
