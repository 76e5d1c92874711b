#!/usr/bin/env python3
"""Compares `shardlens analyze --json` with tests/tools/trace_oracle.py, to the nanosecond, and the texts of the window with what the commands print.

    check_figures.py --shardlens BIN generated [--seeds N]      traces of generate_traces.py, also with the figures that it made them with
    check_figures.py --shardlens BIN recorded PATH…             every *.json, *.json.gz below the paths
    check_figures.py --shardlens BIN window RUN…                `gui --figures` with analyze, simulate, advise and search: see window_figures.py

Exit 0: equal, 1: the first differences are printed, 77 (CTest: skipped): no trace below the paths.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import generate_traces
import trace_oracle
import window_figures

KEYS = ("span_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")


def analyze(shardlens, path):
    done = subprocess.run([shardlens, "analyze", "--json", str(path)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"{path}: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def differences(where, expected, found):
    for key in KEYS:
        if expected[key] != found[key]:
            yield f"{where}: {key}: expected {expected[key]}, found {found[key]}"
    if "steps" not in expected:
        return
    if [s["step"] for s in expected["steps"]] != [s["step"] for s in found["steps"]]:
        yield f"{where}: expected the steps {[s['step'] for s in expected['steps']]}, found {[s['step'] for s in found['steps']]}"
        return
    for one, other in zip(expected["steps"], found["steps"]):
        yield from differences(f"{where} step {one['step']}", one, other)


def parts_sum(where, rank):
    for each in [rank, *rank["steps"]]:
        idle = each.get("idle")
        if idle is not None and sum(idle.values()) != each["idle_ns"]:
            yield f"{where}: causes of idle time sum to {sum(idle.values())}, expected {each['idle_ns']}"
        if sum(c["exposed_ns"] for c in each["collectives"].values()) != each["exposed_comm_ns"]:
            yield f"{where}: exposed time of collectives does not sum to {each['exposed_comm_ns']}"


def check_generated(shardlens, seeds):
    wrong, traces = [], 0
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as directory:
            truth = generate_traces.generate(seed, Path(directory))
            found = analyze(shardlens, directory)
            for expected, rank in zip(truth["ranks"], found["ranks"], strict=True):
                where = f"seed {seed} ({truth['shape']}) rank {expected['rank']}"
                traces += 1
                wrong += differences(where + ", generated figures", expected, rank)
                wrong += differences(where + ", trace_oracle.py", trace_oracle.figures(expected["file"]), rank)
                wrong += parts_sum(where, rank)
            wrong += check_matching(f"seed {seed} ({truth['shape']})", truth, found)
    return wrong, traces


def check_matching(where, truth, found):
    """Clock offsets and start skew of the generated collectives, which all ranks end at once."""
    if len(truth["ranks"]) < 2 or "clocks" not in found:
        return
    for rank, clock in zip(truth["ranks"], found["clocks"], strict=True):
        if clock["offset_ns"] != rank["clock_ns"]:
            yield f"{where}: clock of rank {rank['rank']}: expected an offset of {rank['clock_ns']}, found {clock['offset_ns']}"
        if clock["collectives"] != truth["collectives"]:
            yield f"{where}: expected {truth['collectives']} matched collectives, found {clock['collectives']}"
    for kind, wait in truth["wait_ns"].items():
        seen = sum(rank["collectives"].get(kind, {}).get("wait_ns") or 0 for rank in found["ranks"])
        if seen != wait:
            yield f"{where}: expected that ranks wait {wait} ns in {kind}, found {seen}"


def check_recorded(shardlens, paths):
    wrong, traces = [], 0
    for path in map(Path, paths):
        below = path.rglob("*") if path.is_dir() else [path]
        for file in sorted(f for f in below if f.name.endswith((".json", ".json.gz")) and f.is_file()):
            wrong += differences(file.name, trace_oracle.figures(file), analyze(shardlens, file)["ranks"][0])
            traces += 1
    return wrong, traces


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardlens", required=True)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("what", choices=["generated", "recorded", "window"])
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args()
    wrong, traces = (check_generated(options.shardlens, options.seeds) if options.what == "generated"
                     else window_figures.check(options.shardlens, options.paths) if options.what == "window"
                     else check_recorded(options.shardlens, options.paths))
    for each in wrong[:20]:
        print(each)
    if traces == 0:
        print(f"skipped: no traces in {' '.join(options.paths)}")
        sys.exit(77)
    print(f"{traces} traces, {len(wrong)} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
