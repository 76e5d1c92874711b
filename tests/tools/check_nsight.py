#!/usr/bin/env python3
"""Compares the analysis of exports of Nsight Systems with that of the traces that nsight_export.py made them of.

    check_nsight.py --shardlens BIN

Every figure is equal to the nanosecond: of a run that torch.profiler recorded on a GPU, of a capture on a GPU, and of a simulated run of
eight ranks in one export. Left out is what Nsight Systems does not record: names and members of groups, actions and hooks of the schedule
and with them who issued a collective, and on which stream an awaited event was recorded.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Keys whose values need what is not in an export.
NOT_RECORDED = {"group", "groups", "order", "lead_ns", "cause", "issued_by", "blocks", "waste", "diagnostics", "stragglers", "name"}


# In simulated runs only the actions say what a collective was for and whose it was, and steps end with the host's.
OF_SIMULATED = {"communication", "units", "matched", "span_ns", "idle", "idle_ns", "launch"}


def figures(document, without):
    if isinstance(document, dict):
        kept = {key: figures(value, without) for key, value in document.items() if key not in without}
        if "event_wait_ns" in kept and "gap_ns" in kept:  # which of the two, the stream of the awaited event tells
            kept["gap_ns"] += kept.pop("event_wait_ns")
        return kept
    return [figures(each, without) for each in document] if isinstance(document, list) else document


def differences(one, other, path=""):
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (mine, theirs) in enumerate(zip(one, other)):
            yield from differences(mine, theirs, f"{path}[{i}]")
    elif one != other:
        yield f"{path}: {str(one)[:60]} in the trace, {str(other)[:60]} in the export"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shardlens", required=True)
    options = parser.parse_args()

    def analyzed(*paths, without):
        done = subprocess.run([options.shardlens, "analyze", "--json", *paths], capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            sys.exit(f"{paths}: {done.stderr}")
        return figures(json.loads(done.stdout), without)

    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        subprocess.run([options.shardlens, "simulate", "--model", ROOT / "tests/data/llama-tiny", "--hardware", "8xH100", "--strategy", "hybrid_shard",
                        "--mesh", "2x4", "--ranks", "all", "--out", directory / "simulated"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=120)
        runs = {"fsdp2-h200": [ROOT / "traces/fsdp2-h200/rank0.pt.trace.json.gz"], "llama-h200": [ROOT / "traces/llama-h200/rank0.pt.trace.json.gz"],
                "simulated": sorted((directory / "simulated").glob("rank*.json.gz"))}
        for run, traces in runs.items():
            export = directory / f"{run}.sqlite"
            subprocess.run([sys.executable, ROOT / "tests/tools/nsight_export.py", export, *traces], check=True, timeout=120)
            without = NOT_RECORDED | (OF_SIMULATED if run == "simulated" else set())
            expected = analyzed(*traces, without=without)
            found = list(differences(expected, analyzed(export, without=without)))
            ranks = expected["ranks"]
            print(f"{run}: {len(ranks)} ranks, {sum(each['compute_ns'] for each in ranks)} ns of compute, "
                  f"{sum(each['exposed_comm_ns'] for each in ranks)} ns exposed: {len(found)} differences", *found[:20], sep="\n  ")
            wrong += len(found)
            if len(ranks) != len(traces) or not all(each["compute_ns"] for each in ranks):
                sys.exit(f"{run}: nothing to compare")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
