#!/usr/bin/env python3
"""Compares the causes and the waste that `shardlens analyze` names with those that generate_causes.py put into its traces, and the late
buckets with those of generate_buckets.py: two traces for each seed.

    check_causes.py --shardlens PROGRAM [--seeds N] [--first SEED] [--verbose]

Fails if fewer than 98 % of the causes are right, if frozen views, another rank or waste is named where there is none, or if waste is missed in
traces without lost events. An exposed collective counts if the generator gave it a cause and it was exposed for two microseconds or more.
"""
import argparse
import collections
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import generate_buckets  # noqa: E402
import generate_causes  # noqa: E402

FALSE_ALARMS = ("waited_for_another_rank", "frozen_views")
# What the program calls the scenarios of the generator.
CAUSES = {"first": "first_of_the_step", "last": "last_of_the_step", "no_prefetch": "not_prefetched", "late_host": "host_late",
          "queued": "behind_another_collective", "bandwidth": "limited_by_bandwidth", "peer": "waited_for_another_rank",
          "dependency": "needed_at_once", "one_queue": "one_hardware_queue"}


def analyzed(program, seed, directory):
    files = sorted(Path(directory).glob("rank*.json"))
    result = subprocess.run([program, "analyze", *map(str, files), "--json", "--by", "span"], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"seed {seed}: exit code {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)["ranks"][0]


def compare(program, seed, directory, counts, wrong, verbose):
    truth = generate_causes.generate(seed, directory)
    rank = analyzed(program, seed, directory)
    expected = {c["start_ns"]: CAUSES.get(c["cause"], c["cause"]) for c in truth["causes"]}
    spans = [s for s in rank["spans"] if s.get("name")]
    # Spans count from the rank's first instant: the first collective is the same in both.
    zero = min(expected) - min(s["start_ns"] for s in spans) if not truth["lost"] else None
    candidates = [zero] if zero is not None else sorted({e - s["start_ns"] for e in list(expected)[:3] for s in spans[:40]},
                                                       key=lambda z: -sum(s["start_ns"] + z in expected for s in spans))[:1]
    for span in spans:
        cause = expected.get(span["start_ns"] + candidates[0])
        found = span["cause"]
        if found in FALSE_ALARMS and found != cause:
            wrong.append(f"seed {seed}: false {found} of {span['fqn']} ({cause})")
        if cause is None or found is None or span["exposed_ns"] < 2000:
            counts["hidden" if found is None else "no truth"] += 1
            continue
        counts["right" if found == cause else "wrong"] += 1
        counts[f"{cause} as {found}"] += 1
        if found != cause and verbose:
            print(f"seed {seed} step {span['step']}: {span['fqn']} {span['kind']} {span['section']}: {cause} called {found}, exposed {span['exposed_ns']}")
    compare_waste(rank, truth, seed, counts, wrong)


def compare_buckets(program, seed, directory, counts, wrong):
    truth = generate_buckets.generate(seed, directory)
    rank = analyzed(program, seed, directory)
    wrong += [f"seed {seed}: false {s['cause']} of {s['fqn']}" for s in rank["spans"] if s["cause"] in FALSE_ALARMS]
    counts[f"buckets, {truth['settings']['kind']}"] += 1
    compare_waste(rank, truth, seed, counts, wrong)


def compare_waste(rank, truth, seed, counts, wrong):
    waste = {(w["kind"], w["where"]) for w in rank["waste"]}
    known = {tuple(w) for w in truth["waste"]}
    # The operator around a wait may be lost.
    names = {(kind, where.split(" in ")[0]) for kind, where in known} if truth["lost"] else set()
    for each in waste - known - names:
        wrong.append(f"seed {seed}: false waste {each}")
    if not truth["lost"]:
        for each in known - waste:
            wrong.append(f"seed {seed}: missed waste {each}")
    counts["waste"] += len(waste & known)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardlens", required=True)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    counts, wrong = collections.Counter(), []
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as directory:
            compare(options.shardlens, seed, directory, counts, wrong, options.verbose)
        with tempfile.TemporaryDirectory() as directory:
            compare_buckets(options.shardlens, seed, directory, counts, wrong)
    for key, count in sorted(counts.items()):
        print(f"{key:40} {count}")
    print("\n".join(wrong[:40]))
    share = counts["right"] / max(1, counts["right"] + counts["wrong"])
    print(f"{100 * share:.2f} % of {counts['right'] + counts['wrong']} causes right")
    return 0 if share >= 0.98 and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
